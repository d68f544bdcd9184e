"""Operators of ONNX Runtime's optimizers."""

from __future__ import annotations

import onnx_ir as ir

from tests.fuzz.respell.building import Builder
from tests.fuzz.respell.spelling import constant_of, number_of, spells

_DOMAIN = "com.microsoft"


def _op(b: Builder, op_type: str, *inputs: ir.Value | None, **attributes: float | int) -> ir.Value:
    result = b.op(op_type, *inputs, **attributes)
    node = result.producer()
    assert node is not None
    node.domain, b.graph.opset_imports[_DOMAIN] = _DOMAIN, 1
    return result


def _only_producer(value: ir.Value | None, op_type: str) -> ir.Node | None:
    """The node that computes a value with one reader, if it is of this operator."""
    node = None if value is None or len(value.uses()) != 1 else value.producer()
    return node if node is not None and (node.domain, node.op_type) == ("", op_type) else None


@spells("Gelu")
def fused_gelu(b: Builder, node: ir.Node) -> ir.Value | None:
    """Gelu, with the bias that its operand gets; FastGelu of the form by tanh."""
    tanh = node.attributes.get_string("approximate", "none") == "tanh"
    total = _only_producer(node.inputs[0], "Add")
    bias = None if total is None else constant_of(total.inputs[1])
    if total is None or bias is None or len(bias.shape) != 1 or bias.shape[0] == 1:
        return _op(b, "FastGelu" if tanh else "Gelu", node.inputs[0])
    return _op(b, "FastGelu" if tanh else "BiasGelu", *total.inputs)


@spells("LayerNormalization")
def skip_norm(b: Builder, node: ir.Node) -> ir.Value | None:
    """The norm of a sum of two tensors of three dims."""
    total = _only_producer(node.inputs[0], "Add")
    shapes = [] if total is None else [value.shape for value in total.inputs if value is not None]
    if total is None or None in shapes or shapes[0] != shapes[1] or len(shapes[0]) != 3:  # type: ignore[arg-type]
        return None
    epsilon = node.attributes.get_float("epsilon", 1e-5)
    return _op(b, "SkipLayerNormalization", *total.inputs, *node.inputs[1:], epsilon=epsilon)  # type: ignore[arg-type]


@spells("Mul")
def scaled_product(b: Builder, node: ir.Node) -> ir.Value | None:
    """A product times a number."""
    product, number = _only_producer(node.inputs[0], "MatMul"), number_of(node.inputs[1])
    if product is None or number is None or len(constant_of(node.inputs[1]).shape):  # type: ignore[union-attr]
        return None
    return _op(b, "FusedMatMul", *product.inputs, alpha=number)
