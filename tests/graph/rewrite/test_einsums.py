"""Einsum becomes a product: what is rewritten, what is refused, and that results stay."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from onnxscript.rewriter import MatchContext

from onnxopt.graph.normalize import normalize
from onnxopt.graph.rewrite import rewrite
from onnxopt.graph.rewrite.products.einsums import EinsumProduct, EinsumTranspose
from onnxopt.graph.shapes.infer import infer
from tests.support.graphs import graph, hold, run

SIZES = {"B": 2, "S": 5, "T": 7}


def _rewritten(source: ir.Model, folder: Path) -> tuple[ir.Model, int]:
    copy = source.clone()
    infer(copy).write()
    return copy, rewrite(copy, folder, leave_out={"outer_products"}).applied["einsums"]


def _einsum(equation: str, *operands: str, dtype: str = "float") -> ir.Model:
    names = "ab"[: len(operands)]
    inputs = ", ".join(f"{dtype}[{dims}] {name}" for dims, name in zip(operands, names, strict=True))
    return graph(inputs, f"{dtype}[] y", f'y = Einsum<equation = "{equation}">({", ".join(names)})')


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("equation", "operands", "operators"),
    [
        ("ibh,hnd->ibnd", ("S, B, 6", "6, 3, 4"), "MatMul Reshape Reshape"),  # projections of XLNet
        ("ibnd,jbnd->bnij", ("S, B, 3, 4", "T, B, 3, 4"), "MatMul Transpose Transpose"),
        ("bnij,jbnd->ibnd", ("B, 3, S, T", "T, B, 3, 4"), "MatMul Transpose Transpose"),
        ("ibnd,hnd->ibh", ("S, B, 3, 4", "6, 3, 4"), "MatMul Reshape Reshape Transpose"),
        ("bhwc,hkc->bhwk", ("B, 3, 4, 6", "3, 5, 6"), "MatMul Reshape Reshape Transpose Transpose Transpose"),  # SAM
        ("bhld,lrd->bhlr", ("B, 3, 4, 6", "4, 5, 6"), "MatMul Reshape Reshape Transpose Transpose Transpose"),
        ("bhlr,bhrd->bhld", ("B, 3, S, T", "B, 3, T, 4"), "MatMul"),
        ("ab,b->a", ("S, 6", "6"), "MatMul Reshape Reshape"),
        ("a,ab->b", ("6", "6, S"), "MatMul Reshape Reshape"),
        ("i,d->id", ("S", "4"), "Mul Unsqueeze"),
        ("i,d->di", ("S", "4"), "Mul Unsqueeze"),
        ("bid,bd->bid", ("B, S, 4", "B, 4"), "Mul Unsqueeze"),
        ("ijbn->bnij", ("S, T, B, 3",), "Transpose"),
        ("ab->ab", ("S, T",), ""),
    ],
)
def test_products(equation: str, operands: tuple[str, ...], operators: str, dtype: type, tmp_path: Path) -> None:
    source = _einsum(equation, *operands, dtype="float" if dtype is np.float32 else "double")
    found, applied = _rewritten(source, tmp_path)
    assert applied == 1
    assert Counter(n.op_type for n in found.graph if n.op_type != "Identity") == Counter(operators.split())
    rng = np.random.default_rng(3)
    shapes = [[SIZES.get(dim) or int(dim) for dim in dims.split(", ") if dim] for dims in operands]
    feeds = {name: rng.standard_normal(shape).astype(dtype) for name, shape in zip("ab", shapes, strict=False)}
    for before, after in zip(run(source, feeds), run(found, feeds), strict=True):
        np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("equation", "operands", "reason"),
    [
        ("...i,ij->...j", ("S, 4", "4, 6"), "has an ellipsis"),
        ("ij,jk", ("S, 4", "4, 6"), "does not state its result"),
        ("ii,ij->j", ("4, 4", "4, 6"), "reads a diagonal"),
        ("ij,jk->k", ("S, 4", "4, 6"), "sums i of one operand"),
        ("ij,jk->ik", ("S, T", "B, 6"), "the sizes of j"),
        ("ij,jk->ik", ("S, 4", "1, 6"), "the sizes of j"),
        ("bswc,bkc->bswk", ("2, S, T, 4", "2, 6, 4"), "and more than one is symbolic"),
        ("ij->i", ("S, 4"), "Einsum sums ij to i"),
    ],
)
def test_what_stays(equation: str, operands: tuple[str, ...] | str, reason: str, tmp_path: Path) -> None:
    source = _einsum(equation, *((operands,) if isinstance(operands, str) else operands))
    found, applied = _rewritten(source, tmp_path)
    assert applied == 0
    (node,) = found.graph
    assert node.op_type == "Einsum"
    rule = EinsumProduct() if len(node.inputs) == 2 else EinsumTranspose()
    checked = rule.check(MatchContext(found, found.graph, node, None), *node.inputs, node.outputs[0])
    assert reason in checked.reason


def test_integers_stay(tmp_path: Path) -> None:
    found, applied = _rewritten(_einsum("ij,jk->ik", "S, 4", "4, 6", dtype="int64"), tmp_path)
    assert applied == 0
    assert [node.op_type for node in found.graph] == ["Einsum"]


@pytest.mark.parametrize(
    ("equation", "dims", "operators"),
    [
        ("bsi,oi->bso", (6, 4), ["MatMul"]),
        ("bsi,hdi->bshd", (2, 3, 4), ["MatMul", "Reshape"]),
        ("bsi,ihd->bshd", (4, 2, 3), ["MatMul", "Reshape"]),
    ],
)
def test_constants_are_arranged_once(
    equation: str, dims: tuple[int, ...], operators: list[str], tmp_path: Path
) -> None:
    """Keras and JAX keep weights as Einsum reads them; no run has to transpose them."""
    inputs = f"float[2, S, 4] x, float[{', '.join(map(str, dims))}] c"
    source = graph(inputs, "float[] y", f'y = Einsum<equation = "{equation}">(x, c)')
    hold(source, {"c": np.random.default_rng(0).standard_normal(dims)}, "f4")
    feeds = {"x": np.random.default_rng(1).standard_normal((2, 3, 4)).astype("f4")}
    before = run(source, feeds)
    found = normalize(source).model
    assert rewrite(found, tmp_path).applied["einsums"] == 1
    assert [node.op_type for node in found.graph] == operators
    np.testing.assert_allclose(run(found, feeds)[0], before[0], rtol=1e-5, atol=1e-5)
