"""Integer division and modulo by zero and by -1: as ONNX Runtime's operators, and never the end of the process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from tests.support.emulation import emulated
from tests.support.kinds import rowwise_models

pytestmark = pytest.mark.usefixtures("library")
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
SIGNED = tuple(d for d in INTEGERS if d[0] == "i")
NODES = ("Div", "Mod", "Mod<fmod = 1>")
BY_ZERO = "division or modulo by zero"


def sessions(
    folder: Path, dtype: str, node: str, length: str = "n"
) -> tuple[ort.InferenceSession, ort.InferenceSession]:
    """ONNX Runtime's own operators, and one kernel of ours: y is the node of x and d, inverted twice."""
    found = rowwise_models.fused(
        f"{dtype}[n] x, {dtype}[{length}] d", f"{dtype}[n] y", f"q = {node}(x, d)  b = BitwiseNot(q)  y = BitwiseNot(b)"
    )
    assert [len(k.ops) for k in found.kernels] == [3]
    return rowwise_models.session(found.original), rowwise_models.with_library(found, folder)


@pytest.mark.parametrize("node", NODES)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_zero_is_an_error_as_of_the_operator(dtype: str, node: str, tmp_path: Path) -> None:
    """Wherever it lies, and as one divisor for all; a session goes on afterwards."""
    x = np.arange(1, 5001).astype(dtype)
    for name, length, places in (("each", "n", (0, 17, 4999)), ("one", "m", (0,))):
        (tmp_path / name).mkdir()
        original, own = sessions(tmp_path / name, dtype, node, length)
        d = np.full(5000 if length == "n" else 1, 3, dtype)
        np.testing.assert_array_equal(own.run(None, {"x": x, "d": d})[0], original.run(None, {"x": x, "d": d})[0])
        for place in places:
            zero = d.copy()
            zero[place] = 0
            with pytest.raises(Exception, match="by zero"):
                original.run(None, {"x": x, "d": zero})
            with pytest.raises(Exception, match=BY_ZERO):
                own.run(None, {"x": x, "d": zero})
        np.testing.assert_array_equal(own.run(None, {"x": x, "d": d})[0], original.run(None, {"x": x, "d": d})[0])


@pytest.mark.parametrize("node", NODES)
@pytest.mark.parametrize("dtype", SIGNED)
def test_the_lowest_value_by_minus_one_wraps(dtype: str, node: str, tmp_path: Path) -> None:
    """As ONNX Runtime's operators where these live on: of 32 and 64 bits, Div and Mod end the process with SIGFPE."""
    original, own = sessions(tmp_path, dtype, node)
    lowest = np.iinfo(dtype).min
    x, d = np.array([lowest, 7, lowest + 1, lowest], dtype), np.array([-1, -1, -1, 1], dtype)
    with np.errstate(over="ignore"):
        wanted = x * d if node == "Div" else np.zeros_like(x)
    np.testing.assert_array_equal(own.run(None, {"x": x, "d": d})[0], wanted)
    if dtype in ("int8", "int16") or node == "Mod<fmod = 1>":
        np.testing.assert_array_equal(original.run(None, {"x": x, "d": d})[0], wanted)


def test_what_a_reduction_divides(tmp_path: Path) -> None:
    """Pieces of a rowwise kernel tell of a zero as well."""
    nodes = "q = Div(x, d)  y = ReduceSum(q, axes)"
    inputs, outputs = "int32[n, 40] x, int32[40] d", "int32[n, 1] y"
    found = rowwise_models.fused(inputs, outputs, nodes, constants="int64[1] axes = {-1}")
    assert found.rowwise == ["Div ReduceSum"]
    session = rowwise_models.with_library(found, tmp_path)
    x, d = np.full((3, 40), 9, np.int32), np.full(40, 2, np.int32)
    np.testing.assert_array_equal(session.run(None, {"x": x, "d": d})[0], np.full((3, 1), 160))
    d[39] = 0
    with pytest.raises(Exception, match=BY_ZERO):
        session.run(None, {"x": x, "d": d})


def test_what_conditions_leave_out_is_no_zero(tmp_path: Path) -> None:
    """A kernel with a Pad computes at places where nothing is read, which the operator never sees."""
    found = rowwise_models.fused("int32[n, 4] x, int32[n, 4] d", "int32[n, 7] y", "q = Div(x, d)  y = Pad(q, pads)",
                                 constants="int64[4] pads = {0, 1, 0, 2}")  # fmt: skip
    assert [len(k.ops) for k in found.kernels] == [2]
    session = rowwise_models.with_library(found, tmp_path)
    x, d = np.full((3, 4), 9, np.int32), np.full((3, 4), 2, np.int32)
    np.testing.assert_array_equal(session.run(None, {"x": x, "d": d})[0], np.pad(x // d, ((0, 0), (1, 2))))
    d[1, 2] = 0  # the quotient is 0 then, as on a GPU
    np.testing.assert_array_equal(session.run(None, {"x": x, "d": d})[0][1], [0, 4, 4, 0, 4, 0, 0])


_ON_A_GPU = """
#include <limits>
#include "device/scalar.cuh"
template <typename T> bool right() {
  const T low = std::numeric_limits<T>::min(), minus = static_cast<T>(-1);
  if (onnxopt::div(T(7), T(0)) != 0 || onnxopt::mod(T(7), T(0)) != 7 || onnxopt::fmod(T(7), T(0)) != 7) return false;
  if (low == 0) return true;
  return onnxopt::div(low, minus) == low && onnxopt::mod(low, minus) == 0 && onnxopt::fmod(low, minus) == 0;
}
int main() {
  const bool good = right<signed char>() && right<unsigned char>() && right<short>() && right<unsigned short>() &&
                    right<int>() && right<unsigned>() && right<long long>() && right<unsigned long long>();
  return good ? 0 : 1;
}
"""


def test_cuda_text(tmp_path: Path) -> None:
    """A GPU cannot report: x / 0 is 0 and x mod 0 is x, which ONNX Runtime's CUDA kernels leave open."""
    emulated.run(tmp_path, _ON_A_GPU)


_BY_A_CONSTANT = """
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include "device/scalar.cuh"
float from(std::uint32_t bits) { float x; std::memcpy(&x, &bits, 4); return x; }
int main() {
  std::mt19937 draw(7);
  std::uniform_real_distribution<float> exponent(-60, 60), near(-40000, 40000);
  const float special[] = {0.0f, -0.0f, from(1), from(0x80000001), 3.4028234e38f, -3.4028234e38f, INFINITY, -INFINITY};
  for (int k = 0; k < 2000; ++k) {
    float y = std::exp2(exponent(draw)) * (k % 2 ? 1 : -1);
    std::uint32_t bits; std::memcpy(&bits, &y, 4);
    if ((bits & 0x7fffff) == 0x7fffff) continue;
    const float inverse = 1.0f / y;
    const auto differs = [&](float x) {
      const float found = std::rint(onnxopt::divide_by_constant(x, y, inverse)), wanted = std::rint(x / y);
      return std::memcmp(&found, &wanted, 4) != 0;
    };
    for (float x : special) if (differs(x)) return 1;
    for (int i = 0; i < 400; ++i) {
      const float tie = (std::floor(near(draw)) + 0.5f) * y;  // a quotient at a tie, and its neighbours
      if (differs(tie) || differs(std::nextafter(tie, 0.0f)) || differs(std::nextafter(tie, INFINITY))) return 2;
      std::uint32_t any = draw();
      if ((any & 0x7f800000) != 0x7f800000 && differs(from(any))) return 3;
    }
    if (!std::isnan(onnxopt::divide_by_constant(NAN, y, inverse))) return 4;
  }
  return 0;
}
"""


def test_division_by_a_constant_rounds_to_the_same_integer(tmp_path: Path) -> None:
    """3.2 million quotients: at ties and beside them, of any bits, infinite, and of what is subnormal."""
    emulated.run(tmp_path, _BY_A_CONSTANT)
