"""What the report shows and the manifest does not hold: counts of both graphs, CUDA sources, measurements.

The page carries its own facts (artifact/report/page.py), so that a report can be made again, with measurements added,
from the artifact alone.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import onnx_ir as ir
import pydantic

from onnxopt import files
from onnxopt.artifact import layout
from onnxopt.artifact.folder import hash_file
from onnxopt.artifact.manifest import Manifest
from onnxopt.artifact.measurement import BenchResult, KernelTime
from onnxopt.artifact.report import drawing
from onnxopt.artifact.report.drawing import Row
from onnxopt.codegen import generate
from onnxopt.errors import ArtifactError, UsageError
from onnxopt.fusion import work
from onnxopt.fusion.region import Kernel
from onnxopt.fusion.work import Work
from onnxopt.graph import read

_EMBEDDED = '<script type="application/zlib+base64" id="facts">{}</script>'
_PATTERN = re.compile(_EMBEDDED.format("([A-Za-z0-9+/=]*)").replace("+b", r"\+b"))
_MAX_BYTES = 1 << 28  # of the text; a damaged page must not fill the memory


@dataclasses.dataclass(frozen=True)
class Graph:
    """A model, counted (fusion/work.py) and drawn.

    rows: () where it has too many nodes to draw. launches, moved: predicted kernels of a run and bytes that they move;
    None where that is not known. works: those kernels, () where their sizes are not known.
    """

    nodes: int
    ops: dict[str, int]
    parameters: int
    parameter_bytes: int
    rows: tuple[Row, ...] = ()
    launches: int | None = None
    moved: int | None = None
    works: tuple[Work, ...] = ()


@dataclasses.dataclass(frozen=True)
class Facts:
    """before: None where the original no longer exists. sources: CUDA, a whole translation unit for each kernel, "" for
    one that has none of its own.

    costs: work of one element of the largest tensor in float32 instructions (program/pointwise.py), by kernel; kinds of
    kernels that do not count it are left out. bodies: the original nodes of each kernel, by name. sizes: of symbolic
    dims, as the user gave them. typical: of all dynamic dims, where a run's bytes are predicted. gpus: those that the
    user named, by key.
    """

    before: Graph | None = None
    after: Graph | None = None
    sources: dict[str, str] = dataclasses.field(default_factory=dict)
    costs: dict[str, int] = dataclasses.field(default_factory=dict)
    measurements: tuple[BenchResult, ...] = ()
    bodies: dict[str, tuple[Row, ...]] = dataclasses.field(default_factory=dict)
    sizes: dict[str, int] = dataclasses.field(default_factory=dict)
    typical: dict[str, int] = dataclasses.field(default_factory=dict)
    gpus: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Compact JSON; the same facts give the same text."""
        return json.dumps(dataclasses.asdict(self), separators=(",", ":"), allow_nan=False)


class Run(NamedTuple):
    """What a run of the optimized model takes, predicted, as `Graph` has it."""

    launches: int | None
    moved: int | None
    works: tuple[Work, ...]


UNKNOWN = Run(None, None, ())


@functools.cache
def _adapter(record: Any) -> pydantic.TypeAdapter[Any]:
    return pydantic.TypeAdapter(record)


def from_json(text: str | bytes) -> Facts:
    """ValueError where the text is not what `to_json` writes."""
    facts: Facts = _adapter(Facts).validate_json(text)
    return facts


def embedded(facts: Facts) -> str:
    """The element of a page that carries the facts."""
    return _EMBEDDED.format(base64.b64encode(zlib.compress(facts.to_json().encode(), 9)).decode())


def read_facts(folder: Path, manifest: Manifest) -> Facts:
    """The facts that the folder's page carries; for a folder without a page, those that the artifact shows.

    ArtifactError where the page cannot be read.
    """
    path = folder / layout.REPORT
    if not path.is_file():
        return from_artifact(folder, manifest)
    encoded = _PATTERN.search(path.read_text("utf-8", errors="replace"))
    try:
        if encoded is None:
            raise ValueError("it carries no facts")
        inflate = zlib.decompressobj()
        text = inflate.decompress(base64.b64decode(encoded[1], validate=True), _MAX_BYTES)
        return from_json(text)
    except (ValueError, zlib.error) as error:
        raise ArtifactError(f"{path}: is not a report of this onnxopt: {str(error).splitlines()[0]}") from None


def count(model: ir.Model, kernels: Sequence[Kernel] = ()) -> Graph:
    """The counts of a model. kernels: of its fused functions."""
    nodes = work.nodes(model)
    tensors = [v.const_value for g in model.graphs() for v in g.initializers.values() if v.const_value is not None]
    return Graph(
        nodes=len(nodes),
        ops=work.operators(nodes),
        parameters=sum(t.size for t in tensors),
        parameter_bytes=sum(t.nbytes for t in tensors),
        rows=drawing.drawn_model(model, {site.node: site for kernel in kernels for site in kernel.sites}),
    )


def gather(
    before: Graph,
    model: ir.Model,
    kernels: Sequence[Kernel],
    sizes: Mapping[str, int] | None = None,
    typical: Mapping[str, int] | None = None,
    *,
    gpus: Sequence[str] = (),
    run: Run = UNKNOWN,
) -> Facts:
    """The facts at the end of optimize. before: counted before normalization, which changes the model in place.

    sizes, typical: of symbolic dims, and gpus: see `Facts`. run: of the optimized model.
    """
    return Facts(
        before=before,
        after=dataclasses.replace(count(model, kernels), **run._asdict()),
        sources={k.name: generate.own_text(k) for k in kernels},
        costs={k.name: cost for k in kernels if isinstance(cost := getattr(k.program, "cost", None), int)},
        bodies=drawing.drawn_functions(model),
        sizes=dict(sizes or {}),
        typical=dict(typical or {}),
        gpus=tuple(gpus),
    )


def from_artifact(folder: Path, manifest: Manifest) -> Facts:
    """The facts of an artifact without a report: sources and costs are unknown."""
    original, before = Path(manifest.source.path or ""), None
    if original.is_file() and hash_file(original).sha256 == manifest.source.sha256:
        before = count(read.load(original).model)
    model = read.load(folder / layout.MODEL).model
    return Facts(before=before, after=count(model), bodies=drawing.drawn_functions(model))


def read_measurements(path: Path, manifest: Manifest) -> tuple[BenchResult, ...]:
    """Measurements from a JSON file: what `onnxopt bench --json` prints, with --sweep too, or a list of such.

    An entry may have `device`, the GPU's name, and `kernels`: {name: {"microseconds": 12.5, "calls": 24}}, where a name
    is a fused function or one of its entry points. UsageError where the file is something else, or names an unknown
    kernel.
    """
    try:
        document = json.loads(files.read_text(path))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise UsageError(f"{path}: is not JSON, give what `onnxopt bench --json` printed: {error}") from None
    try:
        swept = document.get("sweep") if isinstance(document, dict) else None
        entries = swept or (document if isinstance(document, list) else [document])
        results = _adapter(tuple[BenchResult, ...]).validate_python(entries)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"{path}: is not what `onnxopt bench --json` prints: {where}: {first['msg']}") from None
    return tuple(dataclasses.replace(r, kernels=_by_function(r.kernels, manifest, path)) for r in results)


def merged(results: Sequence[BenchResult], new: Sequence[BenchResult]) -> tuple[BenchResult, ...]:
    """Known and new results; a new one replaces a known one of the same device, provider, case and threads, in its
    place."""
    return tuple({(m.device, m.provider, m.case, m.threads): m for m in (*results, *new)}.values())


def _by_function(times: dict[str, KernelTime], manifest: Manifest, path: Path) -> dict[str, KernelTime]:
    """Times by name of the fused function; those of a function's entry points are added up."""
    owner = {symbol: k.name for k in manifest.kernels for symbol in (k.name, *k.variants)}
    added: dict[str, KernelTime] = {}
    for name, time in times.items():
        if name not in owner:
            raise UsageError(f"{path}: kernel {name} is not one of this artifact's; `onnxopt explain` lists them")
        earlier = added.get(owner[name])
        if earlier is not None:
            calls = earlier.calls + time.calls
            total = earlier.microseconds * earlier.calls + time.microseconds * time.calls
            time = KernelTime(total / max(calls, 1), calls)
        added[owner[name]] = time
    return added
