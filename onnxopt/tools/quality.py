"""How near a model of lower precision is to another one, on the user's inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from onnxopt.artifact import archive
from onnxopt.artifact.folder import temporary_folder
from onnxopt.artifact.open import open_artifact
from onnxopt.errors import NotVerifiedError, UsageError
from onnxopt.graph import read
from onnxopt.graph import traits as model_traits
from onnxopt.runtime.sessions import RunError
from onnxopt.tools.verify import difference_of_names_and_dtypes
from onnxopt.verification.quality import Quality, quality_of
from onnxopt.verification.reference import NotRunnable
from onnxopt.verification.user_data import DataSource, check_alone, read_data
from onnxopt.verification.verify import references


def quality(
    reference: str | Path,
    model: str | Path,
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    providers: Sequence[str] | None = None,
    data: Sequence[DataSource] = (),
) -> tuple[Quality, ...]:
    """How near each output of `model`, a model file or an artifact, is to that of the model file `reference`.

    An artifact runs with its library and again without it. shapes: sizes of generated inputs by name, or of dynamic
    dims by symbol. providers: ONNX Runtime's names, default the CPU's, and CUDA's where a device is usable. data: your
    own inputs, .npz files or mappings from input name to array; generated ones say nothing about quality on real ones.

    Raises ModelError, ArtifactError, UsageError where the interfaces differ, and NotVerifiedError where one of the
    models does not run here.
    """
    check_alone(data, shapes)
    source = read.load(reference)
    traits = model_traits.of(source.model)
    path, library = _files(Path(model))
    if difference := difference_of_names_and_dtypes(traits, model_traits.of(read.load(path).model)):
        raise UsageError(f"{model}: is no form of {reference}: {difference}")
    with temporary_folder() as folder:
        try:
            originals = references(
                source.path, traits, folder=folder, model_bytes=source.bytes, shapes=shapes, providers=providers,
                data=read_data(data, traits.inputs),
            )  # fmt: skip
        except NotRunnable as error:
            raise NotVerifiedError(f"{reference}: does not run here: {error}") from error
        ways = [(original, used) for original in originals for used in dict.fromkeys((library, None))]
        try:
            return tuple(row for original, used in ways for row in quality_of(original, path, used))
        except RunError as error:
            raise NotVerifiedError(f"{model}: does not run here: {error}") from error


def _files(model: Path) -> tuple[Path, Path | None]:
    """The model file, and the library of an artifact."""
    if not model.is_dir() and not archive.is_archive(model):
        return model, None
    artifact = open_artifact(model)
    return artifact.model, artifact.library
