"""Depthwise: a depthwise convolution in NHWC, a core with a prologue and an epilogue.

Beside them, it has a 1x1 convolution upstream of its prologue where there is one. The CUDA side is
cuda_kernels/depthwise/.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from onnxopt.program.core import FLOATS, HALF, Core, Transform, transform
from onnxopt.program.fields import choice, integer, nested, operand
from onnxopt.program.hardware import ACCESS_BYTES
from onnxopt.program.schema import WHOLE_WARPS, Dims, Record, Rule, Variant, shared
from onnxopt.program.window import Window

MAX_SIDE = 255  # rows and columns of a kernel, and the largest stride and dilation
MAX_HELD = 49  # weights that a thread holds for a channel
FORMS = ("element", "channel", "scalar")
EXPANDED = ("float16", "bfloat16")  # dtypes of an expansion
MAX_EXPANDED = 96  # channels of x with an expansion, as registers hold the weights of so many
MAX_EXPANDED_SIDE = 7  # rows and columns of a kernel with an expansion
_EXPANDED_WINDOW = (
    f"max(window.kernel) <= {MAX_EXPANDED_SIDE} and max(window.strides) <= 2 and max(window.dilations) == 1"
)


@dataclasses.dataclass(frozen=True)
class Expansion(Record):
    """A 1x1 convolution of x, whose result is rounded to x's dtype. weight, bias: positions in inputs, bias None where
    there is none; channels: of x. weight [wide channels, channels], bias [wide channels]."""

    weight: int = operand()
    channels: int = integer(8, MAX_EXPANDED, multiple=8)
    bias: int | None = operand(optional=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Depthwise(Core):
    """The meaning of a depthwise kernel. inputs, outputs: storage dtype names.

    x, weight, bias: positions in inputs; bias None where there is none. channels: of x and of the result.

        x [N, H, W, channels], weight [R, S, 1, channels], bias [channels], result [N, Ho, Wo, channels]

    gated: the epilogue reads sums by half; x, weight and bias have twice as many channels then.
    expansion: computes from x [N, H, W, expansion.channels] what is read as x by all that follows. prologue: computes
    what is convolved from x and from one element a channel, None where x is convolved. The result is rounded to x's
    dtype, and padded with zeros afterwards. epilogue: computes the output from the sum in float32, which includes the
    bias.
    """

    KIND: ClassVar = "depthwise"
    INPUTS: ClassVar = (2, 16)
    ABI_INPUTS: ClassVar = ("depthwise/abi.h", "kDepthwiseInputs")
    INPUT_DTYPES: ClassVar = FLOATS
    OUTPUT_DTYPES: ClassVar = FLOATS
    RULES: ClassVar = (
        Rule("window", "window.depth is None", "has a depth"),
        Rule(
            "window",
            f"max(max(window.kernel), max(window.strides), max(window.dilations)) <= {MAX_SIDE}",
            f"has a kernel, stride or dilation above {MAX_SIDE}",
        ),
        Rule("expansion", f"expansion is None or inputs[x] in {EXPANDED}", "is not of 16-bit floats"),
        Rule("expansion", "expansion is None or channels % 8 == 0", "is to channels that are no multiple of 8"),
        Rule(
            "expansion.weight",
            "expansion is None or inputs[expansion.weight] == inputs[x]",
            "has another dtype than x",
        ),
        Rule(
            "expansion.bias",
            "expansion is None or expansion.bias is None or inputs[expansion.bias] == inputs[x]",
            "has another dtype than x",
        ),
        Rule(
            "expansion",
            f"expansion is None or ({_EXPANDED_WINDOW})",
            f"goes with no kernel above {MAX_EXPANDED_SIDE}, no stride above 2, and no dilation",
        ),
        Rule("expansion", "expansion is None or not reads_elements", "goes with no epilogue that reads by element"),
        Rule(
            "epilogue",
            "not gated or (expansion is None and prologue is None)",
            "reads by half what a prologue computes",
        ),
    )
    SHAPES: ClassVar = (
        Dims("x", "N D? H W x_channels"),
        Dims("weight", "window.kernel[0] window.kernel[1] 1 filters"),
        Dims("bias", "#filters"),
        Dims("expansion.weight", "channels expansion.channels"),
        Dims("expansion.bias", "#channels"),
    )
    RESULT: ClassVar = "N D? Ho Wo channels"
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    channels: int = integer(1)
    window: Window = nested(Window)
    x: int = operand(default=0)
    weight: int = operand(same_as="x", default=1)
    bias: int | None = operand(same_as="x", optional=True)
    expansion: Expansion | None = nested(Expansion, optional=True)
    prologue: Transform | None = transform("x", "x", FORMS[1:], optional=True)
    epilogue: Transform = transform("float32", "outputs", (*FORMS, HALF))

    @property
    @shared
    def dtype(self) -> str:
        """Of x, the weight and the bias."""
        return self.inputs[self.x]

    @property
    @shared
    def output(self) -> str:
        return self.outputs[0]

    @property
    @shared
    def gated(self) -> bool:
        """Whether the epilogue reads what halves of the channels are convolved to."""
        return any(r.form == "half" for r in self.epilogue.reads)

    @property
    @shared
    def filters(self) -> int:
        """Channels that are convolved."""
        return self.channels * 2 if self.gated else self.channels

    @property
    @shared
    def x_channels(self) -> int:
        return self.filters if self.expansion is None else self.expansion.channels

    @property
    @shared
    def reads_elements(self) -> bool:
        """Whether the epilogue reads a tensor of the result's shape."""
        return any(r.form == "element" for r in self.epilogue.reads)


@dataclasses.dataclass(frozen=True)
class DepthwiseVariant(Variant):
    """layout: held (weights in registers), walking (over the window's rows), banded (tensor cores) or expanded (after a
    1x1 convolution).
    down, across: outputs of a thread, of `vector` neighbouring channels; of a banded one, rows of a segment and octets
    along a row; of an expanded one, those of a block. chunks, warps, images, pieces: of a banded one, see
    banded_tile.cuh. chunks, warps, strip: of an expanded one, see expanded_tile.cuh; chunks of 8 channels at a time.
    Elsewhere 0. blocks: of a multiprocessor, that registers are to suffice for; 0 for any.
    narrowest, widest: widths of the result for which the entry point is preferred; widest 0 for any. fewest: threads of
    a multiprocessor below which it is not.
    shared: bytes of shared memory per block.
    """

    KERNEL = Depthwise
    RULES = (
        WHOLE_WARPS,
        Rule("layout", "(layout == 'expanded') == (kernel.expansion is not None)", "does not fit the kernel's meaning"),
        Rule("down", "down <= 16 or layout == 'expanded'", "is above 16"),
        Rule("across", "across <= 16 or layout == 'expanded'", "is above 16"),
        Rule("down", "down == 1 or layout != 'walking'", "is not 1"),
        Rule("chunks", "chunks > 0 or layout not in ('banded', 'expanded')", "is 0"),
        Rule("chunks", "chunks <= 4 or layout != 'banded'", "is above 4"),
        Rule("images", "images > 0 or layout != 'banded'", "is 0"),
        Rule(
            "layout",
            "layout != 'banded' or (vector == 8 and size(kernel.dtype) == 2 and kernel.output == kernel.dtype)",
            'is "banded", which is for 16-bit floats in vectors of 8',
        ),
        Rule("across", "layout != 'banded' or 16 % (across * images) == 0", "does not divide a product's rows"),
        Rule(
            "vector", f"layout == 'banded' or vector * size(kernel.dtype) <= {ACCESS_BYTES}", "is wider than one access"
        ),
        Rule("layout", "layout == 'held' or not kernel.gated", 'is not "held", as those of halves are'),
        Rule(
            "threads",
            "layout != 'expanded' or threads >= chunks * 8 // vector",
            "are fewer than a round's vectors of channels",
        ),
    )
    layout: str = choice("DepthwiseLayout", ("held", "walking", "banded", "expanded"), default="held")
    down: int = integer(1, 32, default=1)
    across: int = integer(1, 32, default=1)
    chunks: int = integer(0, 8, default=0)
    warps: int = 0
    images: int = integer(0, 4, default=0)
    pieces: int = 0
    strip: int = 0
    blocks: int = 0
    narrowest: int = integer(1, default=1)
    widest: int = integer(0, default=0)
    fewest: int = integer(0, default=0)
    shared: int = integer(0, 2**20, default=0)
