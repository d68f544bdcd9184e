"""One rule for each operator: the fact of its result from the facts of its operands."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import onnx_ir as ir

from onnxopt.graph.precision.facts import FLOATS, INF, UNKNOWN, Fact, Rule, of_dtype

HIDES = 1e4  # factors of masks: what they multiply is 0 or hidden
_replace = dataclasses.replace


def _times(a: float, b: float) -> float:
    return 0.0 if a == 0 or b == 0 else a * b


def _joined(facts: Sequence[Fact]) -> Fact:
    """What elements of one of several operands are."""
    return Fact(
        min(f.low for f in facts),
        max(f.high for f in facts),
        min(_floor(f) for f in facts) if any(f.floor < INF for f in facts) else INF,
        max(f.reach for f in facts),
        any(f.count for f in facts),
        any(f.grows for f in facts),
        any(f.shrinks for f in facts),
        any(f.data for f in facts),
        all(f.direct for f in facts),
        all(f.whole for f in facts),
    )


def _floor(fact: Fact) -> float:
    """The least magnitude: of a guard, or of a value that is positive everywhere."""
    return min(fact.floor, fact.low if fact.low > 0 else INF)


def _is_constant(value: ir.Value | None) -> bool:
    return value is not None and value.const_value is not None and not value.is_graph_input()


def _bounded(low: float, high: float) -> Rule:
    def rule(_node: ir.Node, x: Sequence[Fact]) -> Fact:
        return Fact(low, high, data=any(f.data for f in x), direct=all(f.direct for f in x))

    return rule


def _moved(*positions: int) -> Rule:
    """Elements of the operands at these positions; of all where none is given."""

    def rule(node: ir.Node, x: Sequence[Fact]) -> Fact:
        chosen = [x[k] for k in positions if k < len(x)] or [
            f for f, v in zip(x, node.inputs, strict=True) if v is not None
        ]
        return _joined(chosen) if chosen else UNKNOWN

    return rule


def _gather(node: ir.Node, x: Sequence[Fact]) -> Fact:
    table = _is_constant(node.inputs[0]) and not _is_constant(node.inputs[1])
    return _replace(x[0], data=x[0].data or table, direct=x[0].direct and not table)


def _where(node: ir.Node, x: Sequence[Fact]) -> Fact:
    joined = _joined(x[1:])
    guards = [f.low for f in x[1:] if f.low == f.high > 0]
    return _replace(joined, floor=min([joined.floor, *guards]), count=joined.count and not hides_integers(node))


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
        bounds = of_dtype(source)
        return _replace(x[0], low=max(x[0].low, bounds.low), high=min(x[0].high, bounds.high))
    if to not in FLOATS:  # whole numbers of any size: buckets, ids
        return _replace(x[0], count=True, data=False, grows=False)
    return x[0]


def _add(node: ir.Node, x: Sequence[Fact]) -> Fact:
    a, b = x[0], x[1]
    joined = _joined(x)
    floor = INF
    for constant, other, value in ((a, b, node.inputs[0]), (b, a, node.inputs[1])):
        if _is_constant(value) and constant.low > 0:
            rest = _floor(other)
            floor = min(floor, constant.low + (rest if rest < INF else 0.0))
    floor = min(floor, a.floor, b.floor) if floor == INF else floor
    shrinks = a.shrinks and b.shrinks
    return _replace(joined, low=a.low + b.low, high=a.high + b.high, floor=floor, shrinks=shrinks)


def _sub(_node: ir.Node, x: Sequence[Fact]) -> Fact:
    joined = _joined(x)
    return _replace(joined, low=x[0].low - x[1].high, high=x[0].high - x[1].low, floor=INF, shrinks=False)


def _mul(node: ir.Node, x: Sequence[Fact]) -> Fact:
    a, b = x[0], x[1]
    corners = [_times(p, q) for p in (a.low, a.high) for q in (b.low, b.high)]
    low, high = min(corners), max(corners)
    if node.inputs[0] is node.inputs[1]:
        return _replace(a, low=max(low, 0.0), floor=a.floor**2, reach=a.reach**2)
    floor, reach = INF, 0.0
    for constant, other, value in ((a, b, node.inputs[0]), (b, a, node.inputs[1])):
        if _is_constant(value):
            floor, reach = min(floor, other.floor * constant.magnitude), max(reach, other.reach * constant.magnitude)
    return Fact(
        low,
        high,
        floor,
        reach,
        _counts(node, x),
        (a.grows and not b.shrinks) or (b.grows and not a.shrinks),
        (a.shrinks and not b.grows) or (b.shrinks and not a.grows),
        a.data or b.data,
        a.direct and b.direct,
        a.whole and b.whole,
    )


def _counts(node: ir.Node, x: Sequence[Fact]) -> bool:
    """Whether a product is linear in integers. Data that integers multiply is masked, and factors of 1e4 hide."""
    if any(_is_constant(v) and f.magnitude >= HIDES for f, v in zip(x[:2], node.inputs[:2], strict=True)):
        return False
    a, b = x[0], x[1]
    return (a.count and (b.count or not b.data)) or (b.count and not a.data)


def _div(node: ir.Node, x: Sequence[Fact]) -> Fact:
    a, b = x[0], x[1]
    result = Fact(data=a.data or b.data, direct=a.direct and b.direct)
    result = _replace(result, grows=a.grows and not b.grows, count=a.count and not b.count and not b.data)
    result = _replace(result, shrinks=not a.grows and (b.grows or a.shrinks))
    if a.low >= 0 and b.low >= 0:
        result = _replace(result, low=0.0)
    if _is_constant(node.inputs[1]) and (b.low > 0 or b.high < 0):
        corners = [p / q for p in (a.low, a.high) for q in (b.low, b.high)]
        least = min(abs(b.low), abs(b.high))
        result = _replace(
            result, low=min(corners), high=max(corners), floor=a.floor / b.magnitude, reach=a.reach / least
        )
    if _is_constant(node.inputs[0]) and 0 < _floor(b) < INF:
        result = _replace(result, reach=a.magnitude / _floor(b))
    return result


def _reciprocal(_node: ir.Node, x: Sequence[Fact]) -> Fact:
    reach = 1 / _floor(x[0]) if 0 < _floor(x[0]) < INF else 0.0
    low = 0.0 if x[0].low >= 0 else -INF
    return Fact(low, INF, reach=reach, shrinks=x[0].grows, grows=x[0].shrinks, data=x[0].data, direct=x[0].direct)


def _sqrt(_node: ir.Node, x: Sequence[Fact]) -> Fact:
    low, high = math.sqrt(max(x[0].low, 0.0)), math.sqrt(max(x[0].high, 0.0))
    return _replace(x[0], low=low, high=high, floor=math.sqrt(x[0].floor), reach=math.sqrt(x[0].reach), count=False)


def _pow(node: ir.Node, x: Sequence[Fact]) -> Fact:
    base, p = x[0], x[1]
    if p.low != p.high:
        return _replace(_joined(x), low=-INF, high=INF, floor=INF, reach=0.0)
    power = p.low
    if power < 0:
        floor = _floor(base)
        reach = _power(floor, power) if 0 < floor < INF else 0.0
        return Fact(
            0.0 if base.low >= 0 else -INF, INF, reach=reach, shrinks=base.grows, data=base.data, direct=base.direct
        )
    even = power.is_integer() and power % 2 == 0
    low = 0.0 if even or base.low >= 0 else -INF
    floor = _power(_floor(base), power) if _floor(base) < INF else INF
    return _replace(base, low=low, high=_power(base.magnitude, power), floor=floor, count=base.count and power >= 1)


def _power(base: float, exponent: float) -> float:
    try:
        return float(base**exponent)
    except OverflowError:
        return INF


def _abs(_node: ir.Node, x: Sequence[Fact]) -> Fact:
    low = max(x[0].low, -x[0].high, 0.0)
    return _replace(x[0], low=low, high=x[0].magnitude)


def _neg(_node: ir.Node, x: Sequence[Fact]) -> Fact:
    return _replace(x[0], low=-x[0].high, high=-x[0].low)


def _relu(_node: ir.Node, x: Sequence[Fact]) -> Fact:
    return _replace(x[0], low=max(x[0].low, 0.0), high=max(x[0].high, 0.0))


def _max(node: ir.Node, x: Sequence[Fact]) -> Fact:
    floor = max((f.low for f in x), default=-INF)
    guard = floor if floor > 0 else min(f.floor for f in x)
    return _replace(_joined(x), low=floor, high=max(f.high for f in x), floor=guard)


def _min(_node: ir.Node, x: Sequence[Fact]) -> Fact:
    return _replace(_joined(x), high=min(f.high for f in x))


def _clip(node: ir.Node, x: Sequence[Fact]) -> Fact:
    bounds = [
        x[k].low if k < len(x) and _is_constant(node.inputs[k]) else default for k, default in ((1, -INF), (2, INF))
    ]
    low, high = max(x[0].low, bounds[0]), min(x[0].high, bounds[1])
    floor = bounds[0] if bounds[0] > 0 else x[0].floor
    return _replace(x[0], low=min(max(low, bounds[0]), bounds[1]), high=max(high, bounds[0]), floor=floor)


def _from_below(low: float) -> Rule:
    """Activations that follow their operand above 0."""

    def rule(_node: ir.Node, x: Sequence[Fact]) -> Fact:
        return _replace(x[0], low=low, high=INF, floor=INF)

    return rule


def _exp(_node: ir.Node, x: Sequence[Fact]) -> Fact:
    return Fact(0.0, 1.0 if x[0].high <= 0 else INF, data=x[0].data, direct=x[0].direct)


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
    return axes is None or any(is_dynamic(value, axis) for axis in axes)


def _sum(low: float = -INF) -> Rule:
    def rule(node: ir.Node, x: Sequence[Fact]) -> Fact:
        dynamic = _sums_dynamic(node)
        least = 0.0 if x[0].low >= 0 else low
        return _replace(
            x[0],
            low=least,
            high=0.0 if x[0].high <= 0 and low else INF,
            grows=x[0].grows or (dynamic and not x[0].shrinks),
            shrinks=x[0].shrinks and not dynamic,
            direct=False,
        )

    return rule


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


def _sizes(_node: ir.Node, _x: Sequence[Fact]) -> Fact:
    return Fact(0.0, INF, count=True, data=False, direct=True)


def _range(_node: ir.Node, x: Sequence[Fact]) -> Fact:
    return Fact(-INF, INF, count=True, data=False, direct=True)


def _modulo(_node: ir.Node, x: Sequence[Fact]) -> Fact:
    size = x[1].magnitude
    return _replace(x[0], low=0.0 if x[1].low > 0 and x[0].low >= 0 else -size, high=size)


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
        count=_counts(node, x) or (bias is not None and bias.count),
        data=any(f.data for f in x),
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
    joined = _joined((x[0], x[2]))
    if node.attributes.get_string("reduction", "none") not in ("add", "mul"):
        return joined
    shape = None if updates is None else updates.shape
    dynamic = shape is None or not all(isinstance(dim, int) for dim in shape)
    low = 0.0 if joined.low >= 0 else -INF
    return _replace(joined, low=low, high=INF, grows=joined.grows or dynamic, direct=False)


def _einsum(_node: ir.Node, x: Sequence[Fact]) -> Fact:
    count = any(f.count for f in x) and all(f.count or not f.data for f in x)
    grows = any(f.grows for f in x) and not any(f.shrinks for f in x)
    low = 0.0 if all(f.low >= 0 for f in x) else -INF
    return Fact(low, count=count, grows=grows, data=any(f.data for f in x))


def _concatenated(node: ir.Node, x: Sequence[Fact]) -> Fact:
    return _joined(list(x)) if x else UNKNOWN


RULES: dict[str, Rule] = {
    **dict.fromkeys(
        ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Expand", "Tile", "Split", "Slice", "GatherND",
         "GatherElements", "Identity", "DepthToSpace", "SpaceToDepth", "Compress", "ReverseSequence", "MaxPool",
         "GlobalMaxPool", "Dropout"),
        _moved(0),
    ),
    **dict.fromkeys(("Trilu", "AveragePool", "GlobalAveragePool", "Pad", "Resize"), _moved(0)),
    "Gather": _gather, "Concat": _concatenated, "Where": _where, "Cast": _cast,
    "Add": _add, "Sub": _sub, "Mul": _mul, "Div": _div, "Reciprocal": _reciprocal, "Sqrt": _sqrt, "Pow": _pow,
    "Abs": _abs, "Neg": _neg, "Relu": _relu, "Max": _max, "Min": _min, "Clip": _clip, "Mod": _modulo, "Exp": _exp,
    **dict.fromkeys(("Floor", "Ceil", "Round"), _moved(0)),
    **dict.fromkeys(("LeakyRelu", "PRelu", "ThresholdedRelu"), _from_below(-INF)),
    **dict.fromkeys(("Elu", "Selu", "Celu", "Gelu", "HardSwish", "Swish", "Mish"), _from_below(-INF)),
    "Softplus": _from_below(0.0),
    **dict.fromkeys(("Sigmoid", "HardSigmoid"), _bounded(0.0, 1.0)),
    **dict.fromkeys(("Tanh", "Erf", "Sin", "Cos", "Sign", "Softsign"), _bounded(-1.0, 1.0)),
    **dict.fromkeys(
        ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Not", "And", "Or", "Xor", "IsNaN", "IsInf"),
        _bounded(0.0, 1.0),
    ),
    "Softmax": _softmax,
    **dict.fromkeys(("ReduceMean", "ReduceMax", "ReduceMin"), _mean),
    "ReduceSum": _sum(), **dict.fromkeys(("ReduceL1", "ReduceL2", "ReduceSumSquare"), _sum(0.0)),
    "CumSum": _cumsum, "Range": _range,
    **dict.fromkeys(("Shape", "Size", "NonZero", "ArgMax", "ArgMin"), _sizes),
    **dict.fromkeys(("MatMul", "Gemm", "Conv", "ConvTranspose"), _product), "Einsum": _einsum,
    **dict.fromkeys(("ScatterElements", "ScatterND"), _scattered),
}  # fmt: skip
