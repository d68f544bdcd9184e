"""Bench: an artifact against the original, both in one process in turn, outputs compared before any time is taken."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from onnxopt.artifact import archive
from onnxopt.artifact.folder import hash_file, temporary_folder
from onnxopt.artifact.measurement import BenchResult, Timing
from onnxopt.artifact.open import Opened, open_artifact
from onnxopt.errors import ModelError, UsageError, VerificationError
from onnxopt.graph import read, signature
from onnxopt.graph import traits as model_traits
from onnxopt.phases import Progress, silent
from onnxopt.runtime import configuration, devices, sessions
from onnxopt.runtime.bound_run import BoundRun
from onnxopt.runtime.configuration import configuration_for
from onnxopt.runtime.sessions import CPU, CUDA, RunError
from onnxopt.verification import samples
from onnxopt.verification.reference import NotRunnable, Reference
from onnxopt.verification.user_data import DataSource, check_alone, read_data
from onnxopt.verification.verify import describe_failure

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

_WARM_UP_SECONDS = 0.3
_BLOCK_SECONDS = 0.05
_FEWEST, _MOST = 7, 2000
_QUANTILES = 20  # steps of the distribution


def bench(
    artifact: str | Path,
    *,
    against: str | Path | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    provider: str | None = None,
    iterations: int | None = None,
    seconds: float = 5.0,
    data: Sequence[DataSource] = (),
    progress: Progress | None = None,
) -> BenchResult:
    """Time an artifact with its library against a model.

    against: a model file or artifact; default the original, if it is still unchanged at the path that it was optimized
    from, else the artifact's own model without the library; the result says which. shapes: sizes of inputs or dims;
    other dynamic dims are 1 (batch), 128 or 224 (images), if the model accepts that. provider: ONNX Runtime's name,
    default CUDA where a device is usable. iterations: runs of each, default as many as `seconds` allow (7 to 2000).
    data: your own inputs (.npz files, or mappings from input name to array); all are compared, the first is timed.

    progress: called as by `optimize`, with the phases "load", "original", "verify" and "time".

    Inputs and outputs are bound to the device. Raises VerificationError where outputs differ; then nothing is timed.
    """
    say = progress or silent
    say("load", "", 0, 0)
    opened = open_artifact(artifact)
    if iterations is not None and iterations < 1:
        raise UsageError(f"iterations must be 1 or more, not {iterations}")
    model, library, baseline_name = _baseline(opened, None if against is None else Path(against))
    sessions.check_providers([provider] if provider else [])
    provider = provider or (CUDA if sessions.cuda_is_usable() else CPU)
    with temporary_folder() as scratch:
        lowered = opened.manifest.precision.dtype if opened.manifest.precision else ""
        say("original", "", 0, 0)
        reference = reference_of(model, library, provider, shapes or {}, scratch, data, lowered)
        say("verify", "", 0, 0)
        checks = reference.check(opened.model, opened.library, None if data else list(reference.outputs)[:1])
    if failed := next((c for c in checks if not c.ok), None):
        raise VerificationError(f"{opened.folder}: not timed, its outputs differ: {describe_failure(failed)}")
    case = next(iter(reference.outputs))
    feeds = reference.feeds(case)
    runs, opening = [], []
    for path, lib in ((model, library), (opened.model, opened.library)):
        started = time.perf_counter()
        session = _open(path, lib, provider, opened.folder)
        opening.append(time.perf_counter() - started)
        runs.append(BoundRun(session, feeds, provider, keep_outputs=not reference.traits.random))
    gpu = None if provider == CPU else devices.first()
    timed = _time_in_turn(runs[0], runs[1], iterations, seconds, lambda done, total: say("time", "", done, total))
    baseline, timing = (
        dataclasses.replace(of, open_ms=round(1e3 * opened, 3), first_ms=round(1e3 * (opened + run.first), 3))
        for of, opened, run in zip(timed, opening, runs, strict=True)
    )
    return BenchResult(
        provider=provider,
        case=str(case),
        against=baseline_name,
        baseline=baseline,
        artifact=timing,
        ratio=round(baseline.p50 / timing.p50, 4),
        compared=max((c.difference.excess or 0.0 for c in checks if c.difference), default=0.0),
        requests=_requests(reference.traits.inputs, dict(case.sizes), feeds),
        device=gpu.name if gpu else devices.processor(),
    )


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
    source, original = artifact.manifest.source, Path(artifact.manifest.source.path)
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
    shapes: Mapping[str, tuple[int, ...]],
    scratch: Path,
    data: Sequence[DataSource] = (),
    lowered: str = "",
) -> Reference:
    """A model's outputs for the user's data, else at typical sizes, or at any that it accepts.

    lowered: the dtype of what is compared with a float32 model, where that is of lower precision.
    """
    traits = model_traits.of(read.load(model).model)
    if lowered and traits.precision == "float32":
        traits = model_traits.as_lowered(traits, lowered)
    check_alone(data, shapes)
    own = read_data(data, traits.inputs)
    pinned = signature.pin(traits.inputs, shapes)
    fitted = samples.fitted(traits.inputs, signature.typical(traits.inputs, pinned), pinned)
    for sizes in (fitted, pinned):
        try:
            return Reference(
                model,
                traits,
                provider,
                pinned=sizes,
                seconds=0.0,
                folder=scratch,
                library=library,
                search=sizes is pinned,
                data=own,
            )
        except NotRunnable as error:
            reason = error
    raise ModelError(f"{model}: cannot be timed, {provider} does not run it: {reason}")


def _open(model: Path, library: Path | None, provider: str, folder: Path) -> InferenceSession:
    """A session with the options of the artifact's configuration, which both sides get."""
    chosen = configuration_for(folder, provider)
    try:
        return configuration.open_session(model, library, chosen.data, folder)
    except RunError as error:
        raise ModelError(f"{model}: {provider} does not run it: {error}") from error


def _time_in_turn(
    first: Callable[[], float],
    second: Callable[[], float],
    iterations: int | None,
    seconds: float,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Timing, Timing]:
    """Time blocks of runs of the one, then of the other, so that clocks, heat and other load affect both alike.

    Blocks rather than single runs, and the first of a block not counted: the threads of one session go on spinning for
    a moment after a run, which would slow down the other's.
    """
    progress(0, 0)
    estimate = max(warm_up(first), warm_up(second))
    wanted = iterations or min(_MOST, max(_FEWEST, int(seconds / 2 / estimate)))
    block = min(wanted, max(3, int(_BLOCK_SECONDS / estimate)))
    times: tuple[list[float], list[float]] = ([], [])
    while len(times[0]) < wanted:
        for run, taken in zip((first, second), times, strict=True):
            run()
            taken.extend(run() for _ in range(min(block, wanted - len(taken))))
        progress(len(times[0]), wanted)
    return _timing(times[0]), _timing(times[1])


def warm_up(run: Callable[[], float]) -> float:
    """Run for 0.3 seconds; returns the seconds of the fastest run."""
    started, best = time.perf_counter(), run()
    while time.perf_counter() - started < _WARM_UP_SECONDS:
        best = min(best, run())
    return best


def _timing(seconds: list[float]) -> Timing:
    ordered = sorted(s * 1e3 for s in seconds)
    return Timing(
        p50=round(statistics.median(ordered), 4),
        p95=round(ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))], 4),
        mean=round(statistics.fmean(ordered), 4),
        best=round(ordered[0], 4),
        runs=len(ordered),
        quantiles=tuple(round(ordered[k * (len(ordered) - 1) // _QUANTILES], 4) for k in range(_QUANTILES + 1)),
    )
