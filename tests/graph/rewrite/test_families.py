"""Families of rewrite rules: each rule that may be wrong is of one, and a family that is wrong is left out by name."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import onnxopt
from onnxopt.errors import StepError
from onnxopt.graph import rewrite
from onnxopt.graph.passes.codes import products_of_codes
from onnxopt.graph.rewrite import FAMILIES, schedule
from onnxopt.graph.rewrite.rule_sets import Pass, Row, RuleSet, Scope
from onnxopt.graph.rewrite.schedule import CANCEL
from onnxopt.graph.rewrite.table import FLOAT32_KERNELS, GATED_WEIGHTS, PORTABLE, TABLE
from onnxopt.pipeline import forms
from onnxopt.tools import explain
from tests.graph.rewrite.attention import test_padded_heads
from tests.graph.rewrite.convolutions import test_as_products
from tests.support.attention.attention_graphs import Attention, ops, rewritten
from tests.support.graphs import graph, hold

_STEPS = [step for phase in TABLE for step in phase.steps]


def _families(row: Row) -> frozenset[str]:
    return frozenset(name for step in _STEPS if row in step.rules for name in step.families)


def _rows() -> dict[Row, str]:
    """Every row of the modules of rewrite/, with its place."""
    found: dict[Row, str] = {}
    for info in pkgutil.walk_packages(rewrite.__path__, f"{rewrite.__name__}."):
        for name, value in vars(importlib.import_module(info.name)).items():
            rows = value if isinstance(value, tuple) else (value,)
            found |= {row: f"{info.name}.{name}" for row in rows if isinstance(row, RuleSet | Pass)}
    return found


def test_every_rule_is_of_a_family() -> None:
    """But for those that only cancel, and those of the portable form, which is verified as a file of its own."""
    others = {row for phase in (CANCEL, *PORTABLE) for step in phase.steps for row in step.rules}
    assert {place for row, place in _rows().items() if not _families(row) and row not in others} == set()
    assert {name for step in _STEPS for name in step.families} == set(FAMILIES)


def test_a_step_without_a_family_only_cancels() -> None:
    assert all(step.families or step in CANCEL.steps for step in _STEPS)
    assert not any(row.counted for step in CANCEL.steps for row in step.rules)


def test_what_counts_is_of_one_family() -> None:
    counted = [row for step in _STEPS for row in step.rules if row.counted]
    assert all(len(_families(row)) == 1 for row in counted)
    assert set().union(*map(_families, counted)) == set(FAMILIES)


@pytest.mark.parametrize("name", FAMILIES)
def test_explain_says_how_often_a_family_applied(name: str) -> None:
    applied = {other: 3 * (other == name) for other in FAMILIES}
    assert explain.rewrites_text(applied) == FAMILIES[name].replace("{}", "3")
    assert explain.rewrites_text(applied).startswith("3 x ")


def test_families_of_other_versions_are_named() -> None:
    assert explain.rewrites_text({"attention": 0, "norms": 2}) == "2 x norms"


_W = "float[8, 8] w, float[8, 8] w2"
_MAP = "float[1, 8, 6, 6] x, float[8, 8, 3, 3] k, float[8, 8, 1, 1] p, float[8] b"
_PAIRS = """
    e = Slice (x, zero, end, last, two) o = Slice (x, one, end, last, two) m = Neg (o) e5 = Unsqueeze (e, last)
    m5 = Unsqueeze (m, last) s = Concat <axis = -1> (m5, e5) back = Reshape (s, whole) c = Mul (x, cos)
    z = Mul (back, sin) y = Add (c, z)
"""
_ENDS = "int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] end = {4}, int64[1] last = {-1}"
_ROWS = "l = Shape <start = 1, end = 2> (x) n = Squeeze (l) i = Range (none, n, some) g = Gather (w, i) y = Add (x, g)"
_FORMED = Attention("2, 3", scores="s = MatMul(q, kt) sb = Add(s, half) masked = Mul(sb, half)")


def _graph(inputs: str, body: str, constants: str = "") -> ir.Model:
    """All inputs but x are constants: an angle of each pair of elements, and drawn numbers."""
    made, rng = graph(inputs, "float[] y", body, constants=constants), np.random.default_rng(0)
    drawn = {str(v.name): rng.standard_normal(v.shape.numpy()) for v in made.graph.inputs[1:] if v.shape is not None}
    hold(made, {n: a if n not in ("cos", "sin") else np.repeat(a[..., ::2], 2, -1) for n, a in drawn.items()}, "f4")
    return made


_GRAPHS: dict[str, Callable[[], ir.Model]] = {
    "decomposed": lambda: _graph(f"float[3, 8] x, {_W}", "a = MatMul (x, w) y = LeakyRelu <alpha = 0.0> (a)"),
    "products": lambda: _graph(
        f"float[2, 3, 8] x, {_W}", "r = Reshape (x, rows) g = Gemm (r, w) y = Reshape (g, whole)",
        "int64[2] rows = {-1, 8}, int64[3] whole = {2, 3, 8}",
    ),
    "indices": lambda: _graph(f"float[2, S, 8] x, {_W}", _ROWS, "int64 none = {0}, int64 some = {1}"),
    "tables": lambda: _graph(
        "float[2, 3, 3] x", "t = Transpose <perm = [1, 2, 0]> (x) y = GatherND (t, p)", "int64[2, 2] p = {1, 0, 2, 1}"
    ),
    "einsums": lambda: _graph(f"float[3, 8] x, {_W}", 'y = Einsum <equation = "ij,jk->ik"> (x, w)'),
    "attention_forms": _FORMED.model,
    "attention": Attention("2, 3").model,
    "heads": test_padded_heads.Attention(dims="1, 33").model,
    "rotary": lambda: _graph(
        "float[1, 2, 3, 4] x, float[1, 1, 3, 4] cos, float[1, 1, 3, 4] sin", _PAIRS,
        f"int64[4] whole = {{1, 2, 3, 4}}, {_ENDS}",
    ),
    "outer_products": lambda: _graph("float[3, 1] x, float[1, 8] w", "y = MatMul (x, w)"),
    "merge": Attention("2, 3").model,
    "gate": lambda: _graph(
        f"float[3, 8] x, {_W}", "g = MatMul (x, w) u = MatMul (x, w2) a = Relu (g) y = Mul (a, u)"
    ),
    "tokens": lambda: test_as_products.model(
        test_as_products.IMAGE.replace("n,", "1,"), test_as_products.PATCHES.format(bias="")
    ),
    "fold": lambda: _graph(_MAP, "c = Conv (x, k) y = Mul (c, s)", "float s = {0.75}"),
    "aligned_channels": lambda: _graph(
        "float[1, 8, 6, 6] x, float[6, 8, 3, 3] k, float[8, 6, 1, 1] p", "c = Conv (x, k) r = Relu (c) y = Conv (r, p)"
    ),
    "repeated_columns": lambda: _graph(
        "float[131072, 8] x, float[16, 1] w",
        "g = ReduceMax (x, rows) e = Expand (g, whole) j = Concat <axis = 1> (x, e) y = MatMul (j, w)",
        "int64[1] rows = {0}, int64[2] whole = {131072, 8}",
    ),
    "splits": lambda: _graph(
        "float[3, 6, 8] x", "a, b = Split <axis = 1> (x, n) c = Mul (b, b) y = Concat <axis = 1> (a, c)",
        "int64[2] n = {1, 5}",
    ),
    "channels_last": lambda: _graph(_MAP, "c = Conv (x, k) r = Relu (c) y = Conv (r, p)"),
    GATED_WEIGHTS: lambda: _graph(
        _MAP, "c = Conv <pads = [1, 1, 1, 1]> (x, k) m = ReduceMean (c, hw) g = Sigmoid (m) v = Mul (c, g)"
        "y = Conv (v, p, b)", "int64[2] hw = {2, 3}",
    ),
    FLOAT32_KERNELS: lambda: graph("float16[1, 2, 2, 2] x", "float16[] y", "y = GridSample (x, x)"),
}  # fmt: skip


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("name", FAMILIES)
def test_a_wrong_family_is_named_and_left_out(
    name: str, tmp_path: Path, artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a rule of this family alone applied, the graph computes something else: all of it for twice the input."""
    apply = schedule.apply

    def wrong(model: ir.Model, row: Row, scope: Scope) -> int:
        count = apply(model, row, scope)
        if count and _families(row) == {name}:
            _double(model)
        return count

    monkeypatch.setattr(schedule, "apply", wrong)
    monkeypatch.setattr(forms, "_GPU_FAMILIES", frozenset())  # applies for CPUs too, for which nothing is compiled
    assert name in _GRAPHS, "a new family needs a graph that its rules apply to in _GRAPHS"
    ir.save(_GRAPHS[name](), tmp_path / "m.onnx")
    manifest = onnxopt.optimize(tmp_path / "m.onnx", artifact, archs=(), shapes={"x": _shape(name)}).manifest
    assert [row.name for row in manifest.left_out] == [f"rewrite:{name}"]
    assert manifest.verify.status == "passed"
    assert list(manifest.rewrites) == [other for other in FAMILIES if other != name]


@pytest.mark.usefixtures("library")
def test_wrong_products_of_codes_are_left_out(tmp_path: Path, artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are for kernels of GPUs; this graph has none, so nothing is compiled."""

    class Wrong(products_of_codes.ProductsOfCodesPass):
        def call(self, model: ir.Model) -> ir.passes.PassResult:
            _double(model)
            return ir.passes.PassResult(model, modified=True)

    monkeypatch.setattr(forms, "ProductsOfCodesPass", Wrong)
    ir.save(graph("float[3, 3] x", "float[] y", "y = Det (x)"), tmp_path / "m.onnx")
    manifest = onnxopt.optimize(tmp_path / "m.onnx", artifact, archs=("sm_90",)).manifest
    assert [row.name for row in manifest.left_out] == ["rewrite:products_of_codes"]
    assert (manifest.verify.status, manifest.kernels) == ("passed", ())


@pytest.mark.usefixtures("library")
def test_families_that_raise_are_named_and_left_out(
    tmp_path: Path, artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two at once; the others apply as before."""
    apply = schedule.apply

    def broken(model: ir.Model, row: Row, scope: Scope) -> int:
        if _families(row) in ({"attention"}, {"merge"}):
            raise KeyError("no such row")
        return apply(model, row, scope)

    ir.save(_GRAPHS["attention"](), tmp_path / "m.onnx")
    plain = onnxopt.optimize(tmp_path / "m.onnx", tmp_path / "plain", archs=(), verify=False).manifest
    assert plain.rewrites["attention"] and not plain.left_out
    monkeypatch.setattr(schedule, "apply", broken)
    manifest = onnxopt.optimize(tmp_path / "m.onnx", artifact, archs=()).manifest
    assert [row.name for row in manifest.left_out] == ["rewrite:attention", "rewrite:merge"]
    assert {row.reason for row in manifest.left_out} == {"its rules failed: KeyError: 'no such row'"}
    assert manifest.verify.status == "passed"
    assert "merge" not in manifest.rewrites and "heads" in manifest.rewrites


def test_an_error_of_no_family_ends_the_step(tmp_path: Path, artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(model: ir.Model) -> None:
        raise KeyError("no such node")

    monkeypatch.setattr(rewrite.forms, "UniqueNamesPass", lambda: broken)
    ir.save(_GRAPHS["attention"](), tmp_path / "m.onnx")
    with pytest.raises(StepError, match="the step 'rewrite' failed: KeyError: 'no such node'"):
        onnxopt.optimize(tmp_path / "m.onnx", artifact, archs=())
    assert not artifact.exists()


def _double(model: ir.Model) -> None:
    x = model.graph.inputs[0]
    two = ir.node("Constant", [], {"value": ir.tensor(np.array(2).astype(x.dtype.numpy()))})  # type: ignore[union-attr]
    doubled = ir.node("Mul", [x, two.outputs[0]])
    doubled.outputs[0].type, doubled.outputs[0].shape = x.type, x.shape
    x.replace_all_uses_with(doubled.outputs[0])
    doubled.replace_input_with(0, x)
    model.graph.insert_before(model.graph[0], [two, doubled])


def _shape(name: str) -> tuple[int, ...]:
    dims = _GRAPHS[name]().graph.inputs[0].shape
    assert dims is not None
    return tuple(d if isinstance(d, int) else 3 for d in dims)


def test_rules_keep_nothing_between_matches(tmp_path: Path) -> None:
    """Two attentions of different masks and scales in one graph are told apart, in either order."""
    for first, second in (("half", "two"), ("two", "half")):
        scores = f"s = MatMul(q, kt)  masked = Mul(s, {first})"
        weights = f"p0 = Softmax<axis = -1>(masked)  q2 = MatMul(p0, v)  s2 = MatMul(q2, kt)  m2 = Mul(s2, {second}) "
        model = Attention(scores=scores, weights=f"{weights} p = Softmax<axis = -1>(m2)", constants="float two = {2}")
        found, done = rewritten(model.model(), tmp_path)
        assert done.applied["attention"] == 2
        scales = [n.attributes["scale"].value for n in found.graph if n.op_type == "MultiHeadAttention"]
        assert scales == [{"half": 0.5, "two": 2.0}[name] for name in (first, second)], ops(found)
