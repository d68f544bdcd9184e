"""Attention in 16 bits whose heads are prepared by kernels of ours: caches, rotary embedding, groups, one product."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from onnxscript.rewriter import MatchingTracer

from cases.models import fuse
from onnxopt.graph.rewrite import FAMILIES, to_portable
from onnxopt.graph.rewrite.attention import grouped_heads
from onnxopt.graph.rewrite.attention.cached import CachedGroupQuery
from onnxopt.graph.rewrite.schedule import Phase, Rewriting, Step
from onnxopt.graph.rewrite.table import TABLE
from onnxopt.graph.shapes.infer import InferShapesPass
from onnxopt.kinds.flash_attention.kind import FLASH_ATTENTION
from onnxopt.kinds.pointwise.kind import POINTWISE
from tests.support import graphs
from tests.support.attention.attention_graphs import ops, rewritten

HEADS, GROUPS, SIZE, WIDTH = 4, 2, 8, 16
_HALF = SIZE // 2
_CONSTANTS = (
    f"int64[4] hq = {{0, 0, {HEADS}, {SIZE}}}, int64[4] hk = {{0, 0, {GROUPS}, {SIZE}}}, "
    f"int64[3] flat = {{0, 0, {HEADS * SIZE}}}, int64[1] two = {{2}}, int64[1] zero = {{0}}, int64[1] three = {{3}}, "
    f"int64[1] half = {{{_HALF}}}, int64[1] whole = {{{SIZE}}}, int64[1] one = {{1}}, "
    f"int64[5] groups = {{1, 1, {HEADS // GROUPS}, 1, 1}}, int64[4] every = {{0, {HEADS}, -1, {SIZE}}}"
)
_ROTARY = """
  {x}1 = Slice({x}, zero, half, three, one)  {x}2 = Slice({x}, half, whole, three, one)
  {x}n = Neg({x}2)  {x}c = Concat<axis = -1>({x}n, {x}1)
  {x}a = Mul({x}, cos)  {x}b = Mul({x}c, sin)  {x}r = Add({x}a, {x}b)
"""
_REPEAT = "{x}u = Unsqueeze({x}, two) {x}e = Expand({x}u, groups) {x}g = Reshape({x}e, every)"


def constants(model: ir.Model, arrays: dict[str, np.ndarray]) -> ir.Model:
    """The inputs of these names become constants: onnx's text has no literals of float16."""
    for value in [v for v in model.graph.inputs if v.name in arrays]:
        model.graph.inputs.remove(value)
        value.const_value = ir.tensor(arrays[str(value.name)].astype(np.float16), name=value.name)
        model.graph.register_initializer(value)
    InferShapesPass()(model)
    return model


def attention(tokens: str, cache: bool, *, axis: int = 2, rotary: bool = True, groups: bool = True) -> ir.Model:
    """Grouped attention of x (batch, tokens, 16), behind a cache of `past` tokens or alone and causal."""
    heads_k = "hk" if groups else "hq"
    kv = GROUPS if groups else HEADS
    lines = [f"{n}m = MatMul(x, w{n}) {n}s = Reshape({n}m, {h}) {n} = Transpose<perm = [0, 2, 1, 3]>({n}s)"
             for n, h in (("q", "hq"), ("k", heads_k), ("v", heads_k))]  # fmt: skip
    names = {"q": "q", "k": "k", "v": "v"}
    if rotary:
        lines += [_ROTARY.format(x=n) for n in "qk"]
        names |= {"q": "qr", "k": "kr"}
    if cache:
        lines += [f"p{n} = Concat<axis = {axis}>(past_{n}, {names[n]})" for n in "kv"]
        names |= {"k": "pk", "v": "pv"}
    if groups:
        lines += [_REPEAT.format(x=names[n]) for n in "kv"]
        names |= {n: f"{names[n]}g" for n in "kv"}
    lines.append(f"kt = Transpose<perm = [0, 1, 3, 2]>({names['k']}) s0 = MatMul({names['q']}, kt) s = Mul(s0, scale)")
    masked = "s" if cache else "ms"
    lines.append("" if cache else "ms = Add(s, mask)")
    lines.append(f"p = Softmax<axis = -1>({masked}) a = MatMul(p, {names['v']})")
    lines.append("at = Transpose<perm = [0, 2, 1, 3]>(a)  y = Reshape(at, flat)")
    outputs = "float16[] y"
    inputs = f"float16[batch, {tokens}, {WIDTH}] x"
    if cache:
        inputs += "".join(f", float16[batch, {kv}, past, {SIZE}] past_{n}" for n in "kv")
        outputs += ", float16[] pk, float16[] pv"
    rng = np.random.default_rng(0)
    arrays = {f"w{n}": rng.standard_normal((WIDTH, m * SIZE)) * 0.3 for n, m in (("q", HEADS), ("k", kv), ("v", kv))}
    arrays["scale"] = np.array(0.25)
    if rotary:
        lines.insert(0, "cos = Concat<axis = -1>(c0, c0) sin = Concat<axis = -1>(s1, s1)")
        angles = rng.standard_normal((1, 1, int(tokens), _HALF))
        arrays |= {"c0": np.cos(angles), "s1": np.sin(angles)}
    if not cache:
        arrays["mask"] = np.where(np.tri(int(tokens)), 0, -60000)
    inputs += "".join(f", float16[{', '.join(map(str, a.shape))}] {name}" for name, a in arrays.items())
    return constants(graphs.graph(inputs.replace("[]", ""), outputs, " ".join(lines), constants=_CONSTANTS), arrays)


def feeds(model: ir.Model, **sizes: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    found = {}
    for value in model.graph.inputs:
        assert value.shape is not None
        dims = [d if isinstance(d, int) else sizes[str(d.value)] for d in value.shape]
        found[str(value.name)] = rng.standard_normal(dims).astype(np.float16)
    return found


def agree(source: ir.Model, found: ir.Model, *sizes: dict[str, int]) -> None:
    for size in sizes:
        given = feeds(source, **size)
        for expected, result in zip(graphs.run(source, given), graphs.run(found, given), strict=True):
            assert result.shape == expected.shape
            np.testing.assert_allclose(result, expected, atol=4e-3, rtol=4e-3)


_CACHES = ({"batch": 2, "past": 5}, {"batch": 1, "past": 0}, {"batch": 3, "past": 17})


@pytest.mark.parametrize("groups", [True, False])
@pytest.mark.parametrize("axis", [2, -2])
def test_one_token_behind_a_cache(axis: int, groups: bool, tmp_path: Path) -> None:
    source = attention("1", True, axis=axis, groups=groups)
    found, done = rewritten(source, tmp_path)
    assert done.applied["attention"] == done.applied["merge"] == 1
    assert [op for op in ops(found) if op in ("MatMul", "GroupQueryAttention", "Expand", "Softmax")] in (
        ["MatMul", "GroupQueryAttention"],
        ["Expand", "MatMul", "GroupQueryAttention"],  # of the length, by the batch
        ["MatMul", "Expand", "GroupQueryAttention"],
    )
    assert [o.name for o in found.graph.outputs] == [o.name for o in source.graph.outputs]
    agree(source, found, *_CACHES)
    to_portable(found)
    assert {node.domain for node in found.graph} == {""}
    agree(source, found, *_CACHES)


def test_a_cache_without_rotary_embedding(tmp_path: Path) -> None:
    source = attention("1", True, rotary=False)
    found, done = rewritten(source, tmp_path)
    assert "GroupQueryAttention" in ops(found)
    assert done.applied["merge"] == 1
    agree(source, found, *_CACHES)


def test_several_tokens_behind_a_cache_are_refused(tmp_path: Path) -> None:
    """They would have to be causal among themselves, which this attention is not."""
    source = attention("3", True)
    found, _ = rewritten(source, tmp_path)
    assert "GroupQueryAttention" not in ops(found)
    agree(source, found, *_CACHES)
    again = attention("3", True)
    upto = next(i for i, phase in enumerate(TABLE) if phase.name == "map")
    grouped = Phase("grouped", "", (Step((), grouped_heads.RULES),))
    Rewriting(again, FAMILIES, tmp_path).run((*TABLE[:upto], grouped))
    tracer, rule = MatchingTracer(), CachedGroupQuery.rule()
    sdpa = next(n for n in again.graph if n.op_type == "Sdpa")
    assert not rule.match(again, again.graph, sdpa, tracer=tracer)
    assert "more than one token" in tracer.best_matches_map[rule][0].match_result.reason


@pytest.mark.parametrize("groups", [True, False])
def test_heads_are_rotated_once_and_never_repeated(groups: bool, tmp_path: Path) -> None:
    """Slices of one product and their rotary embedding are kernels whose outputs attention reads.

    Values stay where they are, and heads that are shared are not repeated: the attention's kernel reads them there.
    """
    source = attention("6", False, groups=groups)
    found, done = rewritten(source, tmp_path)
    assert done.applied["merge"] == done.applied["attention"] == 1
    assert ops(found).count("MultiHeadAttention") == 1
    assert "Transpose" not in ops(found)
    agree(source, found, {"batch": 2}, {"batch": 1})
    InferShapesPass()(found)
    regions = fuse(found).regions
    rotating = [r for r in regions if r.kind is POINTWISE]
    assert [len(r.outputs) for r in rotating] == ([1, 1] if groups else [2])  # sizes of q and k differ, or do not
    assert not any(n.op_type == "Expand" for r in rotating for n in r.nodes)
    (attends,) = [r for r in regions if r.kind is FLASH_ATTENTION]
    assert {n.op_type for n in attends.nodes} >= ({"Slice", "Expand"} if groups else {"Slice"})


def test_groups_without_rotary_embedding(tmp_path: Path) -> None:
    source = attention("6", False, rotary=False)
    found, done = rewritten(source, tmp_path)
    assert done.applied["merge"] == 1
    assert "Transpose" not in ops(found)
    agree(source, found, {"batch": 2})
