"""GroupNorm: a normalization over groups of channels in NHWC, with the elementwise work in front of it and behind it.

The C++ side is custom_ops/program/group_norm.h, the CUDA side cuda_kernels/group_norm/.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from onnxopt.program.dtypes import DTYPES
from onnxopt.program.pointwise import Program

STORED = ("float16", "bfloat16", "float32")
MOST_INPUTS = 16  # kGroupNormInputs of cuda_kernels/group_norm/abi.h
MOST_OF_GROUP = 1024  # channels: a block has a thread for each
FORMS = ("element", "channel", "sample", "group", "scalar")
CUT_MULTIPLE = 8  # of elements, at which parts of a row begin, so that vectors of them are aligned


@dataclasses.dataclass(frozen=True)
class GroupRead:
    """How a program reads an input. form: "element": a tensor of x's shape; "channel": one element a channel; "sample":
    one a channel of every sample, [N, 1, 1, C]; "group": one a group of channels; "scalar": one element. row, first:
    by sample, the input may be [N, row], of which C elements from `first` on are read; both are 0 elsewhere."""

    input: int
    form: str
    row: int = 0
    first: int = 0

    def to_json(self) -> dict[str, Any]:
        """The form in kernels.json, without a row where there is none."""
        row = dataclasses.asdict(self)
        return row if self.row else {name: row[name] for name in ("input", "form")}


@dataclasses.dataclass(frozen=True)
class GroupPart:
    """A program in front of the norm or behind it. Its first operand is the value that passes through; `reads` are the
    others."""

    program: Program
    reads: tuple[GroupRead, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"program": self.program.to_json(), "reads": [r.to_json() for r in self.reads]}


@dataclasses.dataclass(frozen=True)
class GroupNorm:
    """The meaning of a kernel. inputs, outputs: storage dtype names. x: position in inputs.

        x [N, H, W, channels], result [N, H, W, channels]

    before: computes what is normed from x, in float32, which is not rounded; None where x is normed. For each sample
    and each of the `groups` of neighbouring channels: (value - mean) / sqrt(variance + epsilon), in float32. after:
    computes the output from that, scale and bias included.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    channels: int
    groups: int
    epsilon: float
    after: GroupPart
    before: GroupPart | None = None
    x: int = 0

    @property
    def dtype(self) -> str:
        """Storage dtype of x."""
        return self.inputs[self.x]

    @property
    def cost(self) -> int:
        """Work for one element in float32 instructions; what is in front is computed twice."""
        return self.after.program.cost + (0 if self.before is None else 2 * self.before.program.cost)

    @property
    def parts(self) -> tuple[GroupPart, ...]:
        return (self.after,) if self.before is None else (self.before, self.after)

    def verify(self) -> None:
        """Raise ValueError naming the field that breaks a rule of this class."""
        if not 1 <= len(self.inputs) <= MOST_INPUTS:
            raise ValueError(f"inputs: {len(self.inputs)}, not 1 to {MOST_INPUTS}")
        if not 0 <= self.x < len(self.inputs) or self.dtype not in STORED:
            raise ValueError(f"x: not an input of one of {', '.join(STORED)}")
        if len(self.outputs) != 1 or self.outputs[0] not in STORED or set(self.inputs) - set(STORED):
            raise ValueError(f"outputs: not one of {', '.join(STORED)}, or an input is none of these")
        if self.groups < 1 or self.channels < 1 or self.channels % self.groups:
            raise ValueError(f"groups: {self.groups} of {self.channels} channels")
        if self.channels // self.groups > MOST_OF_GROUP:
            raise ValueError(f"groups: of more than {MOST_OF_GROUP} channels")
        if not 0 <= self.epsilon < float("inf"):
            raise ValueError(f"epsilon: {self.epsilon}")
        self._verify_part("after", self.after, "float32", self.outputs[0], FORMS)
        if self.before is not None:
            self._verify_part("before", self.before, self.dtype, "float32", FORMS[1:])

    def _verify_part(self, name: str, part: GroupPart, first: str, result: str, forms: tuple[str, ...]) -> None:
        part.program.verify()
        if any(r.form not in forms or not 0 <= r.input < len(self.inputs) for r in part.reads):
            raise ValueError(f"{name}: reads no input, or by another form than {', '.join(forms)}")
        for r in part.reads:
            fits = r.first % CUT_MULTIPLE == r.row % CUT_MULTIPLE == 0 <= r.first <= r.row - self.channels
            if (r.row or r.first) and not (r.form == "sample" and fits):
                raise ValueError(f"{name}: reads {self.channels} elements from {r.first} on of rows of {r.row}")
        read = tuple(self.inputs[r.input] for r in part.reads)
        if part.program.inputs != (first, *read) or part.program.outputs != (result,):
            raise ValueError(f"{name}: is no program of {first} and its reads that stores {result}")
        if part.program.index is not None or any(DTYPES[d].kind != "float" for d in read):
            raise ValueError(f"{name}: has index operations, or reads what is no float")

    def to_json(self) -> dict[str, Any]:
        """The form in kernels.json, without `before` where there is none."""
        row: dict[str, Any] = {
            "inputs": list(self.inputs),
            "outputs": list(self.outputs),
            "channels": self.channels,
            "groups": self.groups,
            "epsilon": self.epsilon,
            "x": self.x,
            "before": None if self.before is None else self.before.to_json(),
            "after": self.after.to_json(),
        }
        return {k: v for k, v in row.items() if v is not None}
