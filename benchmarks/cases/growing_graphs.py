"""Graphs of any number of nodes, in several forms, to see how the time of each step grows with the number.

Weights are small and random, and differ from node to node, so that nothing merges that would not merge in a model. No
graph is meant to be run: sums of thousands of terms overflow.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

_OPSET, _IR_VERSION = 20, 9
_WIDTH = 16  # elements of a row; the size of the tensors does not matter here
_SHAPE = (8, _WIDTH)
_CHAIN = ("Tanh", "Add", "Sigmoid", "Mul", "Relu", "Sub", "Exp", "Neg")  # operators of a chain, in turn
_HEADS = 2


@dataclasses.dataclass
class _Builder:
    """A graph that grows node by node, from one float32 input `x` of shape (batch, 8, 16)."""

    nodes: list[onnx.NodeProto] = dataclasses.field(default_factory=list)
    initializers: list[onnx.TensorProto] = dataclasses.field(default_factory=list)
    random: np.random.Generator = dataclasses.field(default_factory=lambda: np.random.default_rng(0))
    prefix: str = ""

    def node(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Append a node and return the name of its first output."""
        name = f"{self.prefix}v{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(op_type, list(inputs), [name], f"{self.prefix}n{len(self.nodes)}", **attributes)
        )
        return name

    def weight(self, *shape: int) -> str:
        """Add random float32 weights and return their name."""
        return self.constant(self.random.standard_normal(shape).astype(np.float32))

    def constant(self, array: np.ndarray) -> str:
        name = f"{self.prefix}w{len(self.initializers)}"
        self.initializers.append(
            helper.make_tensor(
                name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape, array.tobytes(), raw=True
            )
        )
        return name

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def model(self, outputs: Sequence[str]) -> onnx.ModelProto:
        """The model with these outputs, of undeclared rank."""
        graph = helper.make_graph(
            self.nodes,
            "growing",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", *_SHAPE])],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
            self.initializers,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION)


def _elementwise(builder: _Builder, x: str, step: int, side: str) -> str:
    """Append one elementwise node of a chain. side: what operators of two inputs read as their second one."""
    op_type = _CHAIN[step % len(_CHAIN)]
    return builder.node(op_type, x, side) if op_type in ("Add", "Mul", "Sub") else builder.node(op_type, x)


def chain(count: int) -> onnx.ModelProto:
    """One chain of elementwise nodes."""
    builder = _Builder()
    x, side = "x", builder.weight(_WIDTH)
    for step in range(count):
        x = _elementwise(builder, x, step, side)
    return builder.model([x])


def parallel(count: int) -> onnx.ModelProto:
    """Chains of four nodes that all read the input; each is an output."""
    builder = _Builder()
    outputs = []
    for _ in range(count // 4):
        x = builder.node("Add", "x", builder.weight(_WIDTH))
        for step in (0, 2, 4):
            x = _elementwise(builder, x, step, "")
        outputs.append(x)
    return builder.model(outputs)


def readers(count: int) -> onnx.ModelProto:
    """Single elementwise nodes that all read one result; each is an output."""
    builder = _Builder()
    x = builder.node("Tanh", "x")
    return builder.model([builder.node("Add", x, builder.weight(_WIDTH)) for _ in range(count - 1)])


def residual(count: int) -> onnx.ModelProto:
    """A residual stream with blocks of norm, product, Gelu and product, seven nodes each."""
    builder = _Builder()
    x = "x"
    for _ in range(count // 7):
        x = _feed_forward(builder, x)
    return builder.model([x])


def _feed_forward(builder: _Builder, x: str) -> str:
    normed = builder.node("LayerNormalization", x, builder.weight(_WIDTH), builder.weight(_WIDTH), axis=-1)
    up = builder.node(
        "Add", builder.weight(2 * _WIDTH), builder.node("MatMul", normed, builder.weight(_WIDTH, 2 * _WIDTH))
    )
    down = builder.node("MatMul", builder.node("Gelu", up), builder.weight(2 * _WIDTH, _WIDTH))
    return builder.node("Add", x, builder.node("Add", builder.weight(_WIDTH), down))


def attention(count: int) -> onnx.ModelProto:
    """Transformer layers of 29 nodes, attention as torch's exporter writes it."""
    builder = _Builder()
    shape, flat = builder.ints(0, 0, _HEADS, _WIDTH // _HEADS), builder.ints(0, 0, _WIDTH)
    scale = builder.constant(np.array((_WIDTH // _HEADS) ** -0.5, np.float32))
    x = "x"
    for _ in range(count // 29):
        normed = builder.node("LayerNormalization", x, builder.weight(_WIDTH), builder.weight(_WIDTH), axis=-1)
        heads = []
        for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]):
            projected = builder.node("MatMul", normed, builder.weight(_WIDTH, _WIDTH))
            split = builder.node("Reshape", builder.node("Add", projected, builder.weight(_WIDTH)), shape)
            heads.append(builder.node("Transpose", split, perm=perm))
        scores = builder.node("Mul", builder.node("MatMul", *heads[:2]), scale)
        mixed = builder.node("MatMul", builder.node("Softmax", scores, axis=-1), heads[2])
        joined = builder.node("Reshape", builder.node("Transpose", mixed, perm=[0, 2, 1, 3]), flat)
        out = builder.node(
            "Add", builder.weight(_WIDTH), builder.node("MatMul", joined, builder.weight(_WIDTH, _WIDTH))
        )
        x = _feed_forward(builder, builder.node("Add", x, out))
    return builder.model([x])


def initializers(count: int) -> onnx.ModelProto:
    """A chain of Adds, each with an initializer of its own."""
    builder = _Builder()
    x = "x"
    for _ in range(count):
        x = builder.node("Add", x, builder.weight(_WIDTH))
    return builder.model([x])


def layout(count: int) -> onnx.ModelProto:
    """A chain of Reshape, Transpose, Slice and Concat, with a Tanh behind every four."""
    builder = _Builder()
    x = "x"
    flat, back = builder.ints(0, -1), builder.ints(0, *_SHAPE)
    start, middle, end, last = (builder.ints(k) for k in (0, _WIDTH // 2, _WIDTH, 2))
    for _ in range(count // 8):
        x = builder.node("Reshape", builder.node("Reshape", builder.node("Transpose", x, perm=[0, 2, 1]), flat), back)
        first = builder.node("Slice", x, start, middle, last)
        second = builder.node("Slice", x, middle, end, last)
        x = builder.node("Concat", second, first, axis=2)
        x = builder.node("Transpose", builder.node("Tanh", x), perm=[0, 2, 1])
        x = builder.node("Reshape", x, back)
    return builder.model([x])


def branches(count: int) -> onnx.ModelProto:
    """A chain of Ifs, each with an If inside of both branches; ten nodes in all with the bodies' nodes."""
    builder = _Builder()
    zero = builder.constant(np.array(0, np.float32))
    x = "x"
    for k in range(count // 10):
        condition = builder.node("Greater", builder.node("ReduceMax", x, keepdims=0), zero)
        inner = {branch: _branch(f"{k}{branch}", condition, x) for branch in ("then", "else")}
        x = builder.node("If", condition, then_branch=inner["then"], else_branch=inner["else"])
    return builder.model([x])


def _branch(prefix: str, condition: str, x: str) -> onnx.GraphProto:
    """A body of three nodes with an If, whose bodies have one node each, among them."""
    outer = _Builder(prefix=f"b{prefix}_")
    bodies = []
    for op_type in ("Tanh", "Sigmoid"):
        body = _Builder(prefix=f"b{prefix}_{op_type}_")
        bodies.append(_body(body, body.node(op_type, x)))
    y = outer.node("If", condition, then_branch=bodies[0], else_branch=bodies[1])
    return _body(outer, outer.node("Neg", y))


def _body(builder: _Builder, output: str) -> onnx.GraphProto:
    return helper.make_graph(
        builder.nodes, f"{builder.prefix}body", [], [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)]
    )


def wide(count: int) -> onnx.ModelProto:
    """One Concat of half as many results as there are nodes, each of two nodes."""
    builder = _Builder()
    parts = []
    for _ in range(count // 2):
        parts.append(builder.node("Tanh", builder.node("Add", "x", builder.weight(_WIDTH))))
    return builder.model([builder.node("Concat", *parts, axis=-1)])


FORMS: dict[str, Callable[[int], onnx.ModelProto]] = {
    form.__name__: form
    for form in (chain, parallel, readers, residual, attention, initializers, layout, branches, wide)
}
