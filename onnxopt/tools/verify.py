"""Verify: compare two models or artifacts by their paths, output by output."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Unpack

from onnxopt.artifact import archive, narrow_caches
from onnxopt.artifact import record as recording
from onnxopt.artifact.folder import hash_file, temporary_folder
from onnxopt.artifact.manifest import Manifest
from onnxopt.artifact.open import open_artifact
from onnxopt.artifact.report.facts import read_facts
from onnxopt.errors import UsageError
from onnxopt.graph import read
from onnxopt.graph import traits as model_traits
from onnxopt.paths import StrPath
from onnxopt.phases import Progress, silent
from onnxopt.pipeline.readable_source import readable
from onnxopt.runtime import time_limit
from onnxopt.tools.verify_options import VerifyChanges, VerifyOptions
from onnxopt.verification.coverage import Coverage, ModelFile
from onnxopt.verification.emulation import gcc
from onnxopt.verification.emulation.emulate import EmulatedKernel
from onnxopt.verification.emulation.emulate import emulate as run_emulated
from onnxopt.verification.reference import NotRunnable, Refused
from onnxopt.verification.refusals import original_runs
from onnxopt.verification.sampling.user_data import UserData, check_alone, read_data
from onnxopt.verification.verify import VerificationReport, references, verify_model, with_emulation


def verify(
    original: StrPath,
    optimized: StrPath | None = None,
    options: VerifyOptions | None = None,
    *,
    progress: Progress | None = None,
    **changes: Unpack[VerifyChanges],
) -> VerificationReport:
    """Compare two models, each a model file or an artifact, which runs with its library and again without it.

    optimized: default the artifact `original`, compared with the model it was made from, if that still exists.
    options: on what. changes: fields of `VerifyOptions` by name, in place of those of `options`: verify("m.optimized",
    data=["inputs.npz"]). progress: called as by `optimize`, with the phases "load", "original" and "verify".

    A difference is a report with status "failed", not an error; where the original opens and does not run here, or not
    in time, the status is "not_run". Raises ModelError, ArtifactError, UsageError, and NotVerifiedError where the
    original runs in time and the other model does not.
    """
    say, options = progress or silent, dataclasses.replace(options or VerifyOptions(), **changes)
    check_alone(options.data, options.shapes)
    time_limit.check(options.timeout)
    say("load", "", 0, 0)
    first, second = _sides(Path(original), None if optimized is None else Path(optimized))
    if options.record:
        _check_recordable(first, second)
    kernels = _emulated_kernels(second) if options.emulate else None
    report = _compare(first, second, options, kernels, say)
    if options.record and (report.agrees or report.status == "failed"):
        recording.record_verification(second.path, report)
    return report


class _Side(NamedTuple):
    """One of the two models. path: the one that the caller gave. manifest, folder (of its files): of an artifact."""

    path: Path
    model: Path
    library: Path | None
    manifest: Manifest | None
    folder: Path | None = None


def _sides(original: Path, optimized: Path | None) -> tuple[_Side, _Side]:
    if optimized is not None:
        return _side(original), _side(optimized)
    second = _side(original)
    if second.manifest is None:
        raise UsageError(f"{original}: is no artifact; give the original and the optimized model")
    source = second.manifest.source
    if source.path is None:
        raise UsageError(
            f"{original}: was made of a {source.name} in memory, so there is no file to compare it with; export that "
            "and give the file first"
        )
    path = Path(source.path)
    if not path.is_file():
        raise UsageError(f"{original}: the model that it was made from is gone ({path}); give that model first")
    first = _side(path)
    _check_source(first, second)
    return first, second


def _side(path: Path) -> _Side:
    if not path.is_dir() and not archive.is_archive(path):
        return _Side(path, path, None, None)
    artifact = open_artifact(path)
    return _Side(path, artifact.model, artifact.library, artifact.manifest, artifact.folder)


def _check_recordable(first: _Side, second: _Side) -> None:
    if second.manifest is None:
        raise UsageError(f"{second.path}: is no artifact, so that nothing can be recorded in it")
    recording.check_recordable(second.path)
    _check_source(first, second)


def _check_source(first: _Side, second: _Side) -> None:
    """UsageError unless the artifact `second` was made from the model file `first`."""
    assert second.manifest is not None
    try:
        same = hash_file(first.model).sha256 == second.manifest.source.sha256
    except OSError as error:
        raise UsageError(f"{first.path}: cannot be read: {error.strerror or error}") from None
    if not same:
        raise UsageError(f"{first.path}: is not the model that {second.path} was made from (its sha256 differs)")


def _compare(
    first: _Side, second: _Side, options: VerifyOptions, emulated: Sequence[EmulatedKernel] | None, say: Progress
) -> VerificationReport:
    source, other = read.load(first.model), read.load(second.model)
    traits, other_traits = model_traits.of(source.model), model_traits.of(other.model)
    own: Sequence[UserData] = read_data(options.data, traits.inputs)
    lowered = second.manifest.precision if second.manifest and traits.precision == "float32" else None
    kernels = {kernel.name: kernel.cpu for kernel in second.manifest.kernels} if second.manifest else {}
    limit = time_limit.limit_of(options.timeout, source.bytes)
    with original_runs(source), temporary_folder() as folder, time_limit.runs_end_within(limit):
        source = readable(source, folder / "readable")
        if lowered is not None and lowered.caches:
            source = narrow_caches.narrowed(source, lowered.caches, lowered.dtype, folder / "caches")
            traits, own = (
                narrow_caches.traits_of(source),
                narrow_caches.narrowed_data(own, lowered.caches, lowered.dtype),
            )
        if difference := model_traits.difference_of_names_and_dtypes(traits, other_traits):
            return VerificationReport("failed", reason=difference)
        traits = model_traits.completed(traits, other_traits)
        if lowered is not None:
            traits = model_traits.as_lowered(traits, lowered.dtype)
        say("original", "", 0, 0)
        try:
            file = ModelFile(source.path, traits, source.bytes, first.library)
            coverage = Coverage(file.pinned(options.shapes), own, options.seconds, edge_cases=not traits.lowered)
            originals = references(file, coverage, folder=folder, providers=options.providers)
        except Refused:
            raise
        except NotRunnable as error:
            return VerificationReport("not_run", reason=str(error))
        report = verify_model(
            originals, second.model, second.library, kernels, lambda done, total: say("verify", "", done, total)
        )
        if emulated is None:
            return report
        return with_emulation(report, run_emulated(second.model, second.library, emulated, folder))


def _emulated_kernels(side: _Side) -> list[EmulatedKernel]:
    """The kernels of an artifact, with the CUDA text that its report carries. UsageError where that is not there."""
    gcc.compiler()
    if side.manifest is None or side.folder is None:
        raise UsageError(f"{side.path}: is no artifact, so that it has no CUDA kernels to emulate")
    sources = read_facts(side.folder, side.manifest).sources
    if any(kernel.name not in sources for kernel in side.manifest.kernels):
        raise UsageError(f"{side.path}: has no report.html, which carries the CUDA text that is to be emulated")
    return [
        EmulatedKernel(k.name, k.kind, k.variants, sources[k.name], {site.node: site.shapes for site in k.sites})
        for k in side.manifest.kernels
    ]
