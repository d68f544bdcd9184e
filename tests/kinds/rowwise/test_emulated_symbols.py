"""Rows behind index operations over symbolic dims: the library fills parameters, and the CPU runs the kernels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from cases.models import fuse, outline
from onnxopt.kinds.rowwise.kind import ROWWISE
from tests.support.emulation import emulated_library
from tests.support.graphs import graph, run

pytestmark = pytest.mark.usefixtures("library")

SIZES = ((1, 1), (2, 1), (1, 7), (3, 5), (5, 16), (0, 4))
# name: inputs, outputs, body, constants
CASES = {
    "norm of heads, rotated": (
        "float[N, S, 96] x, float[16] g, float[1, 1, S, 16] cos, float[1, 1, S, 16] sin", "float[N, 4, S, 16] y",
        "k = Slice(x, zero, width, two)  r = Reshape(k, split)  p = Mul(r, r)  m = ReduceMean<keepdims = 1>(p, last)  "
        "e = Add(m, small)  w = Sqrt(e)  n = Div(r, w)  z = Mul(n, g)  t = Transpose<perm = [0, 2, 1, 3]>(z)  "
        "a = Mul(t, cos)  h = Slice(t, zero, half, last)  o = Slice(t, half, all, last)  q = Neg(o)  "
        "c = Concat<axis = 3>(q, h)  b = Mul(c, sin)  y = Add(a, b)",
        "int64[4] split = {0, 0, 4, 16}, int64[1] zero = {0}, int64[1] two = {2}, int64[1] width = {64}, "
        "int64[1] half = {8}, int64[1] all = {16}, int64[1] last = {3}, float small = {0.00001}",
    ),
    "softmax, transposed": (
        "float[N, S, 12] x, float[12] b", "float[S, N, 12] y",
        "a = Add(x, b)  s = Softmax(a)  y = Transpose<perm = [1, 0, 2]>(s)", "",
    ),
    "rows of unknown length": (
        "float[N, 3, 2, S] x", "float[N, 2, 3, S] y",
        "a = Neg(x)  s = Softmax(a)  y = Transpose<perm = [0, 2, 1, 3]>(s)", "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_any_sizes_give_the_same_numbers(name: str, tmp_path: Path) -> None:
    inputs, outputs, body, constants = CASES[name]
    model = graph(inputs, outputs, body, constants=constants)
    optimized = model.clone()
    (kernel,) = outline(optimized, fuse(optimized))
    assert kernel.kind is ROWWISE
    assert kernel.program.index is not None
    feeds = []
    for number, row in enumerate(SIZES):
        rng, sizes = np.random.default_rng(number), dict(zip(("N", "S"), row, strict=True))
        feeds.append(
            {
                value.name: rng.uniform(-2, 2, [d if isinstance(d, int) else sizes[d.value] for d in value.shape])
                .astype(np.float32)
                for value in model.graph.inputs
            }
        )  # fmt: skip
    found, _ = emulated_library.run(tmp_path / "run", ir.serde.serialize_model(optimized), [kernel], feeds)
    for k, results in enumerate(found):
        for value, expected in zip(results.values(), run(model, feeds[k]), strict=True):
            np.testing.assert_allclose(value, expected, rtol=2e-5, atol=2e-6, err_msg=str(SIZES[k]))
