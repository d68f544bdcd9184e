"""Products over one element become a Mul: what is rewritten, what is refused, and that results stay."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from onnxscript.rewriter import MatchContext

from cases.models import fuse
from onnxopt.graph.rewrite import rewrite
from onnxopt.graph.rewrite.products.outer_products import OuterProduct
from onnxopt.graph.shapes.infer import infer
from tests.support.graphs import graph, run

DTYPES = {"float": np.float32, "double": np.float64, "int32": np.int32}
# The tables of rotary embedding, as transformers up to 5.2 exports them.
TABLES = (
    "e = Expand(frequencies, batch)  p = MatMul(e, positions)  t = Transpose<perm = [0, 2, 1]>(p)  "
    "both = Concat<axis = -1>(t, t)  c = Cos(both)  s = Sin(both)  y = Mul(c, factor)  z = Mul(s, factor)"
)


def _rewritten(source: ir.Model, folder: Path) -> tuple[ir.Model, int]:
    copy = source.clone()
    infer(copy).write()
    return copy, rewrite(copy, folder).applied["outer_products"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("a", "b", "y"),
    [
        ((1, 4, 1), (1, 1, "S"), (1, 4, "S")),
        ((2, 1, 3, 1), (5, 1, 4), (2, 5, 3, 4)),
        (("S", 1), (1, 6), ("S", 6)),
        ((3, 1), (2, 1, 6), (2, 3, 6)),
    ],
)
def test_products_over_one_element(a: tuple, b: tuple, y: tuple, dtype: str, tmp_path: Path) -> None:
    text = [f"{dtype}[{', '.join(map(str, dims))}] {name}" for dims, name in ((a, "a"), (b, "b"), (y, "y"))]
    source = graph(", ".join(text[:2]), text[2], "y = MatMul(a, b)")
    found, applied = _rewritten(source, tmp_path)
    assert applied == 1
    assert [node.op_type for node in found.graph] == ["Mul"]
    rng = np.random.default_rng(3)
    feeds = {
        name: (9 * rng.standard_normal([7 if d == "S" else d for d in dims])).astype(DTYPES[dtype])
        for name, dims in (("a", a), ("b", b))
    }
    for before, after in zip(run(source, feeds), run(found, feeds), strict=True):
        np.testing.assert_array_equal(after, before)


@pytest.mark.parametrize(
    ("a", "b", "reason"),
    [
        ("float[3, 2]", "float[2, 4]", "MatMul sums over more than one element"),
        ("float[3, S]", "float[S, 4]", "MatMul sums over more than one element of `a`, or over an unknown number"),
        ("float[5, 1, 1]", "float[5, 1, 4]", "has one row and one column"),
        ("float[1]", "float[1, 4]", "`a` is not known to be a matrix"),
    ],
)
def test_what_stays(a: str, b: str, reason: str, tmp_path: Path) -> None:
    source = graph(f"{a} a, {b} b", "float[] y", "y = MatMul(a, b)")
    found, applied = _rewritten(source, tmp_path)
    assert applied == 0
    assert [node.op_type for node in found.graph] == ["MatMul"]
    (node,) = found.graph
    checked = OuterProduct().check(MatchContext(found, found.graph, node, None), *node.inputs)
    assert reason in checked.reason


def test_tables_of_rotary_embedding_are_one_kernel(tmp_path: Path) -> None:
    source = graph(
        "float[1, 4, 1] frequencies, float[1, 1, S] positions", "float[1, S, 8] y, float[1, S, 8] z", TABLES,
        constants="int64[3] batch = {1, 4, 1}, float factor = {1.5}",
    )  # fmt: skip
    found, applied = _rewritten(source, tmp_path)
    assert applied == 1
    (region,) = fuse(found).regions
    assert {"Mul", "Transpose", "Concat", "Cos", "Sin"} <= {n.op_type for n in region.nodes}
