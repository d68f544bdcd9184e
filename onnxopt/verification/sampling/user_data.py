"""Inputs that the user gives, as .npz files or mappings of arrays, checked against the model's interface."""

from __future__ import annotations

import dataclasses
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from onnxopt.errors import UsageError
from onnxopt.graph import signature
from onnxopt.graph.signature import Sizes, Tensor
from onnxopt.program.dtypes import to_ir
from onnxopt.verification.sampling.data_source import Array, DataSource


@dataclasses.dataclass(frozen=True)
class UserData:
    """A whole set of inputs. name: the file's name, or its position. sizes: of the symbols, as the shapes say."""

    name: str
    inputs: Mapping[str, Array]
    sizes: Sizes


def read_data(sources: Sequence[DataSource], inputs: Sequence[Tensor]) -> tuple[UserData, ...]:
    """Check sets of inputs, each the path of an .npz file or arrays by input name.

    UsageError names the file and the input where one is missing, unknown, or of another dtype or shape than declared,
    and where a file cannot be read.
    """
    if isinstance(sources, (str, Path, Mapping)):
        what = "arrays by name" if isinstance(sources, Mapping) else f"{str(sources)!r}"
        raise UsageError(f"inputs are given as a list of files, or of arrays by name: give [...] around {what}")
    rows = [_read(source, inputs, position) for position, source in enumerate(sources)]
    repeated = {row.name for row in rows if [other.name for other in rows].count(row.name) > 1}
    return tuple(
        dataclasses.replace(row, name=f"{position}:{row.name}") if row.name in repeated else row
        for position, row in enumerate(rows)
    )


def check_alone(data: Sequence[DataSource], shapes: Mapping[str, tuple[int, ...]] | None) -> None:
    """UsageError where shapes are given beside data, which has its own."""
    if data and shapes:
        raise UsageError("shapes and data cannot be given together: the data has its own shapes")


def _read(source: DataSource, inputs: Sequence[Tensor], position: int) -> UserData:
    if isinstance(source, Mapping):
        name, arrays = f"set {position}", {key: np.asarray(value) for key, value in source.items()}
    else:
        path = Path(source)
        name, arrays = path.name, _load(path)
    label = name if isinstance(source, Mapping) else str(source)
    by_name = {tensor.name: tensor for tensor in inputs}
    for key in arrays:
        if key not in by_name:
            raise UsageError(f"{label}: {key!r} is no input of the model; its inputs are {', '.join(by_name)}")
    for key in by_name:
        if key not in arrays:
            raise UsageError(f"{label}: input {key!r} is missing; it holds {', '.join(arrays) or 'no array'}")
    checked = {key: _typed(label, tensor, arrays[key]) for key, tensor in by_name.items()}
    try:
        sizes = signature.pin(inputs, {key: array.shape for key, array in checked.items()})
    except UsageError as error:
        raise UsageError(f"{label}: {error}") from None
    return UserData(name, checked, sizes)


def _load(path: Path) -> dict[str, Array]:
    try:
        file = np.load(path, allow_pickle=False)
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise UsageError(f"{path}: holds one array without a name; save inputs by name with numpy.savez")
        with file:
            return {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error, MemoryError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        if "pickle" in reason:  # numpy takes whatever is no file of its own for that, and advises to load it unsafely
            reason = "it is none, or has arrays of Python objects"
        raise UsageError(f"{path}: cannot be read as an .npz file of numpy.savez: {reason}") from None


def _typed(label: str, tensor: Tensor, array: Array) -> Array:
    """The array in the dtype that ONNX Runtime takes. Dtypes that numpy lacks are stored as raw bytes by numpy."""
    if tensor.dtype == "string":
        if array.dtype.kind not in "UO":
            raise UsageError(f"{label}: input {tensor.name!r} has dtype {array.dtype}, the model declares string")
        return array.astype(object)
    expected = to_ir(tensor.dtype).numpy() if tensor.dtype else array.dtype
    if array.dtype.kind == "V" and array.dtype.itemsize == expected.itemsize and expected.isbuiltin != 1:
        return array.view(expected)
    if array.dtype != expected:
        raise UsageError(f"{label}: input {tensor.name!r} has dtype {array.dtype}, the model declares {tensor.dtype}")
    return array
