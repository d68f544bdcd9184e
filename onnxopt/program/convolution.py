"""Convolution: what one convolution that cuDNN runs computes, its epilogue included. Tensors are NHWC, or NDHWC.

    y = activation(conv(x, w) + bias + residual)      residual_last: activation(conv(x, w) + bias) + residual

conv is Conv or ConvTranspose. Activations: relu; silu, v / (1 + exp(-v)); clip, v between 0 and a bound; leaky_relu,
v or a slope times v where v is below 0; prelu, the same with a slope for each channel; hardswish, v times v / 6 + 1 / 2
between 0 and 1. cuDNN has a list of epilogues, so no program is one.

Sums are float32 for every dtype. float32 convolutions use TF32 where ONNX Runtime's own ones do (provider option
use_tf32, on by default).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from onnxopt.program.fields import choice, flag, integer, integers, nested, number, operand
from onnxopt.program.schema import Meaning, Record, Rule, shared
from onnxopt.program.window import Window

DTYPES = ("float16", "bfloat16", "float32")
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
class Convolution(ConvolutionOperation, Meaning):
    """The meaning of a convolution kernel.

    inputs: storage dtypes of all inputs. outputs: storage dtype of y [N, Ho, Wo, K]. x, w, bias, residual, slope:
    positions in inputs; two operands may be one input. Their shapes are [N, H, W, C], [K, R, S, C / group] (or [K, C]
    for a 1x1 window), [K], [N, Ho, Wo, K] and [K]. Of a ConvTranspose, w is [C, R, S, K / group]. Volumes have their
    depth after N, and w its depth before R, [K, T, R, S, C / group], where the window has one.
    """

    KIND: ClassVar = "convolution"
    INPUTS: ClassVar = (1, 5)
    INPUT_DTYPES: ClassVar = DTYPES
    JSON: ClassVar = (
        "inputs", "outputs", "window", "group", "x", "w", "bias", "residual", "slope", "residual_last", "activation",
        "activation_value", "transposed", "output_padding", "depth_padding",
    )  # fmt: skip
    RULES: ClassVar[Sequence[Rule]] = (
        *ConvolutionOperation.RULES,
        Rule("inputs", "all(d == outputs[0] for d in inputs)", "differ from the output's dtype"),
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

    @property
    @shared
    def dtype(self) -> str:
        return self.outputs[0]
