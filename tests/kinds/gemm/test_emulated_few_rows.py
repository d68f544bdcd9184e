"""Products of few rows, run on the CPU by g++ and threads (emulation/cuda.h), against numpy.

What is tested is the device code itself: columns that do not fill a warp or a block, depths that do not fill the
vectors in flight, rows below the entry point's, every epilogue. 16-bit dtypes need a GPU.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from cases.packed_weights import STORED
from onnxopt.program.dtypes import DTYPES
from tests.support.emulation import emulated

_MAIN = """
#include "gemm/few_rows.cuh"
using namespace onnxopt;
int main() {
  const unsigned rows = %(rows)d, columns = %(columns)d, depth = %(depth)d;
  auto a = emulation::read<float>("a", rows * depth), b = emulation::read<float>("b", columns * depth);
  auto bias = emulation::read<float>("bias", columns), residual = emulation::read<float>("residual", rows * columns);
  std::vector<float> y(rows * columns + 64, -1e30f);
  const FewRowsParams params{a.data(), b.data(), %(bias)s, %(residual)s, y.data(), rows, columns, depth, 1, 0.5f, 2.0f};
  const unsigned of_block = %(threads)d / 32 * %(wide)d;
  emulation::launch((columns + of_block - 1) / of_block, %(threads)d, [&] {
    few_rows<float, Activation::%(activation)s, %(most)d, %(wide)d, %(unroll)d, %(threads)d>(params);
  });
  for (int k = 0; k < 64; ++k) if (y[rows * columns + k] != -1e30f) return 3;  // nothing behind the end
  y.resize(rows * columns);
  emulation::write("y", y);
}
"""


@pytest.mark.parametrize(
    ("rows", "most", "columns", "depth", "wide", "unroll", "activation", "bias", "residual"),
    [
        (1, 1, 16, 1024, 2, 8, "kNone", False, False),
        (1, 1, 13, 132, 2, 2, "kRelu", True, False),
        (3, 4, 9, 516, 4, 2, "kNone", False, True),
        (2, 2, 5, 40, 1, 4, "kGeluTanh", True, True),
        (1, 2, 11, 72, 2, 2, "kSilu", True, False),
    ],
)
def test_few_rows(
    tmp_path: Path, rows: int, most: int, columns: int, depth: int, wide: int, unroll: int, activation: str,
    bias: bool, residual: bool,
) -> None:  # fmt: skip
    rng = np.random.default_rng(rows + columns)
    shapes = {"a": (rows, depth), "b": (columns, depth), "bias": (columns,), "residual": (rows, columns)}
    given = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    for name, value in given.items():
        value.tofile(tmp_path / name)
    expected = 0.5 * (given["a"].astype(np.float64) @ given["b"].T.astype(np.float64))
    expected += given["bias"] * bias + 2.0 * given["residual"] * residual
    if activation == "kRelu":
        expected = np.maximum(expected, 0)
    if activation == "kGeluTanh":
        expected *= 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (expected + 0.044715 * expected**3)))
    if activation == "kSilu":
        expected /= 1 + np.exp(-expected)
    filled = {
        "rows": rows, "columns": columns, "depth": depth, "most": most, "wide": wide, "unroll": unroll,
        "activation": activation, "threads": 64, "bias": "bias.data()" if bias else "nullptr",
        "residual": "residual.data()" if residual else "nullptr",
    }  # fmt: skip
    emulated.run(tmp_path, _MAIN % filled)
    found = np.fromfile(tmp_path / "y", np.float32).reshape(rows, columns)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-4)


_ACTIVATION = """
#include "gemm/activate.cuh"
using namespace onnxopt;
int main() {
  const unsigned count = 1003, first = %(first)d;
  auto y = emulation::read<%(word)s>("y", count + 64);
  const ActivateParams params{y.data() + first, count - first};
  emulation::launch(4, 64, [&] { activate_in_place<%(dtype)s, Activation::%(activation)s, 64>(params); });
  emulation::write("y", y);
}
"""


@pytest.mark.parametrize("activation", ["kGelu", "kSilu"])
@pytest.mark.parametrize(("dtype", "first"), [("float16", 0), ("bfloat16", 0), ("float16", 3), ("float32", 1)])
def test_in_place(tmp_path: Path, dtype: str, first: int, activation: str) -> None:
    """Of what a product of cuBLASLt's left, to the last element and not behind it; also where it is not aligned."""
    stored = STORED[dtype]
    y = (np.random.default_rng(first).standard_normal(1003 + 64) * 3).astype(stored)
    y[10:15] = np.array([np.inf, -np.inf, np.nan, -100, 100]).astype(stored)
    y.tofile(tmp_path / "y")
    word, text = f"uint{8 * stored.itemsize}", DTYPES[dtype].cuda
    filled = {"dtype": text, "first": first, "activation": activation, "word": text if text == "float" else word + "_t"}
    emulated.run(tmp_path, _ACTIVATION % filled)
    found, wide = np.fromfile(tmp_path / "y", stored), y.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        gate = {"kGelu": 0.5 * np.vectorize(math.erfc)(-wide / math.sqrt(2)), "kSilu": 1 / (1 + np.exp(-wide))}
        expected = wide * gate[activation]
    bound = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-5}[dtype]
    np.testing.assert_allclose(found[first:1003].astype(np.float64), expected[first:1003], rtol=bound, atol=bound / 100)
    np.testing.assert_array_equal(found[1003:].view(word), y[1003:].view(word))
    np.testing.assert_array_equal(found[:first].view(word), y[:first].view(word))


_PRODUCTS = """
#include "matrix_words.h"
#include "gemm/few_rows_products.cuh"
using namespace onnxopt;
int main() {
  const unsigned rows = %(rows)d, columns = %(columns)d, depth = %(depth)d;
  auto a = emulation::read<unsigned short>("a", rows * depth);
  auto b = emulation::read<unsigned short>("b", columns * depth);
  auto bias = emulation::read<unsigned short>("bias", columns);
  auto residual = emulation::read<unsigned short>("residual", rows * columns);
  std::vector<unsigned short> y(rows * columns);
  const FewRowsParams params{a.data(), b.data(), bias.data(), residual.data(), y.data(), rows, columns, depth, 1, 0.5f,
    2.0f};
  emulation::launch((columns + 16 * %(tiles)d - 1) / (16 * %(tiles)d), %(threads)d, [&] {
    few_rows_products<%(dtype)s, FloatOperands<%(dtype)s>, Activation::kNone, %(most)d, %(tiles)d, %(threads)d>(params);
  });
  emulation::write("y", y);
}
"""


@pytest.mark.parametrize(
    ("rows", "most", "columns", "depth", "tiles", "threads", "dtype"),
    [
        (1, 2, 40, 520, 2, 64, "float16"), (2, 2, 17, 1000, 1, 128, "bfloat16"), (3, 4, 33, 64, 1, 64, "float16"),
        (4, 4, 64, 136, 2, 64, "float16"),
    ],
)  # fmt: skip
def test_on_matrix_units(
    tmp_path: Path, rows: int, most: int, columns: int, depth: int, tiles: int, threads: int, dtype: str
) -> None:
    """With infinities, in the weight and in a, that the zeros of other rows must not turn into NaN."""
    rng, stored = np.random.default_rng(depth), STORED[dtype]
    shapes = {"a": (rows, depth), "b": (columns, depth), "bias": (columns,), "residual": (rows, columns)}
    given = {name: rng.standard_normal(shape).astype(stored) for name, shape in shapes.items()}
    given["b"][3, 5], given["b"][5, 40] = np.inf, np.nan
    for name, value in given.items():
        value.tofile(tmp_path / name)
    filled = {
        "rows": rows, "columns": columns, "depth": depth, "tiles": tiles, "threads": threads, "most": most,
        "dtype": dtype,
    }  # fmt: skip
    emulated.run(tmp_path, _PRODUCTS % filled)
    wide = {name: value.astype(np.float64) for name, value in given.items()}
    expected = 0.5 * (wide["a"] @ wide["b"].T) + wide["bias"] + 2.0 * wide["residual"]
    assert np.isinf(expected[:, 3]).all() and np.isnan(expected[:, 5]).all()
    found = np.fromfile(tmp_path / "y", stored).reshape(rows, columns).astype(np.float64)
    bound = 1e-3 if dtype == "float16" else 8e-3
    np.testing.assert_allclose(found, expected, rtol=bound, atol=bound * np.abs(expected[:, :3]).max())
