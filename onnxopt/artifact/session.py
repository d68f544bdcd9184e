"""Session: an artifact as an ordinary onnxruntime.InferenceSession. What `load` does is three lines in any language."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxopt.artifact import layout
from onnxopt.artifact.open import Opened, open_artifact
from onnxopt.errors import ArtifactError, UsageError
from onnxopt.runtime import configuration as configurations
from onnxopt.runtime import releases
from onnxopt.runtime.configuration import Configuration, configuration_for
from onnxopt.runtime.sessions import CPU, CUDA, RunError, Session, check_providers, one_line

if TYPE_CHECKING:
    import onnxruntime as ort

_Providers = Sequence[str | tuple[str, dict[str, Any]]]


def load(
    path: str | Path,
    *,
    providers: Sequence[str | tuple[str, dict[str, Any]]] | None = None,
    session_options: ort.SessionOptions | None = None,
    library: bool = True,
    cuda_graph: bool = False,
    configuration: str | None = None,
    public_key: str | Path | None = None,
) -> Session:
    """Open an artifact, a folder or an archive of `onnxopt pack`, after checking every file's hash.

    Returns an onnxruntime.InferenceSession; `Session` is its type, as ONNX Runtime ships none.

    providers: as ONNX Runtime takes them, names or pairs of name and options. Default: those of the artifact's file for
    this machine (`configuration_for` says which and why); where CUDA does not start, the CPU's with a warning.
    session_options: used as they are, and the library is registered on them; default: those of the file. library=False:
    without the library, ONNX Runtime runs the original nodes.

    cuda_graph: the session captures and replays CUDA graphs. A run with an IO binding whose inputs and outputs all have
    fixed addresses on the device is captured once and replayed; every other run, `session.run` included, goes without a
    graph and is right at any shape. UsageError names the nodes that prevent a graph.

    configuration: a file of the artifact's providers/ by name ("h200.tensorrt") instead of this machine's. public_key:
    minisign's, as a path or its base64 line; an artifact that is not signed by it is refused. Default: the environment
    variable ONNXOPT_PUBLIC_KEY; where it is unset, no signature is checked.

    Raises ArtifactError where a file is missing or changed, or this ONNX Runtime is too old or refuses the model;
    UsageError where this ONNX Runtime lacks a provider that was asked for.
    """
    artifact = open_artifact(path, public_key=public_key)
    _check_version(artifact, artifact.manifest.requires.onnxruntime, "to open it")
    if providers is not None:
        if cuda_graph or configuration is not None:
            raise UsageError("cuda_graph and configuration take the artifact's own providers: leave `providers` out")
        _check_providers(artifact, providers)
    library_path = artifact.library if library else None
    if session_options is not None and library_path is not None:
        _register(session_options, library_path)
    if providers is not None:
        # Only its session options are used: the caller's providers decide the rest.
        cpu = configuration_for(artifact.folder, CPU)
        return _open(artifact.folder, cpu, providers, session_options, library_path, False)
    chosen = (
        configurations.named(artifact.folder, configuration) if configuration else configuration_for(artifact.folder)
    )
    _check_configuration(artifact, chosen, cuda_graph)
    try:
        return _open(artifact.folder, chosen, None, session_options, library_path, cuda_graph)
    except ArtifactError as error:
        # A driver and a device do not yet make a working EP: cuDNN may be missing, or the GPU's memory be taken.
        if cuda_graph or configuration or chosen.provider == CPU:
            raise
        cpu = configuration_for(artifact.folder, CPU)
        session = _open(artifact.folder, cpu, None, session_options, library_path, False)
        message = f"{artifact.folder} runs on the CPU: {error}; `onnxopt doctor` says more"
        warnings.warn(message, RuntimeWarning, stacklevel=2)
        return session


def _check_providers(artifact: Opened, providers: _Providers) -> None:
    """UsageError or ArtifactError unless this ONNX Runtime has the providers and can run the artifact on them."""
    names = [provider if isinstance(provider, str) else provider[0] for provider in providers]
    check_providers(names)
    if CUDA in names:
        _check_version(artifact, artifact.manifest.requires.onnxruntime_cuda, f"to run it on {CUDA}")


def _check_configuration(artifact: Opened, chosen: Configuration, cuda_graph: bool) -> None:
    """UsageError or ArtifactError unless this ONNX Runtime can run the artifact with this configuration."""
    check_providers([chosen.provider])
    if chosen.provider != CPU:
        _check_version(artifact, artifact.manifest.requires.onnxruntime_cuda, f"to run it on {chosen.provider}")
    if "onnxruntime" in chosen.data:  # newer than the artifact needs otherwise
        _check_version(artifact, chosen.data["onnxruntime"], f"to take {chosen.path.name}")
    if cuda_graph:
        _check_graph(chosen)


def _check_graph(chosen: Configuration) -> None:
    """UsageError unless this configuration runs as a CUDA graph."""
    if chosen.provider != CUDA:
        raise UsageError(f"cuda_graph needs {CUDA}, and {chosen.name}.json is taken here: {chosen.reason}")
    if chosen.blocking is None:
        raise UsageError(f"{chosen.path}: does not say whether a CUDA graph is possible; optimize the model again")
    if chosen.blocking:
        shown = "; ".join(f"{node}: {reason}" for node, reason in chosen.blocking[:3])
        others = f" and {len(chosen.blocking) - 3} more" if len(chosen.blocking) > 3 else ""
        raise UsageError(f"cuda_graph: the model cannot be captured: {shown}{others}")


def _open(
    folder: Path,
    chosen: Configuration,
    providers: _Providers | None,
    session_options: ort.SessionOptions | None,
    library: Path | None,
    cuda_graph: bool,
) -> Session:
    import onnxruntime as ort

    try:
        return configurations.open_session(
            model_of(folder, chosen),
            library,
            chosen.data,
            folder,
            cuda_graph=cuda_graph,
            options=session_options,
            providers=providers,
            quiet=False,
        )
    except RunError as error:
        raise ArtifactError(f"{folder}: ONNX Runtime {ort.__version__} refused it: {error}") from error


def model_of(folder: Path, chosen: Configuration) -> Path:
    """The model file that a configuration is for: the first that exists of those it names."""
    names = chosen.data.get("model", layout.MODEL)
    candidates = [folder / name for name in ([names] if isinstance(names, str) else names)]
    return next((path for path in candidates if path.is_file()), folder / layout.MODEL)


def _register(options: ort.SessionOptions, library: Path) -> None:
    try:
        options.register_custom_ops_library(str(library))
    except Exception as error:  # ONNX Runtime raises a dozen unrelated classes
        raise ArtifactError(f"{library}: ONNX Runtime cannot use it: {one_line(error)}") from error


def _check_version(artifact: Opened, oldest: str, what: str) -> None:
    import onnxruntime as ort

    if releases.parts(ort.__version__) < releases.parts(oldest):
        reasons = "; ".join(artifact.manifest.requires.because)
        raise ArtifactError(
            f"{artifact.folder}: needs ONNX Runtime {oldest} {what}, this is {ort.__version__} ({reasons})"
        )
