"""Norms and scales of heads around attention's first product, as attention of cosines has them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from cases.models import fuse
from onnxopt.graph.rewrite import schedule
from onnxopt.graph.rewrite.attention import head_norms, near_misses
from onnxopt.graph.shapes.infer import InferShapesPass
from onnxopt.kinds.flash_attention.kind import FLASH_ATTENTION
from onnxopt.kinds.rowwise.kind import ROWWISE
from tests.support.attention.attention_graphs import HEADS, SIZE, WIDTH, ops, rewritten
from tests.support.graphs import graph, hold, run

L2 = "{n}2 = ReduceL2 <keepdims = 1> ({n}, last) {n}c = Clip ({n}2, least) {n}n = Div ({n}, {n}c)"
ROOT = "{n}2 = Mul ({n}, {n}) {n}3 = ReduceMean <keepdims = 1> ({n}2, last) {n}4 = Sqrt ({n}3) {n}n = Div ({n}, {n}4)"
LAYER = "{n}n = LayerNormalization <axis = -1> ({n}, weight)"
OF_HEADS = "{n}f = Mul ({n}, of_heads) " + L2.replace("({n},", "({n}f,")
SCALED = "s = MatMul (qn, kt) m = Mul (s, scales) p = Softmax <axis = -1> (m)"
PLAIN = "s = MatMul (qn, kt) p = Softmax <axis = -1> (s)"
SCALES = np.array([3.0, -0.25]).reshape(HEADS, 1, 1)


def model(norm: str, scores: str, scales: np.ndarray = SCALES, dims: str = "batch, length") -> ir.Model:
    """Self-attention whose queries and keys (B, N, S, H) are normalized behind their Transpose."""
    rng = np.random.default_rng(0)
    arrays = {f"w{n}": rng.standard_normal((WIDTH, WIDTH)) * 0.5 for n in "qkv"}
    arrays |= {"scales": scales, "weight": rng.uniform(0.5, 1.5, SIZE), "of_heads": rng.uniform(0.5, 1.5, (2, 1, 8))}
    arrays |= {"least": np.array(1e-4), "big": np.array(2000.0)}
    held = "".join(f", float16{[*a.shape] if a.shape else ''} {name}" for name, a in arrays.items())
    lines = [
        f"{n}m = MatMul (x, w{n}) {n}r = Reshape ({n}m, heads) {n} = Transpose <perm = [0, 2, 1, 3]> ({n}r)"
        for n in "qkv"
    ]
    lines += [norm.replace("{n}", n) for n in "qk"]
    lines += ["kt = Transpose <perm = [0, 1, 3, 2]> (kn)", scores, "a = MatMul (p, v)"]
    lines.append("at = Transpose <perm = [0, 2, 1, 3]> (a)  y = Reshape (at, flat)")
    source = graph(
        f"float16[{dims}, {WIDTH}] x" + held, f"float16[{dims}, {WIDTH}] y", "\n".join(lines),
        constants=f"int64[4] heads = {{0, -1, {HEADS}, {SIZE}}}, int64[3] flat = {{0, -1, {WIDTH}}}, "
        "int64[1] last = {-1}, int64[1] tokens = {2}",
    )  # fmt: skip
    hold(source, arrays, np.float16)
    return source


@pytest.mark.parametrize("dims", ["batch, length", "4, 6"])
@pytest.mark.parametrize("scores", [SCALED, PLAIN], ids=["scales", "no scales"])
@pytest.mark.parametrize("norm", [L2, ROOT, LAYER, OF_HEADS], ids=["L2", "root mean square", "layer", "factors"])
def test_norms_of_heads_are_one_kernel_in_front_of_the_attention(
    norm: str, scores: str, dims: str, tmp_path: Path
) -> None:
    source = model(norm, scores, dims=dims)
    found, done = rewritten(source, tmp_path, usual={"length": 6})
    assert (done.applied["attention"], done.refusals) == (1, ())
    assert not {"Softmax", "Transpose"} & set(ops(found))
    for batch, length in ((4, 6), (1, 1), (2, 17))[: 1 if dims == "4, 6" else 3]:
        x = np.random.default_rng(length).standard_normal((batch, length, WIDTH)).astype(np.float16)
        (one,), (other,) = run(found, {"x": x}), run(source, {"x": x})
        np.testing.assert_allclose(one.astype(np.float32), other.astype(np.float32), rtol=8e-3, atol=8e-3)
    plan = fuse(found, usual={"length": 6})
    (attention,) = (region for region in plan.regions if region.kind is FLASH_ATTENTION)
    (row,) = (region for region in plan.regions if region.kind is ROWWISE)
    assert {value.producer() for value in attention.inputs} >= {row.outputs[0].producer()}
    assert ops(found).count("MatMul") == 1
    inside = {node for region in plan.regions for node in region.nodes}
    assert {node.op_type for node in found.graph if node not in inside} <= {"MatMul", "Reshape"}


def test_norms_of_queries_and_keys_may_read_one_constant(tmp_path: Path) -> None:
    """An initializer with a factor for each head, upstream of both Transposes: the joined norm has it twice."""
    source = model(OF_HEADS, PLAIN)
    shared = source.clone()
    InferShapesPass()(shared)
    assert head_norms.bring_to_products(shared) == 2
    schedule.clean_up(shared)
    factors = [n.inputs[1] for n in shared.graph if n.op_type == "Mul"]
    assert len(factors) == 2 and factors[0] is factors[1]
    found, _ = rewritten(shared, tmp_path, usual={"length": 6})
    assert ops(found).count("ReduceL2") == 1
    x = np.random.default_rng(0).standard_normal((2, 5, WIDTH)).astype(np.float16)
    (one,), (other,) = run(found, {"x": x}), run(source, {"x": x})
    np.testing.assert_allclose(one.astype(np.float32), other.astype(np.float32), rtol=8e-3, atol=8e-3)


@pytest.mark.parametrize(
    ("scales", "changed"),
    [
        (SCALES, True),
        (np.zeros((HEADS, 1, 1)), False),  # no head has a score
        (np.array([np.inf, 1.0]).reshape(HEADS, 1, 1), False),
        (np.array([2.0]).reshape(1, 1, 1), False),  # attention takes one factor of all heads
        (np.ones((1, HEADS)), False),  # a factor of each key
    ],
    ids=["scales", "zeros", "an infinity", "one scale", "of keys"],
)  # fmt: skip
def test_which_scales_go_to_the_queries(scales: np.ndarray, changed: bool) -> None:
    source = model("{n}n = Identity ({n})", SCALED, scales, dims="2, 2")
    InferShapesPass()(source)
    assert bool(head_norms.bring_to_products(source)) == changed
    assert [n.op_type for n in source.graph].count("Mul") == 1 + changed


@pytest.mark.parametrize("dtype", ["float16", "float"])
def test_a_scale_of_each_head_behind_norms_that_stay(dtype: str, tmp_path: Path) -> None:
    """As where q, k and v are parts of one Transpose of five dims (timm, torchvision): attention all the same."""
    turns = (
        "{n}5 = Transpose <perm = [0, 1, 3, 2]> ({n}) {n}6 = Neg ({n}5) {n}n = Transpose <perm = [0, 1, 3, 2]> ({n}6)"
    )
    source = model(turns, SCALED)
    if dtype == "float":
        for value in [*source.graph.inputs, *source.graph.outputs, *source.graph.initializers.values()]:
            if value.dtype == ir.DataType.FLOAT16:
                value.dtype = ir.DataType.FLOAT
                array = None if value.const_value is None else value.const_value.numpy().astype(np.float32)
                value.const_value = None if array is None else ir.tensor(array, name=value.name)
    found, done = rewritten(source, tmp_path)
    assert (done.applied["attention"], done.refusals) == (1, ())
    x = np.random.default_rng(0).standard_normal((2, 5, WIDTH)).astype(np.float16 if dtype == "float16" else np.float32)
    (one,), (other,) = run(found, {"x": x}), run(source, {"x": x})
    np.testing.assert_allclose(one.astype(np.float32), other.astype(np.float32), rtol=8e-3, atol=8e-3)


def test_a_small_scale_beside_a_large_one_overflows_nothing(tmp_path: Path) -> None:
    source = model(L2.replace("Div ({n}, {n}c)", "Mul ({n}, big)"), SCALED, np.array([100.0, 1e-3]).reshape(2, 1, 1))
    found, _ = rewritten(source, tmp_path)
    x = (np.random.default_rng(0).standard_normal((1, 5, WIDTH)) * 1e-2).astype(np.float16)
    assert np.isfinite(run(found, {"x": x})[0]).all()


@pytest.mark.parametrize(
    "norm",
    [
        L2.replace("last", "tokens"),  # not along heads
        L2 + " {n}o = Identity ({n}2)",  # the norms are an output too
        "{n}5 = Transpose <perm = [0, 1, 3, 2]> ({n}r) {n}6 = Transpose <perm = [0, 3, 1, 2]> ({n}5)"
        " {n}2 = ReduceL2 <keepdims = 1> ({n}6, last) {n}n = Div ({n}, {n}2)",
    ],
    ids=["along tokens", "another reader", "two Transposes"],
)
def test_what_stays(norm: str) -> None:
    source = model(norm, PLAIN, dims="2, 2")
    for node in source.graph:
        if node.name in ("qo", "ko"):
            source.graph.outputs.append(node.outputs[0])
    InferShapesPass()(source)
    assert near_misses.softmaxes(source.graph)
    before = ops(source)
    assert not head_norms.bring_to_products(source)
    assert ops(source) == before


def test_norms_with_other_operators_stay_two_kernels(tmp_path: Path) -> None:
    source = model(L2, PLAIN)
    for node in source.graph:
        if node.name == "k2":
            node.op_type = "ReduceL1"
    found, _ = rewritten(source, tmp_path, usual={"length": 6})
    assert "Softmax" not in ops(found)
    assert {"ReduceL1", "ReduceL2"} <= set(ops(found))
