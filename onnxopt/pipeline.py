"""The whole of onnxopt, top to bottom: a model file in, a verified artifact folder out."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from onnxopt.artifact import description, lowered, narrow_caches, reference_quality
from onnxopt.artifact.build import Build, RewriteFails, verify_and_leave_out
from onnxopt.artifact.folder import check_output, hash_files, output_path, staging, temporary_folder, write_manifest
from onnxopt.artifact.forms import Forms, Rewriter
from onnxopt.artifact.fused import Fused, Fuser
from onnxopt.artifact.manifest import LeftOut, Manifest
from onnxopt.artifact.reference_quality import FloatModel
from onnxopt.artifact.report import facts as report_facts
from onnxopt.artifact.report import page
from onnxopt.artifact.session import load
from onnxopt.errors import UsageError
from onnxopt.fusion import work
from onnxopt.fusion.work import Work
from onnxopt.graph import given, normalize, read, signature
from onnxopt.graph import traits as model_traits
from onnxopt.graph.given import Given
from onnxopt.graph.precision.caches import Cache
from onnxopt.graph.traits import Traits
from onnxopt.paths import StrPath
from onnxopt.phases import Phases, Progress
from onnxopt.runtime import archs as chosen_archs
from onnxopt.runtime import providers, releases, time_limit
from onnxopt.runtime.sessions import Session
from onnxopt.verification.ahead import Ahead
from onnxopt.verification.emulation import gcc
from onnxopt.verification.quality import Goals
from onnxopt.verification.user_data import DataSource, UserData, check_alone, read_data
from onnxopt.verification.verify import VerificationReport, open_ahead

MARK = normalize.MARK


@dataclasses.dataclass(frozen=True)
class Artifact:
    """What optimize wrote: the folder, and its manifest. Functions that take an artifact's path take this, too."""

    path: Path
    manifest: Manifest = dataclasses.field(repr=False)

    def __fspath__(self) -> str:
        return str(self.path)

    def session(self, **options: Any) -> Session:
        """An onnxruntime.InferenceSession of the artifact. options: those of `onnxopt.load`."""
        return load(self.path, **options)


def optimize(
    model: Given,
    output: StrPath,
    *,
    example_inputs: Any = None,
    dynamic_shapes: Any = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    archs: Sequence[str] | None = None,
    verify: bool = True,
    timeout: float | None = None,
    external_data: bool | None = None,
    portable: bool = False,
    ort_min: str | None = None,
    launch_choices: bool = False,
    progress: Progress | None = None,
    cache: StrPath | None = None,
    data: Sequence[DataSource] = (),
    emulate: bool = False,
    precision: str | None = None,
    calibrate: Sequence[DataSource] = (),
    keep_float: str | None = None,
    caches: bool = False,
    reference: StrPath | None = None,
    min_sqnr: float | None = None,
    min_cosine: float | None = None,
    min_top1: float | None = None,
    min_top5: float | None = None,
    max_kl: float | None = None,
) -> Artifact:
    """Optimize a model into the new artifact folder `output`.

    model: the path of a model file, its bytes, an onnx.ModelProto, an onnx_ir.Model, a torch.onnx.ONNXProgram, or a
    torch.nn.Module, which is exported with example_inputs (a tuple, one tensor, or a mapping of keywords) and
    dynamic_shapes (as torch.onnx.export takes it; default all shapes as given).

    shapes: sizes to verify at and to choose kernels for, by input ("ids": (8, 128)) or by symbolic dim ("batch": (8,));
    the artifact stays dynamic. archs: what to compile kernels for: GPU architectures ("sm_90"), GPUs by the catalogue's
    names ("h200"), "native" for this machine's; default all supported ones, none with (). verify: compare with the
    original before anything is kept. timeout: seconds that one run of the original, or of what is made of it, may take;
    default 30 and one more for each 10 MB. external_data: weights beside the model, default only where it is above 2
    GB. portable: also write model.portable.onnx, without operators of com.microsoft. ort_min: oldest ONNX Runtime that
    the artifact has to run on ("1.25"), default the oldest supported. launch_choices: also compile other launch shapes
    of each kernel, for `tune` to choose from. cache: folder of compiled kernels, default the user's. data: your own
    inputs to verify with, instead of generated ones: .npz files, or mappings from input name to array. emulate: verify
    the CUDA kernels too, each alone, compiled by g++ and run on the CPU at small sizes.

    precision: "float16" or "bfloat16", to store a float32 model's values in 16 bits where their ranges allow it.
    calibrate: inputs to measure ranges with (and to verify with, without `data`), given as `data` is; default generated
    ones. keep_float: a regular expression of the names of nodes that stay float32. caches: also give that dtype to the
    inputs and outputs that are a decoder's cache; UsageError where there are none.

    reference: the float32 model file that a quantized `model` was made from; the artifact says how near it is to that
    on `data`. With it, else with precision, min_sqnr (signal to noise in dB), min_cosine, min_top1 and min_top5 (shares
    of rows) and max_kl (nats) are what every output has to keep against float32, see `Quality`.

    Whatever goes wrong, nothing is left behind. Raises ModelError, UsageError, CompileError, VerificationError, and its
    subclasses NotVerifiedError, where ONNX Runtime does not run the original here, or not in time, so that nothing can
    be compared, and DisagreementError, where an output misses what was asked for.
    """
    output, phases = output_path(output), Phases(progress, given.name_of(model), RewriteFails)
    archs, oldest = chosen_archs.named(archs), releases.release(ort_min)
    goals = Goals(min_sqnr, min_cosine, min_top1, min_top5, max_kl)
    want = lowered.asked(precision, goals if reference is None else Goals(), keep_float, calibrate, caches)
    _check_goals(goals, want, reference, verify)
    check_output(output)
    time_limit.check(timeout)
    if emulate:
        _check_emulation(verify, archs)
    kept = None if cache is None else Path(cache)
    options = _Options(
        shapes or {}, archs, verify, external_data, portable, oldest, launch_choices, kept, emulate, goals, {}, {}
    )
    with contextlib.ExitStack() as stack:
        with phases("load"):
            source = given.load(model, stack.enter_context(temporary_folder()), example_inputs, dynamic_shapes)
            stack.enter_context(time_limit.runs_end_within(time_limit.limit_of(timeout, source.bytes)))
            normalize.refuse_optimized(source.model, source.path)
            original = description.of_source(source, given.type_in_memory(model))
            pinned = signature.pin(original.traits.inputs, shapes or {})
            calibration, own = (read_data(files, original.traits.inputs) for files in (calibrate, data))
            check_alone((*data, *calibrate), shapes)
            rows = narrow_caches.found(source) if want is not None and want.caches else ()
            if want is not None and rows:
                folder = stack.enter_context(temporary_folder())
                source = narrow_caches.narrowed(source, rows, want.dtype, folder)
                original = dataclasses.replace(original, traits=narrow_caches.traits_of(source))
                calibration, own = (narrow_caches.narrowed_data(d, rows, want.dtype) for d in (calibration, own))
            near = None
            if reference is not None:
                near = reference_quality.opened(Path(reference), original.traits, source.path)
            ahead = None
            if verify or want is not None:
                drawn = None if own or (want is not None and calibration) else pinned
                ahead = open_ahead(source.path, original.traits, source.bytes, drawn)
            if ahead is not None:
                stack.callback(ahead.stop)
        with phases("normalize"):
            normalized = normalize.normalize(source.model, lowest_opset=lowered.lowest_opset(want))
            pinned = signature.pin(
                original.traits.inputs, shapes or {}, normalized.checked
            )  # now with dims of one size
            options = options._replace(pinned=pinned, typical=signature.typical(original.traits.inputs, pinned))
            if ort_min is not None:
                releases.check(normalized.model, oldest)
            before = work.of_model(normalized.model, options.typical) if archs else None
        job = _Job(source, original, original.traits, normalized, before, ahead, own, near)
        if want is not None:
            job = _lowered(job, want, calibration, options, stack.enter_context(temporary_folder()), phases, rows)
        wrong: dict[str, LeftOut] = {}  # families of rewrite rules that are wrong for this model
        while True:
            try:
                return Artifact(output, _make(job, options, output, wrong, phases))
            except RewriteFails as failure:
                wrong.update(failure.families)


class _Options(NamedTuple):
    """What `optimize` was asked for, as it is documented there. oldest: release of ONNX Runtime.

    pinned: sizes of dynamic dims that the user gave, which most runs have. typical: of all, to predict times at.
    """

    shapes: Mapping[str, tuple[int, ...]]
    archs: Sequence[str]
    verify: bool
    external_data: bool | None
    portable: bool
    oldest: str
    launch_choices: bool
    cache: Path | None
    emulate: bool
    goals: Goals
    pinned: signature.Sizes
    typical: signature.Sizes


class _Job(NamedTuple):
    """What to optimize. original: the user's model. source, traits: of the model that is verified against.

    before: the work of the user's model, where it is known. ahead: a run of `source` that was begun. data: the
    user's inputs to verify with. near: the float32 model that the original was quantized from, if one was given.
    lowered: where lower precision was asked for; then `source` is the converted model.
    """

    source: read.Source
    original: description.Original
    traits: Traits
    normalized: normalize.Normalized
    before: tuple[Work, ...] | None
    ahead: Ahead | None
    data: Sequence[UserData]
    near: FloatModel | None = None
    lowered: lowered.Lowered | None = None


def _lowered(
    job: _Job,
    want: lowered.Asked,
    calibration: Sequence[UserData],
    options: _Options,
    folder: Path,
    phases: Phases,
    caches: Sequence[Cache],
) -> _Job:
    """The job for the model of lower precision, which is written into `folder`. caches: that have its dtype."""
    with phases("precision"):
        # Normalization finds sizes that inputs must have, such as the channels that a weight states.
        traits = model_traits.completed(job.traits, model_traits.of(job.normalized.model))
        low = lowered.lower(
            job.source, job.normalized.model, traits, want, folder=folder, shapes=options.shapes, ahead=job.ahead,
            data=calibration or job.data, verify=options.verify, caches=caches,
        )  # fmt: skip
        if low.source is None:
            kept = dataclasses.replace(job.normalized, notes=(*job.normalized.notes, *low.notes))
            return job._replace(normalized=kept, data=job.data or calibration, lowered=low)
        traits = model_traits.of(low.source.model)
        again = normalize.normalize(low.source.model)
    notes = tuple(dict.fromkeys((*job.normalized.notes, *again.notes, *low.notes)))
    converted = dataclasses.replace(again, notes=notes)
    return _Job(low.source, job.original, traits, converted, job.before, None, job.data or calibration, job.near, low)


def _make(job: _Job, options: _Options, output: Path, wrong: Mapping[str, LeftOut], phases: Phases) -> Manifest:
    """Write the artifact, without the rewrite rules that are `wrong`. RewriteFails where more of them are."""
    with temporary_folder() as scratch:
        with phases("rewrite"):
            rewriter = Rewriter(job.normalized.model, scratch, options.pinned, options.archs)
            forms = rewriter.forms(wrong, options.portable)
        fuser = Fuser(
            options.archs, options.pinned, options.typical, options.launch_choices, options.cache, phases
        )  # fmt: skip
        fused = fuser.fused(forms.model)
        with staging(output) as folder:
            build = _build(forms, fused, folder, options.external_data)
            with phases("package"):
                build.write()
            with phases("verify"):
                report = VerificationReport("skipped", reason="not asked for")
                if options.verify:
                    report = verify_and_leave_out(
                        build, job.source, job.traits, options.shapes, scratch, job.ahead, job.data, options.emulate,
                        phases.counting("verify"),
                    )  # fmt: skip
                precision = job.lowered.precision(build, scratch) if job.lowered is not None else None
                near = job.near and reference_quality.of_build(
                    job.near, build, scratch, data=job.data, shapes=options.shapes, goals=options.goals
                )
            with phases("package"):
                # After verification: what stands in the way of a CUDA graph depends on the model that is kept.
                unwritten = providers.write(folder, build.model, options.archs, options.shapes or None)
                files = hash_files(folder)
            manifest = description.manifest_of(
                job.original, build, archs=options.archs, rewritten=forms.rewritten, refusals=fused.plan.refusals,
                files=files, ort_min=options.oldest, verify=report,
                left_out=[*wrong.values(), *fused.left_out],
                notes=(*job.normalized.notes, *forms.notes, *unwritten), seconds=phases.seconds, precision=precision,
                reference=near,
                predicted=description.predicted(job.before, fused.after, options.typical, options.archs),
            )  # fmt: skip
            facts = report_facts.gather(job.original.counts, build.model, build.kernels, options.pinned)
            manifest = page.write(folder, manifest, facts)
            write_manifest(folder, manifest)
    return manifest


def _check_goals(goals: Goals, want: lowered.Asked | None, reference: StrPath | None, verify: bool) -> None:
    """UsageError where what outputs have to keep against float32 has no float32 model, or is not measured."""
    names = [*goals.given, *(["reference"] if reference is not None else [])]
    if names and not verify:
        raise UsageError(f"{names[0]} is a part of verification, which was switched off")
    if goals.given and want is None and reference is None:
        raise UsageError(f"{names[0]} is against a float32 model: give reference, or a lower precision")


def _check_emulation(verify: bool, archs: Sequence[str]) -> None:
    """UsageError where CUDA kernels cannot be emulated, or there will be none."""
    if not verify:
        raise UsageError("emulating CUDA kernels is a part of verification, which was not asked for")
    if not archs:
        raise UsageError("emulating CUDA kernels takes an architecture that they are compiled for")
    gcc.compiler()


def _build(forms: Forms, fused: Fused, folder: Path, external_data: bool | None) -> Build:
    return Build(
        fused.model, fused.kernels, fused.fatbin, folder, external_data, forms.families, forms.with_families,
        portable=forms.portable,
    )  # fmt: skip
