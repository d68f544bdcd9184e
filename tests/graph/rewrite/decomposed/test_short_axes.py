"""Reductions over an axis of few elements: which become operations of its parts, of what, and that values stay."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from cases.models import fuse
from onnxopt.graph.rewrite import rewrite
from onnxopt.graph.rewrite.decomposed.short_axes import REDUCTIONS
from tests.support.graphs import graph, hold, run

NUMPY = {"float": np.float32, "float16": np.float16}
CONSTANTS = (
    "int64[1] one = {1}, int64[1] two = {2}, int64[1] last = {-1}, int64[2] both = {1, 2}, "
    "int64[2] maps = {2, 3}, int64[5] parts = {0, 2, 3, 4, 6}, int64[5] thirds = {0, 3, 2, 4, 6}"
)
STACKED = "u = Unsqueeze(a, one) v = Unsqueeze(b, one) s = Concat<axis = 1>(u, v)"
WEIGHTS = "g = GlobalAveragePool(a) h = Concat<axis = 1>(g, g) k = Reshape(h, weights) t = Softmax<axis = 1>(k)"


def model(body: str, dtype: str = "float", outputs: str = "y") -> ir.Model:
    """A graph over a and b [N, 6, 4, 6], with a constant w [2, 1, 1, 1]."""
    inputs = f"{dtype}[N, 6, 4, 6] a, {dtype}[N, 6, 4, 6] b, {dtype}[2, 1, 1, 1] w"
    declared = ", ".join(f"{dtype}[] {name}" for name in outputs.split())
    source = graph(inputs, declared, body, constants=f"{CONSTANTS}, int64[5] weights = {{0, 2, 6, 1, 1}}")
    hold(source, {"w": np.array([0.25, -3]).reshape(2, 1, 1, 1)}, NUMPY[dtype])
    return source


@pytest.mark.parametrize("dtype", ["float", "float16"])
@pytest.mark.parametrize(
    ("body", "count", "absent"),
    [
        (f"{STACKED} y = ReduceSum<keepdims = 0>(s, one)", 1, "Concat Unsqueeze"),
        (f"{STACKED} y = ReduceMean<keepdims = 0>(s, one)", 1, "Concat Unsqueeze"),
        (f"{STACKED} m = ReduceMax(s, one) y = Neg(m)", 1, "Concat"),
        (f"{STACKED} m = Mul(s, w) y = ReduceSum<keepdims = 0>(m, one)", 1, "Concat Unsqueeze"),
        (f"{STACKED} {WEIGHTS} m = Mul(s, t) z = ReduceSum<keepdims = 0>(m, one) "
         "q = ReduceMin<keepdims = 0>(s, one) y = Add(z, q)", 2, "Unsqueeze"),
        ("s = Reshape(a, parts) r = Relu(s) y = ReduceSum<keepdims = 0>(r, one)", 1, "Reshape"),
        ("s = Reshape(a, thirds) y = ReduceSum<keepdims = 0>(s, two)", 1, ""),
        ("s = Reshape(a, thirds) y = ReduceSum<keepdims = 0>(s, one)", 1, "Reshape"),
        (f"{STACKED} r = Relu(s) z = ReduceSum(r, one) q = Mul(r, z) y = ReduceSum<keepdims = 0>(q, one)", 2, ""),
        # More elements, several axes, the last one, or one before few others.
        ("y = ReduceSum<keepdims = 0>(a, one)", 0, ""),
        (f"{STACKED} y = ReduceSum<keepdims = 0>(s, both)", 0, ""),
        (f"{STACKED} r = Transpose<perm = [0, 2, 3, 4, 1]>(s) y = ReduceSum<keepdims = 0>(r, last)", 0, ""),
        (f"{STACKED} r = ReduceMax(s, two) y = Neg(r)", 0, ""),
    ],
)  # fmt: skip
def test_sums_of_parts(body: str, count: int, absent: str, dtype: str, tmp_path: Path) -> None:
    source = model(body, dtype)
    found = source.clone()
    rewrite(found, tmp_path, gpu=True)

    def of(graph_: ir.Model) -> int:
        return sum(n.op_type in REDUCTIONS for n in graph_.graph)

    assert of(source) - of(found) == count
    assert not {n.op_type for n in found.graph} & set(absent.split())
    rng = np.random.default_rng(1)
    for batch in (1, 3):
        feeds = {name: rng.standard_normal((batch, 6, 4, 6)).astype(NUMPY[dtype]) for name in "ab"}
        feeds["a"][0, 0, 0, :2] = np.inf, np.nan
        (expected,), (result,) = run(source, feeds), run(found, feeds)
        tolerance = 1e-6 if dtype == "float" else 2e-3
        np.testing.assert_allclose(result, expected, rtol=tolerance, atol=tolerance)


def test_no_parts_without_kernels_for_gpus(tmp_path: Path) -> None:
    source = model(f"{STACKED} y = ReduceSum<keepdims = 0>(s, one)")
    rewrite(source, tmp_path, gpu=False)
    assert any(n.op_type == "ReduceSum" for n in source.graph)


def test_branches_are_selected_in_two_kernels(tmp_path: Path) -> None:
    """SKNet's: one computes the mean of the sum, another one the weighted sum."""
    body = f"{STACKED} z = ReduceSum<keepdims = 0>(s, one) p = ReduceMean(z, maps) {WEIGHTS} m = Mul(s, t) "
    body = body.replace("GlobalAveragePool(a)", "Identity(p)") + "y = ReduceSum<keepdims = 0>(m, one)"
    source = model(body, "float16")
    rewrite(source, tmp_path, gpu=True)
    regions = fuse(source).regions
    assert [sum(n.op_type == "Add" for n in region.nodes) for region in regions if len(region.inputs) > 1] == [1, 1]
