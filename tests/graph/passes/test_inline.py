"""inline: many calls of one function, and functions that call functions, in time that grows with the nodes."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from onnxopt.graph.passes.inline import inline_functions
from tests.support.hostile.hostile_models import value

OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
BODY = [helper.make_node("Sin", ["x"], ["t"], name="n"), helper.make_node("Neg", ["t"], ["y"], name="m")]
# A body that has a name of its own inside a branch, and those of the graph.
BRANCH = [
    helper.make_node("ReduceSum", ["x"], ["s"], keepdims=0),
    helper.make_node("Cast", ["s"], ["c"], to=TensorProto.BOOL),
    helper.make_node(
        "If", ["c"], ["y"],
        then_branch=helper.make_graph([helper.make_node("Sin", ["x"], ["v1"])], "a", [], [value("v1", [4])]),
        else_branch=helper.make_graph([helper.make_node("Neg", ["x"], ["v2"])], "b", [], [value("v2", [4])]),
    ),
]  # fmt: skip


def chain(count: int, body: list[onnx.NodeProto] = BODY) -> onnx.ModelProto:
    """A chain of calls of one function."""
    names = ["x", *(f"v{k}" for k in range(1, count)), "out"]
    calls = [helper.make_node("f0", [a], [b], domain="f") for a, b in itertools.pairwise(names)]
    return _model(calls, {"f0": body})


def doubling(levels: int) -> onnx.ModelProto:
    """Functions of which each calls the next one twice: 2 ** levels nodes."""
    bodies = {
        f"f{k}": [helper.make_node(f"f{k + 1}", [a], [b], domain="f") for a, b in (("x", "t"), ("t", "y"))]
        for k in range(levels)
    } | {f"f{levels}": [helper.make_node("Sin", ["x"], ["y"])]}
    return _model([helper.make_node("f0", ["x"], ["out"], domain="f")], bodies)


def _model(nodes: list[onnx.NodeProto], bodies: dict[str, list[onnx.NodeProto]]) -> onnx.ModelProto:
    functions = [helper.make_function("f", name, ["x"], ["y"], body, OPSETS) for name, body in bodies.items()]
    graph = helper.make_graph(nodes, "g", [value("x", [4])], [value("out", [4])])
    return helper.make_model(graph, opset_imports=OPSETS, functions=functions, ir_version=8)


def seconds(model: onnx.ModelProto) -> float:
    inlined, started = ir.serde.deserialize_model(model), time.process_time()
    assert inline_functions(inlined) is None
    return time.process_time() - started


@pytest.mark.parametrize(("make", "small", "large"), [(chain, 250, 4000), (doubling, 8, 12)])
def test_time_grows_with_the_nodes(make: Callable[[int], onnx.ModelProto], small: int, large: int) -> None:
    """Sixteen times the nodes: 16 times the time where it is linear, 256 where it is their square."""
    seconds(make(small))
    assert seconds(make(large)) < 64 * max(min(seconds(make(small)) for _ in range(3)), 0.01)


@pytest.mark.parametrize("model", [chain(7), chain(5, BRANCH), doubling(4)], ids=["chain", "branches", "doubling"])
def test_names_are_unique_and_results_stay(model: onnx.ModelProto) -> None:
    inlined = ir.serde.deserialize_model(model)
    assert inline_functions(inlined) is None and not inlined.functions
    names = [node.name for node in inlined.graph.all_nodes()]
    values = [output.name for node in inlined.graph.all_nodes() for output in node.outputs]
    assert len({*names}) == len(names) and len({*values}) == len(values)
    result = ir.serde.serialize_model(inlined)
    onnx.checker.check_model(result, full_check=True)
    x = {"x": np.array([0.5, -0.25, 1.0, 2.0], np.float32)}
    expected, found = (
        ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, x)
        for m in (model, result)
    )
    np.testing.assert_array_equal(expected[0], found[0])
