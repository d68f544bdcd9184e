"""Convolution: what one convolution that cuDNN runs computes, its epilogue included. All tensors are NHWC.

    y = activation(conv(x, w) + bias + residual)      residual_last: activation(conv(x, w) + bias) + residual

conv is Conv or ConvTranspose. Activations: relu; silu, v / (1 + exp(-v)); clip, v between 0 and a bound; leaky_relu,
v or a slope times v where v is below 0; prelu, the same with a slope for each channel; hardswish, v times v / 6 + 1 / 2
between 0 and 1.

Sums are float32 for every dtype. float32 convolutions use TF32 where ONNX Runtime's own ones do (provider option
use_tf32, on by default). The C++ side is custom_ops/program/convolution.h.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from onnxopt.program.window import Window

DTYPES = ("float16", "bfloat16", "float32")
ACTIVATIONS = ("none", "relu", "silu", "clip", "leaky_relu", "hardswish", "prelu")


@dataclasses.dataclass(frozen=True)
class Convolution:
    """The meaning of a convolution kernel.

    inputs: storage dtypes of all inputs. outputs: storage dtype of y [N, Ho, Wo, K].
    x, w, bias, residual, slope: positions in inputs, None where there is no such operand. Their shapes are
    [N, H, W, C], [K, R, S, C / group] (or [K, C] for a 1x1 window), [K], [N, Ho, Wo, K] and [K].
    transposed: a ConvTranspose. Its w is [C, R, S, K / group], and output_padding rows and columns are added to y.
    activation_value: the upper bound of clip, the slope of leaky_relu, else 0.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    window: Window
    group: int = 1
    x: int = 0
    w: int = 1
    bias: int | None = None
    residual: int | None = None
    slope: int | None = None
    residual_last: bool = False
    activation: str = "none"
    activation_value: float = 0.0
    transposed: bool = False
    output_padding: tuple[int, int] = (0, 0)

    def verify(self) -> None:
        """Raise ValueError naming the field that breaks a rule of this class."""
        operands = [i for i in (self.x, self.w, self.bias, self.residual, self.slope) if i is not None]
        if set(operands) != set(range(len(self.inputs))):
            raise ValueError(f"inputs: operands {operands} are not all of {len(self.inputs)} inputs")
        if len(self.outputs) != 1:
            raise ValueError(f"outputs: {len(self.outputs)}, not 1")
        if {*self.inputs, *self.outputs} - {self.outputs[0]}:
            raise ValueError("inputs and outputs differ in dtype")
        if self.outputs[0] not in DTYPES:
            raise ValueError(f"outputs: {self.outputs[0]} is not one of {', '.join(DTYPES)}")
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation: {self.activation} is not one of {', '.join(ACTIVATIONS)}")
        if self.group < 1:
            raise ValueError(f"group: {self.group} is below 1")
        self._verify_activation()
        if self.residual_last and self.residual is None:
            raise ValueError("residual_last without a residual")
        self.window.verify()
        padded = zip(self.output_padding, self.window.strides, strict=True)
        if (not self.transposed and any(self.output_padding)) or any(not 0 <= p < stride for p, stride in padded):
            raise ValueError(f"output_padding: {self.output_padding} is not below the strides of a ConvTranspose")
        if self.transposed and self.window.auto_pad != "NOTSET":
            raise ValueError(f"auto_pad: {self.window.auto_pad} beside transposed")

    def _verify_activation(self) -> None:
        value, has_value = self.activation_value, self.activation in ("clip", "leaky_relu")
        if not math.isfinite(value) or (value != 0 and not has_value) or (self.activation == "clip" and value <= 0):
            raise ValueError(f"activation_value: {value} beside {self.activation}")
        if (self.slope is None) == (self.activation == "prelu"):
            raise ValueError(f"slope: {self.slope} beside {self.activation}")

    def to_json(self) -> dict[str, Any]:
        """The form in kernels.json, without the operands that the convolution does not have."""
        row = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        row["window"] = self.window.to_json()
        return {k: list(v) if isinstance(v, tuple) else v for k, v in row.items() if v is not None}
