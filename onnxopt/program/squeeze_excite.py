"""SqueezeExcite: factors of a map's channels, two small products of the channels' means with a program after each.

    y = g(f(mean A^T + a) B^T + b)

Where a depthwise convolution computes the map, the kernels of a meaning compute the map as well, and the means from it.
Two products with a program between them; their search is their own. The CUDA side is cuda_kernels/squeeze_excite/.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from onnxopt.program.core import FLOATS
from onnxopt.program.depthwise import Depthwise
from onnxopt.program.fields import code, integer, nested, operand
from onnxopt.program.pointwise import Program
from onnxopt.program.schema import WHOLE_WARPS, Dims, Meaning, Record, Rule, Variant, shared

# Channels and hidden channels, so that four rows of both, and what adds the sums of tiles, fit STATIC_SHARED_BYTES.
MAX_CHANNELS = 2048
MAX_HIDDEN = 512


@dataclasses.dataclass(frozen=True)
class SqueezeExciteLayer(Record):
    """A product and what follows it. weight, bias: positions of [results, operands] and [results] among the inputs,
    bias None where there is none. program: of one float32 sum, bias included."""

    JSON: ClassVar = ("weight", "bias", "program")
    weight: int = operand(FLOATS)
    program: Program = code()
    bias: int | None = operand(same_as="weight", optional=True)


@dataclasses.dataclass(frozen=True)
class SqueezeExcite(Meaning):
    """The meaning of a squeeze-excite. inputs, outputs: storage dtype names, all the same.

        mean [N, ..., channels], where the dims between are 1; first.weight [hidden, channels]; second.weight
        [results, hidden]; y [N, ..., results]

    mean: its position in inputs, None where `depthwise` computes the map. depthwise: of the first inputs; its result is
    the first output, and the means over its height and width, rounded as they are stored, take the place of `mean`.
    The result of `first` is not rounded.
    """

    KIND: ClassVar = "squeeze_excite"
    INPUTS: ClassVar = (2, 24)
    OUTPUTS: ClassVar = (1, 2)
    OUTPUT_DTYPES: ClassVar = FLOATS
    RULES: ClassVar = (
        Rule("outputs", "all(d == outputs[0] for d in outputs)", "differ in dtype"),
        Rule("outputs", "len(outputs) == (1 if depthwise is None else 2)", "are not the factors, or the map and they"),
        Rule("first.weight", "inputs[first.weight] == outputs[0]", "has another dtype than outputs"),
        Rule("second.weight", "inputs[second.weight] == outputs[0]", "has another dtype than outputs"),
        Rule(
            "mean", "(mean is None) == (depthwise is not None)", "is there beside a depthwise convolution, or neither"
        ),
        Rule(
            "depthwise", "depthwise is None or depthwise.channels == channels", "has other channels than the products"
        ),
    )
    SHAPES: ClassVar = (
        Dims("first.weight", "hidden channels"),
        Dims("first.bias", "#hidden"),
        Dims("second.weight", "results hidden"),
        Dims("second.bias", "#results"),
    )
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    channels: int = integer(1, MAX_CHANNELS)
    hidden: int = integer(1, MAX_HIDDEN)
    results: int = integer(1, MAX_CHANNELS)
    first: SqueezeExciteLayer = nested(SqueezeExciteLayer)
    second: SqueezeExciteLayer = nested(SqueezeExciteLayer)
    mean: int | None = operand(same_as="outputs", optional=True, default=0)
    depthwise: Depthwise | None = nested(Depthwise, optional=True)

    @property
    @shared
    def dtype(self) -> str:
        return self.outputs[0]

    def positions(self) -> set[int]:
        return super().positions() | set(range(0 if self.depthwise is None else len(self.depthwise.inputs)))

    def check(self) -> tuple[str, str] | None:
        of = self.depthwise
        if of is not None and (of.inputs != self.inputs[: len(of.inputs)] or of.outputs != self.outputs[:1]):
            return "depthwise", "is not of the first inputs and the first output"
        return None


@dataclasses.dataclass(frozen=True)
class FactorsVariant(Variant):
    """A product of `unroll` rows a block, or the sum of tiles of a map."""

    KERNEL = SqueezeExcite
    RULES = (WHOLE_WARPS, Rule("unroll", "unroll <= 4", "is above 4"))
