"""Shapes of intermediate values are read off the graph's inputs where all their dims are there, or numbers."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx_ir.passes.common import RemoveUnusedNodesPass

from onnxopt.graph.rewrite.dims_of_inputs import read_from_inputs
from onnxopt.graph.shapes.infer import infer
from tests.support import graphs

CONSTANTS = "int64[2] flat = {0, -1}, int64[1] one = {1}"


@pytest.mark.parametrize(
    ("dims", "body"),
    [
        (("batch", "length", 4), "a = Exp(x)  s = Shape(a)"),
        (("batch", "length", 4), "a = Transpose<perm = [1, 0, 2]>(x)  s = Shape<start = 1>(a)"),
        (("past + new", 4), "a = Exp(x)  s = Shape(a)"),
    ],
)
def test_a_shape_of_inputs_dims_reads_no_intermediate_value(dims: tuple[int | str, ...], body: str) -> None:
    text = f"{body}  y = Cast<to = 1>(s)"
    model, original = (graphs.graph("float[] x", "float[] y", text) for _ in range(2))
    for graph in (model.graph, original.graph):
        graph.inputs[0].shape = ir.Shape(dims)
    assert read_from_inputs(model, infer(model))
    shapes = [node for node in model.graph if node.op_type == "Shape"]
    assert shapes
    assert all(node.inputs[0] is model.graph.inputs[0] for node in shapes)
    feeds = {"x": np.zeros([dim if isinstance(dim, int) else k + 3 for k, dim in enumerate(dims)], np.float32)}
    np.testing.assert_array_equal(graphs.run(model, feeds)[0], graphs.run(original, feeds)[0])


@pytest.mark.parametrize(
    ("read", "left"),
    [
        ("g = Gather(s, first)", ["Shape", "Squeeze", "Cast"]),
        ("g = Gather(s, last)", ["Squeeze", "Cast"]),
        ("g = Gather(s, one)", ["Shape", "Cast"]),
        ("g = Gather(s, both)", ["Shape", "Shape", "Concat", "Gather", "Cast"]),
        ("h = Gather(s, first) g = Add(h, s)", ["Shape", "Shape", "Concat", "Squeeze", "Add", "Cast"]),
    ],
)
def test_a_dim_that_is_read_alone_needs_no_others(read: str, left: list[str]) -> None:
    constants = f"{CONSTANTS}, int64 first = {{0}}, int64 last = {{-1}}, int64[2] both = {{0, 1}}"
    text = f"a = Exp(x)  s = Shape(a)  {read}  y = Cast<to = 1>(g)"
    model, original = (
        graphs.graph("float[batch, length, 4] x", "float[] y", text, constants=constants) for _ in range(2)
    )
    assert read_from_inputs(model, infer(model))
    RemoveUnusedNodesPass()(model)
    assert [node.op_type for node in model.graph if node.op_type != "Constant"] == left
    feeds = {"x": np.zeros((2, 3, 4), np.float32)}
    np.testing.assert_array_equal(graphs.run(model, feeds)[0], graphs.run(original, feeds)[0])


@pytest.mark.parametrize(
    "body",
    [
        "a = NonZero(x)  s = Shape(a)  y = Cast<to = 1>(s)",  # a dim that depends on values
        "a = Reshape(x, flat)  s = Shape(a)  y = Cast<to = 1>(s)",  # a product of dims
        "s = Shape(x)  y = Cast<to = 1>(s)",  # of an input already
    ],
)
def test_other_shapes_stay(body: str) -> None:
    model = graphs.graph("float[batch, length, width] x", "float[] y", body, constants=CONSTANTS)
    assert not read_from_inputs(model, infer(model))


def test_a_dim_that_an_input_tells_is_read_beside_others() -> None:
    text = "a = Reshape(x, flat)  s = Shape(a)  h = Gather(s, first)  k = Gather(s, last)  "
    text += "g = Add(h, k)  y = Cast<to = 1>(g)"
    constants = f"{CONSTANTS}, int64 first = {{0}}, int64 last = {{-1}}"
    model, original = (
        graphs.graph("float[batch, length, 4] x", "float[] y", text, constants=constants) for _ in range(2)
    )
    assert read_from_inputs(model, infer(model)) == 1
    RemoveUnusedNodesPass()(model)
    left = [node.op_type for node in model.graph if node.op_type != "Constant"]
    assert left == ["Reshape", "Shape", "Shape", "Squeeze", "Gather", "Add", "Cast"]
    assert read_from_inputs(model, infer(model)) == 0
    feeds = {"x": np.zeros((2, 3, 4), np.float32)}
    np.testing.assert_array_equal(graphs.run(model, feeds)[0], graphs.run(original, feeds)[0])
