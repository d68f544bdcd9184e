"""Writes a model and its weights by copying file ranges: no weight passes through this process's memory.

Weights that are onnx_ir.ExternalTensor (all large ones, once loaded) are copied from their file inside the kernel.
Holes of a file stay holes, and a tensor that several initializers share is written once.
"""

from __future__ import annotations

import dataclasses
import errno
import os
from collections.abc import Mapping
from pathlib import Path

import onnx
import onnx_ir as ir

from onnxopt.graph import external_data, read, wire

MODEL_FILE = "model.onnx"
DATA_FILE = "model.onnx.data"
EMBED_LIMIT = 1_900_000_000  # bytes; a protobuf message ends at 2^31, and readers need some room
_INLINE_LIMIT = 1024  # bytes; tensors up to this size always stay in the model file
_PAGE = 4096  # bytes; alignment at which runtimes can map a tensor
_LARGE = 1 << 20  # bytes; tensors from this size on are aligned so that Windows can map them too
_LARGE_ALIGNMENT = 65536
_SHRUNK = "a file of the model's weights became shorter since the model was loaded"
_BLOCK = 8 << 20  # bytes a copy step, where the kernel cannot copy by itself


def save(
    model: ir.Model,
    folder: str | os.PathLike[str],
    *,
    external: bool | None = None,
    others: Mapping[str, ir.Model] | None = None,
) -> tuple[str, ...]:
    """Write `model` to `folder`/model.onnx, and its weights into that file or to model.onnx.data beside it.

    others: more forms of the model by file name. With a data file, all forms read that one file.

    external: True for a data file, False for one file, None to decide by size: a data file where the model would exceed
    EMBED_LIMIT, or where tensors share bytes, which one file cannot express. Returns the names of the files written.
    The same model gives the same bytes. `model` is not changed. Raises ValueError where external is False and the model
    exceeds EMBED_LIMIT, OSError where writing fails.
    """
    folder = Path(folder)
    protos = {name: _lean_proto(form) for name, form in {MODEL_FILE: model, **(others or {})}.items()}
    proto = protos[MODEL_FILE]
    ranges = [wire.external_range(t) for t in external_data.tensors_of(proto) if _is_external(t)]
    embedded = proto.ByteSize() + sum(data.length for data in ranges)
    shared = sum(data.length for data in ranges) - sum(data.length for data in set(ranges))
    if external is None:
        external = embedded > EMBED_LIMIT or shared * 100 > embedded
    if not external:
        if embedded > EMBED_LIMIT:
            raise ValueError(f"the model needs {embedded} bytes, one ONNX file holds at most {EMBED_LIMIT}")
        for name, form in protos.items():
            _write(folder / name, wire.splice(_serialized(form), lambda data: True))
        return tuple(protos)
    layout = _Layout()
    for form in protos.values():
        for graph in external_data.graphs_of(form):
            for tensor in graph.initializer:
                _place(tensor, layout)
    _write(folder / DATA_FILE, layout.parts)
    for name, form in protos.items():
        # Tensors in attributes still refer to their own file. They go inside: not every runtime reads them outside.
        _write(folder / name, wire.splice(_serialized(form), lambda data: data.path != DATA_FILE))
    return (*protos, DATA_FILE)


def _lean_proto(model: ir.Model) -> onnx.ModelProto:
    with read.quiet():
        proto = ir.to_proto(model)
    read.restore_types(model, proto)
    _drop_inferable_types(proto)
    return proto


def _serialized(proto: onnx.ModelProto) -> bytes:
    return proto.SerializeToString(deterministic=True)


def _drop_inferable_types(proto: onnx.ModelProto) -> None:
    """Remove the value_info of initializers, and of results of ONNX's operators, which every runtime infers.

    It would make small models a tenth larger. The value_info of other domains' results stays.
    """
    for graph in external_data.graphs_of(proto):
        inferable = {tensor.name for tensor in graph.initializer}
        inferable |= {name for node in graph.node if node.domain in ("", "ai.onnx") for name in node.output}
        retained = [value for value in graph.value_info if value.name not in inferable]
        del graph.value_info[:]
        graph.value_info.extend(retained)


def _is_external(tensor: onnx.TensorProto) -> bool:
    return tensor.data_location == onnx.TensorProto.EXTERNAL


@dataclasses.dataclass
class _Layout:
    """The data file: its parts in order, and the offset of each distinct file range or content."""

    parts: list[bytes | wire.FileRange] = dataclasses.field(default_factory=list)
    offsets: dict[bytes | wire.FileRange, int] = dataclasses.field(default_factory=dict)
    end: int = 0

    def add(self, part: bytes | wire.FileRange, length: int) -> int:
        """The offset of `part`, which is appended at the next aligned offset where it is new."""
        if part not in self.offsets:
            alignment = _LARGE_ALIGNMENT if length >= _LARGE else _PAGE
            padding = -self.end % alignment
            self.parts += [bytes(padding), part]
            self.offsets[part] = self.end + padding
            self.end += padding + length
        return self.offsets[part]


def _place(tensor: onnx.TensorProto, layout: _Layout) -> None:
    """Move the bytes of a tensor to the data file, if they exceed _INLINE_LIMIT."""
    part: bytes | wire.FileRange
    if _is_external(tensor):
        part = wire.external_range(tensor)
        length = part.length
    else:
        part, length = tensor.raw_data, len(tensor.raw_data)
        if length <= _INLINE_LIMIT:
            return
        tensor.ClearField("raw_data")
    wire.set_external(tensor, DATA_FILE, layout.add(part, length), length)


# --- writing -------------------------------------------------------------------------------------------------------


def _write(path: Path, parts: list[bytes | wire.FileRange]) -> None:
    """Write the parts one after the other. Holes of the source files and parts of zeros become holes."""
    sources: dict[str, int] = {}
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        at = 0
        for part in parts:
            if isinstance(part, bytes):
                if part.count(0) != len(part):
                    _write_all(target, part, at)
                at += len(part)
            else:
                if part.path not in sources:
                    sources[part.path] = os.open(part.path, os.O_RDONLY | os.O_CLOEXEC)
                _copy_range(sources[part.path], part.offset, target, at, part.length)
                at += part.length
        os.ftruncate(target, at)
    finally:
        os.close(target)
        for source in sources.values():
            os.close(source)


def _write_all(target: int, data: bytes | memoryview, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(target, view, at)
        view = view[written:]
        at += written


def _copy_range(source: int, offset: int, target: int, at: int, length: int) -> None:
    """Copy `length` bytes from `offset` of one file to `at` of another, skipping holes."""
    end = offset + length
    if os.fstat(source).st_size < end:
        raise OSError(errno.EIO, _SHRUNK)
    position = offset
    while position < end:
        try:
            data = os.lseek(source, position, os.SEEK_DATA)
            hole = min(os.lseek(source, data, os.SEEK_HOLE), end)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole up to the end of the file
                return
            data, hole = position, end  # a file system that knows no holes
        if data >= end:
            return
        _copy_data(source, data, target, at + data - offset, hole - data)
        position = hole


def _copy_data(source: int, offset: int, target: int, at: int, length: int) -> None:
    """Copy bytes inside the kernel, or through a small buffer where the file systems do not support it."""
    try:
        while length:
            copied = os.copy_file_range(source, target, length, offset, at)
            if copied == 0:
                break
            offset, at, length = offset + copied, at + copied, length - copied
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
    while length:
        block = os.pread(source, min(length, _BLOCK), offset)
        if not block:
            raise OSError(errno.EIO, _SHRUNK)
        _write_all(target, block, at)
        offset, at, length = offset + len(block), at + len(block), length - len(block)
