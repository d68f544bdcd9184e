"""Contents of small tensors, as expressions over symbolic dims: shapes and what is computed from shapes.

Exporters also compute sizes in floats, as in Ceil(Cast(size) / 2). These are taken for the numbers that they stand for:
up to 2^24, a float32 holds a size exactly, and no quotient by a small number rounds to another whole number.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import sympy

from onnxopt.graph.shapes.dims import Dim, floor, greatest, minimum, not_negative, sign, simplest, slice_length

Contents = np.ndarray[Any, Any]  # of dtype object: ints and expressions; bools are 0 and 1

LARGEST = 64  # elements; a tensor of more is no shape
_INTEGERS = frozenset({ir.DataType.INT32, ir.DataType.INT64, ir.DataType.BOOL})
_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE})
_MAX_DIVIDED_BY = 1024
_SIGN = {
    "Equal": lambda s: s == 0, "Greater": lambda s: s > 0, "GreaterOrEqual": lambda s: s >= 0,
    "Less": lambda s: s < 0, "LessOrEqual": lambda s: s <= 0,
}  # fmt: skip


class Undecided(Exception):
    """An element depends on sizes in a way that no expression here can say."""


def array(values: Sequence[Dim], shape: tuple[int, ...] | None = None) -> Contents:
    """Contents with these elements, as a vector by default."""
    result = np.empty(len(values), dtype=object)
    result[:] = [simplest(v) for v in values]
    return result if shape is None else result.reshape(shape)


def tensor_contents(tensor: ir.TensorProtocol) -> Contents | None:
    """Contents of a constant tensor; None where it is large or not of whole numbers or bools."""
    if tensor.dtype not in _INTEGERS | _FLOATS or tensor.size > (LARGEST if tensor.dtype in _INTEGERS else 1):
        return None
    values = tensor.numpy()
    if not all(np.isfinite(v) and int(v) == v for v in values.flat):
        return None
    return array([int(v) for v in values.flat], values.shape)


def is_float(dtype: ir.DataType | None) -> bool:
    return dtype in _FLOATS


def holds_numbers(dtype: ir.DataType | None) -> bool:
    return dtype in _INTEGERS or dtype in _FLOATS


def evaluate(node: ir.Node, operands: Sequence[Contents | None], dtype: ir.DataType) -> Contents | None:
    """Contents of a node's output; None where they are not known, or the output is no small tensor.

    operands: contents of the node's inputs, None where an input is left out or not known. dtype: of the output.
    """
    function = _FUNCTIONS.get(node.op_type) if dtype in _INTEGERS else _FLOAT_OPERATORS.get(node.op_type)
    if function is None or node.domain not in ("", "ai.onnx") or operands[0] is None:
        return None
    if any(held is None for held, value in zip(operands, node.inputs, strict=True) if value is not None):
        return None
    try:
        result = function(node, *operands)
    except (Undecided, ValueError, IndexError, TypeError, ZeroDivisionError):
        return None  # an invalid node is not reported here: a runtime reports it
    if result is None:
        return None
    result = np.asarray(result, dtype=object)  # numpy gives the element itself instead of a scalar array
    return result if result.size <= LARGEST else None


def _elementwise(function: Callable[..., Dim]) -> Callable[..., Contents]:
    def apply(node: ir.Node, *operands: Contents) -> Contents:
        arrays = np.broadcast_arrays(*operands)
        return array([function(*row) for row in zip(*(a.flat for a in arrays), strict=True)], arrays[0].shape)

    return apply


def _divided(a: Dim, b: Dim) -> Dim:
    """ONNX divides integers toward zero."""
    if isinstance(a, int) and isinstance(b, int):
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    if not not_negative(a) or not not_negative(b):  # no run divides by 0
        raise Undecided
    return floor(sympy.sympify(a) / b)


def _exact_quotient(a: Dim, b: Dim) -> Dim:
    """Floats by a small whole number."""
    if not isinstance(b, int) or not 1 <= b <= _MAX_DIVIDED_BY:
        raise Undecided
    return simplest(sympy.sympify(a) / b)


def _modulo(a: Dim, b: Dim) -> Dim:
    if isinstance(b, int) and b > 0 and (x := _complemented(a, b)) is not None:
        return simplest(b * floor((x + b - 1) / b) - x)
    if not not_negative(a) or sign(b) != 1:
        raise Undecided
    return simplest(sympy.Mod(a, b))


def _complemented(a: Dim, b: int) -> sympy.Expr | None:
    """x of an expression n b - x mod b, n above 0, as what is missing to a multiple of b is computed."""
    for term in sympy.Add.make_args(sympy.sympify(a)):
        count = sympy.sympify(a - term) / b
        times, remainder = (-term).as_coeff_Mul()  # sympy writes (2 y) mod 4 as 2 (y mod 2)
        if isinstance(remainder, sympy.Mod) and times * remainder.args[1] == b and count.is_Integer and count > 0:
            return times * remainder.args[0]
    return None


def _comparison(decide: Callable[[int], bool]) -> Callable[[Dim, Dim], Dim]:
    def compare(a: Dim, b: Dim) -> Dim:
        difference = simplest(sympy.sympify(a) - b)
        known_sign = sign(difference)
        if known_sign is not None:
            return int(decide(known_sign))
        if not_negative(difference) and decide(0) == decide(1):
            return int(decide(0))
        if not_negative(simplest(-difference)) and decide(0) == decide(-1):
            return int(decide(0))
        raise Undecided

    return compare


def _chosen(condition: Dim, a: Dim, b: Dim) -> Dim:
    if a == b:
        return a
    if not isinstance(condition, int):
        raise Undecided
    return a if condition else b


def _negation(a: Dim) -> Dim:
    if not isinstance(a, int):
        raise Undecided
    return 1 - a


def _cast(node: ir.Node, held: Contents) -> Contents | None:
    to = ir.DataType(node.attributes["to"].as_int())
    if to == ir.DataType.BOOL:
        if any(sign(v) is None for v in held.flat):
            return None
        return array([int(sign(v) != 0) for v in held.flat], held.shape)
    if to in _INTEGERS and not all(isinstance(v, int) or v.is_integer for v in held.flat):
        return None  # rounds to zero
    return held if to in _INTEGERS or to in _FLOATS else None


def _slice(node: ir.Node, held: Contents, starts: Contents, ends: Contents, *rest: Contents | None) -> Contents:
    axes = rest[0] if rest and rest[0] is not None else array(range(starts.size))
    steps = rest[1] if len(rest) > 1 and rest[1] is not None else array([1] * starts.size)
    index = [slice(None)] * held.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        if not all(isinstance(v, int) for v in (start, end, step)):
            raise Undecided
        window = slice_length(held.shape[axis], start, end, step)
        assert window is not None  # all are numbers
        first, length = window
        stop = first + length * step  # type: ignore[operator]
        index[axis] = slice(first, stop if stop >= 0 else None, step)
    return held[tuple(index)]


def _gather(node: ir.Node, held: Contents, indices: Contents) -> Contents:
    axis = node.attributes.get_int("axis", 0)
    if not all(isinstance(i, int) for i in indices.flat):
        raise Undecided
    return np.take(held, indices.astype(np.int64), axis=axis)


def _concat(node: ir.Node, *held: Contents) -> Contents:
    return np.concatenate(held, axis=node.attributes["axis"].as_int())


def parts(node: ir.Node, held: Contents | None, sizes: Contents | None = None) -> list[Contents]:
    """What the results of a Split hold, as ONNX Runtime reads several dims off one shape; none where unknown."""
    if held is None or held.ndim != 1 or (sizes is None and len(node.inputs) > 1):
        return []
    count = len(node.outputs)
    lengths = [held.size // count] * count if sizes is None else list(sizes.flat)
    if not all(isinstance(length, int) for length in lengths) or sum(lengths) != held.size:
        return []
    return np.split(held, np.cumsum(lengths)[:-1])


def _axes(node: ir.Node, axes: Contents | None) -> tuple[int, ...] | None:
    if axes is not None:
        return tuple(int(a) for a in axes)
    attribute = node.attributes.get("axes")
    return None if attribute is None else tuple(attribute.as_ints())


def _unsqueeze(node: ir.Node, held: Contents, axes: Contents | None = None) -> Contents:
    return np.expand_dims(held, _axes(node, axes) or ())


def _squeeze(node: ir.Node, held: Contents, axes: Contents | None = None) -> Contents:
    return np.squeeze(held, _axes(node, axes))


def _reshape(node: ir.Node, held: Contents, shape: Contents) -> Contents:
    wanted = [int(v) for v in shape]
    if not node.attributes.get_int("allowzero", 0):
        wanted = [held.shape[k] if v == 0 else v for k, v in enumerate(wanted)]
    return held.reshape(wanted)


def _transpose(node: ir.Node, held: Contents) -> Contents:
    return np.transpose(held, node.attributes.get_ints("perm"))


def _expand(node: ir.Node, held: Contents, shape: Contents) -> Contents:
    wanted = np.broadcast_shapes(held.shape, tuple(int(v) for v in shape))
    if math.prod(wanted) > LARGEST:
        raise Undecided
    return np.broadcast_to(held, wanted)


def _constant_of_shape(node: ir.Node, shape: Contents) -> Contents | None:
    fill = node.attributes.get("value")
    tensor = None if fill is None else fill.as_tensor()
    if tensor is None or tensor.dtype not in _INTEGERS or math.prod(int(v) for v in shape) > LARGEST:
        return None
    return array([int(tensor.numpy().item())] * math.prod(int(v) for v in shape), tuple(int(v) for v in shape))


def _range(node: ir.Node, start: Contents, limit: Contents, delta: Contents) -> Contents:
    elements = range(*(operator.index(v.item()) for v in (start, limit, delta)))
    if len(elements) > LARGEST:
        raise Undecided
    return array(list(elements))


def _reduction(function: Callable[[Dim, Dim], Dim]) -> Callable[..., Contents]:
    def reduce(node: ir.Node, held: Contents, axes: Contents | None = None) -> Contents:
        along = _axes(node, axes)
        if held.ndim != 1 or held.size == 0 or along not in (None, (0,), (-1,)):
            raise Undecided
        total = held[0]
        for value in held[1:]:
            total = function(total, value)
        return array([total], (1,) if node.attributes.get_int("keepdims", 1) else ())

    return reduce


_FUNCTIONS: dict[str, Callable[..., Contents | None]] = {
    "Identity": lambda node, held: held,
    "Add": _elementwise(operator.add),
    "Sub": _elementwise(operator.sub),
    "Mul": _elementwise(operator.mul),
    "Div": _elementwise(_divided),
    "Mod": _elementwise(_modulo),
    "Neg": _elementwise(operator.neg),
    "Min": _elementwise(lambda *row: simplest(sympy.Min(*row))),
    "Max": _elementwise(lambda *row: simplest(sympy.Max(*row))),
    "Not": _elementwise(_negation),
    "And": _elementwise(lambda a, b: a * b),
    "Where": _elementwise(_chosen),
    **{op: _elementwise(_comparison(decide)) for op, decide in _SIGN.items()},
    "Cast": _cast,
    "Slice": _slice,
    "Gather": _gather,
    "Concat": _concat,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Reshape": _reshape,
    "Transpose": _transpose,
    "Expand": _expand,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
    "ReduceProd": _reduction(operator.mul),
    "ReduceSum": _reduction(operator.add),
    "ReduceMax": _reduction(greatest),
    "ReduceMin": _reduction(minimum),
}

_FLOAT_OPERATORS: dict[str, Callable[..., Contents | None]] = {
    **{
        op: _FUNCTIONS[op] for op in ("Identity", "Add", "Sub", "Mul", "Neg", "Cast", "Squeeze", "Unsqueeze", "Reshape")
    },
    "Div": _elementwise(_exact_quotient),
    "Ceil": _elementwise(lambda a: simplest(sympy.ceiling(a))),
    "Floor": _elementwise(floor),
}
