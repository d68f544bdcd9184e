"""Measures the ranges of a float32 model's values: the model is run with all of them as outputs, some at a time.

ONNX Runtime knows the dtypes of all values, too, where inference does not.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir

from onnxopt.graph import write
from onnxopt.graph.precision.ranges import Range, range_of
from onnxopt.runtime import sessions

_TENSOR = re.compile(r"tensor\((\w+)\)")
_DTYPES = {"float": ir.DataType.FLOAT, **{dtype.name.lower(): dtype for dtype in ir.DataType}}  # ONNX Runtime's names
_OUTPUTS = 128  # values of one session: all of them are in memory at once
Feeds = Mapping[str, Any]


def measure(model: ir.Model, feeds: Sequence[Feeds], dtype: ir.DataType, folder: Path) -> dict[str, Range]:
    """The ranges of the main graph's float32 inputs and of all float32 values that its nodes compute, by name.

    model: normalized; it stays as it is. feeds: inputs of the runs. dtype: of 16 bits, to round to. folder: for
    temporary files. RunError where ONNX Runtime refuses a run.
    """
    ranges: dict[str, Range] = {}

    def note(name: str, array: Any) -> None:
        if getattr(array, "dtype", None) == "float32":
            found = range_of(array, dtype)
            ranges[name] = ranges[name].merged(found) if name in ranges else found

    for inputs in feeds:
        for name, array in inputs.items():
            note(name, array)
    for part in _parts(model):
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            write.save(part, scratch)
            session = sessions.open_session(Path(scratch) / write.MODEL_FILE)
            for inputs in feeds:
                for name, array in sessions.run(session, inputs).items():
                    note(name, array)
    return ranges


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


def _parts(model: ir.Model) -> Iterator[ir.Model]:
    """The model with other outputs each time, so that all float32 values of its nodes are outputs of one of them."""
    names = [
        value.name
        for node in model.graph
        for value in node.outputs
        if value.dtype == ir.DataType.FLOAT and isinstance(value.type, ir.TensorType) and value.name
    ]
    for start in range(0, len(names), _OUTPUTS):
        part = model.clone()
        by_name = {value.name: value for node in part.graph for value in node.outputs}
        part.graph.outputs.clear()
        part.graph.outputs.extend(by_name[name] for name in names[start : start + _OUTPUTS])
        yield part
