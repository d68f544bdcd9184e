"""Text of a ModelProto that is not UTF-8, made readable.

ONNX's strings are UTF-8 by definition, but no runtime checks: files with Latin-1 in a producer or a name load. Python's
protobuf gives such a string as bytes, and refuses to store it again.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.descriptor import FieldDescriptor  # type: ignore[import-untyped]

from onnxopt.errors import ModelError


def make_utf8(path: Path, proto: onnx.ModelProto) -> bool:
    """Write bytes that are not UTF-8 as \\xNN, in every string of a model, in place; returns whether any was there.

    The same text becomes the same text everywhere, and two that differ stay different. ModelError where the name of an
    input or output of the model is such a text: callers could not name it in ONNX Runtime's Python API.
    """
    if all(isinstance(text, str) for text in _texts(proto)):
        return False
    for kind, values in (("input", proto.graph.input), ("output", proto.graph.output)):
        for position, value in enumerate(values):
            name: str | bytes = value.name  # protobuf's types know nothing of bytes here
            if isinstance(name, bytes):
                name = _escaped(name)
                raise ModelError(f"{path}: the name of {kind} {position} is not UTF-8: '{name}'; rename it")
    texts = {text for text in _texts(proto) if isinstance(text, str)}
    replaced: dict[bytes, str] = {}

    def readable(text: Any) -> str:
        if isinstance(text, str):
            return text
        if text not in replaced:
            name = _escaped(text)
            while name in texts:
                name += "_"
            texts.add(name)
            replaced[text] = name
        return replaced[text]

    for message, field in _string_fields(proto):
        value = getattr(message, field.name)
        if _repeated(field):
            value[:] = [readable(text) for text in value]
        elif isinstance(value, bytes):
            setattr(message, field.name, readable(value))
    return True


def _escaped(text: bytes) -> str:
    return text.decode("utf-8", "backslashreplace")


def _repeated(field: Any) -> bool:
    return bool(field.is_repeated)


def _texts(message: Any) -> Iterator[str | bytes]:
    for owner, field in _string_fields(message):
        value = getattr(owner, field.name)
        if _repeated(field):
            yield from value
        else:
            yield value


def _string_fields(message: Any) -> Iterator[tuple[Any, Any]]:
    """(message, field) for every string field that is set in a message and the messages inside it."""
    pending = [message]
    while pending:
        owner = pending.pop()
        for field, value in owner.ListFields():
            if field.type == FieldDescriptor.TYPE_STRING:
                yield owner, field
            elif field.type == FieldDescriptor.TYPE_MESSAGE:
                pending.extend(value if _repeated(field) else [value])
