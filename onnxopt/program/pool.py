"""Pool: a max or average over windows of an NHWC tensor, channel by channel.

The C++ side is custom_ops/program/pool.h, the CUDA side cuda_kernels/pool/.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from onnxopt.program.window import Window

OPERATIONS = {"MaxPool": "max", "AveragePool": "average"}
DTYPES = {  # operation -> storage dtypes
    "max": ("float16", "bfloat16", "float32", "int8", "uint8"),
    "average": ("float16", "bfloat16", "float32"),
}
MOST_SIDE = 1023  # rows and columns of a window, strides and dilations


@dataclasses.dataclass(frozen=True)
class Pool:
    """The meaning of a pool's kernel: x [N, H, W, C] to y [N, Ho, Wo, C].

    inputs, outputs: storage dtype names, one each, the same. operation: "max" or "average"; averages are summed in
    float32. Of a window outside of x alone, the max is the least finite number and the average is 0. Not a number in a
    window is the window's max. ceil_mode: a last window that begins inside x, or in the padding before it, counts even
    where it reaches beyond the padding. count_include_pad: averages count the padding as zeros.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    operation: str
    window: Window
    ceil_mode: bool = False
    count_include_pad: bool = False

    @property
    def dtype(self) -> str:
        return self.inputs[0]

    def verify(self) -> None:
        """Raise ValueError naming the field that breaks a rule of this class."""
        self.window.verify()
        if len(self.inputs) != 1 or self.outputs != self.inputs:
            raise ValueError(f"inputs and outputs: {self.inputs} and {self.outputs} are not one dtype")
        if self.operation not in DTYPES:
            raise ValueError(f"operation: {self.operation} is not one of {', '.join(DTYPES)}")
        if self.dtype not in DTYPES[self.operation]:
            raise ValueError(f"inputs: {self.dtype} is not one of {', '.join(DTYPES[self.operation])}")
        if reason := why_not(self.operation, self.window, self.ceil_mode, self.count_include_pad):
            raise ValueError(f"window: {reason}")

    def to_json(self) -> dict[str, Any]:
        """The form in kernels.json."""
        row = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {**row, "inputs": list(self.inputs), "outputs": list(self.outputs), "window": self.window.to_json()}


def why_not(operation: str, window: Window, ceil_mode: bool, count_include_pad: bool) -> str:
    """The reason why no kernel runs a pool with these attributes; "" where one does.

    ONNX Runtime's own kernels and releases disagree about most of what is refused here.
    """
    kernel, strides = window.kernel, window.strides
    if max(*kernel, *strides, *window.dilations) > MOST_SIDE:
        return f"a window, stride or dilation above {MOST_SIDE}"
    if any(pad >= side for pad, side in zip(window.pads, (*kernel, *kernel), strict=True)):
        return f"pads {window.pads} are not smaller than the window {kernel}"
    if window.auto_pad.startswith("SAME"):
        if window.dilations != (1, 1):
            return f"auto_pad {window.auto_pad} with dilations {window.dilations}"
        if any(stride > side for stride, side in zip(strides, kernel, strict=True)):
            return f"auto_pad {window.auto_pad} with strides {strides} larger than the window {kernel}"
    if operation == "average" and ceil_mode and count_include_pad:
        return "ceil_mode with count_include_pad"
    return ""
