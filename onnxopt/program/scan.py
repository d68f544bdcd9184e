"""ScanProgram: a CumSum with the elementwise work before and after it, as one kernel runs it.

The domain is the numpy broadcast of all inputs, and what is summed up and every output has its shape. Along `axis` of
it lie rows: the running total at an element is the sum of what `element` gives for the elements of its row up to it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from onnxopt.program.dtypes import DTYPES
from onnxopt.program.pointwise import Program
from onnxopt.program.rowwise import MAX_RANK

# What ONNX's CumSum takes.
SUMMED = frozenset({"float16", "bfloat16", "float32", "float64", "int32", "int64", "uint32", "uint64"})


@dataclasses.dataclass(frozen=True)
class ScanProgram:
    """A scan kernel's meaning. inputs, outputs: storage dtype names.

    rank: of the domain. exclusive: an element's own value is not part of its total. reverse: rows are summed up from
    their ends. element: what is summed up, from the inputs, in its compute dtype, which the totals have too. output:
    what is stored, from the inputs and then the total. rows[k]: input k is known to have one element a row at most.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    rank: int
    axis: int
    exclusive: bool
    reverse: bool
    element: Program
    output: Program
    rows: tuple[bool, ...]

    @property
    def total(self) -> str:
        """Dtype of the running totals."""
        return self.element.outputs[0]

    @property
    def cost(self) -> int:
        """Work of one element in float32 instructions."""
        return self.element.cost + self.output.cost

    def verify(self) -> None:
        """Raise ValueError naming the first field that breaks a rule of this class."""
        if not 0 <= self.axis < self.rank <= MAX_RANK:
            raise ValueError(f"axis: {self.axis} of rank {self.rank}")
        if len(self.rows) != len(self.inputs) or all(self.rows):
            raise ValueError("rows: no input has the elements of a row, or some are not told about")
        self.element.verify()
        self.output.verify()
        if self.element.inputs != self.inputs or len(self.element.outputs) != 1 or self.total not in SUMMED:
            raise ValueError("element: not one value of the inputs that can be summed up")
        if DTYPES[self.total].compute != self.total:
            raise ValueError(f"element: {self.total} is no compute dtype")
        if self.output.inputs != (*self.inputs, self.total) or self.output.outputs != self.outputs:
            raise ValueError("output: not what the outputs store, of the inputs and the total")
        if self.element.index is not None or self.output.index is not None:
            raise ValueError("element, output: index operations")

    def to_json(self) -> dict[str, Any]:
        """The form kept in kernels.json."""
        return {
            "inputs": list(self.inputs),
            "outputs": list(self.outputs),
            "rank": self.rank,
            "axis": self.axis,
            "exclusive": self.exclusive,
            "reverse": self.reverse,
            "element": self.element.to_json(),
            "output": self.output.to_json(),
            "rows": list(self.rows),
        }
