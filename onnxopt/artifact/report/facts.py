"""What the report shows and the manifest does not hold: counts of both graphs, CUDA sources, measurements.

The page carries its own facts (artifact/report/page.py), so that a report can be made again, with measurements added,
from the artifact alone.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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
from onnxopt.errors import UsageError
from onnxopt.fusion import work
from onnxopt.fusion.region import Kernel
from onnxopt.graph import read


@dataclasses.dataclass(frozen=True)
class Graph:
    """A model, counted (fusion/work.py) and drawn.

    rows: () where it has too many nodes to draw. launches, moved: predicted kernels of a run and bytes that they move;
    None where that is not known.
    """

    nodes: int
    ops: dict[str, int]
    parameters: int
    parameter_bytes: int
    rows: tuple[Row, ...] = ()
    launches: int | None = None
    moved: int | None = None


@dataclasses.dataclass(frozen=True)
class Facts:
    """before: None where the original no longer exists. sources: CUDA, a whole translation unit for each kernel, "" for
    one that has none of its own.

    costs: work of one element of the largest tensor in float32 instructions (program/pointwise.py), by kernel; kinds of
    kernels that do not count it are left out. bodies: the original nodes of each kernel, by name. sizes: of symbolic
    dims, as the user gave them. typical: of all dynamic dims, where a run's bytes are predicted.
    """

    before: Graph | None = None
    after: Graph | None = None
    sources: dict[str, str] = dataclasses.field(default_factory=dict)
    costs: dict[str, int] = dataclasses.field(default_factory=dict)
    measurements: tuple[BenchResult, ...] = ()
    bodies: dict[str, tuple[Row, ...]] = dataclasses.field(default_factory=dict)
    sizes: dict[str, int] = dataclasses.field(default_factory=dict)
    typical: dict[str, int] = dataclasses.field(default_factory=dict)

    def to_json(self) -> str:
        """Compact JSON; the same facts give the same text."""
        return json.dumps(dataclasses.asdict(self), separators=(",", ":"), allow_nan=False)


@functools.cache
def _adapter(record: Any) -> pydantic.TypeAdapter[Any]:
    return pydantic.TypeAdapter(record)


def from_json(text: str | bytes) -> Facts:
    """ValueError where the text is not what `to_json` writes."""
    facts: Facts = _adapter(Facts).validate_json(text)
    return facts


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
    launches: int | None = None,
    moved: int | None = None,
) -> Facts:
    """The facts at the end of optimize. before: counted before normalization, which changes the model in place.

    sizes, typical: of symbolic dims, see `Facts`. launches, moved: of the optimized model, see `Graph`.
    """
    return Facts(
        before=before,
        after=dataclasses.replace(count(model, kernels), launches=launches, moved=moved),
        sources={k.name: generate.own_text(k) for k in kernels},
        costs={k.name: cost for k in kernels if isinstance(cost := getattr(k.program, "cost", None), int)},
        bodies=drawing.drawn_functions(model),
        sizes=dict(sizes or {}),
        typical=dict(typical or {}),
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
