"""The GPU architectures that a user names: as sm_90, by a GPU of the catalogue, or as what lies in this machine."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from onnxopt.codegen.architectures import ARCHS
from onnxopt.errors import UsageError
from onnxopt.option_fields import did_you_mean
from onnxopt.runtime import devices
from onnxopt.runtime.gpus import Gpu, catalogue, find_gpu

ALL, NATIVE, NONE, QUICK = "all", "native", "none", "quick"
# Without a GPU here: its machine code runs on 8.x, and its PTX is what drivers of later ones compile from.
_QUICK_WITHOUT_GPU = "sm_80"


def named(names: Sequence[str] | None) -> tuple[str, ...]:
    """The architectures to compile for, in the order of ARCHS; all of them for None, none for ().

    names: architectures ("sm_90"), GPUs by the catalogue's key ("h200"; "h100" for all whose keys begin so) or the
    driver's name, "all", "native" for this machine's GPUs, "quick" for the first of these or sm_80 where there is none,
    or "none" alone; a name may be a list with commas. UsageError says which name is unknown, what there is, or why a
    GPU is not compiled for.
    """
    if names is None:
        return ARCHS
    if isinstance(names, str):
        raise UsageError(f"archs is a sequence of architectures: give ({names!r},)")
    unchecked: object = names  # from a caller whose types nobody checked
    if not isinstance(unchecked, Sequence) or not all(isinstance(name, str) for name in unchecked):
        raise UsageError(f"archs is a sequence of names, as ('sm_90', 'h200'), not {names!r}")
    parts = [part.strip() for name in names for part in name.split(",")]
    if NONE in parts:
        if set(parts) != {NONE}:
            raise UsageError(f"architecture {NONE!r} is for no kernels at all; leave out the others, or it")
        return ()
    chosen = {arch for part in parts for arch in _archs(part)}
    return tuple(arch for arch in ARCHS if arch in chosen)


def named_gpus(names: Sequence[str]) -> tuple[str, ...]:
    """Keys of the catalogue's GPUs that names name by GPU ("h200", "native"), not by architecture; in that order.

    names: as for `named`, which refuses unknown ones.
    """
    keys: list[str] = []
    for name in (part.strip() for text in names for part in text.split(",")):
        if name in (NATIVE, QUICK):
            present = devices.devices() if name == NATIVE else filter(None, [devices.first()])
            gpus = [gpu for device in present if (gpu := find_gpu(device.name)) is not None]
        else:
            gpus = [] if name in (ALL, NONE) or _arch(name) else _gpus(name)
        keys += [gpu.key for gpu in gpus]
    return tuple(dict.fromkeys(keys))


def _archs(name: str) -> Iterator[str]:
    if name == ALL:
        yield from ARCHS
    elif name == NATIVE:
        yield from _native()
    elif name == QUICK:
        device = devices.first()
        yield device.arch if device is not None and device.arch in ARCHS else _QUICK_WITHOUT_GPU
    elif (arch := _arch(name)) is not None:
        yield arch
    else:
        yield from (_compiled_for(gpu) for gpu in _gpus(name))


def _arch(name: str) -> str | None:
    """The architecture that a name spells: sm_90, SM90, sm_90a, compute_90, 9.0 or 90; None where it is none."""
    spelled = re.fullmatch(r"((sm|compute)_?)?(\d+)\.?(\d)a?", name.lower())
    arch = f"sm_{spelled[3]}{spelled[4]}" if spelled else None
    return arch if arch in ARCHS else None


def _gpus(name: str) -> list[Gpu]:
    key = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
    same = [gpu for gpu in catalogue().values() if gpu.key.replace("_", "") == key.replace("_", "")]
    gpus = same or [gpu for gpu in catalogue().values() if key and gpu.key.startswith(f"{key}_")]
    by_driver = find_gpu(name)
    if not gpus and by_driver is None:
        compiled_for = [gpu.key for gpu in catalogue().values() if not gpu.refused]
        raise UsageError(
            f"unknown architecture {name!r}: onnxopt compiles for {', '.join(ARCHS)}; or name GPUs "
            f"({', '.join(compiled_for)}), {ALL}, {NATIVE} or {NONE}"
            f"{did_you_mean(name, [*ARCHS, *compiled_for, ALL, NATIVE, NONE])}"
        )
    return gpus or [gpu for gpu in [by_driver] if gpu is not None]


def _compiled_for(gpu: Gpu) -> str:
    if gpu.refused:
        raise UsageError(f"architecture {gpu.key!r}: {gpu.refused}")
    return gpu.arch


def _native() -> Iterator[str]:
    try:
        present = devices.devices()
    except devices.DriverError as error:
        raise UsageError(f"architecture {NATIVE!r}: the driver does not start ({error}); name the GPU") from None
    if not present:
        raise UsageError(f"architecture {NATIVE!r}: this machine has no CUDA GPU; name the GPU that serves, as h200")
    for device in present:
        if device.arch not in ARCHS:
            raise UsageError(
                f"architecture {NATIVE!r}: {device.name} has {device.arch}, onnxopt compiles for {', '.join(ARCHS)}"
            )
        yield device.arch
