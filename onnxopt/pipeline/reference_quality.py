"""How near a quantized model or its artifact is to the float32 model that it was made from."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from onnxopt.artifact.folder import temporary_files, temporary_folder
from onnxopt.artifact.manifest import ReferenceQuality
from onnxopt.errors import NotVerifiedError, UsageError
from onnxopt.graph import fixed_dims, read
from onnxopt.graph import traits as model_traits
from onnxopt.graph.traits import Traits
from onnxopt.pipeline.build import Build
from onnxopt.pipeline.readable_source import readable
from onnxopt.runtime.sessions import RunError
from onnxopt.verification.coverage import Coverage, ModelFile
from onnxopt.verification.lowering.goals import Goals, Quality
from onnxopt.verification.lowering.quality import check_inputs, qualities_of, refuse_missed
from onnxopt.verification.refusals import original_runs
from onnxopt.verification.sampling.user_data import UserData
from onnxopt.verification.verify import references

_ADVICE = "quantize less of the model, or ask for less"


class FloatModel(NamedTuple):
    """The float32 model."""

    source: read.Source
    traits: Traits


def opened(path: Path, quantized: Traits, model: Path) -> FloatModel:
    """Read the float32 model of a quantized one. model: the quantized file, for messages.

    ModelError where it cannot be read, UsageError where the two have other inputs or outputs.
    """
    source = read.load(path)
    traits = model_traits.of(source.model)
    if difference := model_traits.difference_of_names_and_dtypes(traits, quantized):
        raise UsageError(f"{model}: is no form of {path}: {difference}")
    fixed = fixed_dims.fixed_between(traits.inputs, quantized.inputs)
    return FloatModel(source, dataclasses.replace(traits, checked={**traits.checked, **fixed}))


def measured(
    float_model: FloatModel,
    model: Path,
    library: Path | None,
    *,
    data: Sequence[UserData],
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    providers: Sequence[str] | None = None,
) -> tuple[Quality, ...]:
    """The figures of each output of the model file `model`, with its library, if it has one, and without.

    data: the user's inputs, else inputs are drawn, at `shapes`. NotVerifiedError where one of the two does not run,
    ModelError where ONNX Runtime does not open the float32 model.
    """
    source = float_model.source
    with temporary_folder() as folder, temporary_files():
        with original_runs(source):
            source = readable(source, folder / "readable")
            file = ModelFile(source.path, float_model.traits, source.bytes)
            originals = references(file, Coverage(file.pinned(shapes), data), folder=folder, providers=providers)
        for original in originals:
            check_inputs(original)
        try:
            return qualities_of(originals, model, library)
        except RunError as error:
            raise NotVerifiedError(f"{model}: does not run here: {error}") from error


def record(
    float_model: FloatModel, rows: Sequence[Quality], data: Sequence[UserData], goals: Goals
) -> ReferenceQuality:
    """The manifest's record of the figures."""
    return ReferenceQuality(
        name=float_model.source.path.name,
        sha256=float_model.source.sha256,
        data=tuple(item.name for item in data),
        quality=tuple(rows),
        **dataclasses.asdict(goals),
    )


def build_quality(
    float_model: FloatModel,
    build: Build,
    scratch: Path,
    *,
    data: Sequence[UserData],
    shapes: Mapping[str, tuple[int, ...]],
    goals: Goals,
) -> ReferenceQuality:
    """The record of an artifact that is being made. DisagreementError where an output misses a goal."""
    with build.loadable_library(scratch) as library:
        rows = measured(float_model, build.model_file, library, data=data, shapes=shapes)
    refuse_missed(rows, goals, _ADVICE)
    return record(float_model, rows, data, goals)
