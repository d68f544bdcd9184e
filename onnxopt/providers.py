"""providers/*.json: one ready configuration a target, as plain data that any language's ORT binding can apply.

    {"provider": "CUDAExecutionProvider", "provider_options": {...}, "session_options": {...}, "session_config": {...},
     "why": {option: reason}}

provider_options and session_config are strings, as ORT takes them. session_options are named as in ORT's C API structs
(graph_optimization_level: "all"). Options that are not listed keep ORT's defaults.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onnxopt.errors import ArtifactError
from onnxopt.execution import CPU, CUDA
from onnxopt.samples import Tensor, symbols

FOLDER = "providers"


def cpu() -> dict[str, Any]:
    """The CPU EP. Its defaults are right for a model that has the machine to itself."""
    return {
        "provider": CPU,
        "provider_options": {},
        "session_options": {"graph_optimization_level": "all"},
        "session_config": {},
        "why": {
            "graph_optimization_level": "ORT's own fusions run around ours; fused functions are opaque to them",
        },
    }


def cuda(inputs: Sequence[Tensor]) -> dict[str, Any]:
    """The CUDA EP, for a model with these inputs: dynamic shapes and static ones want different algorithm searches."""
    dynamic = bool(symbols(inputs)) or any(t.dims is None for t in inputs)
    return {
        "provider": CUDA,
        "provider_options": {
            "arena_extend_strategy": "kSameAsRequested",
            "cudnn_conv_algo_search": "HEURISTIC" if dynamic else "EXHAUSTIVE",
            "cudnn_conv_use_max_workspace": "1",
            "do_copy_in_default_stream": "1",
            "enable_cuda_graph": "0",
        },
        "session_options": {"graph_optimization_level": "all"},
        "session_config": {"session.use_device_allocator_for_initializers": "1"},
        "why": {
            "graph_optimization_level": "ORT's own fusions run around ours; fused functions are opaque to them",
            "arena_extend_strategy": "doubling the arena wastes up to half of the GPU's memory",
            "cudnn_conv_algo_search": (
                "with dynamic shapes an exhaustive search stalls at every new one (10 s for 16 shapes, against 31 ms)"
                if dynamic
                else "shapes are static, so the search runs once and finds the fastest"
            ),
            "cudnn_conv_use_max_workspace": "the fastest convolution algorithms need workspace",
            "do_copy_in_default_stream": "copies in a stream of their own race with kernels",
            "enable_cuda_graph": "set to 1 where inputs and outputs are bound to the device and shapes never change",
            "session.use_device_allocator_for_initializers": "weights outside the arena do not fragment it",
        },
    }


def write(folder: Path, inputs: Sequence[Tensor]) -> None:
    """Write cpu.json and cuda.json into artifact folder `folder`."""
    (folder / FOLDER).mkdir()
    for name, configuration in (("cpu", cpu()), ("cuda", cuda(inputs))):
        (folder / FOLDER / f"{name}.json").write_text(json.dumps(configuration, indent=2) + "\n", "utf-8")


def read(folder: Path, name: str) -> dict[str, Any]:
    """Configuration `name` ("cpu", "cuda") of an artifact folder. ArtifactError where it cannot be used."""
    path = folder / FOLDER / f"{name}.json"
    try:
        data = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{path}: cannot be read: {error}") from None
    parts = ("provider_options", "session_options", "session_config")
    if not isinstance(data, dict) or not isinstance(data.get("provider"), str):
        raise ArtifactError(f"{path}: names no provider")
    if not all(isinstance(data.get(part), dict) for part in parts):
        raise ArtifactError(f"{path}: needs the objects {', '.join(parts)}")
    return data
