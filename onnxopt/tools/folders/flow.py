"""Optimizing a folder: each model becomes an artifact of its own, and the artifacts become the models of a copy.

The copy has the names of the original. A folder `onnxopt` is added to it:

    onnxopt/folder.json          what became of each model
    onnxopt/lib/                 one library; kernels.json names a folder beside it for the kernels of each model
    onnxopt/models/NAME.record/  manifest, report and provider options of a model
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Unpack

from onnxopt.artifact.folder import check_output, staging
from onnxopt.artifact.narrow_caches import NoCachesError
from onnxopt.errors import OnnxoptError, UsageError
from onnxopt.graph import read, signature
from onnxopt.paths import StrPath
from onnxopt.phases import Progress
from onnxopt.pipeline import flow, rerun
from onnxopt.pipeline.options import OptionChanges, Options
from onnxopt.tools.folders import assemble, result
from onnxopt.tools.folders.contents import Contents, contents_of
from onnxopt.tools.folders.result import FolderModel, OptimizedFolder

_ARTIFACTS = ".artifacts"  # in the new folder until its models are in their places
_SINGLE_MODEL_OPTIONS = ("data", "calibrate", "portable", "reference")
_Shapes = Mapping[str, tuple[int, ...]]


def optimize_folder(
    folder: StrPath,
    output: StrPath,
    options: Options | None = None,
    *,
    force: bool = False,
    progress: Progress | None = None,
    **changes: Unpack[OptionChanges],
) -> OptimizedFolder:
    """Optimize every .onnx file of a folder into the new folder `output`, as optimum and transformers load it.

    Names stay, in subfolders too, and all other files are copied. One library serves all models:
    output/onnxopt/lib/libonnxopt_ops.so, to be registered with the session options that all their sessions share. A
    model that cannot be optimized or verified is copied unchanged, and listed with the reason.

    options, changes: as for `optimize`, but data, calibrate, portable and reference, which are for one model. Each
    model takes the shapes of its own inputs and dims; those without caches keep their inputs and outputs where `caches`
    was asked for. force: replace the optimized folder that is at `output`, once the new one is whole.

    UsageError where `folder` has no model or was optimized already, or `output` cannot be made. Where no model could be
    optimized, the error of the first one; then nothing is written.
    """
    options = dataclasses.replace(options or Options(), **changes)
    for name in _SINGLE_MODEL_OPTIONS:
        if getattr(options, name):
            raise UsageError(f"{folder}: {name} is for one model, not for a folder")
    folder, output = Path(folder), Path(output)
    if not force and folder.is_dir() and rerun.is_done(folder, output, options):
        return result.read(output)
    check_output(output, replace=force)
    if output.resolve().is_relative_to(folder.resolve()):
        raise UsageError(f"{output}: is in {folder}, which would be no longer what was given; choose another output")
    contents = contents_of(folder)
    sizes = _shapes_of(contents, options.shapes or {})
    with staging(output, replace=force) as staged:
        artifacts = staged / _ARTIFACTS
        artifacts.mkdir()
        models = tuple(
            _optimized(contents, name, artifacts, sizes[name], progress, options) for name in contents.models
        )
        if options.caches and not any(map(_has_caches, models)):
            raise NoCachesError(f"{folder}: no model that was optimized has caches; leave out caches")
        others = assemble.assemble(contents, models, artifacts, staged)
        library = staged / assemble.LIBRARY
        made = OptimizedFolder(output, models, others, output / assemble.LIBRARY if library.is_file() else None)
        assemble.write_record(staged, made, rerun.request(options, rerun.files_in(folder)))
    return made


def _has_caches(model: FolderModel) -> bool:
    precision = None if model.manifest is None else model.manifest.precision
    return precision is not None and bool(precision.caches)


def _shapes_of(contents: Contents, shapes: _Shapes) -> dict[str, _Shapes]:
    """The shapes of each model: those of its own inputs and dims. UsageError where a name is of no model."""
    if not shapes:
        return {name: {} for name in contents.models}
    by_model: dict[str, _Shapes] = {}
    for name in contents.models:
        try:
            inputs = signature.inputs_of(read.load(contents.folder / name).model)
        except OnnxoptError:  # optimizing it says what is wrong
            by_model[name] = {}
            continue
        names = {*(tensor.name for tensor in inputs), *signature.symbols(inputs)}
        by_model[name] = {key: shape for key, shape in shapes.items() if key in names}
    for key in shapes:
        if not any(key in model_shapes for model_shapes in by_model.values()):
            raise UsageError(f"shape of {key}: no model of {contents.folder} has an input or a dim of this name")
    return by_model


def _optimized(
    contents: Contents,
    name: str,
    artifacts: Path,
    shapes: _Shapes,
    progress: Progress | None,
    options: Options,
) -> FolderModel:
    """Make the artifact of one model, artifacts/NAME; what fails stays in the result."""
    title = f"{name} ({contents.models.index(name) + 1} of {len(contents.models)})"

    def advance(phase: str, detail: str, done: int, total: int) -> None:
        if progress:
            progress(phase, f"{title} {detail}".strip(), done, total)

    outside = True if contents.weights[name] and options.external_data is None else options.external_data
    options = dataclasses.replace(options, shapes=shapes, external_data=outside)
    model, output = contents.folder / name, artifacts / name
    try:
        try:
            artifact = flow.optimize(model, output, options, progress=advance)
        except NoCachesError:
            if len(contents.models) == 1:
                raise
            artifact = flow.optimize(model, output, options, progress=advance, caches=False)
    except OnnxoptError as error:
        if len(contents.models) == 1:
            raise
        return FolderModel(name, None, error)
    return FolderModel(name, artifact.manifest, None, artifact.result)
