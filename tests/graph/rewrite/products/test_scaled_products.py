"""A constant factor behind a product with a constant matrix: what is folded, what is refused, and that results stay."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from onnxopt.graph.rewrite import rewrite
from tests.support.graphs import graph, hold, run, value

K, N = 6, 4
NUMPY = {"float": np.float32, "float16": np.float16}
BIASED = "p = MatMul(x, w) a = Add(p, b) "


def model(
    body: str, dtype: str = "float", outputs: str = "{} y", constants: dict[str, np.ndarray] | None = None
) -> ir.Model:
    """A graph over x [2, 5, K], with a matrix w, a bias b, factors c and r of columns, one number s."""
    rng = np.random.default_rng(4)
    arrays: dict[str, np.ndarray] = {
        "w": rng.standard_normal((K, N)), "b": rng.standard_normal(N), "c": rng.uniform(-2, 2, N),
        "r": rng.uniform(0.5, 2, (1, 1, N)), "s": np.array(0.3), "deep": np.ones((1, 1, 1, N)), "rows": np.ones((5, 1)),
        "up": rng.uniform(0.5, 2, (N, 1)), "first": rng.uniform(0.5, 2, (N, 1, 1)),
    }  # fmt: skip
    arrays |= constants or {}
    inputs = [f"{dtype}[2, 5, {K}] x", *(f"{dtype}[{','.join(map(str, a.shape))}] {k}" for k, a in arrays.items())]
    source = graph(", ".join(inputs), outputs.replace("{}", f"{dtype}[d, e, f]"), body)
    hold(source, arrays, NUMPY[dtype])
    return source


def fold(source: ir.Model, folder: Path) -> tuple[ir.Model, int]:
    copy = source.clone()
    return copy, rewrite(copy, folder).applied["fold"]


def given(dtype: str) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(1).standard_normal((2, 5, K)).astype(NUMPY[dtype])}


@pytest.mark.parametrize("dtype", ["float", "float16"])
@pytest.mark.parametrize(
    ("body", "operators"),
    [
        (BIASED + "y = Mul(a, c)", ["MatMul", "Add"]),
        (BIASED + "y = Mul(c, a)", ["MatMul", "Add"]),
        (BIASED + "y = Mul(a, r)", ["MatMul", "Add"]),
        (BIASED + "y = Mul(s, a)", ["MatMul", "Add"]),
        ("p = MatMul(x, w) a = Add(b, p) y = Mul(a, c)", ["MatMul", "Add"]),
        ("p = MatMul(x, w) y = Mul(p, c)", ["MatMul"]),
        (BIASED + "t = Transpose<perm=[0,2,1]>(a) y = Mul(t, up)", ["MatMul", "Add", "Transpose"]),
        (BIASED + "t = Transpose<perm=[2,0,1]>(a) y = Mul(first, t)", ["MatMul", "Add", "Transpose"]),
    ],
)
def test_what_is_folded(body: str, operators: list[str], dtype: str, tmp_path: Path) -> None:
    source = model(body, dtype)
    found, applied = fold(source, tmp_path)
    assert applied == 1
    assert [n.op_type for n in found.graph] == operators
    tolerance = 1e-5 if dtype == "float" else 1e-2
    np.testing.assert_allclose(
        run(found, given(dtype))[0], run(source, given(dtype))[0], rtol=tolerance, atol=tolerance
    )


def test_a_power_of_two_keeps_small_factors_in_range(tmp_path: Path) -> None:
    """Factors of 1e-6 would leave nothing of a float16 matrix. With the power of two it is as exact as it was."""
    factors = np.array([1e-6, 2e-6, -1e-6, 0.0])
    source = model(BIASED + "y = Mul(a, c)", "float16", constants={"c": factors, "b": np.zeros(N)})
    found, applied = fold(source, tmp_path)
    assert applied == 1
    product, scaled, _ = found.graph
    assert [n.op_type for n in found.graph] == ["MatMul", "Mul", "Add"]
    weight, scale = product.inputs[1].const_value, scaled.inputs[1].const_value  # type: ignore[union-attr]
    assert weight is not None and scale is not None
    power = float(scale.numpy())
    assert np.log2(power).is_integer() and 2.0**-24 <= power < 1e-5
    exact = value(source, "w").const_value.numpy().astype(np.float64) * factors.astype(np.float16)  # type: ignore[union-attr]
    np.testing.assert_allclose(weight.numpy().astype(np.float64) * power, exact, rtol=2.0**-10)


def test_the_result_is_rounded_once(tmp_path: Path) -> None:
    source = model(BIASED + "y = Mul(a, c)", "float16")
    found, _ = fold(source, tmp_path)
    w, b, c = (value(source, name).const_value.numpy().astype(np.float64) for name in "wbc")  # type: ignore[union-attr]
    weight, bias = (next(iter(found.graph)).inputs[1], list(found.graph)[1].inputs[1])
    assert (weight.const_value.numpy() == (w * c).astype(np.float16)).all()  # type: ignore[union-attr]
    assert (bias.const_value.numpy() == (b * c).astype(np.float16)).all()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("body", "outputs", "changes"),
    [
        ("p = MatMul(x, w) y = Mul(p, s)", "{} y", {}),
        (BIASED + "y = Mul(a, c) z = Relu(a)", "{} y, {} z", {}),
        (BIASED + "y = Mul(a, c) z = Relu(p)", "{} y, {} z", {}),
        (BIASED + "y = Mul(a, c)", "{} y, {} a", {}),
        (BIASED + "y = Mul(a, c) z = MatMul(x, w)", "{} y, {} z", {}),
        (BIASED + "y = Mul(a, a)", "{} y", {}),
        (BIASED + "y = Mul(a, rows)", "{} y", {}),
        ("p = MatMul(x, w) a = Add(p, rows) y = Mul(a, c)", "{} y", {}),
        (BIASED + "y = Mul(a, c)", "{} y", {"c": np.array([1.0, 1.0, 1.0, 1e-6])}),
        (BIASED + "y = Mul(a, c)", "{} y", {"c": np.full(N, 6e4), "b": np.full(N, 2.0)}),
    ],
)
def test_what_is_refused(body: str, outputs: str, changes: dict[str, np.ndarray], tmp_path: Path) -> None:
    source = model(body, "float16", outputs, changes)
    found, applied = fold(source, tmp_path)
    assert applied == 0
    assert [n.op_type for n in found.graph] == [n.op_type for n in source.graph]


def test_a_factor_that_adds_a_dim_is_refused(tmp_path: Path) -> None:
    source = model(BIASED + "y = Mul(a, deep)", "float16", outputs="float16[c, d, e, f] y")
    assert fold(source, tmp_path)[1] == 0
