"""Attention in five dims, with windows beside the heads, is attention in four."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from onnxopt.graph.rewrite.attention.windows_apart import join_windows
from onnxopt.graph.shapes.infer import InferShapesPass
from tests.support.attention.attention_graphs import ops, rewritten
from tests.support.graphs import graph, run

FORMS = {
    "scaled queries": "f = Mul(q, scale) s = MatMul(f, kt) p = Softmax<axis = -1>(s)",
    "scaled scores": "s = MatMul(q, kt) f = Mul(s, scale) p = Softmax<axis = 4>(f)",
    "divided scores": "s = MatMul(q, kt) f = Div(s, root) p = Softmax<axis = -1>(f)",
}
CONSTANTS = "float scale = {0.35355339}, float root = {2.8284271}"


def _model(body: str, batch: str = "batch", queries: int = 6, tokens: str = "9") -> ir.Model:
    keys = f"float[{batch}, 2, 3, {tokens}, 8] k, float[{batch}, 2, 3, {tokens}, 16] v"
    inputs = f"float[{batch}, 2, 3, {queries}, 8] q, {keys}, float[{batch}, 2, 3, 1, 9] mask"
    body = f"kt = Transpose<perm = [0, 1, 2, 4, 3]>(k) {body} z = MatMul(p, v) y = Neg(z)"
    return graph(inputs, "float[] y", body, constants=CONSTANTS)


@pytest.mark.parametrize("batch", ["batch", "2"])
@pytest.mark.parametrize("form", FORMS)
def test_it_is_attention(form: str, batch: str, tmp_path: Path) -> None:
    model = _model(FORMS[form], batch)
    found, done = rewritten(model, tmp_path)
    assert (done.applied["attention"], done.refusals) == (1, ())
    assert "Softmax" not in ops(found)
    random = np.random.default_rng(0)
    shapes = {"q": (6, 8), "k": (9, 8), "v": (9, 16), "mask": (1, 9)}
    feeds = {n: random.standard_normal((2, 2, 3, *shape)).astype(np.float32) for n, shape in shapes.items()}
    np.testing.assert_allclose(run(found, feeds)[0], run(model, feeds)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "model",
    [
        _model("s = MatMul(q, kt) m = Add(s, mask) p = Softmax<axis = -1>(m)"),
        _model("s = MatMul(q, kt) p = Softmax<axis = 1>(s)"),
        _model(FORMS["scaled scores"], tokens="T"),
        _model("s = MatMul(q, kt) f = Neg(s) p0 = Softmax<axis = -1>(s) p = Add(p0, f)"),
    ],
    ids=["a mask", "another axis", "windows of unknown size", "other readers"],
)
def test_what_stays(model: ir.Model) -> None:
    InferShapesPass()(model)
    before = ops(model)
    assert not join_windows(model)
    assert ops(model) == before
