"""Bench: an artifact against the original, both in one process in turn, outputs compared before any time is taken."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Unpack

from onnxopt.artifact import archive
from onnxopt.artifact.folder import hash_file, temporary_folder
from onnxopt.artifact.measurement import BenchResult, Timing
from onnxopt.artifact.open import Opened, open_artifact
from onnxopt.errors import ModelError, NotVerifiedError, VerificationError
from onnxopt.graph import read, signature
from onnxopt.graph import traits as model_traits
from onnxopt.paths import StrPath
from onnxopt.phases import Progress, silent
from onnxopt.pipeline.readable_source import readable
from onnxopt.runtime import configuration, devices, footprint, sessions, time_limit
from onnxopt.runtime.bound_run import BoundRun
from onnxopt.runtime.configuration import Configuration, configuration_for
from onnxopt.runtime.footprint import Footprint
from onnxopt.runtime.sessions import CPU, CUDA, RunError, RunTimeout
from onnxopt.tools import bench_trace, timing
from onnxopt.tools.bench_options import BenchChanges, BenchOptions
from onnxopt.verification.coverage import Coverage, ModelFile
from onnxopt.verification.reference import NotRunnable, Reference, TooSlow
from onnxopt.verification.sampling import samples
from onnxopt.verification.sampling.user_data import check_alone, read_data
from onnxopt.verification.verify import describe_failure

_SIDES = ("before", "artifact")


def bench(
    artifact: StrPath,
    options: BenchOptions | None = None,
    *,
    progress: Progress | None = None,
    **changes: Unpack[BenchChanges],
) -> BenchResult:
    """Time an artifact with its library against a model.

    options: how. changes: fields of `BenchOptions` by name, in place of those of `options`: bench("m.optimized",
    iterations=100). progress: called as by `optimize`, with the phases "load", "original", "verify", "open" and "time".

    Inputs and outputs are bound to the device. Raises VerificationError where outputs differ; then nothing is timed.
    NotVerifiedError where a model does not run in time.
    """
    say, options = progress or silent, dataclasses.replace(options or BenchOptions(), **changes)
    say("load", "", 0, 0)
    opened = open_artifact(artifact)
    options.check()
    model, library, baseline_name = _baseline(opened, None if options.against is None else Path(options.against))
    sessions.check_providers([options.provider] if options.provider else [])
    provider = options.provider or (CUDA if sessions.cuda_is_usable() else CPU)
    limit = time_limit.limit_of(options.timeout, opened.manifest.source.bytes)
    with temporary_folder() as scratch, time_limit.runs_end_within(limit):
        lowered = opened.manifest.precision.dtype if opened.manifest.precision else ""
        say("original", "", 0, 0)
        try:
            reference = reference_of(model, library, provider, options, scratch, lowered, like=opened.model)
        except ModelError:
            original = model
            model = readable(read.load(original), scratch / "readable").path
            if model == original:
                raise
            reference = reference_of(model, library, provider, options, scratch, lowered, like=opened.model)
        say("verify", "", 0, 0)
        checks = reference.check(opened.model, opened.library, None if options.data else list(reference.outputs)[:1])
        if failed := next((c for c in checks if not c.ok), None):
            raise VerificationError(f"{opened.folder}: not timed, its outputs differ: {describe_failure(failed)}")
        case = next(iter(reference.outputs))
        feeds = reference.feeds(case)
        chosen, keep = configuration_for(opened.folder, provider), not reference.traits.random
        files = ((model, library), (opened.model, opened.library))
        sides = [_Side(*of, opened.folder, chosen, feeds, keep) for of in files]
        if options.footprints:
            say("open", "", 0, 0)
        footprints = [side.footprint() if options.footprints else Footprint() for side in sides]
        timed = _timed(sides, options, lambda done, total: say("time", "", done, total))
        if options.profile is not None:
            say("profile", "", 0, 0)
            traces = {name: side.events(scratch) for name, side in zip(_SIDES, sides, strict=True)}
            bench_trace.write(Path(options.profile), traces)
    baseline, improved = map(_with_footprint, timed, footprints)
    gpu = None if provider == CPU else devices.first()
    notes = [(name, of.note) for name, of in zip(_SIDES, footprints, strict=True)]
    if options.threads == 1:  # concurrent callers keep the machine busy themselves
        notes += [(name, timing.unsteady(of) or "") for name, of in zip(_SIDES, timed, strict=True)]
    return BenchResult(
        provider=provider,
        case=str(case),
        against=baseline_name,
        baseline=baseline,
        artifact=improved,
        ratio=round(baseline.p50 / improved.p50, 4),
        compared=max((c.difference.excess or 0.0 for c in checks if c.difference), default=0.0),
        requests=_requests(reference.traits.inputs, dict(case.sizes), feeds),
        threads=options.threads,
        device=gpu.name if gpu else devices.processor(),
        notes=tuple(f"{name}: {note}" for name, note in notes if note),
    )


class _Side(NamedTuple):
    """One of the two that are timed. folder, chosen: of the artifact; both sides get its options."""

    model: Path
    library: Path | None
    folder: Path
    chosen: Configuration
    feeds: Mapping[str, sessions.Array]
    keep_outputs: bool

    def footprint(self) -> Footprint:
        """Without figures where the process that measures them fails."""
        try:
            return footprint.measure(*self[:3], self.chosen, self.feeds, keep_outputs=self.keep_outputs)
        except RunError as error:
            return Footprint(note=f"opening, launches and memory were not measured: {error}")

    def events(self, scratch: Path) -> list[dict[str, Any]]:
        """Of a trace. ModelError where a run fails that ran before."""
        try:
            return bench_trace.events_of(self.model, self.library, self.chosen, self.folder, self.feeds, scratch)
        except RunError as error:
            raise ModelError(f"{self.model}: cannot be traced: {error}") from error

    def runs(self, threads: int) -> list[BoundRun]:
        """A run for each caller of one session, which have run once."""
        provider = self.chosen.provider
        try:
            session = configuration.open_session(self.model, self.library, self.chosen.data, self.folder)
            return [BoundRun(session, self.feeds, provider, keep_outputs=self.keep_outputs) for _ in range(threads)]
        except RunTimeout as error:
            raise NotVerifiedError(f"{self.model}: cannot be timed: {error}") from error
        except RunError as error:
            raise ModelError(f"{self.model}: {provider} does not run it: {error}") from error


def _timed(
    sides: Sequence[_Side], options: BenchOptions, progress: Callable[[int, int], None]
) -> tuple[Timing, Timing]:
    """As timing.in_turn. ModelError where a run fails that ran before, as where concurrent ones take all memory.

    NotVerifiedError where one takes longer than it may.
    """
    before, after = (side.runs(options.threads) for side in sides)
    try:
        return timing.in_turn(before, after, options.iterations, options.seconds, progress)
    except RunTimeout as error:
        raise NotVerifiedError(f"{sides[1].folder}: cannot be timed: {error}") from error
    except RunError as error:
        raise ModelError(f"{sides[1].folder}: cannot be timed: {error}") from error


def _with_footprint(timed: Timing, measured: Footprint) -> Timing:
    figures = {
        field.name: getattr(measured, field.name) for field in dataclasses.fields(measured) if field.name != "note"
    }
    return dataclasses.replace(timed, **figures)


def _requests(inputs: Sequence[signature.Tensor], sizes: Mapping[str, int], feeds: Mapping[str, sessions.Array]) -> int:
    """How many requests a run serves: the batch size, where one dim is the batch.

    That is the size of the dynamic dims that are batches; in a static model, of dim 0 of every input of two dims or
    more. 1 where these differ, and where there are none.
    """
    dynamic = {sizes[symbol] for symbol in signature.roles(inputs)[0] if symbol in sizes}
    batches = dynamic or {array.shape[0] for array in feeds.values() if array.ndim > 1}
    return int(batches.pop()) if len(batches) == 1 else 1


def _baseline(artifact: Opened, against: Path | None) -> tuple[Path, Path | None, str]:
    """The baseline's model file, its library, and its name in the result."""
    if against is not None and (against.is_dir() or archive.is_archive(against)):
        other = open_artifact(against)
        return other.model, other.library, f"artifact {against}"
    if against is not None:
        return against, None, f"model {against}"
    source = artifact.manifest.source
    if source.path is None:
        return artifact.model, None, f"the artifact's own model without the library (made of a {source.name} in memory)"
    precision = artifact.manifest.precision
    if precision is not None and precision.caches:
        return (
            artifact.model,
            None,
            f"the artifact's own model without the library (its caches alone are {precision.dtype})",
        )
    original = Path(source.path)
    try:
        unchanged = hash_file(original).sha256 == source.sha256
    except OSError:
        unchanged = False
    if unchanged:
        return original, None, f"original {original}"
    return artifact.model, None, "the artifact's own model without the library (the original is gone or changed)"


def reference_of(
    model: Path,
    library: Path | None,
    provider: str,
    options: BenchOptions,
    scratch: Path,
    lowered: str = "",
    like: Path | None = None,
) -> Reference:
    """A model's outputs for the user's data, else at typical sizes, or at any that it accepts.

    options: of which shapes and data count. lowered: the dtype of what is compared with a float32 model, where that is
    of lower precision. like: an equivalent model, whose graph may show sizes that inputs must have. ModelError where
    the model runs at none, NotVerifiedError where not in time.
    """
    traits = model_traits.of(read.load(model).model)
    if like is not None:
        traits = model_traits.completed(traits, model_traits.of(read.load(like).model))
    if lowered and traits.precision == "float32":
        traits = model_traits.as_lowered(traits, lowered)
    check_alone(options.data, options.shapes)
    own, file = read_data(options.data, traits.inputs), ModelFile(model, traits, library=library)
    pinned = file.pinned(options.shapes)
    fitted = samples.fitted(traits.inputs, signature.typical(traits.inputs, pinned), pinned)
    for sizes in (fitted, pinned):
        try:
            coverage = Coverage(sizes, own, seconds=0.0, search=sizes is pinned)
            return Reference(file, provider, coverage, folder=scratch)
        except TooSlow as error:
            raise NotVerifiedError(f"{model}: cannot be timed: {error}") from error
        except NotRunnable as error:
            reason = error
    raise ModelError(f"{model}: cannot be timed, {provider} does not run it: {reason}")
