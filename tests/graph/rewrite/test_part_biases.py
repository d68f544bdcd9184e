"""Biases of a product's parts become the product's: where, why not, and that results stay."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from onnxopt.graph.normalize import normalize
from onnxopt.graph.rewrite import rewrite
from onnxopt.graph.rewrite.products.part_biases import RULES
from onnxopt.graph.rewrite.rule_sets import Scope
from onnxopt.graph.shapes.infer import infer
from tests.support.graphs import graph, hold, run

_INPUTS = "float[2, S, 6] x, float[6, 12] w, float[2, 6, 12] v, float[4] a, float[4] b, float[1, 1, 4] c, float[1] one"
_CONSTANTS = (
    "int64[3] sizes = {4, 4, 4}, int64[1] n0 = {0}, int64[1] n2 = {2}, int64[1] n4 = {4}, int64[1] n8 = {8}, "
    "int64[1] n12 = {12}, int64[1] last = {-1}, int64[1] step = {2}"
)
_SPLIT = "p = MatMul(x, w) q, k, u = Split<axis = 2>(p, sizes)"
_SLICES = "p = MatMul(x, w) q = Slice(p, n0, n4, last) k = Slice(p, n4, n8, last) u = Slice(p, n8, n12, last)"
_SUM = "y = Concat<axis = 2>(r, s, t)"
APPLIED = {
    "of all parts": f"{_SPLIT} r = Add(q, a) s = Add(b, k) t = Add(u, c) {_SUM}",
    "of two parts": f"{_SPLIT} r = Add(q, a) s = Exp(k) t = Add(u, b) {_SUM}",
    "of Slices": f"{_SLICES} r = Add(q, a) s = Add(k, b) t = Add(c, u) {_SUM}",
    "of some columns": "p = MatMul(x, w) q = Slice(p, n4, n8, last) r = Add(q, a) y = Exp(r)",
    "of a stack": "p = MatMul(x, v) q, k, u = Split<axis = -1>(p, sizes) r = Add(q, a) s = Exp(k) t = Abs(u) " + _SUM,
}
STAYS = {
    "of nothing": f"{_SPLIT} r = Exp(q) s = Abs(k) t = Neg(u) {_SUM}",
    "of a product that another reads": f"{_SPLIT} r = Add(q, a) s = Add(k, b) t = Exp(p) {_SUM}",
    "of a part that another reads": f"{_SPLIT} r = Add(q, a) s = Mul(q, b) t = Mul(u, k) {_SUM}",
    "of columns that lie in two parts": "p = MatMul(x, w) q = Slice(p, n0, n8, last) k = Slice(p, n4, n12, last) "
    "r = Abs(q) s = Slice(k, n0, n4, last) t = Add(s, a) y = Concat<axis = 2>(r, t)",
    "of rows": "p = MatMul(x, w) q = Slice(p, n0, n4, n0) y = Add(q, one)",
    "of every other column": "p = MatMul(x, w) q = Slice(p, n0, n8, last, step) y = Add(q, a)",
    "of one element": f"{_SPLIT} r = Add(q, one) s = Abs(k) t = Neg(u) {_SUM}",
}


def _model(body: str) -> ir.Model:
    model = graph(_INPUTS, "float[] y", body, constants=_CONSTANTS)
    rng = np.random.default_rng(0)
    sizes = {"w": (6, 12), "v": (2, 6, 12), "a": (4,), "b": (4,), "c": (1, 1, 4), "one": (1,)}
    hold(model, {name: rng.standard_normal(size) for name, size in sizes.items()}, "f4")
    return model


@pytest.mark.parametrize("name", APPLIED)
def test_biases_of_parts_become_one(name: str, tmp_path: Path) -> None:
    model = _model(APPLIED[name])
    feeds = {"x": np.random.default_rng(1).standard_normal((2, 3, 6)).astype("f4")}
    before = run(model, feeds)
    after = normalize(model).model
    assert rewrite(after, tmp_path).applied["products"] == 1
    assert [node.op_type for node in after.graph].count("Add") == 1
    (added,) = (node for node in after.graph if node.op_type == "Add")
    assert "MatMul" in [value.producer().op_type for value in added.inputs if value is not None and value.producer()]  # type: ignore[union-attr]
    np.testing.assert_array_equal(run(after, feeds)[0], before[0])


@pytest.mark.parametrize("name", STAYS)
def test_other_sums_stay(name: str) -> None:
    model = normalize(_model(STAYS[name])).model
    infer(model).write()
    (join,) = RULES
    assert join.run(model, Scope(model.graph, infer(model))) == 0
