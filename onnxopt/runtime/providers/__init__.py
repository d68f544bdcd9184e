"""providers/*.json: a configuration for each target. Part of runtime: may import program to codegen.

A configuration is plain data that any language's binding of ONNX Runtime can apply:

    {"provider": "CUDAExecutionProvider", "provider_options": {...}, "session_options": {...}, "session_config": {...},
     "why": {option: reason}}

provider_options and session_config are strings, as ORT takes them. session_options are named as in ORT's C API structs
(graph_optimization_level: "all"). Options that are not listed keep ORT's defaults. docs/artifact.md lists the rest.

cpu.json and cuda.json are always there; <gpu>.json and <gpu>.tensorrt.json for every GPU of the catalogue that the
artifact has code for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir

from onnxopt.errors import ArtifactError
from onnxopt.runtime import gpus
from onnxopt.runtime.providers import facts as model_facts
from onnxopt.runtime.providers import rules, tensorrt

FOLDER = "providers"
GENERIC = "cuda"


def write(
    folder: Path, model: ir.Model, archs: Sequence[str], shapes: Mapping[str, tuple[int, ...]] | None = None
) -> tuple[str, ...]:
    """Write every configuration into artifact folder `folder`; returns notes on the configurations left out.

    archs: what the artifact has code for. shapes: sizes the model is mostly run at.
    """
    facts = model_facts.of(model)
    configurations = {"cpu": rules.cpu(facts), GENERIC: rules.cuda(facts)}
    chosen = [gpu for gpu in gpus.catalogue().values() if gpu.arch in archs]
    refused = tensorrt.refusal(facts)
    for gpu in chosen:
        configurations[gpu.key] = rules.cuda(facts, gpu)
        if not refused:
            configurations[f"{gpu.key}.tensorrt"] = tensorrt.tensorrt(facts, gpu, shapes or {})
    (folder / FOLDER).mkdir(exist_ok=True)
    for name, configuration in configurations.items():
        path(folder, name).write_text(to_json(configuration), "utf-8")
    return (f"no configuration for TensorRT: {refused}",) if refused and chosen else ()


def path(folder: Path, name: str) -> Path:
    return folder / FOLDER / f"{name}.json"


def to_json(configuration: Mapping[str, Any]) -> str:
    return json.dumps(configuration, indent=2) + "\n"


def read(folder: Path, name: str) -> dict[str, Any]:
    """Configuration `name` ("cpu", "cuda", "h200") of an artifact folder. ArtifactError where it cannot be used."""
    file = path(folder, name)
    try:
        data = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{file}: cannot be read: {error}") from None
    parts = ("provider_options", "session_options", "session_config")
    if not isinstance(data, dict) or not isinstance(data.get("provider"), str):
        raise ArtifactError(f"{file}: names no provider")
    if not all(isinstance(data.get(part), dict) for part in parts):
        raise ArtifactError(f"{file}: needs the objects {', '.join(parts)}")
    return data
