"""Export to an ONNX Runtime model package: one folder, from which ORT picks the variant of its execution provider.

    NAME.ortpackage/manifest.json                        schema 1.0: which components there are
    NAME.ortpackage/MODEL/component.json                 the variants: cpu, cuda, tensorrt
    NAME.ortpackage/MODEL/VARIANT/ort_info.json          model file and session options of a variant
    NAME.ortpackage/shared_assets/sha256-HEX/...         folders named by their content, which variants share

Source: the format's own description in ONNX Runtime, model_package/README.md and
onnxruntime/core/session/model_package/README.md (read at 1.31), and OrtModelPackageApi of the 1.31.1 wheel, with which
the tests open what is written here.

A package cannot name a custom-op library. So a session that ORT makes from the package alone runs the original nodes;
an application that registers the library on its own session options gets the kernels. ModelPackage_ResolveStringRef
turns additional_metadata.onnxopt.library into the library's path.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from onnxopt.artifact import layout
from onnxopt.artifact.folder import check_output, copy_checked, data_files, staging
from onnxopt.artifact.manifest import File
from onnxopt.artifact.open import Opened, open_artifact
from onnxopt.errors import UsageError
from onnxopt.paths import StrPath
from onnxopt.runtime import providers

SUFFIX = ".ortpackage"
_FORMAT = "1.0"
_ASSETS = "shared_assets"
_INFO = "ort_info.json"
# Session configuration that may stand in a package: what names output files is refused by ORT.
_FORBIDDEN = ("session.optimized_model_filepath", "session.enable_profiling")


def export_ort_package(artifact: StrPath, output: StrPath, *, name: str | None = None) -> Path:
    """Write an artifact as the new model package folder `output`, which must end in .ortpackage; returns its path.

    name: of the component, default that of the original's file. ArtifactError where the artifact is damaged,
    UsageError where the package cannot be written.
    """
    output = Path(output)
    if output.suffix != SUFFIX:
        raise UsageError(f"{output}: a model package's folder ends in {SUFFIX}")
    check_output(output)
    opened = open_artifact(artifact)
    name = name or re.sub(r"[^A-Za-z0-9_.-]", "_", Path(opened.manifest.source.name).stem)
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name) or name == _ASSETS:
        raise UsageError(f"{name!r}: not a name for a component; use letters, digits, '_', '-' and '.'")
    with staging(output) as folder:
        models = {file: _add_asset(opened, folder, _model_files(opened, file)) for file in _models(opened)}
        library = _library_files(opened)
        library_uri = f"{_add_asset(opened, folder, library)}/{layout.LIBRARY}" if library else None
        component = folder / name
        component.mkdir()
        variants = {}
        for variant, provider, file, settings in _variants(opened):
            (component / variant).mkdir()
            info: dict[str, Any] = {"model_file": f"{models[file]}/{file}"}
            if settings:
                info["session_options"] = settings
            _write(component / variant / _INFO, info)
            variants[variant] = {"ep": provider, "executor_info": {"ort": _INFO}}
        _write(component / "component.json", {"component_name": name, "variants": variants})
        _write(folder / "manifest.json", _manifest(opened, name, library_uri))
    return output


def _manifest(opened: Opened, name: str, library: str | None) -> dict[str, Any]:
    source = opened.manifest.source
    return {
        "schema_version": _FORMAT,
        "package_name": name,
        "description": f"{source.name}, optimized by onnxopt {opened.manifest.onnxopt}",
        "layout": "portable",
        "components": {name: name},
        "additional_metadata": {
            "onnxopt": {
                "version": opened.manifest.onnxopt,
                "source_sha256": source.sha256,
                "requires": opened.manifest.requires.model_dump(mode="json"),
                "library": library,
            }
        },
    }


def _variants(opened: Opened) -> Iterator[tuple[str, str, str, dict[str, str]]]:
    """(name, provider, model file, session options) of each.

    Provider options stay out: ORT refuses them where an application appends the CUDA provider by itself, as nearly all
    do, and devices are named differently there. providers/*.json of the artifact has them.
    """
    cpu, cuda = (_session_config(opened, name) for name in ("cpu", "cuda"))
    yield "cpu", "CPUExecutionProvider", layout.MODEL, cpu
    yield "cuda", "CUDAExecutionProvider", layout.MODEL, cuda
    if layout.PORTABLE_MODEL in opened.manifest.files:
        yield "tensorrt", "TensorrtExecutionProvider", layout.PORTABLE_MODEL, {}


def _session_config(opened: Opened, name: str) -> dict[str, str]:
    if f"{layout.PROVIDERS}/{name}.json" not in opened.manifest.files:
        return {}
    entries = providers.read(opened.folder, name)["session_config"].items()
    return {key: str(value) for key, value in entries if key not in _FORBIDDEN}


def _models(opened: Opened) -> list[str]:
    return [file for file in (layout.MODEL, layout.PORTABLE_MODEL) if file in opened.manifest.files]


def _model_files(opened: Opened, model: str) -> dict[str, str]:
    """Path in the asset to path in the artifact."""
    return {name: name for name in (model, *data_files(opened.manifest.files, model))}


def _library_files(opened: Opened) -> dict[str, str]:
    prefix = f"{layout.LIBRARY_FOLDER}/"
    return {name.removeprefix(prefix): name for name in opened.manifest.files if name.startswith(prefix)}


def _add_asset(opened: Opened, folder: Path, names: dict[str, str]) -> str:
    """Copy files into a folder of shared_assets/; returns its URI, which follows from names and contents."""
    files = opened.manifest.files
    uri = asset_uri((target, files[source]) for target, source in names.items())
    for target, source in names.items():
        place = folder / _ASSETS / uri.replace(":", "-") / target
        copy_checked(opened.folder / source, place, files[source])
    return uri


def asset_uri(files: Iterable[tuple[str, File]]) -> str:
    """ "sha256:" and the hash of lines "HASH  PATH", one a file, sorted by path: what ORT computes for a folder."""
    lines = "".join(f"{file.sha256}  {path}\n" for path, file in sorted(files, key=lambda item: item[0].encode()))
    return f"sha256:{hashlib.sha256(lines.encode()).hexdigest()}"


def _write(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=2) + "\n", "utf-8")
