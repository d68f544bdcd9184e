"""What depthwise kernels take, and which of their entry points is the fastest: the numbers of data/depthwise.json."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

from onnxopt.costs.measured import load

DepthwiseTile = tuple[int, int, int]


@dataclasses.dataclass(frozen=True)
class DepthwiseCosts:
    """The numbers of costs/data/depthwise.json, which says what each is."""

    pass_us: Mapping[str, float]
    load_us: Mapping[str, Mapping[str, float]]
    prefers: tuple[Mapping[str, Any], ...]
    others: Mapping[int, tuple[Mapping[str, Any], ...]]
    threads: int
    walking: Mapping[int, tuple[int, int]]
    row_across: int
    simple_extent: int
    nominal_elements: int
    min_activated_channels: int
    expanded_margin: float
    expanded_together: Mapping[str, float]
    expanded_apart: Mapping[str, float]
    expanded_tiles: tuple[DepthwiseTile, ...]
    expanded_first_strided: int
    expanded_others: tuple[DepthwiseTile, ...]
    expanded_unknown: DepthwiseTile
    expanded_max_shared: int
    expanded_rounds: tuple[int, ...]
    expanded_small_round: int
    expanded_round_channels: int
    expanded_last_wave: float
    expanded_filled: tuple[tuple[int, float], ...]
    expanded_warps: int
    expanded_resident_warps: int
    expanded_resident_warps_of_more: int
    expanded_few_weights: int
    expanded_multiprocessors: int
    expanded_batch: int
    expanded_nominal: tuple[int, int, int]
    expanded_blocks: int

    def microseconds_of_pass(self, moved: int) -> float:
        """Predicted time of a kernel of its own that moves this many bytes."""
        return moved / 1e6 * self.pass_us["megabyte"] + self.pass_us["launch"]

    def microseconds_of_loads(self, loads: float, instructions: int, layout: str) -> float:
        """Predicted time of a prologue of so many float32 instructions over all loads. layout: a key of load_us."""
        load = self.load_us[layout]
        return loads / 1e6 * (load["self"] + instructions * load["instruction"])

    def one_kernel_pays(self, work: ExpandedWork) -> bool:
        """Whether two kernels, of which one stores the wide tensor, are predicted to take longer than one."""
        one, two = self.expanded_together, self.expanded_apart
        together = one["launch"] + work.computed * (one["element"] + one["channel"] * work.channels)
        apart = two["launch"] + work.wide * (two["element"] + two["instruction"] * work.instructions)
        together, apart = together + one["tap"] * work.taps, apart + two["tap"] * work.taps
        return together < self.expanded_margin * apart

    def round_cost(self, rounds: int, resident: int, slots: int, channels: int) -> float:
        """Expanded elements of a multiprocessor, with what a round costs by itself, by how well the GPU is filled.

        rounds: of all blocks. resident: blocks of a multiprocessor. slots: pixels that a block computes, of `channels`
        in a round.
        """
        filled = next(cost for limit, cost in self.expanded_filled if resident >= limit)
        waves = rounds / (self.expanded_multiprocessors * resident)
        waves += self.expanded_last_wave * (math.ceil(waves) - waves)
        return waves * resident * slots * (channels + self.expanded_round_channels) * filled


@dataclasses.dataclass(frozen=True)
class ExpandedWork:
    """Work of a 1x1 convolution and the depthwise one that reads it.

    wide: millions of elements of the tensor between the two. computed: those that one kernel computes, halos included.
    taps: millions of products of the depthwise convolution. channels: that the 1x1 convolution reads. instructions: of
    the program between the two, in float32.
    """

    wide: float
    computed: float
    taps: float
    channels: int
    instructions: int


@functools.cache
def numbers() -> DepthwiseCosts:
    """The measured numbers."""
    return load("depthwise", DepthwiseCosts)
