"""The whole of onnxopt, top to bottom: a model file in, a verified artifact folder out."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from onnxopt import (
    fuse,
    generate,
    loading,
    normalize,
    outline,
    package,
    providers,
    requirements,
    samples,
    traits,
    versions,
)
from onnxopt import manifest as manifests
from onnxopt.compile import check_archs, compile_cuda
from onnxopt.errors import UsageError
from onnxopt.manifest import Manifest
from onnxopt.passes.transposed_weights import TransposeWeightsPass
from onnxopt.repair import Build, verify_and_leave_out
from onnxopt.reporting import facts as report_facts
from onnxopt.reporting import page
from onnxopt.verification import Report

MARK = "onnxopt.version"  # metadata of every model that onnxopt wrote

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
    progress: Progress | None = None,
    cache: Path | None = None,
) -> Artifact:
    """Optimize the model file `model` into the new artifact folder `output`.

    shapes: sizes to verify at, by input ("ids": (8, 128)) or by symbolic dim ("batch": (8,)); the artifact stays
    dynamic. archs: GPU architectures to compile for ("sm_90", ...), default all of compile.ARCHS; none with (). verify:
    compare with the original before anything is kept. external_data: weights beside the model, default only where it is
    above 2 GB. cache: folder of compiled kernels, default the user's.

    Whatever goes wrong, nothing is left behind. Raises ModelError, UsageError, CompileError, VerificationError.
    """
    output, phases = Path(output), _Phases(progress)
    archs = check_archs(archs)
    package.check_output(output)

    with phases("load"):
        source = loading.load(model)
        _refuse_optimized(source)
        # Normalization changes the model in place, so what must not change is noted first.
        original, counted = traits.of(source.model), report_facts.count(source.model)
        header, sha256 = _source(source), _in_background(lambda: source.sha256)
        samples.pin(original.inputs, shapes or {})
    with phases("normalize"):
        normalized = normalize.normalize(source.model)
    with phases("fuse"):
        TransposeWeightsPass()(normalized.model)  # after folding, which would turn them back
        plan = fuse.fuse(normalized.model)
    with phases("outline"):
        # Regions refer to nodes of the model: nothing may change it between fuse and outline.
        kernels = outline.outline(normalized.model, plan)
        normalized.model.metadata_props[MARK] = versions.onnxopt()
    with phases("generate"):
        text = generate.generate(kernels)
    with phases("compile"):
        advance = functools.partial(progress, "compile") if progress else None
        fatbin = compile_cuda(text, archs, cache, advance) if archs and any(k.variants for k in kernels) else None

    with package.staging(output) as folder, tempfile.TemporaryDirectory(prefix="onnxopt.") as scratch:
        build = Build(normalized.model, kernels, fatbin, folder, external_data)
        with phases("package"):
            build.write()
        with phases("verify"):
            report = Report("skipped", reason="not asked for")
            if verify:
                report = verify_and_leave_out(build, source, original, shapes or {}, Path(scratch))
        with phases("package"):
            # After verification: which nodes stand in the way of a CUDA graph depends on the model that is kept.
            unwritten = providers.write(folder, normalized.model, archs, shapes)
            files = package.hash_files(folder)
        kept_archs = tuple(archs) if build.fatbin is not None else ()
        manifest = Manifest(
            onnxopt=versions.onnxopt(),
            versions=versions.dependencies(),
            requires=requirements.of(normalized.model, library=bool(build.kernels), archs=kept_archs),
            source=header(sha256=sha256.result()),
            ir_version=normalized.model.ir_version,
            opsets=dict(sorted(normalized.model.opset_imports.items())),
            inputs=original.inputs,
            outputs=original.outputs,
            files=files,
            archs=kept_archs,
            kernels=manifests.kernels(build.kernels),
            refusals=plan.refusals,
            left_out=tuple(build.left_out),
            traffic=manifests.totals(build.kernels),
            verify=report,
            notes=_notes((*normalized.notes, *unwritten), build),
            seconds=phases.seconds,
        )
        manifest = page.write(folder, manifest, report_facts.gather(counted, build.model, build.kernels))
        package.write_manifest(folder, manifest)
    return Artifact(output, manifest)


class _Phases:
    """Times the phases, and says which one begins. One that comes twice adds up."""

    def __init__(self, progress: Progress | None):
        self.seconds: dict[str, float] = {}
        self._progress = progress

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        if self._progress:
            self._progress(name, "")
        started = time.perf_counter()
        yield
        self.seconds[name] = round(self.seconds.get(name, 0.0) + time.perf_counter() - started, 3)


def _in_background(work: Callable[[], str]) -> concurrent.futures.Future[str]:
    """Hashing leaves the other core to the graph work."""
    executor = concurrent.futures.ThreadPoolExecutor(max_workers=1)
    future = executor.submit(work)
    executor.shutdown(wait=False)
    return future


def _source(source: loading.Source) -> functools.partial[manifests.Source]:
    """What the manifest says of the original, as it is before normalization; its hash is still to come."""
    model = source.model
    return functools.partial(
        manifests.Source,
        name=source.path.name,
        path=str(source.path.absolute()),
        bytes=source.bytes,
        producer=f"{model.producer_name or ''} {model.producer_version or ''}".strip(),
        ir_version=model.ir_version,
        opsets=dict(sorted(model.opset_imports.items())),
    )


def _notes(normalization: Sequence[str], build: Build) -> tuple[str, ...]:
    nothing = () if build.kernels else ("nothing was fused: the artifact is the normalized model, without a library",)
    return (*normalization, *nothing)


def _refuse_optimized(source: loading.Source) -> None:
    model = source.model
    if MARK in model.metadata_props or any(domain == outline.DOMAIN for domain, _, _ in model.functions):
        raise UsageError(f"{source.path}: is optimized already; give the original model")
