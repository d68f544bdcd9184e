"""The new folder out of the artifacts of its models: files in their places, one library, and the record."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path

import onnx

from onnxopt import versions
from onnxopt.artifact import layout
from onnxopt.artifact.folder import hash_files, write_manifest
from onnxopt.codegen import kernels_json
from onnxopt.graph import external_data, write
from onnxopt.pipeline import rerun
from onnxopt.tools.folders.contents import OURS, Contents
from onnxopt.tools.folders.result import FolderModel, OptimizedFolder

LIBRARY = f"{OURS}/{layout.LIBRARY_PATH}"
RECORD = layout.FOLDER_RECORD
_MODEL_FILES = (layout.REPORT, layout.PROVIDERS)  # what an artifact's folder in onnxopt/models/ keeps


def assemble(contents: Contents, models: Sequence[FolderModel], artifacts: Path, target: Path) -> tuple[str, ...]:
    """Make `target` the copy of the folder with its optimized models. Returns the files that were copied as they were.

    artifacts: a folder with an artifact for each optimized model, by the model's path; it is removed.
    Where no model was optimized, the error of one of them.
    """
    done = [model for model in models if model.manifest is not None]
    errors = [model.error for model in models if model.error is not None]
    if not done:
        worst = max(errors, key=lambda error: error.exit_code)
        raise type(worst)(f"{contents.folder}: none of its {len(models)} models could be optimized; {worst}")
    others = _others(contents, done)
    unoptimized = [model.path for model in models if model.manifest is None]
    for name in (*others, *unoptimized):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(contents.folder / name, target / name)
    used = {*others, *contents.models}
    for model in done:
        used.add(_place_model(contents, model.path, artifacts / model.path, target, used))
    _write_library([artifacts / model.path for model in done], target / OURS / layout.LIBRARY_FOLDER)
    for model in done:
        _write_model_record(artifacts / model.path, model, target)
    shutil.rmtree(artifacts)
    return others


def write_record(target: Path, result: OptimizedFolder, request: rerun.Request | None) -> None:
    """Write folder.json. request: what the folder was made of."""
    sizes = {name: path.stat().st_size for name, path in rerun.files_in(target).items()}
    document = {"onnxopt": versions.onnxopt(), **result.to_json(), "files": sizes, "request": request}
    (target / RECORD).write_text(json.dumps(document, indent=2) + "\n", "utf-8")


def _others(contents: Contents, done: Sequence[FolderModel]) -> tuple[str, ...]:
    """All files but models, and but those that only optimized models have their old weights in."""
    optimized = {model.path for model in done}
    old = {file for name, files in contents.weights.items() if name in optimized for file in files}
    old -= {file for name, files in contents.weights.items() if name not in optimized for file in files}
    return tuple(name for name in contents.others if name not in old)


def _place_model(contents: Contents, name: str, artifact: Path, target: Path, used: Collection[str]) -> str:
    """Move a model to its name, and its weights to a name that is not taken. Returns the path of the last file."""
    model, data = artifact / layout.MODEL, artifact / write.DATA_FILE
    (target / name).parent.mkdir(parents=True, exist_ok=True)
    if not data.is_file():
        model.rename(target / name)
        return name
    data_name = next(path for path in _data_names(contents, name) if path not in used)
    proto = onnx.load(model, load_external_data=False)
    location = Path(data_name).relative_to(Path(name).parent).as_posix()
    for tensor in external_data.tensors_of(proto):
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location
    (target / name).write_bytes(proto.SerializeToString(deterministic=True))
    data.rename(target / data_name)
    return data_name


def _data_names(contents: Contents, name: str) -> itertools.chain[str]:
    """Names for the weights of a model: the one that they had beside the model, else as optimum names them."""
    own = [path for path in contents.weights[name][:1] if Path(path).parent == Path(name).parent]
    return itertools.chain(own, [f"{name}_data"], (f"{name}_data{k}" for k in itertools.count(1)))


def _write_library(artifacts: Sequence[Path], folder: Path) -> None:
    """One library with the kernels of all artifacts, each in a folder that is named after its digest."""
    digests: list[str] = []
    folder.mkdir(parents=True)
    for artifact in artifacts:
        library = artifact / layout.LIBRARY_FOLDER
        if not library.is_dir():
            continue
        digest = kernels_json.digest_of((library / layout.KERNELS).read_text("utf-8"))
        if digest in digests:
            continue
        if not digests:
            (library / layout.LIBRARY).rename(folder / layout.LIBRARY)
        digests.append(digest)
        (folder / digest).mkdir()
        for name in (layout.KERNELS, layout.FATBIN):
            if (library / name).is_file():
                (library / name).rename(folder / digest / name)
    if digests:
        (folder / layout.KERNELS).write_text(kernels_json.merged(digests), "utf-8")
    else:
        folder.rmdir()


def _write_model_record(artifact: Path, model: FolderModel, target: Path) -> None:
    """What `explain` and people read of one model: an artifact's folder without model and library."""
    assert model.manifest is not None and model.record is not None
    folder = target / model.record
    folder.mkdir(parents=True)
    for name in _MODEL_FILES:
        (artifact / name).rename(folder / name)
    write_manifest(folder, model.manifest.model_copy(update={"files": hash_files(folder)}))
