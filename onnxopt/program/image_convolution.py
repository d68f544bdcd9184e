"""ImageConvolution: a dense convolution of one to four channels with the elementwise work around it, NHWC results.

The C++ side is custom_ops/program/image_convolution.h, the CUDA side cuda_kernels/image_convolution/.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from onnxopt.program.depthwise import Part
from onnxopt.program.dtypes import DTYPES
from onnxopt.program.window import Window

STORED = ("float16", "bfloat16", "float32")
IMAGES = ("float16", "bfloat16", "float32", "uint8")  # what a program in front reads
MOST_INPUTS = 16  # kImageConvolutionInputs of cuda_kernels/image_convolution/abi.h
MOST_CHANNELS = 4
MOST_SIDE = 11  # rows and columns of a kernel
MOST_STRIDE = 4
MOST_FILTERS = 4096
FILTERS = 8  # their number is a multiple of this
FORMS = ("channel", "scalar")


@dataclasses.dataclass(frozen=True)
class ImageConvolution:
    """The meaning of a kernel. inputs, outputs: storage dtype names.

    x, weight, bias: positions in inputs; bias None where there is none. channels: of x. filters: channels of the
    result. planes: whether x is NCHW. weight_channels: at least `channels`; those beyond meet zeros.

        x [N, channels, H, W] or [N, H, W, channels], weight [filters, R, S, weight_channels], bias [filters],
        result [N, Ho, Wo, filters]

    before: computes what is convolved, in the weight's dtype, from x and from one element a channel; padded with zeros
    afterwards. None where x is convolved. after: computes the output from the sum in float32, which includes the bias.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    channels: int
    weight_channels: int
    filters: int
    planes: bool
    window: Window
    after: Part
    before: Part | None = None
    x: int = 0
    weight: int = 1
    bias: int | None = None

    @property
    def dtype(self) -> str:
        """Storage dtype of the weight, the bias and the result, and of x where nothing is in front."""
        return self.inputs[self.weight]

    @property
    def cost(self) -> int:
        """Work of the program behind for one element, in float32 instructions."""
        return self.after.program.cost

    def verify(self) -> None:
        """Raise ValueError naming the field that breaks a rule of this class."""
        self.window.verify()
        if reason := why_not(self.window):
            raise ValueError(f"window: {reason}")
        if not 1 <= len(self.inputs) <= MOST_INPUTS:
            raise ValueError(f"inputs: {len(self.inputs)}, not 1 to {MOST_INPUTS}")
        operands = {p for p in (self.x, self.weight, self.bias) if p is not None}
        in_front = [r.input for r in self.before.reads] if self.before is not None else []
        if operands | {r.input for r in self.after.reads} | set(in_front) != set(range(len(self.inputs))):
            raise ValueError("inputs: not all of them are read, or others are")
        free = {*in_front, self.x} if self.before is not None else set()
        stored = {*(dtype for k, dtype in enumerate(self.inputs) if k not in free), *self.outputs}
        if self.dtype not in STORED or stored != {self.dtype} or len(self.outputs) != 1:
            raise ValueError(f"inputs: they and the one output are not of one dtype of {', '.join(STORED)}")
        if not 1 <= self.channels <= self.weight_channels <= MOST_CHANNELS:
            raise ValueError(f"channels: {self.channels} of {self.weight_channels}, not 1 to {MOST_CHANNELS}")
        if self.filters % FILTERS or not FILTERS <= self.filters <= MOST_FILTERS:
            raise ValueError(f"filters: {self.filters} is no multiple of {FILTERS} up to {MOST_FILTERS}")
        self._verify_part("after", self.after, "float32")
        if self.before is not None:
            if self.inputs[self.x] not in IMAGES:
                raise ValueError(f"before: x is none of {', '.join(IMAGES)}")
            self._verify_part("before", self.before, self.inputs[self.x])

    def _verify_part(self, name: str, part: Part, first: str) -> None:
        part.program.verify()
        if any(r.form not in FORMS for r in part.reads):
            raise ValueError(f"{name}: reads by another form than {', '.join(FORMS)}")
        read = tuple(self.inputs[r.input] for r in part.reads)
        if part.program.inputs != (first, *read) or part.program.outputs != self.outputs:
            raise ValueError(f"{name}: is no program of {first} and its reads that stores {self.outputs[0]}")
        if part.program.index is not None or any(DTYPES[dtype].kind != "float" for dtype in read):
            raise ValueError(f"{name}: has index operations, or reads what is no float")

    def to_json(self) -> dict[str, Any]:
        """The form in kernels.json, without bias and before where there are none."""
        row = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        row |= {"inputs": list(self.inputs), "outputs": list(self.outputs)}
        row |= {"window": self.window.to_json(), "after": self.after.to_json()}
        row |= {"before": None if self.before is None else self.before.to_json()}
        return {k: v for k, v in row.items() if v is not None}


def why_not(window: Window) -> str:
    """The reason why no kernel runs a convolution with this window; "" where one does."""
    if max(window.kernel) > MOST_SIDE or max(window.strides) > MOST_STRIDE:
        return f"The kernel is larger than {MOST_SIDE}, or a stride than {MOST_STRIDE}"
    if window.kernel == (1, 1):
        return "A 1x1 convolution is a product"
    if window.dilations != (1, 1):
        return "The convolution has dilations"
    return ""
