"""Fusing: which nodes come together, which stay apart and why, and that the graph of the groups has no cycle."""

from __future__ import annotations

import graphlib

import onnx_ir as ir
import pytest
from hypothesis import given, settings

from cases.models import fuse
from onnxopt.fusion import cost, eligibility
from onnxopt.fusion.context import Context
from onnxopt.fusion.region import FusionPlan
from tests.support.graphs import graph, random_bodies, random_model

X, Y = "float[N, 8] x", "float[N, 8] y"
WEIGHT = "float[8, 8] w"


def _groups(plan: FusionPlan) -> list[str]:
    return [" ".join(str(n.name) for n in r.nodes) for r in plan.regions]


def _reason(plan: FusionPlan, node: str, neighbour: str) -> str:
    (reason,) = {r.reason for r in plan.refusals if (r.node, r.neighbour) == (node, neighbour)}
    return reason


@pytest.mark.parametrize(
    ("inputs", "outputs", "body", "groups", "read", "written"),
    [
        (X, Y, "a = Tanh(x)  y = Exp(a)", ["a y"], ["x"], ["y"]),
        (X, Y, "a = Tanh(x)  b = Exp(a)  c = Neg(a)  y = Add(b, c)", ["a b c y"], ["x"], ["y"]),  # a diamond
        (X, Y + ", float[N, 8] z", "y = Tanh(x)  z = Exp(y)", ["y z"], ["x"], ["y", "z"]),
        (X, Y, "a = Tanh(x)  b = Exp(a)  m = Hardmax(a)  y = Add(m, b)", ["a b"], ["x"], ["a", "b"]),
        (X + ", float[8] q", Y, "a = Add(x, q)  y = Mul(a, three)", ["a y"], ["x", "q"], ["y"]),
        (X, Y, "a = Tanh(x)  b = Exp(x)  y = Add(a, b)", ["a b y"], ["x"], ["y"]),
        (X, Y, "y = Tanh(x)", [], [], []),
        (X, Y, "a = Tanh(x)  m = MatMul(a, w)  y = Tanh(m)", [], [], []),
        ("float[] x", "float[] y", "a = Tanh(x)  y = Exp(a)", ["a y"], ["x"], ["y"]),  # not even the rank is known
    ],
)
def test_what_is_fused(
    inputs: str, outputs: str, body: str, groups: list[str], read: list[str], written: list[str]
) -> None:
    plan = fuse(graph(inputs, outputs, body, constants=f"{WEIGHT} = {{{', '.join(['1'] * 64)}}}, float three = {{3}}"))
    assert _groups(plan) == groups
    assert [v.name for r in plan.regions for v in r.inputs] == read
    assert [v.name for r in plan.regions for v in r.outputs] == written


def test_a_residual_around_another_operator_stays_apart() -> None:
    plan = fuse(graph(X, Y, "a = Tanh(x)  m = Hardmax(a)  y = Add(a, m)"))
    assert _groups(plan) == []
    assert _reason(plan, "y", "a") == (
        "`a` also reaches Add through a node outside the kernel, so fusing would make a cycle"
    )


def test_a_residual_around_another_group_stays_apart() -> None:
    """c does not depend on p's Hardmax by any path of nodes, only because g2 is in one kernel with g1."""
    body = "p = Tanh(x)  m = Hardmax(p)  h = Tanh(z)  g1 = Add(h, m)  g2 = Exp(h)  y = Mul(p, g2)"
    plan = fuse(graph(f"{X}, float[N, 8] z, {WEIGHT}", f"{Y}, float[N, 8] g1", body))
    assert _groups(plan) == ["h g1 g2 y"]
    assert "fusing would make a cycle" in _reason(plan, "y", "p")


@pytest.mark.parametrize(
    ("producer", "outputs", "fused", "reason"),
    [
        ("s = Neg(q)", Y, True, None),
        ("s = Sigmoid(q)", Y, True, None),  # a gate
        ("s = Erf(q)", Y, False, "Erf would be recomputed for every element that `s` is broadcast to"),
        ("s = Neg(q)", f"{Y}, float[8] s", False, "its shape [8] differs from the kernel's [N, 8]"),
        ("s = Neg(q)  t = Hardmax(s)", f"{Y}, float[8] t", False, "`s` is read outside the kernel too"),
    ],
)
def test_a_producer_that_is_broadcast(producer: str, outputs: str, fused: bool, reason: str | None) -> None:
    plan = fuse(graph(f"{X}, float[8] q", outputs, f"{producer}  y = Add(x, s)"))
    assert _groups(plan) == (["s y"] if fused else [])
    assert not plan.refusals if reason is None else reason in _reason(plan, "y", "s")


def test_at_most_so_many_operands() -> None:
    count = cost.MAX_OPERANDS + 4
    inputs = ", ".join(f"float[N, 8] x{k}" for k in range(count))
    body = "v1 = Add(x0, x1) " + " ".join(f"v{k} = Add(v{k - 1}, x{k})" for k in range(2, count))
    plan = fuse(graph(inputs, f"float[N, 8] v{count - 1}", body))
    assert len(plan.regions[0].inputs) + len(plan.regions[0].outputs) == cost.MAX_OPERANDS
    first_apart = cost.MAX_OPERANDS - 1
    assert "17 tensors; the limit is 16" in _reason(plan, f"v{first_apart}", f"v{first_apart - 1}")


def test_at_most_so_much_work() -> None:
    body = "v0 = Pow(x, e) " + " ".join(f"v{k} = Pow(v{k - 1}, e)" for k in range(1, 20))
    plan = fuse(graph(f"{X}, float e", "float[N, 8] v19", body))
    assert len(plan.regions[0].nodes) == cost.MAX_COST // 40
    assert "too many registers" in plan.refusals[0].reason


def test_a_long_chain_is_cut_into_kernels() -> None:
    body = "v0 = Neg(x) " + " ".join(f"v{k} = {('Neg', 'Abs')[k % 2]}(v{k - 1})" for k in range(1, 500))
    plan = fuse(graph(X, "float[N, 8] v499", body))
    sizes = [len(r.nodes) for r in plan.regions]
    assert sum(sizes) == 500 and sizes[:-1] == [cost.MAX_NODES] * 7
    assert len(plan.refusals) == len(sizes) - 1


def test_nothing_is_lowered_that_has_no_program() -> None:
    """Where of a float condition is a mistake that ONNX Runtime reports, not onnxopt."""
    plan = fuse(graph(X, Y, "a = Tanh(x)  b = Where(c, a, a)  y = Exp(b)", constants="float c = {1}"))
    assert _groups(plan) == []
    assert _reason(plan, "b", "a").startswith("Where cannot be compiled into a kernel: instruction 1 (select): takes")


def test_dtypes_that_do_not_go_with_the_attributes_are_refused() -> None:
    """Mod of floats needs fmod=1; a model without is a mistake too."""
    plan = fuse(graph(X, Y, "a = Tanh(x)  b = Mod(a, a)  y = Exp(b)"))
    assert _groups(plan) == []
    assert _reason(plan, "b", "a") == "The operator table has no Mod of float32 with these attributes (`a`)"


BRANCHES = (
    "a = Tanh(x)  b = Exp(a)  y = If (c) <"
    "then_branch = t () => (float[N, 8] p) { d = Neg(a)  p = Mul(d, x) }, "
    "else_branch = e () => (float[N, 8] q) { q = Hardmax(b) }>"
)


def test_bodies_are_fused_inside_and_captured_values_are_kept() -> None:
    plan = fuse(graph(f"{X}, bool c", Y, BRANCHES))
    assert _groups(plan) == ["a b", "d p"]
    outer, inner = plan.regions
    assert [v.name for v in outer.outputs] == ["a", "b"]
    assert [v.name for v in inner.inputs] == ["a", "x"]


def test_a_path_through_a_body_counts_as_a_path() -> None:
    """a reaches y through the If that captures it, so a and y cannot be one kernel."""
    body = (
        "a = Tanh(x)  i = If (c) <then_branch = t () => (float[N, 8] p) { p = Hardmax(a) }, "
        "else_branch = e () => (float[N, 8] q) { q = Identity(x) }>  y = Add(i, a)"
    )
    plan = fuse(graph(f"{X}, bool c", Y, body))
    assert _groups(plan) == []
    assert "fusing would make a cycle" in _reason(plan, "y", "a")


@pytest.mark.parametrize(
    ("inputs", "body", "before", "after"),
    [
        ("float[4, 8] x", "a = Tanh(x)  y = Exp(a)", 4 * 128, 2 * 128),
        ("float[4, 8] x, float[8] q", "a = Add(x, q)  y = Exp(a)", 4 * 128 + 32, 2 * 128 + 32),
        ("float[N, 8] x", "a = Tanh(x)  y = Exp(a)", None, None),
    ],
)
def test_traffic(inputs: str, body: str, before: int | None, after: int | None) -> None:
    (region,) = fuse(graph(inputs, "float[] y", body)).regions
    assert (region.traffic.bytes_before, region.traffic.bytes_after) == (before, after)
    assert (region.traffic.launches_before, region.traffic.launches_after) == (2, 1)


def _unfused_edges(model: ir.Model, plan: FusionPlan) -> set[tuple[str, str]]:
    group = {n: k for k, r in enumerate(plan.regions) for n in r.nodes}
    edges = [(v.producer(), n) for n in model.graph for v in n.inputs if v is not None and v.producer() is not None]
    return {
        (str(a.name), str(b.name))
        for a, b in edges
        if eligibility.is_elementwise(a) and eligibility.is_elementwise(b) and group.get(a, a) != group.get(b, b)
    }


@settings(max_examples=60, deadline=None, derandomize=True)
@given(random_bodies())
def test_random_graphs(drawn: tuple[str, str]) -> None:
    model = random_model(*drawn)
    before = [n.name for n in model.graph]
    plan = fuse(model)
    assert [n.name for n in model.graph] == before
    fused = [n for r in plan.regions for n in r.nodes]
    assert len(fused) == len(set(fused)), "a node is in two regions"
    group = {n: k for k, r in enumerate(plan.regions) for n in r.nodes}
    depends: dict[object, set[object]] = {}
    for n in model.graph:
        producers = [v.producer() for v in n.inputs if v is not None and v.producer() is not None]
        depends.setdefault(group.get(n, n), set()).update(group.get(p, p) for p in producers)
    for one, others in depends.items():
        others.discard(one)
    list(graphlib.TopologicalSorter(depends).static_order())  # raises CycleError
    for region in plan.regions:
        region.verify()
        assert all(plan.shapes.same(region.outputs[0], o) for o in region.outputs)
    explained = {(r.neighbour, r.node) for r in plan.refusals} | {(r.node, r.neighbour) for r in plan.refusals}
    assert _unfused_edges(model, plan) <= explained


TINY = "a = Tanh(x)  b = Exp(a)  c = Neg(z)  d = Sqrt(c)"


@pytest.mark.parametrize(
    ("dims", "body", "groups"),
    [
        ("8, 64", TINY, ["a b c d"]),
        ("8, 65536", TINY, ["a b", "c d"]),  # 2 MB each: two kernels fill a GPU as one does
        ("N, 64", TINY, ["a b", "c d"]),  # of any size
        # one kernel later: it would wait for what it does not need
        ("8, 64", "a = Tanh(x)  b = Exp(a)  e = Hardmax(z)  c = Neg(e)  d = Sqrt(c)", ["a b", "c d"]),
        ("8, 64", "a = Tanh(x)  b = Exp(a)  e = Hardmax(b)  c = Add(e, z)  d = Sqrt(c)", ["a b", "c d"]),
        ("8, 64", "a = Tanh(x)  b = Exp(a)  d = Neg(z)", ["a b"]),  # a single operator stays the provider's
    ],
)
def test_tiny_independent_groups_are_one_kernel(dims: str, body: str, groups: list[str]) -> None:
    plan = fuse(graph(f"float[{dims}] x, float[{dims}] z", f"float[{dims}] b, float[{dims}] d", body))
    assert _groups(plan) == groups


def test_tiny_groups_of_other_shapes_stay_apart() -> None:
    plan = fuse(graph("float[8, 64] x, float[64] z", "float[8, 64] b, float[64] d", TINY))
    assert _groups(plan) == ["a b", "c d"]


def test_a_kind_whose_region_takes_a_node_of_another_one_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    model = graph(X, Y, "a = Tanh(x)  b = Exp(a)  s = Softmax(b)  y = Neg(s)")
    monkeypatch.setattr(Context, "is_owned", lambda *_: False)
    with pytest.raises(ValueError, match="is in a region of the kind rowwise and in one of pointwise"):
        fuse(model)
