"""Norms over groups of channels in elementary operators: which become InstanceNormalization, and that results stay."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from onnxopt.graph import normalize, rewrite
from onnxopt.graph.rewrite.decomposed.decomposed_group_norms import GroupNorm
from tests.support.graphs import graph, run
from tests.support.refused import reason

_WEIGHT = ", ".join(map(str, np.random.default_rng(1).standard_normal(36).round(2)))
_CONSTANTS = (
    "int64[5] cut = {0, 0, 0, 3, 2}, int64[4] whole = {0, 0, 0, 6}, int64[3] axes = {1, 2, 4}, float[2] s2 = {1, 2}, "
    "int64[2] two_axes = {1, 2}, float eps = {1e-3}, float two = {2}, float three = {3}, "
    "float[1, 1, 1, 3, 2] s = {1, 2, 3, 4, 5, 6}, float[3, 2] b = {6, 5, 4, 3, 2, 1}, "
    f"float[6, 6, 1, 1] w = {{{_WEIGHT}}}"
)
_HEAD = "c = Conv(x, w) t = Transpose<perm = [0, 2, 3, 1]>(c) g = Reshape(t, cut) m = ReduceMean(g, axes) d = Sub(g, m)"
_ROOT = "v = ReduceMean(q, axes) e = Add(v, eps) r = Sqrt(e)"
_TAIL = "u = Reshape(z, whole) y = Transpose<perm = [0, 3, 1, 2]>(u)"
_SQUARED, _POWER = "q = Mul(d, d)", "q = Pow(d, two)"
_TERMS = "i = Reciprocal(r) k = Mul(i, s) gk = Mul(g, k) n = Neg(m) nk = Mul(n, k) o = Add(nk, b) z = Add(gk, o)"


def model(end: str, *, square: str = _SQUARED, head: str = _HEAD, root: str = _ROOT, x: str = "N, 6, H, W") -> ir.Model:
    body = f"{head} {square} {root} {end} {_TAIL}"
    return normalize.normalize(graph(f"float[{x}] x", "float[] y", body, constants=_CONSTANTS)).model


@pytest.mark.parametrize(
    ("end", "square"),
    [
        (_TERMS, _SQUARED),
        (_TERMS.replace("Mul(g, k)", "Mul(k, g)").replace("Mul(n, k)", "Mul(k, n)"), _POWER),
        (_TERMS.replace("Add(gk, o)", "Add(o, gk)").replace("Mul(i, s)", "Mul(s, i)"), _SQUARED),
        (_TERMS.replace("o = Add(nk, b) z = Add(gk, o)", "z = Add(gk, nk)"), _SQUARED),
        ("h = Div(d, r) l = Mul(h, s) z = Add(l, b)", _SQUARED),
        ("i = Reciprocal(r) h = Mul(i, d) l = Mul(s, h) z = Add(b, l)", _POWER),
    ],
)
@pytest.mark.parametrize("x", ["N, 6, H, W", "N, 6, 4, 5"])
def test_each_form_is_one_norm(end: str, square: str, x: str, tmp_path: Path) -> None:
    source = model(end, square=square, x=x)
    found = source.clone()
    rewrite.rewrite(found, tmp_path)
    operators = [node.op_type for node in found.graph]
    assert "InstanceNormalization" in operators and not {"ReduceMean", "Sqrt", "Sub"} & set(operators)
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 6, 4, 5)).astype(np.float32) + 1}
    np.testing.assert_allclose(run(found, feeds)[0], run(source, feeds)[0], rtol=1e-4, atol=1e-4)
    prepared = source.clone()
    rewrite.prepare_float32(prepared)
    assert "InstanceNormalization" in [node.op_type for node in prepared.graph]


@pytest.mark.parametrize(
    ("changed", "form", "why"),
    [
        ({"head": _HEAD.replace("ReduceMean(g, axes)", "ReduceMean(g, two_axes)")}, "terms", "those of groups"),
        ({"root": _ROOT.replace("ReduceMean(q, axes)", "ReduceMean<keepdims = 0>(q, axes)")
          .replace("e = ", "f = Unsqueeze(v, axes) e = ").replace("Add(v,", "Add(f,")}, "terms", ""),
        ({"square": "q = Pow(d, three)"}, "terms", "not squared"),
        ({"root": _ROOT.replace("eps)", "s2)")}, "terms", "epsilon is no constant of one element"),
        ({"end": _TERMS.replace("Mul(i, s)", "Mul(i, s2)")}, "terms", "not one constant for each channel"),
        ({"end": _TERMS.replace("Add(nk, b)", "Add(nk, i)")}, "terms", "not one constant for each channel"),
        ({"head": _HEAD.replace("Reshape(t, cut)", "Reshape(c, cut)")}, "terms", "another shape"),
    ],
)  # fmt: skip
def test_others_stay(changed: dict[str, str], form: str, why: str) -> None:
    source = model(**({"end": _TERMS} | changed))
    if why:
        assert why in reason(source, "u", GroupNorm.rule(form, False, False, False))
    found = source.clone()
    rewrite.rewrite(found, Path())
    assert ("InstanceNormalization" in [node.op_type for node in found.graph]) == (not why)
