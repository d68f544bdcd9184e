"""Verify: run the original and the optimized model on the same inputs, with the library and without, and compare.

Every session is created once and used for all cases, one at a time; the original runs first and its outputs are kept.
Its session can be made beforehand, beside other work (`open_ahead`). The original decides which shapes are possible: a
shape it refuses is listed, not hidden. How many shapes and seeds are tried follows from a time budget.

A difference above the limit of verification/compare.py is held against the model's own noise: the original, run once more with ORT's
optimizations off, differs from itself by as much as reordering its arithmetic costs. Up to four times that is accepted,
and the report says so (`noise`). Anything else fails.

Of a model of float16 or bfloat16 the original is itself only near what the model means. So where an output differs from
the original's at all, both are held against the original in float32, run once more: the optimized model may be at most
twice as far from it as the original at its worst, plus a tenth of the limit (verification/exactness.py).
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from onnxopt.graph import signature
from onnxopt.graph import traits as model_traits
from onnxopt.graph.traits import Traits
from onnxopt.runtime import sessions
from onnxopt.verification.compare import Limit
from onnxopt.verification.reference import Ahead, Check, NotRunnable, Reference, Skipped

_AHEAD_BELOW = 1 << 30  # bytes of a model whose session lies in memory beside other work


@dataclasses.dataclass(frozen=True)
class Report:
    """What was compared and how it went.

    status: "passed", "failed", "not_run" (the original cannot be run here; reason says why) or "skipped" (not asked
    for). precision: the limits' dtype, see graph/traits.py; limit: relative difference allowed to floats. notes: what could
    not be done as usual.
    """

    status: str
    reason: str = ""
    precision: str = ""
    limit: float = 0.0
    providers: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def failures(self) -> tuple[Check, ...]:
        return tuple(c for c in self.checks if not c.ok)


def verify(
    original: str | Path,
    optimized: str | Path,
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    providers: Sequence[str] | None = None,
    seconds: float = 1.0,
) -> Report:
    """Compare two models, each a model file or an artifact folder (which runs with its library, and without as well).

    shapes: sizes of inputs by name, or of dynamic dims by symbol. providers: ORT's names, default all usable ones.
    A difference is a report with status "failed", not an error. Raises ModelError, ArtifactError, UsageError.
    """
    from onnxopt.graph import read

    model, original_library = _model_and_library(Path(original))
    candidate, library = _model_and_library(Path(optimized))
    source, other = read.load(model), read.load(candidate)
    traits, other_traits = model_traits.of(source.model), model_traits.of(other.model)
    if changed := _names_and_dtypes_differ(traits, other_traits):
        return Report("failed", reason=changed)
    traits = model_traits.with_bounds_of(traits, other_traits)
    with tempfile.TemporaryDirectory(prefix="onnxopt.") as folder:
        try:
            measured = references(
                model,
                traits,
                folder=Path(folder),
                model_bytes=source.bytes,
                shapes=shapes,
                providers=providers,
                seconds=seconds,
                library=original_library,
            )
        except NotRunnable as error:
            return Report("not_run", reason=str(error))
        return verify_model(measured, candidate, library)


def _model_and_library(path: Path) -> tuple[Path, Path | None]:
    from onnxopt.artifact import archive
    from onnxopt.artifact.open import open_artifact

    if not path.is_dir() and not archive.is_archive(path):
        return path, None

    artifact = open_artifact(path)
    return artifact.model, artifact.library


def _names_and_dtypes_differ(a: Traits, b: Traits) -> str:
    """Dims may be declared differently by two tools; what runs decides there."""
    for kind, left, right in (("inputs", a.inputs, b.inputs), ("outputs", a.outputs, b.outputs)):
        one, other = ({t.name: t.dtype for t in tensors} for tensors in (left, right))
        if one != other:
            return f"{kind} are {one} and {other}"
    return ""


def verify_model(references: Sequence[Reference], model: Path, library: Path | None) -> Report:
    """Check a model against the original on every provider, with the library (where there is one) and without."""
    checks: list[Check] = []
    for reference in references:
        for lib in [library, None] if library is not None else [None]:
            checks += reference.check(model, lib)
    failed = [c for c in checks if not c.ok]
    first = references[0].traits
    return Report(
        status="failed" if failed else "passed",
        reason=describe_failure(failed[0]) if failed else "",
        precision=first.precision,
        limit=Limit.of(first.precision, float_decides=False).relative,
        providers=tuple(r.provider for r in references),
        checks=tuple(checks),
        skipped=tuple(s for r in references for s in r.skipped),
        notes=tuple(note for r in references for note in r.notes),
    )


def open_ahead(model: Path, traits: Traits, model_bytes: int) -> Ahead | None:
    """The original's session on the CPU, made in the background, for `references`; None where that does not suit.

    ONNX Runtime makes a session on one core, and Python leaves the other idle: a second less for BERT-base. Not for a
    model of a gigabyte or more, which would take that memory while other steps run, nor for one that draws random
    numbers, whose seeds have to be fixed first.
    """
    return None if model_bytes >= _AHEAD_BELOW or traits.random else Ahead(model)


def references(
    model: Path,
    traits: Traits,
    *,
    folder: Path,
    model_bytes: int,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    providers: Sequence[str] | None = None,
    seconds: float = 1.0,
    library: Path | None = None,
    ahead: Ahead | None = None,
) -> list[Reference]:
    """The original on each provider that can run it (default: the CPU, and CUDA where a device is usable).

    library: the original's own, if it is an artifact. folder: for temporary files. model_bytes: its size with external
    data. seconds: how long the original may run, a provider, before no more cases are added. ahead: what `open_ahead`
    gave. NotRunnable where no provider can run it, or memory does not suffice.
    """
    pinned = signature.pin(traits.inputs, shapes or {})
    sessions.check_providers(providers or ())
    _check_memory(model_bytes)
    if providers is None:
        providers = [sessions.CPU, sessions.CUDA] if sessions.cuda_is_usable() else [sessions.CPU]
    found: list[Reference] = []
    reason = "no execution provider"
    for provider in providers:
        try:
            found.append(
                Reference(
                    model,
                    traits,
                    provider,
                    pinned=pinned,
                    seconds=seconds,
                    folder=folder,
                    library=library,
                    ahead=ahead if provider == sessions.CPU else None,
                )
            )
        except NotRunnable as error:
            reason = str(error)
    if not found:
        raise NotRunnable(reason)
    return found


def describe_failure(check: Check) -> str:
    """One sentence: which output, where, by how much."""
    where = f"{check.provider} {'with' if check.library else 'without'} the library, {check.case}"
    if check.difference is None:
        return f"{check.output or 'the model'} ({where}): {check.error}"
    if check.exactness is not None:
        found, own = check.exactness.found, check.exactness.original
        return (
            f"output {check.output} ({where}): {found:.3g} times the limit from float32, the original {own:.3g} times"
        )
    excess = check.difference.excess
    times = "" if excess is None else f", {excess:.3g} times the limit"
    return f"output {check.output} ({where}): {check.difference.reason}{times}"


def _check_memory(model_bytes: int) -> None:
    """NotRunnable where ORT, which holds the weights once and repacks some, would not fit in memory."""
    needed = int(1.5 * model_bytes)
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
    except OSError:
        return  # not Linux: ORT will say it itself
    free = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), needed)
    if needed > free:
        raise NotRunnable(f"running it takes about {needed / 1e9:.1f} GB of memory, {free / 1e9:.1f} GB are free")
