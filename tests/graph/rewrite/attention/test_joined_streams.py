"""Attention of the tokens of two streams: one kernel reads both products, and writes what attention reads."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from cases.models import fuse
from onnxopt.graph.rewrite.attention import joined_streams
from onnxopt.graph.shapes.infer import infer
from onnxopt.kinds.rowwise.kind import ROWWISE
from tests.support.attention.attention_graphs import HEADS, SIZE, WIDTH, rewritten
from tests.support.graphs import graph, hold, run

NORM = "{n}n = LayerNormalization <axis = -1> ({n}, w{n})"
ROOT = (
    "{n}f = Cast <to = 1> ({n}) {n}2 = Mul ({n}f, {n}f) {n}3 = ReduceMean <keepdims = 1> ({n}2, last) "
    "{n}4 = Sqrt ({n}3) {n}5 = Div ({n}f, {n}4) {n}6 = Cast <to = 10> ({n}5) {n}n = Mul ({n}6, w{n})"
)
NOTHING = "{n}n = Identity ({n})"
ROTARY = (
    "{n}h = Slice ({n}n, n0, half, last) {n}k = Slice ({n}n, half, all, last) {n}m = Neg ({n}k) "
    "{n}o = Concat <axis = -1> ({n}m, {n}h) {n}p = Mul ({n}n, cos{x}) {n}q = Mul ({n}o, sin{x}) {n}z = Add ({n}p, {n}q)"
)


def model(norm: str, order: str = "ab", batch: str = "2", axis: int = 2, rotary: str = "") -> ir.Model:
    """Joint attention of a [batch, 5, C] and b [batch, 3, C], each with a product that is split into q, k and v.

    rotary: the streams whose queries and keys are rotated after their norm.
    """
    rng = np.random.default_rng(0)
    arrays = {f"p{x}": rng.standard_normal((WIDTH, 3 * WIDTH)) * 0.3 for x in "ab"}
    arrays |= {f"wr{n}{x}": rng.uniform(0.5, 1.5, SIZE) for n in "qk" for x in "ab"}
    for x, tokens in (("a", 5), ("b", 3)):
        angles = np.tile(rng.standard_normal((tokens, SIZE // 2)), 2)
        arrays |= {f"cos{x}": np.cos(angles), f"sin{x}": np.sin(angles)}
    lines = []
    for x in "ab":
        lines.append(f"m{x} = MatMul ({x}, p{x})  q{x}, k{x}, v{x} = Split <axis = 2, num_outputs = 3> (m{x})")
        for n in "qkv":
            lines.append(f"s{n}{x} = Reshape ({n}{x}, heads)  r{n}{x} = Transpose <perm = [0, 2, 1, 3]> (s{n}{x})")
        lines += [(norm if n in "qk" else NOTHING).replace("{n}", f"r{n}{x}") for n in "qkv"]
        if x in rotary:
            lines += [ROTARY.replace("{n}", f"r{n}{x}").replace("{x}", x) for n in "qk"]
    for n in "qkv":
        parts = [f"r{n}{x}{'z' if x in rotary and n != 'v' else 'n'}" for x in order]
        lines.append(f"{n} = Concat <axis = {axis}> ({', '.join(parts)})")
    lines.append("kt = Transpose <perm = [0, 1, 3, 2]> (k)  s = MatMul (q, kt)  p = Softmax <axis = -1> (s)")
    lines.append("o = MatMul (p, v)  ot = Transpose <perm = [0, 2, 1, 3]> (o)  y = Reshape (ot, flat)")
    held = "".join(f", float16[{', '.join(map(str, a.shape))}] {name}" for name, a in arrays.items())
    source = graph(
        f"float16[{batch}, 5, {WIDTH}] a, float16[{batch}, 3, {WIDTH}] b" + held, "float16[] y", "\n".join(lines),
        constants=f"int64[4] heads = {{0, 0, {HEADS}, {SIZE}}}, int64[3] flat = {{0, 0, {WIDTH}}}, "
        f"int64[1] last = {{-1}}, int64[1] n0 = {{0}}, int64[1] half = {{{SIZE // 2}}}, int64[1] all = {{{SIZE}}}",
    )  # fmt: skip
    hold(source, arrays, np.float16)
    return source


@pytest.mark.parametrize("order", ["ab", "ba"])
@pytest.mark.parametrize("batch", ["2", "N"])
@pytest.mark.parametrize("norm", [NORM, ROOT, NOTHING], ids=["layer", "root mean square", "no"])
def test_one_kernel_joins_the_heads(norm: str, batch: str, order: str, tmp_path: Path) -> None:
    source = model(norm, order, batch)
    found, done = rewritten(source, tmp_path)
    assert (done.applied["attention"], done.refusals) == (1, ())
    names = Counter(node.op_type for node in found.graph)
    assert names["MultiHeadAttention"] == 1 and not names["Transpose"] and not names["Split"]
    if norm != NOTHING:
        (region,) = (r for r in fuse(found.clone()).regions if r.kind is ROWWISE)
        assert len(region.outputs) == 3 and sum(node.op_type == "Concat" for node in region.nodes) == 3
    rng = np.random.default_rng(1)
    feeds = {x: rng.standard_normal((2, n, WIDTH)).astype(np.float16) for x, n in (("a", 5), ("b", 3))}
    expected = run(source, feeds)[0].astype(np.float32)
    np.testing.assert_allclose(run(found, feeds)[0].astype(np.float32), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("norm", [NORM, ROOT, NOTHING], ids=["layer", "root mean square", "no"])
@pytest.mark.parametrize("rotary", ["ab", "a"])
def test_rotary_embedding_of_streams_is_one(rotary: str, norm: str, tmp_path: Path) -> None:
    source = model(norm, "ba", "N", rotary=rotary)
    found, done = rewritten(source, tmp_path)
    assert (done.applied["attention"], done.refusals) == (1, ())
    along_tokens = [n for n in found.graph if n.op_type == "Concat" and n.attributes.get_int("axis", 0) in (1, 2)]
    assert len(along_tokens) == 3
    halves = sum(node.op_type == "Neg" for node in found.graph)
    assert halves == 2 or done.applied["rotary"] == 2
    rng = np.random.default_rng(1)
    feeds = {x: rng.standard_normal((2, n, WIDTH)).astype(np.float16) for x, n in (("a", 5), ("b", 3))}
    expected = run(source, feeds)[0].astype(np.float32)
    np.testing.assert_allclose(run(found, feeds)[0].astype(np.float32), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("axis", [1, 3])
def test_concats_of_heads_or_of_their_elements_stay(axis: int) -> None:
    source = model(NORM, axis=axis)
    if axis == 1:  # as many tokens of both
        source.graph.inputs[1].shape = source.graph.inputs[0].shape
    assert _applied(source) == 0


def test_work_that_others_read_stays() -> None:
    source = model(NORM)
    value = next(v for node in source.graph for v in node.outputs if v.name == "rqan")
    source.graph.outputs.append(value)
    before = [v.name for v in source.graph.outputs]
    assert _applied(source) == 2  # of keys and values
    assert [v.name for v in source.graph.outputs] == before


def _applied(source: ir.Model) -> int:
    infer(source).write()
    return joined_streams.join(source)
