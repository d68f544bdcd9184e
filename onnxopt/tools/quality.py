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
from onnxopt.tools.verify_options import VerifyOptions
from onnxopt.verification.lowering.goals import Goals, Quality
from onnxopt.verification.sampling.data_source import DataSource
from onnxopt.verification.sampling.user_data import check_alone, read_data


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
    options = VerifyOptions(shapes, data, providers, timeout=timeout)
    return compare_with(reference, model, Goals(), options).quality


def compare_with(reference: StrPath, model: StrPath, goals: Goals, options: VerifyOptions) -> ReferenceQuality:
    """As `quality`, with what was asked for, as an artifact keeps it. Missing a goal is no error.

    options: where it says to record, the result is kept in the manifest and the report of the artifact `model`, an
    unsigned folder. UsageError also where a goal is about a figure that no output has.
    """
    check_alone(options.data, options.shapes)
    time_limit.check(options.timeout)
    path, library = _files(Path(model))
    original = reference_quality.opened(Path(reference), model_traits.of(read.load(path).model), Path(model))
    own = read_data(options.data, original.traits.inputs)
    if options.record:
        recording.check_recordable(Path(model))
    with time_limit.runs_end_within(time_limit.limit_of(options.timeout, original.source.bytes)):
        rows = reference_quality.measured(
            original, path, library, data=own, shapes=options.shapes, providers=options.providers
        )
    goals.check_rows(rows)
    result = reference_quality.record(original, rows, own, goals)
    if options.record:
        recording.record_reference(Path(model), result)
    return result


def _files(model: Path) -> tuple[Path, Path | None]:
    """The model file, and the library of an artifact."""
    if not model.is_dir() and not archive.is_archive(model):
        return model, None
    artifact = open_artifact(model)
    return artifact.model, artifact.library
