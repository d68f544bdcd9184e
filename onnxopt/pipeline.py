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
from onnxopt.artifact import description
from onnxopt.artifact.build import Build, RewriteDisagrees, left_out, verify_and_leave_out
from onnxopt.artifact.folder import check_output, hash_files, staging, temporary_folder, write_manifest
from onnxopt.artifact.manifest import Manifest
from onnxopt.artifact.report import facts as report_facts
from onnxopt.artifact.report import page
from onnxopt.codegen import compiler_report, generate
from onnxopt.codegen.nvrtc import check_archs, compiled
from onnxopt.errors import ModelError, UsageError, step
from onnxopt.fusion import entry_points, fuse, outline
from onnxopt.fusion.lower import lower
from onnxopt.fusion.region import FusionPlan, Kernel
from onnxopt.graph import normalize, read, rewrite, signature
from onnxopt.graph.passes import products_of_codes
from onnxopt.graph.passes.products_of_codes import ProductsOfCodesPass
from onnxopt.graph.passes.transposed_weights import TransposeWeightsPass
from onnxopt.kinds import KINDS
from onnxopt.runtime import providers, releases
from onnxopt.verification.emulation import gcc
from onnxopt.verification.reference import Check
from onnxopt.verification.user_data import DataSource, check_alone, read_data
from onnxopt.verification.verify import VerificationReport, open_ahead

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
    data: Sequence[DataSource] = (),
    emulate: bool = False,
) -> Artifact:
    """Optimize the model file `model` into the new artifact folder `output`.

    shapes: sizes to verify at, by input ("ids": (8, 128)) or by symbolic dim ("batch": (8,)); the artifact stays
    dynamic. archs: GPU architectures to compile for ("sm_90", ...), default all supported ones; none with (). verify:
    compare with the original before anything is kept. external_data: weights beside the model, default only where it is
    above 2 GB. portable: also write model.portable.onnx, without operators of com.microsoft. ort_min: oldest ONNX
    Runtime that the artifact has to run on ("1.25"), default the oldest supported. launch_choices: also compile other
    launch shapes of each kernel, for `tune` to choose from. cache: folder of compiled kernels, default the user's.
    data: your own inputs to verify with, instead of generated ones: .npz files, or mappings from input name to array.
    emulate: verify the CUDA kernels too, each alone, compiled by g++ and run on the CPU at small sizes.

    Whatever goes wrong, nothing is left behind. Raises ModelError, UsageError, CompileError, VerificationError, and its
    subclass NotVerifiedError where ONNX Runtime does not run the original here, so that nothing can be compared.
    """
    output, phases = Path(output), _Phases(progress, str(model))
    archs, oldest = check_archs(archs), releases.release(ort_min)
    check_output(output)
    if emulate:
        _check_emulation(verify, archs)
    with phases("load"):
        source = read.load(model)
        normalize.refuse_optimized(source.model, source.path)
        original = description.of_source(source)
        signature.pin(original.traits.inputs, shapes or {})
        check_alone(data, shapes)
        own = read_data(data, original.traits.inputs)
        ahead = open_ahead(source.path, original.traits, source.bytes) if verify else None
    with phases("normalize"):
        normalized = normalize.normalize(source.model)
        if ort_min is not None:
            releases.check(normalized.model, oldest)

    wrong: dict[str, Check] = {}  # families of rewrite rules that verification found to be wrong for this model
    while True:
        with temporary_folder() as scratch:
            forms = _rewrite(normalized.model, scratch, wrong, portable, bool(archs), phases)
            fused = _fuse(forms.model, archs, launch_choices, cache, phases)
            try:
                with staging(output) as folder:
                    build = _build(forms, fused, folder, external_data)
                    with phases("package"):
                        build.write()
                    with phases("verify"):
                        report = VerificationReport("skipped", reason="not asked for")
                        if verify:
                            report = verify_and_leave_out(
                                build, source, original.traits, shapes or {}, scratch, ahead, own, emulate
                            )
                    with phases("package"):
                        # After verification: what stands in the way of a CUDA graph depends on the model that is kept.
                        unwritten = providers.write(folder, build.model, archs, shapes)
                        files = hash_files(folder)
                    manifest = description.manifest_of(
                        original, build, archs=archs, rewritten=forms.rewritten, refusals=fused.plan.refusals,
                        files=files, ort_min=oldest, verify=report,
                        left_out=[left_out(f"rewrite:{family}", (), check) for family, check in wrong.items()],
                        notes=(*normalized.notes, *forms.notes, *unwritten), seconds=phases.seconds,
                    )  # fmt: skip
                    facts = report_facts.gather(original.counts, build.model, build.kernels)
                    manifest = page.write(folder, manifest, facts)
                    write_manifest(folder, manifest)
                return Artifact(output, manifest)
            except RewriteDisagrees as disagreement:
                wrong.update(disagreement.families)


def _check_emulation(verify: bool, archs: Sequence[str]) -> None:
    """UsageError where CUDA kernels cannot be emulated, or there will be none."""
    if not verify:
        raise UsageError("emulating CUDA kernels is a part of verification, which was not asked for")
    if not archs:
        raise UsageError("emulating CUDA kernels takes an architecture that they are compiled for")
    gcc.compiler()


class _Forms(NamedTuple):
    """What rewriting makes of the normalized model. portable: without operators of com.microsoft, if asked for.

    with_families(names): the normalized model with only these families of rules applied. notes: for the user.
    """

    model: ir.Model
    portable: ir.Model | None
    rewritten: rewrite.Rewritten
    with_families: Callable[[Sequence[str]], ir.Model]
    notes: tuple[str, ...]


def _rewrite(
    normalized: ir.Model, scratch: Path, leave_out: Collection[str], portable: bool, cuda: bool, phases: _Phases
) -> _Forms:
    """Apply the pattern rules to copies of the normalized model. cuda: whether kernels run on GPUs too."""

    def with_families(names: Sequence[str]) -> ir.Model:
        copy = normalized.clone()
        rewrite.rewrite(copy, scratch, leave_out=set(rewrite.FAMILIES) - set(names))
        return copy

    with phases("rewrite"):
        model = normalized.clone()
        rewritten = rewrite.rewrite(model, scratch, leave_out=leave_out)
        TransposeWeightsPass()(model)  # after constant folding, which would transpose the weights back
        standard = model.clone() if portable else None  # after that pass, so that both forms share their weights
        notes = products_of_codes.notes(model) if cuda and ProductsOfCodesPass()(model).modified else ()
        if standard is not None:
            rewrite.to_portable(standard)
            standard.metadata_props[MARK] = versions.onnxopt()
    return _Forms(model, standard, rewritten, with_families, notes)


class _Fused(NamedTuple):
    model: ir.Model
    plan: FusionPlan
    kernels: tuple[Kernel, ...]
    fatbin: bytes | None
    spilling: set[frozenset[str]]  # see compiler_report.spilling; alternatives may spill, as `tune` measures them


def _fuse(
    rewritten: ir.Model, archs: Sequence[str], launch_choices: bool, cache: Path | None, phases: _Phases
) -> _Fused:
    """From the rewritten model, which stays as it is, to kernels. Regions that spill registers are split anew."""
    spilled: set[frozenset[str]] = set()  # names of the nodes of regions that need more registers than a GPU has
    for _ in range(_SPLITS):
        fused = _compile(rewritten.clone(), spilled, archs, launch_choices, cache, phases)
        if fused.spilling <= spilled:
            break
        spilled |= fused.spilling
    return fused


def _compile(
    model: ir.Model,
    spilled: Collection[frozenset[str]],
    archs: Sequence[str],
    launch_choices: bool,
    cache: Path | None,
    phases: _Phases,
) -> _Fused:
    """Replace the regions of the model by calls of functions, in place, and compile the functions' kernels."""
    # Regions refer to nodes of the model: nothing may change the model between fuse and replace.
    with phases("fuse"):
        plan = fuse.fuse(model, KINDS, spilled, cuda=bool(archs))
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
        image = compiled(text, archs, cache, advance)
    return _Fused(model, plan, kernels, image.fatbin, compiler_report.spilling(own, image.usage))


def _build(forms: _Forms, fused: _Fused, folder: Path, external_data: bool | None) -> Build:
    families = tuple(family for family, count in forms.rewritten.applied.items() if count)
    return Build(
        fused.model,
        fused.kernels,
        fused.fatbin,
        folder,
        external_data,
        portable=forms.portable,
        families=families,
        rewritten=forms.with_families if families else None,
    )


class _Phases:
    """Times the phases, says which one begins, and names the one that fails. One that comes twice adds up.

    model: how messages call the model.
    """

    def __init__(self, progress: Progress | None, model: str):
        self.seconds: dict[str, float] = {}
        self.progress = progress
        self._model = model

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        if self.progress:
            self.progress(name, "")
        started = time.perf_counter()
        with step(f"{self._model}: the step '{name}'", RewriteDisagrees):
            try:
                yield
            except ModelError as error:
                if self._model in str(error):
                    raise
                raise type(error)(f"{self._model}: {error}") from error  # of a pass, which knows the graph alone
        self.seconds[name] = round(self.seconds.get(name, 0.0) + time.perf_counter() - started, 3)
