"""Adapters of low rank beside a product: which become part of its weight, which do not, and that results stay."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from onnxopt.graph.rewrite import rewrite
from tests.support.graphs import graph, hold, run

_WEIGHTS = {
    "w": (8, 12),
    "down": (8, 2),
    "up": (2, 12),
    "c": (12,),
    "s": (),
    "s1": (1, 1),
    "other": (9, 12),
    "down2": (8, 3),
    "up2": (3, 12),
}
_DTYPES = {"float": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
_LOW = "h = MatMul(x, down)  l = MatMul(h, up)"


def _model(body: str, dtype: str = "float", factor: float = 1.0) -> ir.Model:
    rng = np.random.default_rng(0)
    arrays = {name: factor * rng.standard_normal(dims) for name, dims in _WEIGHTS.items()}
    held = ", ".join(f"{dtype}[{','.join(map(str, dims))}] {name}" for name, dims in _WEIGHTS.items())
    made = graph(f"{dtype}[n, t, 8] x, {dtype}[n, t, 9] z, {held}", f"{dtype}[a, b, c0] y", body)
    hold(made, arrays, _DTYPES[dtype])
    return made


def _rewritten(source: ir.Model, folder: Path) -> tuple[ir.Model, list[str]]:
    rewritten = source.clone()
    rewrite(rewritten, folder)
    return rewritten, [node.op_type for node in rewritten.graph]


def _check(source: ir.Model, rewritten: ir.Model) -> None:
    rng = np.random.default_rng(1)
    feeds = {v.name: rng.standard_normal((2, 3, v.shape[2])).astype(np.float32) for v in source.graph.inputs}  # type: ignore[index]
    (expected,), (result,) = run(source, feeds), run(rewritten, feeds)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (f"{_LOW}  m = MatMul(x, w)  y = Add(m, l)", ["MatMul"]),
        (f"{_LOW}  m = MatMul(x, w)  y = Add(l, m)", ["MatMul"]),
        (f"{_LOW}  e = Mul(l, s)  m = MatMul(x, w)  y = Add(m, e)", ["MatMul"]),
        (f"{_LOW}  e = Mul(s1, l)  m = MatMul(x, w)  b = Add(m, c)  y = Add(b, e)", ["MatMul", "Add"]),
        ("h = MatMul(x, down)  g = Mul(h, s)  l = MatMul(g, up)  m = MatMul(x, w)  y = Add(m, l)", ["MatMul"]),
        (
            f"{_LOW}  e = Mul(l, s)  h2 = MatMul(x, down2)  l2 = MatMul(h2, up2)  m = MatMul(x, w)  b = Add(c, m)"
            "  k = Add(b, e)  y = Add(k, l2)",
            ["MatMul", "Add"],
        ),
    ],
)
def test_adapters_become_part_of_the_weight(body: str, left: list[str], tmp_path: Path) -> None:
    source = _model(body)
    rewritten, operators = _rewritten(source, tmp_path)
    assert operators == left
    _check(source, rewritten)


@pytest.mark.parametrize(
    "body",
    [
        f"{_LOW}  r = Relu(x)  m = MatMul(r, w)  y = Add(m, l)",
        "h = MatMul(x, down)  g = Relu(h)  l = MatMul(g, up)  m = MatMul(x, w)  y = Add(m, l)",
        f"{_LOW}  m = MatMul(z, other)  y = Add(m, l)",
        f"{_LOW}  m = MatMul(x, w)  k = Add(m, l)  y = Mul(k, m)",
        f"{_LOW}  m = MatMul(x, w)  k = Add(m, l)  q = MatMul(x, w)  y = Mul(k, q)",
        f"{_LOW}  m = MatMul(x, w)  e = Mul(l, c)  y = Add(m, e)",
    ],
)
def test_what_stays(body: str, tmp_path: Path) -> None:
    source = _model(body)
    rewritten, operators = _rewritten(source, tmp_path)
    assert "Add" in operators and not any("adapted" in name for name in rewritten.graph.initializers)
    _check(source, rewritten)


def test_sums_that_may_overflow_stay(tmp_path: Path) -> None:
    body = f"{_LOW}  m = MatMul(x, w)  y = Add(m, l)"
    assert _rewritten(_model(body, "float16", 200.0), tmp_path)[1].count("MatMul") == 3
    assert _rewritten(_model(body, "float16", 2.0), tmp_path)[1].count("MatMul") == 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_weights_are_rounded_once(dtype: str, tmp_path: Path) -> None:
    body = f"{_LOW}  e = Mul(l, s)  m = MatMul(x, w)  y = Add(m, e)"
    source = _model(body, dtype)
    w, down, up, s = (
        source.graph.initializers[name].const_value.numpy().astype(np.float64)
        for name in ("w", "down", "up", "s")  # type: ignore[union-attr]
    )
    rewritten, _ = _rewritten(source, tmp_path)
    (adapted,) = (v.const_value for name, v in rewritten.graph.initializers.items() if "adapted" in name)
    found = adapted.numpy().astype(np.float64)  # type: ignore[union-attr]
    exact = w + s * (down @ up)
    limit = 2.0**-11 if dtype == "float16" else 2.0**-8
    np.testing.assert_allclose(found if found.shape == exact.shape else found.T, exact, rtol=1.01 * limit, atol=1e-7)
