"""GroupNorm: a normalization over groups of channels in NHWC, a core with a prologue and an epilogue.

The CUDA side is cuda_kernels/group_norm/.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from onnxopt.program.core import FLOATS, FORMS, Core, Transform, transform
from onnxopt.program.fields import integer, number, operand
from onnxopt.program.schema import Dims, Rule, shared

MAX_GROUP = 1024  # channels: a block has a thread for each


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupNorm(Core):
    """The meaning of a kernel. inputs, outputs: storage dtype names. x: position in inputs.

        x [N, H, W, channels], result [N, H, W, channels]

    prologue: computes what is normed from x, in float32, which is not rounded; None where x is normed. For each sample
    and each of the `groups` of neighbouring channels: (value - mean) / sqrt(variance + epsilon), in float32. epilogue:
    computes the output from that, scale and bias included.
    """

    KIND: ClassVar = "group_norm"
    INPUTS: ClassVar = (1, 16)
    ABI_INPUTS: ClassVar = ("group_norm/abi.h", "kGroupNormInputs")
    READS_ALL: ClassVar = False  # a scale of ones, a bias of zeros
    INPUT_DTYPES: ClassVar = FLOATS
    OUTPUT_DTYPES: ClassVar = FLOATS
    RULES: ClassVar = (
        Rule("groups", "channels % groups == 0", "do not divide the channels"),
        Rule("groups", f"channels <= {MAX_GROUP} * groups", f"have more than {MAX_GROUP} channels"),
    )
    SHAPES: ClassVar = (Dims("x", "N H W channels"),)
    RESULT: ClassVar = "N H W channels"
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    channels: int = integer(1)
    groups: int = integer(1)
    epsilon: float = number(0)
    x: int = operand(default=0)
    prologue: Transform | None = transform("x", "float32", FORMS[1:], optional=True, key="before")
    epilogue: Transform = transform("float32", "outputs", FORMS, key="after")

    @property
    @shared
    def dtype(self) -> str:
        """Of x."""
        return self.inputs[self.x]

    @property
    @shared
    def output(self) -> str:
        return self.outputs[0]

    @property
    @shared
    def group(self) -> int:
        """Channels of a group."""
        return self.channels // self.groups

    @property
    def cost(self) -> int:
        """Work for one element in float32 instructions; the prologue is computed twice."""
        return super().cost + (0 if self.prologue is None else 2 * self.prologue.program.cost)
