"""The roofs of the report's plot: the GPUs of the catalogue that artifacts have kernels for."""

from __future__ import annotations

from collections.abc import Collection

from onnxopt.artifact.report.plots import Roof
from onnxopt.runtime.gpus import Gpu, catalogue, find_gpu

FIRST = ("h100_sxm", "a100_80gb", "l4", "t4")  # a data-centre GPU of each class: what a first look should show


def roofs(measured: Collection[str] = ()) -> tuple[Roof, ...]:
    """Peak bandwidth and float32 rate of every GPU; datasheets count a fused multiply-add twice.

    Those with a driver's name in `measured` come first, then those of `FIRST`.
    """
    first = [gpu.key for name in sorted(measured) if (gpu := find_gpu(name)) is not None]
    rank = {key: place for place, key in enumerate(dict.fromkeys([*first, *FIRST]))}
    usable = [gpu for gpu in catalogue().values() if not gpu.refused]
    return tuple(_roof(gpu, measured) for gpu in sorted(usable, key=lambda gpu: rank.get(gpu.key, len(rank))))


def _roof(gpu: Gpu, measured: Collection[str]) -> Roof:
    on = tuple(name for name in gpu.driver_names if name in measured)
    return Roof(gpu.name.removeprefix("NVIDIA "), gpu.bandwidth_gb_s * 1e9, gpu.fp32_tflops * 1e12 / 2, on)
