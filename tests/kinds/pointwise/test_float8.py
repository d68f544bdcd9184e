"""8-bit floats in kernels: the conversions of device code and of the library are ONNX's, bit for bit."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from onnxopt.artifact import layout
from onnxopt.pipeline import flow
from onnxopt.runtime import sessions
from tests.conftest import device_arch
from tests.support.emulation import emulated
from tests.support.fusing import cpu_kernels_forced
from tests.support.graphs import graph

_ROWS = 61
_MAIN = """
#include <cmath>
#include <cstdio>
#include "device/dtypes.cuh"
#include "device/narrow_float8.cuh"
using namespace onnxopt;

// The code nearest to x, of two the one whose last bit is 0; beyond 448 that of 448.
unsigned nearest(float x) {
  if (std::isnan(x)) return 0x7fu | (std::signbit(x) ? 0x80u : 0u);
  const double wanted = std::fmin(std::fabs(static_cast<double>(x)), 448.0);
  unsigned best = 0;
  for (unsigned code = 1; code < 0x7fu; ++code) {
    const int exponent = code >> 3;
    const auto number = [](unsigned c) {
      const int e = c >> 3;
      return e == 0 ? std::ldexp(c & 7u, -9) : std::ldexp(8.0 + (c & 7u), e - 10);
    };
    const double away = std::fabs(number(code) - wanted), before = std::fabs(number(best) - wanted);
    if (away < before || (away == before && code % 2 == 0)) best = code;
    if (number(code) > wanted && exponent > 1) break;
  }
  return best | (std::signbit(x) ? 0x80u : 0u);
}

int main() {
  for (unsigned code = 0; code < 256; ++code) {
    const float number = widen(float8e4m3fn{static_cast<uint8_t>(code)});
    if ((code & 0x7fu) == 0x7fu ? !std::isnan(number) : nearest(number) != code) return 1;
  }
  for (unsigned half = 0; half < 65536; ++half) {  // every float16, with all ties, and what is just beside it
    const float x = widen(float16{static_cast<uint16_t>(half)});
    for (const float y : {x, std::nextafter(x, 1e9f), std::nextafter(x, -1e9f), x * 0.013f}) {
      if (Narrow<float8e4m3fn>::from(y).bits != nearest(y)) {
        std::fprintf(stderr, "%a becomes %x\\n", y, Narrow<float8e4m3fn>::from(y).bits);
        return 2;
      }
    }
  }
  return 0;
}
"""


def test_device_conversions_are_to_nearest_even_and_saturate(tmp_path: Path) -> None:
    """Those for GPUs without an instruction for it."""
    emulated.run(tmp_path, _MAIN)


def test_codes_of_products_in_float16() -> None:
    """Of every float16 times a power of 2: rounding the product to float16 first changes no code."""
    halves = np.arange(65536, dtype=np.uint16).view(np.float16)
    halves = halves[~np.isnan(halves)]
    for exponent in range(-14, 16):
        with np.errstate(over="ignore"):
            product = halves * np.float16(2.0**exponent)
        exact = halves.astype(np.float32) * np.float32(2.0**exponent)
        found, wanted = (np.clip(x, -448, 448).astype(ml_dtypes.float8_e4m3fn) for x in (product, exact))
        np.testing.assert_array_equal(found.view(np.uint8), wanted.view(np.uint8))


def _values(storage: type[np.floating]) -> np.ndarray:
    """Codes, what lies in the middle of two and just beside that, what saturates, and what is no number."""
    codes = np.arange(127, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    middles = (codes[1:] + codes[:-1]) / 2
    info = np.finfo(storage)
    special = [0.0, 464.0, 465.0, 480.0, info.max, info.tiny, np.inf, np.nan, 2.0**-10, 2.0**-11]
    values = np.concatenate([codes, middles, special]).astype(storage)
    with np.errstate(over="ignore"):
        values = np.concatenate([values, np.nextafter(values, storage(0)), np.nextafter(values, storage(np.inf))])
    values = np.concatenate([values, -values, np.random.default_rng(5).standard_normal(3000).astype(storage) * 90])
    return np.resize(values, (len(values) // _ROWS + 1, _ROWS)).astype(storage)


_WAYS = ("QuantizeLinear<output_dtype = 17>(a, s)", "Cast<to = 17>(a)")


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(("dtype", "way"), [("float", _WAYS[0]), ("float16", _WAYS[0]), ("float", _WAYS[1])])
def test_codes_are_those_of_onnx_runtime(dtype: str, way: str, tmp_path: Path) -> None:
    """Also of an operand that a kernel reads, and of a value that stays inside."""
    _check_codes(dtype, way, tmp_path, sessions.CPU, "sm_90")


@pytest.mark.gpu
@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("dtype", ["float", "float16"])
@pytest.mark.parametrize("way", _WAYS)
def test_codes_on_the_gpu(dtype: str, way: str, tmp_path: Path) -> None:
    _check_codes(dtype, way, tmp_path, sessions.CUDA, device_arch())


@pytest.mark.gpu
@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("exponent", [-15, -4, 0, 3, 14])
def test_codes_of_a_constant_scale_on_the_gpu(exponent: int, tmp_path: Path) -> None:
    """A power of 2, by which float16 is multiplied two at a time."""
    constant = f"float16 s = {{{int(np.float16(2.0**exponent).view(np.uint16))}}}"
    body = "a = Neg(x)  q = QuantizeLinear<output_dtype = 17>(a, s)"
    model = graph(f"float16[N, {_ROWS}] x", f"float8e4m3fn[N, {_ROWS}] q", body, constants=constant, opset=21)
    ir.save(model, tmp_path / "model.onnx")
    artifact = flow.optimize(tmp_path / "model.onnx", tmp_path / "out", archs=(device_arch(),), verify=False)
    assert len(artifact.manifest.kernels) == 1
    library = artifact.path / layout.LIBRARY_FOLDER / layout.LIBRARY
    session = sessions.open_session(artifact.path / layout.MODEL, library=library, provider=sessions.CUDA)
    feeds = {"x": _values(np.float16)}
    wanted = sessions.run(sessions.open_session(tmp_path / "model.onnx"), feeds)["q"]
    np.testing.assert_array_equal(sessions.run(session, feeds)["q"].astype(np.float32), wanted.astype(np.float32))


def _check_codes(dtype: str, way: str, tmp_path: Path, provider: str, arch: str) -> None:
    storage = np.float16 if dtype == "float16" else np.float32
    body = f"a = Neg(x)  q = {way}  y = DequantizeLinear(q, s)  z = Cast<to = 1>(p)"
    ends = f"float8e4m3fn[N, {_ROWS}] q, {dtype}[N, {_ROWS}] y, float[M] z"
    model = graph(f"{dtype}[N, {_ROWS}] x, {dtype} s, float8e4m3fn[M] p", ends, body, opset=21)
    ir.save(model, tmp_path / "model.onnx")
    with cpu_kernels_forced():
        artifact = flow.optimize(tmp_path / "model.onnx", tmp_path / "out", archs=(arch,), verify=False)
    opened = sessions.open_session(tmp_path / "model.onnx")
    library = artifact.path / layout.LIBRARY_FOLDER / layout.LIBRARY
    session = sessions.open_session(artifact.path / layout.MODEL, library=library, provider=provider)
    assert {kernel.cpu for kernel in artifact.manifest.kernels} == {True}
    for scale in (1.0, 0.25, 0.0437):
        codes = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn)
        feeds = {"x": _values(storage), "s": np.asarray(scale, storage), "p": codes}
        wanted, found = (sessions.run(s, feeds) for s in (opened, session))
        for name in ("q", "y", "z"):
            a, b = (each[name].astype(np.float32) for each in (found, wanted))
            np.testing.assert_array_equal(a, b)
            assert (np.signbit(a) == np.signbit(b))[~np.isnan(b)].all()


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    ("dtype", "body", "kind"),
    [
        ("float16", "n = LayerNormalization(x, g, g)  y = QuantizeLinear<output_dtype = 17>(n, s)", "rowwise"),
        ("float16", "n = Sigmoid(x)  m = Mul(n, x)  y = QuantizeLinear<output_dtype = 17>(m, s)", "pointwise"),
        ("float", "n = Gelu(x)  y = QuantizeLinear<output_dtype = 17>(n, s)", "pointwise"),
    ],
)
def test_a_region_stores_codes(dtype: str, body: str, kind: str, tmp_path: Path) -> None:
    """The kernel for GPUs, compiled by g++, against ONNX Runtime."""
    scale = "14950" if dtype == "float16" else "0.03"  # 16-bit floats as bits
    model = graph(
        f"{dtype}[N, 48] x, {dtype}[48] g",
        "float8e4m3fn[N, 48] y",
        body,
        constants=f"{dtype} s = {{{scale}}}",
        opset=21,
    )
    ir.save(model, tmp_path / "model.onnx")
    artifact = flow.optimize(tmp_path / "model.onnx", tmp_path / "out", archs=("sm_90",), emulate=True)
    assert artifact.manifest.verify.status == "passed"
    (kernel,) = artifact.manifest.kernels
    assert kernel.kind == kind and not artifact.manifest.left_out


def test_saturation_that_is_not_asked_for_stays_with_the_provider(tmp_path: Path) -> None:
    model = graph(
        "float[N, 48] x", "float8e4m3fn[N, 48] y", "a = Relu(x)  y = Cast<to = 17, saturate = 0>(a)", opset=21
    )
    ir.save(model, tmp_path / "model.onnx")
    artifact = flow.optimize(tmp_path / "model.onnx", tmp_path / "out", archs=("sm_90",), verify=False)
    assert not any("Cast" in kernel.ops for kernel in artifact.manifest.kernels)
