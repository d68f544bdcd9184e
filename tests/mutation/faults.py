"""Faults of kernels by class, as nodes of ONNX: from what a right kernel reads or gives to what a wrong one does.

Written into the function that a kernel runs, a fault shows what verification says of such a kernel, whether a CPU
kernel, CUDA text or a library of NVIDIA's computes it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx
from onnx import TensorProto, helper

FLOATS = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}
WRONG_BY = {"a constant, by 1e-2": 1.01, "a constant, by 1e-3": 1.001}
_TINY = {"float32": 2.0**-126, "float16": 2.0**-14}  # the least normal number
_VECTOR = 4  # elements
_MANY = 1 << 16


@dataclasses.dataclass
class Writer:
    """Writes nodes around a value of a function. prefix: of the names of what they compute."""

    prefix: str
    dtype: str
    nodes: list[onnx.NodeProto] = dataclasses.field(default_factory=list)

    def op(self, op_type: str, *operands: str, **attributes: Any) -> str:
        result = f"{self.prefix}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, operands, [result], **attributes))
        return result

    def vector(self, *values: int) -> str:
        """Integers of rank 1."""
        return self._tensor(TensorProto.INT64, [len(values)], values)

    def scalar(self, value: int) -> str:
        return self._tensor(TensorProto.INT64, [], [value])

    def number(self, value: float) -> str:
        """A scalar of the dtype."""
        return self._tensor(FLOATS[self.dtype], [], [value])

    def where(self, wrong: str, then: str | float, x: str) -> str:
        return self.op("Where", wrong, then if isinstance(then, str) else self.number(then), x)

    def _tensor(self, element: int, dims: list[int], values: Sequence[float]) -> str:
        name = f"{self.prefix}_{len(self.nodes)}"
        tensor = helper.make_tensor(name, element, dims, values)
        self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
        return name


Fault = Callable[[Writer, str], str]  # from the name of a right value to that of a wrong one


# wherever a value is what it is


def _times(factor: float) -> Fault:
    return lambda w, x: w.op("Mul", x, w.number(factor))


def _clipped(w: Writer, x: str) -> str:
    return w.op("Clip", x, w.number(-1e3), w.number(1e3))


def _zeros(w: Writer, x: str) -> str:
    return w.where(w.op("Equal", x, w.number(0.0)), 1.0, x)


def _denormals(w: Writer, x: str) -> str:
    small = w.op("Less", w.op("Abs", x), w.number(_TINY[w.dtype]))
    return w.where(w.op("And", small, w.op("Not", w.op("Equal", x, w.number(0.0)))), 1.0, x)


def _not_finite(op_type: str) -> Fault:
    return lambda w, x: w.where(w.op(op_type, w.op("Cast", x, to=TensorProto.FLOAT)), 0.0, x)


OF_VALUES: Mapping[str, Fault] = {
    **{of: _times(factor) for of, factor in WRONG_BY.items()},
    "the sign of negatives": lambda w, x: w.op("Abs", x),
    "above 1e3 in size": _clipped,
    "zeros": _zeros,
    "denormals": _denormals,
    "NaN": _not_finite("IsNaN"),
    "infinity": _not_finite("IsInf"),
}


# wherever it is stored


@dataclasses.dataclass(frozen=True)
class _Stored:
    """Of a tensor in memory: its elements side by side, each one's place, and the number of elements, of a row's and of
    a sample's; at least 1 each."""

    flat: str
    place: str
    count: str
    row: str
    sample: str


def _stored(w: Writer, x: str) -> _Stored:
    shape, one = w.op("Shape", x), w.vector(1)
    total = w.op("ReduceProd", shape, keepdims=0)
    places = w.op("Reshape", w.op("Range", w.scalar(0), total, w.scalar(1)), shape, allowzero=1)
    count = w.op("Max", total, w.scalar(1))
    row = w.op("Max", w.op("Gather", w.op("Concat", one, shape, axis=0), w.scalar(-1)), w.scalar(1))
    samples = w.op("Max", w.op("Gather", w.op("Concat", shape, one, axis=0), w.scalar(0)), w.scalar(1))
    return _Stored(w.op("Reshape", x, w.vector(-1)), places, count, row, w.op("Div", count, samples))


def _last(w: Writer, x: str) -> str:
    at = _stored(w, x)
    return w.where(w.op("Equal", at.place, w.op("Sub", at.count, w.scalar(1))), 0.0, x)


def _tail(w: Writer, x: str) -> str:
    at = _stored(w, x)
    whole = w.op("Sub", at.row, w.op("Mod", at.row, w.scalar(_VECTOR)))
    return w.where(w.op("GreaterOrEqual", w.op("Mod", at.place, at.row), whole), 0.0, x)


def _last_row_twice(w: Writer, x: str) -> str:
    """The last row is the one before it."""
    at = _stored(w, x)
    is_last = w.op("GreaterOrEqual", at.place, w.op("Sub", at.count, at.row))
    above = w.op("Gather", at.flat, w.op("Max", w.op("Sub", at.place, at.row), w.scalar(0)))
    return w.where(is_last, above, x)


def _first_sample_always(w: Writer, x: str) -> str:
    at = _stored(w, x)
    return w.op("Gather", at.flat, w.op("Mod", at.place, at.sample))


def _many(w: Writer, x: str) -> str:
    return w.where(w.op("GreaterOrEqual", _stored(w, x).place, w.scalar(_MANY)), 0.0, x)


def _nothing(w: Writer, x: str) -> str:
    """An error where there are no elements."""
    first = w.op("Cast", w.op("Gather", _stored(w, x).flat, w.scalar(0)), to=TensorProto.FLOAT)
    return w.op("Where", w.op("IsNaN", first), x, x)


OF_PLACES: Mapping[str, Fault] = {
    "the last element": _last,
    "the tail of a vector": _tail,
    "a row off by one": _last_row_twice,
    "the second sample on": _first_sample_always,
    "many elements": _many,
    "no elements": _nothing,
}


# along an axis


def _along(w: Writer, x: str, axis: int, rank: int) -> tuple[str, str]:
    """Each element's place on an axis, and the axis's size."""
    shape = w.op("Shape", x)
    behind = w.op("ReduceProd", w.op("Slice", shape, w.vector(axis + 1), w.vector(rank)), keepdims=0)
    size = w.op("Gather", shape, w.scalar(axis))
    stride, positive = w.op("Max", behind, w.scalar(1)), w.op("Max", size, w.scalar(1))
    return w.op("Mod", w.op("Div", _stored(w, x).place, stride), positive), size


def from_place(axis: int, rank: int, length: int) -> Fault:
    """0 from the place `length - 1` of an axis on: what has this length is wrong."""
    return lambda w, x: w.where(w.op("GreaterOrEqual", _along(w, x, axis, rank)[0], w.scalar(length - 1)), 0.0, x)


def of_one(axis: int, rank: int) -> Fault:
    """0 where the size of an axis is 1."""

    def wrong(w: Writer, x: str) -> str:
        is_one = w.op("Equal", _along(w, x, axis, rank)[1], w.scalar(1))
        return w.where(w.op("Expand", is_one, w.op("Shape", x)), 0.0, x)

    return wrong
