"""Export to Triton Inference Server: a folder of its model repository, with config.pbtxt, library and warm-up data.

    REPOSITORY/NAME/config.pbtxt        written through the protobuf that Triton reads it with (package tritonclient)
    REPOSITORY/NAME/1/model.onnx        and its data; 1/lib/ holds the library with its kernels
    REPOSITORY/NAME/warmup/             inputs of the warm-up requests, raw
    REPOSITORY/NAME/README.md           how to serve it, and which settings the backend has no place for

The backend loads the library by the path in config.pbtxt, which must be as Triton sees it: absolute, or relative to the
folder that tritonserver is started in.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Unpack

import numpy as np

from onnxopt.artifact import layout
from onnxopt.artifact.export.triton_options import BackendSettings, TritonChanges, TritonOptions
from onnxopt.artifact.folder import copy_checked, data_files, staging
from onnxopt.artifact.manifest import Manifest
from onnxopt.artifact.open import Opened, open_artifact
from onnxopt.errors import ArtifactError, UsageError
from onnxopt.graph import read, signature
from onnxopt.graph import traits as model_traits
from onnxopt.graph.signature import Tensor
from onnxopt.paths import StrPath
from onnxopt.runtime import providers, sessions
from onnxopt.runtime.sessions import CPU, CUDA, NodeArg
from onnxopt.verification.sampling import samples

CONFIG = "config.pbtxt"
VERSION = "1"
_WARM_UP = "warmup"
_TYPES = {
    "bool": "TYPE_BOOL",
    "string": "TYPE_STRING",
    **{f"float{bits}": f"TYPE_FP{bits}" for bits in (16, 32, 64)},
    **{f"{sign}int{bits}": f"TYPE_{sign.upper()}INT{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
# TensorRT without a file of settings: engines are built once, and kept.
_TENSORRT_DEFAULTS = {
    "trt_engine_cache_enable": "1",
    "trt_engine_cache_path": "tensorrt",
    "trt_timing_cache_enable": "1",
    "trt_timing_cache_path": "tensorrt",
}


def export_triton(
    artifact: StrPath,
    repository: StrPath,
    options: TritonOptions | None = None,
    **changes: Unpack[TritonChanges],
) -> Path:
    """Write the model folder of an artifact into a Triton model repository (made if missing); returns its path.

    options: how. changes: fields of `TritonOptions` by name, in place of those of `options`:
    export_triton("m.optimized", "repository", max_batch=4).

    ArtifactError where the artifact is damaged; UsageError where Triton cannot serve the model, or the folder exists.
    """
    options = dataclasses.replace(options or TritonOptions(), **changes)
    opened, repository, tensorrt, device = open_artifact(artifact), Path(repository), options.tensorrt, options.device
    name = options.name or re.sub(r"[^A-Za-z0-9_.-]", "_", Path(opened.manifest.source.name).stem)
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
        raise UsageError(f"{name!r}: not a model name for Triton; use letters, digits, '_', '-' and '.'")
    options.check()
    _check_interface(opened)
    where = PurePosixPath(options.mount or repository.absolute().as_posix()) / name
    model = layout.PORTABLE_MODEL if tensorrt and layout.PORTABLE_MODEL in opened.manifest.files else layout.MODEL
    library = None if tensorrt else opened.library
    if library is not None and f"{layout.LIBRARY_FOLDER}/{layout.FATBIN}" not in opened.manifest.files:
        device = _device_without_cuda_kernels(opened, device)
    settings = _options(opened, tensorrt, device, options.settings, where)
    inputs, outputs = _as_onnxruntime_sees_them(opened, model, library)
    batch = options.max_batch if _is_batched(inputs, outputs) else 0

    config = _config(name, inputs, outputs, batch, settings)
    config.instance_group.add(count=options.instances, kind=f"KIND_{device.upper()}")
    if library is not None:
        config.model_operations.op_library_filename.append(str(where / VERSION / layout.LIBRARY_PATH))
    with staging(repository / name) as folder:
        _copy(opened, folder / VERSION, model, library is not None)
        _add_warm_up(config, opened, folder / _WARM_UP, batch)
        (folder / CONFIG).write_text(_to_text(config), "utf-8")
        (folder / "README.md").write_text(_readme(config, opened.manifest, settings, where, model), "utf-8")
    return repository / name


def _check_interface(opened: Opened) -> None:
    """UsageError where Triton has no way to pass an input or output."""
    for tensor in (*opened.manifest.inputs, *opened.manifest.outputs):
        problem = None
        if tensor.kind != "tensor":
            problem = f"is a {tensor.kind}, and Triton passes tensors only"
        elif tensor.dims is None:
            problem = "declares no rank, which config.pbtxt must state; export the model with shapes"
        elif tensor.dtype not in _TYPES:
            problem = f"is {tensor.dtype or 'of undeclared dtype'}, and the backend passes {', '.join(_TYPES)}"
        elif tensor.dtype == "string" and not tensor.dims:
            problem = "is a single string, which the backend cannot pass"
        if problem:
            raise UsageError(f"{opened.folder}: {tensor.name} {problem}")


def _device_without_cuda_kernels(opened: Opened, device: str) -> str:
    """On a GPU, CPU kernels would copy their tensors there and back."""
    if device == "gpu":
        raise UsageError(f"{opened.folder}: has no kernels for GPUs; optimize with --arch, or choose the device cpu")
    return "cpu"


def _as_onnxruntime_sees_them(
    opened: Opened, model: str, library: Path | None
) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """Inputs and outputs with the dims that ORT infers to be static: the backend compares config.pbtxt with those.

    As declared where this machine cannot open the model on its CPU (operators that only other providers have).
    """
    inputs, outputs = opened.manifest.inputs, opened.manifest.outputs
    try:
        session = sessions.open_session(opened.folder / model, library=library)
    except sessions.RunError:
        return inputs, outputs
    return _with_static_dims(inputs, session.get_inputs()), _with_static_dims(outputs, session.get_outputs())


def _with_static_dims(tensors: Sequence[Tensor], declared_by_session: Sequence[NodeArg]) -> list[Tensor]:
    shapes = {row.name: row.shape for row in declared_by_session}

    def dims(tensor: Tensor) -> tuple[int | str | None, ...]:
        declared = tensor.dims or ()
        inferred = shapes.get(tensor.name, declared)
        if len(inferred) != len(declared):
            return declared
        return tuple(i if isinstance(i, int) else d for d, i in zip(declared, inferred, strict=True))

    return [dataclasses.replace(tensor, dims=dims(tensor)) for tensor in tensors]


def _is_batched(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> bool:
    """Whether dim 0 of every input and output is dynamic and the same: Triton then puts requests together."""
    tensors = (*inputs, *outputs)
    if not inputs or any(not t.dims for t in tensors):
        return False
    return len({signature.symbol_of(t, 0) for t in tensors}) == 1 and signature.symbol_of(tensors[0], 0) is not None


# --- config.pbtxt ----------------------------------------------------------------------------------------------------


def _schema() -> Any:
    """The module that protobuf generated from Triton's model_config.proto."""
    try:
        from tritonclient.grpc import model_config_pb2
    except (ImportError, RuntimeError):  # it raises RuntimeError where its own extra is not installed
        raise UsageError("export-triton needs tritonclient and grpcio: pip install 'onnxopt[triton]'") from None
    return model_config_pb2


def _config(
    name: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor], batch: int, options: BackendSettings
) -> Any:
    schema = _schema()
    config = schema.ModelConfig(
        name=name, backend="onnxruntime", default_model_filename=layout.MODEL, max_batch_size=batch
    )
    for tensors, rows in ((inputs, config.input), (outputs, config.output)):
        for tensor in tensors:
            row = rows.add(name=tensor.name, data_type=schema.DataType.Value(_TYPES[tensor.dtype]))
            dims = [d if isinstance(d, int) else -1 for d in (tensor.dims or ())[1 if batch else 0 :]]
            row.dims.extend(dims or [1])
            if batch and not dims:  # nothing but the batch dim, and config.pbtxt knows no empty dims
                row.reshape.SetInParent()
    if batch > 1:
        config.dynamic_batching.preferred_batch_size.extend(sorted({max(batch // 2, 2), batch}))
        config.dynamic_batching.max_queue_delay_microseconds = 100
    if options.graph_level:
        config.optimization.graph.level = options.graph_level
    for accelerator, parameters in options.accelerators.items():
        row = config.optimization.execution_accelerators.gpu_execution_accelerator.add(name=accelerator)
        row.parameters.update(dict(sorted(parameters.items())))
    for key, value in sorted(options.parameters.items()):
        config.parameters[key].string_value = value
    return config


def _options(
    opened: Opened, tensorrt: bool, device: str, settings: str | None, where: PurePosixPath
) -> BackendSettings:
    """The artifact's settings that the backend has an option for."""
    options = BackendSettings()
    chosen = _settings(opened, tensorrt, device, settings)
    configuration: dict[str, Any] = {"provider": "", "provider_options": {}}
    if chosen:
        configuration = providers.read(opened.folder, chosen)
    provider, provider_options = configuration["provider"], configuration["provider_options"]
    for_tensorrt = provider == "TensorrtExecutionProvider"
    if chosen and ((provider == CPU) != (device == "cpu") or (for_tensorrt and not tensorrt)):
        raise UsageError(f"{opened.folder}: the settings {chosen} are for {provider}, which is not what was asked for")
    options.add_session(configuration)
    if tensorrt:
        # Without a choice of GPU no cache may be named after one; profiles and precision are the model's.
        own = provider_options if for_tensorrt else {}
        options.add_tensorrt(own if settings and own else own | _TENSORRT_DEFAULTS, where)
    if for_tensorrt:
        fallbacks = {row["provider"]: row["provider_options"] for row in configuration.get("fallback_providers", ())}
        provider_options = fallbacks.get(CUDA, {})
    if device != "cpu":
        options.add_cuda(provider_options)
    return options


def _settings(opened: Opened, tensorrt: bool, device: str, wanted: str | None) -> str | None:
    """The name of the file of providers/ to take; None where the artifact has none for this."""
    files = [PurePosixPath(file) for file in opened.manifest.files]
    names = sorted(f.stem for f in files if f.parts[0] == layout.PROVIDERS and f.suffix == ".json")
    if wanted:
        exact = [name for name in (f"{wanted}.tensorrt" if tensorrt else wanted, wanted) if name in names]
        if not exact:
            raise UsageError(f"{opened.folder}: has no settings {wanted!r}; it has {', '.join(names)}")
        return exact[0]
    usual = ["cpu"] if device == "cpu" else ["cuda"]
    if tensorrt:
        usual = [*(name for name in names if name.endswith(".tensorrt")), *usual]
    return next((name for name in usual if name in names), None)


def _to_text(config: Any) -> str:
    """The text of config.pbtxt, read back to make sure that it says the same."""
    from google.protobuf import text_format  # type: ignore[import-untyped]

    text = text_format.MessageToString(config)
    if text_format.Parse(text, type(config)()) != config:
        raise ArtifactError(f"{config.name}: {CONFIG} does not read back as it was written; please report it")
    return text


# --- files -----------------------------------------------------------------------------------------------------------


def _copy(opened: Opened, folder: Path, model: str, library: bool) -> None:
    """The model, its data files, and the library with its kernels; each file as its hash says."""
    names = {model: layout.MODEL} | {name: name for name in data_files(opened.manifest.files, model)}
    if library:
        names |= {n: n for n in opened.manifest.files if n.startswith(f"{layout.LIBRARY_FOLDER}/")}
    for name, target in names.items():
        copy_checked(opened.folder / name, folder / target, opened.manifest.files[name])


def _add_warm_up(config: Any, opened: Opened, folder: Path, batch: int) -> None:
    """A request of one item, and one of a whole batch, of inputs like those that the artifact was verified with."""
    inputs = opened.manifest.inputs
    uses = model_traits.of(read.load(opened.model).model).uses
    drawn = samples.draw(inputs, _sizes(opened.manifest), seed=0, uses=uses)
    folder.mkdir()
    files = {}
    for index, tensor in enumerate(inputs):
        array = drawn[tensor.name][0] if batch else drawn[tensor.name]
        files[tensor.name] = (f"{index}.raw", list(array.shape))
        (folder / f"{index}.raw").write_bytes(_raw(array))
    for size in sorted({1, batch or 1}):
        row = config.model_warmup.add(name=f"batch of {size}", batch_size=size)
        for tensor, declared in zip(inputs, config.input, strict=True):
            file, dims = files[tensor.name]
            entry = row.inputs[tensor.name]
            entry.data_type, entry.input_data_file = declared.data_type, file
            entry.dims.extend(dims or [1])


def _raw(array: samples.Array) -> bytes:
    """The bytes of a tensor as Triton takes them: strings each with their length before them."""
    if array.dtype != object:
        return np.ascontiguousarray(array).tobytes()
    texts = [str(text).encode() for text in array.flat]
    return b"".join(len(text).to_bytes(4, "little") + text for text in texts)


def _sizes(manifest: Manifest) -> signature.Sizes:
    """Sizes of dynamic dims: the largest that verification ran at, with one item a batch; else usual ones."""
    names = signature.symbols(manifest.inputs)
    batch, _ = signature.roles(manifest.inputs)
    verified = [
        {name: int(match[1]) for name in names if (match := re.search(rf"(?:^|, ){re.escape(name)}=(\d+)", case))}
        for case in dict.fromkeys(c.case for c in manifest.verify.of_models if c.ok)
    ]
    complete = [sizes for sizes in verified if len(sizes) == len(names)]
    chosen = max(
        complete,
        key=lambda sizes: int(np.prod([s for n, s in sizes.items() if n not in batch])),
        default=signature.typical(manifest.inputs, {}),
    )
    return {name: 1 if name in batch else size for name, size in chosen.items()}


def _readme(config: Any, manifest: Manifest, options: BackendSettings, where: PurePosixPath, model: str) -> str:
    repository = where.parent
    lines = [
        f"# {config.name}",
        "",
        f"{manifest.source.name}, optimized by onnxopt {manifest.onnxopt}, for Triton Inference Server's ONNX Runtime",
        f"backend (ONNX Runtime {manifest.requires.onnxruntime_cuda} or later on a GPU).",
        "",
        f"    tritonserver --model-repository={repository}",
        "",
    ]
    if config.model_operations.op_library_filename:
        library = config.model_operations.op_library_filename[0]
        lines += [
            f"Triton must see this folder as `{where}`: `config.pbtxt` names the library by that path,",
            f"`{library}`. Elsewhere, change it there, or export again with `--mount`.",
            "The library finds its kernels beside itself. `ONNXOPT_DISABLE=1` in the server's environment switches it",
            "off: slower, same results.",
        ]
    else:
        lines += [f"It runs `{model}` without onnxopt's library."]
    batching = (
        f"Requests are put together into batches of up to {config.max_batch_size}; shapes leave out the batch dim."
        if config.max_batch_size
        else "Requests are not put together: dim 0 is not one dynamic batch dim of all inputs and outputs."
    )
    lines += ["", batching, "", "| tensor | | dtype | dims |", "|---|---|---|---|"]
    for kind, rows in (("input", config.input), ("output", config.output)):
        for row in rows:
            lines.append(f"| {row.name} | {kind} | {_schema().DataType.Name(row.data_type)} | {list(row.dims)} |")
    if options.left_out:
        lines += ["", "Settings of the artifact that do not apply under Triton:", ""]
        lines += [f"- `{key}`: {reason}" for key, reason in sorted(options.left_out.items())]
    return "\n".join(lines) + "\n"
