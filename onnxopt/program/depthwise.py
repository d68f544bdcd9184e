"""Depthwise: a depthwise convolution in NHWC with the elementwise work in front of it and behind it.

The C++ side is custom_ops/program/depthwise.h, the CUDA side cuda_kernels/depthwise/.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from onnxopt.program.dtypes import DTYPES
from onnxopt.program.pointwise import Program
from onnxopt.program.window import Window

STORED = ("float16", "bfloat16", "float32")
MOST_INPUTS = 16  # kDepthwiseInputs of cuda_kernels/depthwise/abi.h
MOST_SIDE = 255  # rows and columns of a kernel, and the largest stride and dilation
FORMS = ("element", "channel", "scalar")
EXPANDED = ("float16", "bfloat16")  # dtypes of an expansion
MOST_EXPANDED = 96  # channels in front of an expansion, as registers hold the weights of so many
MOST_EXPANDED_SIDE = 7  # rows and columns of a kernel behind an expansion


@dataclasses.dataclass(frozen=True)
class Read:
    """How a program reads an input. form: "element": a tensor of the result's shape; "channel": one element a channel;
    "scalar": one element."""

    input: int
    form: str


@dataclasses.dataclass(frozen=True)
class Part:
    """A program in front of the convolution or behind it. Its first operand is the value that passes through; `reads`
    are the others."""

    program: Program
    reads: tuple[Read, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"program": self.program.to_json(), "reads": [dataclasses.asdict(r) for r in self.reads]}


@dataclasses.dataclass(frozen=True)
class Expansion:
    """A 1x1 convolution in front, whose result is rounded to x's dtype. weight, bias: positions in inputs, bias None
    where there is none; channels: of x. weight [wide channels, channels], bias [wide channels]."""

    weight: int
    channels: int
    bias: int | None = None

    def to_json(self) -> dict[str, Any]:
        return {k: v for k, v in dataclasses.asdict(self).items() if v is not None}


@dataclasses.dataclass(frozen=True)
class Depthwise:
    """The meaning of a depthwise kernel. inputs, outputs: storage dtype names.

    x, weight, bias: positions in inputs; bias None where there is none. channels: of x and of the result.

        x [N, H, W, channels], weight [R, S, 1, channels], bias [channels], result [N, Ho, Wo, channels]

    expansion: computes from x [N, H, W, expansion.channels] what stands for x in all that follows.
    before: computes what is convolved from x and from one element a channel, None where x is convolved. The result is
    rounded to x's dtype, and padded with zeros afterwards. after: computes the output from the sum in float32, which
    includes the bias.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    channels: int
    window: Window
    after: Part
    before: Part | None = None
    x: int = 0
    weight: int = 1
    bias: int | None = None
    expansion: Expansion | None = None

    @property
    def dtype(self) -> str:
        """Storage dtype of x, the weight and the bias."""
        return self.inputs[self.x]

    @property
    def cost(self) -> int:
        """Work of the program behind for one element, in float32 instructions."""
        return self.after.program.cost

    @property
    def parts(self) -> tuple[Part, ...]:
        return (self.after,) if self.before is None else (self.before, self.after)

    @property
    def reads_elements(self) -> bool:
        """Whether the program behind reads a tensor of the result's shape."""
        return any(r.form == "element" for r in self.after.reads)

    def verify(self) -> None:
        """Raise ValueError naming the field that breaks a rule of this class."""
        self.window.verify()
        if max(*self.window.kernel, *self.window.strides, *self.window.dilations) > MOST_SIDE:
            raise ValueError(f"window: a kernel, stride or dilation above {MOST_SIDE}")
        if not 1 <= len(self.inputs) <= MOST_INPUTS:
            raise ValueError(f"inputs: {len(self.inputs)}, not 1 to {MOST_INPUTS}")
        of_expansion = (self.expansion.weight, self.expansion.bias) if self.expansion is not None else ()
        operands = {p for p in (self.x, self.weight, self.bias, *of_expansion) if p is not None}
        if operands | {r.input for p in self.parts for r in p.reads} != set(range(len(self.inputs))):
            raise ValueError("inputs: not all of them are read, or others are")
        if self.dtype not in STORED or any(self.inputs[p] != self.dtype for p in operands):
            raise ValueError(f"inputs: x, weight and bias are not of one dtype of {', '.join(STORED)}")
        if len(self.outputs) != 1 or self.outputs[0] not in STORED or set(self.inputs) - set(STORED):
            raise ValueError(f"outputs: not one of {', '.join(STORED)}, or an input is none of these")
        if self.channels < 1:
            raise ValueError(f"channels: {self.channels}")
        self._verify_expansion()
        self._verify_part("after", self.after, "float32", self.outputs[0], FORMS)
        if self.before is not None:
            self._verify_part("before", self.before, self.dtype, self.dtype, FORMS[1:])

    def _verify_expansion(self) -> None:
        if self.expansion is None:
            return
        narrow, window = self.expansion.channels, self.window
        if self.dtype not in EXPANDED or narrow % 8 or not 8 <= narrow <= MOST_EXPANDED or self.channels % 8:
            raise ValueError(f"expansion: of {narrow} to {self.channels} {self.dtype}")
        if max(window.kernel) > MOST_EXPANDED_SIDE or max(window.strides) > 2 or max(window.dilations) > 1:
            raise ValueError(f"expansion: a kernel above {MOST_EXPANDED_SIDE}, a stride above 2, or a dilation")
        if self.reads_elements:
            raise ValueError("expansion: the program behind reads a tensor of the result's shape")

    def _verify_part(self, name: str, part: Part, first: str, result: str, forms: tuple[str, ...]) -> None:
        part.program.verify()
        if any(r.form not in forms for r in part.reads):
            raise ValueError(f"{name}: reads by another form than {', '.join(forms)}")
        read = tuple(self.inputs[r.input] for r in part.reads)
        if part.program.inputs != (first, *read) or part.program.outputs != (result,):
            raise ValueError(f"{name}: is no program of {first} and its reads that stores {result}")
        if part.program.index is not None or any(DTYPES[d].kind != "float" for d in read):
            raise ValueError(f"{name}: has index operations, or reads what is no float")

    def to_json(self) -> dict[str, Any]:
        """The form in kernels.json, without bias, expansion and before where there are none."""
        row: dict[str, Any] = {
            "inputs": list(self.inputs),
            "outputs": list(self.outputs),
            "channels": self.channels,
            "window": self.window.to_json(),
            "x": self.x,
            "weight": self.weight,
            "bias": self.bias,
            "expansion": None if self.expansion is None else self.expansion.to_json(),
            "before": None if self.before is None else self.before.to_json(),
            "after": self.after.to_json(),
        }
        return {k: v for k, v in row.items() if v is not None}
