"""Activations behind a convolution: which nodes compute one, and what it is called in program/convolution.py.

Relu | Clip from 0 | LeakyRelu | PRelu with constant slopes | HardSwish | Swish
v * Sigmoid(v)                       silu
v * HardSigmoid(v)                   hardswish, with alpha = 1 / 6 and beta = 1 / 2
v * Clip(v + 3, 0, 6) / 6            hardswish; the factor may also stand before the product
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import ml_dtypes
import onnx_ir as ir

from onnxopt.graph.match import is_constant, only_consumer
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.program.dtypes import to_ir

_SINGLE = frozenset({"Relu", "Clip", "LeakyRelu", "PRelu", "HardSwish", "Swish"})
_GATES = frozenset({"Sigmoid", "HardSigmoid", "Add", "Clip", "Div", "Mul"})
_LONGEST_GATE = 4
_SAME_FACTOR = 5e-4  # relative, as 1 / 6 is rounded to float16


class Activation(NamedTuple):
    """name: of ACTIVATIONS. value: the upper bound of a clip, the slope of a leaky_relu, else 0.

    slope: of a prelu, one number a channel.
    """

    name: str
    value: float = 0.0
    slope: ir.Value | None = None


NONE = Activation("none")


def is_activation(node: ir.Node) -> bool:
    """Whether a node is one, or the last one of some."""
    return node.domain == "" and (node.op_type in _SINGLE or node.op_type in ("Mul", "Div"))


def gated(value: ir.Value) -> list[ir.Node]:
    """The nodes behind a value with two readers that make a product of it and of a function of it; none elsewhere."""
    uses = list(value.uses())
    readers = list(dict.fromkeys(u.node for u in uses))
    if len(uses) != 2 or len(readers) != 2 or value.is_graph_output():
        return []
    for first, product in (readers, readers[::-1]):
        nodes = _gate(first, value, product)
        if nodes:
            return nodes
    return []


def of(value: ir.Value, nodes: Sequence[ir.Node], shapes: Shapes) -> Activation | str:
    """What nodes behind a value compute, or why it is no activation that convolutions take in."""
    last = nodes[-1]
    if len(nodes) == 1:
        return _single(value, last, shapes)
    gate = nodes[0]
    if gate.op_type == "Sigmoid" and len(nodes) == 2:
        return Activation("silu")
    if gate.op_type == "HardSigmoid" and len(nodes) == 2:
        alpha, beta = gate.attributes.get_float("alpha", 0.2), gate.attributes.get_float("beta", 0.5)
        return Activation("hardswish") if _same(alpha, 1 / 6) and beta == 0.5 else "The HardSigmoid is not HardSwish's"
    return (
        Activation("hardswish") if _is_decomposed_hardswish(value, nodes) else f"No activation ends with {last.op_type}"
    )


def _single(value: ir.Value, node: ir.Node, shapes: Shapes) -> Activation | str:
    if node.op_type == "Relu":
        return Activation("relu")
    if node.op_type == "HardSwish":
        return Activation("hardswish")
    if node.op_type == "LeakyRelu":
        slope = node.attributes.get_float("alpha", 0.01)
        return Activation("leaky_relu", slope) if math.isfinite(slope) else "The slope is not finite"
    if node.op_type == "Swish":
        plain = node.attributes.get_float("alpha", 1.0) == 1.0
        return Activation("silu") if plain else "The Swish has an alpha other than 1"
    if node.op_type == "PRelu":
        return _prelu(value, node, shapes)
    if node.op_type == "Clip":
        greatest = _greatest(value, shapes)  # what ONNX takes for a bound that is left out
        low, high = _bound(node, 1, -greatest), _bound(node, 2, greatest)
        if low != 0 or high is None or not high > 0:
            return "The Clip is not from 0 to a constant above"
        return Activation("clip", high) if math.isfinite(high) else Activation("relu")
    return f"cuDNN has no epilogue for {node.op_type}"


def _prelu(value: ir.Value, node: ir.Node, shapes: Shapes) -> Activation | str:
    slope = node.inputs[1]
    if node.inputs[0] is not value or slope is None or not is_constant(slope) or slope.const_value is None:
        return "The slopes of the PRelu are no constant"
    if (one := _scalar(slope)) is not None:
        return Activation("leaky_relu", one) if math.isfinite(one) else "The slope is not finite"
    channels = (shapes.dims(value) or (None,))[-1]
    if slope.const_value.shape.numpy() != (channels,) or shapes.dtype(slope) != shapes.dtype(value):
        return "The PRelu has not one slope a channel"
    return Activation("prelu", slope=slope)


def _gate(first: ir.Node, value: ir.Value, product: ir.Node) -> list[ir.Node]:
    """`first`, what follows it up to the product with the value, and the product; a factor behind it too."""
    nodes: list[ir.Node] = []
    node: ir.Node | None = first
    while node is not None and node is not product:
        if node.domain != "" or node.op_type not in _GATES or len(nodes) == _LONGEST_GATE:
            return []
        nodes.append(node)
        node = only_consumer(node.outputs[0])
    if node is None or product.op_type != "Mul" or product.domain != "":
        return []
    if set(product.inputs) != {value, nodes[-1].outputs[0]}:
        return []
    nodes.append(product)
    consumer = only_consumer(product.outputs[0])
    if first.op_type == "Add" and len(nodes) == 3 and consumer is not None and _factor(consumer, product.outputs[0]):
        nodes.append(consumer)
    return nodes


def _is_decomposed_hardswish(value: ir.Value, nodes: Sequence[ir.Node]) -> bool:
    add, clip = nodes[0], nodes[1]
    shifted = _scalar(next((v for v in add.inputs if v is not value), None))
    if add.op_type != "Add" or clip.op_type != "Clip" or shifted != 3 or len(nodes) != 4:
        return False
    if _bound(clip, 1, -math.inf) != 0 or _bound(clip, 2, math.inf) != 6:
        return False
    scaled = nodes[2] if nodes[3].inputs and value in nodes[3].inputs else nodes[3]
    operand = clip.outputs[0] if scaled is nodes[2] else nodes[2].outputs[0]
    return _same(_factor(scaled, operand), 1 / 6)


def _factor(node: ir.Node, operand: ir.Value) -> float:
    """The constant that a node multiplies an operand with, 0 where it does something else."""
    if node.domain != "" or node.op_type not in ("Mul", "Div") or len(node.inputs) != 2:
        return 0.0
    at = 1 if node.inputs[0] is operand else 0
    constant = _scalar(node.inputs[at])
    if not constant or node.inputs[1 - at] is not operand:
        return 0.0
    if node.op_type == "Div":
        return 1 / constant if at == 1 else 0.0
    return constant


def _bound(node: ir.Node, position: int, missing: float) -> float | None:
    """A bound of a Clip; None where it is computed."""
    value = node.inputs[position] if len(node.inputs) > position else None
    return missing if value is None else _scalar(value)


def _greatest(value: ir.Value, shapes: Shapes) -> float:
    """The greatest finite number of a value's dtype."""
    dtype = shapes.dtype(value)
    if dtype is None:
        return math.inf
    return float(ml_dtypes.finfo(to_ir(dtype.name).numpy()).max)


def _scalar(value: ir.Value | None) -> float | None:
    if value is None or not is_constant(value) or value.const_value is None or value.const_value.size != 1:
        return None
    return float(value.const_value.numpy().reshape(-1)[0])


def _same(a: float, b: float) -> bool:
    return abs(a - b) <= _SAME_FACTOR * abs(b)
