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

_INPUTS = (
    "float[2, S, 6] x, float[6, 12] w, float[2, 6, 12] v, float[4] a, float[4] b, float[1, 1, 4] c, float[1] one, "
    "float[S, 6] z, float[12] g, float[12] h, float[12, 6] wt"
)
_CONSTANTS = (
    "int64[3] sizes = {4, 4, 4}, int64[1] n0 = {0}, int64[1] n1 = {1}, int64[1] n2 = {2}, int64[1] n4 = {4}, "
    "int64[1] n8 = {8}, int64[1] n12 = {12}, int64[1] last = {-1}, int64[1] step = {2}"
)
_SPLIT = "p = MatMul(x, w) q, k, u = Split<axis = 2>(p, sizes)"
_SLICES = "p = MatMul(x, w) q = Slice(p, n0, n4, last) k = Slice(p, n4, n8, last) u = Slice(p, n8, n12, last)"
_GEMM = "p = Gemm<alpha = 1.0>(z, w, g) q, k, u = Split<axis = 1>(p, sizes)"
_ROWS = "y = Concat<axis = 1>(r, s, t)"
_SUM = "y = Concat<axis = 2>(r, s, t)"
APPLIED = {
    "of all parts": f"{_SPLIT} r = Add(q, a) s = Add(b, k) t = Add(u, c) {_SUM}",
    "of two parts": f"{_SPLIT} r = Add(q, a) s = Exp(k) t = Add(u, b) {_SUM}",
    "of Slices": f"{_SLICES} r = Add(q, a) s = Add(k, b) t = Add(c, u) {_SUM}",
    "of some columns": "p = MatMul(x, w) q = Slice(p, n4, n8, last) r = Add(q, a) y = Exp(r)",
    "of a stack": "p = MatMul(x, v) q, k, u = Split<axis = -1>(p, sizes) r = Add(q, a) s = Exp(k) t = Abs(u) " + _SUM,
}
BIASED = {  # the product has a bias
    "of one part of a Gemm": f"{_GEMM} r = Add(q, one) s = Abs(k) t = Neg(u) {_ROWS}",
    "of a Gemm without a bias": f"{_GEMM} r = Add(one, q) s = Add(k, a) t = Neg(u) {_ROWS}".replace(", g)", ")"),
    "of a weight by rows": f"{_GEMM} r = Add(q, one) s = Abs(k) t = Add(u, a) {_ROWS}".replace(
        "Gemm<alpha = 1.0>(z, w", "Gemm<transB = 1, alpha = 0.5>(z, wt"
    ),
    "after a view of a part": f"{_GEMM} e = Unsqueeze(q, n1) i = Add(e, one) r = Squeeze(i, n1) s = Abs(k) t = Neg(u) "
    + _ROWS,
    "after a view of the product": "p = Gemm(z, w, g) e = Unsqueeze(p, n1) q, k, u = Split<axis = -1>(e, sizes) "
    "r = Add(q, c) s = Add(k, one) t = Neg(u) y = Concat<axis = 2>(r, s, t)",
    "of a sum": "m = MatMul(x, w) p = Add(g, m) q, k, u = Split<axis = 2>(p, sizes) r = Add(q, one) s = Abs(k) "
    f"t = Neg(u) {_SUM}",
}
STAYS = {
    "of nothing": f"{_SPLIT} r = Exp(q) s = Abs(k) t = Neg(u) {_SUM}",
    "of a product that another reads": f"{_SPLIT} r = Add(q, a) s = Add(k, b) t = Exp(p) {_SUM}",
    "of a part that another reads": f"{_SPLIT} r = Add(q, a) s = Mul(q, b) t = Mul(u, k) {_SUM}",
    "of columns that lie in two parts": "p = MatMul(x, w) q = Slice(p, n0, n8, last) k = Slice(p, n4, n12, last) "
    "r = Abs(q) s = Slice(k, n0, n4, last) t = Add(s, a) y = Concat<axis = 2>(r, t)",
    "of rows": "p = MatMul(x, w) q = Slice(p, n0, n4, n0) y = Add(q, one)",
    "of every other column": "p = MatMul(x, w) q = Slice(p, n0, n8, last, step) y = Add(q, a)",
    "of a bias that is computed": f"{_GEMM} r = Add(q, one) s = Abs(k) t = Neg(u) {_ROWS}".replace("g)", "h)"),
    "of half a bias": f"{_GEMM} r = Add(q, one) s = Abs(k) t = Neg(u) {_ROWS}".replace("alpha = 1.0", "beta = 0.5"),
    "of a part that the graph returns": f"{_GEMM} y = Unsqueeze(k, n2) r = Add(y, one)",
}


def _model(body: str, dtype: type = np.float32) -> ir.Model:
    name = "float16" if dtype is np.float16 else "float"
    model = graph(_INPUTS.replace("float", name), f"{name}[] y", body, constants=_CONSTANTS)
    rng = np.random.default_rng(0)
    sizes = {"w": (6, 12), "v": (2, 6, 12), "a": (4,), "b": (4,), "c": (1, 1, 4), "one": (1,)}
    sizes |= {"g": (12,), "wt": (12, 6)}
    hold(model, {name: rng.standard_normal(size) for name, size in sizes.items()}, dtype)
    return model


def _feeds(dtype: type = np.float32) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {n: rng.standard_normal(size).astype(dtype) for n, size in (("x", (2, 3, 6)), ("z", (3, 6)), ("h", (12,)))}


@pytest.mark.parametrize("name", APPLIED)
def test_biases_of_parts_become_one(name: str, tmp_path: Path) -> None:
    model = _model(APPLIED[name])
    feeds = _feeds()
    before = run(model, feeds)
    after = normalize(model).model
    assert rewrite(after, tmp_path).applied["products"] == 1
    assert [node.op_type for node in after.graph].count("Add") == 1
    (added,) = (node for node in after.graph if node.op_type == "Add")
    assert "MatMul" in [value.producer().op_type for value in added.inputs if value is not None and value.producer()]  # type: ignore[union-attr]
    np.testing.assert_array_equal(run(after, feeds)[0], before[0])


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("name", BIASED)
def test_biases_of_parts_are_added_to_that_of_the_product(name: str, dtype: type, tmp_path: Path) -> None:
    model = _model(BIASED[name], dtype)
    before = run(model, _feeds(dtype))
    after = normalize(model).model
    assert rewrite(after, tmp_path).applied["products"] == 1
    assert [node.op_type for node in after.graph].count("Add") == ("m =" in BIASED[name])
    tolerance = 8 * np.finfo(dtype).eps
    np.testing.assert_allclose(run(after, _feeds(dtype))[0], before[0], rtol=tolerance, atol=4 * tolerance)


def test_half_of_an_absent_bias_stays() -> None:
    body = BIASED["of a Gemm without a bias"].replace("alpha = 1.0", "alpha = 1.0, beta = 0.5")
    model = _model(body)
    infer(model).write()
    assert RULES[0].run(model, Scope(model.graph, infer(model))) == 0


def test_a_sum_of_biases_that_overflows_stays() -> None:
    model = _model(BIASED["of one part of a Gemm"], np.float16)
    for name, size in (("g", 12), ("one", 1)):
        model.graph.initializers[name].const_value = ir.tensor(np.full(size, 6e4, np.float16))
    infer(model).write()
    assert RULES[0].run(model, Scope(model.graph, infer(model))) == 0


@pytest.mark.parametrize("name", STAYS)
def test_other_sums_stay(name: str) -> None:
    model = normalize(_model(STAYS[name])).model
    infer(model).write()
    (join,) = RULES
    assert join.run(model, Scope(model.graph, infer(model))) == 0
