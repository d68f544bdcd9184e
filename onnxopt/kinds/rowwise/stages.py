"""Split a region's instructions into stages at the reductions (program/rowwise.py defines the stages)."""

from __future__ import annotations

from collections.abc import Sequence

from onnxopt.program.expressions import Builder
from onnxopt.program.operators.row_operators import REDUCE
from onnxopt.program.pointwise import Instruction, Program
from onnxopt.program.rowwise import ROW_INPUTS, Operand, Piece, Result, Stage


def split(
    builder: Builder,
    operands: Sequence[Operand],
    results: Sequence[int],
    forms: Sequence[Result],
    storage: Sequence[str],
) -> tuple[tuple[Stage, ...], Piece | None, Piece | None]:
    """The stages and the two output pieces of the builder's code. ValueError where an output depends on no input.

    results: the ids of the outputs' values.
    """
    splitter = _Splitter(builder, operands)
    element = [k for k, f in enumerate(forms) if f.form == "element"]
    row = [k for k, f in enumerate(forms) if f.form != "element"]
    for k in row:
        if not splitter.is_row[results[k]]:
            raise ValueError(f"Output {k} has one element per row but is computed for every element")
    stages = splitter.stages([results[k] for k in element], [results[k] for k in row])
    pieces = []
    for chosen, rows_only in ((element, False), (row, True)):
        ids = [results[k] for k in chosen]
        pieces.append(splitter.piece(ids, [storage[k] for k in chosen], rows_only, None) if ids else None)
    return stages, pieces[0], pieces[1]


class _Splitter:
    """Facts about every value.

    is_row: whether it has one element per row. depth: the most reductions on a path to it.
    """

    def __init__(self, builder: Builder, operands: Sequence[Operand]):
        self.code, self.inputs = builder.code, len(builder.inputs)
        self._dtypes = [d.dtype for d in builder.inputs]
        self._storage = [str(d.exact_in) for d in builder.inputs]
        self.is_row = [o.row for o in operands]
        self.depth = [0] * self.inputs
        self._slots: dict[int, int] = {}
        for i in self.code:
            reduces = i.op.startswith(REDUCE)
            self.is_row.append(reduces or (i.op != "position" and all(self.is_row[a] for a in i.args)))
            self.depth.append(max((self.depth[a] for a in i.args), default=0) + reduces)
            self._dtypes.append(i.dtype)

    def _instruction(self, value: int) -> Instruction | None:
        return None if value < self.inputs else self.code[value - self.inputs]

    def _reduces(self, value: int) -> bool:
        i = self._instruction(value)
        return i is not None and i.op.startswith(REDUCE)

    def stages(self, element: Sequence[int], row: Sequence[int]) -> tuple[Stage, ...]:
        """The stages that these results need. Assigns a number to every slot."""
        reductions, row_values = self._needed(element, row)
        slot = self.inputs + len(ROW_INPUTS)
        stages = []
        for depth in range(1, max((self.depth[r] for r in reductions), default=0) + 1):
            reduced = sorted(r for r in reductions if self.depth[r] == depth)
            operands = [self.code[r - self.inputs].args[0] for r in reduced]
            piece = self.piece(operands, [self._dtypes[a] for a in operands], False, None)
            kinds = tuple(self.code[r - self.inputs].op.removeprefix(REDUCE) for r in reduced)
            for value in reduced:
                self._slots[value], slot = slot, slot + 1
            row_results = sorted(v for v in row_values if self.depth[v] == depth)
            row_piece = (
                self.piece(row_results, [self._dtypes[v] for v in row_results], True, depth) if row_results else None
            )
            for value in row_results:
                self._slots[value], slot = slot, slot + 1
            stages.append(Stage(piece, kinds, row_piece))
        return tuple(stages)

    def _needed(self, element: Sequence[int], row: Sequence[int]) -> tuple[set[int], set[int]]:
        """The reductions, and the other row values that one piece computes for another piece."""
        reductions: set[int] = set()
        values: set[int] = set()
        pending: list[tuple[int, int | None]] = [(v, None) for v in (*element, *row)]
        while pending:
            result, depth = pending.pop()
            for leaf in self._walk([result], depth)[1]:
                if leaf < self.inputs or leaf in reductions | values or self._is_input(leaf):
                    continue
                if self._reduces(leaf):
                    reductions.add(leaf)
                    pending.append((self.code[leaf - self.inputs].args[0], None))
                else:
                    values.add(leaf)
                    pending.append((leaf, self.depth[leaf]))
        return reductions, values

    def _is_input(self, value: int) -> bool:
        i = self._instruction(value)
        return i is not None and i.op in ("length", "position")

    def _walk(self, results: Sequence[int], depth: int | None) -> tuple[list[int], list[int]]:
        """The values to compute for `results`, and the values to read. depth: of the row piece that computes them."""
        computed: set[int] = set()
        read: set[int] = set()
        pending = list(results)
        while pending:
            value = pending.pop()
            if value in computed or value in read:
                continue
            inside = depth is not None and self.depth[value] == depth and not self._reduces(value)
            handed = self.is_row[value] and self.depth[value] >= 1 and not inside
            if value < self.inputs or handed or self._is_input(value):
                read.add(value)
            else:
                computed.add(value)
                pending += self.code[value - self.inputs].args
        return sorted(computed), sorted(read)

    def _slot(self, value: int) -> int:
        if value < self.inputs:
            return value
        if self._is_input(value):
            return self.inputs + ROW_INPUTS.index(self._dtypes[value])
        return self._slots[value]

    def piece(self, results: Sequence[int], storage: Sequence[str], rows_only: bool, depth: int | None) -> Piece:
        """The program that computes `results` from slots. depth: see _walk."""
        computed, read = self._walk(results, depth)
        read.sort(key=self._slot)
        ids = {value: k for k, value in enumerate(read)}
        depends: dict[int, frozenset[int]] = {value: frozenset([k]) for k, value in enumerate(read)}
        code: list[Instruction] = []
        for value in computed:
            i = self.code[value - self.inputs]
            ids[value] = len(read) + len(code)
            depends[value] = frozenset().union(*(depends[a] for a in i.args))
            code.append(Instruction(i.op, i.dtype, tuple(ids[a] for a in i.args), i.value, i.storage))
        for value in results:
            if not depends[value]:
                raise ValueError("A value that is reduced or stored depends on no input")
        dtypes = [self._storage[v] if v < self.inputs else self._dtypes[v] for v in read]
        program = Program(
            inputs=tuple(dtypes),
            outputs=tuple(storage),
            code=tuple(code),
            results=tuple(ids[v] for v in results),
            depends=tuple(tuple(sorted(depends[v])) for v in results),
            ranks=(0,) * len(results),
        )
        return Piece(tuple(self._slot(v) for v in read), program)
