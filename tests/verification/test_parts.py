"""The values of a model that is run part by part: those of one run with all of them as outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onnxopt.graph import write
from onnxopt.graph.shapes.infer import InferShapesPass
from onnxopt.runtime.sessions import RunError
from onnxopt.verification.lowering import parts
from tests.support.graphs import RANDOM_INPUTS, graph, random_bodies, random_model, run, value

# An If that reads values of other parts, a Split whose results are read apart, a shape, and sizes of an input alone.
_BODY = """
    h = MatMul (x, w) a, b = Split <axis = 1, num_outputs = 2> (h) s = Shape (h) e = Exp (b)
    i = If (c) <then_branch = t () => (float[N, 2] p) {q = Mul (a, e) p = Add (q, b)},
        else_branch = f () => (float[N, 2] r) {r = Neg (a)}>
    n = ConstantOfShape (s) o = Add (n, h) d, g = Split <axis = 1, num_outputs = 2> (o) y = Sub (i, g) z = Add (y, b)
"""


def _all_at_once(model: ir.Model, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    whole = model.clone()
    whole.graph.outputs.clear()
    whole.graph.outputs.extend(v for node in whole.graph for v in node.outputs if parts.is_measured(v))
    return dict(zip((str(v.name) for v in whole.graph.outputs), run(whole, feeds), strict=True))


def _part_by_part(model: ir.Model, runs: list[dict[str, np.ndarray]], folder: Path) -> list[dict[str, Any]]:
    values: list[dict[str, Any]] = [{} for _ in runs]
    for k, some in parts.values_of(model, runs, folder):
        assert not values[k].keys() & some.keys()
        values[k] |= some
    return values


def _check(model: ir.Model, runs: list[dict[str, np.ndarray]], folder: Path) -> None:
    for feeds, values in zip(runs, _part_by_part(model, runs, folder), strict=True):
        wanted = _all_at_once(model, feeds)
        assert wanted.keys() == values.keys()
        for name, array in wanted.items():
            np.testing.assert_allclose(values[name], array, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("limit", [0, 40, 1 << 20])  # bytes: nothing is handed on, some values are, all are
@pytest.mark.parametrize("count", [1, 3, 100])
def test_values_with_branches_and_several_results(
    count: int, limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "_OUTPUTS", count)
    monkeypatch.setattr(parts, "_BYTES", limit)
    model = graph(
        "float[N, 3] x, bool c", "float[N, 2] z", _BODY, constants=f"float[3, 4] w = {{{', '.join('123' * 4)}}}"
    )
    InferShapesPass()(model)
    draw = np.random.default_rng(0)
    runs = [
        {"x": draw.standard_normal((n, 3), np.float32), "c": np.array(taken)} for n, taken in ((2, True), (5, False))
    ]
    _check(model, runs, tmp_path)


@given(random_bodies(), st.integers(1, 4), st.sampled_from([0, 32, 64, 1 << 20]))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_values_of_random_graphs(tmp_path: Path, drawn: tuple[str, str], count: int, limit: int) -> None:
    model = random_model(*drawn)
    InferShapesPass()(model)
    draw = np.random.default_rng(0)
    runs = [{name: draw.standard_normal(shape, np.float32) for name, shape in RANDOM_INPUTS.items()} for _ in range(2)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "_OUTPUTS", count)
        patch.setattr(parts, "_BYTES", limit)
        _check(model, runs, tmp_path)


def test_each_node_runs_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "_OUTPUTS", 2)
    counts, save = list[int](), write.save

    def counted(model: ir.Model, *rest: Any) -> tuple[str, ...]:
        counts.append(len(model.graph))
        return save(model, *rest)

    monkeypatch.setattr(write, "save", counted)
    model = graph("float[4] v0", "float[4] v9", " ".join(f"v{k + 1} = Sin (v{k})" for k in range(9)))
    InferShapesPass()(model)
    _check(model, [{"v0": np.ones(4, np.float32)}], tmp_path)
    assert counts == [2, 2, 2, 2, 1]


def test_a_run_of_no_elements_ends_where_it_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "_OUTPUTS", 1)
    body = "h = Neg (x) i = Reshape (h, to) y = Exp (i)"
    model = graph("float[n, 4] x", "float[n, 2, 2] y", body, constants="int64[3] to = {0, 2, -1}")
    InferShapesPass()(model)
    full, empty = {"x": np.ones((3, 4), np.float32)}, {"x": np.zeros((0, 4), np.float32)}
    assert [set(values) for values in _part_by_part(model, [empty, full], tmp_path)] == [{"h"}, {"h", "i", "y"}]
    with pytest.raises(RunError):
        _part_by_part(model, [{"x": np.ones((3, 5), np.float32)}], tmp_path)


def test_an_input_with_a_default_may_be_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "_OUTPUTS", 1)
    model = graph("float[4] x, float[4] d", "float[4] y", "h = Add (x, d) y = Mul (h, d)")
    default = value(model, "d")
    default.const_value = ir.Tensor(np.full(4, 2, np.float32), name="d")
    model.graph.register_initializer(default)
    InferShapesPass()(model)
    x, d = np.ones(4, np.float32), np.full(4, 3, np.float32)
    _check(model, [{"x": x}, {"x": x, "d": d}], tmp_path)


def test_values_that_no_array_holds_are_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "_OUTPUTS", 1)
    body = """
        h = Neg (x) q = QuantizeLinear (h, scale, zero) s = SequenceConstruct (h, x)
        a = DequantizeLinear (q, scale, zero) b = ConcatFromSequence <axis = 0> (s) y = Concat <axis = 0> (a, b)
    """
    constants = "float scale = {0.5}, int4 zero = {0}"
    model = graph("float[4] x", "float[12] y", body, constants=constants, opset=21)
    InferShapesPass()(model)
    _check(model, [{"x": np.arange(4, dtype=np.float32)}], tmp_path)
