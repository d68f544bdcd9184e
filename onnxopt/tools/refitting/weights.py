"""New weights for a model, by the names of its initializers: of files of tensors, or merged from LoRA adapters."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from onnxopt.errors import UsageError, describe
from onnxopt.option_fields import did_you_mean

_PICKLED = (".pt", ".pth", ".bin", ".ckpt")
_SAFETENSORS = ".safetensors"
_ADAPTER, _ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"
_WHOLE = "base_model.model."  # before the names of an adapter's tensors
_LORA = re.compile(r"(.+)\.lora_([AB])(?:\.default)?\.weight")
_UNUSED = ("num_batches_tracked",)  # ends of names of a state dict that inference does not read
_RESIZES = ("Resize", "Upsample")
_LISTED = 3

Array = np.ndarray[Any, Any]


def read(path: Path) -> dict[str, Array]:
    """The tensors of a file, or of the .safetensors files of a folder, by name. UsageError where it cannot be read."""
    if not path.exists():
        raise UsageError(f"{path}: no such file of weights")
    files = sorted(path.glob(f"*{_SAFETENSORS}")) if path.is_dir() else [path]
    if not files:
        raise UsageError(f"{path}: has no {_SAFETENSORS} file")
    tensors: dict[str, Array] = {}
    for file in files:
        if file.suffix not in (_SAFETENSORS, *_PICKLED):
            raise UsageError(f"{file}: expected {_SAFETENSORS}, {', '.join(_PICKLED)}, or an .onnx file")
        try:
            read_tensors = _safetensors(file) if file.suffix == _SAFETENSORS else _state_dict(file)
        except (UsageError, MemoryError):
            raise
        except Exception as error:  # of either library
            raise UsageError(f"{file}: cannot be read as weights: {describe(error)}") from error
        if twice := tensors.keys() & read_tensors.keys():
            raise UsageError(f"{file}: {min(twice)} is in another file of the folder, too")
        tensors |= read_tensors
    return tensors


class _Place(NamedTuple):
    """What an initializer holds: a tensor of a file of weights, or its transpose."""

    tensor: str
    transposed: bool

    def of(self, tensors: Mapping[str, Array]) -> Array:
        return tensors[self.tensor].T if self.transposed else tensors[self.tensor]


def replace(model: ir.Model, path: Path, *, old: Path | None = None, partial: bool = False) -> None:
    """Give the initializers of a model the values of the tensors at `path`, which have the same names.

    old: the tensors that the model was exported with; initializers of other names, also of transposed weights, are
    found by their values. Every tensor needs an initializer of its shape and dtype, but for those that repeat another
    one, as tied weights do. Every initializer of floats with more than one element needs a tensor; with `partial`,
    others keep their values. UsageError names the tensors where that does not hold.
    """
    holders = holders_of(model)
    tensors, before = read(path), {} if old is None else read(old)
    if any(_LORA.fullmatch(name) for name in tensors):
        known = before or {name: _array(value) for name, value in holders.items()}
        tensors, partial = merged(tensors, _config_of(path), known, path), True
    places = _places(holders, before, tensors, old or path)
    replaced = {name: place for name, place in places.items() if place.tensor in tensors}
    used = {place.tensor for place in replaced.values()}
    unused = [name for name in tensors if name not in used and not name.endswith(_UNUSED)]
    _refuse_extra(path, [name for name in unused if not _is_tied(name, used, tensors, before)], holders)
    missing = [name for name, value in holders.items() if name not in replaced and _is_weight(value)]
    if not replaced:
        raise UsageError(f"{path}: no tensor is an initializer of the model: give an ONNX file with the new weights")
    if missing and not partial:
        raise UsageError(
            f"{path}: lacks {_listed(missing)} of the model{_folded(missing)}; --partial keeps the model's values"
        )
    for name, place in replaced.items():
        _check(path, name, place, place.of(tensors), holders[name])
    for name, place in replaced.items():
        holders[name].const_value = ir.tensor(np.asarray(place.of(tensors), order="C"), name=name)


def _is_tied(name: str, used: Collection[str], tensors: Mapping[str, Array], before: Mapping[str, Array]) -> bool:
    """Whether a matrix is one that is used, now and before. Vectors may be equal by chance, as those of ones are."""
    same = {other for other in used if tensors[name].ndim > 1 and _key(tensors[other]) == _key(tensors[name])}
    if not before or name not in before:
        return bool(same)
    return any(other in before and _key(before[other]) == _key(before[name]) for other in same)


def compare(source: Path, exported: ir.Model, before: ir.Model) -> None:
    """UsageError where another export of a network has an initializer of another shape or dtype than before, or more
    or fewer weights. Names that an exporter chose may differ."""
    new, old = holders_of(exported), holders_of(before)
    for name in new:
        if name in old and _form(new[name]) != _form(old[name]):
            raise UsageError(f"{source}: {name} is {_form(new[name])}, before {_form(old[name])}")
    added, gone = _alone(new, old), _alone(old, new)
    for weights, others, says in ((gone, added, "lacks"), (added, gone, "has, as the model before has not,")):
        surplus = Counter(weights.values()) - Counter(others.values())
        for name, form in weights.items():
            if surplus[form]:
                raise UsageError(f"{source}: {says} {name}, {form}; give another export of the same network")


def _alone(holders: Mapping[str, ir.Value], others: Mapping[str, ir.Value]) -> dict[str, str]:
    """The dtypes and shapes of weights whose names are not among others."""
    return {name: _form(value) for name, value in holders.items() if name not in others and _is_weight(value)}


def _form(value: ir.Value) -> str:
    return f"{value.dtype} {value.shape}"


def holders_of(model: ir.Model) -> dict[str, ir.Value]:
    """The initializers of a model by name."""
    named = (item for graph in model.graphs() for item in graph.initializers.items())
    return {name: value for name, value in named if value.const_value is not None}


def differ(one: ir.Value, other: ir.Value) -> bool:
    """Whether two initializers have other values."""
    return _key(_array(one)) != _key(_array(other))


def _places(
    holders: Mapping[str, ir.Value], before: Mapping[str, Array], tensors: Mapping[str, Array], old: Path
) -> dict[str, _Place]:
    """What each initializer holds, of those that hold a tensor."""
    by_value: dict[Any, list[_Place]] = {}
    for name, array in before.items():
        if name in holders and _key(array) != _key(_array(holders[name])):
            raise UsageError(
                f"{old}: {name} has another value in the model, which was exported with other weights, or the exporter "
                "folded another tensor into it: then give an ONNX file that was exported with the new weights"
            )
        by_value.setdefault(_key(array), []).append(_Place(name, False))
        if array.ndim == 2:
            by_value.setdefault(_key(array.T), []).append(_Place(name, True))
    places = {}
    for name, value in holders.items():
        if name in tensors or name in before:
            places[name] = _Place(name, False)
        elif before and _is_weight(value):
            equal = [place for place in by_value.get(_key(_array(value)), ()) if place.tensor in tensors]
            if len({_key(place.of(tensors)) for place in equal}) > 1:
                raise UsageError(f"{old}: {' and '.join(p.tensor for p in equal[:2])} both have the value of {name}")
            if equal:
                places[name] = equal[0]
    return places


def _array(value: ir.Value) -> Array:
    assert value.const_value is not None
    array: Array = value.const_value.numpy()
    return array


def _key(array: Array) -> tuple[tuple[int, ...], str, bytes]:
    """By which arrays of the same shape, dtype and bytes are told from others."""
    return array.shape, array.dtype.name, hashlib.sha256(array.tobytes()).digest()


def merged(
    adapter: Mapping[str, Array], config: Mapping[str, Any], weights: Mapping[str, Array], path: Path
) -> dict[str, Array]:
    """The weights that an adapter changes: w + scale * B @ A, computed in float32. UsageError for other adapters."""
    for key in ("use_dora", "fan_in_fan_out", "alpha_pattern", "rank_pattern"):
        if config.get(key):
            raise UsageError(f"{path}: {key} is not merged here; merge the adapter with peft (merge_and_unload)")
    pairs: dict[str, dict[str, Array]] = {}
    changed: dict[str, Array] = {}
    for name, array in adapter.items():
        short = name.removeprefix(_WHOLE)
        if match := _LORA.fullmatch(short):
            pairs.setdefault(f"{match[1]}.weight", {})[match[2]] = array
        elif ".lora_" in name:
            raise UsageError(f"{path}: {name} is not merged here; merge the adapter with peft (merge_and_unload)")
        else:
            changed[short] = array
    _refuse_extra(path, [name for name in pairs if name not in weights], weights)
    for name, pair in pairs.items():
        changed[name] = _sum(path, name, weights[name], pair, config)
    return changed


def _sum(path: Path, name: str, weight: Array, pair: Mapping[str, Array], config: Mapping[str, Any]) -> Array:
    down, up = pair.get("A"), pair.get("B")
    if down is None or up is None or down.ndim != 2 or up.ndim != 2 or down.shape[0] != up.shape[1]:
        shapes = " and ".join("none" if side is None else str(list(side.shape)) for side in (up, down))
        raise UsageError(f"{path}: lora_B and lora_A of {name} have the shapes {shapes}")
    if (up.shape[0], down.shape[1]) != weight.shape:
        raise UsageError(
            f"{path}: B @ A of {name} has the shape {[up.shape[0], down.shape[1]]}, the model's {list(weight.shape)}"
        )
    rank = down.shape[0]
    scale = float(config["lora_alpha"]) / (math.sqrt(rank) if config.get("use_rslora") else rank)
    product = up.astype(np.float32) @ down.astype(np.float32)
    sums: Array = (weight.astype(np.float32) + np.float32(scale) * product).astype(weight.dtype)
    return sums


def _config_of(path: Path) -> dict[str, Any]:
    """The configuration beside an adapter's tensors. UsageError where it is missing: it has the scale."""
    file = (path if path.is_dir() else path.parent) / _ADAPTER_CONFIG
    try:
        config = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{file}: cannot be read, and has the scale of the adapter: {describe(error)}") from error
    if not isinstance(config, dict) or not isinstance(config.get("lora_alpha"), int | float):
        raise UsageError(f"{file}: has no lora_alpha, the scale of the adapter")
    return config


def _safetensors(file: Path) -> dict[str, Array]:
    import ml_dtypes  # noqa: F401 - its dtypes are NumPy's from then on

    try:
        from safetensors import safe_open
    except ImportError:
        raise UsageError(f"{file}: needs the package safetensors: pip install 'onnxopt[refit]'") from None
    with safe_open(file, framework="np") as opened:
        return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - no mapping


def _state_dict(file: Path) -> dict[str, Array]:
    """The tensors of a state dict, in which nothing is executed."""
    try:
        import torch
    except ImportError:
        raise UsageError(f"{file}: needs PyTorch; save the weights as {_SAFETENSORS}, or pip install torch") from None
    content = torch.load(file, map_location="cpu", weights_only=True)
    nested = content.get("state_dict", content) if isinstance(content, Mapping) else None
    if not isinstance(nested, Mapping) or not all(isinstance(value, torch.Tensor) for value in nested.values()):
        raise UsageError(f"{file}: is no state dict, a mapping from names to tensors")
    return {name: ir.tensor(value.detach().contiguous()).numpy() for name, value in nested.items()}


def _is_weight(value: ir.Value) -> bool:
    """Whether an initializer has values to replace: floats, of which there are several, and no scales of a Resize."""
    tensor, uses = value.const_value, value.uses()
    if tensor is None or not tensor.dtype.is_floating_point() or tensor.size <= 1:
        return False
    return not uses or not all(use.node.op_type in _RESIZES and use.idx > 0 for use in uses)


def _check(path: Path, name: str, place: _Place, array: Array, value: ir.Value) -> None:
    tensor = value.const_value
    assert tensor is not None
    shape, dtype = tuple(tensor.shape.numpy()), tensor.dtype.numpy()
    title = place.tensor if place.tensor == name else f"{place.tensor}, the model's {name},"
    if array.shape != shape:
        raise UsageError(f"{path}: {title} has the shape {list(array.shape)}, the model's {list(shape)}")
    if array.dtype != dtype:
        raise UsageError(f"{path}: {title} is {array.dtype}, the model's {dtype}")


def _refuse_extra(path: Path, extra: list[str], initializers: Mapping[str, Any]) -> None:
    if extra:
        near = did_you_mean(extra[0], initializers)
        raise UsageError(f"{path}: the model has no initializer {_listed(extra)}{near}{_folded(extra)}")


def _folded(names: list[str]) -> str:
    it = "it" if len(names) == 1 else "them"
    return (
        f" (an exporter may have transposed or folded {it}: --old-weights finds what was transposed; else give an ONNX "
        "file that was exported with the new weights)"
    )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more
