"""GroupNorm: a normalization over groups of channels in NHWC, a core with a prologue and an epilogue.

The CUDA side is cuda_kernels/group_norm/.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from onnxopt.program.core import FLOATS, FORMS, Core, Transform, transform
from onnxopt.program.fields import choice, integer, number, operand
from onnxopt.program.schema import WHOLE_WARPS, Dims, Rule, Variant, shared

MAX_GROUP = 1024  # channels: a block has a thread for each


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupNorm(Core):
    """The meaning of a kernel. inputs, outputs: storage dtype names. x: position in inputs.

        x [N, H, W, channels], result [N, H, W, channels]; volumes have a depth after N

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
    SHAPES: ClassVar = (Dims("x", "N D? H W channels"),)
    RESULT: ClassVar = "N D? H W channels"
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    channels: int = integer(1)
    groups: int = integer(1)
    epsilon: float = number(0)
    x: int = operand(default=0)
    prologue: Transform | None = transform("x", "float32", FORMS[1:], optional=True)
    epilogue: Transform = transform("float32", "outputs", FORMS)

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


@dataclasses.dataclass(frozen=True)
class GroupNormVariant(Variant):
    """layout: "held" (x stays in registers; `cluster` blocks share a slab), "split" (two launches: 0 writes means and
    variances to scratch memory, 1 reads them) or "looped" (one block a slab, x is read twice).
    vector: channels of a thread. columns: vectors of a slab. held: vectors of a thread.
    """

    KERNEL = GroupNorm
    RULES = (
        WHOLE_WARPS,
        Rule("columns", "columns <= threads", "are more than the threads"),
        Rule("held", "(layout == 'held') == (held > 0)", "is of blocks that hold their elements"),
        Rule("launch", "launch == 0 or layout == 'split'", "is not 0"),
        Rule("cluster", "layout == 'held' or cluster == 1", "is of blocks that hold their elements"),
        Rule(
            "columns",
            "kernel.channels % (vector * columns) == 0 and vector * columns % kernel.group == 0",
            "are not those of whole groups",
        ),
    )
    layout: str = choice("GroupNormLayout", ("held", "split", "looped"), default="held")
    columns: int = integer(1, 1024, default=1)
    held: int = integer(0, 64, default=0)
    cluster: int = integer(1, 16, default=1)
    launch: int = integer(0, 1, default=0)
