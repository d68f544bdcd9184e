"""ONNX files without their weights: cuts tensor bytes out of the protobuf wire format, and writes them back in.

Parsing a model with protobuf copies every weight, and serializing it copies them again, so that a 440 MB model takes
more than 1 GB. A message is a sequence of fields (tag, payload), so the bytes of large tensors can stay in the file:
`cut` turns an ONNX file into a small ModelProto whose large tensors are external data: byte ranges of that file.
`splice` is the inverse: the bytes and file ranges that it returns, concatenated, are the ONNX file.

Wire format: https://protobuf.dev/programming-guides/encoding/. Field numbers come from onnx's own descriptors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import onnx

_DEEPEST = 100  # messages in each other; protobuf reads no more, and ONNX Runtime uses protobuf
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types; groups (3, 4) do not occur in ONNX


class WireError(ValueError):
    """The bytes are not a protobuf message, or end in the middle of one."""


@dataclasses.dataclass(frozen=True)
class FileRange:
    """`length` bytes of the file at `path`, from `offset`."""

    path: str
    offset: int
    length: int


def _number(message: Any, field: str) -> int:
    return message.DESCRIPTOR.fields_by_name[field].number


def _length_tag(field: int) -> int:
    return field << 3 | _BYTES


_TENSOR = onnx.TensorProto.DESCRIPTOR.name
_DATA_TYPE = _number(onnx.TensorProto, "data_type")
_EXTERNAL_DATA = _number(onnx.TensorProto, "external_data")
_DATA_LOCATION = _number(onnx.TensorProto, "data_location")
_RAW_DATA = _number(onnx.TensorProto, "raw_data")
# Packed float_data and double_data have the same little-endian layout as raw_data.
_SAME_AS_RAW = {
    _number(onnx.TensorProto, "float_data"): onnx.TensorProto.FLOAT,
    _number(onnx.TensorProto, "double_data"): onnx.TensorProto.DOUBLE,
}


def _children_with_tensors() -> dict[str, dict[int, str]]:
    """For each message type that can hold tensors: field number -> message type of the fields to descend into."""
    messages = (onnx.ModelProto, onnx.GraphProto, onnx.NodeProto, onnx.AttributeProto, onnx.FunctionProto)
    names = {m.DESCRIPTOR.name for m in messages} | {_TENSOR}
    return {
        m.DESCRIPTOR.name: {
            f.number: f.message_type.name
            for f in m.DESCRIPTOR.fields
            if f.message_type is not None and f.message_type.name in names
        }
        for m in messages
    }


_CHILDREN = _children_with_tensors()


def _varint(buffer: memoryview, at: int) -> tuple[int, int]:
    """The varint at `at`, and the offset behind it."""
    value = shift = 0
    while True:
        if at >= len(buffer):
            raise WireError("ends in the middle of a number")
        byte = buffer[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise WireError("holds a number that is too long")


def _encoded(value: int) -> bytes:
    """`value` as a varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _fields(buffer: memoryview) -> Iterator[tuple[int, int, int, int, int]]:
    """(field number, wire type, start of the field, start of its payload, end) for each field of a message."""
    at = 0
    size = len(buffer)
    while at < size:
        start = at
        tag, at = _varint(buffer, at)
        number, wire_type = tag >> 3, tag & 7
        payload = at
        if wire_type == _VARINT:
            _, at = _varint(buffer, at)
        elif wire_type == _BYTES:
            length, payload = _varint(buffer, at)
            at = payload + length
        elif wire_type == _FIXED64:
            at += 8
        elif wire_type == _FIXED32:
            at += 4
        else:
            raise WireError(f"holds an unknown wire type {wire_type}")
        if number == 0:
            raise WireError("holds a field numbered 0")
        if at > size:
            raise WireError(f"ends {at - size} bytes early")
        yield number, wire_type, start, payload, at


def strip(buffer: memoryview, path: str, threshold: int) -> bytes:
    """`buffer`, the ONNX file at `path`, with each tensor of more than `threshold` bytes made external data of it.

    The location written is `path` itself, so pass an absolute one. Tensors that are external already, and those
    whose values are stored as varints, stay as they are. Raises WireError where the bytes are no protobuf message.
    """
    return _strip_message(buffer, onnx.ModelProto.DESCRIPTOR.name, path, threshold, 0)


def _strip_message(buffer: memoryview, kind: str, path: str, threshold: int, base: int, depth: int = 1) -> bytes:
    if depth > _DEEPEST:
        raise WireError(f"nests more than {_DEEPEST} messages in each other")
    children = _CHILDREN[kind]
    out = bytearray()
    copied = 0  # everything before this offset is in `out`
    for number, wire_type, start, payload, end in _fields(buffer):
        child = children.get(number)
        if child is None or wire_type != _BYTES or end - payload <= threshold:
            continue
        if child == _TENSOR:
            body = _strip_tensor(buffer[payload:end], path, threshold, base + payload)
        else:
            body = _strip_message(buffer[payload:end], child, path, threshold, base + payload, depth + 1)
        out += buffer[copied:start]
        out += _encoded(_length_tag(number)) + _encoded(len(body)) + body
        copied = end
    out += buffer[copied:]
    return bytes(out)


def _strip_tensor(buffer: memoryview, path: str, threshold: int, base: int) -> bytes:
    fields = list(_fields(buffer))
    data_type = next((_varint(buffer, payload)[0] for n, _, _, payload, _ in fields if n == _DATA_TYPE), 0)
    data = [
        (start, payload, end)
        for n, wire_type, start, payload, end in fields
        if wire_type == _BYTES and (n == _RAW_DATA or _SAME_AS_RAW.get(n) == data_type)
    ]
    external = any(n == _EXTERNAL_DATA for n, *_ in fields)
    if external or len(data) != 1 or data[0][2] - data[0][1] <= threshold:
        return bytes(buffer)
    ((start, payload, end),) = data
    reference = onnx.TensorProto(data_location=onnx.TensorProto.EXTERNAL)
    set_external(reference, path, base + payload, end - payload)
    return bytes(buffer[:start]) + bytes(buffer[end:]) + reference.SerializeToString()


def set_external(tensor: onnx.TensorProto, location: str, offset: int, length: int) -> None:
    """Make `tensor` refer to `length` bytes at `offset` of the file at `location`."""
    tensor.ClearField("external_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))


def external_range(tensor: onnx.TensorProto) -> FileRange:
    """The file range of an external tensor, which must have location, offset and length."""
    entries = {e.key: e.value for e in tensor.external_data}
    return FileRange(entries["location"], int(entries["offset"]), int(entries["length"]))


def splice(model: bytes, embed: Callable[[FileRange], bool]) -> list[bytes | FileRange]:
    """The parts of an ONNX file of `model`, in which the external tensors that `embed` chooses are stored inside.

    model: a serialized ModelProto. The file is the parts one after the other. No external file is read.
    """
    parts, _ = _splice_message(memoryview(model), onnx.ModelProto.DESCRIPTOR.name, embed)
    return parts


def _splice_message(
    buffer: memoryview, kind: str, embed: Callable[[FileRange], bool]
) -> tuple[list[bytes | FileRange], int]:
    """The parts of a message and their total length."""
    children = _CHILDREN[kind]
    parts: list[bytes | FileRange] = []
    copied = total = 0
    for number, wire_type, start, payload, end in _fields(buffer):
        child = children.get(number)
        if child is None or wire_type != _BYTES:
            continue
        body = buffer[payload:end]
        if b"location" not in bytes(body):  # the key that every external tensor has
            continue
        spliced = _splice_tensor(body, embed) if child == _TENSOR else _splice_message(body, child, embed)
        if not any(isinstance(part, FileRange) for part in spliced[0]):
            continue
        head = bytes(buffer[copied:start]) + _encoded(_length_tag(number)) + _encoded(spliced[1])
        parts += [head, *spliced[0]]
        total += len(head) + spliced[1]
        copied = end
    rest = bytes(buffer[copied:])
    return [*parts, rest], total + len(rest)


def _splice_tensor(buffer: memoryview, embed: Callable[[FileRange], bool]) -> tuple[list[bytes | FileRange], int]:
    if not any(number == _DATA_LOCATION for number, *_ in _fields(buffer)):
        return [bytes(buffer)], len(buffer)
    tensor = onnx.TensorProto.FromString(bytes(buffer))
    if tensor.data_location != onnx.TensorProto.EXTERNAL or not embed(data := external_range(tensor)):
        return [bytes(buffer)], len(buffer)
    tensor.ClearField("external_data")
    tensor.ClearField("data_location")
    head = tensor.SerializeToString() + _encoded(_length_tag(_RAW_DATA)) + _encoded(data.length)
    return [head, data], len(head) + data.length
