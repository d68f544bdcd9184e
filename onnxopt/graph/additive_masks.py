"""Which operands are masks that are added to the scores of an attention: 0 for keys that are seen, else far below."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import onnx_ir as ir

HIDDEN = -3e4  # hides a key in float16: exp of it is 0, and two of them add up to a number of float16
LOWEST_SHOWN = -2e4  # a query to whose every key a mask of float16 adds no more than this sees none
# What stands between a product and its Softmax.
_STEPS = frozenset(
    {"Add", "Cast", "Clip", "Div", "Expand", "Identity", "Max", "Mul", "Reshape", "Softcap", "Squeeze", "Sub", "Sum",
     "Tanh", "Transpose", "Unsqueeze", "Where"}
)  # fmt: skip
_MOVES = frozenset({"Expand", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
_PRODUCTS = frozenset({"Einsum", "FusedMatMul", "MatMul"})
_OPERANDS = {("", "Attention"): 3, ("com.microsoft", "Attention"): 5, ("com.microsoft", "MultiHeadAttention"): 5}
_FARTHEST = 10  # nodes between a product and its Softmax


def is_additive_mask(node: ir.Node, position: int) -> bool:
    """Whether a node adds this operand to scores that a Softmax follows.

    Scores are products of two computed values, or what the graph reads as an input and the operand is broadcast to.
    """
    if _OPERANDS.get((node.domain, node.op_type)) == position:
        return True
    if node.domain or node.op_type not in ("Add", "Sum"):
        return False
    others = [v for k, v in enumerate(node.inputs) if k != position and v is not None]
    if not _reaches([node], _consumers, _is_softmax):
        return False
    producers = [v.producer() for v in others]
    return _reaches(producers, _producers, _is_product_of_computed) or any(
        _is_broadcast(node.inputs[position], _input_of(other)) for other in others
    )


def _is_broadcast(value: ir.Value | None, other: ir.Value | None) -> bool:
    """Whether a value is stretched along a dim of the other."""
    if value is None or value.shape is None or other is None or other.shape is None:
        return False
    dims, longer = list(value.shape), list(other.shape)
    aligned = zip([1] * (len(longer) - len(dims)) + dims, longer, strict=False)
    return len(dims) <= len(longer) and any(dim == 1 != length for dim, length in aligned)


def _input_of(value: ir.Value) -> ir.Value | None:
    """The input of the graph that elementwise steps turn into this value, of its shape."""
    for _ in range(_FARTHEST):
        producer = value.producer()
        if producer is None:
            return value if value.is_graph_input() else None
        first = producer.inputs[0] if producer.inputs else None
        if first is None or producer.op_type not in _STEPS - _MOVES:
            return None
        value = first
    return None


def _reaches(
    start: Iterable[ir.Node | None],
    following: Callable[[ir.Node], Iterable[ir.Node | None]],
    is_end: Callable[[ir.Node], bool],
) -> bool:
    nodes, seen = [n for n in start if n is not None], set[ir.Node]()
    for _ in range(_FARTHEST):
        if any(is_end(node) for node in nodes):
            return True
        seen.update(nodes)
        steps = [n for node in nodes if node.op_type in _STEPS for n in following(node)]
        nodes = list(dict.fromkeys(n for n in steps if n is not None and n not in seen))
    return False


def _consumers(node: ir.Node) -> Iterable[ir.Node | None]:
    return (use.node for value in node.outputs for use in value.uses())


def _producers(node: ir.Node) -> Iterable[ir.Node | None]:
    return (value.producer() for value in node.inputs if value is not None)


def _is_softmax(node: ir.Node) -> bool:
    return node.op_type == "Softmax"


def _is_product_of_computed(node: ir.Node) -> bool:
    """Of queries and keys, so of two values that nodes compute, neither a constant nor a weight."""
    if node.op_type not in _PRODUCTS:
        return False
    producers = [value.producer() for value in node.inputs[:2] if value is not None]
    return all(p is not None and p.op_type not in ("Constant", "DequantizeLinear") for p in producers)
