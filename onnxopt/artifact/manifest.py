"""manifest.json: what an artifact is, as data. artifact/folder.py writes it; every opening validates it.

`python -m onnxopt.artifact.manifest` prints its JSON Schema; manifest.schema.json beside this file is that text.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import pydantic

from onnxopt import files
from onnxopt.artifact import layout
from onnxopt.artifact.measurement import Measurement
from onnxopt.errors import ArtifactError
from onnxopt.fusion.kernel import Traffic
from onnxopt.fusion.region import Kernel as FusedKernel
from onnxopt.graph.precision import Kept
from onnxopt.graph.refusal import Refusal
from onnxopt.graph.signature import Tensor
from onnxopt.kinds import KINDS
from onnxopt.runtime.predicted import Times
from onnxopt.runtime.releases import Requirements
from onnxopt.verification.lowering.goals import Quality
from onnxopt.verification.verify import VerificationReport

SCHEMA_VERSION: Final = 4
_READABLE: Final = (2, 3, 4)  # schema 3 lacks `requires.operators`, schema 2 `verify.executed` too
SCHEMA_FILE = "manifest.schema.json"
_NO_DIGEST = "0" * 64
_DIGEST_AT_THE_END = re.compile(rb'"sha256": "([0-9a-f]{64})"\n}\n\Z')

Sha256 = Annotated[str, pydantic.StringConstraints(pattern=r"^[0-9a-f]{64}$")]


def _check_kind(name: str) -> str:
    if name not in _KIND_NAMES:
        raise ValueError(f"{name!r} is no kind of kernel; this onnxopt knows {', '.join(_KIND_NAMES)}")
    return name


_KIND_NAMES = sorted(kind.name for kind in KINDS)
KindName = Annotated[
    str,
    pydantic.AfterValidator(_check_kind),
    pydantic.WithJsonSchema({"type": "string", "enum": _KIND_NAMES, "title": "Kind"}),
]


class _Record(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")


class File(_Record):
    sha256: Sha256
    bytes: int


class Source(_Record):
    """The model that was optimized. bytes: with its external data; sha256: of the model file alone.

    path: None where a program gave the model in memory; name is then the type of what was given.
    """

    name: str
    path: str | None
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


# Operators whose kernels read channels last; the graph says so with Transposes around them, and Reshapes of weights.
_IN_CHANNELS_LAST = frozenset(
    {"Conv", "ConvTranspose", "MaxPool", "AveragePool", "InstanceNormalization", "GroupNormalization"}
)
# How the product begins that a 1x1 convolution with a weight for each sample is (graph/layout/gated_weights.py).
_SAMPLE_OPERATORS = ("Transpose", "Reshape", "MatMul", "Reshape", "Transpose")


class Kernel(_Record):
    """A fused function. inputs, outputs: storage dtypes. cpu: whether the library's CPU kernel is used for it."""

    name: str
    kind: KindName
    ops: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    cpu: bool
    variants: tuple[str, ...]
    sites: tuple[Place, ...]

    @property
    def operators(self) -> tuple[str, ...]:
        """For people: ops without those that only turn tensors between NCHW and channels last, which no kernel runs."""
        if _IN_CHANNELS_LAST.isdisjoint(self.ops) and self.ops[: len(_SAMPLE_OPERATORS)] != _SAMPLE_OPERATORS:
            return self.ops
        return tuple(op for op in self.ops if op not in ("Transpose", "Reshape"))


class LeftOut(_Record):
    """A fusion that breaks verification's limit, or what failed while the model was optimized: the nodes were kept.

    name: of the fused function; "rewrite:" and a family of rewrite rules, which may also break the limit; or "kind:"
    and a kind of kernels. `ops` is empty but for functions.
    """

    name: str
    ops: tuple[str, ...]
    reason: str
    max_abs: float | None
    excess: float | None


class _Goals(_Record):
    """What every output had to keep against float32, see lowering/quality.py; None where nothing was asked for."""

    min_sqnr: float | None
    min_cosine: float | None = None
    min_top1: float | None = None
    min_top5: float | None = None
    max_kl: float | None = None


class Precision(_Goals):
    """How a float32 model was lowered. dtype: of the values that are stored in 16 bits.

    data: the inputs that ranges were measured with, () for drawn ones, which say nothing about quality. nodes: that
    became 16 bit. kept: nodes that stay float32. restored: names of those that stay float32 because outputs were wrong
    otherwise. quality: each output against float32. keep_float: as it was asked for. caches: names of the inputs and
    outputs that have the dtype too.
    """

    dtype: Literal["float16", "bfloat16"]
    data: tuple[str, ...]
    keep_float: str | None
    nodes: int
    kept: tuple[Kept, ...]
    restored: tuple[str, ...]
    quality: tuple[Quality, ...]
    caches: tuple[str, ...] = ()


class ReferenceQuality(_Goals):
    """How near the outputs of a quantized model's artifact are to those of the float32 model that it was made from.

    name, sha256: of the float32 model's file. data: the inputs that were run, () for drawn ones, which say nothing
    about quality.
    """

    name: str
    sha256: Sha256
    data: tuple[str, ...]
    quality: tuple[Quality, ...]


class Totals(_Record):
    """Predicted traffic of all fused places; bytes only where shapes are known, `unknown` counts the others."""

    bytes_before: int = 0
    bytes_after: int = 0
    launches_before: int = 0
    launches_after: int = 0
    unknown: int = 0


class Predicted(_Record):
    """Times by the roofline of runtime/predicted.py, where sizes are known. sizes: of dynamic dims, by symbol."""

    sizes: dict[str, int]
    times: tuple[Times, ...]


class Fixing(_Record):
    """What fixing dynamic dims would save: launches of the whole model, predicted. dims: their names."""

    dims: tuple[str, ...]
    launches_before: int
    launches_after: int


class Request(_Record):
    """What an artifact was made of, by which a later run sees that nothing changed (pipeline/rerun.py).

    options: that have another value than by default, and the architectures. files: SHA-256 of each file that was read,
    by its part ("model", "model/weights.data", "data 1"). code: digest of onnxopt's own files.
    """

    options: dict[str, Any]
    files: dict[str, Sha256]
    code: Sha256


class Manifest(_Record):
    """Everything about an artifact that can be known without reading the model.

    files: every file of the folder but the manifest and its signature, by its path in it. seconds: how long each phase
    of optimize took. versions: of onnxopt's dependencies when it ran. requires: the oldest versions that run it.
    ort_min: the oldest ONNX Runtime that was asked for. rewrites: how often each family of rewrite rules changed the
    model. precision: absent where the model kept its own. predicted: absent without GPU architectures, and where work
    cannot be counted (control flow, sizes that depend on values). fixing: absent where it would save few launches.
    reference: absent where none was given. split: the nodes of each region that was split, as its kernel spilled
    registers; absent for none. request: absent where the model or its inputs were in memory. notes: for
    the user, among them what normalization changed. sha256: of manifest.json itself with these 64 digits as zeros; it
    must stay the last member.
    """

    schema_version: Literal[2, 3, 4] = SCHEMA_VERSION
    onnxopt: str
    versions: dict[str, str]
    requires: Requirements
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
    verify: VerificationReport
    notes: tuple[str, ...]
    seconds: dict[str, float]
    measurements: tuple[Measurement, ...] = ()
    precision: Precision | None = None
    reference: ReferenceQuality | None = None
    predicted: Predicted | None = None
    fixing: Fixing | None = None
    split: tuple[tuple[str, ...], ...] = ()
    request: Request | None = None
    sha256: Sha256 = _NO_DIGEST

    def to_json(self) -> str:
        """The text of manifest.json with its own digest; the same manifest gives the same text.

        Written in the newest schema, also where it was read from an older one.
        """
        optional = ("precision", "reference", "predicted", "fixing", "request")
        absent = {name for name in optional if getattr(self, name) is None} | ({"split"} if not self.split else set())
        data = self.model_dump(mode="json", exclude=absent) | {"schema_version": SCHEMA_VERSION, "sha256": _NO_DIGEST}
        text = json.dumps(data, indent=2, allow_nan=False) + "\n"
        digest = hashlib.sha256(text.encode()).hexdigest()
        return text.replace(f'"sha256": "{_NO_DIGEST}"\n}}\n', f'"sha256": "{digest}"\n}}\n')


def load(artifact: Path) -> Manifest:
    """The manifest of an artifact folder. ArtifactError where there is none, or it is not one this version reads.

    The artifact's other files are not looked at; artifact/open.py checks them too.
    """
    return parse(read(artifact), artifact / layout.MANIFEST)


def read(artifact: Path) -> bytes:
    """The bytes of an artifact folder's manifest. ArtifactError where there is none."""
    path = artifact / layout.MANIFEST
    try:
        return files.read_bytes(path, follow=False)
    except (FileNotFoundError, NotADirectoryError):
        if not artifact.exists():
            raise ArtifactError(f"{artifact}: no such artifact folder") from None
        if holds_many(artifact):
            raise ArtifactError(
                f"{artifact}: holds optimized models, and is no artifact; `onnxopt explain` reads the record of one, a "
                f"folder in {artifact / layout.MODEL_RECORDS}; what runs a model takes an artifact of it alone"
            ) from None
        raise ArtifactError(
            f"{artifact}: not an artifact, it has no {layout.MANIFEST}; make one with `onnxopt optimize`"
        ) from None
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read: {error.strerror or error}") from None


def holds_many(folder: Path) -> bool:
    """Whether a folder is what `onnxopt optimize` makes of a folder of models, which has no manifest of its own."""
    return (folder / layout.FOLDER_RECORD).is_file()


def parse(data: bytes, path: Path) -> Manifest:
    """The manifest that `data` holds. path: where it was read, for messages.

    ArtifactError where a single bit of it was changed, or where another version of onnxopt has to read it.
    """
    try:
        document = json.loads(data)
    except ValueError as error:
        raise ArtifactError(f"{path}: damaged, it is not JSON: {error}") from None
    version = document.get("schema_version") if isinstance(document, dict) else None
    if version not in _READABLE:
        raise ArtifactError(f"{path}: {_other_version(version, document)}")
    end = _DIGEST_AT_THE_END.search(data)
    if end is None or hashlib.sha256(data[: end.start(1)] + _NO_DIGEST.encode() + data[end.end(1) :]).hexdigest() != (
        end[1].decode()
    ):
        raise ArtifactError(f"{path}: damaged or edited: its sha256 differs from the one it ends with")
    try:
        return Manifest.model_validate(document)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ArtifactError(f"{path}: damaged: {where}: {first['msg']}") from None


def _other_version(version: object, document: object) -> str:
    if type(version) is not int or not isinstance(document, dict):
        return "is no manifest of an artifact, or damaged: it has no schema version"
    made_by = document.get("onnxopt", "another version")
    advice = "upgrade onnxopt to load it" if version > SCHEMA_VERSION else "optimize the model again"
    readable = f"{', '.join(map(str, _READABLE[:-1]))} and {_READABLE[-1]}"
    return f"has schema version {version} (onnxopt {made_by}), this onnxopt reads {readable}; {advice}"


def schema() -> str:
    """The JSON Schema (2020-12) of manifest.json, as text."""
    document = Manifest.model_json_schema(mode="serialization")
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"onnxopt manifest, schema version {SCHEMA_VERSION}",
    }
    return json.dumps(head | {k: v for k, v in document.items() if k != "title"}, indent=2) + "\n"


def kernels(fused: Iterable[FusedKernel]) -> tuple[Kernel, ...]:
    """The manifest's records of fused functions (their programs are in kernels.json)."""
    return tuple(
        Kernel(
            name=k.name,
            kind=k.kind.name,
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
    pairs = [
        (t.bytes_before, t.bytes_after) for t in traffic if t.bytes_before is not None and t.bytes_after is not None
    ]
    return Totals(
        bytes_before=sum(before for before, _ in pairs),
        bytes_after=sum(after for _, after in pairs),
        launches_before=sum(t.launches_before for t in traffic),
        launches_after=sum(t.launches_after for t in traffic),
        unknown=len(traffic) - len(pairs),
    )


if __name__ == "__main__":
    print(schema(), end="")
