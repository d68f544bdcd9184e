"""Reads an ONNX file of any size and checks it, without reading its weights.

Weights above 1 KiB, inside the file or in external data files, become onnx_ir.ExternalTensor objects on absolute paths:
reading one maps its file, and a model that nobody computes on costs no memory for it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import logging
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from onnxopt import errors, files
from onnxopt.errors import ModelError, step
from onnxopt.graph import external_data, limits, numeric_dims, text, wire

INLINE_LIMIT = 1024  # bytes; tensors up to this are kept in memory, so passes may read them freely
# What onnx's checker and onnx_ir raise for models they cannot read.
_UNREADABLE = (onnx.checker.ValidationError, RuntimeError, ValueError, TypeError, LookupError, AttributeError)
# Operators that ONNX Runtime alone has in ONNX's domain; it has one more since before ONNX.
_ONLY_ORTS = frozenset(
    {"Affine", "Crop", "DynamicSlice", "GRUUnit", "GivenTensorFill", "ImageScaler", "ParametricSoftplus", "Scale",
     "ScaledTanh", "SimplifiedLayerNormalization"}
)  # fmt: skip
_LAYER_NORMALIZATION_SINCE = 17  # opset
_ORTS = "onnxruntime"  # a domain that the checker knows nothing of
WEIGHTS = (".bin", ".ckpt", ".pt", ".pth", ".safetensors")  # how files of PyTorch and its users end
_EXPORT = "export the module with torch.onnx.export, or give it to onnxopt.optimize in Python"
_TYPES = "onnxopt.types"  # key in ir.Model.meta: TypeProtos of inputs and outputs that onnx_ir cannot represent


@dataclasses.dataclass(frozen=True)
class Source:
    """A model that was read, the file it came from, and its size.

    bytes: of the model file and of the parts of external data files that it refers to (a part that several tensors
    share counts once). title: how messages call the model, default its path. converted: whether onnxopt wrote it, as
    the user's model in lower precision.
    """

    path: Path
    model: ir.Model
    bytes: int
    title: str = ""
    converted: bool = False

    def __str__(self) -> str:
        return self.title or str(self.path)

    @functools.cached_property
    def sha256(self) -> str:
        """Hex digest of the model file, what `sha256sum` prints; external data files are not part of it.

        Computed on first use, streaming: hashing the weights of a 10 GB model takes longer than optimizing it.
        """
        with open(self.path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


def load(path: str | os.PathLike[str]) -> Source:
    """The model at `path`, checked by onnx.checker. Its nodes may be in any order.

    Raises ModelError, one line that names the file and what is wrong: not there, a folder, empty, not ONNX, truncated,
    invalid, of an IR version or opset that the installed onnx does not know, or with external data that is missing, too
    short, or outside the model's folder. Sparse tensors become dense, as onnx_ir has no sparse ones and runtimes make
    them dense at load.
    """
    path = Path(path)
    with step(f"{path}: reading it"):
        return _load(path)


def external_files(path: Path) -> tuple[str, ...]:
    """The real paths of the other files that hold weights of the model at `path`, whether they exist or not.

    ModelError where it cannot be read as a model.
    """
    with step(f"{path}: reading it"):
        proto, _ = _parse(path)
        located = [
            entry.value
            for tensor in external_data.tensors_of(proto)
            if tensor.data_location == onnx.TensorProto.EXTERNAL
            for entry in tensor.external_data
            if entry.key == "location"
        ]
        paths = dict.fromkeys(os.path.realpath(path.parent / name) for name in dict.fromkeys(located))
    return tuple(name for name in paths if name != os.path.realpath(path))


def _load(path: Path) -> Source:
    proto, size = _parse(path)
    _check_versions(path, proto)
    text.make_utf8(path, proto)
    numeric_dims.fix(proto)
    limits.check_functions(path, proto)
    external = external_data.resolve(path, proto, INLINE_LIMIT)
    limits.check_tensors(path, proto)
    external_data.densify(path, proto)
    _check_graph(path, proto)
    types = _take_types(proto)
    try:
        with quiet():
            model = ir.from_proto(proto)
    except _UNREADABLE as error:
        raise ModelError(f"{path}: cannot be represented: {first_line(error)}") from error
    model.meta[_TYPES] = types
    return Source(path, model, size + external)


def _parse(path: Path) -> tuple[onnx.ModelProto, int]:
    """The model with its large tensors external, and the size of the file in bytes."""
    try:
        with files.open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0:
                raise ModelError(f"{path}: the file is empty")
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)  # unmapped when the last view of it is gone
        real = os.path.realpath(path)
        real.encode()  # stored in the model, as a string
        small = wire.strip(memoryview(mapped), real, INLINE_LIMIT)
        return onnx.ModelProto.FromString(small), size
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file") from None
    except IsADirectoryError:
        inside = sorted(path.glob("*.onnx"))
        raise ModelError(f"{path}: is a folder, not an ONNX file{f'; give {inside[0]}' if inside else ''}") from None
    except files.NotRegularError as error:
        raise ModelError(f"{path}: not an ONNX file: {error.strerror}") from None
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeEncodeError:
        raise ModelError(f"{os.fsencode(path)!r}: the path is not UTF-8; ONNX cannot refer to weights there") from None
    except (wire.WireError, DecodeError) as error:
        if path.suffix in WEIGHTS:
            raise ModelError(f"{path}: not an ONNX file, but weights by its name; {_EXPORT}") from error
        raise ModelError(f"{path}: not an ONNX file, or truncated ({first_line(error)})") from error


def _check_versions(path: Path, proto: onnx.ModelProto) -> None:
    if not proto.HasField("graph") or not proto.ir_version:
        raise ModelError(f"{path}: not an ONNX model, or truncated: it has no graph or no IR version")
    if proto.ir_version > onnx.IR_VERSION:
        raise ModelError(
            f"{path}: IR version {proto.ir_version} is newer than {onnx.IR_VERSION}, the newest that the installed "
            f"onnx {onnx.__version__} reads"
        )
    newest = onnx.defs.onnx_opset_version()
    for opset in proto.opset_import:
        if opset.domain in ("", "ai.onnx") and opset.version > newest:
            raise ModelError(
                f"{path}: opset {opset.version} is newer than {newest}, the newest that the installed "
                f"onnx {onnx.__version__} knows"
            )


def _check_graph(path: Path, proto: onnx.ModelProto) -> None:
    """Run onnx.checker on a copy without weights.

    The checker rejects some models that runtimes accept. These are no error here: nodes in any order, inputs or outputs
    of undeclared rank, and functions that import another opset than the model (the model's opset counts).
    """
    lean = onnx.ModelProto()
    lean.CopyFrom(proto)
    for tensor in external_data.tensors_of(lean):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
            tensor.dims[:] = [0]
    for value in (*lean.graph.input, *lean.graph.output):
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.shape.SetInParent()
    versions = {opset.domain: opset.version for opset in lean.opset_import}
    _set_apart(lean, versions.get("", versions.get("ai.onnx", 0)))
    for function in lean.functions:
        for opset in function.opset_import:
            opset.version = versions.get(opset.domain, opset.version)
    try:
        try:
            onnx.checker.check_model(lean)
        except onnx.checker.ValidationError as error:
            if "topologically sorted" not in str(error):
                raise
            with quiet():
                model = ir.from_proto(lean)
            model.graph.sort()
            onnx.checker.check_model(ir.to_proto(model))
    except onnx.checker.ValidationError as error:
        complaint, _, _context = str(error).partition("==>")  # several lines, with the node's name on one of its own
        raise ModelError(f"{path}: invalid model: {' '.join(complaint.split())}") from error
    except _UNREADABLE as error:
        raise ModelError(f"{path}: invalid model: {first_line(error)}") from error


def _set_apart(lean: onnx.ModelProto, opset: int) -> None:
    """Move operators that ONNX Runtime alone has in ONNX's domain to another one, where the checker lets them be."""
    own = _ONLY_ORTS | ({"LayerNormalization"} if opset < _LAYER_NORMALIZATION_SINCE else set())
    nodes = [n for graph in external_data.graphs_of(lean) for n in graph.node]
    nodes += [n for function in lean.functions for n in function.node]
    moved = [n for n in nodes if n.op_type in own and n.domain in ("", "ai.onnx")]
    for node in moved:
        node.domain = _ORTS
    if moved:
        lean.opset_import.append(onnx.helper.make_opsetid(_ORTS, 1))
        for function in lean.functions:
            function.opset_import.append(onnx.helper.make_opsetid(_ORTS, 1))


def _take_types(proto: onnx.ModelProto) -> dict[str, onnx.TypeProto]:
    """Remove types that onnx_ir cannot represent (maps, opaque types). Returns those of inputs and outputs, by name."""
    for graph in external_data.graphs_of(proto):
        typed = [value for value in graph.value_info if not _has_unknown_type(value.type)]
        if len(typed) < len(graph.value_info):
            del graph.value_info[:]
            graph.value_info.extend(typed)
    types = {}
    for value in (*proto.graph.input, *proto.graph.output):
        if _has_unknown_type(value.type):
            types[value.name] = onnx.TypeProto.FromString(value.type.SerializeToString())
            value.ClearField("type")
    return types


def _has_unknown_type(type_proto: onnx.TypeProto) -> bool:
    kind = type_proto.WhichOneof("value")
    if kind in ("sequence_type", "optional_type"):
        return _has_unknown_type(getattr(type_proto, kind).elem_type)
    return kind in ("map_type", "opaque_type")


def restore_types(model: ir.Model, proto: onnx.ModelProto) -> None:
    """Set the types that onnx_ir could not hold on the inputs and outputs of `proto`, which was made from `model`."""
    types = model.meta.get(_TYPES, {})
    for value in (*proto.graph.input, *proto.graph.output):
        if value.name in types and not value.HasField("type"):
            value.type.CopyFrom(types[value.name])


def first_line(error: BaseException) -> str:
    """The first line of the message of an error's root cause, without the stack that some libraries add."""
    while error.__cause__ is not None and not isinstance(error, onnx.checker.ValidationError):
        error = error.__cause__
    return errors.first_line(error)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence the warnings of onnx_ir and onnxscript. The notes of normalization say what concerns a user."""
    loggers = [logging.getLogger(name) for name in ("onnx_ir", "onnxscript")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
