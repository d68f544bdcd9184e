"""Measures the ranges of a float32 model's values: the model is run with all of them as outputs, some at a time.

ONNX Runtime knows the dtypes of all values, too, where inference does not.
"""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxopt.graph import write
from onnxopt.graph.branches import branches_of
from onnxopt.graph.precision.ranges import Range, range_of
from onnxopt.runtime import sessions
from onnxopt.verification.lowering.loop_steps import Steps

_TENSOR = re.compile(r"tensor\((\w+)\)")
_DTYPES = {"float": ir.DataType.FLOAT, **{dtype.name.lower(): dtype for dtype in ir.DataType}}  # ONNX Runtime's names
_OUTPUTS = 128  # values of one session: all of them are in memory at once
_BYTES = 1 << 29  # of these, but for one value that takes more
Feeds = Mapping[str, Any]


def measure(
    model: ir.Model, feeds: Sequence[Feeds], dtype: ir.DataType, folder: Path, extremes: Sequence[Feeds] = ()
) -> dict[str, Range]:
    """The ranges of the main graph's float32 inputs and of all float32 values that its nodes compute, by name.

    So those of the branches of If that a run takes, and of the steps of Loop and Scan (loop_steps.py). Where ONNX
    Runtime refuses to run one step by itself, those of steps are missing.

    model: normalized; it stays as it is. feeds: inputs of the runs. dtype: of 16 bits, to round to. folder: for
    temporary files. extremes: inputs that say how large and small values get, and nothing of what rounding costs.
    RunError where ONNX Runtime refuses a run whose inputs all have elements.
    """
    ranges: dict[str, Range] = {}

    def note(name: str, array: Any, is_typical: bool) -> None:
        if getattr(array, "dtype", None) == "float32":
            measured, before = range_of(array, dtype), ranges.get(name)
            if before is not None:
                measured = before.merged(measured) if is_typical else before.widened(measured)
            ranges[name] = measured

    exposed = model.clone()
    hidden = expose(exposed.graph)
    runs = [(inputs, True) for inputs in feeds] + [(inputs, False) for inputs in extremes]
    for inputs, is_typical in runs:
        for name, array in inputs.items():
            note(name, array, is_typical)
    for part in _parts(exposed, [inputs for inputs, _ in runs], folder):
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            write.save(part, scratch)
            session = sessions.open_session(Path(scratch) / write.MODEL_FILE)
            for inputs, is_typical in runs:
                try:
                    outputs = sessions.run(session, inputs)
                except sessions.RunError:
                    if not _has_empty(inputs):
                        raise
                    continue  # shapes of no elements are no model of others, and have no ranges
                for name, array in outputs.items():
                    if array.size or name not in hidden:
                        note(hidden.get(name, name), array, is_typical)
    if not Steps.are_in(model):
        return ranges
    outside = dict(ranges)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        steps = Steps(model, Path(scratch), note)
        try:
            for inputs, is_typical in runs:
                steps.run(inputs, is_typical)
        except sessions.RunError:
            return outside  # what was not measured stays float32, and says so
    return ranges


def _has_empty(inputs: Feeds) -> bool:
    return any(getattr(array, "size", 1) == 0 for array in inputs.values())


def expose(graph: ir.Graph) -> dict[str, str]:
    """Make the float32 values of branches results of their If, in place: those of the other branch are empty.

    Returns the names of these results with those of the values in the branches.
    """
    names: dict[str, str] = {}
    for node in list(graph):
        branches = branches_of(node)
        if not branches:
            continue
        inner: dict[str, str] = {}
        for branch in branches:
            inner |= expose(branch)
        shown = [[v for n in branch for v in n.outputs if _is_measured(v)] for branch in branches]
        for branch, own in zip(branches, shown, strict=True):
            for other in shown:
                branch.outputs.extend(
                    _shown(branch, v) if other is own else _empty(branch, f"{v.name}/empty") for v in other
                )
        extra = [f"{v.name}/shown" for values in shown for v in values]
        wide = ir.Node(
            "",
            "If",
            node.inputs,
            list(node.attributes.values()),
            num_outputs=len(node.outputs) + len(extra),
            name=node.name,
        )
        for old, new in zip(node.outputs, wide.outputs, strict=False):
            new.name, new.type, new.shape = old.name, old.type, old.shape
            old.replace_all_uses_with(new, replace_graph_outputs=True)
        for name, new in zip(extra, wide.outputs[len(node.outputs) :], strict=True):
            new.name, new.type = name, ir.TensorType(ir.DataType.FLOAT)
            names[name] = inner.get(name.removesuffix("/shown"), name.removesuffix("/shown"))
        graph.insert_before(node, wide)
        graph.remove(node, safe=True)
    return names


def _shown(graph: ir.Graph, value: ir.Value) -> ir.Value:
    """The value; where it is an output already, another of its elements."""
    if not value.is_graph_output():
        return value
    node = ir.node("Identity", [value])
    node.outputs[0].name, node.outputs[0].type = f"{value.name}/again", value.type
    graph.append(node)
    return node.outputs[0]


def _empty(graph: ir.Graph, name: str) -> ir.Value:
    node = ir.node("Constant", [], {"value": ir.tensor(np.zeros(0, np.float32))})
    node.outputs[0].name, node.outputs[0].type = name, ir.TensorType(ir.DataType.FLOAT)
    graph.append(node)
    return node.outputs[0]


def bytes_of(model: ir.Model, inputs: Feeds) -> int:
    """About how many bytes all float32 values of the main graph take with these inputs."""
    sizes = _sizes(model, inputs)
    return sum(_bytes(value, sizes) for value in _values(model))


def _sizes(model: ir.Model, inputs: Feeds) -> dict[str, int]:
    """The sizes that symbols of the inputs have."""
    sizes: dict[str, int] = {}
    for value in model.graph.inputs:
        shape = getattr(inputs.get(value.name or ""), "shape", ())
        if value.shape is not None and len(value.shape) == len(shape):
            sizes |= {str(dim): size for dim, size in zip(value.shape, shape, strict=True) if not isinstance(dim, int)}
    return sizes


def _bytes(value: ir.Value, sizes: Mapping[str, int]) -> int:
    """A value of unknown rank counts as a small one; a dim that is no symbol of an input as the greatest of these."""
    greatest = max(sizes.values(), default=1)
    dims = (
        [] if value.shape is None else [d if isinstance(d, int) else sizes.get(str(d), greatest) for d in value.shape]
    )
    return 4 * math.prod(dims)


def complete_dtypes(model: ir.Model, folder: Path) -> None:
    """Ask ONNX Runtime for the dtypes of the main graph's values that inference does not know, in place.

    Models of operators that only ONNX Runtime defines have such values. A value of no known dtype would stay as it is
    beside others that become 16 bit. model: normalized. folder: for temporary files. RunError where ONNX Runtime
    refuses the model.
    """
    unknown = {v.name: v for node in model.graph for v in node.outputs if v.name and v.type is None}
    if not unknown:
        return
    part = model.clone()
    by_name = {value.name: value for node in part.graph for value in node.outputs}
    part.graph.outputs.clear()
    part.graph.outputs.extend(by_name[name] for name in unknown)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        write.save(part, scratch)
        session = sessions.open_session(Path(scratch) / write.MODEL_FILE, optimize=False)
        for output in session.get_outputs():
            if (tensor := _TENSOR.fullmatch(output.type)) and tensor[1] in _DTYPES:
                unknown[output.name].type = ir.TensorType(_DTYPES[tensor[1]])


def _values(model: ir.Model) -> list[ir.Value]:
    """The float32 values that the main graph's nodes compute."""
    return [value for node in model.graph for value in node.outputs if _is_measured(value)]


def _is_measured(value: ir.Value) -> bool:
    return value.dtype == ir.DataType.FLOAT and isinstance(value.type, ir.TensorType) and bool(value.name)


def _parts(model: ir.Model, runs: Sequence[Feeds], folder: Path) -> Iterator[ir.Model]:
    """The model with other outputs each time, so that all float32 values of its nodes are outputs of one of them."""
    values = _values(model)
    all_sizes = [_sizes(model, inputs) for inputs in runs]
    sizes = {str(v.name): max((_bytes(v, known) for known in all_sizes), default=0) for v in values}
    if len(values) > _OUTPUTS or sum(sizes.values()) > _BYTES:
        sizes |= _counted(model, [v for v in values if not _is_known(v, all_sizes)], runs, folder)
    groups: list[list[str]] = []
    total = 0
    for name in map(str, (value.name for value in values)):
        if not groups or len(groups[-1]) == _OUTPUTS or total + sizes[name] > _BYTES:
            groups.append([])
            total = 0
        groups[-1].append(name)
        total += sizes[name]
    for names in groups:
        part = model.clone()
        by_name = {value.name: value for node in part.graph for value in node.outputs}
        part.graph.outputs.clear()
        part.graph.outputs.extend(by_name[name] for name in names)
        yield part


def _is_known(value: ir.Value, all_sizes: Sequence[Mapping[str, int]]) -> bool:
    """Whether the dims of a value are numbers, or symbols of the inputs, in all runs."""
    return value.shape is not None and all(
        isinstance(dim, int) or str(dim) in sizes for sizes in all_sizes for dim in value.shape
    )


def _counted(model: ir.Model, values: Sequence[ir.Value], runs: Sequence[Feeds], folder: Path) -> dict[str, int]:
    """The most bytes that each of these values takes in the runs, by name: their shapes are outputs of one model."""
    if not values:
        return {}
    part = model.clone()
    by_name = {value.name: value for node in part.graph for value in node.outputs}
    part.graph.outputs.clear()
    for value in values:
        node = ir.node("Shape", [by_name[value.name]])
        node.outputs[0].name, node.outputs[0].type = f"{value.name}/shape of it", ir.TensorType(ir.DataType.INT64)
        part.graph.append(node)
        part.graph.outputs.append(node.outputs[0])
    counts: dict[str, int] = {}
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        write.save(part, scratch)
        session = sessions.open_session(Path(scratch) / write.MODEL_FILE)
        for inputs in runs:
            try:
                shapes = sessions.run(session, inputs)
            except sessions.RunError:
                continue  # `measure` says so, or leaves it out
            for name, dims in shapes.items():
                own = name.removesuffix("/shape of it")
                counts[own] = max(counts.get(own, 0), 4 * math.prod(map(int, dims)))
    return counts
