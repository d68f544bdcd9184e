"""RowProgram: what one rowwise kernel computes, as pointwise programs with reductions between them.

The domain is a grid of rows: the shape of view 0 with its axes first .. last - 1 reduced. A row is one position of the
other axes. Work is done in stages. The element piece of a stage computes values for every element, and each of them is
reduced to one value a row. The row piece of the stage computes further values for every row. Later stages may read all
of these values. In the end `output` computes what is stored for every element, and `row_output` what is stored for
every row.

Pieces hand values to each other in numbered slots:
    the leaves: the inputs, or, with index operations, the accesses to them and then the conditions, as in a Program;
    the slots of ROW_INPUTS: the length of a row as float32, the same as float64, and an element's position in its row;
    for each stage, the reduced values and then the results of its row piece.
Values of a row stay in their compute dtype and are never rounded.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from onnxopt.program.dtypes import COMPUTE_DTYPES, DTYPES
from onnxopt.program.extents import ONE, Extent
from onnxopt.program.indexing import Indexing
from onnxopt.program.pointwise import Program

# Reductions of a row. The result is NaN where an element is NaN. Sums have the compute dtype, in any order.
REDUCTIONS = ("sum", "prod", "max", "min")
ROW_INPUTS = (
    "float32",
    "float64",
    "int64",
)  # dtypes of the slots that no piece computes: a row's length, twice; a position
POSITION = ROW_INPUTS.index("int64")
FORMS = ("element", "row", "squeezed")
MAX_RANK = 16


@dataclasses.dataclass(frozen=True)
class View:
    """One shape of the domain. All views have the domain's elements in the same flat order.

    target: the shape operand of the ONNX Reshape that turns the other view into this one. None for the view whose shape
    is the broadcast of the inputs that are read in it.
    """

    rank: int
    target: tuple[int, ...] | None = None


@dataclasses.dataclass(frozen=True)
class Operand:
    """How an input is read: `trailing` dims of 1 are appended to its shape, which is then broadcast into `view`.

    row: the input is known to have at most one element a row, so that row pieces may read it.
    """

    view: int = 0
    trailing: int = 0
    row: bool = False


@dataclasses.dataclass(frozen=True)
class Result:
    """The shape of an output, by form.

    "element": every element, in the shape of `view`. "row": one value a row, with the reduced axes kept as 1.
    "squeezed": one value a row, without the reduced axes.
    """

    form: str
    view: int = 0


@dataclasses.dataclass(frozen=True)
class Piece:
    """A program that reads slots: its input k is the value in slot reads[k]."""

    reads: tuple[int, ...]
    program: Program


@dataclasses.dataclass(frozen=True)
class Stage:
    """One round of reductions.

    element: computes a value for every element; result k is reduced by reductions[k], in its compute dtype.
    row: computes further values for every row; None where there are none.
    """

    element: Piece
    reductions: tuple[str, ...]
    row: Piece | None


@dataclasses.dataclass(frozen=True)
class RowProgram:
    """A rowwise kernel's meaning. inputs, outputs: storage dtype names.

    first, last: the reduced axes of view 0. operands: how each leaf is read. results: the shape of each output.
    output: computes the outputs of form "element". row_output: computes the others. Both have the order of `results`.
    index: how the kernel reads its inputs, where index operations are part of it. The index then states the outputs'
    shapes. domain: with an index, its three extents: positions before the axis of the rows, elements of a row, and rows
    side by side.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    first: int
    last: int
    views: tuple[View, ...]
    operands: tuple[Operand, ...]
    results: tuple[Result, ...]
    stages: tuple[Stage, ...]
    output: Piece | None
    row_output: Piece | None
    index: Indexing | None = None
    domain: tuple[Extent, ...] = ()

    @property
    def leaves(self) -> tuple[str, ...]:
        """Storage dtypes of the leaves: the inputs, or the accesses to them and then the conditions."""
        if self.index is None:
            return self.inputs
        return (*(self.inputs[a.input] for a in self.index.accesses), *("bool",) * len(self.index.conditions))

    @property
    def guards(self) -> tuple[int, ...]:
        """For every access the conditions that must hold, as a bit mask."""
        return (0,) * len(self.inputs) if self.index is None else self.index.guards

    @property
    def trailing(self) -> bool:
        """Whether the elements of a row are known to lie side by side in memory."""
        return self.last == self.views[0].rank if self.index is None else self.domain[2] == ONE

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """Every piece, in the order in which they run."""
        pieces = [p for s in self.stages for p in (s.element, s.row)] + [self.output, self.row_output]
        return tuple(p for p in pieces if p is not None)

    @property
    def cost(self) -> int:
        """Work for one element in float32 instructions, each piece counted once."""
        return sum(p.program.cost for p in self.pieces)

    @property
    def slots(self) -> tuple[str, ...]:
        """Dtype of every slot: the storage dtype of a leaf, the compute dtype of any other value."""
        dtypes = [*self.leaves, *ROW_INPUTS]
        for stage in self.stages:
            dtypes += stage.element.program.outputs
            dtypes += stage.row.program.outputs if stage.row else ()
        return tuple(dtypes)

    def stored(self, form: str) -> tuple[int, ...]:
        """Positions of the outputs that `output` (form "element") or `row_output` (form "row") computes."""
        return tuple(k for k, r in enumerate(self.results) if (r.form == "element") == (form == "element"))

    def verify(self) -> None:
        """Raise ValueError naming the first field that breaks a rule of this module."""
        if not self.stages:
            raise ValueError("nothing is reduced")
        if len(self.leaves) != len(self.operands) or len(self.outputs) != len(self.results):
            raise ValueError("inputs and operands, or outputs and results, differ in number")
        if self.index is not None:
            self.index.verify(len(self.inputs), len(self.outputs))
            if self.index.lookups:
                raise ValueError("index: a rowwise kernel looks nothing up")
        if len(self.domain) != (0 if self.index is None else 3):
            raise ValueError("the domain has three extents with an index, and none without")
        if len(self.views) not in (1, 2) or [v.target for v in self.views].count(None) != 1:
            raise ValueError("there must be one view that inputs are broadcast into, and at most one reshaped from it")
        if any(not 1 <= v.rank <= MAX_RANK or (v.target and len(v.target) != v.rank) for v in self.views):
            raise ValueError("a view's rank is not that of its target, or too high")
        if not 0 <= self.first < self.last <= self.views[0].rank:
            raise ValueError(f"axes {self.first} to {self.last} are not axes of rank {self.views[0].rank}")
        if any(o.view >= len(self.views) for o in self.operands) or any(
            r.view >= len(self.views) for r in self.results
        ):
            raise ValueError("an input or output has a view that is not there")
        if any(r.form not in FORMS or (r.form != "element" and r.view) for r in self.results):
            raise ValueError("an output has no such form")
        self._verify_pieces()

    def _verify_pieces(self) -> None:
        values = len(self.leaves) + len(ROW_INPUTS)
        for k, stage in enumerate(self.stages):
            if set(stage.reductions) - set(REDUCTIONS) or len(stage.reductions) != len(stage.element.program.outputs):
                raise ValueError(f"stage {k}: a reduction is unknown, or has no value")
            self._verify_piece(stage.element, values, rows_only=False)
            values += len(stage.reductions)
            if stage.row:
                self._verify_piece(stage.row, values, rows_only=True)
                values += len(stage.row.program.outputs)
            for dtype in (*stage.element.program.outputs, *(stage.row.program.outputs if stage.row else ())):
                if dtype not in COMPUTE_DTYPES:
                    raise ValueError(f"stage {k}: {dtype} is no compute dtype")
        for form, piece in (("element", self.output), ("row", self.row_output)):
            stored = tuple(self.outputs[k] for k in self.stored(form))
            if stored != (piece.program.outputs if piece else ()):
                raise ValueError(f"the {form} outputs are not what is computed for them")
            if piece:
                self._verify_piece(piece, values, rows_only=form == "row")

    def _verify_piece(self, piece: Piece, values: int, rows_only: bool) -> None:
        piece.program.verify()
        if tuple(self.slots[r] for r in piece.reads if r < values) != piece.program.inputs:
            raise ValueError(f"a piece reads {piece.reads} as {piece.program.inputs}, which those slots do not hold")
        if rows_only and any(r < len(self.leaves) and not self.operands[r].row for r in piece.reads):
            raise ValueError("a row piece reads an input that has more than one element a row")
        if rows_only and len(self.leaves) + POSITION in piece.reads:
            raise ValueError("a row piece reads the position of an element")

    def to_json(self) -> dict[str, Any]:
        """The form in kernels.json."""
        document = {
            "inputs": list(self.inputs),
            "outputs": list(self.outputs),
            "axes": [self.first, self.last],
            "views": [{"rank": v.rank, "target": v.target and list(v.target)} for v in self.views],
            "operands": [dataclasses.asdict(o) for o in self.operands],
            "results": [dataclasses.asdict(r) for r in self.results],
            "stages": [
                {"element": _json(s.element), "reductions": list(s.reductions), "row": _json(s.row)}
                for s in self.stages
            ],
            "output": _json(self.output),
            "row_output": _json(self.row_output),
        }  # fmt: skip
        if self.index is not None:
            document |= {"index": self.index.to_json(), "domain": [self.index.number(e) for e in self.domain]}
        return document


def _json(piece: Piece | None) -> dict[str, Any] | None:
    return None if piece is None else {"reads": list(piece.reads), **piece.program.to_json()}


def is_float(dtype: str) -> bool:
    """Whether a storage or compute dtype is a floating-point one."""
    return DTYPES[dtype].kind == "float"
