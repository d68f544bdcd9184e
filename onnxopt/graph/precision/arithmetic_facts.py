"""Rules of elementwise arithmetic: the fact of a result from the facts of its operands."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import onnx_ir as ir

from onnxopt.graph.match import is_constant
from onnxopt.graph.precision.facts import INF, Fact, Rule, bounded, lower_bound, merged

HIDES = 1e4  # factors of masks: what they multiply is 0 or hidden
LARGEST = 3e38  # of float32: what exceeds it overflows in the original too
_VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Expand", "Identity", "Cast"})
_replace = dataclasses.replace


def _times(a: float, b: float) -> float:
    return 0.0 if a == 0 or b == 0 else a * b


def _source(value: ir.Value | None) -> ir.Node | None:
    """The node that computes a value's elements."""
    node = None if value is None else value.producer()
    while node is not None and node.op_type in _VIEWS and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    return node


def _is_reduced(value: ir.Value | None, rows: ir.Value | None, op_type: str) -> bool:
    """Whether a value is a reduction of these rows by the operator."""
    node = _source(value)
    return node is not None and node.op_type == op_type and node.inputs[0] is rows


def _add(node: ir.Node, x: Sequence[Fact]) -> Fact:
    floor = INF
    for k, value in enumerate(node.inputs):
        if is_constant(value) and x[k].low > 0:
            rest = [lower_bound(f) for j, f in enumerate(x) if j != k]
            floor = min(floor, x[k].low + sum(r for r in rest if r < INF))
    floor = min(floor, *(f.floor for f in x)) if floor == INF else floor
    shrinks = all(f.shrinks for f in x)
    return _replace(merged(x), low=sum(f.low for f in x), high=sum(f.high for f in x), floor=floor, shrinks=shrinks)


def _sub(node: ir.Node, x: Sequence[Fact]) -> Fact:
    a, b = node.inputs[0], node.inputs[1]
    low, high = x[0].low - x[1].high, x[0].high - x[1].low
    if _is_reduced(b, a, "ReduceMax"):
        high = min(high, 0.0)
    if _is_reduced(b, a, "ReduceMin"):
        low = max(low, 0.0)
    floor = x[0].low if is_constant(a) and x[1].high <= 0 < x[0].low else INF  # epsilon - (-x)
    result = _replace(merged(x), low=low, high=high, floor=floor, shrinks=False)
    for whole, other, sign in ((b, a, 1.0), (a, b, -1.0)):
        node_of_whole = _source(whole)
        if node_of_whole is not None and node_of_whole.op_type in _FRACTIONS and node_of_whole.inputs[0] is other:
            ends = sorted(sign * end for end in _FRACTIONS[node_of_whole.op_type])
            return _replace(result, low=ends[0], high=ends[1], count=False, whole=False)
    return result


# What is left of x behind x - op(x).
_FRACTIONS = {"Floor": (0.0, 1.0), "Ceil": (-1.0, 0.0), "Round": (-0.5, 0.5)}


def _mul(node: ir.Node, x: Sequence[Fact]) -> Fact:
    a, b = x[0], x[1]
    corners = [_times(p, q) for p in (a.low, a.high) for q in (b.low, b.high)]
    low, high = min(corners), max(corners)
    if node.inputs[0] is node.inputs[1]:
        return _replace(a, low=max(low, 0.0), high=high, floor=a.floor**2, reach=a.reach**2, squared=a.data)
    floor, reach = INF, 0.0
    for constant, other, value in ((a, b, node.inputs[0]), (b, a, node.inputs[1])):
        if is_constant(value):
            floor, reach = min(floor, other.floor * constant.magnitude), max(reach, other.reach * constant.magnitude)
    return Fact(
        low,
        high,
        floor,
        reach,
        counts(node, x),
        (a.grows and not b.shrinks) or (b.grows and not a.shrinks),
        (a.shrinks and not b.grows) or (b.shrinks and not a.grows),
        a.data or b.data,
        a.direct and b.direct,
        a.whole and b.whole,
        is_squared(node, x),
    )


def is_squared(node: ir.Node, x: Sequence[Fact]) -> bool:
    """Whether a product multiplies data by data, or a result of that."""
    return any(f.squared for f in x[:2]) or (x[0].data and x[1].data and not any(map(is_constant, node.inputs[:2])))


def counts(node: ir.Node, x: Sequence[Fact]) -> bool:
    """Whether a product is linear in integers. Data that integers multiply is masked, and factors of 1e4 hide."""
    if any(is_constant(v) and f.magnitude >= HIDES for f, v in zip(x[:2], node.inputs[:2], strict=True)):
        return False
    a, b = x[0], x[1]
    return (a.count and (b.count or not b.data)) or (b.count and not a.data)


def _div(node: ir.Node, x: Sequence[Fact]) -> Fact:
    a, b = x[0], x[1]
    result = Fact(data=a.data or b.data, direct=a.direct and b.direct, squared=a.squared and not b.squared)
    result = _replace(result, grows=a.grows and not b.grows, count=a.count and not b.count and not b.data)
    result = _replace(result, shrinks=not a.grows and (b.grows or a.shrinks))
    if a.low >= 0 and b.low >= 0:
        result = _replace(result, low=0.0)
        if _is_reduced(node.inputs[1], node.inputs[0], "ReduceSum"):
            result = _replace(result, high=1.0)
    if is_constant(node.inputs[1]) and (b.low > 0 or b.high < 0):
        corners = [p / q for p in (a.low, a.high) for q in (b.low, b.high)]
        smallest = min(abs(b.low), abs(b.high))
        result = _replace(
            result, low=min(corners), high=max(corners), floor=a.floor / b.magnitude, reach=a.reach / smallest
        )
    if is_constant(node.inputs[0]) and 0 < lower_bound(b) < INF:
        result = _replace(result, reach=a.magnitude / lower_bound(b))
        if b.low > 0:
            result = _replace(result, low=min(a.low, 0.0) / b.low, high=max(a.high, 0.0) / b.low)
    return result


def _reciprocal(_node: ir.Node, x: Sequence[Fact]) -> Fact:
    reach = 1 / lower_bound(x[0]) if 0 < lower_bound(x[0]) < INF else 0.0
    low, high = 0.0 if x[0].low >= 0 else -INF, 1 / x[0].low if x[0].low > 0 else INF
    return Fact(low, high, reach=reach, shrinks=x[0].grows, grows=x[0].shrinks, data=x[0].data, direct=x[0].direct)


def _sqrt(_node: ir.Node, x: Sequence[Fact]) -> Fact:
    low, high = math.sqrt(max(x[0].low, 0.0)), math.sqrt(max(x[0].high, 0.0))
    floor, reach = math.sqrt(x[0].floor), math.sqrt(x[0].reach)
    return _replace(x[0], low=low, high=high, floor=floor, reach=reach, count=False, whole=False, squared=False)


def _pow(node: ir.Node, x: Sequence[Fact]) -> Fact:
    base, p = x[0], x[1]
    if p.low != p.high:
        grown = is_constant(node.inputs[0]) and base.low >= 0
        reach = max(power(b, e) for b in (base.low, base.high) for e in (p.low, p.high)) if grown else 0.0
        low = 0.0 if base.low >= 0 else -INF
        return _replace(merged(x), low=low, high=INF, floor=INF, reach=reach, count=False, whole=False)
    exponent = p.low
    if exponent < 0:
        floor = lower_bound(base)
        reach = power(floor, exponent) if 0 < floor < INF else 0.0
        low, high = 0.0 if base.low >= 0 else -INF, power(base.low, exponent) if base.low > 0 else INF
        return Fact(low, high, reach=reach, shrinks=base.grows, data=base.data, direct=base.direct)
    even = exponent.is_integer() and exponent % 2 == 0
    low = 0.0 if even or base.low >= 0 else -INF
    floor = power(lower_bound(base), exponent) if lower_bound(base) < INF else INF
    return _replace(
        base,
        low=low,
        high=power(base.magnitude, exponent),
        floor=floor,
        reach=power(base.reach, exponent),
        count=base.count and exponent >= 1,
        squared=base.data and exponent >= 2,
    )


def power(base: float, exponent: float) -> float:
    """The power of a number that is not negative; infinity where it overflows."""
    try:
        return float(base**exponent)
    except (OverflowError, ZeroDivisionError):
        return INF


def _abs(_node: ir.Node, x: Sequence[Fact]) -> Fact:
    low = max(x[0].low, -x[0].high, 0.0)
    return _replace(x[0], low=low, high=x[0].magnitude)


def _neg(_node: ir.Node, x: Sequence[Fact]) -> Fact:
    return _replace(x[0], low=-x[0].high, high=-x[0].low)


def _relu(_node: ir.Node, x: Sequence[Fact]) -> Fact:
    return _replace(x[0], low=max(x[0].low, 0.0), high=max(x[0].high, 0.0))


def _max(_node: ir.Node, x: Sequence[Fact]) -> Fact:
    floor = max((f.low for f in x), default=-INF)
    guard = floor if floor > 0 else min(f.floor for f in x)
    return _replace(merged(x), low=floor, high=max(f.high for f in x), floor=guard)


def _min(_node: ir.Node, x: Sequence[Fact]) -> Fact:
    return _replace(merged(x), high=min(f.high for f in x))


def _clip(node: ir.Node, x: Sequence[Fact]) -> Fact:
    bounds = [
        x[k].low if k < len(x) and is_constant(node.inputs[k]) else default for k, default in ((1, -INF), (2, INF))
    ]
    low, high = max(x[0].low, bounds[0]), min(x[0].high, bounds[1])
    floor = bounds[0] if bounds[0] > 0 else x[0].floor
    return _replace(x[0], low=min(max(low, bounds[0]), bounds[1]), high=max(high, bounds[0]), floor=floor)


def _from_below(low: float) -> Rule:
    """Activations that follow their operand above 0."""

    def rule(_node: ir.Node, x: Sequence[Fact]) -> Fact:
        return _replace(x[0], low=low, high=INF, floor=INF, whole=False)

    return rule


def _exp(_node: ir.Node, x: Sequence[Fact]) -> Fact:
    """Whatever is exponential in data may be as large as float32 holds."""
    low, high = (0.0 if end == -INF else _exponential(end) for end in (x[0].low, x[0].high))
    return Fact(low, high, reach=min(high, LARGEST), data=x[0].data, direct=x[0].direct)


def _exponential(exponent: float) -> float:
    try:
        return math.exp(exponent)
    except OverflowError:
        return INF


def _log(_node: ir.Node, x: Sequence[Fact]) -> Fact:
    low, high = (-INF if end <= 0 else INF if end == INF else math.log(end) for end in (x[0].low, x[0].high))
    if 0 < lower_bound(x[0]) < INF and x[0].low >= 0:
        low = max(low, math.log(lower_bound(x[0])))
    return Fact(low, high, data=x[0].data, direct=x[0].direct)


def _modulo(_node: ir.Node, x: Sequence[Fact]) -> Fact:
    size = x[1].magnitude
    return _replace(x[0], low=0.0 if x[1].low > 0 and x[0].low >= 0 else -size, high=size)


def _to_whole(_node: ir.Node, x: Sequence[Fact]) -> Fact:
    """Whole numbers of any size."""
    low, high = x[0].low - 1, x[0].high + 1
    return _replace(x[0], low=0.0 if x[0].low >= 0 else low, high=high, floor=INF, count=True, whole=True)


RULES: dict[str, Rule] = {
    "Add": _add, "Sum": _add, "Sub": _sub, "Mul": _mul, "Div": _div, "Reciprocal": _reciprocal, "Sqrt": _sqrt,
    "Pow": _pow, "Abs": _abs, "Neg": _neg, "Relu": _relu, "Max": _max, "Min": _min, "Clip": _clip, "Mod": _modulo,
    "Exp": _exp, "Log": _log,
    **dict.fromkeys(("Floor", "Ceil", "Round"), _to_whole),
    **dict.fromkeys(("LeakyRelu", "PRelu", "ThresholdedRelu"), _from_below(-INF)),
    **dict.fromkeys(("Elu", "Selu", "Celu", "Gelu", "HardSwish", "Swish", "Mish"), _from_below(-INF)),
    "Softplus": _from_below(0.0),
    **dict.fromkeys(("Sigmoid", "HardSigmoid"), bounded(0.0, 1.0)),
    **dict.fromkeys(("Tanh", "Erf", "Sin", "Cos", "Sign", "Softsign"), bounded(-1.0, 1.0)),
    **dict.fromkeys(("Asin", "Acos", "Atan"), bounded(-math.pi, math.pi)),
    **dict.fromkeys(
        ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Not", "And", "Or", "Xor", "IsNaN", "IsInf"),
        bounded(0.0, 1.0),
    ),
}  # fmt: skip
