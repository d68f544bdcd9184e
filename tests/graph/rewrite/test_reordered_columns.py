"""A product whose q, v and k lie beside each other within groups of its columns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from cases.models import fuse
from onnxopt.graph.rewrite.products.reordered_columns import ReorderedColumns
from onnxopt.graph.rewrite.weights import Joiner
from onnxopt.kinds.flash_attention.kind import FLASH_ATTENTION
from tests.support.attention.attention_graphs import ops, rewritten
from tests.support.graphs import graph, hold, run
from tests.support.refused import reason

GROUPS, HEADS, SIZE = 2, 4, 8
WIDTH = HEADS * SIZE
PART = WIDTH // GROUPS
BODY = """
    l = MatMul (x, w)
    g = Reshape (l, groups)
    qg, vg, kg = Split <axis = -1, num_outputs = 3> (g)
    qr = Reshape (qg, heads) kr = Reshape (kg, heads) vr = Reshape (vg, heads)
    q = Transpose <perm = [0, 2, 1, 3]> (qr) k = Transpose <perm = [0, 2, 3, 1]> (kr)
    v = Transpose <perm = [0, 2, 1, 3]> (vr)
    s = MatMul (q, k) p = Softmax <axis = -1> (s) a = MatMul (p, v)
    at = Transpose <perm = [0, 2, 1, 3]> (a) y = Reshape (at, flat)
"""


def model(body: str = BODY, groups: int = GROUPS, dtype: str = "float16") -> ir.Model:
    source = graph(
        f"{dtype}[batch, tokens, {WIDTH}] x, {dtype}[{WIDTH}, {3 * WIDTH}] w",
        f"{dtype}[batch, tokens, {WIDTH}] y", body,
        constants=f"int64[4] groups = {{0, 0, {groups}, -1}}, int64[4] heads = {{0, 0, {HEADS}, {SIZE}}}, "
        f"int64[3] flat = {{0, 0, {WIDTH}}}, int64[3] sizes = {{8, 16, 24}}",
    )  # fmt: skip
    stored = ir.DataType[dtype.upper()].numpy()
    hold(source, {"w": np.random.default_rng(0).standard_normal((WIDTH, 3 * WIDTH)) * 0.4}, stored)
    return source


def test_each_part_is_a_range_of_columns(tmp_path: Path) -> None:
    source = model()
    found, done = rewritten(source, tmp_path, usual={"tokens": 6})
    assert done.applied["attention"] == 1
    assert "Split" not in ops(found)
    for batch, length in ((1, 5), (3, 1)):
        x = np.random.default_rng(length).standard_normal((batch, length, WIDTH)).astype(np.float16)
        (one,), (other,) = run(found, {"x": x}), run(source, {"x": x})
        np.testing.assert_allclose(one.astype(np.float32), other.astype(np.float32), rtol=8e-3, atol=8e-3)
    (region,) = (r for r in fuse(found, usual={"tokens": 6}).regions if r.kind is FLASH_ATTENTION)
    assert [value.producer().op_type for value in region.inputs] == ["MatMul"]


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (model(groups=1), "the product is not known to be split into groups of columns"),
        (model(dtype="float"), "no kernel reads parts of FLOAT where they lie"),
        (model(BODY + " z = ReduceSum (w)"), "the weight `w` is no constant matrix, or has other readers"),
        (
            model(BODY.replace(", num_outputs = 3> (g)", "> (g, sizes)")),
            "Split does not cut the columns of a group into equal parts",
        ),
        (
            model("l = MatMul (x, w) g = Reshape (l, groups) qg, kg = Split <axis = -1, num_outputs = 2> (g)"),
            "Split has two results",
        ),
    ],
    ids=["one group", "float32", "another reader", "unequal parts", "two parts"],
)
def test_what_is_refused(source: ir.Model, why: str, tmp_path: Path) -> None:
    assert reason(source, "qg", ReorderedColumns.rule(Joiner(tmp_path), False)) == why
