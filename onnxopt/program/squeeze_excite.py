"""SqueezeExcite: factors of a map's channels, two small products of the channels' means with a program behind each.

    y = g(f(mean A^T + a) B^T + b)

Where a depthwise convolution computes the map, the kernels of a meaning compute the map as well, and the means from it.
The C++ side is custom_ops/program/squeeze_excite.h, the CUDA side cuda_kernels/squeeze_excite/.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from onnxopt.program.depthwise import Depthwise
from onnxopt.program.pointwise import Program

STORED = ("float16", "bfloat16", "float32")
MOST_INPUTS = 24
# Channels and hidden channels, so that four rows of both, and what adds the sums of tiles, fit STATIC_SHARED_BYTES.
MOST_CHANNELS = 2048
MOST_HIDDEN = 512


@dataclasses.dataclass(frozen=True)
class Layer:
    """A product and what follows it. weight, bias: positions of [results, operands] and [results] among the inputs,
    bias None where there is none. program: of one float32 sum, bias included."""

    weight: int
    program: Program
    bias: int | None = None

    def to_json(self) -> dict[str, Any]:
        row = {"weight": self.weight, "bias": self.bias, "program": self.program.to_json()}
        return {k: v for k, v in row.items() if v is not None}


@dataclasses.dataclass(frozen=True)
class SqueezeExcite:
    """The meaning of a squeeze-excite. inputs, outputs: storage dtype names, all the same.

        mean [N, ..., channels], where the dims between are 1; first.weight [hidden, channels]; second.weight
        [results, hidden]; y [N, ..., results]

    mean: its position in inputs, None where `depthwise` computes the map. depthwise: of the first inputs; its result is
    the first output, and the means over its height and width, rounded as they are stored, take the place of `mean`.
    What `first` gives is not rounded.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    channels: int
    hidden: int
    results: int
    first: Layer
    second: Layer
    mean: int | None = 0
    depthwise: Depthwise | None = None

    @property
    def dtype(self) -> str:
        return self.outputs[-1]

    def verify(self) -> None:
        """Raise ValueError naming the field that breaks a rule of this class."""
        own = [self.mean, self.first.weight, self.first.bias, self.second.weight, self.second.bias]
        of_map = range(len(self.depthwise.inputs)) if self.depthwise is not None else range(0)
        if {p for p in own if p is not None} | set(of_map) != set(range(len(self.inputs))):
            raise ValueError("inputs: not all of them are read, or others are")
        if len(self.inputs) > MOST_INPUTS:
            raise ValueError(f"inputs: {len(self.inputs)}, above {MOST_INPUTS}")
        if self.dtype not in STORED or any(self.inputs[p] != self.dtype for p in own if p is not None):
            raise ValueError(f"inputs: the operands of the products are not of one dtype of {', '.join(STORED)}")
        if self.outputs != (self.dtype,) * (1 if self.depthwise is None else 2):
            raise ValueError("outputs: not the factors, or not the map and the factors, of one dtype")
        for field, most in (("channels", MOST_CHANNELS), ("hidden", MOST_HIDDEN), ("results", MOST_CHANNELS)):
            if not 1 <= getattr(self, field) <= most:
                raise ValueError(f"{field}: {getattr(self, field)}, not 1 to {most}")
        for name, layer in (("first", self.first), ("second", self.second)):
            layer.program.verify()
            if layer.program.inputs != ("float32",) or layer.program.outputs != (self.dtype,):
                raise ValueError(f"{name}: is no program of one float32 that stores {self.dtype}")
            if layer.program.index is not None:
                raise ValueError(f"{name}: has index operations")
        self._verify_map()

    def _verify_map(self) -> None:
        if (self.mean is None) == (self.depthwise is None):
            raise ValueError("mean: is there beside a depthwise convolution, or neither is")
        if self.depthwise is None:
            return
        self.depthwise.verify()
        of = self.depthwise
        if of.inputs != self.inputs[: len(of.inputs)] or of.outputs != self.outputs[:1] or of.channels != self.channels:
            raise ValueError("depthwise: is not of the first inputs, the first output and the same channels")

    def to_json(self) -> dict[str, Any]:
        """The form in kernels.json, without mean or depthwise where there is none."""
        row: dict[str, Any] = {
            "inputs": list(self.inputs),
            "outputs": list(self.outputs),
            "channels": self.channels,
            "hidden": self.hidden,
            "results": self.results,
            "first": self.first.to_json(),
            "second": self.second.to_json(),
            "mean": self.mean,
            "depthwise": None if self.depthwise is None else self.depthwise.to_json(),
        }
        return {k: v for k, v in row.items() if v is not None}
