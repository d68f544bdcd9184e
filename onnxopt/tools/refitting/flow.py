"""New weights in a finished artifact: its options and the steps of `optimize`, its kernels instead of compiled ones.

What was folded or packed (merged projections, batch norms, transposed weights) is folded again by the same steps, and
the result is verified against the model with the new weights. Where a value became part of a kernel, the kernels
differ, and nothing is written.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Unpack

import onnx_ir as ir

from onnxopt import versions
from onnxopt.artifact.folder import check_output, output_path, temporary_folder
from onnxopt.artifact.manifest import Manifest, Request
from onnxopt.artifact.open import open_artifact
from onnxopt.errors import ModelError, UsageError
from onnxopt.fusion.region import Kernel
from onnxopt.graph import read
from onnxopt.paths import StrPath
from onnxopt.phases import Progress
from onnxopt.pipeline import flow, rerun
from onnxopt.pipeline.making import Artifact
from onnxopt.pipeline.options import Options
from onnxopt.pipeline.reused import KernelsDiffer, Reused
from onnxopt.tools.refitting import weights as new_weights
from onnxopt.tools.refitting.options import RefitChanges, RefitOptions
from onnxopt.verification.sampling.data_source import DataSource

_ONNX = ".onnx"
_DATA = ".data"  # the end of the name of a file of weights beside a model that is written
_AGAIN = "optimize the model again"


def refit(
    artifact: StrPath,
    weights: StrPath,
    output: StrPath,
    options: RefitOptions | None = None,
    *,
    force: bool = False,
    progress: Progress | None = None,
    **changes: Unpack[RefitChanges],
) -> Artifact:
    """Make an artifact with other weights of the same network, with the kernels of `artifact`. Nothing is compiled.

    weights: an ONNX file of the same network; or tensors by the names of the model's initializers, as .safetensors, a
    folder of them, or a state dict (.pt, .pth, .bin), in which nothing is executed; or a LoRA adapter with its
    adapter_config.json, which is merged into the model's weights. options: how to find what they replace. changes:
    fields of `RefitOptions` by name, in place of those of `options`. force, progress: as for `optimize`.

    The result is verified as `optimize` does. UsageError names a tensor that is missing, has no place, has another
    shape or dtype, or whose value is a part of a kernel; it is raised, too, where `artifact` was made by another
    onnxopt. Other errors as `optimize`. On any failure no partial file remains.
    """
    folder, source, target = Path(artifact), Path(weights), output_path(output)
    chosen = dataclasses.replace(options or RefitOptions(), **changes)
    opened = open_artifact(folder)
    recorded = _options(folder, opened.manifest, chosen.data)
    check_output(target, replace=force)
    reused = Reused(opened.folder, opened.manifest, f"{opened.manifest.source.name} with {source.name}")
    with contextlib.ExitStack() as on_failure:
        model = _model(folder, opened.manifest, source, chosen, on_failure)
        try:
            result = flow.artifact_of(model, target, recorded, force=force, progress=progress, reused=reused)
        except KernelsDiffer as differing:
            network = read.load(model).model if isinstance(model, Path) else model
            name = _in_a_kernel(network, _before(folder, opened.manifest, chosen), recorded, reused)
            raise UsageError(_why(folder, source, name, differing.kernels)) from None
        on_failure.pop_all()
        return result


def _why(folder: Path, source: Path, name: str, kernels: Sequence[Kernel]) -> str:
    """What does not fit. name: of the initializer, if it is known. kernels: that differ."""
    text = f"{source}: does not fit the kernels of {folder}"
    text += f": the value of {name} is a part of them" if name else ""
    text += f" (the first that differs: {', '.join(kernels[0].sites[0].replaced)})" if kernels else ""
    return f"{text}; {_AGAIN} with the new weights"


def _model(
    folder: Path, manifest: Manifest, weights: Path, chosen: RefitOptions, on_failure: contextlib.ExitStack
) -> Path | ir.Model:
    """The model with the new weights. on_failure: gets what removes the file that is written of it."""
    exported = weights.suffix == _ONNX
    if exported and chosen.save_model is not None:
        raise UsageError(f"{weights}: is a model already; --save-model is for files of tensors")
    if exported:
        stated = chosen.original is not None
        before = _original(folder, manifest, chosen.original) if stated else _before(folder, manifest, chosen)
        if before is not None:
            new_weights.compare(weights, read.load(weights).model, before)
        return weights
    model = _original(folder, manifest, chosen.original)
    old = None if chosen.old_weights is None else Path(chosen.old_weights)
    new_weights.replace(model, weights, old=old, partial=chosen.partial)
    return model if chosen.save_model is None else _saved(model, Path(chosen.save_model), on_failure)


def _options(folder: Path, manifest: Manifest, data: Sequence[DataSource]) -> Options:
    """The options that an artifact was made with. UsageError where they are not known, or no longer mean the same."""
    request = manifest.request
    if request is None:
        raise UsageError(f"{folder}: does not say what it was made of, as after a model in memory; {_AGAIN}")
    if manifest.onnxopt != versions.onnxopt() or request.code != versions.code():
        raise UsageError(f"{folder}: was made by another onnxopt, which may choose other kernels; {_AGAIN}")
    roles = {name.partition(" ")[0] for name in request.files}
    if "data" in roles and not data:
        raise UsageError(f"{folder}: was made with --data; give --data here, too")
    for name in roles & {"calibrate", "reference"}:
        raise UsageError(f"{folder}: was made with --{name}, which belongs to the old weights; {_AGAIN}")
    stated: dict[str, Any] = dict(request.options)
    if stated.get("shapes"):
        stated["shapes"] = {name: tuple(dims) for name, dims in stated["shapes"].items()}
    return dataclasses.replace(Options(**stated), data=tuple(data))


def _original(folder: Path, manifest: Manifest, elsewhere: StrPath | None) -> ir.Model:
    """The model that an artifact was made of. UsageError where it is not there, or another one is."""
    request, place = manifest.request, elsewhere or manifest.source.path
    assert isinstance(request, Request)
    if place is None or not Path(place).is_file():
        raise UsageError(f"{folder}: its original, {place or manifest.source.name}, is not there; give --original")
    path = Path(place)
    try:
        files = rerun.files_of(path, read.external_files(path))
        digests = rerun.digests(files)
    except OSError as error:
        raise UsageError(f"{error.filename}: cannot be read: {error.strerror}") from error
    except ModelError as error:
        raise UsageError(str(error)) from error
    for name, digest in request.files.items():
        if name.partition("/")[0] == "model" and digests.get(name) != digest:
            raise UsageError(
                f"{path}: is not the model that {folder} was made of: {files.get(name, name)} differs; give --original"
            )
    model = read.load(path).model
    _embed_constants(model)
    return model


def _embed_constants(model: ir.Model) -> None:
    """Have tensors that are attributes in memory: saving a model moves initializers alone to its own files."""
    for body in (*model.graphs(), *model.functions.values()):
        for node in body:
            for name, attribute in node.attributes.items():
                if isinstance(attribute.value, ir.ExternalTensor):
                    node.attributes[name] = ir.AttrTensor(name, ir.tensor(attribute.value.numpy()))


def _before(folder: Path, manifest: Manifest, chosen: RefitOptions) -> ir.Model | None:
    """The model that an artifact was made of, None where it is not there."""
    try:
        return _original(folder, manifest, chosen.original)
    except UsageError:
        return None


def _in_a_kernel(network: ir.Model, before: ir.Model | None, options: Options, reused: Reused) -> str:
    """The first initializer whose new value gives other kernels, found by halving; "" where none can be named."""
    old, new = (new_weights.holders_of(model) if model is not None else {} for model in (before, network))
    names = [name for name in old if name in new and new_weights.differ(old[name], new[name])]
    fitting, differing = 0, len(names)  # how many of the first do, and do not
    while before is not None and differing - fitting > 1:
        middle = (fitting + differing) // 2
        mixed = before.clone()
        for name, value in new_weights.holders_of(mixed).items():
            if name in names[:middle]:
                value.const_value = new[name].const_value
        if _fits(mixed, options, reused):
            fitting = middle
        else:
            differing = middle
    return names[fitting] if names else ""


def _fits(model: ir.Model, options: Options, reused: Reused) -> bool:
    with temporary_folder() as folder:
        try:
            flow.artifact_of(model, folder / "trial", dataclasses.replace(options, verify=False), reused=reused)
        except KernelsDiffer:
            return False
    return True


def _saved(model: ir.Model, path: Path, on_failure: contextlib.ExitStack) -> Path:
    """The model as a file with its weights beside it. UsageError where that cannot be written."""
    data = path.with_name(path.name + _DATA)
    for file in (path, data):
        if file.exists():
            raise UsageError(f"{file}: exists already; remove it, or save to another file")
    for file in (path, data):
        on_failure.callback(file.unlink, missing_ok=True)
    try:
        ir.save(model, path, external_data=data.name)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from error
    return path
