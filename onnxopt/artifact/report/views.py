"""What the page shows, as plain records: the manifest and the facts, counted, sorted and joined."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from onnxopt.artifact import layout
from onnxopt.artifact import result as results
from onnxopt.artifact.manifest import Kernel, Manifest
from onnxopt.artifact.measurement import BenchResult, KernelTime, Measurement
from onnxopt.artifact.report import latency_views, plots
from onnxopt.artifact.report.facts import Facts
from onnxopt.artifact.report.graph_views import Drawings, drawings
from onnxopt.artifact.report.headline import Card, Headline, cards, headline
from onnxopt.artifact.report.latency_views import Latency, Sweep
from onnxopt.artifact.report.time_views import GpuTime, Reason, gpu_times, reasons
from onnxopt.artifact.result import Result
from onnxopt.artifact.summary import (
    alike,
    by_reason,
    data_text,
    executed_text,
    not_emulated_text,
    not_lowered,
    weak_lines,
)
from onnxopt.fusion.kernel import Traffic
from onnxopt.graph import signature
from onnxopt.graph.fused_domain import holds_fused
from onnxopt.graph.refusal import Refusal
from onnxopt.program.dtypes import DTYPES
from onnxopt.runtime import providers
from onnxopt.runtime.predicted import ERROR
from onnxopt.verification.check import Check
from onnxopt.verification.verify import VerificationReport

CALLS = "fused calls"
_PLOTTED_ROOFS = 4


@dataclasses.dataclass(frozen=True)
class OpRow:
    """How often an operator occurs; None where that graph was not counted."""

    op: str
    before: int | None
    after: int | None


@dataclasses.dataclass(frozen=True)
class Places:
    """`count` calls of one kernel with the same shapes. moved: bytes of one call, None where sizes are unknown."""

    count: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    traffic: Traffic
    moved: int | None


@dataclasses.dataclass(frozen=True)
class Measured:
    """One kernel's measured time. rate: bytes/s by the predicted bytes, None where they are unknown.

    device: as people read it. gpu: the driver's name of it, "" for a CPU.
    """

    device: str
    gpu: str
    time: KernelTime
    rate: float | None


@dataclasses.dataclass(frozen=True)
class KernelView:
    """One fused function. bytes_before, bytes_after: of a run, over all its places; None where sizes are unknown.

    executed: where verification ran it as a kernel, as a sentence; "" where that is not known.
    """

    name: str
    kind: str
    ops: tuple[str, ...]
    calls: int
    cpu: bool
    variants: tuple[str, ...]
    places: tuple[Places, ...]
    bytes_before: int | None
    bytes_after: int | None
    launches_before: int
    source: str | None
    intensity: float | None
    measured: tuple[Measured, ...]
    executed: str


@dataclasses.dataclass(frozen=True)
class OutputRow:
    """The worst of one output's comparisons on one provider, with the library or without it."""

    provider: str
    library: bool
    output: str
    cases: int
    ok: bool
    worst: Check


@dataclasses.dataclass(frozen=True)
class Tuned:
    """where: device, release and sizes. rows: mode, milliseconds by the rule-made file and by the tuned one, ratio."""

    where: str
    rows: tuple[tuple[str, float, float, float], ...]


@dataclasses.dataclass(frozen=True)
class Target:
    """One file of providers/. rows: option, value, reason. others: the file's other members, as JSON text.

    tuned: what `onnxopt tune` compared, None where it has not run.
    """

    name: str
    provider: str
    rows: tuple[tuple[str, str, str], ...]
    others: str
    tuned: Tuned | None


@dataclasses.dataclass(frozen=True)
class View:
    """Everything that the template needs."""

    manifest: Manifest
    facts: Facts
    model_bytes: int
    calls: int
    histogram: tuple[OpRow, ...]
    kernels: tuple[KernelView, ...]
    sizes: dict[str, int]
    roofline: Markup | None
    roofs: tuple[plots.Roof, ...]
    unplotted: int
    drawings: Drawings
    latencies: tuple[Latency, ...]
    cards: tuple[Card, ...]
    sweeps: tuple[Sweep, ...]
    recorded: tuple[Measurement, ...]
    numerics: tuple[OutputRow, ...]
    executed: str
    not_emulated: str
    weak: tuple[str, ...]
    refusals: tuple[Reason, ...]
    targets: tuple[Target, ...]
    precision_data: str
    reference_data: str
    not_lowered: dict[str, list[Refusal]]
    result: Result
    headline: Headline
    times: tuple[GpuTime, ...]
    predicted_error: str


def build(folder: Path, manifest: Manifest, facts: Facts, roofs: Sequence[plots.Roof]) -> View:
    """The view of an artifact folder whose manifest and facts are these.

    roofs: the GPUs to plot for, that of the measurements first.
    """
    sizes = _sizes(manifest, facts)
    result = results.of(folder, manifest, facts)
    times = gpu_times(manifest, facts, [time.gpu for time in result.predicted])
    sweeps = latency_views.sweeps(facts.measurements)
    kernels = sorted((_kernel(k, facts, sizes, manifest.verify) for k in manifest.kernels), key=_saving, reverse=True)
    points = [p for k in kernels if (p := _point(k, roofs[0].measured if roofs else ())) is not None]
    return View(
        manifest=manifest,
        facts=facts,
        model_bytes=sum(f.bytes for name, f in manifest.files.items() if name.startswith(layout.MODEL)),
        calls=sum(k.calls for k in kernels),
        histogram=tuple(_histogram(facts)),
        kernels=tuple(kernels),
        sizes=sizes,
        roofline=plots.roofline(roofs[:_PLOTTED_ROOFS], points) if roofs and points else None,
        roofs=tuple(roofs),
        unplotted=len(kernels) - len(points),
        drawings=drawings(facts, manifest.kernels, sizes),
        latencies=tuple(latency_views.latency(m) for m in facts.measurements),
        cards=cards(facts.measurements, sweeps),
        sweeps=sweeps,
        recorded=manifest.measurements,
        numerics=tuple(numerics(manifest.verify)),
        executed=executed_text(manifest.verify, manifest.archs),
        not_emulated=not_emulated_text(manifest.verify),
        weak=tuple(weak_lines(manifest.verify)),
        refusals=reasons(manifest, facts, times[0].key if times else ""),
        targets=tuple(_targets(folder)),
        precision_data=data_text(manifest.precision.data) if manifest.precision else "",
        reference_data=data_text(manifest.reference.data) if manifest.reference else "",
        not_lowered=by_reason(not_lowered(manifest)),
        result=result,
        headline=headline(manifest, result),
        times=times,
        predicted_error=ERROR,
    )


def _sizes(manifest: Manifest, facts: Facts) -> dict[str, int]:
    """Sizes of the symbolic dims to count bytes at: those that were timed, else those that times are predicted at, and
    of other dims the largest that were verified.
    """
    cases = [m.case for m in facts.measurements] or [c.case for c in manifest.verify.of_models]
    sizes = [latency_views.sizes_of(case) for case in cases]
    largest = max(sizes, key=lambda by_name: math.prod(by_name.values()), default={})
    return largest if facts.measurements else largest | facts.typical | facts.sizes


def _bytes(shape: str, sizes: Mapping[str, int]) -> tuple[int, int] | None:
    """Elements and bytes of "float16[batch,768]", or None where a dim has no size."""
    dtype, _, dims = shape.rstrip("]").partition("[")
    try:
        elements = math.prod(int(d) if d.isdigit() else signature.evaluate(d, sizes) for d in dims.split(",") if d)
    except (KeyError, ZeroDivisionError):  # of sizes that the model does not take
        return None
    if dtype not in DTYPES:
        return None
    return elements, elements * DTYPES[dtype].size


def _kernel(kernel: Kernel, facts: Facts, sizes: Mapping[str, int], verified: VerificationReport) -> KernelView:
    inputs = len(kernel.inputs)
    places = tuple(
        Places(count, shapes[:inputs], shapes[inputs:], traffic, _moved_by(shapes, traffic, sizes))
        for (shapes, traffic), count in alike(kernel).items()
    )
    before = _sum([p.traffic.bytes_before for p in places], [p.count for p in places])
    after = _sum([p.traffic.bytes_after for p in places], [p.count for p in places])
    moved = after if after is not None else _moved(kernel, sizes)
    work = _work(kernel, facts.costs.get(kernel.name), sizes)
    return KernelView(
        name=kernel.name,
        kind=kernel.kind,
        ops=kernel.operators,
        calls=len(kernel.sites),
        cpu=kernel.cpu,
        variants=kernel.variants,
        places=places,
        bytes_before=before,
        bytes_after=moved,
        launches_before=sum(s.traffic.launches_before for s in kernel.sites),
        source=facts.sources.get(kernel.name),
        intensity=work / moved if work and moved else None,
        measured=tuple(_measured(kernel, moved, facts.measurements)),
        executed=_executed(kernel.name, verified),
    )


def _executed(kernel: str, report: VerificationReport) -> str:
    """Where verification ran a kernel; "" where that is not known."""
    if report.executed is None:
        return ""
    ran = [row for row in report.executed if kernel in row.kernels]
    where = [f"{row.provider.removesuffix('ExecutionProvider')} ({row.device})" for row in ran]
    return f"Verification ran it on {', '.join(where)}." if where else "Verification ran it nowhere as a kernel."


def _measured(kernel: Kernel, moved: int | None, measurements: Sequence[BenchResult]) -> Iterator[Measured]:
    for measurement in measurements:
        if time := measurement.kernels.get(kernel.name):
            rate = None if moved is None else moved / len(kernel.sites) / (time.microseconds * 1e-6)
            yield Measured(measurement.where, measurement.device or "", time, rate)


def _sum(values: Sequence[int | None], counts: Sequence[int]) -> int | None:
    products = [v * c for v, c in zip(values, counts, strict=True) if v is not None]
    return sum(products) if len(products) == len(values) else None


def _moved_by(shapes: Sequence[str], traffic: Traffic, sizes: Mapping[str, int]) -> int | None:
    """Bytes that one call reads and writes: as predicted, else by its tensors at these sizes."""
    if traffic.bytes_after is not None:
        return traffic.bytes_after
    tensors = [_bytes(shape, sizes) for shape in shapes]
    return _sum([t and t[1] for t in tensors], [1] * len(tensors))


def _moved(kernel: Kernel, sizes: Mapping[str, int]) -> int | None:
    """Bytes that all places of a kernel read and write in a run at these sizes."""
    tensors = [_bytes(shape, sizes) for site in kernel.sites for shape in site.shapes]
    return _sum([t and t[1] for t in tensors], [1] * len(tensors))


def _work(kernel: Kernel, cost: int | None, sizes: Mapping[str, int]) -> int | None:
    """Instructions of all places of a kernel in a run: its cost an element, over its largest tensor."""
    if cost is None:
        return None
    tensors = [[_bytes(shape, sizes) for shape in site.shapes] for site in kernel.sites]
    elements = [max(t[0] for t in site if t) if all(site) else None for site in tensors]
    total = _sum(elements, [1] * len(elements))
    return None if total is None else total * cost


def _saving(kernel: KernelView) -> tuple[int, int]:
    has_bytes = kernel.bytes_before is not None and kernel.bytes_after is not None
    saved = (kernel.bytes_before or 0) - (kernel.bytes_after or 0) if has_bytes else 0
    return saved, kernel.launches_before - kernel.calls


def _point(kernel: KernelView, gpu: Collection[str]) -> plots.Point | None:
    """A kernel on the roof of a GPU, at its measured rate where it was measured there. gpu: the driver's names."""
    if kernel.intensity is None:
        return None
    rate = next((m.rate for m in kernel.measured if m.gpu in gpu), None)
    return plots.Point(kernel.name, kernel.intensity, None if rate is None else rate * kernel.intensity)


def _histogram(facts: Facts) -> list[OpRow]:
    """Operators, those that changed most first; the calls of fused functions are one row."""
    after: dict[str, int] = {}
    for op, count in (facts.after.ops if facts.after else {}).items():
        name = CALLS if "::" in op and holds_fused(op.split("::")[0]) else op
        after[name] = after.get(name, 0) + count
    before = facts.before.ops if facts.before else {}
    rows = [
        OpRow(op, before.get(op, 0) if facts.before else None, after.get(op, 0) if facts.after else None)
        for op in {**before, **after}
    ]
    return sorted(rows, key=lambda r: (-abs((r.before or 0) - (r.after or 0)), -(r.after or 0), r.op))


def numerics(report: VerificationReport) -> list[OutputRow]:
    """One row an output, provider and presence of the library, with the comparison that came closest to its limit."""
    groups: dict[tuple[str, bool, str], list[Check]] = {}
    for check in report.checks:
        groups.setdefault((check.provider, check.library, check.output), []).append(check)
    return [
        OutputRow(provider, library, output, len(checks), all(c.ok for c in checks), max(checks, key=_badness))
        for (provider, library, output), checks in groups.items()
    ]


def _badness(check: Check) -> tuple[bool, float]:
    excess = None if check.difference is None else check.difference.excess
    return not check.ok, math.inf if excess is None else excess


def _targets(folder: Path) -> list[Target]:
    """Every file of providers/, options with their reasons first, anything else a file holds as JSON."""
    paths = sorted((folder / layout.PROVIDERS).glob("*.json"))
    return [_target(path.stem, providers.read(folder, path.stem)) for path in paths]


def _target(name: str, data: Mapping[str, Any]) -> Target:
    parts = ("provider_options", "session_options", "session_config")
    why = data["why"] if isinstance(data.get("why"), dict) else {}
    rows = [
        (option, value if isinstance(value, str) else json.dumps(value), str(why.get(option, "")))
        for part in parts
        for option, value in data[part].items()
    ]
    others = {key: value for key, value in data.items() if key not in (*parts, "provider", "why")}
    return Target(
        name,
        str(data["provider"]),
        tuple(rows),
        json.dumps(others, indent=2) if others else "",
        _tuned(data.get("tuned")),
    )


def _tuned(document: Any) -> Tuned | None:
    """The comparisons of a file's `tuned`; None where it has another form, and is only shown as JSON."""
    try:
        where = f"{document['device']}, ONNX Runtime {document['onnxruntime']}, {document['case']}"
        rows = [
            (str(mode), float(c["rule_made_ms"]), float(c["tuned_ms"]), float(c["ratio"]))
            for mode, c in document["comparisons"].items()
        ]
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return Tuned(where, tuple(rows))
