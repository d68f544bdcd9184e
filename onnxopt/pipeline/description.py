"""What the manifest says of an artifact: the original, taken before it is changed, and what was made of it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from onnxopt import versions
from onnxopt.artifact import manifest as manifests
from onnxopt.artifact.manifest import File, Fixing, LeftOut, Manifest, Precision, Predicted, ReferenceQuality
from onnxopt.artifact.report import facts as report_facts
from onnxopt.background import in_background
from onnxopt.fusion import work
from onnxopt.fusion.work import Work
from onnxopt.graph import read
from onnxopt.graph import traits as model_traits
from onnxopt.graph.refusal import Refusal
from onnxopt.graph.rewrite import Rewritten
from onnxopt.graph.traits import Traits
from onnxopt.pipeline import rerun
from onnxopt.pipeline.build import Build
from onnxopt.pipeline.fused import Fused
from onnxopt.pipeline.options import Options
from onnxopt.runtime import predicted as prediction
from onnxopt.runtime import releases
from onnxopt.verification.verify import VerificationReport


def predicted(
    before: Sequence[Work] | None, after: Sequence[Work] | None, sizes: Mapping[str, int], archs: Sequence[str]
) -> Predicted | None:
    """The predicted times of a model's kernels before and after optimizing; None where either is unknown."""
    if before is None or after is None or not archs:
        return None
    return Predicted(sizes=dict(sizes), times=prediction.times(before, after, archs))


@dataclasses.dataclass(frozen=True)
class Original:
    """The original before normalization, which changes the model in place.

    source, request: wait for the hashes of files. request: of the artifact, None where something was given in memory.
    """

    traits: Traits
    counts: report_facts.Graph
    source: Callable[[], manifests.Source]
    request: Callable[[], manifests.Request | None]


def original_of(source: read.Source, options: Options, in_memory: str | None = None) -> Original:
    """What the manifest and the report say of a model that was just read; its hash is computed in the background.

    in_memory: the type of what a program gave in place of a file.
    """
    model, sha256 = source.model, in_background(lambda: source.sha256)
    request = in_background(lambda: None if in_memory else _request(source.path, options))
    header = functools.partial(
        manifests.Source,
        name=in_memory or source.path.name,
        path=None if in_memory else str(source.path.absolute()),
        bytes=source.bytes,
        producer=f"{model.producer_name or ''} {model.producer_version or ''}".strip(),
        ir_version=model.ir_version,
        opsets=dict(sorted(model.opset_imports.items())),
    )
    return Original(
        model_traits.of(model), report_facts.count(model), lambda: header(sha256=sha256.result()), request.result
    )


def _request(model: Path, options: Options) -> manifests.Request | None:
    sources = rerun.files_of(model, read.external_files(model))
    if options.reference is not None:
        reference = Path(options.reference)
        sources |= rerun.files_of(reference, read.external_files(reference), "reference")
    asked = rerun.request(options, sources)
    return None if asked is None else manifests.Request(**asked)


def run_of(fused: Fused, build: Build) -> report_facts.Run:
    """What a run of the artifact takes, predicted; its kernels are not known where verification left fusions out."""
    if work.has_bodies(build.model):
        return report_facts.UNKNOWN
    kept = {kernel.name for kernel in build.kernels}
    returned = [site.traffic for kernel in fused.kernels if kernel.name not in kept for site in kernel.sites]
    launches = fused.launches + sum(t.launches_before - t.launches_after for t in returned)
    more = [
        None if t.bytes_before is None or t.bytes_after is None else t.bytes_before - t.bytes_after for t in returned
    ]
    moved = work.moved(fused.after)
    moved = None if moved is None or None in more else moved + sum(m or 0 for m in more)
    return report_facts.Run(launches, moved, () if build.left_out else fused.after or ())


class Optimization(NamedTuple):
    """What rewriting and fusing did. refusals: of fusing. left_out: before verification. notes: of all other steps.

    predicted: times of all fusions, also of those that were left out later. fixing: what fixed dims would save. split:
    the nodes of regions that were split.
    """

    rewritten: Rewritten
    refusals: Sequence[Refusal]
    left_out: Sequence[LeftOut]
    notes: Sequence[str]
    predicted: Predicted | None
    fixing: Fixing | None
    split: Iterable[frozenset[str]]


class Comparison(NamedTuple):
    """How the artifact compares with the original, and with float32.

    precision: how the original was lowered, if it was. reference: how near the artifact is to the float32 model, if
    there is one.
    """

    verify: VerificationReport
    precision: Precision | None
    reference: ReferenceQuality | None


def manifest_of(
    original: Original,
    build: Build,
    optimization: Optimization,
    comparison: Comparison,
    *,
    archs: Sequence[str],
    ort_min: str,
    files: dict[str, File],
    seconds: dict[str, float],
) -> Manifest:
    """The manifest of an artifact. It has no predicted times where fusions were left out, or there are none."""
    archs = tuple(archs) if build.has_code else ()
    nothing = () if build.kernels else ("nothing was fused: the artifact is the normalized model, without a library",)
    return Manifest(
        onnxopt=versions.onnxopt(),
        versions=versions.dependencies(),
        requires=releases.of(build.model, library=bool(build.kernels), archs=archs),
        source=original.source(),
        ir_version=build.model.ir_version,
        opsets=dict(sorted(build.model.opset_imports.items())),
        inputs=original.traits.inputs,
        outputs=original.traits.outputs,
        archs=archs,
        rewrites=optimization.rewritten.applied,
        kernels=manifests.kernels(build.kernels),
        refusals=(*optimization.rewritten.refusals, *optimization.refusals),
        traffic=manifests.totals(build.kernels),
        files=files,
        ort_min=ort_min,
        left_out=(*optimization.left_out, *build.left_out),
        **comparison._asdict(),
        notes=(*optimization.notes, *nothing),
        seconds=seconds,
        predicted=optimization.predicted if build.kernels and not build.left_out else None,
        fixing=optimization.fixing,
        split=tuple(sorted(tuple(sorted(nodes)) for nodes in optimization.split)),
        request=original.request(),
    )
