"""Spellings of activations, norms and Softmax by simpler operators."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from tests.fuzz.respell.building import Builder
from tests.fuzz.respell.spelling import axis_of, ints_of, number_of, rank_of, spells


@spells("Relu")
def relu(b: Builder, node: ir.Node) -> ir.Value:
    x = node.inputs[0]
    assert x is not None
    zero = b.number(0.0, x)
    form = b.rng.choice(["max", "max swapped", "leaky", "prelu"])
    if form == "max":
        return b.op("Max", x, zero)
    if form == "max swapped":
        return b.op("Max", zero, x)
    if form == "leaky":
        return b.op("LeakyRelu", x, alpha=0.0)
    return b.op("PRelu", x, zero)


@spells("Sigmoid")
def sigmoid(b: Builder, node: ir.Node) -> ir.Value:
    x = node.inputs[0]
    assert x is not None
    form = b.rng.choice(["div", "reciprocal", "tanh", "mul"])
    if form == "tanh":
        half = b.number(0.5, x)
        return b.op("Add", b.op("Mul", b.op("Tanh", b.op("Mul", x, half)), half), half)
    negative = b.op("Mul", x, b.number(-1.0, x)) if form == "mul" else b.op("Neg", x)
    one = b.number(1.0, x)
    sum_ = b.op("Add", *b.rng.sample([one, b.op("Exp", negative)], 2))
    return b.op("Reciprocal", sum_) if form == "reciprocal" else b.op("Div", one, sum_)


@spells("Mul")
def silu(b: Builder, node: ir.Node) -> ir.Value | None:
    """Only of x * Sigmoid(x): x / (1 + exp(-x))."""
    for x, gate in (node.inputs, reversed(node.inputs)):
        made = None if gate is None else gate.producer()
        if made is not None and made.op_type == "Sigmoid" and made.inputs[0] is x and x is not None:
            sum_ = b.op("Add", *b.rng.sample([b.number(1.0, x), b.op("Exp", b.op("Neg", x))], 2))
            return b.op("Div", x, sum_) if b.rng.random() < 0.7 else b.op("Mul", x, b.op("Reciprocal", sum_))
    return None


@spells("Gelu")
def gelu(b: Builder, node: ir.Node) -> ir.Value:
    x = node.inputs[0]
    assert x is not None
    one, half = b.number(1.0, x), b.number(0.5, x)
    if node.attributes.get_string("approximate", "none") == "tanh":
        inner = _tanh(b, x)
    elif b.rng.random() < 0.6:
        inner = b.op("Erf", b.op("Div", x, b.number(math.sqrt(2), x)))
    else:
        inner = b.op("Erf", b.op("Mul", *b.rng.sample([x, b.number(math.sqrt(0.5), x)], 2)))
    sum_ = b.op("Add", *b.rng.sample([inner, one], 2))
    form = b.rng.choice(["x first", "sum first", "last", "last div"])
    if form == "x first":
        return b.op("Mul", *b.rng.sample([b.op("Mul", *b.rng.sample([x, half], 2)), sum_], 2))
    if form == "sum first":
        return b.op("Mul", *b.rng.sample([x, b.op("Mul", *b.rng.sample([half, sum_], 2))], 2))
    whole = b.op("Mul", *b.rng.sample([x, sum_], 2))
    return b.op("Div", whole, b.number(2.0, x)) if form == "last div" else b.op("Mul", whole, half)


def _tanh(b: Builder, x: ir.Value) -> ir.Value:
    """tanh(sqrt(2 / pi) (x + 0.044715 x^3))."""
    cube = b.number(0.044715, x)
    outer = b.number(math.sqrt(2 / math.pi), x)
    form = b.rng.choice(["pow", "mul", "factored"])
    if form == "factored":  # x * 0.79788 * (1 + 0.044715 * x * x)
        square = b.op("Mul", b.op("Mul", x, cube), x)
        return b.op("Tanh", b.op("Mul", b.op("Mul", x, outer), b.op("Add", square, b.number(1.0, x))))
    power = b.op("Pow", x, b.number(3.0, x)) if form == "pow" else b.op("Mul", b.op("Mul", x, x), x)
    inner = b.op("Add", *b.rng.sample([x, b.op("Mul", *b.rng.sample([power, cube], 2))], 2))
    return b.op("Tanh", b.op("Mul", *b.rng.sample([inner, outer], 2)))


@spells("Softmax")
def softmax(b: Builder, node: ir.Node) -> ir.Value:
    x = node.inputs[0]
    assert x is not None
    axis, rank = axis_of(node, -1), rank_of(x)
    axes = b.constant([axis if b.rng.random() < 0.5 else axis - rank])
    form = b.rng.choice(["max", "max", "plain", "log", "reciprocal"])
    if form == "log":
        return b.op("Exp", b.op("LogSoftmax", x, axis=axis))
    shifted = x if form == "plain" else b.op("Sub", x, b.op("ReduceMax", x, axes, keepdims=1))
    powers = b.op("Exp", shifted)
    total = b.op("ReduceSum", powers, axes, keepdims=1)
    return b.op("Mul", powers, b.op("Reciprocal", total)) if form == "reciprocal" else b.op("Div", powers, total)


@spells("Softmax")
def softmax_axis(b: Builder, node: ir.Node) -> ir.Value:
    axis, rank = node.attributes.get_int("axis", -1), rank_of(node.inputs[0])
    return b.op("Softmax", node.inputs[0], axis=axis - rank if axis >= 0 else axis + rank)


@spells("Softmax")
def softmax_of_rows(b: Builder, node: ir.Node) -> ir.Value | None:
    """As converters write Softmax of opset 12."""
    x = node.inputs[0]
    if axis_of(node, -1) != rank_of(x) - 1:
        return None
    rows = b.op("Flatten", x, axis=b.rng.choice([rank_of(x) - 1, -1]))
    return b.op("Reshape", b.op("Softmax", rows, axis=b.rng.choice([-1, 1])), b.op("Shape", x))


@spells("LayerNormalization")
def layer_norm(b: Builder, node: ir.Node) -> ir.Value:
    """In float32, as stash_type says; in the model's own dtype where that is float32."""
    x, scale, shift = node.inputs
    assert x is not None and x.dtype is not None and scale is not None
    narrow = x.dtype != ir.DataType.FLOAT
    y = b.op("Cast", x, to=int(ir.DataType.FLOAT)) if narrow else x
    y.dtype, y.shape = ir.DataType.FLOAT, x.shape
    axes, float32 = b.constant([-1]), ir.DataType.FLOAT
    centred = b.op("Sub", y, b.op("ReduceMean", y, axes, keepdims=1))
    form = b.rng.choice(["pow", "mul", "again"])
    if form == "again":  # as some exporters, which subtract twice
        other = b.op("Sub", y, b.op("ReduceMean", y, axes, keepdims=1))
        square = b.op("Pow", other, b.constant(np.array(2.0), float32))
    else:
        square = _square(b, centred, form)
    shifted = b.op("Add", *b.rng.sample([b.op("ReduceMean", square, axes, keepdims=1), _epsilon(b, node)], 2))
    normal = _divided(b, centred, shifted)
    normal = b.op("Cast", normal, to=int(x.dtype)) if narrow else normal
    scaled = b.op("Mul", *b.rng.sample([normal, scale], 2))
    return b.op("Add", *b.rng.sample([scaled, shift], 2))


def _epsilon(b: Builder, node: ir.Node) -> ir.Value:
    return b.constant(np.array(node.attributes.get_float("epsilon", 1e-5)), ir.DataType.FLOAT)


def _square(b: Builder, x: ir.Value, form: str) -> ir.Value:
    return b.op("Mul", x, x) if form == "mul" else b.op("Pow", x, b.constant(np.array(2.0), ir.DataType.FLOAT))


def _divided(b: Builder, x: ir.Value, square: ir.Value) -> ir.Value:
    """x divided by the root of `square`, in float32."""
    form, float32 = b.rng.choice(["div", "reciprocal", "inverse", "pow", "power"]), ir.DataType.FLOAT
    if form == "pow":
        return b.op("Mul", x, b.op("Pow", square, b.constant(np.array(-0.5), float32)))
    if form == "power":
        return b.op("Div", x, b.op("Pow", square, b.constant(np.array(0.5), float32)))
    root = b.op("Sqrt", square)
    if form == "div":
        return b.op("Div", x, root)
    one = b.constant(np.array(1.0), float32)
    inverse = b.op("Reciprocal", root) if form == "reciprocal" else b.op("Div", one, root)
    return b.op("Mul", *b.rng.sample([x, inverse], 2))


@spells("Reciprocal")
def reciprocal(b: Builder, node: ir.Node) -> ir.Value:
    x = node.inputs[0]
    assert x is not None
    made = x.producer()
    form = b.rng.choice(["div", "pow", "root"])
    if form == "root" and made is not None and made.op_type == "Sqrt":
        root = made.inputs[0]
        assert root is not None
        return b.op("Pow", root, b.number(-0.5, root))
    return b.op("Pow", x, b.number(-1.0, x)) if form == "pow" else b.op("Div", b.number(1.0, x), x)


@spells("Sqrt")
def sqrt(b: Builder, node: ir.Node) -> ir.Value:
    x = node.inputs[0]
    assert x is not None
    return b.op("Pow", x, b.number(0.5, x))


@spells("Mul")
def multiplied_reciprocal(b: Builder, node: ir.Node) -> ir.Value | None:
    for x, inverse in (node.inputs, reversed(node.inputs)):
        made = None if inverse is None else inverse.producer()
        if made is not None and made.op_type == "Reciprocal":
            return b.op("Div", x, made.inputs[0])
    return None


@spells("Pow")
def power(b: Builder, node: ir.Node) -> ir.Value | None:
    x = node.inputs[0]
    return b.op("Mul", x, x) if number_of(node.inputs[1]) == 2.0 else None


@spells("ReduceMean")
def mean(b: Builder, node: ir.Node) -> ir.Value | None:
    """By the sum, where the number of elements is known; of squares by ReduceSumSquare."""
    x, axes = node.inputs
    assert x is not None and x.shape is not None
    sizes = [x.shape[axis] for axis in ints_of(axes) or ()]
    if not all(isinstance(size, int) for size in sizes):
        return None
    count, keep = math.prod(int(str(size)) for size in sizes), node.attributes.get_int("keepdims", 1)
    made, summed, source = x.producer(), "ReduceSum", x
    if made is not None and made.op_type == "Pow" and number_of(made.inputs[1]) == 2.0 and b.rng.random() < 0.5:
        summed, source = "ReduceSumSquare", made.inputs[0]  # type: ignore[assignment]
    total = b.op(summed, source, axes, keepdims=keep)
    if b.rng.random() < 0.5:
        return b.op("Div", total, b.number(float(count), x))
    return b.op("Mul", total, b.number(1.0 / count, x))


@spells("ReduceMean")
def mean_without_dims(b: Builder, node: ir.Node) -> ir.Value | None:
    x, axes = node.inputs
    if not node.attributes.get_int("keepdims", 1):
        return None
    return b.op("Unsqueeze", b.op("ReduceMean", x, axes, keepdims=0), axes)


@spells("GlobalAveragePool")
def global_mean(b: Builder, node: ir.Node) -> ir.Value:
    return b.op("ReduceMean", node.inputs[0], b.constant(b.rng.choice([[2, 3], [-1, -2], [-2, -1]])), keepdims=1)
