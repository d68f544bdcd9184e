"""Rules of sums: reductions, products, scatters. Those over dynamic dims grow with the size of an input."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir

from onnxopt.graph.match import is_constant
from onnxopt.graph.precision.arithmetic_facts import counts, is_squared
from onnxopt.graph.precision.facts import INF, Fact, Rule, bounded, merged
from onnxopt.graph.precision.values import FLOATS

_replace = dataclasses.replace


def _softmax(node: ir.Node, _x: Sequence[Fact]) -> Fact:
    value = node.inputs[0]
    return Fact(0.0, 1.0, shrinks=value is not None and is_dynamic(value, node.attributes.get_int("axis", -1)))


def is_dynamic(value: ir.Value, axis: int) -> bool:
    """Whether a dim is a named one, so that runs give it any size."""
    shape = value.shape
    if shape is None or not -len(shape) <= axis < len(shape):
        return False
    return not isinstance(shape[axis], int)


def _reduced_axes(node: ir.Node) -> list[int] | None:
    value = node.inputs[0]
    rank = None if value is None or value.shape is None else len(value.shape)
    axes = node.attributes.get_ints("axes", None) if "axes" in node.attributes else None
    if axes is None and len(node.inputs) > 1 and node.inputs[1] is not None:
        tensor = node.inputs[1].const_value
        if tensor is None:
            return None
        axes = [int(k) for k in tensor.numpy().reshape(-1)]
    if axes:
        return list(axes)
    return [] if node.attributes.get_int("noop_with_empty_axes", 0) else list(range(rank)) if rank is not None else None


def _sums_dynamic(node: ir.Node) -> bool:
    axes, value = _reduced_axes(node), node.inputs[0]
    assert value is not None
    return axes is None or value.shape is None or any(is_dynamic(value, axis) for axis in axes)


def _sum(low: float = -INF) -> Rule:
    def rule(node: ir.Node, x: Sequence[Fact]) -> Fact:
        dynamic = _sums_dynamic(node)
        lower = 0.0 if x[0].low >= 0 else low
        return _replace(
            x[0],
            low=lower,
            high=0.0 if x[0].high <= 0 and low else INF,
            grows=x[0].grows or (dynamic and not x[0].shrinks),
            shrinks=x[0].shrinks and not dynamic,
            direct=False,
        )

    return rule


def _product_of_rows(node: ir.Node, x: Sequence[Fact]) -> Fact:
    """A product over a dynamic dim may be any number."""
    return Fact(0.0 if x[0].low >= 0 else -INF, INF, grows=_sums_dynamic(node), data=x[0].data, squared=x[0].data)


def _mean(_node: ir.Node, x: Sequence[Fact]) -> Fact:
    return _replace(x[0], direct=False, whole=False)


def _cumsum(node: ir.Node, x: Sequence[Fact]) -> Fact:
    value, axis = node.inputs[0], node.inputs[1]
    tensor = None if axis is None else axis.const_value
    assert value is not None
    dynamic = tensor is None or is_dynamic(value, int(tensor.numpy().reshape(-1)[0]))
    whole = value.dtype not in FLOATS
    low = 0.0 if x[0].low >= 0 else -INF
    return _replace(x[0], low=low, high=INF, grows=x[0].grows or dynamic, count=x[0].count or whole, direct=False)


def _product(node: ir.Node, x: Sequence[Fact]) -> Fact:
    """Sums of products, and a bias."""
    a, b = x[0], x[1]
    low = 0.0 if all(f.low >= 0 for f in x) else -INF
    grows = (a.grows and not b.shrinks) or (b.grows and not a.shrinks)
    if not grows and not a.shrinks and not b.shrinks:
        grows = _contracts_dynamic(node) and not any(map(_aligns, x[:2], node.inputs[:2]))
    bias = x[2] if len(x) > 2 else None
    return Fact(
        low,
        grows=grows or (bias is not None and bias.grows),
        count=counts(node, x) or (bias is not None and bias.count),
        data=any(f.data for f in x),
        squared=is_squared(node, x),
    )


def _aligns(fact: Fact, value: ir.Value | None) -> bool:
    """Whether an operand is a matrix of 0 and 1 between two dynamic dims, as alignments are: it selects."""
    between = value is not None and is_dynamic(value, -1) and is_dynamic(value, -2)
    return between and fact.whole and fact.magnitude <= 1


def _contracts_dynamic(node: ir.Node) -> bool:
    """Whether the dim that is summed over is a named one of both operands."""
    if node.op_type not in ("MatMul", "Gemm"):
        return False
    a, b = node.inputs[0], node.inputs[1]
    if a is None or b is None or a.shape is None or b.shape is None:
        return False
    swapped_a, swapped_b = (bool(node.attributes.get_int(name, 0)) for name in ("transA", "transB"))
    last = -1 if not swapped_a else -2
    first = (-2 if not swapped_b else -1) if len(b.shape) > 1 else -1
    return is_dynamic(a, last) and is_dynamic(b, first)


def _scattered(node: ir.Node, x: Sequence[Fact]) -> Fact:
    """Elements of the data, and of the updates; sums of these where the operator adds."""
    updates = node.inputs[2]
    either = merged((x[0], x[2]))
    if node.attributes.get_string("reduction", "none") not in ("add", "mul"):
        return either
    shape = None if updates is None else updates.shape
    dynamic = shape is None or not all(isinstance(dim, int) for dim in shape)
    low = 0.0 if either.low >= 0 else -INF
    return _replace(either, low=low, high=INF, grows=either.grows or dynamic, direct=False)


def _einsum(node: ir.Node, x: Sequence[Fact]) -> Fact:
    """Sums of products over the labels that the result has not."""
    count = any(f.count for f in x) and all(f.count or not f.data for f in x)
    grows = any(f.grows for f in x) and not any(f.shrinks for f in x)
    if not grows and not any(f.shrinks for f in x):
        grows = _contracts_dynamic_label(node)
    low = 0.0 if all(f.low >= 0 for f in x) else -INF
    squared = sum(f.data and not is_constant(v) for f, v in zip(x, node.inputs, strict=True)) > 1
    return Fact(low, count=count, grows=grows, data=any(f.data for f in x), squared=squared)


def _contracts_dynamic_label(node: ir.Node) -> bool:
    """Whether a label that is summed over is of a dynamic dim of every operand that has it."""
    terms, _, result = node.attributes.get_string("equation", "").replace(" ", "").partition("->")
    if not result or "." in terms:
        return not result
    sizes: dict[str, list[bool]] = {}
    for labels, value in zip(terms.split(","), node.inputs, strict=False):
        for k, label in enumerate(labels):
            if value is not None and label not in result:
                sizes.setdefault(label, []).append(is_dynamic(value, k))
    return any(map(all, sizes.values()))


RULES: dict[str, Rule] = {
    "Softmax": _softmax, "LogSoftmax": bounded(-INF, 0.0), "Hardmax": bounded(0.0, 1.0),
    "LpNormalization": bounded(-1.0, 1.0),
    **dict.fromkeys(("ReduceMean", "ReduceMax", "ReduceMin"), _mean),
    "ReduceSum": _sum(), **dict.fromkeys(("ReduceL1", "ReduceL2", "ReduceSumSquare"), _sum(0.0)),
    "ReduceProd": _product_of_rows,
    "CumSum": _cumsum,
    **dict.fromkeys(("MatMul", "Gemm", "Conv", "ConvTranspose"), _product), "Einsum": _einsum,
    **dict.fromkeys(("ScatterElements", "ScatterND"), _scattered),
}  # fmt: skip
