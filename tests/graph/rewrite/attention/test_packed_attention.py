"""Attention whose q, k and v are parts of one product becomes one operator, in whatever way views cut the product."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from onnxscript.rewriter import RewriteRule

from onnxopt.graph.rewrite.products.packed_attention import PackedSelfAttention
from onnxopt.graph.rewrite.rule_sets import Scope
from onnxopt.graph.rewrite.weights import Joiner
from onnxopt.graph.shapes.infer import infer
from tests.support.attention.attention_graphs import agree, ops, rewritten
from tests.support.graphs import graph, hold
from tests.support.refused import reason

HEADS, SIZE = 2, 8
WIDTH = HEADS * SIZE
PRODUCT = "m = MatMul (x, w) l = Add (b, m) "
IN_HEADS = "".join(f"{p}r = Reshape ({p}c, heads) {p} = Transpose <perm = [0, 2, 1, 3]> ({p}r) " for p in "qkv")
ONES = "".join(f"{p} = Squeeze ({p}1, first) " for p in "qkv")
SCORES = "kt = Transpose <perm = [0, 1, 3, 2]> (k) s = MatMul (q, kt) "
REST = "p = Softmax <axis = -1> (s) a = MatMul (p, v) at = Transpose <perm = [0, 2, 1, 3]> (a) y = Reshape (at, flat)"
CUTS = {
    "parts of columns": f"qc, kc, vc = Split <axis = -1, num_outputs = 3> (l) {IN_HEADS}",
    "parts as Slices": "qc = Slice (l, n0, n16, last) kc = Slice (l, n16, n32, last) vc = Slice (l, n32, n48, last) "
    + IN_HEADS,
    "parts, then heads": "g = Reshape (l, five) t = Transpose <perm = [2, 0, 3, 1, 4]> (g) "
    f"q1, k1, v1 = Split <axis = 0, num_outputs = 3> (t) {ONES}",
    "heads, then parts": "g = Reshape (l, wide) t = Transpose <perm = [0, 2, 1, 3]> (g) "
    "q, k, v = Split <axis = -1, num_outputs = 3> (t) ",
    "v first": f"vc, qc, kc = Split <axis = -1, num_outputs = 3> (l) {IN_HEADS}",
}


def model(
    body: str, dims: str = "batch, tokens", dtype: str = "float", columns: int = 3 * WIDTH, outputs: str = ""
) -> ir.Model:
    source = graph(
        f"{dtype}[{dims}, {WIDTH}] x, {dtype}[1, 1, tokens, tokens] mask, {dtype}[{WIDTH}, {columns}] w, "
        f"{dtype}[{columns}] b",
        f"{dtype}[{dims}, {WIDTH}] y{outputs}", body,
        constants=f"int64[4] heads = {{0, 0, {HEADS}, {SIZE}}}, int64[3] flat = {{0, 0, {WIDTH}}}, "
        "int64[1] first = {0}, int64[3] turned = {-1, 2, 48}, "
        f"int64[5] five = {{0, 0, 3, {HEADS}, {SIZE}}}, int64[4] wide = {{0, 0, {HEADS}, {3 * SIZE}}}, "
        "int64[1] n0 = {0}, int64[1] n16 = {16}, int64[1] n32 = {32}, int64[1] n48 = {48}, int64[1] last = {-1}",
    )  # fmt: skip
    rng, stored = np.random.default_rng(0), ir.DataType[dtype.upper()].numpy()
    hold(source, {"w": rng.standard_normal((WIDTH, columns)) * 0.4, "b": rng.standard_normal(columns)}, stored)
    return source


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("cut", CUTS)
def test_the_product_becomes_part_of_attention(cut: str, masked: bool, tmp_path: Path) -> None:
    scores = SCORES.replace("s =", "s0 =") + "s = Add (s0, mask) " if masked else SCORES
    source = model(PRODUCT + CUTS[cut] + scores + REST)
    found, done = rewritten(source, tmp_path)
    assert done.applied["merge"] == 1
    assert [op for op in ops(found) if op not in ("Expand", "Shape", "Concat")] == ["Attention"]
    rng = np.random.default_rng(1)
    for batch, length in ((2, 6), (1, 1), (0, 5), (3, 17)):
        shapes = {"x": (batch, length, WIDTH), "mask": (1, 1, length, length)}
        agree(source, found, {name: rng.standard_normal(dims).astype(np.float32) for name, dims in shapes.items()})


def test_a_product_without_a_bias(tmp_path: Path) -> None:
    source = model("l = MatMul (x, w) " + CUTS["heads, then parts"] + SCORES + REST)
    found, _ = rewritten(source, tmp_path)
    assert ops(found) == ["Attention"]
    x = np.random.default_rng(2).standard_normal((2, 5, WIDTH)).astype(np.float32)
    agree(source, found, {"x": x, "mask": np.zeros((1, 1, 5, 5), np.float32)})


@pytest.mark.parametrize(("dims", "operator"), [("2, 6", "Attention"), ("64, 4096", "MultiHeadAttention")])
def test_a_long_product_stays(dims: str, operator: str, tmp_path: Path) -> None:
    found, _ = rewritten(model(PRODUCT + CUTS["parts of columns"] + SCORES + REST, dims), tmp_path)
    assert operator in ops(found)


EQUAL = "q, k, v = Split <axis = -1, num_outputs = 3> (l) "


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ("q, k, u = Split <axis = -1, num_outputs = 3> (l) v = Relu (u)", "q, k and v are not parts of one product"),
        ("q, k, u = Split <axis = -1, num_outputs = 3> (l) v = Slice (l, n16, n32, last)",
         "q, k and v are not each column of the product once"),
        (EQUAL + "z = Relu (k)", "`k` has other readers"),
        (EQUAL + "z = Relu (l)", "`l` has other readers"),
        (EQUAL + "z = ReduceSum (w)", "the weight `w` is no matrix of a product of three dims, or has other readers"),
        ("d = Neg (l) " + EQUAL.replace("(l)", "(d)"), "the parts are not those of a product with a constant"),
        ("d = Add (l, l) " + EQUAL.replace("(l)", "(d)"), "what is added to the product is not a constant"),
        ("r = Reshape (l, turned) q, k, v = Split <axis = -1, num_outputs = 3> (r)",
         "Reshape `r` does not keep rows apart from columns"),
        ("t = Transpose <perm = [1, 0, 2]> (l) q, k, v = Split <axis = -1, num_outputs = 3> (t)",
         "the rows of a part are not those of queries and keys"),
        ("q, k, v = Split <axis = 1, num_outputs = 3> (l)", "Split `q` does not keep rows apart from columns"),
    ],
)  # fmt: skip
def test_what_is_refused(parts: str, why: str, tmp_path: Path) -> None:
    attention = f"y = com.microsoft.MultiHeadAttention <num_heads = {HEADS}> (q, k, v)"
    source = model(f"{PRODUCT} {parts} {attention}", outputs=", float[] z" if "z = " in parts else "")
    assert reason(source, "y", _rule(source, tmp_path)) == why


def test_a_kernel_of_ours_reads_the_parts_where_they_are(tmp_path: Path) -> None:
    source = model(PRODUCT + CUTS["heads, then parts"] + SCORES + REST, dtype="float16")
    found, _ = rewritten(source, tmp_path, usual={"tokens": 6})
    assert "MultiHeadAttention" in ops(found)
    assert "Attention" not in ops(found)


def _rule(source: ir.Model, folder: Path) -> RewriteRule:
    scope = Scope(source.graph, infer(source.clone()))
    return PackedSelfAttention.rule("packed_attention", Joiner(folder), scope)
