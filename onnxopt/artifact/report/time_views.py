"""Where the predicted time of a run goes: by group of operators on each GPU, and on nodes that were not fused."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from onnxopt.artifact.manifest import Manifest
from onnxopt.artifact.measurement import BenchResult
from onnxopt.artifact.report import plots
from onnxopt.artifact.report.facts import Facts
from onnxopt.artifact.report.gpus import FIRST
from onnxopt.artifact.summary import by_reason, unmeasured
from onnxopt.fusion.work import GROUPS
from onnxopt.graph.refusal import Refusal
from onnxopt.runtime import predicted
from onnxopt.runtime.gpus import Gpu, catalogue, find_gpu
from onnxopt.runtime.predicted import Times


@dataclasses.dataclass(frozen=True)
class Share:
    """Milliseconds of one group before and after. kind: the class of its colour."""

    group: str
    kind: str
    before: float
    after: float


@dataclasses.dataclass(frozen=True)
class GpuTime:
    """A predicted run on one GPU, in milliseconds. before_bar, after_bar: drawn to one scale.

    note: "" or what was not measured on this GPU. measured: benchmarks on it that the report has.
    """

    key: str
    name: str
    before: float
    after: float
    shares: tuple[Share, ...]
    before_bar: Markup
    after_bar: Markup
    note: str
    measured: tuple[BenchResult, ...]

    @property
    def decimals(self) -> int:
        """After the point, to write all times of the table with: four digits of the total before."""
        return max(0, 3 - math.floor(math.log10(self.before))) if self.before else 3

    @property
    def ratio(self) -> float:
        return self.before / self.after if self.after else 1.0


@dataclasses.dataclass(frozen=True)
class Reason:
    """Refusals of one reason. ms: what those of their nodes take that run as kernels of their own; None where that is
    not known. alone: how many these are.
    """

    text: str
    rows: tuple[Refusal, ...]
    ms: float | None
    alone: int


def gpu_times(manifest: Manifest, facts: Facts, first: Sequence[str]) -> tuple[GpuTime, ...]:
    """One for every GPU that times were predicted for: those with measurements, those of `first` (keys), the others."""
    if manifest.predicted is None or not facts.before or not facts.after or not facts.after.works:
        return ()
    rows = {row.gpu: row for row in manifest.predicted.times if row.gpu in catalogue()}
    measured = [gpu.key for result in facts.measurements if (gpu := find_gpu(result.device)) is not None]
    rank = {key: place for place, key in enumerate(dict.fromkeys([*measured, *first, *FIRST]))}
    notes = unmeasured(manifest)
    return tuple(
        _gpu_time(rows[key], catalogue()[key], facts, notes)
        for key in sorted(rows, key=lambda key: rank.get(key, len(rank)))
    )


def _gpu_time(times: Times, gpu: Gpu, facts: Facts, notes: Mapping[str, str]) -> GpuTime:
    assert facts.before is not None
    assert facts.after is not None
    before, after = (predicted.by_group(graph.works, gpu) for graph in (facts.before, facts.after))
    sums = times.before_ms, times.after_ms
    kinds = {group: f"p{k}" for k, group in enumerate(GROUPS)}
    name = gpu.name.removeprefix("NVIDIA ")
    bars = [
        plots.stacked(
            [plots.Part(group, kinds[group], ms, f"{ms:.3g} ms") for group, ms in side.items()],
            max(sums),
            f"{when}: {total:.3g} ms on {name}; the table has the parts",
        )
        for when, side, total in zip(("Before", "After"), (before, after), sums, strict=True)
    ]
    return GpuTime(
        key=gpu.key,
        name=name,
        before=sums[0],
        after=sums[1],
        shares=tuple(
            Share(group, kinds[group], before.get(group, 0.0), after.get(group, 0.0))
            for group in GROUPS
            if group in before or group in after
        ),
        before_bar=bars[0],
        after_bar=bars[1],
        note=notes.get(name, ""),
        measured=tuple(m for m in facts.measurements if m.device in gpu.driver_names),
    )


def reasons(manifest: Manifest, facts: Facts, gpu: str) -> tuple[Reason, ...]:
    """The refusals by reason, those first whose nodes take the most time. gpu: key, "" where no time is predicted."""
    groups = by_reason(manifest.refusals)
    works = facts.after.works if facts.after and gpu else ()
    times = {work.node: 1e3 * predicted.seconds((work,), catalogue()[gpu]) for work in works if work.node}
    rows = []
    for text, refusals in groups.items():
        alone = {row.node for row in refusals} & times.keys()
        ms = sum(times[node] for node in sorted(alone)) if works else None
        rows.append(Reason(text, tuple(refusals), ms, len(alone)))
    return tuple(sorted(rows, key=lambda reason: -(reason.ms or 0.0)))  # of the same time, the most frequent first
