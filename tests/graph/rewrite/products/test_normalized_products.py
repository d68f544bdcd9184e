"""BatchNormalization behind products and beside elementwise nodes: what is folded, what is refused, results stay."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from onnxopt.graph.rewrite import rewrite
from onnxopt.graph.rewrite.products.normalized_products import Arithmetic, NormalizedProduct
from onnxopt.graph.rewrite.weights import Joiner
from tests.support.graphs import graph, hold, run, value
from tests.support.refused import reason

K, N = 6, 4
NUMPY = {"float": np.float32, "float16": np.float16}
NORM = "BatchNormalization<epsilon=0.01>({}, g, b, mean, variance)"
FLAT = "f = Reshape(a, flat) n = " + NORM.format("f") + " y = Reshape(n, back)"
BIASED = "p = MatMul(x, w) a = Add(p, c) "


def model(
    body: str,
    dtype: str = "float",
    outputs: str = "{} y",
    constants: dict[str, np.ndarray] | None = None,
    shape: tuple[int, ...] = (2, 5, K),
) -> ir.Model:
    """A graph over x, with a matrix w, its transpose t, and what normalizes N columns."""
    rng = np.random.default_rng(4)
    arrays: dict[str, np.ndarray] = {
        "w": rng.standard_normal((K, N)), "t": rng.standard_normal((N, K)), "c": rng.standard_normal(N),
        "g": rng.standard_normal(N), "b": rng.standard_normal(N), "mean": rng.standard_normal(N),
        "variance": rng.uniform(0.5, 2, N), "rows": rng.standard_normal((5, 1)),
    }  # fmt: skip
    arrays |= constants or {}
    dims = ",".join(map(str, shape))
    inputs = [f"{dtype}[{dims}] x", *(f"{dtype}[{','.join(map(str, a.shape))}] {k}" for k, a in arrays.items())]
    rank = ", ".join("def"[: len(shape)])
    source = graph(
        ", ".join(inputs), outputs.replace("{}", f"{dtype}[{rank}]"), body,
        constants=f"int64[2] flat = {{-1, {N}}}, int64[3] back = {{2, 5, {N}}}",
    )  # fmt: skip
    hold(source, arrays, NUMPY[dtype])
    return source


def fold(source: ir.Model, folder: Path) -> tuple[ir.Model, int]:
    copy = source.clone()
    return copy, rewrite(copy, folder).applied["fold"]


def agree(source: ir.Model, found: ir.Model, shape: tuple[int, ...], dtype: str) -> None:
    x = np.random.default_rng(1).standard_normal(shape).astype(NUMPY[dtype])
    tolerance = 1e-5 if dtype == "float" else 2e-2
    np.testing.assert_allclose(run(found, {"x": x})[0], run(source, {"x": x})[0], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", ["float", "float16"])
@pytest.mark.parametrize(
    ("body", "rows", "operators"),
    [
        (BIASED + FLAT, False, ["MatMul", "Add"]),
        ("a = MatMul(x, w) " + FLAT, False, ["MatMul", "Add"]),
        (BIASED + FLAT.replace("Reshape(a, flat)", "Flatten<axis=-1>(a)"), False, ["MatMul", "Add"]),
        (BIASED + "y = " + NORM.format("a"), True, ["MatMul", "Add"]),
        ("a = Gemm(x, w, c) y = " + NORM.format("a"), True, ["Gemm"]),
        ("a = Gemm<transB=1>(x, t) y = " + NORM.format("a"), True, ["Gemm"]),
    ],
)
def test_what_is_folded(body: str, rows: bool, operators: list[str], dtype: str, tmp_path: Path) -> None:
    shape = (5, K) if rows else (2, 5, K)
    source = model(body, dtype, shape=shape)
    found, applied = fold(source, tmp_path)
    assert applied == 1
    assert [n.op_type for n in found.graph] == operators
    agree(source, found, shape, dtype)


def test_the_result_is_rounded_once(tmp_path: Path) -> None:
    source = model(BIASED + FLAT, "float16")
    found, _ = fold(source, tmp_path)
    arrays = (value(source, k).const_value.numpy().astype(np.float64) for k in ("w", "c", "g", "b", "mean", "variance"))  # type: ignore[union-attr]
    w, c, g, b, mean, variance = arrays
    scale = g / np.sqrt(variance + np.float32(0.01))
    weight, bias = (n.inputs[1].const_value.numpy() for n in found.graph)  # type: ignore[union-attr]
    assert (weight == (w * scale).astype(np.float16)).all()
    assert (bias == (b - mean * scale + scale * c).astype(np.float16)).all()


READERS = "Matched nodes have other uses"  # onnxscript's words
NO_COLUMNS = "the channels of the BatchNormalization are not the product's columns"


@pytest.mark.parametrize(
    ("body", "outputs", "changes", "why"),
    [
        (BIASED + FLAT + " z = Relu(a)", "{} y, {} z", {}, READERS),
        (BIASED + FLAT, "{} y, {} a", {}, READERS),
        (BIASED + FLAT + " z = MatMul(x, w)", "{} y, {} z", {}, "the weight `w` has other readers"),
        ("p = MatMul(x, w) a = Add(p, rows) " + FLAT, "{} y", {}, "`rows` is not a constant with one value a column"),
        (BIASED + FLAT, "{} y", {"g": np.array([1.0, 1.0, 1.0, 1e-6])}, "would become subnormal in float16"),
        (BIASED + FLAT, "{} y", {"g": np.full(N, 6e4), "w": np.full((K, N), 9.0)}, "overflows in FLOAT16"),
        (
            BIASED + FLAT.replace("epsilon=0.01", "epsilon=0.01, training_mode=0"), "{} y",
            {"mean": np.full(N, np.inf)}, "overflows in FLOAT16",
        ),
    ],
)  # fmt: skip
def test_what_is_refused(body: str, outputs: str, changes: dict[str, np.ndarray], why: str, tmp_path: Path) -> None:
    """The normalization stays behind the product, as a factor and a term, or as it is where these overflow."""
    source = model(body, "float16", outputs, changes)
    found, _ = fold(source, tmp_path)
    product = next(n for n in found.graph if n.op_type == "MatMul")
    assert product.inputs[1] is not None and product.inputs[1].name == "w"
    np.testing.assert_array_equal(*(value(m, "w").const_value.numpy() for m in (found, source)))  # type: ignore[union-attr]
    assert {"Mul", "BatchNormalization"} & {n.op_type for n in found.graph}
    assert why in reason(source, "n", NormalizedProduct.rule("MatMul", Joiner(tmp_path)))


def test_a_scaled_gemm_is_refused(tmp_path: Path) -> None:
    source = model("a = Gemm<alpha=0.5>(x, w, c) y = " + NORM.format("a"), shape=(5, K))
    found, _ = fold(source, tmp_path)
    assert [n.op_type for n in found.graph] == ["Gemm", "Mul", "Add"]
    agree(source, found, (5, K), "float")
    assert "scales its product" in reason(source, "y", NormalizedProduct.rule("Gemm", Joiner(tmp_path)))


def test_channels_that_are_no_columns_are_refused(tmp_path: Path) -> None:
    """The channels of [2, 4, 4] are its second dim."""
    source = model("a = MatMul(x, w) y = " + NORM.format("a"), shape=(2, N, K))
    assert fold(source, tmp_path)[1] == 0
    assert reason(source, "y", NormalizedProduct.rule("MatMul", Joiner(tmp_path))) == NO_COLUMNS


@pytest.mark.parametrize(
    ("body", "shape", "changes", "why"),
    [
        ("n = " + NORM.format("x") + " y = ReduceMean<keepdims=1>(n)", (3, N, 7), {}, "no neighbour is elementwise"),
        ("n = " + NORM.format("x") + " y = Relu(n)", (3, N, 2, 2), {}, "`x` is a map, whose layout decides"),
        ("n = " + NORM.format("x") + " y = Relu(n)", (3, N), {"mean": np.full(N, np.inf)}, "overflows in FLOAT"),
    ],
)
def test_what_does_not_become_a_factor_and_a_term(
    body: str, shape: tuple[int, ...], changes: dict[str, np.ndarray], why: str, tmp_path: Path
) -> None:
    outputs = "{}[" + ",".join("defhi"[: len(shape)]) + "] y"
    source = model(body, "float", outputs.format("float"), changes, shape)
    assert fold(source, tmp_path)[1] == 0
    assert why in reason(source, "n", Arithmetic.rule(maps=False))


@pytest.mark.parametrize("dtype", ["float", "float16"])
@pytest.mark.parametrize(
    ("body", "shape", "operators"),
    [
        ("n = " + NORM.format("x") + " y = Relu(n)", (3, N), ["Mul", "Add", "Relu"]),
        ("n = " + NORM.format("x") + " y = ReduceMean<keepdims=1>(n)", (3, N), ["Mul", "Add", "ReduceMean"]),
        ("n = Tanh(x) y = " + NORM.format("n"), (3, N, 7), ["Tanh", "Mul", "Add"]),
        ("n = " + NORM.format("x") + " y = Relu(n)", (3, N, 2, 2, 2), ["Mul", "Add", "Relu"]),
        ("n = " + NORM.format("x") + " y = ReduceMean<keepdims=1>(n)", (3, N, 7), ["BatchNormalization", "ReduceMean"]),
        ("n = " + NORM.format("x") + " y = Relu(n)", (3, N, 2, 2), ["BatchNormalization", "Relu"]),
    ],
)
def test_beside_elementwise_nodes(
    body: str, shape: tuple[int, ...], operators: list[str], dtype: str, tmp_path: Path
) -> None:
    outputs = "{}[" + ",".join("defhi"[: len(shape)]) + "] y"
    source = model(body, dtype, outputs.format(dtype), shape=shape)
    found, applied = fold(source, tmp_path)
    assert applied == ("Mul" in operators)
    assert [n.op_type for n in found.graph] == operators
    agree(source, found, shape, dtype)


LAST = "Transpose<perm = [0, 2, 1]>"


@pytest.mark.parametrize(
    ("before", "after", "shape", "operators"),
    [
        ("n = Neg(x)", "y = Relu(n)", (3, N, 2, 2), "Neg Mul Add Relu"),
        ("", "y = Transpose<perm = [0, 2, 3, 1]>(n)", (3, N, 2, 2), "Mul Add Transpose"),
        ("", "y = MaxPool<kernel_shape = [2, 2]>(n)", (3, N, 2, 2), "BatchNormalization MaxPool"),
        (f"n = {LAST}(x)", f"y = {LAST}(n)", (3, 7, N), "Mul Add"),
    ],
)
def test_a_normalization_that_a_kernel_computes(
    before: str, after: str, shape: tuple[int, ...], operators: str, tmp_path: Path
) -> None:
    """Of maps only those that no convolution's layout took, and where kernels are made."""
    outputs = "float[" + ",".join("defhi"[: len(shape)]) + "] y"
    body = f"{before} m = {NORM.format('n' if before else 'x')} {after.replace('(n)', '(m)')}"
    source = model(body, "float", outputs, shape=shape)
    found = source.clone()
    rewrite(found, tmp_path, gpu=True)
    assert {n.op_type for n in found.graph} - {"Transpose"} == set(operators.split()) - {"Transpose"}
    agree(source, found, shape, "float")
    without = source.clone()
    rewrite(without, tmp_path)
    assert len(shape) != len("NCHW") or "BatchNormalization" in {n.op_type for n in without.graph}
