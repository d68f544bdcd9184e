"""Experts: the chosen experts of each token, two products with an activation between them, added up by factors.

    y[t] = sum over c of (f(x[t] first[e] + a[e]) second[e] + b[e]) * factors[t, c]     with e = ids[t, c]

Two products with a program between them; their search is their own. The CUDA side is cuda_kernels/experts/.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from onnxopt.program.dtypes import DTYPES
from onnxopt.program.fields import code, flag, integer, operand
from onnxopt.program.hardware import ACCESS_BYTES
from onnxopt.program.pointwise import Program
from onnxopt.program.schema import WHOLE_WARPS, Dims, Meaning, Rule, Variant, shared

STORED = ("float16", "bfloat16", "float32")
IDS = "int64"
MAX_EXPERTS = 1024  # whose counts are in a block's shared memory
MAX_CHOSEN = 32
X, CHOSEN_IDS, FACTORS, FIRST, SECOND = range(5)  # positions among the inputs


@dataclasses.dataclass(frozen=True)
class Experts(Meaning):
    """The meaning of a mixture of experts.

    inputs: storage dtype names of x [T, columns], ids [T, chosen], factors [T, chosen], first [experts, columns,
    hidden] (or 2 hidden, where f takes both halves) and second [experts, hidden, columns]; ids are int64 from 0 to
    experts - 1, factors float32 or as x, the others equal; then those of the biases that there are. outputs: of y [T,
    columns]. program: f, of one float32 or of two, the halves of a sum in their order; interleaved: its even and its
    odd columns. first_bias, second_bias: positions of a [experts, hidden or 2 hidden] and b [experts, columns], None
    where there is none. Its results are rounded to the storage dtype, and so are those of the
    second product.
    """

    KIND: ClassVar = "experts"
    INPUTS: ClassVar = (5, 7)
    OUTPUT_DTYPES: ClassVar = STORED
    IMPLICIT: ClassVar = tuple(range(SECOND + 1))
    RULES: ClassVar = (
        Rule(
            "inputs",
            f"inputs[{X}] == outputs[0] and inputs[{FIRST}] == outputs[0] and inputs[{SECOND}] == outputs[0]",
            "are not all of the output's dtype",
        ),
        Rule("inputs", f"inputs[{CHOSEN_IDS}] == '{IDS}'", f"have ids that are not {IDS}"),
        Rule(
            "inputs",
            f"inputs[{FACTORS}] == 'float32' or inputs[{FACTORS}] == outputs[0]",
            "have factors of another dtype than float32 and the output's",
        ),
        Rule("first_bias", f"first_bias is None or first_bias == {SECOND + 1}", "is not the next input"),
        Rule(
            "second_bias",
            f"second_bias is None or second_bias == ({SECOND + 1} if first_bias is None else {SECOND + 2})",
            "is not the next input",
        ),
        Rule("columns", f"columns * size(outputs[0]) % {ACCESS_BYTES} == 0", "are no multiple of an access"),
        Rule("hidden", f"hidden * size(outputs[0]) % {ACCESS_BYTES} == 0", "is no multiple of an access"),
        Rule("interleaved", "not interleaved or gated", "is set for a program of one float32"),
    )
    SHAPES: ClassVar = (
        Dims("x", "N columns", at=X),
        Dims("ids", "N chosen", at=CHOSEN_IDS),
        Dims("factors", "N chosen", at=FACTORS),
        Dims("first", "experts columns wide", at=FIRST),
        Dims("second", "experts hidden columns", at=SECOND),
        Dims("first_bias", "experts wide"),
        Dims("second_bias", "experts columns"),
    )
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    experts: int = integer(1, MAX_EXPERTS)
    chosen: int = integer(1, MAX_CHOSEN)
    columns: int = integer(1, 1 << 20)
    hidden: int = integer(1, 1 << 20)
    program: Program = code(1, 2)
    first_bias: int | None = operand(same_as="outputs", optional=True)
    second_bias: int | None = operand(same_as="outputs", optional=True)
    interleaved: bool = flag(default=False, omit=True)

    @property
    def biases(self) -> tuple[int, ...]:
        return tuple(k for k in (self.first_bias, self.second_bias) if k is not None)

    @property
    @shared
    def dtype(self) -> str:
        return self.outputs[0]

    @property
    @shared
    def gated(self) -> bool:
        return len(self.program.inputs) == 2

    @property
    def flops_of_row(self) -> int:
        """Of both products."""
        return 2 * (3 if self.gated else 2) * self.hidden * self.columns

    @property
    @shared
    def factors(self) -> str:
        """The dtype of the factors."""
        return self.inputs[2]

    @property
    @shared
    def wide(self) -> int:
        """Columns of the first product's result."""
        return 2 * self.hidden if self.gated else self.hidden


def why_sizes_do_not_fit(columns: int, hidden: int, dtype: str) -> str:
    """The reason why the kernel cannot read rows of these sizes, "" where it can."""
    vector = ACCESS_BYTES // DTYPES[dtype].size
    if columns < 1 or hidden < 1 or columns % vector or hidden % vector:
        return f"Rows of {columns} and {hidden} {dtype} are not whole accesses of {ACCESS_BYTES} bytes"
    return ""


@dataclasses.dataclass(frozen=True)
class ExpertsVariant(Variant):
    """One launch. rows, columns: of a block's tile, 0 where there is none. depth: elements of each row that a block
    brings to shared memory together. shared: its bytes of shared memory. least_rows: of an expert on average, from
    which cuBLASLt multiplies where it can; of the launch that sorts alone."""

    KERNEL = Experts
    RULES = (WHOLE_WARPS,)
    rows: int = integer(0, 1024, default=0)
    columns: int = integer(0, 1024, default=0)
    depth: int = integer(0, 1024, default=0)
    shared: int = integer(0, 64 << 10, default=0)
    least_rows: int = integer(0, default=0)
