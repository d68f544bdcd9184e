"""Configurations: which file of providers/ is for this machine, and sessions with its options."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxopt.errors import UsageError
from onnxopt.paths import StrPath
from onnxopt.runtime import devices, gpus, graph_session, providers
from onnxopt.runtime.sessions import CPU, CUDA, RunError, cuda_is_usable, one_line

if TYPE_CHECKING:
    import onnxruntime as ort


@dataclasses.dataclass(frozen=True)
class Configuration:
    """One file of an artifact's providers/. name: without ".json". reason: why it was chosen.

    device: the GPU that it was chosen for; None for the CPU, and for a configuration chosen by name.
    """

    name: str
    path: Path
    reason: str
    data: dict[str, Any]
    device: devices.Device | None = None

    @property
    def provider(self) -> str:
        return str(self.data["provider"])

    @property
    def blocking(self) -> tuple[tuple[str, str], ...] | None:
        """(node, reason) of the nodes that prevent a CUDA graph; None where the file does not say."""
        graph = self.data.get("cuda_graph")
        return None if graph is None else tuple((row["node"], row["reason"]) for row in graph["blocking"])


def configuration_for(artifact: StrPath, provider: str | None = None) -> Configuration:
    """The configuration of an artifact folder that onnxopt.load takes on this machine.

    provider: ONNX Runtime's name of the CUDA or the CPU provider, default CUDA where this ONNX Runtime has it and the
    driver reports a device. No CUDA context is created. ArtifactError where the file cannot be used.
    """
    folder = Path(artifact)
    if provider is None:
        provider = CUDA if cuda_is_usable() else CPU
    if provider not in (CPU, CUDA):
        raise UsageError(f"artifacts are configured for {CUDA} and {CPU}; name the file for {provider}")
    if provider == CPU:
        reason = "asked for" if cuda_is_usable() else _why_cpu()
        return _read(folder, "cpu", reason)
    device = devices.first()
    name, reason = _cuda_file(folder, device)
    return _read(folder, name, reason, device)


def named(artifact: StrPath, name: str) -> Configuration:
    """Configuration `name` ("h200.tensorrt") of an artifact. UsageError where there is none of that name."""
    folder = Path(artifact)
    if not providers.path(folder, name).is_file():
        has = ", ".join(sorted(p.stem for p in (folder / providers.FOLDER).glob("*.json")))
        raise UsageError(f"{folder}: has no configuration {name!r}; it has {has}")
    return _read(folder, name, "asked for")


def session_options(configuration: dict[str, Any]) -> ort.SessionOptions:
    """ONNX Runtime's session options, set as a configuration says."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    for name, value in configuration["session_options"].items():
        if name == "graph_optimization_level":
            value = getattr(ort.GraphOptimizationLevel, f"ORT_ENABLE_{value}".upper())
        if name == "execution_mode":
            value = getattr(ort.ExecutionMode, f"ORT_{value}".upper())
        setattr(options, name, value)
    for name, value in configuration["session_config"].items():
        options.add_session_config_entry(name, value)
    return options


def provider_list(configuration: dict[str, Any], folder: Path, *, cuda_graph: bool = False) -> list[Any]:
    """The execution providers in order, with options, as ONNX Runtime takes them. Paths become absolute in `folder`."""
    options = dict(configuration["provider_options"])
    for name in configuration.get("path_options", ()):
        target = (folder / options[name]).absolute()
        target.mkdir(parents=True, exist_ok=True)
        options[name] = str(target)
    if cuda_graph:
        options |= configuration["cuda_graph"]["provider_options"]
    chosen: list[Any] = [(configuration["provider"], options)]
    chosen += [(row["provider"], row["provider_options"]) for row in configuration.get("fallback_providers", ())]
    return [*chosen, CPU] if configuration["provider"] != CPU else chosen


def open_session(
    model: Path,
    library: Path | None,
    data: dict[str, Any],
    folder: Path,
    *,
    cuda_graph: bool = False,
    options: ort.SessionOptions | None = None,
    providers: Sequence[Any] | None = None,
    quiet: bool = True,
) -> ort.InferenceSession:
    """A session of a model file with a configuration's options; a GraphSession if cuda_graph is set.

    library: registered on the configuration's session options. options: used as they are instead of those. providers:
    instead of the configuration's. quiet: no log, for callers that report errors themselves. RunError where ONNX
    Runtime refuses.
    """
    import onnxruntime as ort

    try:
        if options is None:
            options = session_options(data)
            if quiet:
                options.log_severity_level = 4
            if library is not None and data.get("library", True):
                options.register_custom_ops_library(str(library))
        listed = provider_list(data, folder, cuda_graph=cuda_graph) if providers is None else list(providers)
        names = [p if isinstance(p, str) else p[0] for p in listed]
        if set(names) != {CPU}:
            ort.preload_dlls()
        create = graph_session.open_session if cuda_graph else ort.InferenceSession
        # ONNX Runtime's own fallback would print to stdout and hide the error.
        session = create(str(model), options, providers=listed, enable_fallback=0)
    except Exception as error:  # ORT raises a dozen unrelated classes
        raise RunError(one_line(error)) from error
    if providers is None and names[0] not in session.get_providers():
        # ONNX Runtime leaves out a provider whose libraries do not load, and says so only in its log.
        raise RunError(f"ONNX Runtime could not start {names[0]} on this machine")
    return session


def _cuda_file(folder: Path, device: devices.Device | None) -> tuple[str, str]:
    """Name of the file for a device, and the reason."""
    if device is None:
        return providers.GENERIC, "the driver names no device"
    gpu, key = gpus.find_gpu(device.name), gpus.key_of(device.name)
    if gpu and gpu.refused:
        return providers.GENERIC, f"{device.name}: {gpu.refused}"
    if not providers.path(folder, key).is_file():
        missing = f"no code for {device.arch}" if gpu else "no entry in the GPU catalogue"
        return providers.GENERIC, f"{device.name}: {missing} when the artifact was made"
    stated = providers.read(folder, key).get("gpu", {}).get("compute_capability")
    if stated != device.compute_capability:
        return (
            providers.GENERIC,
            f"{key}.json is for compute capability {stated}, this {device.name} has {device.compute_capability}",
        )
    return key, f"the driver reports {device.name}, compute capability {device.compute_capability}"


def _why_cpu() -> str:
    import onnxruntime as ort

    if CUDA not in ort.get_available_providers():
        return "this ONNX Runtime has no CUDA execution provider"
    return "the driver reports no CUDA device" if devices.first() is None else "CUDA cannot be used"


def _read(folder: Path, name: str, reason: str, device: devices.Device | None = None) -> Configuration:
    return Configuration(name, providers.path(folder, name), reason, providers.read(folder, name), device)
