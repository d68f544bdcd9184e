"""CUDA kernels of pools, run on the CPU by g++ and threads (emulation/cuda.h), against ONNX Runtime's CPU kernels.

float16 needs a GPU; bfloat16 takes the path of GPUs before compute capability 8.0.
"""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from onnxopt.codegen import generate
from onnxopt.fusion.region import Kernel
from onnxopt.kinds.pool import entry_points
from onnxopt.kinds.pool.kind import POOL
from onnxopt.program.pool import Pool
from tests.support.emulation import emulated
from tests.support.kinds import pool_models
from tests.support.kinds.pool_models import of

_MAIN = """
%(source)s
using namespace onnxopt;
Divisor<unsigned> by(unsigned divisor) {  // as custom_ops/program/divisor.h has it
  unsigned shift = 0;
  while ((1ull << shift) < divisor) ++shift;
  return {divisor, static_cast<unsigned>((1ull << 32) * ((1ull << shift) - divisor) / divisor + 1), shift};
}
using Element = %(type)s;
int main() {
  const auto x = emulation::read<Element>("x", %(x_size)d);
  std::vector<Element> y(%(y_size)d + 16, Element{77});
  const PoolParams params{x.data(), y.data(), %(count)d, %(h)d, %(w)d, %(c)d, %(oh)d, %(ow)d, %(top)d, %(left)d,
                          by(%(groups)d), by(%(across)d), by(%(down)d)};
  emulation::launch(%(blocks)d, %(threads)d, [&] { %(symbol)s(params); });
  for (int k = 0; k < 16; ++k) {  // nothing is written behind the last element
    const Element poison{77};
    if (std::memcmp(&y[%(y_size)d + k], &poison, sizeof(poison)) != 0) return 3;
  }
  y.resize(%(y_size)d);
  emulation::write("y", y);
}
"""
_C_TYPES = {"float32": "float", "bfloat16": "onnxopt::bfloat16", "int8": "signed char", "uint8": "unsigned char"}


def _pads(pool: Pool, h: int, w: int, oh: int, ow: int) -> tuple[int, int]:
    """Top and left."""
    window = pool.window
    if not window.auto_pad.startswith("SAME"):
        return window.pads[0], window.pads[1]
    both = []
    for size, out, axis in ((h, oh, 0), (w, ow, 1)):
        needed = max((out - 1) * window.strides[axis] + window.kernel[axis] - size, 0)
        both.append(needed // 2 if window.auto_pad == "SAME_UPPER" else -(-needed // 2))
    return both[0], both[1]


def _found(folder: Path, pool: Pool, x: np.ndarray, shape: tuple[int, ...], vector: int, tile: tuple[int, int]):
    pool.verify()
    variant = entry_points.variant("pooled", vector, tile)
    kernel = Kernel("pooled", POOL, ("MaxPool",), pool, (variant,), ())
    _, h, w, c = x.shape
    n, oh, ow, _ = shape
    counts = {"groups": c // vector, "across": -(-ow // tile[1]), "down": -(-oh // tile[0])}
    count = n * counts["groups"] * counts["across"] * counts["down"]
    top, left = _pads(pool, h, w, oh, ow)
    source = generate.generate([kernel])
    x.tofile(folder / "x")
    filled = {
        "source": source, "type": _C_TYPES[pool.dtype], "x_size": x.size, "y_size": int(np.prod(shape)),
        "count": count, "h": h, "w": w, "c": c, "oh": oh, "ow": ow, "top": top, "left": left,
        "blocks": -(-count // variant.threads), "threads": variant.threads, "symbol": f"onnxopt::{variant.symbol}",
    }  # fmt: skip
    emulated.run(folder, _MAIN % (filled | counts))
    return np.fromfile(folder / "y", x.dtype).reshape(shape)


def _draw(dtype: str, dims: tuple[int, ...]) -> np.ndarray:
    rng = np.random.default_rng(sum(dims))
    if dtype in ("int8", "uint8"):
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, dims, dtype, endpoint=True)
    return rng.standard_normal(dims).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


_CASES = (  # pool, dims of x, vector, tile
    (of("max", "float32", (3, 3), strides=(2, 2), pads=(1, 1, 1, 1)), (2, 7, 9, 16), 4, (2, 2)),
    (of("max", "float32", (3, 3), strides=(2, 2), pads=(1, 1, 1, 1)), (1, 8, 6, 37), 1, (1, 2)),
    (of("max", "bfloat16", (3, 3), strides=(2, 2), pads=(0, 1, 1, 0), ceil_mode=True), (1, 6, 9, 40), 8, (2, 1)),
    (of("max", "bfloat16", (2, 2), strides=(2, 2)), (1, 5, 4, 3), 1, (1, 1)),
    (of("max", "int8", (5, 5), pads=(2, 2, 2, 2)), (1, 5, 6, 16), 16, (2, 2)),
    (of("max", "uint8", (3, 2), strides=(1, 2), pads=(1, 0, 1, 1)), (2, 4, 5, 40), 8, (1, 4)),
    (of("max", "int8", (3, 3)), (1, 4, 5, 3), 1, (2, 2)),
    (of("max", "float32", (13, 13), pads=(6, 6, 6, 6)), (1, 6, 5, 16), 4, (1, 2)),
    (of("max", "float32", (2, 19), pads=(0, 9, 0, 9)), (1, 4, 21, 1), 1, (1, 1)),
    (of("max", "float32", (3, 2), dilations=(2, 3), pads=(2, 1, 1, 1)), (1, 7, 8, 37), 1, (1, 1)),
    (of("max", "float32", (2, 1), dilations=(2, 1), pads=(1, 0, 1, 0)), (1, 1, 2, 4), 4, (1, 1)),  # padding alone
    (of("max", "float32", (3, 3), strides=(2, 2), auto_pad="SAME_UPPER"), (1, 6, 7, 16), 4, (2, 2)),
    (of("max", "float32", (4, 3), strides=(2, 1), auto_pad="SAME_LOWER"), (1, 7, 4, 16), 4, (2, 2)),
    (of("max", "float32", (3, 3), strides=(2, 2), auto_pad="VALID"), (1, 8, 7, 16), 4, (2, 2)),
    (of("max", "float32", (1, 1), strides=(3, 2)), (1, 7, 5, 1), 1, (1, 1)),
    (of("max", "float32", (5, 5), strides=(3, 3)), (1, 3, 4, 4), 4, (1, 1)),  # larger than the input
    (of("average", "float32", (3, 3), strides=(2, 2), pads=(1, 1, 1, 1)), (2, 7, 9, 16), 4, (2, 2)),
    (of("average", "float32", (3, 3), pads=(1, 1, 1, 1), count_include_pad=True), (1, 5, 4, 37), 1, (2, 2)),
    (of("average", "bfloat16", (3, 3), strides=(2, 2), pads=(0, 0, 1, 1), ceil_mode=True), (1, 6, 8, 40), 8, (1, 2)),
    (of("average", "float32", (7, 7)), (2, 7, 7, 16), 4, (1, 1)),
    (of("average", "float32", (2, 3), dilations=(2, 2), pads=(1, 2, 1, 1)), (1, 6, 7, 3), 1, (1, 1)),
    (of("average", "float32", (2, 2), dilations=(2, 1), pads=(1, 1, 1, 1), count_include_pad=True), (1, 3, 3, 4), 4,
     (1, 1)),
    (of("average", "float32", (2, 1), dilations=(2, 1), pads=(1, 0, 1, 0)), (1, 1, 2, 4), 4, (1, 1)),
    (of("average", "float32", (2, 2), strides=(2, 2), auto_pad="SAME_LOWER"), (1, 5, 7, 16), 4, (1, 1)),
)  # fmt: skip


@pytest.mark.parametrize(("pool", "dims", "vector", "tile"), _CASES, ids=range(len(_CASES)))
def test_pool(tmp_path: Path, pool: Pool, dims: tuple[int, ...], vector: int, tile: tuple[int, int]) -> None:
    x = _draw(pool.dtype, dims)
    expected = pool_models.expected(pool, x)
    found = _found(tmp_path, pool, x, expected.shape, vector, tile)
    if pool.operation == "max":
        np.testing.assert_array_equal(found, expected)
    else:
        step = 2.0**-8 if pool.dtype == "bfloat16" else 2.0**-22
        np.testing.assert_allclose(found.astype(np.float32), expected, rtol=step, atol=step)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("dilations", [(1, 1), (2, 1)], ids=str)
def test_not_a_number_is_the_max_of_its_windows(tmp_path: Path, dtype: str, dilations: tuple[int, int]) -> None:
    """As of ONNX Runtime's CUDA kernel; its CPU kernel depends on the order."""
    pool = of("max", dtype, (2, 1), dilations=dilations)
    x = _draw(dtype, (1, 7, 1, 8))
    x[0, 3] = np.nan
    rows = 7 - dilations[0]
    vector, tile = (8 if dtype == "bfloat16" else 4), ((2, 1) if dilations == (1, 1) else (1, 1))
    found = _found(tmp_path, pool, x, (1, rows, 1, 8), vector, tile)
    held = {3, 3 - dilations[0]}
    assert [bool(np.isnan(found[0, k].astype(np.float32)).all()) for k in range(rows)] == [
        k in held for k in range(rows)
    ]


def test_least_numbers_stay(tmp_path: Path) -> None:
    pool = of("max", "float32", (3, 3), pads=(1, 1, 1, 1))
    x = np.full((1, 4, 4, 4), -np.inf, np.float32)
    assert (_found(tmp_path, pool, x, x.shape, 4, (2, 2)) == -np.inf).all()
