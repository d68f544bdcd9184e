"""A core: one operator between a prologue and an epilogue, which are elementwise programs.

The programs' first operand is the value that passes through; they read others by form.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, ClassVar

from onnxopt.program.dtypes import DTYPES
from onnxopt.program.fields import Field, choice, field_of, integer, operand
from onnxopt.program.pointwise import Program
from onnxopt.program.schema import Meaning, Record, Rule

FLOATS = ("float16", "bfloat16", "float32")
FORMS = ("element", "channel", "sample", "group", "scalar")
HALF = "half"
ROW_MULTIPLE = 8  # of elements, at which slices of a row begin, so that vectors of them are aligned


@dataclasses.dataclass(frozen=True)
class TransformRead(Record):
    """How a program reads an input. form: "element": a tensor of the result's shape; "channel": one element a channel;
    "sample": one a channel of every sample, [N, 1, 1, C]; "group": one a group of channels; "scalar": one element;
    "half": no input, but the operator's result of the channel that is the result's channels further; x is named.
    row, first: by sample, the input may be [N, row], of which C elements from `first` on are read."""

    RULES: ClassVar = (
        Rule("row", "row is None or form == 'sample'", "is for reads by sample"),
        Rule("first", "row is not None or first == 0", "is for slices of a row"),
    )
    input: int = operand()
    form: str = choice("TransformForm", (*FORMS, HALF))
    row: int | None = integer(1, multiple=ROW_MULTIPLE, optional=True)
    first: int = integer(0, multiple=ROW_MULTIPLE, default=0, beside="row")


@dataclasses.dataclass(frozen=True)
class Transform:
    """An elementwise program around an operator, and how it reads its operands after the first."""

    program: Program
    reads: tuple[TransformRead, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The form in kernels.json."""
        return {"program": self.program.to_json(), "reads": [read.to_json() for read in self.reads]}


@dataclasses.dataclass(frozen=True)
class TransformField(Field):
    """A transform. first, result: dtypes of what passes through and of what the program stores: a dtype's name, that
    of an operand, or "outputs". forms: those of its reads."""

    first: str
    result: str
    forms: tuple[str, ...]

    def problem(self, value: Transform, kernel: Any) -> str:
        for read in value.reads:
            if broken := read.problem(kernel):
                return f"reads an input whose {broken[0]} {broken[1]}"
            if read.form not in self.forms:
                return f"reads by {read.form}, not by {', '.join(self.forms)}"
            if read.row is not None and read.first + kernel.channels > read.row:
                return f"reads {kernel.channels} elements from {read.first} on of rows of {read.row}"
        if any(DTYPES[kernel.inputs[read.input]].kind != "float" for read in value.reads):
            return "reads what is no float"
        value.program.verify()
        if value.program.index is not None:
            return "has index operations"
        first, result = (self._dtype(name, kernel) for name in (self.first, self.result))
        stored = [first if read.form == HALF else kernel.inputs[read.input] for read in value.reads]
        if value.program.inputs != (first, *stored) or value.program.outputs != (result,):
            return f"is no program of {first} and its reads that stores {result}"
        return ""

    def to_json(self, value: Transform) -> dict[str, Any]:
        return value.to_json()

    def positions(self, value: Transform) -> Iterator[int]:
        return (read.input for read in value.reads)

    def _dtype(self, name: str, kernel: Meaning) -> str:
        if name == "outputs":
            return kernel.outputs[0]
        return name if name in DTYPES else kernel.inputs[getattr(kernel, name)]


def transform(first: str, result: str, forms: tuple[str, ...], **options: Any) -> Any:
    """A field with a transform."""
    return field_of(TransformField, (first, result, forms), options)


class Core(Meaning):
    """The meaning of an operator on x between a prologue, where there is one, and an epilogue. Neither the prologue's
    result nor the operator's is stored; the epilogue's is the output."""

    x: int
    channels: int
    prologue: Transform | None
    epilogue: Transform

    @property
    def cost(self) -> int:
        """Work of the epilogue for one element, in float32 instructions."""
        return self.epilogue.program.cost

    @property
    def transforms(self) -> tuple[Transform, ...]:
        """In the order in which they run."""
        return (self.epilogue,) if self.prologue is None else (self.prologue, self.epilogue)
