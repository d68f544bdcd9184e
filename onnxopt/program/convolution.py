"""Convolution: what one convolution computes, its epilogue included. Tensors are NHWC, or NDHWC.

    y = activation(conv(x, w) + bias + residual)      residual_last: activation(conv(x, w) + bias) + residual

conv is Conv or ConvTranspose. Activations: relu; silu, v / (1 + exp(-v)); clip, v between 0 and a bound; leaky_relu,
v or a slope times v where v is below 0; prelu, the same with a slope for each channel; hardswish, v times v / 6 + 1 / 2
between 0 and 1. cuDNN has a list of epilogues, so no program is one. Entry points of ours run those of few channels.

Sums are float32 for every dtype. float32 convolutions use TF32 where ONNX Runtime's own ones do (provider option
use_tf32, on by default).

A convolution of codes (`codes`) has int8 w, and int8 x with the zero point 0, or other codes of 8 bits where a kernel
of ours runs it. Its sums are exact, and numbers after them float32:

    v = codes.scale * scale[k] * (conv(x - zero, w) + bias[k])      a bias of floats is added after the scales
    y = result(activation(rounded(v) + residual))            residual_last: result(rounded(activation(v)) + residual)

rounded is QuantizeLinear and DequantizeLinear, result is QuantizeLinear, and the residual may be codes too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from onnxopt.program.fields import choice, flag, integer, integers, nested, number, operand
from onnxopt.program.hardware import MAX_SHARED_BYTES
from onnxopt.program.schema import WHOLE_WARPS, Meaning, Record, Rule, Variant, shared
from onnxopt.program.window import Window

DTYPES = ("float16", "bfloat16", "float32")
CODES = ("int8", "uint8")
ACTIVATIONS = ("none", "relu", "silu", "clip", "leaky_relu", "hardswish", "prelu")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvolutionOperation(Record):
    """A convolution without its operands. transposed: a ConvTranspose; output_padding: rows and columns that it adds to
    y; depth_padding: planes. activation_value: the upper bound of clip, the slope of leaky_relu, else 0."""

    RULES: ClassVar[Sequence[Rule]] = (
        Rule("activation_value", "activation != 'clip' or activation_value > 0", "is no upper bound above 0"),
        Rule(
            "activation_value",
            "activation in ('clip', 'leaky_relu') or activation_value == 0",
            "is not 0 beside this activation",
        ),
        Rule("output_padding", "transposed or max(output_padding) == 0", "is for a ConvTranspose"),
        Rule(
            "output_padding",
            "output_padding[0] < window.strides[0] and output_padding[1] < window.strides[1]",
            "is not below the strides",
        ),
        Rule("depth_padding", "transposed or depth_padding == 0", "is for a ConvTranspose"),
        Rule(
            "depth_padding",
            "depth_padding == 0 or (window.depth is not None and depth_padding < window.depth.stride)",
            "is not below the depth's stride",
        ),
        Rule("transposed", "not transposed or window.auto_pad == 'NOTSET'", "is set beside auto_pad"),
    )
    window: Window = nested(Window)
    group: int = integer(1, default=1)
    residual_last: bool = flag(default=False)
    activation: str = choice("ConvolutionActivation", ACTIVATIONS, default="none")
    activation_value: float = number(default=0.0)
    transposed: bool = flag(default=False)
    output_padding: tuple[int, int] = integers(0, count=2, default=(0, 0))
    depth_padding: int = integer(0, default=0)


@dataclasses.dataclass(frozen=True)
class CodeScale(Record):
    """A code stands for (code - zero) * scale."""

    scale: float = number(0.0, above=True)
    zero: float = number(-128.0, 255.0, whole=True, default=0.0)


@dataclasses.dataclass(frozen=True)
class ConvolutionCodes(Record):
    """What the codes of a convolution stand for. zero: of x. scale: of x; where w has one scale, times that. rounded:
    of the codes, of rounded_dtype, that the result is rounded to before a residual, or before the activation; None
    where it is not. residual, result: None where these are floats."""

    scale: float = number(0.0, above=True)
    rounded: CodeScale | None = nested(CodeScale, optional=True)
    rounded_dtype: str = choice("CodeDtype", CODES, default="int8")
    residual: CodeScale | None = nested(CodeScale, optional=True)
    result: CodeScale | None = nested(CodeScale, optional=True)
    zero: float = number(-128.0, 255.0, whole=True, default=0.0)


@dataclasses.dataclass(frozen=True)
class Convolution(ConvolutionOperation, Meaning):
    """The meaning of a convolution kernel.

    inputs: storage dtypes of all inputs. outputs: storage dtype of y [N, Ho, Wo, K]. x, w, bias, residual, slope,
    scale: positions in inputs; two operands may be one input. Their shapes are [N, H, W, C], [K, R, S, C / group] (or
    [K, C] for a 1x1 window), [K], [N, Ho, Wo, K], [K] and [K]. Of a ConvTranspose, w is [C, R, S, K / group]. Volumes
    have their depth after N, and w its depth before R, [K, T, R, S, C / group], where the window has one. codes: None
    where all are floats. scale: of each filter's codes; None where w has one scale.
    """

    KIND: ClassVar = "convolution"
    INPUTS: ClassVar = (1, 5)
    INPUT_DTYPES: ClassVar = (*DTYPES, *CODES, "int32")
    OUTPUT_DTYPES: ClassVar = (*DTYPES, *CODES)
    JSON: ClassVar = (
        "inputs", "outputs", "window", "group", "x", "w", "bias", "residual", "slope", "residual_last", "activation",
        "activation_value", "transposed", "output_padding", "depth_padding", "codes", "scale",
    )  # fmt: skip
    RULES: ClassVar[Sequence[Rule]] = (
        *ConvolutionOperation.RULES,
        Rule("inputs", "codes is not None or all(d == outputs[0] for d in inputs)", "differ from the output's dtype"),
        Rule("outputs", f"codes is not None or outputs[0] in {DTYPES}", "are no floats"),
        Rule("scale", "scale is None or codes is not None", "is set without codes"),
        Rule("scale", f"scale is None or inputs[scale] in {DTYPES}", "is of no floats"),
        Rule("w", "codes is None or inputs[w] == 'int8'", "is of no int8 codes"),
        Rule(
            "x",
            f"codes is None or (inputs[x] == 'int8' and codes.zero == 0) or (inputs[x] in {CODES}"
            " and codes.result is not None and (residual is None or codes.residual is not None)"
            " and activation in ('none', 'relu', 'clip'))",
            "is of codes that no kernel multiplies with these steps",
        ),
        Rule(
            "codes",
            "codes is None or (group == 1 and not transposed and window.depth is None and slope is None)",
            "do not go with this convolution",
        ),
        Rule(
            "bias",
            f"codes is None or bias is None or inputs[bias] in {(*DTYPES, 'int32')}",
            "is of no floats and of no int32",
        ),
        Rule(
            "residual",
            f"codes is None or residual is None or inputs[residual] in {DTYPES}"
            f" or (codes.residual is not None and inputs[residual] in {CODES})",
            "is of no floats and of no codes",
        ),
        Rule(
            "codes",
            f"codes is None or codes.residual is None or (residual is not None and inputs[residual] in {CODES})",
            "have a scale of a residual that is not of codes",
        ),
        Rule(
            "codes",
            f"codes is None or (codes.result is None) == (outputs[0] in {DTYPES})",
            "do not go with the output's dtype",
        ),
        Rule("slope", "(slope is not None) == (activation == 'prelu')", "does not go with the activation"),
        Rule("residual_last", "not residual_last or residual is not None", "is set without a residual"),
    )
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    x: int = operand(default=0)
    w: int = operand(default=1)
    bias: int | None = operand(optional=True)
    residual: int | None = operand(optional=True)
    slope: int | None = operand(optional=True)
    codes: ConvolutionCodes | None = nested(ConvolutionCodes, optional=True)
    scale: int | None = operand(optional=True)

    @property
    @shared
    def dtype(self) -> str:
        return self.outputs[0]

    @property
    @shared
    def needs_own_kernel(self) -> bool:
        """Whether cuDNN has no kernel for the codes of x."""
        return self.codes is not None and (self.inputs[self.x] == "uint8" or self.codes.zero != 0)

    @property
    @shared
    def has_own_kernel(self) -> bool:
        """Whether it goes from codes to codes by steps that a kernel of ours has."""
        return (
            self.codes is not None
            and self.codes.result is not None
            and (self.residual is None or self.codes.residual is not None)
            and self.activation in ("none", "relu", "clip")
        )


@dataclasses.dataclass(frozen=True)
class DenseTile(Record):
    """How a block of a dense convolution of few channels divides its work. `parts` of its warps share outputs, and each
    has some of the filters; a warp's `products` products are below each other, each of 16 outputs, `across` of them
    neighbours in a row. pixels: of the result, up to which it runs; 0 for any number."""

    RULES: ClassVar[Sequence[Rule]] = (
        Rule("filters", "filters % (16 * parts) == 0", "are not whole products for each part"),
        Rule("across", "across in (8, 16)", "is neither 8 nor 16"),
    )
    channels: int = integer(16, 512, 16)
    filters: int = integer(16, 512, 16)
    products: int = integer(1, 16)
    across: int = integer(8, 16)
    parts: int = integer(1, 8)
    pixels: int = integer(0, default=0)


@dataclasses.dataclass(frozen=True)
class DenseConvolutionVariant(Variant):
    """A convolution of 16-bit floats that keeps the weights of all filters in shared memory. shared: bytes of a
    block."""

    KERNEL = Convolution
    RULES = (
        Rule(
            "tile",
            "kernel.codes is None and kernel.dtype != 'float32' and kernel.group == 1 and not kernel.transposed"
            " and kernel.window.depth is None",
            "is of a convolution that no kernel of ours runs",
        ),
        WHOLE_WARPS,
        Rule("threads", "threads % (32 * tile.parts) == 0", "are not the warps of whole parts"),
    )
    tile: DenseTile = nested(DenseTile)
    shared: int = integer(0, MAX_SHARED_BYTES, default=0)


@dataclasses.dataclass(frozen=True)
class CodedConvolutionVariant(Variant):
    """A convolution of codes, by tiles of 128 pixels and `columns` filters. shared: bytes of a block."""

    KERNEL = Convolution
    RULES = (
        Rule("columns", "kernel.has_own_kernel", "are of a convolution that no kernel of ours runs"),
        Rule("threads", "threads == 256", "is not 256"),
    )
    columns: int = integer(64, 128, 64, default=128)
    shared: int = integer(0, MAX_SHARED_BYTES, default=0)
