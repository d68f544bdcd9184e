"""Which activations of a convolution pay in cuDNN's kernel, and how many of its plans are measured."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from onnxopt.costs.measured import load


@dataclasses.dataclass(frozen=True)
class ConvolutionCosts:
    """The numbers of costs/data/convolution.json, which says what each is."""

    compiled_channels: tuple[int, int]
    compiled_channels_in_block: tuple[int, int]
    compiled_wide_channels: tuple[int, int]
    coded_channels: int
    channels_without_concat: int
    growing_concats_gain: int
    tuned_plans: int
    first_run_plans: int
    timed_plans: int
    first_run_workspace: int
    dense: tuple[Mapping[str, Any], ...]
    dense_fill: float


@functools.cache
def numbers() -> ConvolutionCosts:
    """The measured numbers."""
    return load("convolution", ConvolutionCosts)
