"""Gemm between views and transposed products become MatMul: where, why not, and that results stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from onnxopt.graph.normalize import normalize
from onnxopt.graph.rewrite import rewrite
from onnxopt.graph.rewrite.products.product_forms import GemmBetweenViews, TransposedProduct
from onnxopt.graph.shapes.infer import infer
from tests.support.graphs import graph, hold, run, value

_INPUTS = (
    "float[2, S, 6] x, float[6, 4] w, float[4, 6] t, float[4] b, float[2, 3, S, 6] q, float[2, 3, S, 6] k, "
    "float[2, S, 3, 6] u, float[2, 3, 5, S] z"
)
_SWAP = "Transpose<perm = [0, 1, 3, 2]>"
_SHAPES = (
    "int64[2] rows = {-1, 6}, int64[3] back = {2, -1, 4}, int64[4] heads = {2, -1, 2, 2}, int64[1] none = {0}, "
    "int64[1] two = {2}, int64[1] columns = {4}, int64[3] turned = {-1, 2, 4}"
)
_SHAPED = "s = Shape(x) l = Slice(s, none, two, none) o = Concat<axis = 0>(l, columns)"
_AROUND = ["Reshape", "Gemm", "Reshape"]
APPLIED = {
    "without a bias": ("r = Reshape(x, rows) g = Gemm(r, w) y = Reshape(g, back)", ["MatMul"]),
    "with a bias": ("r = Reshape(x, rows) g = Gemm(r, w, b) y = Reshape(g, back)", ["MatMul", "Add"]),
    "transposed weight": ("r = Reshape(x, rows) g = Gemm<transB = 1>(r, t, b) y = Reshape(g, back)", ["MatMul", "Add"]),
    "computed shape": (f"{_SHAPED} r = Reshape(x, rows) g = Gemm(r, w, b) y = Reshape(g, o)", ["MatMul", "Add"]),
    "heads": ("r = Reshape(x, rows) g = Gemm(r, w, b) y = Reshape(g, heads)", ["MatMul", "Add", "Reshape"]),
    "two of one view": (
        "r = Reshape(x, rows) g = Gemm(r, w) h = Gemm<transB = 1>(r, t) i = Reshape(g, back) j = Reshape(h, back) "
        "y = Sub(i, j)", ["MatMul", "MatMul", "Sub"],
    ),
    "transposed scores": (f"a = {_SWAP}(q) p = MatMul(k, a) y = {_SWAP}(p)",
                          ["Transpose", "MatMul"]),
    "both transposed": (
        "a = Transpose<perm = [0, 2, 3, 1]>(u) c = Transpose<perm = [0, 1, 3, 2]>(z) p = MatMul(a, c) "
        "y = Transpose<perm = [0, 3, 1, 2]>(p)", ["Transpose", "MatMul", "Transpose"],
    ),
}  # fmt: skip
STAYS = {
    "a factor": ("r = Reshape(x, rows) g = Gemm<alpha = 0.5>(r, w) y = Reshape(g, back)", _AROUND),
    "other leading dims": ("r = Reshape(x, rows) g = Gemm(r, w) y = Reshape(g, turned)", _AROUND),
    "a Transpose of a plain product": ("c = Exp(k) e = Transpose<perm = [0, 1, 3, 2]>(c) f = Abs(e) p = MatMul(q, f) "
                                       "y = Transpose<perm = [0, 1, 3, 2]>(p)",
                                       ["Exp", "Transpose", "Abs", "MatMul", "Transpose"]),
}  # fmt: skip


def _model(body: str) -> ir.Model:
    model = graph(_INPUTS, "float[] y", body, constants=_SHAPES)
    rng = np.random.default_rng(0)
    hold(model, {n: rng.standard_normal(s) for n, s in (("w", (6, 4)), ("t", (4, 6)), ("b", (4,)))}, "f4")
    return model


@pytest.mark.parametrize("name", [*APPLIED, *STAYS])
def test_operators_and_results(name: str, tmp_path: Path) -> None:
    body, left = (APPLIED | STAYS)[name]
    source = _model(body)
    found = normalize(source.clone()).model
    applied = rewrite(found, tmp_path).applied["products"]
    assert [node.op_type for node in found.graph] == left
    assert bool(applied) == (name in APPLIED)
    rng = np.random.default_rng(1)
    feeds = {
        str(v.name): rng.standard_normal([d if isinstance(d, int) else 5 for d in v.shape or ()]).astype(np.float32)
        for v in source.graph.inputs
    }
    np.testing.assert_allclose(run(found, feeds)[0], run(source, feeds)[0], rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(
    ("rule", "body", "names", "reason"),
    [
        (GemmBetweenViews(), "r = Reshape(x, rows) g = Gemm<alpha = 0.5>(r, w) y = Reshape(g, back)",
         {"rows": "r", "w": "w", "product": "g", "y": "y"}, "Gemm has alpha = 0.5"),
        (GemmBetweenViews(), "r = Reshape(x, rows) g = Gemm(r, w) y = Reshape(g, turned)",
         {"rows": "r", "w": "w", "product": "g", "y": "y"}, "do not keep the leading dims of `x`"),
        (TransposedProduct(), "a = Abs(k) p = MatMul(q, a) y = Transpose<perm = [0, 1, 3, 2]>(p)",
         {"a": "q", "b": "a", "y": "y"}, "as many Transposes would remain"),
        (TransposedProduct(), "p = MatMul(x, w) y = Transpose<perm = [0, 2, 1]>(p)", {"a": "x", "b": "w", "y": "y"},
         "not known to have as many dims"),
    ],
)  # fmt: skip
def test_reasons(rule: Any, body: str, names: dict[str, str], reason: str) -> None:
    model = _model(body)
    infer(model).write()
    assert reason in rule.check(None, **{name: value(model, of) for name, of in names.items()}).reason
