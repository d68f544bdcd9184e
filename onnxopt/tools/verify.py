"""Verify: compare two models or artifacts by their paths, output by output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from onnxopt.artifact import archive
from onnxopt.artifact.folder import temporary_folder
from onnxopt.artifact.open import open_artifact
from onnxopt.graph import read
from onnxopt.graph import traits as model_traits
from onnxopt.graph.traits import Traits
from onnxopt.verification.reference import NotRunnable
from onnxopt.verification.verify import VerificationReport, references, verify_model


def verify(
    original: str | Path,
    optimized: str | Path,
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    providers: Sequence[str] | None = None,
    seconds: float = 1.0,
) -> VerificationReport:
    """Compare two models, each a model file or an artifact, which runs with its library and again without it.

    shapes: sizes of inputs by name, or of dynamic dims by symbol. providers: ONNX Runtime's names, default the CPU's,
    and CUDA's where a device is usable. seconds: how long the original may run on a provider before no more cases are
    added. A difference is a report with status "failed", not an error. Raises ModelError, ArtifactError, UsageError.
    """
    model, original_library = _model_and_library(Path(original))
    candidate, library = _model_and_library(Path(optimized))
    source, other = read.load(model), read.load(candidate)
    traits, other_traits = model_traits.of(source.model), model_traits.of(other.model)
    if difference := _difference_of_names_and_dtypes(traits, other_traits):
        return VerificationReport("failed", reason=difference)
    traits = model_traits.with_bounds_of(traits, other_traits)
    with temporary_folder() as folder:
        try:
            originals = references(
                model,
                traits,
                folder=folder,
                model_bytes=source.bytes,
                shapes=shapes,
                providers=providers,
                seconds=seconds,
                library=original_library,
            )
        except NotRunnable as error:
            return VerificationReport("not_run", reason=str(error))
        return verify_model(originals, candidate, library)


def _model_and_library(path: Path) -> tuple[Path, Path | None]:
    if not path.is_dir() and not archive.is_archive(path):
        return path, None
    artifact = open_artifact(path)
    return artifact.model, artifact.library


def _difference_of_names_and_dtypes(a: Traits, b: Traits) -> str:
    """How the interfaces differ, "" where they do not. Dims may differ: two tools may declare them differently."""
    for kind, left, right in (("inputs", a.inputs, b.inputs), ("outputs", a.outputs, b.outputs)):
        one, other = ({t.name: t.dtype for t in tensors} for tensors in (left, right))
        if one != other:
            return f"{kind} are {one} and {other}"
    return ""
