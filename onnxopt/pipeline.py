"""The whole of onnxopt, top to bottom: a model file in, a verified artifact folder out."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import onnx_ir as ir

from onnxopt import versions
from onnxopt.artifact import manifest as manifests
from onnxopt.artifact.build import Build, RewriteDisagrees, verify_and_leave_out
from onnxopt.artifact.folder import check_output, hash_files, staging, temporary_folder, write_manifest
from onnxopt.artifact.manifest import File, LeftOut, Manifest
from onnxopt.artifact.report import facts as report_facts
from onnxopt.artifact.report import page
from onnxopt.background import in_background
from onnxopt.codegen import compiler_report, generate
from onnxopt.codegen.nvrtc import check_archs, compiled
from onnxopt.fusion import entry_points, fuse, outline
from onnxopt.fusion.lower import lower
from onnxopt.fusion.region import FusionPlan, Kernel
from onnxopt.graph import normalize, read, rewrite, signature, traits
from onnxopt.graph.passes.transposed_weights import TransposeWeightsPass
from onnxopt.kinds import KINDS
from onnxopt.runtime import providers, releases
from onnxopt.verification.reference import Check
from onnxopt.verification.verify import VerificationReport, describe_failure, open_ahead

_SPLITS = 5  # times that regions which spill registers are split; each time none keeps more than half of one
MARK = normalize.MARK

# progress(phase, detail): called when a phase starts with "", and as it advances (compile: each image that is done).
Progress = Callable[[str, str], None]


@dataclasses.dataclass(frozen=True)
class Artifact:
    """What optimize wrote: the folder, and its manifest."""

    path: Path
    manifest: Manifest


def optimize(
    model: str | Path,
    output: str | Path,
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    archs: Sequence[str] | None = None,
    verify: bool = True,
    external_data: bool | None = None,
    portable: bool = False,
    ort_min: str | None = None,
    launch_choices: bool = False,
    progress: Progress | None = None,
    cache: Path | None = None,
) -> Artifact:
    """Optimize the model file `model` into the new artifact folder `output`.

    shapes: sizes to verify at, by input ("ids": (8, 128)) or by symbolic dim ("batch": (8,)); the artifact stays
    dynamic. archs: GPU architectures to compile for ("sm_90", ...), default all supported ones; none with (). verify:
    compare with the original before anything is kept. external_data: weights beside the model, default only where it is
    above 2 GB. portable: also write model.portable.onnx, without operators of com.microsoft. ort_min: oldest ONNX
    Runtime that the artifact has to run on ("1.25"), default the oldest supported. launch_choices: also compile other
    launch shapes of each kernel, for `tune` to choose from. cache: folder of compiled kernels, default the user's.

    Whatever goes wrong, nothing is left behind. Raises ModelError, UsageError, CompileError, VerificationError.
    """
    output, phases = Path(output), _Phases(progress)
    archs, oldest = check_archs(archs), releases.release(ort_min)
    check_output(output)

    with phases("load"):
        source = read.load(model)
        normalize.refuse_optimized(source.model, source.path)
        given = _given(source)
        signature.pin(given.traits.inputs, shapes or {})
        ahead = open_ahead(source.path, given.traits, source.bytes) if verify else None
    with phases("normalize"):
        normalized = normalize.normalize(source.model)
        if ort_min is not None:
            releases.check(normalized.model, oldest)

    left_out: dict[str, Check] = {}  # families of rewrite rules that verification found to be wrong for this model
    with temporary_folder() as scratch:
        while True:
            form = _form(normalized.model, scratch, left_out, portable, launch_choices, archs, phases, cache)
            try:
                with staging(output) as folder:
                    build = form.build(folder, external_data)
                    with phases("package"):
                        build.write()
                    with phases("verify"):
                        report = VerificationReport("skipped", reason="not asked for")
                        if verify:
                            report = verify_and_leave_out(build, source, given.traits, shapes or {}, scratch, ahead)
                    with phases("package"):
                        # After verification: what stands in the way of a CUDA graph depends on the model that is kept.
                        unwritten = providers.write(folder, form.model, archs, shapes)
                        files = hash_files(folder)
                    manifest = _manifest(
                        given,
                        form,
                        build,
                        tuple(archs),
                        files=files,
                        ort_min=oldest,
                        left_out=(*map(_left_out, left_out, left_out.values()), *build.left_out),
                        verify=report,
                        notes=_notes((*normalized.notes, *unwritten), build),
                        seconds=phases.seconds,
                    )
                    facts = report_facts.gather(given.counted, build.model, build.kernels)
                    manifest = page.write(folder, manifest, facts)
                    write_manifest(folder, manifest)
                return Artifact(output, manifest)
            except RewriteDisagrees as wrong:
                left_out.update(wrong.families)


@dataclasses.dataclass(frozen=True)
class _Form:
    """The model between normalize and package, and what each step had to say. rewritten_with: see Build.rewritten."""

    model: ir.Model
    portable: ir.Model | None
    rewritten: rewrite.Rewritten
    rewritten_with: Callable[[Sequence[str]], ir.Model]
    plan: FusionPlan
    kernels: tuple[Kernel, ...]
    fatbin: bytes | None

    def build(self, folder: Path, external_data: bool | None) -> Build:
        families = tuple(family for family, count in self.rewritten.applied.items() if count)
        return Build(
            self.model,
            self.kernels,
            self.fatbin,
            folder,
            external_data,
            portable=self.portable,
            families=families,
            rewritten=self.rewritten_with if families else None,
        )


def _form(
    normalized: ir.Model,
    scratch: Path,
    left_out: Collection[str],
    portable: bool,
    launch_choices: bool,
    archs: Sequence[str],
    phases: _Phases,
    cache: Path | None,
) -> _Form:
    """From the normalized model, which stays as it is, to kernels: rewrite, fuse, outline, generate, compile."""

    def rewritten_with(families: Sequence[str]) -> ir.Model:
        copy = normalized.clone()
        rewrite.rewrite(copy, scratch, leave_out=set(rewrite.FAMILIES) - set(families))
        return copy

    with phases("rewrite"):
        model = normalized.clone()
        rewritten = rewrite.rewrite(model, scratch, leave_out=left_out)
        TransposeWeightsPass()(model)  # after folding, which would turn them back
        plain = model.clone() if portable else None  # after it, so that both forms share their weights
        if plain is not None:
            rewrite.to_portable(plain)
            plain.metadata_props[MARK] = versions.onnxopt()
    spilled: set[frozenset[str]] = set()  # nodes of regions that need more registers than a GPU has
    for _ in range(_SPLITS):
        fused = _fused(model.clone(), spilled, launch_choices, archs, phases, cache)
        found = fused.spilling - spilled
        if not found:
            break
        spilled |= found  # split, until nothing spills
    return _Form(fused.model, plain, rewritten, rewritten_with, fused.plan, fused.kernels, fused.fatbin)


class _Fused(NamedTuple):
    model: ir.Model
    plan: FusionPlan
    kernels: tuple[Kernel, ...]
    fatbin: bytes | None
    spilling: set[frozenset[str]]  # see compiler_report.spilling; alternatives may spill, as `tune` measures them


def _fused(
    model: ir.Model,
    spilled: Collection[frozenset[str]],
    launch_choices: bool,
    archs: Sequence[str],
    phases: _Phases,
    cache: Path | None,
) -> _Fused:
    """The model with its regions outlined, in place, and their kernels compiled."""
    # Regions refer to nodes of the model: nothing may change the model between fuse and replace.
    with phases("fuse"):
        plan = fuse.fuse(model, KINDS, spilled)
    with phases("lower"):
        plan = lower(plan, model.opset_imports)
    with phases("outline"):
        functions = outline.functions(plan, model.opset_imports)
    with phases("entry_points"):
        own = entry_points.choose(functions, model.opset_imports, plan.shapes)
        kernels = tuple(map(entry_points.with_alternatives, own)) if launch_choices else own
    with phases("outline"):
        outline.replace(model, functions)
        model.metadata_props[MARK] = versions.onnxopt()
    with phases("generate"):
        text = generate.generate(kernels)
    with phases("compile"):
        if not archs or not any(k.variants for k in kernels):
            return _Fused(model, plan, kernels, None, set())
        advance = functools.partial(phases.progress, "compile") if phases.progress else None
        done = compiled(text, archs, cache, advance)
    return _Fused(model, plan, kernels, done.fatbin, compiler_report.spilling(own, done.usage))


def _left_out(family: str, check: Check) -> manifests.LeftOut:
    found = check.difference
    return manifests.LeftOut(
        name=f"rewrite:{family}",
        ops=(),
        reason=describe_failure(check),
        max_abs=found.max_abs if found else None,
        excess=found.excess if found else None,
    )


class _Phases:
    """Times the phases, and says which one begins. One that comes twice adds up."""

    def __init__(self, progress: Progress | None):
        self.seconds: dict[str, float] = {}
        self.progress = progress

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        if self.progress:
            self.progress(name, "")
        started = time.perf_counter()
        yield
        self.seconds[name] = round(self.seconds.get(name, 0.0) + time.perf_counter() - started, 3)


@dataclasses.dataclass(frozen=True)
class _Given:
    """The original as it was before normalization, which changes the model in place."""

    traits: traits.Traits
    counted: report_facts.Graph
    source: Callable[[], manifests.Source]


def _given(source: read.Source) -> _Given:
    model, sha256 = source.model, in_background(lambda: source.sha256)
    header = functools.partial(
        manifests.Source,
        name=source.path.name,
        path=str(source.path.absolute()),
        bytes=source.bytes,
        producer=f"{model.producer_name or ''} {model.producer_version or ''}".strip(),
        ir_version=model.ir_version,
        opsets=dict(sorted(model.opset_imports.items())),
    )
    return _Given(traits.of(model), report_facts.count(model), lambda: header(sha256=sha256.result()))


def _manifest(
    given: _Given,
    form: _Form,
    build: Build,
    archs: tuple[str, ...],
    *,
    files: dict[str, File],
    ort_min: str,
    left_out: tuple[LeftOut, ...],
    verify: VerificationReport,
    notes: tuple[str, ...],
    seconds: dict[str, float],
) -> Manifest:
    """The manifest; what it has by keyword neither the graph nor its kernels tell."""
    kept = archs if build.fatbin is not None else ()
    return Manifest(
        onnxopt=versions.onnxopt(),
        versions=versions.dependencies(),
        requires=releases.of(form.model, library=bool(build.kernels), archs=kept),
        source=given.source(),
        ir_version=form.model.ir_version,
        opsets=dict(sorted(form.model.opset_imports.items())),
        inputs=given.traits.inputs,
        outputs=given.traits.outputs,
        archs=kept,
        rewrites=form.rewritten.applied,
        kernels=manifests.kernels(build.kernels),
        refusals=(*form.rewritten.refusals, *form.plan.refusals),
        traffic=manifests.totals(build.kernels),
        files=files,
        ort_min=ort_min,
        left_out=left_out,
        verify=verify,
        notes=notes,
        seconds=seconds,
    )


def _notes(normalization: Sequence[str], build: Build) -> tuple[str, ...]:
    nothing = () if build.kernels else ("nothing was fused: the artifact is the normalized model, without a library",)
    return (*normalization, *nothing)
