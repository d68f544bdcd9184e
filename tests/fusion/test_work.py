"""The work of whole graphs, node by node and with regions fused."""

from __future__ import annotations

import numpy as np
import pytest

from onnxopt.fusion import work
from onnxopt.fusion.fuse import fuse
from onnxopt.fusion.work import Work
from onnxopt.kinds import KINDS
from tests.support.graphs import graph, hold

LAYER = "float16[N, 64] x, float16[64, 32] w, float16[32] b", "float16[N, 32] y"
BODY = "p = MatMul(x, w)  s = Add(p, b)  t = Tanh(s)  u = Exp(t)  y = Neg(u)"


def test_each_node_is_a_kernel() -> None:
    model = graph(*LAYER, BODY)
    found = work.model_work(model, {"N": 8})
    assert found is not None
    assert found[0] == Work(2 * (8 * 64 + 64 * 32 + 8 * 32), 2 * 8 * 64 * 32, "float16", 8 * 32)
    assert found[1:] == (Work(2 * (2 * 8 * 32 + 32)), *[Work(2 * 2 * 8 * 32)] * 3)
    assert model.graph.inputs[0].shape is not None
    assert not isinstance(model.graph.inputs[0].shape[0], int)  # it is as it was


def test_a_region_is_one_kernel_at_any_sizes() -> None:
    model = graph(*LAYER, BODY)
    regions = fuse(model, KINDS).regions
    found = work.model_work(model, {"N": 8}, regions)
    assert found is not None
    unfused = work.model_work(model, {"N": 8})
    assert unfused is not None
    assert len(found) < len(unfused) and sum(w.bytes for w in found) < sum(w.bytes for w in unfused)
    assert sum(w.flops for w in found) == 2 * 8 * 64 * 32
    for works, fused in ((found, regions), (unfused, ())):
        assert sum(w.launches for w in works) == work.launches(model, fused, work.shapes_at(model, {"N": 8}))
    twice = work.model_work(model, {"N": 16}, regions)
    assert twice is not None and sum(w.flops for w in twice) == 2 * 16 * 64 * 32


@pytest.mark.parametrize(("past", "keys"), [("", 6), (", , , , kp, vp", 10)])
def test_attention_multiplies_each_query_with_each_key(past: str, keys: int) -> None:
    inputs = "float16[2, 5, 64] q, float16[2, 6, 64] k, float16[2, 6, 64] v"
    caches = ", float16[2, 4, 4, 16] kp, float16[2, 4, 4, 16] vp" if past else ""
    body = (
        f"y, a, b = com.microsoft.MultiHeadAttention<num_heads = 4>(q, k, v{past})"
        if past
        else ("y = com.microsoft.MultiHeadAttention<num_heads = 4>(q, k, v)")
    )
    ends = "float16[2, 5, 64] y" + (", float16[2, 4, 10, 16] a, float16[2, 4, 10, 16] b" if past else "")
    (found,) = work.model_work(graph(inputs + caches, ends, body, contrib=True), {}) or ()
    assert found.flops == 2 * 2 * (2 * 5 * 64) * keys
    assert found.dtype == "float16"


def test_views_and_shapes_cost_nothing() -> None:
    body = "s = Shape(x)  r = Reshape(x, s)  y = Neg(r)"
    assert work.model_work(graph("float[4, 8] x", "float[4, 8] y", body), {}) == (Work(2 * 4 * 4 * 8),)


def test_what_cannot_be_counted_is_said() -> None:
    assert work.model_work(graph("float[4, 8] x", "int64[2, K] y", "y = NonZero(x)"), {}) is None
    then, otherwise = "a () => (float[4] t) { t = Neg(x) }", "b () => (float[4] e) { e = Abs(x) }"
    branches = f"y = If(c) <then_branch = {then}, else_branch = {otherwise}>"
    assert work.model_work(graph("bool c, float[4] x", "float[4] y", branches), {}) is None


ATTENTION = "k = Transpose<perm = [0, 2, 1]>(x)  s = MatMul(x, k)  t = Mul(s, c)  p = Softmax(t)  a = MatMul(p, x)"


@pytest.mark.parametrize(
    ("body", "groups"),
    [
        (ATTENTION + "  y = Relu(a)", ["layout changes", *["attention"] * 4, "elementwise"]),
        ("p = Softmax(x)  k = Mul(p, c)  a = MatMul(k, w)  y = Relu(a)",
         ["norms and softmax", "elementwise", "products", "elementwise"]),
        ("s = MatMul(x, w)  p = Softmax(s)  y = LpNormalization(p)",
         ["products", "norms and softmax", "norms and softmax"]),
        ("s = Conv(x, v)  m = ReduceMean<keepdims = 1>(s)  y = GlobalMaxPool(m)",
         ["convolutions", "norms and softmax", "other"]),
    ],
)  # fmt: skip
def test_groups_by_operator_and_attention_by_its_products(body: str, groups: list[str]) -> None:
    model = graph("float[2, 8, 8] x, float[1] c, float[8, 8] w, float[8, 8, 1] v", "float[2, M, N] y", body)
    hold(model, {"w": np.ones((8, 8)), "v": np.ones((8, 8, 1))}, np.float32)
    found = work.model_work(model, {"M": 8, "N": 8})
    assert found is not None and [w.group for w in found] == groups


def test_a_region_has_the_first_group_of_its_nodes() -> None:
    model = graph(*LAYER, BODY)
    found = work.model_work(model, {"N": 8}, fuse(model, KINDS).regions)
    assert found is not None
    assert {(w.group, w.node) for w in found} == {("products", "p"), ("elementwise", "")}
    unfused = work.model_work(model, {"N": 8})
    assert unfused is not None and [w.node for w in unfused] == [node.name for node in model.graph]
