"""The artifact of a normalized model: rewritten, fused, compiled and verified at the same time, and written."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import onnx_ir as ir

from onnxopt.artifact import layout, result_table
from onnxopt.artifact import result as results
from onnxopt.artifact.folder import hash_files, staging, write_manifest
from onnxopt.artifact.manifest import LeftOut, Manifest
from onnxopt.artifact.report import facts as report_facts
from onnxopt.artifact.report import page
from onnxopt.artifact.result import Result
from onnxopt.artifact.session import load
from onnxopt.fusion.work import Work
from onnxopt.graph import normalize, read, signature
from onnxopt.graph.traits import Traits
from onnxopt.phases import Phases
from onnxopt.pipeline import description, fixing, reference_quality
from onnxopt.pipeline.build import Baseline, Build, verify_and_leave_out
from onnxopt.pipeline.forms import Forms, Rewriter
from onnxopt.pipeline.fused import Fused, Fuser
from onnxopt.pipeline.options import Options
from onnxopt.pipeline.precision import Lowered
from onnxopt.pipeline.reference_quality import FloatModel
from onnxopt.pipeline.reused import Reused
from onnxopt.runtime import providers, releases, sessions
from onnxopt.runtime.sessions import Session
from onnxopt.verification.early_reference import EarlyRun
from onnxopt.verification.sampling.user_data import UserData
from onnxopt.verification.verify import VerificationReport

_ATTEMPTS = 5  # at regions that spill registers; each time none keeps more than half of one


@dataclasses.dataclass(frozen=True, repr=False)
class Artifact:
    """What optimize wrote: the folder, its manifest, and what changed, which repr shows as a table.

    Functions that take an artifact's path take this, too. unchanged: an earlier call made it, of the same files with
    the same options.
    """

    path: Path
    manifest: Manifest
    result: Result
    unchanged: bool = False

    def __repr__(self) -> str:
        return result_table.text(self.result)

    def _repr_html_(self) -> str:
        return result_table.html(self.result)

    def __fspath__(self) -> str:
        return str(self.path)

    def session(self, **options: Any) -> Session:
        """An onnxruntime.InferenceSession of the artifact. options: those of `onnxopt.load`."""
        return load(self.path, **options)


@runtime_checkable
class Follower(Protocol):
    """Progress that gets the result, too."""

    def __call__(self, phase: str, detail: str, done: int, total: int) -> None: ...

    def result(self, artifact: Artifact) -> None:
        """Called once the result is known, while kernels may still be compiled.

        The artifact has no files yet, and its library no bytes. Called again where kernels that need too many registers
        are split.
        """


class Job(NamedTuple):
    """What to optimize. original: the user's model. source, traits: of the model that is verified against.

    pinned: sizes of dynamic dims that most runs have. typical: of all, to predict times at. before: the work of the
    user's model, where it is known. composed: the source before normalization, where that decomposed operators of ONNX
    Runtime's optimizers. lowered: where lower precision was asked for; then `source` is the converted model. reused: as
    for `artifact_of`. The others are those of the model as it was read.
    """

    source: read.Source
    original: description.Original
    traits: Traits
    normalized: normalize.Normalized
    shapes: Mapping[str, tuple[int, ...]]
    pinned: signature.Sizes
    typical: signature.Sizes
    before: tuple[Work, ...] | None
    data: Sequence[UserData]
    near: FloatModel | None
    early: EarlyRun | None
    composed: ir.Model | None = None
    lowered: Lowered | None = None
    reused: Reused | None = None


class _Spills(Exception):
    """Kernels need more registers than a GPU has. regions: theirs, by the names of their nodes."""

    def __init__(self, regions: frozenset[frozenset[str]]) -> None:
        super().__init__("kernels spill registers")
        self.regions = regions


@dataclasses.dataclass(frozen=True)
class Maker:
    """Writes the artifact, without the rewrite rules that are `wrong`.

    gpus: that the user named, by key. replace: the artifact that may be there. scratch: for temporary files. follower:
    gets the result.
    """

    job: Job
    options: Options
    output: Path
    wrong: Mapping[str, LeftOut]
    phases: Phases
    gpus: Sequence[str]
    replace: bool
    scratch: Path
    follower: Follower | None

    def make(self) -> Artifact:
        """RewriteFails where more rewrite rules are wrong."""
        job, options, archs = self.job, self.options, self.options.archs or ()
        with self.phases("rewrite"):
            rewriter = Rewriter(job.normalized.model, self.scratch, job.pinned, archs)
            forms = rewriter.forms(self.wrong, options.portable)
        cache = None if options.cache is None else Path(options.cache)
        fuser = Fuser(archs, job.pinned, job.typical, options.launch_choices, cache, self.phases, job.reused)
        spilled = frozenset[frozenset[str]]()
        for remaining in reversed(range(_ATTEMPTS)):
            fused = fuser.fused(forms.model, spilled)
            try:
                with fused.code:
                    return self._written(rewriter, fuser, forms, fused, may_split=remaining > 0)
            except _Spills as spills:
                spilled |= spills.regions
        raise AssertionError("the last attempt splits nothing")

    def _written(self, rewriter: Rewriter, fuser: Fuser, forms: Forms, fused: Fused, *, may_split: bool) -> Artifact:
        """The artifact of fused kernels, which are compiled while the rest is done. _Spills where may_split."""
        job, options, phases, archs = self.job, self.options, self.phases, self.options.archs or ()
        with phases("dims"):
            gain = fixing.gain(fused.launches, rewriter, fuser, job.traits.inputs, self.wrong)
        with staging(self.output, replace=self.replace) as folder:
            build = Build(
                fused.model, fused.kernels, fused.code, archs, folder, options.external_data, forms.families,
                forms.with_families, portable=forms.portable,
            )  # fmt: skip
            with phases("package"):
                build.write()
            if fused.code.is_done or options.emulate or sessions.cuda_is_usable():  # which runs the machine code
                self._compiled(build, fused, may_split)
            comparison = self._compared(build)
            with phases("package"):
                # After verification: what stands in the way of a CUDA graph depends on the model that is kept.
                unwritten = providers.write(folder, build.model, archs, job.shapes or None)
                files = hash_files(folder)
            optimization = description.Optimization(
                forms.rewritten,
                fused.plan.refusals,
                [*self.wrong.values(), *fused.left_out],
                (*job.normalized.notes, *forms.notes, *unwritten),
                description.predicted(job.before, fused.after, job.typical, archs),
                gain,
                fused.split,
            )
            manifest = description.manifest_of(
                job.original, build, optimization, comparison, archs=archs,
                ort_min=releases.release(options.ort_min), files=files, seconds=phases.seconds,
            )  # fmt: skip
            run = description.run_of(fused, build)
            facts = report_facts.gather(
                job.original.counts, build.model, build.kernels, job.pinned, job.typical, gpus=self.gpus, run=run
            )
            if self.follower is not None:
                self.follower.result(Artifact(self.output, manifest, results.of(self.output, manifest, facts)))
            if build.fatbin is None:
                self._compiled(build, fused, may_split)
            with phases("package"):
                build.complete()
                if job.reused is not None:
                    job.reused.copy_measured(folder)
                library = hash_files(folder / layout.LIBRARY_FOLDER)
            files |= {f"{layout.LIBRARY_FOLDER}/{name}": file for name, file in library.items()}
            manifest = manifest.model_copy(update={"files": files, "seconds": phases.seconds})
            manifest = page.write(folder, manifest, facts)
            write_manifest(folder, manifest)
        return Artifact(self.output, manifest, results.of(self.output, manifest, facts))

    def _compared(self, build: Build) -> description.Comparison:
        """How what was built compares with the original, without the fusions that are wrong."""
        job, options = self.job, self.options
        with self.phases("verify"):
            report = VerificationReport("skipped", reason="not asked for")
            if options.verify:
                baseline = Baseline(job.source, job.traits, job.shapes, job.data, job.early)
                progress = self.phases.counting("verify")
                report = verify_and_leave_out(
                    build, baseline, self.scratch, emulated=options.emulate, progress=progress
                )
            record = job.lowered.precision(build, self.scratch) if job.lowered is not None else None
            near = job.near and reference_quality.build_quality(
                job.near, build, self.scratch, data=job.data, shapes=job.shapes, goals=options.goals
            )
        return description.Comparison(report, record, near)

    def _compiled(self, build: Build, fused: Fused, may_split: bool) -> None:
        """Wait for the machine code. _Spills where kernels do whose regions can be split."""
        with self.phases("compile"):
            made = fused.code.wait(self.phases.counting("compile"))
        if may_split and (spilling := fused.spilling(made)):
            raise _Spills(spilling)
        build.fatbin = None if made is None else made.fatbin
