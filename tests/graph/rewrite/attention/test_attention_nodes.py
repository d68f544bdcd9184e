"""Attention with a cap, sinks, windows and grouped heads: written for one kernel, or refused with a reason."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from cases.extended_attention import Extended
from onnxopt.graph.rewrite import rewrite, to_portable
from tests.support.graphs import graph

BASE = Extended(2, 40, 40, 4, 16, groups=2, known=False)
FORMS = {
    "cap": dataclasses.replace(BASE, cap=2.0),
    "sinks": dataclasses.replace(BASE, sunk=True),
    "window": dataclasses.replace(BASE, before=7, after=0),
    "both sides": dataclasses.replace(BASE, before=5, after=5, known=True),
    "all": dataclasses.replace(BASE, cap=2.0, sunk=True, before=9, after=0),
    "bias of keys": dataclasses.replace(BASE, cap=2.0, bias=(True, False), by_query=False),
}


def _ops(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def _run(model: ir.Model, feeds: dict[str, np.ndarray]) -> np.ndarray:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"])
    (y,) = session.run(None, feeds)
    return np.asarray(y)


@pytest.mark.parametrize("form", FORMS)
def test_the_nodes_compute_the_same(form: str, tmp_path: Path) -> None:
    case = FORMS[form]
    model = ir.serde.deserialize_model(case.model())
    done = rewrite(model, tmp_path)
    assert (done.applied["attention"], done.refusals) == (1, ())
    ops, feeds = _ops(model), case.feeds()
    assert ("MultiHeadAttention" in ops) == (not case.cap and not case.sunk)
    hides_rows = case.bias is not None
    assert ("ReduceMax" in ops) == hides_rows  # of a mask, and not of scores, from which Softmax takes it anyway
    if case.before >= 0:
        assert "LessOrEqual" in ops and "Or" not in ops
    wanted = _run(ir.serde.deserialize_model(case.model()), feeds).astype(np.float64)
    np.testing.assert_allclose(_run(model, feeds), wanted, atol=4e-3)
    to_portable(model)
    assert {node.domain for node in model.graph} == {""}
    np.testing.assert_allclose(_run(model, feeds), wanted, atol=4e-3)


@pytest.mark.parametrize("condition", ["Where(near, s, low)", "Where(far, low, s)"])
def test_a_window_by_a_condition(condition: str, tmp_path: Path) -> None:
    """Two keys in front of each query, and one behind it."""
    body = f"""
        n1 = Shape<start = 2, end = 3>(q) n = Squeeze(n1, axis) j = Range(zero, n, one) i = Unsqueeze(j, rows)
        apart = Sub(i, j) front = LessOrEqual(apart, two) behind = GreaterOrEqual(apart, back)
        near = And(front, behind) far0 = Sub(j, i) f1 = Less(far0, less) f2 = Greater(far0, one) far = Or(f1, f2)
        kt = Transpose<perm = [0, 1, 3, 2]>(k) s = MatMul(q, kt) m = {condition} p = Softmax<axis = -1>(m)
        y = MatMul(p, v)
    """
    constants = "int64 zero = {0}, int64 one = {1}, int64 two = {2}, int64 back = {-1}, int64 less = {-2}, "
    constants += "int64[1] axis = {0}, int64[1] rows = {1}, float16 low = {64512}"  # minus infinity
    inputs = ", ".join(f"float16[B, 2, T, 8] {name}" for name in "qkv")
    source = graph(inputs, "float16[] y", body, constants=constants)
    found = source.clone()
    assert rewrite(found, tmp_path).applied["attention"] == 1
    rng = np.random.default_rng(0)
    feeds = {name: rng.standard_normal((2, 2, 7, 8)).astype(np.float16) for name in "qkv"}
    np.testing.assert_allclose(_run(found, feeds), _run(source, feeds), atol=4e-3)


def test_each_attention_has_a_mask_of_its_own(tmp_path: Path) -> None:
    """Else no kernel could take it in: an equal one of another layer would be merged with it."""
    model = ir.serde.deserialize_model(FORMS["window"].model())
    rewrite(model, tmp_path)
    (attention,) = (n for n in model.graph if n.op_type == "MultiHeadAttention")
    asked, read = [attention.inputs[5]], set[ir.Value | None]()
    while asked:
        node = asked.pop().producer()  # type: ignore[union-attr]
        if node is not None and node.op_type == "Shape":
            read.add(node.inputs[0])
        elif node is not None:
            asked += node.inputs
    assert read == set(attention.inputs[:2])


def test_float32_keeps_the_mask_that_layers_share(tmp_path: Path) -> None:
    case = dataclasses.replace(FORMS["all"], dtype="float32")
    model = ir.serde.deserialize_model(case.model())
    rewrite(model, tmp_path)
    assert not any(n.op_type == "Squeeze" and n.inputs[0].producer().inputs[0] not in model.graph.inputs
                   for n in model.graph)  # type: ignore[union-attr]  # fmt: skip
    feeds = case.feeds()
    np.testing.assert_allclose(_run(model, feeds), case.expected(feeds), atol=2e-6)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("-1", "1", "the score after those of the keys is not one constant of each head, or is not removed"),
        ("2.0", "-2.0", "the cap of the scores is not a constant number above 0"),
    ],
)
def test_what_is_in_the_way_is_said(old: str, new: str, reason: str, tmp_path: Path) -> None:
    case = FORMS["sinks"] if old == "-1" else FORMS["cap"]
    proto = case.model()
    for node in proto.graph.node:
        if old == "-1" and node.op_type == "Slice" and "Softmax" in node.input[0]:
            (ends,) = (t for t in proto.graph.initializer if t.name == node.input[2])
            node.input[2] = "far"
            proto.graph.initializer.add().CopyFrom(ends)
            proto.graph.initializer[-1].name = "far"
            proto.graph.initializer[-1].raw_data = np.array([case.keys], np.int64).tobytes()
    for tensor in proto.graph.initializer:
        if old == "2.0" and tensor.raw_data == np.array(2, np.float16).tobytes():
            tensor.raw_data = np.array(-2, np.float16).tobytes()
    done = rewrite(ir.serde.deserialize_model(proto), tmp_path)
    assert done.applied["attention"] == 0
    assert any(reason in refusal.reason for refusal in done.refusals)
