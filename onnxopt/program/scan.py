"""ScanProgram: a CumSum and the elementwise work before and after it, which one kernel computes.

The domain is the numpy broadcast of all inputs. The summands and every output have its shape. Rows lie along one axis
of the domain. The running total at an element is the sum of the summands of its row up to this element.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from onnxopt.program.dtypes import DTYPES
from onnxopt.program.pointwise import Program
from onnxopt.program.rowwise import MAX_RANK

# Storage dtypes that ONNX's CumSum is defined for.
SUMMED = frozenset({"float16", "bfloat16", "float32", "float64", "int32", "int64", "uint32", "uint64"})


@dataclasses.dataclass(frozen=True)
class ScanProgram:
    """A scan kernel's meaning. inputs, outputs: storage dtype names.

    rank, axis: of the domain. exclusive: an element's own summand is not part of its total. reverse: totals run from
    the end of a row to its start. element: computes the summand of an element from the inputs. Totals have the dtype of
    the summands, a compute dtype. output: computes the outputs from the inputs and, as its last operand, the total.
    rows[k]: input k is known to have at most one element a row.
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
        """Work for one element in float32 instructions."""
        return self.element.cost + self.output.cost

    def verify(self) -> None:
        """Raise ValueError naming the first field that breaks a rule of this class."""
        if not 0 <= self.axis < self.rank <= MAX_RANK:
            raise ValueError(f"axis: {self.axis} of rank {self.rank}")
        if len(self.rows) != len(self.inputs) or all(self.rows):
            raise ValueError("rows: not one flag an input, or no input has more than one element a row")
        self.element.verify()
        self.output.verify()
        if self.element.inputs != self.inputs or len(self.element.outputs) != 1 or self.total not in SUMMED:
            raise ValueError("element: does not compute one summand from the inputs")
        if DTYPES[self.total].compute != self.total:
            raise ValueError(f"element: {self.total} is no compute dtype")
        if self.output.inputs != (*self.inputs, self.total) or self.output.outputs != self.outputs:
            raise ValueError("output: does not compute the outputs from the inputs and the total")
        if self.element.index is not None or self.output.index is not None:
            raise ValueError("element, output: a scan kernel takes no index operations")

    def to_json(self) -> dict[str, Any]:
        """The form in kernels.json."""
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
