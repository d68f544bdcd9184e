"""Session: an artifact as an ordinary onnxruntime.InferenceSession. What `load` does is three lines in any language."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxopt.artifact import package
from onnxopt.artifact.open import Opened, open_artifact
from onnxopt.errors import ArtifactError, UsageError
from onnxopt.runtime import configuration as configurations
from onnxopt.runtime import releases
from onnxopt.runtime.configuration import Configuration, configuration_for
from onnxopt.runtime.sessions import CPU, CUDA, RunError, check_providers, one_line

if TYPE_CHECKING:
    import onnxruntime as ort

__all__ = ["Configuration", "configuration_for", "load"]


def load(
    path: str | Path,
    *,
    providers: Sequence[str | tuple[str, dict[str, Any]]] | None = None,
    session_options: ort.SessionOptions | None = None,
    library: bool = True,
    cuda_graph: bool = False,
    configuration: str | None = None,
    public_key: str | Path | None = None,
) -> ort.InferenceSession:
    """Open an artifact, a folder or an archive of `onnxopt pack`, after checking every file's hash.

    providers: as ORT takes them; default: this machine's file of the artifact (`configuration_for` says which and why),
    and where CUDA does not start, with a warning, the CPU's. session_options: used as they are, and the library is
    registered on them; default: the file's. library=False: without the library, ORT runs the original nodes.

    cuda_graph: a graph_session.GraphSession. Runs with an IO binding whose inputs and outputs all lie at fixed places
    on the device are captured and replayed; every other run, session.run among them, goes without a graph and is right
    at any shape. UsageError naming the nodes where the model cannot be captured.

    configuration: a file of the artifact's providers/ by name ("h200.tensorrt") instead of this machine's. public_key:
    minisign's, as a path or its base64 line: refuse an artifact that is not signed by it; default: the environment
    variable ONNXOPT_PUBLIC_KEY, and no check where that is unset.

    Raises ArtifactError where a file is missing or changed, this ORT is too old, or refuses the model; UsageError where
    this ORT has not got a provider that was asked for.
    """
    artifact = open_artifact(path, public_key=public_key)
    folder = artifact.folder
    _check_version(artifact, artifact.manifest.requires.onnxruntime, "to open it")
    if providers is not None and (cuda_graph or configuration is not None):
        raise UsageError("cuda_graph and configuration take the artifact's own providers: leave `providers` out")
    if providers is not None:
        names = [p if isinstance(p, str) else p[0] for p in providers]
        check_providers(names)
        if CUDA in names:
            _check_version(artifact, artifact.manifest.requires.onnxruntime_cuda, f"to run it on {CUDA}")
    library_path = artifact.library if library else None
    if session_options is not None and library_path is not None:
        _register(session_options, library_path)
    chosen = configurations.named(folder, configuration) if configuration else configuration_for(folder)
    if providers is not None:
        chosen = configuration_for(folder, CPU)  # for the session options: the caller's providers decide the rest
    check_providers([chosen.provider])
    if chosen.provider != CPU:
        _check_version(artifact, artifact.manifest.requires.onnxruntime_cuda, f"to run it on {chosen.provider}")
    if "onnxruntime" in chosen.data:  # newer than the artifact needs otherwise
        _check_version(artifact, chosen.data["onnxruntime"], f"to take {chosen.path.name}")
    if cuda_graph:
        _check_graph(chosen)
    try:
        return _open(folder, chosen, providers, session_options, library_path, cuda_graph)
    except ArtifactError as error:
        # A driver and a device do not yet make a working EP: cuDNN may be missing, or the GPU's memory be taken.
        if providers is not None or cuda_graph or configuration or chosen.provider == CPU:
            raise
        fallback = configuration_for(folder, CPU)
        session = _open(folder, fallback, None, session_options, library_path, False)
        warnings.warn(f"{folder} runs on the CPU: {error}; `onnxopt doctor` says more", RuntimeWarning, stacklevel=2)
        return session


def _check_graph(chosen: Configuration) -> None:
    """UsageError unless this configuration runs as a CUDA graph."""
    if chosen.provider != CUDA:
        raise UsageError(f"cuda_graph needs {CUDA}, and {chosen.name}.json is taken here: {chosen.reason}")
    if chosen.blocking is None:
        raise UsageError(f"{chosen.path}: does not say whether a CUDA graph is possible; optimize the model again")
    if chosen.blocking:
        shown = "; ".join(f"{node}: {reason}" for node, reason in chosen.blocking[:3])
        more = f" and {len(chosen.blocking) - 3} more" if len(chosen.blocking) > 3 else ""
        raise UsageError(f"cuda_graph: the model cannot be captured: {shown}{more}")


def _open(
    folder: Path,
    chosen: Configuration,
    providers: Sequence[Any] | None,
    session_options: ort.SessionOptions | None,
    library: Path | None,
    cuda_graph: bool,
) -> ort.InferenceSession:
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
    """The model file that a configuration is for: the first of those it names that is there."""
    names = chosen.data.get("model", package.MODEL)
    candidates = [folder / name for name in ([names] if isinstance(names, str) else names)]
    return next((path for path in candidates if path.is_file()), folder / package.MODEL)


def _register(options: ort.SessionOptions, library: Path) -> None:
    try:
        options.register_custom_ops_library(str(library))
    except Exception as error:  # as above
        raise ArtifactError(f"{library}: ONNX Runtime cannot use it: {one_line(error)}") from error


def _check_version(artifact: Opened, oldest: str, what: str) -> None:
    import onnxruntime as ort

    if releases.parts(ort.__version__) < releases.parts(oldest):
        reasons = "; ".join(artifact.manifest.requires.because)
        raise ArtifactError(
            f"{artifact.folder}: needs ONNX Runtime {oldest} {what}, this is {ort.__version__} ({reasons})"
        )
