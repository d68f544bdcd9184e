"""Session: an artifact as an ordinary onnxruntime.InferenceSession. What `load` does is three lines in any language."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxopt import manifest as manifests
from onnxopt import package, providers as configurations
from onnxopt.errors import ArtifactError
from onnxopt.execution import CPU, CUDA, cuda_is_usable, one_line

if TYPE_CHECKING:
    import onnxruntime as ort


def load(
    path: str | Path,
    *,
    providers: Sequence[str | tuple[str, dict[str, Any]]] | None = None,
    session_options: ort.SessionOptions | None = None,
    library: bool = True,
) -> ort.InferenceSession:
    """Open an artifact after checking every file's hash.

    providers: as ORT takes them; default: the artifact's configuration for CUDA where this ORT has it and a device
    answers (ORT goes to the CPU by itself where CUDA then fails to start), else for the CPU. session_options: used as they are, and the library is registered on them; default: the
    configuration's. library=False: without the library, ORT runs the original nodes.

    Raises ArtifactError where a file is missing or changed, or ORT refuses the model.
    """
    import onnxruntime as ort

    folder = Path(path)
    package.check_files(folder, manifests.load(folder).files)
    configuration = configurations.read(folder, "cuda" if providers is None and cuda_is_usable() else "cpu")
    options = session_options if session_options is not None else _options(configuration)
    chosen = list(providers) if providers is not None else _providers(configuration)
    if CUDA in [p if isinstance(p, str) else p[0] for p in chosen]:
        ort.preload_dlls()
    try:
        if library and (path_of_library := library_of(folder)):
            options.register_custom_ops_library(str(path_of_library))
        return ort.InferenceSession(str(folder / package.MODEL), options, providers=chosen)
    except Exception as error:  # ORT raises a dozen unrelated classes
        raise ArtifactError(f"{folder}: ONNX Runtime {ort.__version__} refused it: {one_line(error)}") from error


def library_of(folder: Path) -> Path | None:
    """The artifact's library; None where nothing was fused, so that there is none."""
    library = (folder / package.LIBRARY_FOLDER / package.LIBRARY).absolute()
    return library if library.is_file() else None


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
