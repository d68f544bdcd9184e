"""ImageConvolution: a dense convolution of one to four channels with NHWC results.

It is a core with a prologue and an epilogue. The CUDA side is cuda_kernels/image_convolution/.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from onnxopt.program.core import FLOATS, Core, Transform, transform
from onnxopt.program.fields import flag, integer, nested, operand
from onnxopt.program.hardware import WARP
from onnxopt.program.schema import WHOLE_WARPS, Dims, Rule, Variant, shared
from onnxopt.program.window import Window

IMAGES = (*FLOATS, "uint8")  # what a prologue reads as x
MAX_CHANNELS = 4
MAX_SIDE = 11  # rows and columns of a kernel
MAX_STRIDE = 4
MAX_FILTERS = 4096
FILTERS = 8  # their number is a multiple of this
PRODUCT_ROWS = 16  # outputs of a product of a warp
FORMS = ("channel", "scalar")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageConvolution(Core):
    """The meaning of a kernel. inputs, outputs: storage dtype names.

    x, weight, bias: positions in inputs; bias None where there is none. channels: of x. filters: channels of the
    result. planes: whether x is NCHW. weight_channels: at least `channels`; those beyond meet zeros.

        x [N, channels, H, W] or [N, H, W, channels], weight [filters, R, S, weight_channels], bias [filters],
        result [N, Ho, Wo, filters]

    prologue: computes what is convolved, in the weight's dtype, from x and from one element a channel; padded with
    zeros afterwards. None where x is convolved. epilogue: computes the output from the sum in float32, which includes
    the bias.
    """

    KIND: ClassVar = "image_convolution"
    INPUTS: ClassVar = (2, 16)
    ABI_INPUTS: ClassVar = ("image_convolution/abi.h", "kImageConvolutionInputs")
    RULES: ClassVar = (
        Rule("outputs", "outputs[0] == inputs[weight]", "are not of the weight's dtype"),
        Rule("x", "prologue is not None or inputs[x] == inputs[weight]", "has another dtype than weight"),
        Rule(
            "epilogue",
            "all(inputs[r.input] == inputs[weight] for r in epilogue.reads)",
            "reads what has another dtype than weight",
        ),
        Rule("weight_channels", "channels <= weight_channels", "are fewer than channels"),
        Rule("window", f"max(window.kernel) <= {MAX_SIDE}", f"has a kernel above {MAX_SIDE}"),
        Rule("window", f"max(window.strides) <= {MAX_STRIDE}", f"has a stride above {MAX_STRIDE}"),
        Rule("window", "max(window.kernel) > 1", "is 1x1, of which a convolution is a product"),
        Rule("window", "max(window.dilations) == 1", "has dilations"),
        Rule("window", "window.depth is None", "has a depth"),
    )
    SHAPES: ClassVar = (
        Dims("x", "N channels H W", when="planes"),
        Dims("x", "N D? H W channels", when="not planes"),
        Dims("weight", "filters window.kernel[0] window.kernel[1] weight_channels"),
        Dims("bias", "#filters"),
    )
    RESULT: ClassVar = "N D? Ho Wo filters"
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    channels: int = integer(1, MAX_CHANNELS)
    weight_channels: int = integer(1, MAX_CHANNELS)
    filters: int = integer(FILTERS, MAX_FILTERS, multiple=FILTERS)
    planes: bool = flag()
    window: Window = nested(Window)
    epilogue: Transform = transform("float32", "outputs", FORMS)
    prologue: Transform | None = transform("x", "weight", FORMS, optional=True)
    x: int = operand(IMAGES, default=0)
    weight: int = operand(FLOATS, default=1)
    bias: int | None = operand(same_as="weight", optional=True)

    @property
    @shared
    def dtype(self) -> str:
        """Of the weight, the bias and the result, and of x where there is no prologue."""
        return self.inputs[self.weight]


@dataclasses.dataclass(frozen=True)
class ImageConvolutionVariant(Variant):
    """A block has threads / 32 warps, each of `products` products of 16 outputs; the outputs are `across` neighbours in
    each of some rows, and `filters` filters. shared: bytes of shared memory per block. exact: of float32, whether
    products keep what TF32 rounds off."""

    KERNEL = ImageConvolution
    RULES = (
        WHOLE_WARPS,
        Rule(
            "across",
            f"threads // {WARP} * products * {PRODUCT_ROWS} % across == 0",
            "does not divide a block's outputs",
        ),
        Rule("filters", "kernel.filters % filters == 0", "does not divide the kernel's filters"),
    )
    products: int = integer(1, 16, default=1)
    across: int = integer(FILTERS, 256, default=16)
    filters: int = integer(FILTERS, 4096, default=FILTERS)
    shared: int = integer(0, 2**20, default=0)
    exact: bool = flag(default=False)

    @property
    def down(self) -> int:
        """Rows of a block's outputs."""
        return self.threads // WARP * self.products * PRODUCT_ROWS // self.across
