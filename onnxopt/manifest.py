"""manifest.json: what an artifact is, as data. Written once by package.py, validated whenever an artifact is opened."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import pydantic

from onnxopt.errors import ArtifactError
from onnxopt.regions import Kernel as FusedKernel
from onnxopt.regions import Kind, Refusal, Traffic
from onnxopt.samples import Tensor
from onnxopt.verification import Report

SCHEMA_VERSION = 1
FILE = "manifest.json"

Sha256 = Annotated[str, pydantic.StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class _Record(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")


class File(_Record):
    sha256: Sha256
    bytes: int


class Source(_Record):
    """The model that was optimized. bytes: with its external data; sha256: of the model file alone."""

    name: str
    path: str
    sha256: Sha256
    bytes: int
    producer: str
    ir_version: int
    opsets: dict[str, int]


class Place(_Record):
    """One node that calls a fused function. shapes: its inputs then outputs, as "float16[8,128,768]"."""

    node: str
    replaced: tuple[str, ...]
    shapes: tuple[str, ...]
    traffic: Traffic


class Kernel(_Record):
    """A fused function. inputs, outputs: storage dtypes. cpu: whether the library's CPU kernel is used for it."""

    name: str
    kind: Kind
    ops: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    cpu: bool
    variants: tuple[str, ...]
    sites: tuple[Place, ...]


class LeftOut(_Record):
    """A fusion that verification found to break the limit, put back as the original nodes.

    name: of the fused function, or "rewrite:" and a family of rewrite rules, whose `ops` is empty.
    """

    name: str
    ops: tuple[str, ...]
    reason: str
    max_abs: float | None
    excess: float | None


class Totals(_Record):
    """Predicted traffic of all fused places; bytes only where shapes are known, `unknown` counts the others."""

    bytes_before: int = 0
    bytes_after: int = 0
    launches_before: int = 0
    launches_after: int = 0
    unknown: int = 0


class Manifest(_Record):
    """Everything there is to know about an artifact without reading the model.

    files: every file of the folder but the manifest, by its path in it. seconds: how long each phase of optimize took.
    ort_min: oldest ONNX Runtime that its operators run on. rewrites: how often each family of rewrite rules changed the
    model. versions: of onnxopt's dependencies when it ran. notes: what normalization changed, and what else a
    reader should know.
    """

    schema_version: int = SCHEMA_VERSION
    onnxopt: str
    versions: dict[str, str]
    source: Source
    ir_version: int
    opsets: dict[str, int]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    files: dict[str, File]
    archs: tuple[str, ...]
    ort_min: str = "1.21"
    rewrites: dict[str, int] = {}
    kernels: tuple[Kernel, ...]
    refusals: tuple[Refusal, ...]
    left_out: tuple[LeftOut, ...]
    traffic: Totals
    verify: Report
    notes: tuple[str, ...]
    seconds: dict[str, float]

    def to_json(self) -> str:
        """The text of manifest.json; the same manifest gives the same text."""
        return json.dumps(self.model_dump(mode="json"), indent=2, allow_nan=False) + "\n"


def load(artifact: Path) -> Manifest:
    """The manifest of an artifact folder. ArtifactError where there is none, or it is not one this version reads."""
    path = artifact / FILE
    try:
        data = json.loads(path.read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        if not artifact.exists():
            raise ArtifactError(f"{artifact}: no such artifact folder") from None
        raise ArtifactError(
            f"{artifact}: not an artifact, it has no {FILE}; make one with `onnxopt optimize`"
        ) from None
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{path}: cannot be read: {error}") from None
    version = data.get("schema_version") if isinstance(data, dict) else None
    if version != SCHEMA_VERSION:
        raise ArtifactError(
            f"{path}: has schema version {version}, this onnxopt reads {SCHEMA_VERSION}; optimize the model again"
        )
    try:
        return Manifest.model_validate(data)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ArtifactError(f"{path}: damaged: {where}: {first['msg']}") from None


def kernels(fused: Iterable[FusedKernel]) -> tuple[Kernel, ...]:
    """The manifest's records of fused functions (their programs are in kernels.json)."""
    return tuple(
        Kernel(
            name=k.name,
            kind=k.kind,
            ops=k.ops,
            inputs=k.program.inputs,
            outputs=k.program.outputs,
            cpu=k.cpu,
            variants=tuple(v.symbol for v in k.variants),
            sites=tuple(Place(node=s.node, replaced=s.replaced, shapes=s.shapes, traffic=s.traffic) for s in k.sites),
        )
        for k in fused
    )


def totals(fused: Sequence[FusedKernel]) -> Totals:
    traffic = [s.traffic for k in fused for s in k.sites]
    known = [
        (t.bytes_before, t.bytes_after) for t in traffic if t.bytes_before is not None and t.bytes_after is not None
    ]
    return Totals(
        bytes_before=sum(before for before, _ in known),
        bytes_after=sum(after for _, after in known),
        launches_before=sum(t.launches_before for t in traffic),
        launches_after=sum(t.launches_after for t in traffic),
        unknown=len(traffic) - len(known),
    )
