"""Codes that kernels round and convert by additions: the same as by the functions for it, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import pytest

from cases.models import fuse, outline
from tests.support.emulation import emulated
from tests.support.graphs import graph

_MAIN = """
#include <cmath>
#include <cstdio>
#include "device/scalar.cuh"
using namespace onnxopt;

template <typename Code>
bool agree(float x, float zero, float low, float high) {
  const auto limited = [&](float y) { return select(lt(low, y), onnxopt::min(y, high), low); };
  const float wanted = limited(add(std::rint(x), zero));
  const float found = limited(add(round_to_code(x), zero));
  if (wanted == found && code_of<Code>(found) == static_cast<Code>(wanted)) return true;
  std::fprintf(stderr, "%a becomes %a and %d, not %a\\n", x, found, static_cast<int>(code_of<Code>(found)), wanted);
  return false;
}

int main() {
  bool good = true;
  for (int k = -140000; k <= 140000; ++k) {
    const float tie = k * 0.5f;
    for (const float x : {tie, std::nextafter(tie, 1e9f), std::nextafter(tie, -1e9f)}) {
      good = good && agree<uint8_t>(x, 0, 0, 255) && agree<uint8_t>(x, 128, 0, 255);
      good = good && agree<int8_t>(x, 0, -128, 127) && agree<int8_t>(x, -7, -128, 127);
      good = good && agree<uint16_t>(x, 300, 0, 65535) && agree<int16_t>(x, 0, -32768, 32767);
    }
  }
  for (int e = -149; e < 128; ++e) {
    for (float x = std::ldexp(1.0f, e); x < std::ldexp(1.999f, e); x *= 1.01f + (x < 1e-37f)) {
      good = good && agree<uint8_t>(x, 3, 0, 255) && agree<int16_t>(-x, -3, -32768, 32767);
    }
  }
  for (const float x : {INFINITY, -INFINITY, NAN, -0.0f, 4194303.5f, 8388608.0f, 1e38f}) {
    good = good && agree<uint8_t>(x, 128, 0, 255) && agree<int8_t>(x, 0, -128, 127);
    good = good && agree<int16_t>(x, 1, -32768, 32767);
  }
  return good ? 0 : 1;
}
"""


def test_ties_and_numbers_that_are_far_or_none(tmp_path: Path) -> None:
    emulated.run(tmp_path, _MAIN)


def _text(body: str, constants: str, outputs: str = "float[N, 64] y") -> str:
    model = graph("float[N, 64] x", outputs, body, constants=constants, opset=21)
    (kernel,) = outline(model, fuse(model))
    return "\n".join(kernel.kind.cuda(kernel))


@pytest.mark.parametrize(("dtype", "zero"), [("uint8", 128), ("int8", 0), ("int8", -3), ("uint16", 0), ("int16", 5)])
def test_what_stays_inside_is_never_an_integer(dtype: str, zero: int) -> None:
    pair = "q = QuantizeLinear(x, s, z)  a = DequantizeLinear(q, s, z)  y = Neg(a)"
    text = _text(pair, f"float s = {{0.3}}, {dtype} z = {{{zero}}}")
    assert "round_to_code(" in text and " round(" not in text
    assert "code_of<" not in text.replace("code_of<" + dtype + "_t>", "", 1)  # computed once, and not stored
    assert "cast<" not in text


def test_codes_that_are_stored_are_converted_once() -> None:
    pair = "q = QuantizeLinear(x, s, z)  a = DequantizeLinear(q, s, z)  y = Neg(a)"
    text = _text(pair, "float s = {0.3}, uint8 z = {7}", "uint8[N, 64] q, float[N, 64] y")
    assert text.count("code_of<uint8_t>") == 1 and "cast<" not in text


@pytest.mark.parametrize(
    "body",
    [
        "a = Round(x)  y = Clip(a, low, high)",  # a maximum lets NaN through
        "a = Round(x)  y = Neg(a)",
        "q = QuantizeLinear(x, s, z)  r = Round(x)  b = DequantizeLinear(q, s, z)  y = Add(r, b)",
    ],
)
def test_other_roundings_keep_their_function(body: str) -> None:
    constants = "float s = {1}, uint8 z = {7}, float low = {-3}, float high = {900}"
    assert " round(" in _text(body, constants)
