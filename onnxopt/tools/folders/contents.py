"""What a folder of models holds: its models, the files of their weights, and all other files."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from onnxopt import files
from onnxopt.artifact import layout
from onnxopt.errors import ModelError, UsageError
from onnxopt.graph import read

OURS = layout.RECORD_FOLDER  # the folder that is added to the optimized one
MODEL = ".onnx"  # how the names of models end


@dataclasses.dataclass(frozen=True)
class Contents:
    """The regular files of a folder, by their paths in it, sorted.

    weights: of each model, those of `others` that hold its weights; () for a model that cannot be read.
    """

    folder: Path
    models: tuple[str, ...]
    others: tuple[str, ...]
    weights: dict[str, tuple[str, ...]]


def contents_of(folder: Path) -> Contents:
    """UsageError where the folder has no model, was optimized already, or holds what is neither file nor folder."""
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder")
    if os.path.lexists(folder / OURS):
        raise UsageError(
            f"{folder}: has an entry `{OURS}`, which an optimized folder has; give the original folder, or rename it"
        )
    paths = sorted(_files(folder))
    models = tuple(name for name in paths if name.endswith(MODEL))
    if not models:
        exported = not any(name.endswith(read.WEIGHTS) for name in paths)
        export = "" if exported else f"; export its weights first: optimum-cli export onnx --model {folder} EXPORTED"
        raise UsageError(f"{folder}: is a folder without any {MODEL} file{export}")
    others = tuple(name for name in paths if not name.endswith(MODEL))
    real = {os.path.realpath(folder / name): name for name in others}
    weights = {name: tuple(real[path] for path in _external(folder / name) if path in real) for name in models}
    return Contents(folder, models, others, weights)


def _files(folder: Path) -> list[str]:
    """The paths of all files, links to files among them, as a cache of Hugging Face has them."""
    paths = []
    for root, folders, names in os.walk(folder, onerror=_refuse):
        for name in folders:
            if (path := Path(root, name)).is_symlink():
                raise UsageError(f"{path}: is a link to a folder; put the folder itself there")
        for name in names:
            path = Path(root, name)
            try:
                files.open_regular(path).close()
            except OSError as error:
                raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error
            paths.append(path.relative_to(folder).as_posix())
    return paths


def _refuse(error: OSError) -> None:
    raise UsageError(f"{error.filename}: cannot be read: {error.strerror or error}") from error


def _external(model: Path) -> tuple[str, ...]:
    try:
        return read.external_files(model)
    except ModelError:  # optimizing it says what is wrong
        return ()
