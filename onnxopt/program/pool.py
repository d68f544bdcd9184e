"""Pool: a max or average over windows of an NHWC or NDHWC tensor, channel by channel.

Neither a program nor another operand: an epilogue is to come. The CUDA side is cuda_kernels/pool/.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from onnxopt.program.fields import choice, flag, integer, nested
from onnxopt.program.hardware import ACCESS_BYTES
from onnxopt.program.schema import WHOLE_WARPS, Dims, Meaning, Rule, Variant, shared
from onnxopt.program.window import Window

OPERATIONS = {"MaxPool": "max", "AveragePool": "average"}
DTYPES = {  # operation -> storage dtypes
    "max": ("float16", "bfloat16", "float32", "int8", "uint8"),
    "average": ("float16", "bfloat16", "float32"),
}
MAX_SIDE = 1023  # rows and columns of a window, strides and dilations
_LARGEST = "max(max(window.kernel), max(window.strides), max(window.dilations))"
_SAME = "window.auto_pad in ('SAME_UPPER', 'SAME_LOWER')"
_OVERLAPS = "window.strides[0] <= window.kernel[0] and window.strides[1] <= window.kernel[1]"
_DEPTH = "max(max(window.depth.kernel, window.depth.stride), window.depth.dilation)"
_COVERED = " and ".join(f"window.pads[{k}] < window.kernel[{k % 2}]" for k in range(4))


@dataclasses.dataclass(frozen=True)
class Pool(Meaning):
    """The meaning of a pool's kernel: x [N, H, W, C] to y [N, Ho, Wo, C], or x [N, D, H, W, C] to y [N, Do, Ho, Wo, C].

    inputs, outputs: storage dtype names, one each, the same. operation: "max" or "average"; averages are summed in
    float32. Of a window outside of x alone, the max is the least finite number and the average is 0. Not a number in a
    window is the window's max. ceil_mode: a last window that begins inside x, or in the padding before it, counts even
    where it reaches beyond the padding. count_include_pad: averages count the padding as zeros.

    ONNX Runtime's own kernels and releases disagree about most of what the rules refuse.
    """

    KIND: ClassVar = "pool"
    INPUTS: ClassVar = (1, 1)
    RULES: ClassVar = (
        Rule("outputs", "inputs[0] == outputs[0]", "differ from the input's dtype"),
        Rule("inputs", f"operation == 'max' or inputs[0] in {DTYPES['average']}", "are no floats, as averages take"),
        Rule("window", f"{_LARGEST} <= {MAX_SIDE}", f"has a kernel, stride or dilation above {MAX_SIDE}"),
        Rule("window.pads", _COVERED, "are not smaller than the kernel"),
        Rule("window.depth", f"window.depth is None or {_DEPTH} <= {MAX_SIDE}", f"has a number above {MAX_SIDE}"),
        Rule(
            "window.depth",
            "window.depth is None or max(window.depth.front, window.depth.back) < window.depth.kernel",
            "has padding that is not smaller than the kernel",
        ),
        Rule(
            "window.depth",
            f"not {_SAME} or window.depth is None or"
            " (window.depth.dilation == 1 and window.depth.stride <= window.depth.kernel)",
            "has a dilation or a stride above the kernel beside auto_pad",
        ),
        Rule("window.dilations", f"not {_SAME} or max(window.dilations) == 1", "are not 1 beside auto_pad"),
        Rule("window.strides", f"not {_SAME} or {_OVERLAPS}", "exceed the kernel beside auto_pad"),
        Rule("count_include_pad", "not (ceil_mode and count_include_pad)", "is set beside ceil_mode"),
        Rule("count_include_pad", "operation == 'average' or not count_include_pad", "is set for a max"),
    )
    INPUT_DTYPES: ClassVar = DTYPES["max"]
    IMPLICIT: ClassVar = (0,)
    SHAPES: ClassVar = (Dims("x", "N D? H W C", at=0),)
    RESULT: ClassVar = "N D? Ho Wo C"
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    operation: str = choice("PoolOperation", tuple(DTYPES))
    window: Window = nested(Window)
    ceil_mode: bool = flag(default=False)
    count_include_pad: bool = flag(default=False)

    @property
    @shared
    def dtype(self) -> str:
        return self.inputs[0]


@dataclasses.dataclass(frozen=True)
class PoolVariant(Variant):
    """A thread computes `down` x `across` outputs of `vector` channels."""

    KERNEL = Pool
    RULES = (
        WHOLE_WARPS,
        Rule("index", "index == 32", "is not 32"),
        Rule("vector", f"vector * size(kernel.dtype) <= {ACCESS_BYTES}", "is wider than one access"),
    )
    down: int = integer(1, 16, default=1)
    across: int = integer(1, 16, default=1)
