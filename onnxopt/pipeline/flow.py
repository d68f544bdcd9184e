"""The whole of onnxopt, top to bottom: a model file in, a verified artifact folder out."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Unpack

from onnxopt.artifact import manifest as manifests
from onnxopt.artifact import narrow_caches
from onnxopt.artifact import result as results
from onnxopt.artifact.folder import check_output, output_path, temporary_folder
from onnxopt.artifact.report import facts as report_facts
from onnxopt.errors import UsageError
from onnxopt.fusion import work
from onnxopt.graph import fixed_dims, model_source, normalize, read, signature
from onnxopt.graph import traits as model_traits
from onnxopt.graph.model_source import ModelSource
from onnxopt.graph.passes.contrib import decompose
from onnxopt.graph.shapes.multiples import hand_on_multiples
from onnxopt.paths import StrPath
from onnxopt.phases import Phases, Progress, in_notebook
from onnxopt.pipeline import description, precision, reference_quality, rerun
from onnxopt.pipeline.build import Baseline, NormalizedDiffers, RewriteFails
from onnxopt.pipeline.making import Artifact, Follower, Job, Maker
from onnxopt.pipeline.options import OptionChanges, Options
from onnxopt.pipeline.precision import Asked
from onnxopt.pipeline.readable_source import readable
from onnxopt.pipeline.reference_quality import FloatModel
from onnxopt.pipeline.reused import Reused, wrong_in
from onnxopt.runtime import archs as chosen_archs
from onnxopt.runtime import releases, time_limit
from onnxopt.verification.early_reference import EarlyRun
from onnxopt.verification.emulation import gcc
from onnxopt.verification.sampling.user_data import UserData, check_alone, read_data
from onnxopt.verification.verify import open_early


def optimize(
    model: ModelSource,
    output: StrPath,
    options: Options | None = None,
    *,
    example_inputs: Any = None,
    dynamic_shapes: Any = None,
    force: bool = False,
    progress: Progress | None = None,
    **changes: Unpack[OptionChanges],
) -> Artifact:
    """Optimize a model into the new artifact folder `output`.

    model: the path of a model file, its bytes, an onnx.ModelProto, an onnx_ir.Model, a torch.onnx.ONNXProgram, or a
    torch.nn.Module, which is exported with example_inputs (a tuple, one tensor, or a mapping of keywords) and
    dynamic_shapes (as torch.onnx.export takes it; default all shapes as given, with a warning; () without one).

    options: what to do besides the defaults. changes: fields of `Options` by name, in place of those of `options`:
    optimize("m.onnx", "m.optimized", archs=("sm_90",), precision="float16"). force: replace the artifact that is at
    `output`, once the new one is whole; without it one of the same model and options is left as it is. progress: is
    called as work is done, with the phase, a detail, and how much of it is done; default in a notebook: a line below
    the cell says so. If it has a method `result`, that gets the artifact once the result is known, while kernels may
    still be compiled: it has no files yet, and its library no bytes.

    On any failure no partial file remains. Raises ModelError, UsageError, CompileError, VerificationError, and its
    subclasses NotVerifiedError, where ONNX Runtime does not run the original here, or not in time, so that nothing can
    be compared, and DisagreementError, where an output misses what was asked for.
    """
    output = output_path(output)
    options = dataclasses.replace(options or Options(), **changes)
    names, options = options.archs or (), _checked(options)
    gpus = chosen_archs.named_gpus(names)
    want = precision.asked(options)
    _check_goals(options, want)
    if not force and isinstance(model, (str, os.PathLike)) and rerun.is_done(Path(model), output, options):
        manifest = manifests.load(output)
        facts = report_facts.read_facts(output, manifest)
        facts = dataclasses.replace(facts, gpus=tuple(gpus) or facts.gpus)
        return Artifact(output, manifest, results.of(output, manifest, facts), unchanged=True)
    check_output(output, replace=force)
    with contextlib.ExitStack() as stack:
        progress = progress or stack.enter_context(in_notebook())
        return artifact_of(model, output, options, (example_inputs, dynamic_shapes), gpus, force, progress)


def artifact_of(
    model: ModelSource,
    output: Path,
    options: Options,
    example: tuple[Any, Any] = (None, None),
    gpus: Sequence[str] = (),
    force: bool = False,
    progress: Progress | None = None,
    reused: Reused | None = None,
) -> Artifact:
    """Optimize a model into an artifact folder. options: with the names of architectures.

    example: inputs and dynamic shapes of a module. gpus: that the user named, by key. force: as for `optimize`.
    reused: the artifact whose kernels are taken; KernelsDiffer where the model gives others. Else as `optimize`.
    """
    want = precision.asked(options)
    with contextlib.ExitStack() as stack:
        in_memory = model_source.type_in_memory(model)
        if in_memory is not None and reused is not None:
            in_memory = reused.title
        phases = Phases(progress, in_memory or model_source.name_of(model), RewriteFails)
        folder = stack.enter_context(temporary_folder())
        with phases("load"):
            source = model_source.load(model, folder, *example)
            stack.enter_context(time_limit.runs_end_within(time_limit.limit_of(options.timeout, source.bytes)))
            opened = _opened(source, in_memory, options, want, folder)
            if opened.early is not None:
                stack.callback(opened.early.stop)
        with phases("normalize"):
            job = _normalized(opened, options, want)._replace(reused=reused)
        if want is not None:
            with phases("precision"):
                job = _lowered(job, opened, options, want, stack.enter_context(temporary_folder()))
        follower = progress if isinstance(progress, Follower) else None
        wrong = {**wrong_in(reused)}  # families of rewrite rules that are wrong for this model
        while True:
            try:
                with temporary_folder() as scratch:
                    return Maker(job, options, output, wrong, phases, gpus, force, scratch, follower).make()
            except RewriteFails as failure:
                wrong.update(failure.families)
            except NormalizedDiffers as failure:
                if job.composed is None:
                    raise
                job, wrong = _recomposed(job, want, failure), {}


class _Opened(NamedTuple):
    """A model that was read. original: the user's. source: the same, but for the dtype of caches that get a lower one.

    shapes: the user's, of dims that stay dynamic; pinned: the sizes that they state. data: the user's inputs to verify
    with. calibration: to measure ranges with. caches: inputs and outputs that get the lower precision too. near: the
    float32 model that the original was quantized from, if one was given. early: a run of `source` that was begun.
    """

    source: read.Source
    original: description.Original
    shapes: Mapping[str, tuple[int, ...]]
    pinned: signature.Sizes
    data: Sequence[UserData]
    calibration: Sequence[UserData]
    caches: Sequence[str]
    near: FloatModel | None
    early: EarlyRun | None


def _checked(options: Options) -> Options:
    """Options with the architectures that names stand for. UsageError for values that are wrong for every model."""
    archs = chosen_archs.named(options.archs)
    releases.release(options.ort_min)
    time_limit.check(options.timeout)
    if options.emulate:
        _check_emulation(options.verify, archs)
    return dataclasses.replace(options, archs=archs)


def _opened(source: read.Source, in_memory: str | None, options: Options, want: Asked | None, folder: Path) -> _Opened:
    """What is known before normalization. in_memory: the type of what a program gave in place of a file."""
    normalize.refuse_optimized(source.model, source.path)
    original = description.original_of(source, options, in_memory)
    if options.verify or want is not None:
        source = readable(source, folder / "readable")
    shapes = options.shapes or {}
    pinned = signature.pin(original.traits.inputs, shapes)
    if fixed := fixed_dims.chosen(options.fix, original.traits.inputs, pinned):
        shapes = fixed_dims.shapes_of_others(shapes, original.traits.inputs, fixed)
        fixed_dims.fix(source.model, fixed)
        original = dataclasses.replace(original, traits=model_traits.of(source.model))
        pinned = signature.pin(original.traits.inputs, shapes)
    calibration, data = (read_data(files, original.traits.inputs) for files in (options.calibrate, options.data))
    check_alone((*options.data, *options.calibrate), shapes)
    caches = narrow_caches.caches_of(source) if want is not None and want.caches else ()
    if want is not None and caches:
        source = narrow_caches.narrowed(source, caches, want.dtype, folder / "caches")
        original = dataclasses.replace(original, traits=narrow_caches.traits_of(source))
        calibration, data = (narrow_caches.narrowed_data(d, caches, want.dtype) for d in (calibration, data))
    near, early = None, None
    if options.reference is not None:
        near = reference_quality.opened(Path(options.reference), original.traits, source.path)
    if options.verify or want is not None:
        drawn = None if data or (want is not None and calibration) else pinned
        early = open_early(source.path, original.traits, source.bytes, drawn)
    return _Opened(source, original, shapes, pinned, data, calibration, caches, near, early)


def _normalized(opened: _Opened, options: Options, want: Asked | None) -> Job:
    source, original = opened.source, opened.original
    composed = source.model.clone() if decompose.may_apply(source.model) else None
    normalized = normalize.normalize(source.model, lowest_opset=precision.lowest_opset(want))
    pinned = signature.pin(original.traits.inputs, opened.shapes, normalized.checked)  # also dims of one size
    if options.ort_min is not None:
        releases.check(normalized.model, releases.release(options.ort_min))
    typical = signature.typical(original.traits.inputs, pinned)
    before = work.model_work(normalized.model, typical)
    launches = None
    if not work.has_bodies(normalized.model):
        launches = work.launches(normalized.model, (), work.shapes_at(normalized.model, typical))
    counts = dataclasses.replace(original.counts, launches=launches, moved=work.moved(before), works=before or ())
    return Job(
        source, dataclasses.replace(original, counts=counts), original.traits, normalized, opened.shapes, pinned,
        typical, before, opened.data, opened.near, opened.early, composed,
    )  # fmt: skip


def _recomposed(job: Job, want: Asked | None, failure: NormalizedDiffers) -> Job:
    """The job with operators of ONNX Runtime's optimizers as the source has them."""
    assert job.composed is not None
    normalized = normalize.normalize(job.composed, lowest_opset=precision.lowest_opset(want), decompose=False)
    note = f"operators of com.microsoft stay as they are; as standard ones they differ: {failure}"
    return job._replace(normalized=dataclasses.replace(normalized, notes=(*normalized.notes, note)), composed=None)


def _lowered(job: Job, opened: _Opened, options: Options, want: Asked, folder: Path) -> Job:
    """The job for the model of lower precision, which is written into `folder`."""
    # Normalization finds sizes that inputs must have, such as the channels that a weight states.
    traits = model_traits.completed(job.traits, model_traits.of(job.normalized.model))
    original = Baseline(job.source, traits, job.shapes, opened.calibration or job.data, job.early)
    low = precision.lower(original, job.normalized.model, want, folder, opened.caches)
    data = job.data or opened.calibration
    if low.source is None:
        normalized = dataclasses.replace(job.normalized, notes=(*job.normalized.notes, *low.notes))
        return job._replace(normalized=normalized, data=data, composed=None, lowered=low)
    traits = dataclasses.replace(model_traits.of(low.source.model), never_empty=low.never_empty)
    hand_on_multiples(job.normalized.model.graph, low.source.model.graph)  # what proves them may be gone by now
    again = normalize.normalize(low.source.model)
    notes = tuple(dict.fromkeys((*job.normalized.notes, *again.notes, *low.notes)))
    converted = dataclasses.replace(again, notes=notes)
    return job._replace(
        source=low.source, traits=traits, normalized=converted, data=data, early=None, composed=None, lowered=low
    )


def _check_goals(options: Options, want: Asked | None) -> None:
    """UsageError where what outputs have to keep against float32 has no float32 model, or is not measured."""
    names = [*options.goals.stated, *(["reference"] if options.reference is not None else [])]
    if names and not options.verify:
        raise UsageError(f"{names[0]} is a part of verification, which was switched off")
    if options.goals.stated and want is None and options.reference is None:
        raise UsageError(f"{names[0]} is against a float32 model: give reference, or a lower precision")


def _check_emulation(verify: bool, archs: Sequence[str]) -> None:
    """UsageError where CUDA kernels cannot be emulated, or there will be none."""
    if not verify:
        raise UsageError("emulating CUDA kernels is a part of verification, which was not asked for")
    if not archs:
        raise UsageError("emulating CUDA kernels takes an architecture that they are compiled for")
    gcc.compiler()
