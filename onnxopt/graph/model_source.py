"""The forms in which a program may give a model, written as a model file."""

from __future__ import annotations

import inspect
import os
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import onnx
import onnx_ir as ir

from onnxopt.errors import ModelError, UsageError, describe
from onnxopt.graph import read
from onnxopt.graph.read import Source
from onnxopt.graph.write import EMBED_LIMIT, MODEL_FILE

if TYPE_CHECKING:
    import torch

ModelSource: TypeAlias = (
    "str | os.PathLike[str] | bytes | onnx.ModelProto | ir.Model | torch.onnx.ONNXProgram | torch.nn.Module"
)
_FORMS = "a path, bytes, onnx.ModelProto, onnx_ir.Model, torch.onnx.ONNXProgram or torch.nn.Module"
_CALLER = 7  # frames from the warning to the caller of onnxopt.optimize
_DATA_FILE = "weights"  # beside the model; no form but a path has a folder of its own


def load(model: ModelSource, folder: Path, example_inputs: Any = None, dynamic_shapes: Any = None) -> Source:
    """The model, read from its own file or from one that is written into `folder`, which no message names.

    Errors as of `as_file`, and ModelError as of read.load.
    """
    path = as_file(model, folder, example_inputs, dynamic_shapes)
    try:
        return read.load(path)
    except ModelError as error:
        if path.parent != folder:
            raise
        raise type(error)(f"{name_of(model)}: {str(error).removeprefix(f'{path}: ')}") from error


def as_file(model: ModelSource, folder: Path, example_inputs: Any = None, dynamic_shapes: Any = None) -> Path:
    """The path of a model that is a file already, else of the file that is written into `folder`.

    example_inputs: what a torch.nn.Module is called with, a tuple, a mapping of keywords, or one tensor.
    dynamic_shapes: as torch.onnx.export takes it; with None, all sizes are fixed and a warning says so, with () they
    are fixed. UsageError for other types, for a Module in training mode or without
    example_inputs, and for either of the two beside a model that is no Module. ModelError where the model is a folder,
    or cannot be exported or written.
    """
    module = _is_of_torch(model, "nn", "Module")
    if isinstance(model, type):
        raise UsageError(f"a model is given as {_FORMS}, not as the class {model.__name__}: give an object of it")
    if not module and (example_inputs is not None or dynamic_shapes is not None):
        raise UsageError("example_inputs and dynamic_shapes are for a torch.nn.Module; this model is exported already")
    if isinstance(model, (str, os.PathLike)):
        if not os.fspath(model):
            raise UsageError("the path of the model is empty")
        if os.path.isdir(model):
            raise ModelError(f"{os.fspath(model)}: is a folder, not an ONNX file; optimize_folder takes folders")
        return Path(model)
    path = folder / MODEL_FILE
    try:
        if isinstance(model, (bytes, bytearray, memoryview)):
            path.write_bytes(model)
        elif isinstance(model, onnx.ModelProto):
            _save_proto(model, path)
        elif isinstance(model, ir.Model):
            ir.save(model, path, external_data=_DATA_FILE)
        elif module:
            _exported(model, example_inputs, dynamic_shapes).save(path)
        elif _is_of_torch(model, "onnx", "ONNXProgram"):
            model.save(path)  # type: ignore[union-attr, operator]
        elif _is_of_torch(model, "export", "ExportedProgram"):
            raise UsageError(f"a model is given as {_FORMS}; torch.onnx.export makes one of an ExportedProgram")
        else:
            raise UsageError(f"a model is given as {_FORMS}, not as {type(model).__name__}")
    except (UsageError, MemoryError):
        raise
    except Exception as error:
        failed = "torch.onnx.export failed" if module else "it cannot be written as a model file"
        raise ModelError(f"{name_of(model)}: {failed}: {describe(error)}") from error
    return path


def name_of(model: ModelSource) -> str:
    """What messages call a model."""
    kind = type_in_memory(model)
    return str(model) if kind is None else f"the given {kind}"


def type_in_memory(model: ModelSource) -> str | None:
    """The name of the type of a model that is no file, None for paths."""
    return None if isinstance(model, (str, os.PathLike)) else type(model).__name__


def _save_proto(model: onnx.ModelProto, path: Path) -> None:
    large = model.ByteSize() > EMBED_LIMIT
    if not large:
        path.write_bytes(model.SerializeToString())
        return
    copy = onnx.ModelProto()
    copy.CopyFrom(model)  # saving moves the weights out of the message
    onnx.save(copy, path, save_as_external_data=True, location=_DATA_FILE)


def _is_of_torch(model: object, submodule: str, name: str) -> bool:
    """Whether a model is of a class of torch, which is not imported for that: who has such an object has torch."""
    torch = sys.modules.get("torch")
    kind = getattr(getattr(torch, submodule, None), name, None)
    return kind is not None and isinstance(model, kind)


def _exported(model: Any, example_inputs: Any, dynamic_shapes: Any) -> Any:
    import torch

    if example_inputs is None:
        raise UsageError("a torch.nn.Module is exported with example inputs: give example_inputs=(tensor, ...)")
    if model.training:
        raise UsageError("the torch.nn.Module is in training mode: call .eval() first")
    positional, keywords = arguments_of(example_inputs)
    if dynamic_shapes is None:
        _warn_of_fixed_dims(model, positional, keywords)
    with torch.no_grad():
        return torch.onnx.export(
            model, positional, kwargs=keywords, dynamo=True, dynamic_shapes=dynamic_shapes or None, verbose=False
        )


def arguments_of(example_inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What a module is called with: a tuple, a mapping of keywords, or one tensor, as arguments and keywords."""
    if isinstance(example_inputs, Mapping):
        return (), dict(example_inputs)
    return (tuple(example_inputs) if isinstance(example_inputs, (tuple, list)) else (example_inputs,)), {}


def _warn_of_fixed_dims(model: Any, positional: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
    """UserWarning where the export takes the batch size of its example alone, and the user did not ask for that.

    The first dim of a tensor of two or more dims is taken for a batch.
    """
    try:
        given = inspect.signature(model.forward).bind(*positional, **keywords).arguments
    except (TypeError, ValueError):  # which torch.onnx.export reports
        return
    shapes = {name: list(value.shape) for name, value in given.items() if len(getattr(value, "shape", ())) > 1}
    if shapes:
        texts = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        dims = ", ".join(f"'{name}': {{0: batch}}" for name in shapes)
        warnings.warn(
            f"example_inputs fixes all sizes: the artifact takes {texts} alone. For any batch size give "
            f"dynamic_shapes={{{dims}}}, with batch = torch.export.Dim('batch'); dynamic_shapes=() keeps the sizes "
            "fixed without this warning",
            stacklevel=_CALLER,
        )
