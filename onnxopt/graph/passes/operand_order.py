"""The operands of binary operators in one order, and constant vectors in one shape, which changes no bit of the result.

Add | Mul | Max | Min (constant, x)                   -> (x, constant)
Add | Mul | Max | Min (f(x), x)                       -> (x, f(x))         f an operator of one operand, or several
Add | Sub | Mul | Div (x, constant [1, .., 1, N])     -> (x, constant [N]) where x has as many dims
"""

from __future__ import annotations

import onnx_ir as ir

from onnxopt.graph.match import is_constant

_COMMUTATIVE = frozenset({"Add", "Mul", "Max", "Min"})
_BINARY = frozenset({"Add", "Sub", "Mul", "Div"})
_STEPS = 3  # of f that are looked at


class OperandOrderPass(ir.passes.InPlacePass):
    """The pass. Constants are initializers, and shapes were inferred."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        modified = False
        for node in model.graph.all_nodes():
            if (
                node.domain == ""
                and node.op_type in _COMMUTATIVE
                and len(node.inputs) == 2
                and _is_turned(*node.inputs)
            ):
                first, second = node.inputs
                node.replace_input_with(0, second)
                node.replace_input_with(1, first)
                modified = True
        for graph in model.graphs():
            for constant in graph.initializers.values():
                if _has_leading_ones(constant) and all(_keeps_dims(use.node, use.idx) for use in constant.uses()):
                    _drop_leading_ones(constant)
                    modified = True
        return ir.passes.PassResult(model, modified)


def _is_turned(first: ir.Value | None, second: ir.Value | None) -> bool:
    if first is None or second is None or first is second:
        return False
    if is_constant(first) or is_constant(second):
        return is_constant(first) and not is_constant(second)
    return _is_computed_of(first, second)


def _is_computed_of(value: ir.Value, x: ir.Value) -> bool:
    """Whether a few operators of one operand compute a value of x."""
    for _ in range(_STEPS):
        node = value.producer()
        if node is None or len(node.inputs) != 1 or node.inputs[0] is None:
            return False
        value = node.inputs[0]
        if value is x:
            return True
    return False


def _has_leading_ones(constant: ir.Value) -> bool:
    tensor = constant.const_value
    if tensor is None or constant.is_graph_input() or constant.is_graph_output() or not constant.uses():
        return False
    return len(tensor.shape) > 1 and all(d == 1 for d in tensor.shape.numpy()[:-1])


def _keeps_dims(node: ir.Node, index: int) -> bool:
    """Whether the other operand has as many dims as the constant, so that the result keeps its own."""
    if node.domain != "" or node.op_type not in _BINARY or index != 1:
        return False
    x, constant = node.inputs
    if x is None or x is constant or x.shape is None or constant is None or constant.const_value is None:
        return False
    return len(x.shape) >= len(constant.const_value.shape)


def _drop_leading_ones(constant: ir.Value) -> None:
    tensor = constant.const_value
    assert tensor is not None
    constant.const_value = ir.tensor(tensor.numpy().reshape(-1), dtype=tensor.dtype, name=constant.name)
    constant.shape = ir.Shape(constant.const_value.shape.numpy())
