"""Experts: the chosen experts of each token, two products with an activation between them, added up by factors.

    y[t] = sum over c of (f(x[t] first[e] + a[e]) second[e] + b[e]) * factors[t, c]     with e = ids[t, c]

The C++ side is custom_ops/program/experts.h, the CUDA side cuda_kernels/experts/.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from onnxopt.program.dtypes import DTYPES
from onnxopt.program.hardware import ACCESS_BYTES
from onnxopt.program.pointwise import Program

STORED = ("float16", "bfloat16", "float32")
IDS = "int64"
MOST_EXPERTS = 1024  # whose counts lie in a block's shared memory
MOST_CHOSEN = 32
X, CHOSEN_IDS, FACTORS, FIRST, SECOND = range(5)  # positions among the inputs


@dataclasses.dataclass(frozen=True)
class Experts:
    """The meaning of a mixture of experts.

    inputs: storage dtype names of x [T, columns], ids [T, chosen], factors [T, chosen], first [experts, columns,
    hidden] (or 2 hidden, where f takes both halves) and second [experts, hidden, columns]; ids are int64 from 0 to
    experts - 1, factors float32 or as x, the others equal; then those of the biases that there are. outputs: of y [T,
    columns]. program: f, of one float32 or of two, the halves of a sum in their order; interleaved: its even and its
    odd columns. first_bias, second_bias: positions of a [experts, hidden or 2 hidden] and b [experts, columns], None
    where there is none. Its results are rounded to the storage dtype, and so are those of the
    second product.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    experts: int
    chosen: int
    columns: int
    hidden: int
    program: Program
    first_bias: int | None = None
    second_bias: int | None = None
    interleaved: bool = False

    @property
    def biases(self) -> tuple[int, ...]:
        return tuple(k for k in (self.first_bias, self.second_bias) if k is not None)

    @property
    def dtype(self) -> str:
        return self.outputs[0]

    @property
    def gated(self) -> bool:
        return len(self.program.inputs) == 2

    @property
    def flops_of_row(self) -> int:
        """Of both products."""
        return 2 * (3 if self.gated else 2) * self.hidden * self.columns

    def verify(self) -> None:
        """Raise ValueError naming the field that breaks a rule of this class."""
        if self.biases != tuple(range(SECOND + 1, len(self.inputs))) or len(self.outputs) != 1:
            raise ValueError("inputs: not x, ids, factors, two weights and their biases, or not one output")
        if self.dtype not in STORED or any(self.inputs[k] != self.dtype for k in (X, FIRST, SECOND, *self.biases)):
            raise ValueError(f"inputs: x, weights and y are not of one dtype of {', '.join(STORED)}")
        if self.inputs[CHOSEN_IDS] != IDS or self.inputs[FACTORS] not in (self.dtype, "float32"):
            raise ValueError(f"inputs: ids are not {IDS}, or factors neither float32 nor as x")
        for field, most in (("experts", MOST_EXPERTS), ("chosen", MOST_CHOSEN)):
            if not 1 <= getattr(self, field) <= most:
                raise ValueError(f"{field}: {getattr(self, field)}, not 1 to {most}")
        if reason := why_sizes_do_not_fit(self.columns, self.hidden, self.dtype):
            raise ValueError(f"columns: {reason}")
        self.program.verify()
        halves = ("float32",) * len(self.program.inputs)
        if self.program.inputs != halves or not 1 <= len(halves) <= 2 or self.program.outputs != (self.dtype,):
            raise ValueError(f"program: is no function of one or two float32 that stores {self.dtype}")
        if self.program.index is not None:
            raise ValueError("program: has index operations")
        if self.interleaved and not self.gated:
            raise ValueError("interleaved: the program takes no two halves")

    def to_json(self) -> dict[str, Any]:
        """The form in kernels.json."""
        sizes = {name: getattr(self, name) for name in ("experts", "chosen", "columns", "hidden")}
        lists = {"inputs": list(self.inputs), "outputs": list(self.outputs)}
        optional = {"first_bias": self.first_bias, "second_bias": self.second_bias}
        optional = {name: position for name, position in optional.items() if position is not None}
        optional |= {"interleaved": True} if self.interleaved else {}
        return {**lists, **sizes, "program": self.program.to_json(), **optional}


def why_sizes_do_not_fit(columns: int, hidden: int, dtype: str) -> str:
    """The reason why the kernel cannot read rows of these sizes, "" where it can."""
    vector = ACCESS_BYTES // DTYPES[dtype].size
    if columns < 1 or hidden < 1 or columns % vector or hidden % vector:
        return f"Rows of {columns} and {hidden} {dtype} are not whole accesses of {ACCESS_BYTES} bytes"
    return ""
