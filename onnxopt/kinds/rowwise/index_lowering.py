"""Lowering of rowwise regions with index operations: values are evaluated backward, under maps from the grid of rows.

The evaluation is that of kinds/pointwise/index_lowering.py, with the domain [outer, row, inner] and with reductions.
The operand of a reduction is evaluated under a map of its own, which maps a row of the domain to a row of the operand.
The result of the reduction may therefore be read anywhere in its row (the halves of a rotary embedding behind a norm),
in any order of rows, and for several rows. A map under which an element needs the reduction of another row is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import onnx_ir as ir

from onnxopt.fusion.index_maps import Guard, Linear, Map, NotAffine, identity, reshape
from onnxopt.fusion.index_ops import Piece, broadcast, dims_of
from onnxopt.fusion.multiples import with_multiples
from onnxopt.fusion.operands import constant, storage
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.pointwise.index_lowering import MAX_ACCESSES, TOO_MANY_ACCESSES, Evaluation
from onnxopt.kinds.rowwise import grid
from onnxopt.kinds.rowwise.choices import choice
from onnxopt.kinds.rowwise.stages import split
from onnxopt.program.expressions import Builder, Expr
from onnxopt.program.extents import ONE, Extent, product
from onnxopt.program.indexing import Condition, Term
from onnxopt.program.operators.row_operators import RowCall, RowOperator, reduce
from onnxopt.program.rowwise import Operand, Result, RowProgram, View

Domain = tuple[Extent, Extent, Extent]  # outer, row, inner


def lower_indexed_rows(
    nodes: Sequence[ir.Node],
    inputs: Sequence[ir.Value],
    outputs: Sequence[ir.Value],
    opsets: Mapping[str, int],
    shapes: Shapes,
) -> RowProgram:
    """The program of nodes with index operations among them. NotAffine, with the reason, where there is none.

    The grid is the first of those that the outputs allow under which every reduced row is a row of the grid.
    """
    reason: NotAffine | None = None
    shapes = with_multiples(nodes, inputs, shapes)
    for domain in _domains(nodes, outputs, opsets, shapes):
        try:
            return _RowEvaluation(nodes, inputs, opsets, shapes, domain).row_program(outputs)
        except NotAffine as error:
            reason = reason or error
    raise reason or NotAffine("The outputs cannot be arranged as rows of the reduced length")


def _domains(
    nodes: Sequence[ir.Node], outputs: Sequence[ir.Value], opsets: Mapping[str, int], shapes: Shapes
) -> Iterator[Domain]:
    """Grids to try: rows as long as the reduced rows, with contiguous elements.

    Rows of strided elements would allow a norm between two Transposes, which took 1.4 times as long as three kernels.
    """
    node = next((n for n in nodes if grid.operator(n, opsets) is not None), None)
    if node is None:
        raise NotAffine("No operator of the region is a reduction")
    dims, axes = _rows_of(node, opsets, shapes)
    length = product(dims[a] for a in axes)
    sizes = list(dict.fromkeys(product(dims_of(v, shapes)) for v in outputs))
    largest = next((s for s in sizes if all(o.at_most(s) for o in sizes)), sizes[0])
    # For an output of one element per row, the second grid has `length` elements for each of them.
    totals = [largest, largest * length] if (largest * length).at_most(product(dims)) else [largest]
    for total in totals:
        outer = total.over(length)
        if outer is not None:
            yield outer, length, ONE


def _rows_of(
    node: ir.Node, opsets: Mapping[str, int], shapes: Shapes
) -> tuple[tuple[Extent, ...], tuple[int, ...]]:  # fmt: skip
    """The dims of a rowwise operator's operand, channels split into groups, and the axes that the operator reduces."""
    row = grid.operator(node, opsets)
    if row is None:
        raise NotAffine(f"{node.op_type} is not a reduction")
    dims = dims_of(_first(node), shapes)
    if row.axes != "groups":
        return dims, grid.axes(node, row, len(dims))
    groups = Extent(grid.groups(node))
    channels = dims[1].over(groups)
    if channels is None:
        raise NotAffine("GroupNormalization needs a known number of channels")
    return (dims[0], groups, channels, *dims[2:]), tuple(range(2, len(dims) + 1))


class _RowEvaluation(Evaluation):
    """Instructions, accesses and reductions of one region over one grid."""

    def __init__(
        self,
        nodes: Sequence[ir.Node],
        inputs: Sequence[ir.Value],
        opsets: Mapping[str, int],
        shapes: Shapes,
        domain: Domain,
    ):
        super().__init__(nodes, inputs, opsets, shapes)
        self._domain = domain
        self._read = inputs

    def row_program(self, outputs: Sequence[ir.Value]) -> RowProgram:
        """The program that computes `outputs`. NotAffine, with the reason, where there is none."""
        outer, length, inner = self._domain
        whole = identity(self._domain)
        rows = whole.with_coordinates([whole.coordinates[0], whole.coordinates[2]])
        results, values = [], []
        for value in outputs:
            dims = dims_of(value, self.shapes)
            is_element = product(dims) == outer * length * inner
            if not is_element and product(dims) != outer * inner:
                raise NotAffine("The outputs of the fused kernel have different numbers of elements")
            at = reshape(whole, self._domain, dims) if is_element else reshape(rows, (outer, inner), dims)
            results.append(Result("element" if is_element else "row"))
            values.append(self.value(value, at))
        index = self.indexing(tuple(dims_of(v, self.shapes) for v in outputs))
        if not all(map(_is_compiled, index.conditions)):
            raise NotAffine("A part of a Concat or Pad begins or ends inside a dim of unknown size")
        read = [storage(self._read[a.input], self.shapes).name for a in index.accesses]
        builder = Builder((*read, *("bool" for _ in index.conditions)))
        if len(builder.inputs) > MAX_ACCESSES:
            raise NotAffine(TOO_MANY_ACCESSES)
        builder.code += self.code()
        operands = tuple(Operand(row=not a.guards and self._is_of_row(a.terms)) for a in index.accesses)
        operands += (Operand(),) * len(index.conditions)
        stored = tuple(storage(v, self.shapes).name for v in outputs)
        renumbered = [self.renumbered(v.id) for v in values]
        try:
            stages, output, row_output = split(builder, operands, renumbered, results, stored)
            program = RowProgram(
                tuple(storage(v, self.shapes).name for v in self._read), stored, 1, 2, (View(3),), operands,
                tuple(results), stages, output, row_output, index, self._domain,
            )  # fmt: skip
            program.verify()
        except ValueError as error:
            raise NotAffine(f"The fused kernel is not valid: {error}") from None
        return program

    def _is_of_row(self, terms: Sequence[Term]) -> bool:
        """Whether these terms have one value for a whole row."""
        _, length, inner = self._domain
        whole = inner * length
        return all((t.div * t.mod).at_most(inner) or whole.at_most(t.div) for t in terms)

    def _row_digits(self, digits: Sequence[Extent]) -> list[int]:
        """The digits, outermost first, of an element's position in its row."""
        _, length, inner = self._domain
        in_row, div = [], ONE
        for k in range(len(digits) - 1, -1, -1):
            if inner.at_most(div) and not (inner * length).at_most(div):
                in_row.append(k)
            div = div * digits[k]
        return in_row[::-1]

    def result(self, node: ir.Node, output: int, at: Map) -> Expr:
        row = grid.operator(node, self.opsets)
        if row is None:
            return super().result(node, output, at)
        dims, reduced = _rows_of(node, self.opsets, self.shapes)
        x_dims, is_row = dims_of(_first(node), self.shapes), output in row.row_outputs
        seen = at if is_row or dims == x_dims else reshape(at, x_dims, dims)
        over_row = self._over_row(seen, dims, reduced)
        if dims != x_dims:
            over_row = reshape(over_row, dims, x_dims)
        reductions: list[Expr] = []

        def recorded(kind: str, x: Expr) -> Expr:
            reductions.append(reduce(kind, x))
            return reductions[-1]

        results = row.meaning(self._call(node, row, over_row, recorded))
        if not is_row:
            remaining = iter(reductions)
            results = row.meaning(self._call(node, row, at, lambda kind, x: next(remaining)))
        return results[output]

    def looked_up(self, node: ir.Node, at: Map) -> Expr:
        raise NotAffine("No rowwise kernel looks elements up by the indices of a Gather")

    def selected(self, inside: Expr, piece: Piece, part: Expr, rest: Expr) -> Expr:
        row = self._row_digits(piece.map.digits)
        of_rows = not any(k in row for guard in piece.inside for k, _ in guard.form.terms)
        chosen = choice(inside, part, rest, self.leaves) if of_rows else None
        return inside.where(part, rest) if chosen is None else chosen

    def _over_row(self, at: Map, dims: Sequence[Extent], reduced: Sequence[int]) -> Map:
        """The map of a reduced operand of `dims` from a row of the domain to the row of the operand that `at` reads."""
        others = [a for a in range(len(dims)) if a not in reduced]
        squeezed = len(at.coordinates) == len(others)
        outer = at.coordinates if squeezed else tuple(at.coordinates[a] for a in others)
        row = self._row_digits(at.digits)
        if any(k in row for c in outer for k, _ in c.terms):
            raise NotAffine("An element of one row would need the reduction of another row")
        flat, weight = [], ONE
        for k in reversed(row):
            flat.append((k, weight))
            weight = weight * at.digits[k]
        if weight != product(dims[a] for a in reduced):
            raise NotAffine("The kernel would reduce rows of different lengths")
        over_row = Map(at.digits, (*outer, Linear(terms=tuple(reversed(flat)))), _outside(at.guards, row))
        outer_dims = [dims[a] for a in others]
        over_row = reshape(over_row, [*outer_dims, weight], [*outer_dims, *(dims[a] for a in reduced)])
        place = {a: k for k, a in enumerate((*others, *reduced))}
        return over_row.with_coordinates([over_row.coordinates[place[a]] for a in range(len(dims))])

    def _call(self, node: ir.Node, row: RowOperator, at: Map, reduces: Callable[[str, Expr], Expr]) -> RowCall:
        """The call of an operator whose first operand is read by the map `at`."""
        x_dims = dims_of(_first(node), self.shapes)
        args: list[Expr | None] = []
        for k, value in enumerate(node.inputs[: row.operands]):
            if value is None:
                args.append(None)
            elif constant(value) is not None:
                args.append(self.value(value, at))
            elif k in row.channels:
                args.append(self.value(value, at.with_coordinates([at.coordinates[1]])))
            else:
                args.append(self.value(value, at.with_coordinates(broadcast(at, x_dims, value, self.shapes))))
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        return RowCall(tuple(args), attributes, storage(_first(node), self.shapes).name, reduces)


def _first(node: ir.Node) -> ir.Value:
    value = node.inputs[0]
    if value is None:
        raise NotAffine(f"{node.op_type} has no data input")
    return value


def _is_compiled(condition: Condition) -> bool:
    """Whether the kernel can state the condition's bounds as numbers."""
    extent = (condition.high - condition.low).number
    return condition.low.number is not None and (extent is not None or condition.is_below())


def _outside(guards: Sequence[Guard], row: Sequence[int]) -> tuple[Guard, ...]:
    """The guards that hold for whole rows; guards within a row are dropped, because a reduction reads the whole row."""
    conditions = []
    for guard in guards:
        inside = [k in row for k, _ in guard.form.terms]
        if not any(inside):
            conditions.append(guard)
        elif not all(inside):
            raise NotAffine("A part of a Concat or Pad begins or ends in the middle of several rows")
    return tuple(conditions)
