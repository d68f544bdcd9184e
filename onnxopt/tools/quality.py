"""How near a model of lower precision is to another one, on the user's inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from onnxopt.artifact import archive
from onnxopt.artifact import record as recording
from onnxopt.artifact.manifest import ReferenceQuality
from onnxopt.artifact.open import open_artifact
from onnxopt.graph import read
from onnxopt.graph import traits as model_traits
from onnxopt.paths import StrPath
from onnxopt.pipeline import reference_quality
from onnxopt.runtime import time_limit
from onnxopt.verification.lowering.quality import Goals, Quality
from onnxopt.verification.sampling.user_data import DataSource, check_alone, read_data


def quality(
    reference: StrPath,
    model: StrPath,
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    providers: Sequence[str] | None = None,
    data: Sequence[DataSource] = (),
    timeout: float | None = None,
) -> tuple[Quality, ...]:
    """How near each output of `model`, a model file or an artifact, is to that of the model file `reference`.

    An artifact runs with its library and again without it. shapes: sizes of generated inputs by name, or of dynamic
    dims by symbol. providers: ONNX Runtime's names, default the CPU's, and CUDA's where a device is usable. data: your
    own inputs, .npz files or mappings from input name to array; generated ones say nothing about quality on real ones.

    timeout: seconds that one run of a model may take, as for `optimize`.

    Raises ModelError, ArtifactError, UsageError where the interfaces differ, and NotVerifiedError where one of the
    models does not run here, or not in time.
    """
    return compare_with(
        reference, model, Goals(), shapes=shapes, providers=providers, data=data, timeout=timeout
    ).quality


def compare_with(
    reference: StrPath,
    model: StrPath,
    goals: Goals,
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    providers: Sequence[str] | None = None,
    data: Sequence[DataSource] = (),
    timeout: float | None = None,
    record: bool = False,
) -> ReferenceQuality:
    """As `quality`, with what was asked for, as an artifact keeps it. Missing a goal is no error.

    record: keep it in the manifest and the report of the artifact `model`, an unsigned folder. UsageError also where a
    goal is about a figure that no output has.
    """
    check_alone(data, shapes)
    time_limit.check(timeout)
    path, library = _files(Path(model))
    original = reference_quality.opened(Path(reference), model_traits.of(read.load(path).model), Path(model))
    own = read_data(data, original.traits.inputs)
    if record:
        recording.check_recordable(Path(model))
    with time_limit.runs_end_within(time_limit.limit_of(timeout, original.source.bytes)):
        rows = reference_quality.measured(original, path, library, data=own, shapes=shapes, providers=providers)
    goals.check_rows(rows)
    found = reference_quality.record(original, rows, own, goals)
    if record:
        recording.record_reference(Path(model), found)
    return found


def _files(model: Path) -> tuple[Path, Path | None]:
    """The model file, and the library of an artifact."""
    if not model.is_dir() and not archive.is_archive(model):
        return model, None
    artifact = open_artifact(model)
    return artifact.model, artifact.library
