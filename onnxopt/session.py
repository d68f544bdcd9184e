"""Session: an artifact as an ordinary onnxruntime.InferenceSession. What `load` does is three lines in any language."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxopt import package, requirements
from onnxopt import providers as configurations
from onnxopt.errors import ArtifactError
from onnxopt.execution import CPU, CUDA, check_providers, cuda_is_usable, one_line
from onnxopt.opening import Opened, open_artifact

if TYPE_CHECKING:
    import onnxruntime as ort


def load(
    path: str | Path,
    *,
    providers: Sequence[str | tuple[str, dict[str, Any]]] | None = None,
    session_options: ort.SessionOptions | None = None,
    library: bool = True,
    public_key: str | Path | None = None,
) -> ort.InferenceSession:
    """Open an artifact, a folder or an archive of `onnxopt pack`, after checking every file's hash.

    providers: as ORT takes them; default: the artifact's configuration for CUDA where this ORT has it and a device
    answers, else (or where CUDA then fails to start) for the CPU. session_options: used as
    they are, and the library is registered on them; default: the configuration's. library=False: without the library,
    ORT runs the original nodes. public_key: minisign's, as a path or its base64 line: refuse an artifact that is not
    signed by it; default: the environment variable ONNXOPT_PUBLIC_KEY, and no check where that is unset.

    Raises ArtifactError where a file is missing or changed, this ORT is too old, or refuses the model; UsageError where
    this ORT has not got a provider that was asked for.
    """
    artifact = open_artifact(path, public_key=public_key)
    folder = artifact.folder
    _check_version(artifact, artifact.manifest.requires.onnxruntime, "to open it")
    if providers is not None:
        names = [p if isinstance(p, str) else p[0] for p in providers]
        check_providers(names)
        if CUDA in names:
            _check_version(artifact, artifact.manifest.requires.onnxruntime_cuda, f"to run it on {CUDA}")
    library_path = artifact.library if library else None
    if session_options is not None and library_path is not None:
        _register(session_options, library_path)
    if providers is None and cuda_is_usable():
        _check_version(artifact, artifact.manifest.requires.onnxruntime_cuda, f"to run it on {CUDA}")
        configuration = configurations.read(folder, "cuda")
        # A driver and a device do not yet make a working EP: cuDNN may be missing, or the GPU's memory be taken.
        with contextlib.suppress(ArtifactError):
            return _open(folder, configuration, _providers(configuration), session_options, library_path)
    configuration = configurations.read(folder, "cpu")
    chosen = list(providers) if providers is not None else _providers(configuration)
    return _open(folder, configuration, chosen, session_options, library_path)


def _open(
    folder: Path,
    configuration: dict[str, Any],
    providers: list[Any],
    session_options: ort.SessionOptions | None,
    library: Path | None,
) -> ort.InferenceSession:
    import onnxruntime as ort

    options = session_options
    if options is None:
        options = _options(configuration)
        if library is not None:
            _register(options, library)
    if CUDA in [p if isinstance(p, str) else p[0] for p in providers]:
        ort.preload_dlls()
    try:
        # ORT's own fallback would print to stdout and hide what went wrong.
        return ort.InferenceSession(str(folder / package.MODEL), options, providers=providers, enable_fallback=0)
    except Exception as error:  # ORT raises a dozen unrelated classes
        raise ArtifactError(f"{folder}: ONNX Runtime {ort.__version__} refused it: {one_line(error)}") from error


def _register(options: ort.SessionOptions, library: Path) -> None:
    try:
        options.register_custom_ops_library(str(library))
    except Exception as error:  # as above
        raise ArtifactError(f"{library}: ONNX Runtime cannot use it: {one_line(error)}") from error


def _check_version(artifact: Opened, oldest: str, what: str) -> None:
    import onnxruntime as ort

    if requirements.parts(ort.__version__) < requirements.parts(oldest):
        reasons = "; ".join(artifact.manifest.requires.because)
        raise ArtifactError(
            f"{artifact.folder}: needs ONNX Runtime {oldest} {what}, this is {ort.__version__} ({reasons})"
        )


def _options(configuration: dict[str, Any]) -> ort.SessionOptions:
    import onnxruntime as ort

    options = ort.SessionOptions()
    for name, value in configuration["session_options"].items():
        if name == "graph_optimization_level":
            value = getattr(ort.GraphOptimizationLevel, f"ORT_ENABLE_{value}".upper())
        setattr(options, name, value)
    for name, value in configuration["session_config"].items():
        options.add_session_config_entry(name, value)
    return options


def _providers(configuration: dict[str, Any]) -> list[Any]:
    first = (configuration["provider"], configuration["provider_options"])
    return [first] if first[0] == CPU else [first, CPU]
