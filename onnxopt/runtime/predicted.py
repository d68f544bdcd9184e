"""Predicted time of a run on a GPU of the catalogue: a roofline over bytes, products and launches.

A kernel takes what a launch takes in a CUDA graph, and the longer of moving its bytes and of computing its products.
The shares of the peaks were chosen so that nine models in float16 on one H200 fit best after optimizing;
`python -m benchmarks cpu.predicted` compares (ERROR says how near that is). ONNX Runtime has slower kernels than the
roofline knows of, most of all for convolutions, so the time before is a lower bound more than a prediction.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from onnxopt.costs.predicted import numbers
from onnxopt.fusion.work import GROUPS, Work
from onnxopt.runtime.gpus import Gpu, catalogue

_COSTS = numbers()
ERROR = _COSTS.error_text()
_HALVES = frozenset({"float16", "bfloat16"})
_BYTES = frozenset({"float8e4m3fn", "int8", "uint8"})


@dataclasses.dataclass(frozen=True)
class Times:
    """Milliseconds of a run with a CUDA graph. gpu: key of the catalogue."""

    gpu: str
    before_ms: float
    after_ms: float


def times(before: Sequence[Work], after: Sequence[Work], archs: Iterable[str]) -> tuple[Times, ...]:
    """For every GPU of the catalogue whose architecture is one of `archs`."""
    chosen = set(archs)
    gpus = [gpu for gpu in catalogue().values() if gpu.arch in chosen]
    return tuple(Times(g.key, round(1e3 * seconds(before, g), 4), round(1e3 * seconds(after, g), 4)) for g in gpus)


def seconds(kernels: Iterable[Work], gpu: Gpu) -> float:
    """The predicted time of kernels that run one after the other."""
    return sum(_kernel_seconds(work, gpu) for work in kernels)


def by_group(kernels: Iterable[Work], gpu: Gpu) -> dict[str, float]:
    """Milliseconds of the kernels of each group of fusion/work.py that has any."""
    sums = dict.fromkeys(GROUPS, 0.0)
    for work in kernels:
        sums[work.group] += 1e3 * _kernel_seconds(work, gpu)
    return {group: ms for group, ms in sums.items() if ms}


def _kernel_seconds(work: Work, gpu: Gpu) -> float:
    moving = work.bytes / (gpu.bandwidth_gb_s * 1e9 * _COSTS.bandwidth_share)
    spread = min(1.0, max(work.written / _COSTS.tile, 1.0) / gpu.sms)
    computing = work.flops / (_peak(work.dtype, gpu) * _COSTS.product_share * spread)
    return work.launches * _COSTS.launch + max(moving, computing)


def _peak(dtype: str, gpu: Gpu) -> float:
    """Operations a second of products: of tensor cores where they multiply this dtype (float32 as tf32)."""
    if dtype in _HALVES:
        return gpu.fp16_tflops * 1e12
    if dtype in _BYTES:
        return 2e12 * gpu.fp16_tflops
    return 0.5e12 * gpu.fp16_tflops if dtype == "float32" and gpu.has_tf32 else gpu.fp32_tflops * 1e12
