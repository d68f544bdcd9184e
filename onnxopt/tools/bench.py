"""Bench: an artifact against the original, both in one process in turn, outputs compared before any time is taken."""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from onnxopt.artifact import archive, package
from onnxopt.artifact.manifest import Measurement
from onnxopt.artifact.open import Opened, open_artifact
from onnxopt.errors import ModelError, UsageError, VerificationError
from onnxopt.graph import read, signature
from onnxopt.graph import traits as model_traits
from onnxopt.runtime import configuration, devices, sessions
from onnxopt.runtime.bound_run import BoundRun
from onnxopt.runtime.configuration import configuration_for
from onnxopt.runtime.sessions import CPU, CUDA, RunError
from onnxopt.verification import samples
from onnxopt.verification.reference import NotRunnable, Reference
from onnxopt.verification.verify import describe_failure

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

    from onnxopt.artifact.fleet import Fleet

_WARM_UP_SECONDS = 0.3
_BLOCK_SECONDS = 0.05
_FEWEST, _MOST = 7, 2000
_QUANTILES = 20  # steps of the distribution


@dataclasses.dataclass(frozen=True)
class Timing:
    """Milliseconds a run: median, 95th percentile, mean and best of `runs` runs.

    quantiles: the distribution, at 0, 5, 10 ... 100 % of the runs.
    """

    p50: float
    p95: float
    mean: float
    best: float
    runs: int
    quantiles: tuple[float, ...] = ()


@dataclasses.dataclass(frozen=True)
class Result:
    """One benchmark. ratio: p50 of the baseline over p50 of the artifact, above 1 where the artifact is faster.

    against: what the baseline is. case: input sizes. compared: worst difference over the limit, of any output.
    requests: how many a run serves, its batch size. device: the GPU's name, or the processor's.
    """

    provider: str
    case: str
    against: str
    baseline: Timing
    artifact: Timing
    ratio: float
    compared: float
    requests: int
    device: str

    def measurement(self, fleet: Fleet | None = None) -> Measurement:
        """The same as a manifest keeps it."""
        import onnxruntime as ort

        return Measurement(
            device=self.device,
            provider=self.provider,
            case=self.case,
            against=self.against,
            onnxruntime=ort.__version__,
            before_ms=self.baseline.p50,
            after_ms=self.artifact.p50,
            ratio=self.ratio,
            fleet=fleet,
        )


def bench(
    artifact: str | Path,
    *,
    against: str | Path | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    provider: str | None = None,
    iterations: int | None = None,
    seconds: float = 5.0,
) -> Result:
    """Time an artifact with its library against a model.

    against: a model file or artifact; default the original, where it still lies where it was optimized from and is
    unchanged, else the artifact's own model without the library; the result says which. shapes: sizes of inputs or
    dims; dynamic dims are otherwise 1 (batch), 128 or 224 (images), if the model runs so. provider: ORT's name, default
    CUDA where a device is usable. iterations: runs of each, default as many as `seconds` allow (7 to 2000).

    Inputs and outputs are bound to the device. Raises VerificationError where outputs differ; then nothing is timed.
    """
    opened = open_artifact(artifact)
    folder = opened.folder
    if iterations is not None and iterations < 1:
        raise UsageError(f"iterations must be 1 or more, not {iterations}")
    model, library, name = _baseline(opened, None if against is None else Path(against))
    sessions.check_providers([provider] if provider else [])
    provider = provider or (CUDA if sessions.cuda_is_usable() else CPU)
    with tempfile.TemporaryDirectory(prefix="onnxopt.") as scratch:
        reference = reference_of(model, library, provider, shapes or {}, Path(scratch))
        checks = reference.check(opened.model, opened.library, list(reference.outputs)[:1])
    if failed := next((c for c in checks if not c.ok), None):
        raise VerificationError(f"{folder}: not timed, its outputs differ: {describe_failure(failed)}")
    case = next(iter(reference.outputs))
    feeds = samples.draw(reference.traits.inputs, dict(case.sizes), case.seed, reference.traits.index_bounds)
    runs = []
    for path, lib in ((model, library), (opened.model, opened.library)):
        session = _open(path, lib, provider, folder)
        runs.append(BoundRun(session, feeds, provider, keep_outputs=not reference.traits.random))
    gpu = None if provider == CPU else devices.first()
    baseline, ours = _time_in_turn(runs[0], runs[1], iterations, seconds)
    return Result(
        provider=provider,
        case=str(case),
        against=name,
        baseline=baseline,
        artifact=ours,
        ratio=round(baseline.p50 / ours.p50, 4),
        compared=max((c.difference.excess or 0.0 for c in checks if c.difference), default=0.0),
        requests=_requests(reference.traits.inputs, dict(case.sizes), feeds),
        device=gpu.name if gpu else devices.processor(),
    )


def _requests(inputs: Sequence[signature.Tensor], sizes: Mapping[str, int], feeds: Mapping[str, sessions.Array]) -> int:
    """How many requests a run serves: the batch size, where one dim is the batch.

    Of a dynamic dim 0; in a static model what dim 0 of every input is. 1 where that says nothing.
    """
    dynamic = {sizes[symbol] for symbol in signature.roles(inputs)[0] if symbol in sizes}
    found = dynamic or {array.shape[0] for array in feeds.values() if array.ndim > 1}
    return int(found.pop()) if len(found) == 1 else 1


def _baseline(artifact: Opened, against: Path | None) -> tuple[Path, Path | None, str]:
    """The baseline's model file, its library, and what to call it."""
    if against is not None and (against.is_dir() or archive.is_archive(against)):
        other = open_artifact(against)
        return other.model, other.library, f"artifact {against}"
    if against is not None:
        return against, None, f"model {against}"
    source, original = artifact.manifest.source, Path(artifact.manifest.source.path)
    try:
        unchanged = package.hash_file(original).sha256 == source.sha256
    except OSError:
        unchanged = False
    if unchanged:
        return original, None, f"original {original}"
    return (
        artifact.model,
        None,
        "the artifact's own model without the library (the original is gone or changed)",
    )


def reference_of(
    model: Path, library: Path | None, provider: str, shapes: Mapping[str, tuple[int, ...]], scratch: Path
) -> Reference:
    """A model's outputs at typical sizes, or at any that it accepts."""
    traits = model_traits.of(read.load(model).model)
    pinned = signature.pin(traits.inputs, shapes)
    batch, space = signature.roles(traits.inputs)
    typical = {n: 1 if n in batch else 224 if n in space else 128 for n in signature.symbols(traits.inputs)}
    for sizes in ({**typical, **pinned}, pinned):
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
            )
        except NotRunnable as error:
            reason = error
    raise ModelError(f"{model}: cannot be timed, {provider} does not run it: {reason}")


def _open(model: Path, library: Path | None, provider: str, folder: Path) -> InferenceSession:
    """A session as a user of the artifact's configuration would have it, for both sides."""
    chosen = configuration_for(folder, provider)
    try:
        return configuration.open_session(model, library, chosen.data, folder)
    except RunError as error:
        raise ModelError(f"{model}: {provider} does not run it: {error}") from error


def _time_in_turn(
    first: Callable[[], float], second: Callable[[], float], iterations: int | None, seconds: float
) -> tuple[Timing, Timing]:
    """Blocks of runs of the one, then of the other, so that clocks, heat and neighbours meet both alike.

    Blocks rather than single runs, and the first of a block not counted: ORT's threads of one session go on spinning
    for a moment, which would slow down the other's.
    """
    estimate = max(warm_up(first), warm_up(second))
    wanted = iterations or min(_MOST, max(_FEWEST, int(seconds / 2 / estimate)))
    block = min(wanted, max(3, int(_BLOCK_SECONDS / estimate)))
    times: tuple[list[float], list[float]] = ([], [])
    while len(times[0]) < wanted:
        for run, taken in zip((first, second), times, strict=True):
            run()
            taken.extend(run() for _ in range(min(block, wanted - len(taken))))
    return _timing(times[0]), _timing(times[1])


def warm_up(run: Callable[[], float]) -> float:
    """Run for a moment; returns the seconds of the fastest run."""
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
