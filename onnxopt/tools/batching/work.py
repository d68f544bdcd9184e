"""One job of a batch: from a model or a folder of models to a summary of what was made of it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Sequence
from typing import Any

from onnxopt.artifact import record
from onnxopt.artifact.summary import status_text
from onnxopt.errors import OnnxoptError
from onnxopt.phases import Progress
from onnxopt.pipeline import flow
from onnxopt.pipeline.making import Artifact
from onnxopt.tools import tuning
from onnxopt.tools.batching.jobs import Job
from onnxopt.tools.bench import bench
from onnxopt.tools.folders import FolderModel, optimize_folder


@dataclasses.dataclass(frozen=True)
class FusionCounts:
    """What optimizing made of a model, or of all models of a folder together; predicted launches.

    models: how many were optimized. kept: those of a folder that were not. nodes, launches: of the whole model, see
    artifact/result.py. nodes_fused: in the calls of fused functions, after rewriting.
    """

    models: int
    kept: int
    nodes_fused: int
    calls: int
    kernels: int
    launches_before: int
    launches_after: int
    verify: str
    nodes_before: int = 0
    nodes_after: int = 0


@dataclasses.dataclass(frozen=True)
class MeasuredTimes:
    """What tuning and timing found. options: that tune changed, None where it did not run. Milliseconds a run."""

    device: str
    options: int | None
    before_ms: float | None = None
    after_ms: float | None = None


@dataclasses.dataclass(frozen=True)
class ModelOutcome:
    """What became of a job. error: "" where it succeeded. exit_code: of the error. seconds: of wall clock.

    summary: also of a folder with models that stayed unchanged, which is an error. measured: where that was
    asked for. resumed: done by an earlier run.
    """

    name: str
    source: str
    output: str
    seconds: float
    summary: FusionCounts | None = None
    error: str = ""
    exit_code: int = 0
    measured: MeasuredTimes | None = None
    resumed: bool = False

    @property
    def ok(self) -> bool:
        return self.exit_code == 0

    def to_json(self) -> dict[str, Any]:
        return {"status": "done" if self.ok else "failed", **dataclasses.asdict(self)}


def optimize(job: Job, progress: Progress | None = None, *, force: bool = False) -> ModelOutcome:
    """Optimize the model or folder of a job. Errors of onnxopt are in the outcome; others are raised.

    force: replace what onnxopt wrote to the output earlier.
    """
    started = time.perf_counter()

    def outcome(**fields: Any) -> ModelOutcome:
        seconds = round(time.perf_counter() - started, 3)
        return ModelOutcome(job.name, str(job.source), str(job.output), seconds, **fields)

    try:
        if not job.source.is_dir():
            artifact = flow.optimize(job.source, job.output, job.options, force=force, progress=progress)
            return outcome(summary=_summary([artifact]), resumed=artifact.unchanged)
        folder = optimize_folder(job.source, job.output, job.options, force=force, progress=progress)
    except OnnxoptError as error:
        return outcome(error=str(error), exit_code=error.exit_code)
    unoptimized = [f"{model.path}: not optimized: {model.error}" for model in folder.models if model.error is not None]
    return outcome(
        summary=_summary(folder.models, len(unoptimized)),
        error="; ".join(unoptimized),
        exit_code=folder.exit_code,
        resumed=folder.unchanged,
    )


def measure(job: Job, outcome: ModelOutcome) -> ModelOutcome:
    """Tune and time the artifact that `optimize` made. Errors of onnxopt are in the outcome; others are raised."""
    started = time.perf_counter()
    shapes, timeout = job.options.shapes, job.options.timeout
    measured: MeasuredTimes | None = None
    error: OnnxoptError | None = None
    try:
        if job.tune is not None:
            tuned = tuning.tune(job.output, budget=job.tune, shapes=shapes, timeout=timeout)
            measured = MeasuredTimes(tuned.device, len(tuned.changes))
        if job.bench:
            timed = bench(job.output, shapes=shapes, timeout=timeout)
            record.record(job.output, timed)
            options = None if measured is None else measured.options
            measured = MeasuredTimes(timed.where, options, timed.baseline.p50, timed.artifact.p50)
    except OnnxoptError as problem:
        error = problem
    return dataclasses.replace(
        outcome,
        seconds=round(outcome.seconds + time.perf_counter() - started, 3),
        measured=measured,
        error=str(error or ""),
        exit_code=error.exit_code if error else 0,
    )


def failed(job: Job, reason: str) -> ModelOutcome:
    """The outcome of a job that has none of its own."""
    return ModelOutcome(job.name, str(job.source), str(job.output), 0.0, error=reason, exit_code=OnnxoptError.exit_code)


def _summary(models: Sequence[Artifact | FolderModel], unoptimized: int = 0) -> FusionCounts:
    manifests = [model.manifest for model in models if model.manifest is not None]
    results = [model.result for model in models if model.result is not None]
    kernels = [kernel for manifest in manifests for kernel in manifest.kernels]

    def total(counts: Iterable[int | None]) -> int:
        return sum(count or 0 for count in counts)

    return FusionCounts(
        models=len(manifests),
        kept=unoptimized,
        nodes_fused=sum(len(k.operators) * len(k.sites) for k in kernels),
        calls=sum(len(k.sites) for k in kernels),
        kernels=len(kernels),
        launches_before=total(r.launches.before for r in results),
        launches_after=total(r.launches.after for r in results),
        verify=", ".join(dict.fromkeys(status_text(m.verify) for m in manifests)),
        nodes_before=total(r.nodes.before for r in results),
        nodes_after=total(r.nodes.after for r in results),
    )
