"""One rule for each operator: the fact of its result from the facts of its operands."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir

from onnxopt.graph.match import is_constant
from onnxopt.graph.precision import arithmetic_facts, sum_facts
from onnxopt.graph.precision.arithmetic_facts import HIDES
from onnxopt.graph.precision.facts import INF, UNKNOWN, Fact, Rule, bounded, dtype_fact, merged
from onnxopt.graph.precision.values import FLOATS

_replace = dataclasses.replace


def _moved(*positions: int) -> Rule:
    """Elements of the operands at these positions; of all where none is given."""

    def rule(node: ir.Node, x: Sequence[Fact]) -> Fact:
        chosen = [x[k] for k in positions if k < len(x)] or [
            f for f, v in zip(x, node.inputs, strict=True) if v is not None
        ]
        return merged(chosen) if chosen else UNKNOWN

    return rule


def _gather(node: ir.Node, x: Sequence[Fact]) -> Fact:
    table = is_constant(node.inputs[0]) and not is_constant(node.inputs[1])
    return _replace(x[0], data=x[0].data or table, direct=x[0].direct and not table)


def _where(node: ir.Node, x: Sequence[Fact]) -> Fact:
    either = merged(x[1:])
    guards = [f.low for f in x[1:] if f.low == f.high > 0]
    return _replace(either, floor=min([either.floor, *guards]), count=either.count and not hides_integers(node))


def hides_integers(node: ir.Node) -> bool:
    """Whether Where puts numbers of -1e4 or less in place of elements that are not 0, as masks are filled."""
    condition = node.inputs[0].producer() if node.op_type == "Where" and node.inputs[0] is not None else None
    low = None if condition is None else node.inputs[1]
    if condition is None or low is None or condition.op_type != "Cast" or condition.inputs[0] is not node.inputs[2]:
        return False
    tensor = low.const_value
    return tensor is not None and not low.is_graph_input() and bool((tensor.numpy() <= -HIDES).all())


def _cast(node: ir.Node, x: Sequence[Fact]) -> Fact:
    value = node.inputs[0]
    source = None if value is None else value.dtype
    to = ir.DataType(node.attributes.get_int("to", 1))
    if source is not None and source not in FLOATS:
        bounds = dtype_fact(source)
        return _replace(x[0], low=max(x[0].low, bounds.low), high=min(x[0].high, bounds.high))
    if to not in FLOATS:  # whole numbers of any size: buckets, ids
        return _replace(x[0], count=True, data=False, grows=False)
    return x[0]


def _sizes(_node: ir.Node, _x: Sequence[Fact]) -> Fact:
    return Fact(0.0, INF, count=True, data=False, direct=True)


def _range(_node: ir.Node, x: Sequence[Fact]) -> Fact:
    return Fact(-INF, INF, count=True, data=False, direct=True)


def _concatenated(node: ir.Node, x: Sequence[Fact]) -> Fact:
    return merged(list(x)) if x else UNKNOWN


def _with_zeros(_node: ir.Node, x: Sequence[Fact]) -> Fact:
    """Elements of the first operand, and zeros."""
    return _replace(x[0], low=min(x[0].low, 0.0), high=max(x[0].high, 0.0))


def _filled(node: ir.Node, _x: Sequence[Fact]) -> Fact:
    """One number, everywhere."""
    tensor = node.attributes.get_tensor("value", None)
    number = 0.0 if tensor is None else float(tensor.numpy().reshape(-1)[0])
    return Fact(number, number, data=False, direct=True, whole=number.is_integer())


def _one_hot(_node: ir.Node, x: Sequence[Fact]) -> Fact:
    return x[2]


RULES: dict[str, Rule] = {
    **dict.fromkeys(
        ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Expand", "Tile", "Split", "Slice", "GatherND",
         "GatherElements", "Identity", "DepthToSpace", "SpaceToDepth", "Compress", "ReverseSequence", "MaxPool",
         "GlobalMaxPool", "Dropout"),
        _moved(0),
    ),
    **dict.fromkeys(("Trilu", "AveragePool", "GlobalAveragePool", "Pad", "Resize"), _with_zeros),
    "Gather": _gather, "Concat": _concatenated, "Where": _where, "Cast": _cast,
    "ConstantOfShape": _filled, "OneHot": _one_hot, "EyeLike": bounded(0.0, 1.0),
    "Range": _range,
    **dict.fromkeys(("Shape", "Size", "NonZero", "ArgMax", "ArgMin"), _sizes),
    **arithmetic_facts.RULES,
    **sum_facts.RULES,
}  # fmt: skip
