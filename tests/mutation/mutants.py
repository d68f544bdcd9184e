"""Mutants of an artifact's model: each has one fault at one place of one function, or between the functions."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, MutableSequence, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxopt.graph.fused_domain import holds_fused
from onnxopt.verification.emulation.shape_text import ShapeText
from tests.mutation import faults
from tests.mutation.faults import Fault, Writer

LENGTHS = (33, 65, 129, 257)  # along an axis, from which on a kernel is wrong
_SAMPLES = (2, 4)  # the same of the first axis

_ORDERED = frozenset({"Sub", "Div", "Pow", "MatMul", "Less", "Greater", "LessOrEqual", "GreaterOrEqual", "Concat"})
_STEPS = frozenset({
    "Abs", "Add", "BiasGelu", "Clip", "Div", "Erf", "Exp", "Gelu", "HardSigmoid", "HardSwish", "LayerNormalization",
    "Log", "Max", "Min", "Mul", "Neg", "PRelu", "QuickGelu", "Reciprocal", "Relu", "Sigmoid",
    "SimplifiedLayerNormalization", "Softmax", "Softplus", "Sqrt", "Sub", "Tanh",
})  # fmt: skip
_FLOAT_ATTRIBUTES = frozenset({"alpha", "beta", "epsilon", "scale", "gamma", "softcap"})

Change = Callable[[Any], object]  # of a function, or of a graph, in place


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One fault. of: its class. place: where it is. apply: changes the function or graph that it was made for."""

    of: str
    place: str
    apply: Change


def of_function(function: onnx.FunctionProto, shapes: Sequence[ShapeText]) -> Iterator[Mutant]:
    """All mutants of a function. shapes: of its inputs, then of its outputs, at one of its places."""
    operands, results = shapes[: len(function.input)], shapes[len(function.input) :]
    for name, shape in zip(function.input, operands, strict=True):
        if shape.dtype in faults.FLOATS:
            for of, fault in faults.OF_VALUES.items():
                yield Mutant(of, f"operand {name}", _at_operand(name, shape.dtype, fault))
    for name, shape in zip(function.output, results, strict=True):
        if shape.dtype not in faults.FLOATS:
            continue
        for of, fault in {**faults.OF_VALUES, **faults.OF_PLACES}.items():
            yield Mutant(of, f"result {name}", _at_result(name, shape.dtype, fault))
        yield from _along_axes(name, shape)
    for number, node in enumerate(function.node):
        yield from _of_node(number, node)
    yield from _operands_swapped(function, operands)


def of_graph(graph: onnx.GraphProto) -> Iterator[Mutant]:
    """All mutants of what the rewrite rules left between the functions: nodes, and weights that are in the file."""
    for number, node in enumerate(graph.node):
        if not holds_fused(node.domain):
            yield from _of_node(number, node)
    for number, weight in enumerate(graph.initializer):
        values = None if weight.external_data else numpy_helper.to_array(weight)
        if values is not None and values.dtype in (np.float32, np.float16) and values.any():
            yield from _of_weight(number, weight.name, values)


def _of_weight(number: int, name: str, values: np.ndarray) -> Iterator[Mutant]:
    def as_now(changed: np.ndarray) -> Change:
        tensor = numpy_helper.from_array(np.ascontiguousarray(changed.astype(values.dtype)), name)
        return lambda graph: graph.initializer[number].CopyFrom(tensor)

    place = f"weight {name}"
    for of, factor in faults.WRONG_BY.items():
        yield Mutant(of, place, as_now(values * values.dtype.type(factor)))
    if values.ndim:
        rows = values.reshape(-1, values.shape[-1])
        if len(rows) > 1:
            shifted = np.concatenate([rows[:-1], rows[-2:-1]])
            yield Mutant("a row off by one", place, as_now(shifted.reshape(values.shape)))
            yield Mutant("swapped operands", place, as_now(np.roll(rows, len(rows) // 2, 0).reshape(values.shape)))


def _along_axes(name: str, shape: ShapeText) -> Iterator[Mutant]:
    """Those along the axes whose sizes are symbolic."""
    rank = len(shape.dims or ())
    for axis, dim in enumerate(shape.dims or ()):
        if dim.isdigit():
            continue
        place = f"result {name}, axis {axis}"
        yield Mutant("a dim of 1", place, _at_result(name, shape.dtype, faults.of_one(axis, rank)))
        for length in _SAMPLES if axis == 0 else LENGTHS:
            fault = faults.from_place(axis, rank, length)
            yield Mutant("above a length", f"{place} from {length} on", _at_result(name, shape.dtype, fault))


def _at_operand(name: str, dtype: str, fault: Fault) -> Change:
    def apply(function: onnx.FunctionProto) -> None:
        writer = Writer(f"{name}_wrong", dtype)
        wrong = fault(writer, name)
        for node in function.node:
            _rename(node.input, name, wrong)
        _replace(function, [*writer.nodes, *function.node])

    return apply


def _at_result(name: str, dtype: str, fault: Fault) -> Change:
    def apply(function: onnx.FunctionProto) -> None:
        right = f"{name}_right"
        for node in function.node:
            _rename(node.input, name, right)
            _rename(node.output, name, right)
        writer = Writer(f"{name}_wrong", dtype)
        wrong = fault(writer, right)
        writer.nodes.append(helper.make_node("Identity", [wrong], [name]))
        _replace(function, [*function.node, *writer.nodes])

    return apply


def _rename(names: MutableSequence[str], old: str, new: str) -> None:
    names[:] = [new if name == old else name for name in names]


def _replace(function: onnx.FunctionProto, nodes: Sequence[onnx.NodeProto]) -> None:
    copies = [_copy(node) for node in nodes]
    del function.node[:]
    function.node.extend(copies)


def _copy(node: onnx.NodeProto) -> onnx.NodeProto:
    return onnx.NodeProto.FromString(node.SerializeToString())


# of nodes


def _of_node(number: int, node: onnx.NodeProto) -> Iterator[Mutant]:
    place = f"{node.op_type} {number}"

    def scaled(factor: float) -> Change:
        return lambda owner: _scale(owner.node[number], factor)

    for of, factor in faults.WRONG_BY.items():
        if _scale(_copy(node), factor):
            yield Mutant(of, place, scaled(factor))
    if node.op_type in _ORDERED and len(set(node.input[:2])) > 1:
        yield Mutant("swapped operands", place, lambda owner: _swap(owner.node[number], 0, 1))
    if node.op_type == "Where":
        yield Mutant("swapped operands", place, lambda owner: _swap(owner.node[number], 1, 2))
    if node.op_type in _STEPS:
        yield Mutant("a step left out", place, lambda owner: _leave_out(owner, number))


def _scale(node: onnx.NodeProto, factor: float) -> bool:
    """Multiply the node's float constants, in place; whether there are any that this changes."""
    changed = False
    for attribute in node.attribute:
        if attribute.name in _FLOAT_ATTRIBUTES and attribute.f:
            attribute.f *= factor
            changed = True
        if node.op_type == "Constant" and attribute.name == "value":
            values = numpy_helper.to_array(attribute.t)
            if values.dtype.kind == "f" and np.isfinite(values).all() and values.any():
                attribute.t.CopyFrom(numpy_helper.from_array((values * factor).astype(values.dtype), attribute.t.name))
                changed = True
    return changed


def _swap(node: onnx.NodeProto, first: int, second: int) -> None:
    node.input[first], node.input[second] = node.input[second], node.input[first]


def _leave_out(owner: onnx.FunctionProto | onnx.GraphProto, number: int) -> None:
    """The node gives its first operand that is no constant."""
    node = owner.node[number]
    constants = {n.output[0] for n in owner.node if n.op_type == "Constant"}
    kept = next((v for v in node.input if v and v not in constants), node.input[0])
    node.CopyFrom(helper.make_node("Identity", [kept], node.output[:1]))


def _operands_swapped(function: onnx.FunctionProto, shapes: Sequence[ShapeText]) -> Iterator[Mutant]:
    """Neighbouring operands of one dtype and shape, read instead of each other."""
    for k, (left, right) in enumerate(itertools.pairwise(shapes)):
        if left == right and left.dims:
            first, second = function.input[k], function.input[k + 1]
            yield Mutant("swapped operands", f"{first} and {second}", _exchanged(first, second))


def _exchanged(first: str, second: str) -> Change:
    other = {first: second, second: first}

    def apply(function: onnx.FunctionProto) -> None:
        for node in function.node:
            node.input[:] = [other.get(name, name) for name in node.input]

    return apply
