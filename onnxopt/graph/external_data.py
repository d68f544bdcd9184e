"""Checks the external tensors of a ModelProto and makes their paths absolute; makes sparse tensors dense."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper

from onnxopt.errors import ModelError
from onnxopt.graph import wire

_MAX_DENSE = 1 << 28  # elements of a sparse tensor, all of which are stored once it is dense


def graphs_of(proto: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    """The main graph and every graph in an attribute, those in functions included."""
    pending = [proto.graph]
    node_lists = [function.node for function in proto.functions]
    while pending or node_lists:
        if pending:
            graph = pending.pop()
            yield graph
            node_lists.append(graph.node)
        for node in node_lists.pop():
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    pending.append(attribute.g)
                pending.extend(attribute.graphs)


def nested_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """These nodes and those of every graph in their attributes."""
    pending = [nodes]
    while pending:
        for node in pending.pop():
            yield node
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    pending.append(attribute.g.node)
                pending.extend(graph.node for graph in attribute.graphs)


def nodes_of(proto: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Every node of every graph and function."""
    for function in proto.functions:
        yield from function.node
    for graph in graphs_of(proto):
        yield from graph.node


def tensors_of(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every dense tensor of a model: initializers and attributes, in all graphs and functions."""
    for graph in graphs_of(proto):
        yield from graph.initializer
    for node in nodes_of(proto):
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors


def resolve(path: Path, proto: onnx.ModelProto, inline_limit: int) -> int:
    """Give each external tensor an absolute path, an offset and a length that exist; store small ones in `proto`.

    path: of the model file; tensors inside it must refer to its real path. Returns the number of bytes of other files
    that the model refers to. Raises ModelError, which names the tensor, where its data is missing, too short or outside
    the model's folder.
    """
    model_file = os.path.realpath(path)
    folders = {os.path.realpath(path.parent), os.path.dirname(model_file)}  # two where the model file is a symlink
    files: dict[str, tuple[str, int]] = {model_file: (model_file, os.stat(model_file).st_size)}
    ranges: set[wire.FileRange] = set()
    for tensor in tensors_of(proto):
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        where = f"{path}: tensor '{tensor.name}'"
        location, offset, length = _entries(where, tensor)
        if location not in files:
            real = _inside(where, path, location, folders)
            files[location] = (real, os.stat(real).st_size)
        real, size = files[location]
        if offset + length > size:
            raise ModelError(f"{where}: its external data ends at byte {offset + length}, '{location}' has only {size}")
        if real != model_file:
            ranges.add(wire.FileRange(real, offset, length))
        if length <= inline_limit:
            _store_inline(tensor, real, offset, length)
        else:
            wire.set_external(tensor, real, offset, length)
    return sum(data.length for data in ranges)


def _entries(where: str, tensor: onnx.TensorProto) -> tuple[str, int, int]:
    """Location, offset and length of an external tensor; the length must be the one that dtype and shape give."""
    try:
        dtype = ir.DataType(tensor.data_type)
        needed = (int(np.prod(tensor.dims, dtype=object)) * dtype.bitwidth + 7) // 8
    except (ValueError, TypeError):
        raise ModelError(f"{where}: data type {tensor.data_type} cannot be stored outside the model") from None
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    try:
        offset, length = int(entries.get("offset", 0)), int(entries.get("length", needed))
    except ValueError:
        raise ModelError(f"{where}: offset or length of its external data is not a number") from None
    if not location or offset < 0 or needed < 0:
        raise ModelError(f"{where}: external data without a location, or with a negative offset or shape")
    if length != needed:
        raise ModelError(
            f"{where}: {dtype.name.lower()}{list(tensor.dims)} needs {needed} bytes, {length} bytes are stored"
        )
    return location, offset, length


def _inside(where: str, path: Path, location: str, folders: set[str]) -> str:
    """The real path of an external file, which must exist below the model's folder once symlinks are followed."""
    if "\0" in location:
        raise ModelError(f"{where}: external data {location!r} is not a path")
    if os.path.isabs(location) or ".." in Path(location).parts:
        raise ModelError(f"{where}: external data '{location}' is outside the model's folder")
    real = os.path.realpath(path.parent / location)
    if not any(real.startswith(os.path.join(folder, "")) for folder in folders):
        raise ModelError(f"{where}: external data '{location}' is a link to outside the model's folder")
    if os.path.lexists(real) and not os.path.isfile(real):
        raise ModelError(f"{where}: its external data '{location}' is not a regular file")
    if not os.path.isfile(real):
        raise ModelError(f"{where}: its external data file '{location}' is missing beside the model")
    if not os.access(real, os.R_OK):
        raise ModelError(f"{where}: its external data file '{location}' cannot be read")
    return real


def _store_inline(tensor: onnx.TensorProto, real: str, offset: int, length: int) -> None:
    with open(real, "rb") as file:
        data = os.pread(file.fileno(), length, offset)
    tensor.ClearField("external_data")
    tensor.ClearField("data_location")
    tensor.raw_data = data


def densify(path: Path, proto: onnx.ModelProto) -> None:
    """Make sparse initializers and sparse Constants dense, in place."""
    for graph in graphs_of(proto):
        for sparse in graph.sparse_initializer:
            graph.initializer.append(_dense(path, sparse))
        graph.ClearField("sparse_initializer")
    for node in nodes_of(proto):
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.SPARSE_TENSOR and node.op_type == "Constant":
                dense = _dense(path, attribute.sparse_tensor)
                attribute.CopyFrom(onnx.helper.make_attribute("value", dense))


def _dense(path: Path, sparse: onnx.SparseTensorProto) -> onnx.TensorProto:
    """The dense tensor of a sparse one, whose indices are linear or one row each (https://onnx.ai/onnx/repo-docs/IR.html)."""
    elements = math.prod(sparse.dims)
    if elements > _MAX_DENSE:
        raise ModelError(
            f"{path}: sparse tensor '{sparse.values.name}' of shape {list(sparse.dims)} has {elements:,} elements when "
            f"dense; at most {_MAX_DENSE:,} are accepted"
        )
    try:
        values = numpy_helper.to_array(sparse.values)
        indices = numpy_helper.to_array(sparse.indices)
        dense = np.zeros(list(sparse.dims), values.dtype)
        if indices.ndim == 2:
            dense[tuple(indices.T)] = values
        else:
            dense.reshape(-1)[indices] = values
    except (ValueError, IndexError, TypeError) as error:
        raise ModelError(f"{path}: sparse tensor '{sparse.values.name}' is invalid: {error}") from None
    return numpy_helper.from_array(dense, sparse.values.name)
