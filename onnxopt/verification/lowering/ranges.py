"""Measures the ranges of a float32 model's values: the model is run with all of them as outputs, part by part.

ONNX Runtime knows the dtypes of all values, too, where inference does not.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxopt.background import threads
from onnxopt.graph import write
from onnxopt.graph.branches import branches_of
from onnxopt.graph.precision.ranges import Range, range_of
from onnxopt.runtime import sessions
from onnxopt.verification.lowering import parts
from onnxopt.verification.lowering.loop_steps import Steps

_TENSOR = re.compile(r"tensor\((\w+)\)")
_DTYPES = {"float": ir.DataType.FLOAT, **{dtype.name.lower(): dtype for dtype in ir.DataType}}  # ONNX Runtime's names
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
            keep(name, range_of(array, dtype), is_typical)

    def keep(name: str, measured: Range, is_typical: bool) -> None:
        before = ranges.get(name)
        if before is not None:
            measured = before.merged(measured) if is_typical else before.widened(measured)
        ranges[name] = measured

    exposed = model.clone()
    hidden = expose(exposed.graph)
    runs = [(inputs, True) for inputs in feeds] + [(inputs, False) for inputs in extremes]
    for inputs, is_typical in runs:
        for name, array in inputs.items():
            note(name, array, is_typical)
    with threads() as pool:
        for k, values in parts.values_of(exposed, [inputs for inputs, _ in runs], folder):
            floats = {name: a for name, a in values.items() if a.dtype == "float32" and (a.size or name not in hidden)}
            measured = pool.map(lambda array: range_of(array, dtype), floats.values())
            for name, of_value in zip(floats, measured, strict=True):
                keep(hidden.get(name, name), of_value, runs[k][1])
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
        shown = [[v for n in branch for v in n.outputs if parts.is_measured(v)] for branch in branches]
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
