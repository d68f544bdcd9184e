"""Inputs in which NaN and infinity are not to be tried: operators that depend on them have no defined result of NaN.

Arithmetic defines what NaN gives, and ONNX Runtime checks the indices and sizes that a Cast makes of it. What is left
are the rows of `_HAZARDS`.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

_ORDERS = "its order of NaN is not defined, and sorting by it may leave the array"
_ADDRESSES = "it computes the place of an element of it"
_COUNTS = "it computes a number of elements or of steps of it"
_ROUNDS = "which code NaN becomes is not defined"
_SIGN = "its result of NaN differs between the dtypes and providers of ONNX Runtime: NaN or 0"
_FOLDED = "mean and variance may be folded into an infinite factor and its term first, which gives NaN or not"
_ALL = tuple(range(8))

# By operator: positions of the operands that NaN must not reach, and why.
_HAZARDS: Mapping[tuple[str, str], tuple[tuple[int, ...], str]] = {
    ("", "TopK"): ((0,), _ORDERS),
    ("", "Unique"): ((0,), _ORDERS),
    ("", "NonMaxSuppression"): (_ALL, _ORDERS),
    ("", "Multinomial"): ((0,), _ORDERS),
    ("", "Hardmax"): ((0,), _ORDERS),
    ("com.microsoft", "MoE"): ((1,), _ORDERS),
    ("com.microsoft", "QMoE"): ((1,), _ORDERS),
    ("com.microsoft", "BeamSearch"): (_ALL, _ORDERS),
    ("com.microsoft", "GreedySearch"): (_ALL, _ORDERS),
    ("com.microsoft", "Sampling"): (_ALL, _ORDERS),
    ("", "Sign"): ((0,), _SIGN),
    ("", "BatchNormalization"): ((1, 2, 3, 4), _FOLDED),
    ("", "InstanceNormalization"): ((1, 2), _FOLDED),
    ("", "GridSample"): ((1,), _ADDRESSES),
    ("com.microsoft", "GridSample"): ((1,), _ADDRESSES),
    ("", "RoiAlign"): ((1,), _ADDRESSES),
    ("", "MaxRoiPool"): ((1,), _ADDRESSES),
    ("", "DeformConv"): ((2, 3), _ADDRESSES),
    ("", "AffineGrid"): ((0,), _ADDRESSES),
    ("", "Resize"): ((1, 2, 3), _ADDRESSES),
    ("", "Upsample"): ((1,), _ADDRESSES),
    ("", "Range"): (_ALL, _COUNTS),
    ("", "Loop"): ((0,), _COUNTS),
    ("", "QuantizeLinear"): ((0, 1), _ROUNDS),
    ("", "DynamicQuantizeLinear"): ((0,), _ROUNDS),
    ("com.microsoft", "QuantizeLinear"): ((0, 1), _ROUNDS),
    ("com.microsoft", "DynamicQuantizeLSTM"): ((0,), _ROUNDS),
    ("com.microsoft", "DynamicQuantizeMatMul"): ((0,), _ROUNDS),
    ("com.microsoft", "MatMulIntegerToFloat"): ((0,), _ROUNDS),
}
# ONNX Runtime's CPU kernels for these lose NaN, or keep it, by the order of the elements, which is another one where a
# convolution of one dim runs as one of images. Pools of images are tried with samples of NaN alone.
_MAXIMA = frozenset({"GlobalMaxPool", "MaxPool", "ReduceMax", "ReduceMin"})
_MAXIMUM = "whether one NaN among numbers is its result depends on the order of these"
# Positions that are computed may be rounded to the next pixel, whose weight is then about 0 where it was not read.
_PIXELS = "which results have a pixel that is NaN depends on the last digits of computed positions"
_STEPS_AFTER_CONVOLUTION, _RANK_OF_ROWS = 6, 3
# torch exports attention so that rows whose keys are all hidden give 0. Attention operators have no such step, and rows
# that see a key reach it by NaN and infinities alone.
_GUARD = "a guard of attention, which attention operators leave out"
_DOMAINS = ("", "ai.onnx", "com.microsoft")


def inputs_of_hazards(model: ir.Model) -> dict[str, str]:
    """The model's inputs that reach such an operand, or an operator of another domain, and why NaN is not tried there.

    An operator in a body or a function counts as one that every input reaches.
    """
    reasons: dict[str, str] = {}
    inner = [node for function in model.functions.values() for node in function.all_nodes()]
    for node in (*model.graph.all_nodes(), *inner):
        positions, reason = ((), "") if node.op_identifier() in model.functions else _of(node)
        if not positions:
            continue
        if node.graph is not model.graph:
            return {value.name or "": reason for value in model.graph.inputs}
        operands = [node.inputs[k] for k in positions if k < len(node.inputs)]
        for value in _inputs(model.graph, [value for value in operands if value is not None]):
            reasons.setdefault(value.name or "", reason)
    return reasons


def _of(node: ir.Node) -> tuple[tuple[int, ...], str]:
    domain = "" if node.domain == "ai.onnx" else node.domain
    if domain not in _DOMAINS:
        return _ALL, f"{domain}.{node.op_type} is not known"
    operand = node.inputs[0] if node.inputs else None
    producer = None if operand is None else operand.producer()
    if node.op_type == "IsNaN" and producer is not None and producer.op_type == "Softmax":
        return (0,), f"IsNaN of a Softmax: {_GUARD}"
    positions, reason = _HAZARDS.get((domain, node.op_type), ((), ""))
    if domain == "" and node.op_type in _MAXIMA and _is_convolved_row(operand):
        positions, reason = (0,), _MAXIMUM
    if node.op_type == "GridSample" and len(node.inputs) > 1 and (grid := node.inputs[1]) is not None:
        positions, reason = ((0, 1), _PIXELS) if grid.producer() is not None else (positions, reason)
    return positions, f"{node.op_type}: {reason}"


def _is_convolved_row(value: ir.Value | None) -> bool:
    """Whether a convolution of one dim has this result, with what follows it element by element."""
    for _ in range(_STEPS_AFTER_CONVOLUTION):
        node = None if value is None else value.producer()
        if node is None or not node.inputs:
            return False
        if node.op_type in ("Conv", "ConvTranspose"):
            weight = node.inputs[1]
            shape = None if weight is None else weight.shape
            return shape is not None and len(shape) == _RANK_OF_ROWS
        value = node.inputs[0]
    return False


def _inputs(graph: ir.Graph, values: list[ir.Value]) -> list[ir.Value]:
    """The graph's inputs on which the elements of these values depend; sizes do not count. A body may read all."""
    seen, pending = set(values), list(values)
    while pending:
        node = pending.pop().producer()
        if node is None or node.op_type in ("Shape", "Size"):
            continue
        if any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in node.attributes.values()):
            return list(graph.inputs)
        unseen = [v for v in node.inputs if v is not None and v not in seen]
        seen.update(unseen)
        pending.extend(unseen)
    return [value for value in graph.inputs if value in seen]
