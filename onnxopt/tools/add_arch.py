"""Machine code of further architectures for a finished artifact, without optimizing and verifying it again.

The artifact keeps the CUDA source of its kernels. It is compiled for the old and the new architectures; the old ones
come from the cache of compiled kernels, where it still has them.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from onnxopt import versions
from onnxopt.artifact import layout, signing
from onnxopt.artifact.folder import check_output, hash_files, staging, write_manifest
from onnxopt.artifact.manifest import Manifest, Predicted
from onnxopt.artifact.minisign import SecretKey
from onnxopt.artifact.open import open_artifact
from onnxopt.artifact.report import page
from onnxopt.artifact.report.facts import read_facts
from onnxopt.artifact.result import PredictedTime, predicted_times
from onnxopt.artifact.summary import counted
from onnxopt.codegen import kernels_json, nvrtc
from onnxopt.codegen.architectures import ARCHS, cuda_of
from onnxopt.codegen.compiler_report import Usage
from onnxopt.errors import UsageError
from onnxopt.graph import read
from onnxopt.paths import StrPath
from onnxopt.phases import Progress, silent
from onnxopt.runtime import archs as chosen_archs
from onnxopt.runtime import providers
from onnxopt.runtime.gpus import catalogue
from onnxopt.runtime.predicted import times


@dataclasses.dataclass(frozen=True)
class AddedArchs:
    """What `add_arch` did. added: () where the artifact had them all. archs: that it has code for now.

    notes: for the user. predicted: times on the GPUs that were named, else on common ones of what was added; () where
    the artifact has none.
    """

    path: Path
    added: tuple[str, ...]
    archs: tuple[str, ...]
    notes: tuple[str, ...] = ()
    predicted: tuple[PredictedTime, ...] = ()


def add_arch(
    artifact: StrPath,
    archs: Sequence[str],
    *,
    sign: SecretKey | None = None,
    cache: StrPath | None = None,
    progress: Progress | None = None,
) -> AddedArchs:
    """Add machine code of architectures to an artifact folder, and the provider options of their GPUs.

    archs: as for `optimize`. The kernels stay those that were chosen and verified. sign: a key for a new signature; an
    earlier signature is removed, as it no longer fits. cache: folder of compiled kernels.

    The artifact is replaced when the new one is whole. UsageError where it has no kernels for GPUs, was made by another
    onnxopt, or its folder holds other files; ArtifactError where it is damaged; CompileError where a kernel does not
    compile.
    """
    folder, wanted = Path(artifact), chosen_archs.named(archs)
    manifest = open_artifact(folder).manifest
    _check(folder, manifest)
    added = tuple(arch for arch in wanted if arch not in manifest.archs)
    if not added:
        return AddedArchs(folder, (), manifest.archs)
    check_output(folder, replace=True)
    every = tuple(arch for arch in ARCHS if arch in manifest.archs or arch in added)
    source, advance = (folder / layout.SOURCE).read_text("utf-8"), progress or silent
    compiled = nvrtc.compiled(
        source, every, None if cache is None else Path(cache), lambda done, total: advance("compile", "", done, total)
    )
    signed = (folder / layout.SIGNATURE).is_file()
    with staging(folder, replace=True) as staged:
        _copy(folder, manifest, staged)
        library = staged / layout.LIBRARY_FOLDER
        kernels = (library / layout.KERNELS).read_text("utf-8")
        (library / layout.KERNELS).write_text(kernels_json.with_fatbin(kernels, compiled.fatbin), "utf-8")
        (library / layout.FATBIN).write_bytes(compiled.fatbin)
        _add_providers(staged, manifest, added)
        predicted = _predicted(folder, manifest, every)
        changed = _manifest(manifest, every).model_copy(update={"files": hash_files(staged), "predicted": predicted})
        write_manifest(staged, page.renewed(staged, changed))
        if sign is not None:
            signing.sign(staged, sign)
    notes = [*_spills(compiled.usage, added)]
    if signed and sign is None:
        notes.append(f"{layout.SIGNATURE} was removed: sign the artifact again with `onnxopt sign {folder} --key FILE`")
    shown = predicted_times(_of_archs(changed, added), chosen_archs.named_gpus(archs))
    return AddedArchs(folder, added, every, tuple(notes), shown)


def _check(folder: Path, manifest: Manifest) -> None:
    """UsageError unless this onnxopt can compile the kernels of the artifact as it did before."""
    if not folder.is_dir():
        raise UsageError(f"{folder}: is one file; `onnxopt unpack` makes a folder of it, which can be changed")
    if not manifest.archs:
        raise UsageError(f"{folder}: has no kernels for GPUs; optimize the model with --arch")
    made_by_another = manifest.request is not None and manifest.request.code != versions.code()
    if layout.SOURCE not in manifest.files or manifest.onnxopt != versions.onnxopt() or made_by_another:
        raise UsageError(
            f"{folder}: was made by another onnxopt, whose kernels this one cannot compile; optimize the model again"
        )


def _copy(folder: Path, manifest: Manifest, target: Path) -> None:
    """Copy an artifact without manifest and signature. Models share their bytes on the disk with the old ones."""
    for name in manifest.files:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        if "/" not in name:
            try:
                os.link(folder / name, target / name)
                continue
            except OSError:  # a file system without links
                pass
        shutil.copy2(folder / name, target / name)


def _add_providers(folder: Path, manifest: Manifest, added: Sequence[str]) -> None:
    """Write the provider options of the new architectures' GPUs; those that are there, tuned ones too, stay."""
    shapes: Mapping[str, Sequence[int]] = manifest.request.options.get("shapes", {}) if manifest.request else {}
    model = read.load(folder / layout.MODEL).model
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        sizes = {name: tuple(dims) for name, dims in shapes.items()}
        providers.write(Path(scratch), model, added, sizes or None)
        for path in sorted((Path(scratch) / layout.PROVIDERS).iterdir()):
            if not (folder / layout.PROVIDERS / path.name).exists():
                path.rename(folder / layout.PROVIDERS / path.name)


def _manifest(manifest: Manifest, archs: tuple[str, ...]) -> Manifest:
    """The manifest with the architectures: a later `optimize` for all of them finds the artifact done."""
    drivers = {arch: cuda_of(arch) for arch in archs}
    requires = manifest.requires.model_copy(update={"cuda_driver": drivers})
    request = manifest.request
    if request is not None:
        request = request.model_copy(update={"options": {**request.options, "archs": list(archs)}})
    return manifest.model_copy(update={"archs": archs, "requires": requires, "request": request})


def _predicted(folder: Path, manifest: Manifest, archs: Sequence[str]) -> Predicted | None:
    """The predicted times with those on the architectures' GPUs, from the work of kernels that the report states."""
    if manifest.predicted is None or layout.REPORT not in manifest.files:
        return manifest.predicted
    facts = read_facts(folder, manifest)
    if facts.before is None or facts.after is None or not facts.before.works or not facts.after.works:
        return manifest.predicted
    return manifest.predicted.model_copy(update={"times": times(facts.before.works, facts.after.works, archs)})


def _of_archs(manifest: Manifest, archs: Sequence[str]) -> Manifest:
    """The manifest with the predicted times of these architectures' GPUs alone."""
    if manifest.predicted is None:
        return manifest
    gpus = {gpu.key for gpu in catalogue().values() if gpu.arch in archs}
    rows = tuple(row for row in manifest.predicted.times if row.gpu in gpus)
    return manifest.model_copy(update={"predicted": manifest.predicted.model_copy(update={"times": rows})})


def _spills(usage: Mapping[str, Mapping[str, Usage]], added: Sequence[str]) -> Sequence[str]:
    """A note for each new architecture whose kernels need more registers than it has: `optimize` splits such ones."""
    counts = {arch: sum(row.spilled > 0 for row in usage[arch].values()) for arch in added}
    return [
        f"{counted(count, 'entry point')} spilled registers on {arch}, which costs time; `onnxopt optimize --force` "
        "for all architectures splits kernels that do, where they can be split"
        for arch, count in counts.items()
        if count
    ]
