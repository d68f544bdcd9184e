"""The messages of KServe's HTTP protocol v2, which Triton speaks too: JSON, and its extension for binary tensors.

https://kserve.github.io/website/docs/concepts/architecture/data-plane/v2-protocol and
https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_binary_data.md
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from model import Arrays, Tensor
from pydantic_core import from_json, to_json  # of FastAPI; several times as fast as json for long lists

_DATATYPES = {
    "BOOL": "bool",
    **{f"UINT{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{f"INT{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": f"float{bits}" for bits in (16, 32, 64)},
}
_NAMES = {np.dtype(dtype): name for name, dtype in _DATATYPES.items()}
HEADER_LENGTH = "Inference-Header-Content-Length"


class RequestError(Exception):
    """What is wrong with a request, in one line, and the HTTP status that says so."""

    def __init__(self, message: str, status: int = 400):
        super().__init__(message)
        self.status = status


class Request(NamedTuple):
    """outputs: whether each is wanted as binary data, by name."""

    id: str | None
    feeds: Arrays
    outputs: dict[str, bool]


def described(tensor: Tensor) -> dict[str, Any]:
    """A tensor of the model's metadata."""
    dims = [dim if isinstance(dim, int) else -1 for dim in tensor.dims]
    return {"name": tensor.name, "datatype": _NAMES[tensor.dtype], "shape": dims}


def read_request(
    body: bytes,
    header_length: str | None,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    limits: Mapping[str, int],
) -> Request:
    """A request that fits the model. header_length: bytes of JSON ahead of the binary data; None: all is JSON.

    limits: the largest sizes of open dims, by name. RequestError says what does not fit.
    """
    head, tail = _parts(body, header_length)
    try:
        request = from_json(head, allow_inf_nan=False)
    except ValueError as error:
        raise RequestError(f"the request is not JSON: {error}") from None
    if not isinstance(request, dict):
        raise RequestError(f"the request is a JSON {_kind(request)}, expected an object with `inputs`")
    feeds = _feeds(request.get("inputs"), tail, inputs)
    _check_dims(feeds, inputs, limits)
    return Request(_id(request.get("id")), feeds, _wanted(request, outputs))


def write_response(model: str, request: Request, results: Arrays) -> tuple[bytes, int | None]:
    """The body, and how long its JSON is where binary data follows.

    RequestError where JSON cannot hold an output.
    """
    rows, binary = [], []
    for name, as_binary in request.outputs.items():
        array = results[name]
        row: dict[str, Any] = {"name": name, "datatype": _NAMES[array.dtype], "shape": list(array.shape)}
        if as_binary:
            row["parameters"] = {"binary_data_size": array.nbytes}
            binary.append(array.tobytes())
        else:
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                message = f"output {name} has NaN or infinity, which JSON cannot hold: ask for it as binary data"
                raise RequestError(message, 406)
            row["data"] = array.ravel().tolist()
        rows.append(row)
    answer = {"model_name": model, "outputs": rows} | ({} if request.id is None else {"id": request.id})
    head = to_json(answer)
    return head + b"".join(binary), len(head) if binary else None


def number_in(header: str, most: int) -> int | None:
    """The number that a header holds; None where it is none, or more than `most`."""
    digits = header.lstrip("0") or "0"  # Python reads no integers of thousands of digits
    if not (header.isascii() and header.isdecimal()) or len(digits) > len(str(most)) or int(digits) > most:
        return None
    return int(digits)


def _parts(body: bytes, header_length: str | None) -> tuple[bytes, memoryview]:
    """The JSON and the binary data."""
    if header_length is None:
        return body, memoryview(b"")
    length = number_in(header_length, len(body))
    if length is None:
        raise RequestError(f"{HEADER_LENGTH} is {header_length[:40]!r}, and the body has {len(body)} bytes")
    return body[:length], memoryview(body)[length:]


def _id(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise RequestError(f"`id` is a JSON {_kind(value)}, expected a string")
    return value


def _wanted(request: dict[str, Any], outputs: Sequence[Tensor]) -> dict[str, bool]:
    """Whether each output is wanted as binary data; all outputs where the request names none."""
    default = _parameters(request, "the request").get("binary_data_output") is True
    rows = request.get("outputs")
    if rows is None:
        return {tensor.name: default for tensor in outputs}
    known, wanted = [tensor.name for tensor in outputs], {}
    for row in _rows(rows, "outputs"):
        if row["name"] not in known:
            raise RequestError(f"there is no output {row['name']}; the model has {', '.join(known)}")
        binary = _parameters(row, f"output {row['name']}").get("binary_data", default)
        wanted[row["name"]] = binary is True
    return wanted


def _feeds(rows: Any, tail: memoryview, inputs: Sequence[Tensor]) -> Arrays:
    """An array for each input of the model."""
    tensors = {tensor.name: tensor for tensor in inputs}
    feeds: Arrays = {}
    at = 0
    for row in _rows(rows, "inputs"):
        name = row["name"]
        if name not in tensors:
            raise RequestError(f"there is no input {name}; the model has {', '.join(tensors)}")
        if name in feeds:
            raise RequestError(f"input {name} is there twice")
        shape = _shape(row, tensors[name])
        size = _parameters(row, f"input {name}").get("binary_data_size")
        if size is None:
            feeds[name] = _from_json(row.get("data"), shape, tensors[name])
            continue
        feeds[name] = _from_bytes(tail[at:], size, shape, tensors[name])
        at += size
    if missing := [name for name in tensors if name not in feeds]:
        raise RequestError(f"the request lacks input {', '.join(missing)}")
    if at != len(tail):
        raise RequestError(f"{len(tail)} bytes of binary data follow the JSON, and the inputs take {at}")
    return feeds


def _rows(rows: Any, what: str) -> list[dict[str, Any]]:
    if not isinstance(rows, list) or not all(isinstance(r, dict) and isinstance(r.get("name"), str) for r in rows):
        raise RequestError(f"`{what}` must be a list of objects that have a `name`")
    return rows


def _parameters(owner: dict[str, Any], what: str) -> dict[str, Any]:
    parameters = owner.get("parameters", {})
    if not isinstance(parameters, dict):
        raise RequestError(f"`parameters` of {what} is a JSON {_kind(parameters)}, expected an object")
    return parameters


def _shape(row: dict[str, Any], tensor: Tensor) -> tuple[int, ...]:
    """The shape of an input, of the model's datatype and rank, and with the dims that the model fixes."""
    datatype = _NAMES[tensor.dtype]
    if row.get("datatype") != datatype:
        raise RequestError(f"input {tensor.name} is {datatype}; the request has {row.get('datatype')}")
    shape = row.get("shape")
    if not isinstance(shape, list) or not all(type(d) is int and 0 <= d < 2**31 for d in shape):
        raise RequestError(f"the shape of input {tensor.name} must be a list of sizes")
    if len(shape) != len(tensor.dims):
        raise RequestError(f"input {tensor.name} has {len(tensor.dims)} dims; the request has {len(shape)}: {shape}")
    return tuple(shape)


def _check_dims(feeds: Arrays, inputs: Sequence[Tensor], limits: Mapping[str, int]) -> None:
    """RequestError unless dims have the sizes that the model fixes, and dims of one name the same size."""
    sizes: dict[str, tuple[int, str]] = {}
    for tensor in inputs:
        for axis, (dim, size) in enumerate(zip(tensor.dims, feeds[tensor.name].shape, strict=True)):
            where = f"dim {axis} of input {tensor.name}"
            if isinstance(dim, int) and size != dim:
                raise RequestError(f"{where} is {dim}; the request has {size}")
            if not isinstance(dim, str):
                continue
            first, place = sizes.setdefault(dim, (size, where))
            if size != first:
                raise RequestError(f"{where} is {size}, and {place} is {first}: both are {dim}")
            if size > limits.get(dim, size):
                raise RequestError(f"{where} is {size}; this service takes {dim} up to {limits[dim]}")


def _from_json(data: Any, shape: tuple[int, ...], tensor: Tensor) -> np.ndarray[Any, Any]:
    """Numbers of a flat or nested list."""
    what = f"`data` of input {tensor.name}"
    if not isinstance(data, list):
        raise RequestError(f"{what} is a JSON {_kind(data)}, expected a list")
    try:
        given = np.asarray(data)
    except (ValueError, OverflowError):
        raise RequestError(f"{what} is nested unevenly, or has a number that is too large") from None
    if given.size != math.prod(shape):
        raise RequestError(f"{what} has {given.size} elements; its shape {list(shape)} has {math.prod(shape)}")
    takes = {"f": "fiu", "b": "b"}.get(tensor.dtype.kind, "iu")
    if given.size and given.dtype.kind not in takes:
        expected = {"f": "numbers", "b": "true and false"}.get(tensor.dtype.kind, "whole numbers")
        raise RequestError(f"{what} must hold {expected} that fit {_NAMES[tensor.dtype]}, and nothing else")
    with np.errstate(over="ignore"):
        array = given.astype(tensor.dtype).reshape(shape)
    fits = np.isfinite(array).all() if tensor.dtype.kind == "f" else (array.ravel() == given.ravel()).all()
    if not fits:
        raise RequestError(f"{what} has a number that {_NAMES[tensor.dtype]} cannot hold")
    return array


def _from_bytes(tail: memoryview, size: Any, shape: tuple[int, ...], tensor: Tensor) -> np.ndarray[Any, Any]:
    """The next `size` bytes, little-endian and in C order."""
    expected = math.prod(shape) * tensor.dtype.itemsize
    if type(size) is not int or size != expected:
        raise RequestError(f"binary_data_size of input {tensor.name} is {size}; its shape {list(shape)} has {expected}")
    if size > len(tail):
        raise RequestError(f"input {tensor.name} has {size} bytes; {len(tail)} are left in the body")
    raw = np.frombuffer(tail[:size], np.uint8)
    if tensor.dtype.kind == "b" and (raw > 1).any():
        raise RequestError(f"input {tensor.name} is BOOL and has a byte that is neither 0 nor 1")
    # What follows JSON of any length may lie at any address, and kernels load whole vectors.
    return np.require(raw.view(tensor.dtype).reshape(shape), requirements=["C", "ALIGNED"])


def _kind(value: Any) -> str:
    names = {dict: "object", list: "list", str: "string", bool: "boolean", int: "number", float: "number"}
    return "null" if value is None else names[type(value)]
