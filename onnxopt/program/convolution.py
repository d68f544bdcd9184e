"""Convolution: what one convolution that cuDNN runs computes, its epilogue included. All tensors are NHWC.

    y = activation(conv(x, w) + bias + residual)      residual_last: activation(conv(x, w) + bias) + residual

Sums are float32 for every dtype. float32 convolutions use TF32 where ONNX Runtime's own ones do (provider option
use_tf32, on by default). The C++ side is custom_ops/program/convolution.h.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from onnxopt.program.window import Window

DTYPES = ("float16", "bfloat16", "float32")
ACTIVATIONS = ("none", "relu", "silu")


@dataclasses.dataclass(frozen=True)
class Convolution:
    """The meaning of a convolution kernel.

    inputs: storage dtypes of all inputs. outputs: storage dtype of y [N, Ho, Wo, K].
    x, w, bias, residual: positions in inputs, None where there is no such operand. Their shapes are [N, H, W, C],
    [K, R, S, C / group] (or [K, C] for a 1x1 window), [K] and [N, Ho, Wo, K].
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    window: Window
    group: int = 1
    x: int = 0
    w: int = 1
    bias: int | None = None
    residual: int | None = None
    residual_last: bool = False
    activation: str = "none"

    def verify(self) -> None:
        """Raise ValueError naming the field that breaks a rule of this class."""
        operands = [i for i in (self.x, self.w, self.bias, self.residual) if i is not None]
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
        if self.residual_last and self.residual is None:
            raise ValueError("residual_last without a residual")
        self.window.verify()

    def to_json(self) -> dict[str, Any]:
        """The form in kernels.json, without the operands that the convolution does not have."""
        row = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        row["window"] = self.window.to_json()
        return {k: list(v) if isinstance(v, tuple) else v for k, v in row.items() if v is not None}
