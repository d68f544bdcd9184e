"""Outlining: equal regions share a function, the model keeps its interface, and plain ONNX Runtime runs it."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings

from cases.models import fuse, outline
from onnxopt.fusion import outline as outlining
from onnxopt.fusion.outline import inline, move
from onnxopt.fusion.region import Kernel
from onnxopt.graph.fused_domain import BARE
from tests.support.graphs import graph, random_bodies, random_model, run

X, Y = "float[N, 8] x", "float[N, 8] y"
CHAIN = "a = Tanh(x)  y = Mul(a, c)"


def _outlined(model: ir.Model) -> tuple[Kernel, ...]:
    return outline(model, fuse(model))


def _name(
    inputs: str = X, outputs: str = Y, body: str = CHAIN, constants: str = "float c = {3}", opset: int = 20
) -> str:
    (kernel,) = _outlined(graph(inputs, outputs, body, constants=constants, opset=opset))
    return kernel.name


def _calls(model: ir.Model) -> list[str]:
    return [n.op_type for g in model.graphs() for n in g if n.domain == BARE]


def _ops(model: ir.Model) -> list[str]:
    return [n.op_type for g in model.graphs() for n in g if n.op_type != "Constant"]


def test_equal_regions_share_a_function() -> None:
    body = "a = Tanh(x)  b = Mul(a, c)  m = Hardmax(b)  d = Tanh(m)  y = Mul(d, e)"
    model = graph(X, Y, body, constants="float c = {3}, float e = {3}")
    (kernel,) = _outlined(model)
    assert _calls(model) == [kernel.name, kernel.name]
    assert list(model.functions) == [(BARE, kernel.name, "")]
    assert [s.replaced for s in kernel.sites] == [("a", "b"), ("d", "y")]
    assert [s.shapes for s in kernel.sites] == [("float32[N,8]", "float32[N,8]")] * 2
    assert {s.node for s in kernel.sites} == {n.name for n in model.graph if n.domain == BARE}
    assert model.opset_imports[BARE] == 1


def test_the_name_says_what_it_does() -> None:
    assert _name().startswith("TanhMul_")
    assert _name(body="a = Tanh(x) b = Exp(a) d = Neg(b) e = Abs(d) f = Sin(e) y = Cos(f)").startswith(
        "TanhExpNegAbsAnd2More_"
    )


@pytest.mark.parametrize(
    "change",
    [
        {"constants": "float c = {4}"},
        {"constants": "float[1] c = {3}"},
        {"inputs": "double[N, 8] x", "outputs": "double[N, 8] y", "constants": "double c = {3}"},
        {"body": "a = Tanh(x)  y = Mul(c, a)"},
        {"body": "a = Tanh(x)  y = Mul(a, x)"},
        {"outputs": f"{Y}, float[N, 8] a"},
        {"opset": 19},
    ],
)
def test_the_name_depends_on_the_meaning(change: dict) -> None:
    assert _name(**change) != _name()


def test_the_name_depends_on_attributes() -> None:
    names = {_name(body=f"a = Tanh(x)  y = Elu<alpha = {alpha}>(a)") for alpha in (0.5, 0.25, 1.0)}
    assert len(names) == 3


def test_the_name_depends_on_dtypes_without_constants() -> None:
    body = "a = Tanh(x)  y = Mul(a, x)"
    assert _name(body=body) != _name("double[N, 8] x", "double[N, 8] y", body)


def test_the_name_does_not_depend_on_shapes_and_names() -> None:
    other = _name("float[7, 2] u", "float[7, 2] v", "k = Tanh(u)  v = Mul(k, t)", "float t = {3}")
    assert other == _name()


def test_functions_whose_hashes_begin_alike_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    body = "a = Tanh(x)  b = Mul(a, c)  m = Hardmax(b)  d = Tanh(m)  y = Mul(d, e)"
    model, original = (graph(X, Y, body, constants="float c = {3}, float e = {5}") for _ in range(2))
    hashed = outlining._hash
    monkeypatch.setattr(outlining, "_hash", lambda *of: "0" * 8 + hashed(*of))
    first, second = _outlined(model)
    assert {k[1] for k in model.functions} == set(_calls(model)) == {first.name, second.name}
    assert first.name == "TanhMul_00000000" and len(second.name) == len(first.name) + 1
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 8), np.float32)}
    np.testing.assert_array_equal(run(model, feeds)[0], run(original, feeds)[0])


def test_the_interface_stays() -> None:
    model = graph(f"{X}, float[8] q", f"{Y}, float[N, 8] a", "a = Add(x, q)  b = Exp(a)  y = Neg(b)")
    before = ir.to_proto(model).graph
    _outlined(model)
    after = ir.to_proto(model).graph
    assert list(after.input) == list(before.input)
    assert list(after.output) == list(before.output)
    assert len(after.node) == 1


def test_bodies_of_control_flow_call_functions_too() -> None:
    body = (
        "y = If (c) <then_branch = t () => (float[N, 8] p) { d = Neg(x)  p = Mul(d, x) }, "
        "else_branch = e () => (float[N, 8] q) { f = Neg(x)  q = Mul(f, x) }>"
    )
    model = graph(f"{X}, bool c", Y, body)
    (kernel,) = _outlined(model)
    assert len(kernel.sites) == 2 and _ops(model).count("If") == 1 and len(_ops(model)) == 3
    x = np.random.default_rng(0).standard_normal((3, 8), np.float32)
    for chosen in (True, False):
        np.testing.assert_array_equal(run(model, {"x": x, "c": np.array(chosen)})[0], -x * x)


def test_a_region_that_reads_another_region() -> None:
    """The first region's outputs are replaced before the second is, in whatever order."""
    body = "v0 = Neg(x) " + " ".join(f"v{k} = {('Neg', 'Tanh')[k % 2]}(v{k - 1})" for k in range(1, 90))
    model = graph(X, "float[N, 8] v89", body)
    original = graph(X, "float[N, 8] v89", body)
    assert len(_outlined(model)) == 2
    _assert_connected(model)
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 8), np.float32)}
    np.testing.assert_array_equal(run(model, feeds)[0], run(original, feeds)[0])


def test_nodes_that_read_hundreds_of_results() -> None:
    """Concats of 300 results: one outside of all regions, one whose own result is fused, one of the same value."""
    parts = "  ".join(f"a{k} = Add(x, w{k})  b{k} = Tanh(a{k})" for k in range(300))
    joined, same = ", ".join(f"b{k}" for k in range(300)), ", ".join(["m"] * 300)
    body = f"{parts}  y = Concat<axis=-1>({joined})  m = Neg(b0)  n = Abs(y)  z = Exp(n)  r = Concat<axis=-1>({same})"
    weights = ", ".join(f"float[8] w{k} = {{{', '.join([f'{k}.5'] * 8)}}}" for k in range(300))
    outputs = "float[N, 2400] y, float[N, 2400] z, float[N, 2400] r"
    model, original = (graph(X, outputs, body, constants=weights) for _ in range(2))
    _outlined(model)
    assert "Concat" in _ops(model) and len(_calls(model)) > 40
    _assert_connected(model)
    assert all(user.graph is not None for g in model.graphs() for n in g for v in n.outputs for user in v.consumers())
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 8), np.float32)}
    for result, expected in zip(run(model, feeds), run(original, feeds), strict=True):
        np.testing.assert_array_equal(result, expected)


def _assert_connected(model: ir.Model) -> None:
    """Every operand is defined in the model itself. Its file hides a leftover: values have only names there."""
    defined = {v for g in model.graphs() for v in (*g.inputs, *g.initializers.values())}
    defined |= {v for g in model.graphs() for n in g for v in n.outputs}
    read = {v for g in model.graphs() for n in g for v in n.inputs if v is not None}
    assert read | {v for g in model.graphs() for v in g.outputs} <= defined


def test_calls_stand_before_what_reads_them() -> None:
    """The call takes the place of the region's last node, which is behind the Hardmax that reads its first."""
    model = graph(X, Y, "a = Tanh(x)  m = Hardmax(a)  b = Exp(a)  n = Hardmax(b)  y = Mul(m, n)")
    (kernel,) = _outlined(model)
    assert [n.op_type for n in model.graph] == [kernel.name, "Hardmax", "Hardmax", "Mul"]
    onnx.checker.check_model(ir.to_proto(model), full_check=True)


def test_nothing_to_fuse_leaves_the_model_alone() -> None:
    model = graph(X, Y, "y = Hardmax(x)")
    before = ir.to_proto(model)
    assert _outlined(model) == ()
    assert ir.to_proto(model) == before


GELU = (
    "d = Div(x, c)  e = Erf(d)  f = Add(e, one)  g = Mul(x, f)  h = Mul(g, half)  s = Hardmax(h)  "
    "t = Add(s, q)  u = Clip(t, , one)  y = Mul(u, r)"
)
GELU_CONSTANTS = "float c = {1.4142135}, float one = {1}, float half = {0.5}"


def _gelu() -> ir.Model:
    return graph(f"{X}, float[8] q, float[N, 1] r", Y, GELU, constants=GELU_CONSTANTS)


@pytest.mark.parametrize("rows", [1, 2, 17, 0])
def test_plain_onnx_runtime_agrees(rows: int) -> None:
    model = _gelu()
    kernels = _outlined(model)
    assert len(_calls(model)) == len(kernels) == 2
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    random = np.random.default_rng(rows)
    feeds = {
        "x": random.standard_normal((rows, 8), np.float32),
        "q": random.standard_normal(8, np.float32),
        "r": random.standard_normal((rows, 1), np.float32),
    }
    np.testing.assert_array_equal(run(model, feeds)[0], run(_gelu(), feeds)[0])


def test_moved_functions_are_called_in_their_new_domain() -> None:
    model = _gelu()
    names = [kernel.name for kernel in _outlined(model)]
    for domain in ("onnxopt.ab", "onnxopt.cd", "onnxopt.cd"):
        move(model, domain)
        assert [(n.domain, n.op_type) for n in model.graph if "onnxopt" in n.domain] == [(domain, n) for n in names]
        assert list(model.functions) == [(domain, name, "") for name in names]
        assert {name for name in model.opset_imports if "onnxopt" in name} == {domain}
    feeds = {"x": np.ones((2, 8), np.float32), "q": np.ones(8, np.float32), "r": np.ones((2, 1), np.float32)}
    np.testing.assert_array_equal(run(model, feeds)[0], run(_gelu(), feeds)[0])


@pytest.mark.parametrize("domain", [BARE, "onnxopt.ab"])
def test_inline_puts_the_nodes_back(domain: str) -> None:
    model = _gelu()
    kernels = _outlined(model)
    move(model, domain)
    inline(model, {kernels[0].name})
    assert [n.op_type for n in model.graph if n.domain == domain] == [kernels[1].name]
    assert list(model.functions) == [(domain, kernels[1].name, "")]
    assert domain in model.opset_imports
    inline(model, {kernels[1].name})
    assert _ops(model) == _ops(_gelu())
    assert not model.functions and domain not in model.opset_imports
    feeds = {"x": np.ones((2, 8), np.float32), "q": np.ones(8, np.float32), "r": np.ones((2, 1), np.float32)}
    np.testing.assert_array_equal(run(model, feeds)[0], run(_gelu(), feeds)[0])


def test_inline_of_nothing_changes_nothing() -> None:
    model = _gelu()
    _outlined(model)
    before = ir.to_proto(model)
    inline(model, set())
    inline(model, {"Other_00000000"})
    assert ir.to_proto(model) == before


def test_functions_are_named_by_position() -> None:
    model = graph(f"{X}, float[8] q", Y, "a = Add(x, q)  b = Mul(a, c)  y = Tanh(b)", constants="float c = {3}")
    _outlined(model)
    (function,) = ir.to_proto(model).functions
    assert (list(function.input), list(function.output)) == (["x0", "x1"], ["y0"])
    assert [n.op_type for n in function.node] == ["Add", "Constant", "Mul", "Tanh"]
    assert [(o.domain, o.version) for o in function.opset_import] == [("", 20)]


@settings(max_examples=25, deadline=None, derandomize=True)
@given(random_bodies())
def test_random_graphs(drawn: tuple[str, str]) -> None:
    model, original = random_model(*drawn), random_model(*drawn)
    plan = fuse(model)
    outline(model, plan)
    assert len(list(model.graph)) == len(list(original.graph)) - sum(len(r.nodes) - 1 for r in plan.regions)
    _assert_connected(model)
    random = np.random.default_rng(0)
    feeds = {v.name: random.standard_normal([int(d) for d in v.shape], np.float32) for v in model.graph.inputs}
    for got, expected in zip(run(model, feeds), run(original, feeds), strict=True):
        np.testing.assert_array_equal(got, expected)
