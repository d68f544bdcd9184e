"""Lowering of regions with index operations: values are evaluated backward from the outputs, under index maps.

The domain is the flat index of the outputs, which all have the same size. An elementwise node applies its row of the
operator table to its operands under the same map, broadcast. An index node evaluates its operand under another map. At
an input of the region, the map becomes an access. A value that is read under two maps is computed twice; equal
instructions are shared (program/expressions.py).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from onnxopt.fusion.index_maps import Guard, Linear, Map, NotAffine, identity
from onnxopt.fusion.index_ops import Piece, broadcast, dims_of, is_index, undo
from onnxopt.fusion.multiples import with_multiples
from onnxopt.fusion.operands import apply_operator, constant, looks_up, storage
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.program.dtypes import DTYPES
from onnxopt.program.expressions import Builder, Expr
from onnxopt.program.extents import ONE, Extent, product
from onnxopt.program.indexing import MAX_CONDITIONS, MAX_TERMS, Access, Condition, Indexing, Lookup, Term
from onnxopt.program.pointwise import Instruction, Program, without_dead_code

MAX_ACCESSES = 16  # of one kernel: every access takes kernel parameters and registers
TOO_MANY_ACCESSES = f"The fused kernel would read its inputs through more than {MAX_ACCESSES} different index maps"
_MAX_EVALUATIONS = 512  # of values under maps, in one region


def lower_indexed(
    nodes: Sequence[ir.Node],
    inputs: Sequence[ir.Value],
    outputs: Sequence[ir.Value],
    opsets: Mapping[str, int],
    shapes: Shapes,
) -> Program:
    """The program of nodes with index operations among them. NotAffine, with the reason, where there is none."""
    return Evaluation(nodes, inputs, opsets, shapes).program(outputs)


class Evaluation:
    """Instructions and accesses, collected while values are evaluated.

    leaves: by their ids, which are below 0 until their number is known.
    """

    def __init__(self, nodes: Sequence[ir.Node], inputs: Sequence[ir.Value], opsets: Mapping[str, int], shapes: Shapes):
        self.opsets, self.shapes = opsets, with_multiples(nodes, inputs, shapes)
        self._producers = {v: (node, k) for node in nodes for k, v in enumerate(node.outputs)}
        self._inputs = {v: k for k, v in enumerate(inputs)}
        self._builder = Builder(())
        self._accesses: dict[Access, int] = {}
        self._conditions: dict[Condition, int] = {}
        self.leaves: dict[int, Expr] = {}
        self._results: dict[tuple[ir.Value, Map], Expr] = {}

    def program(self, outputs: Sequence[ir.Value]) -> Program:
        shapes = tuple(dims_of(v, self.shapes) for v in outputs)
        if len({product(dims) for dims in shapes}) != 1:
            raise NotAffine("The outputs of the fused kernel have different numbers of elements")
        results = [self.value(v, identity(dims)).id for v, dims in zip(outputs, shapes, strict=True)]
        index = self.indexing(shapes)
        program = Program(
            inputs=tuple(storage(v, self.shapes).name for v in self._inputs),
            outputs=tuple(storage(v, self.shapes).name for v in outputs),
            code=self.code(),
            results=tuple(self.renumbered(r) for r in results),
            depends=((),) * len(outputs),
            ranks=(0,) * len(outputs),
            index=index,
        )  # fmt: skip
        program = without_dead_code(program)
        try:
            program.verify()
        except ValueError as error:
            raise NotAffine(f"The fused kernel is not valid: {error}") from None
        return program

    def indexing(self, shapes: tuple[tuple[Extent, ...], ...]) -> Indexing:
        """The index part of the program, for outputs of these shapes."""
        if not self._accesses:
            raise NotAffine("The fused kernel would read no input")
        dims = tuple(dims_of(v, self.shapes) for v in self._inputs)
        index = Indexing(tuple(self._accesses), tuple(self._conditions), dims, shapes, _symbols(dims))
        return index.renumbered({lookup.index: self.renumbered(lookup.index) for _, lookup in index.lookups})

    def code(self) -> tuple[Instruction, ...]:
        """The instructions with the ids of a Program."""
        return tuple(dataclasses.replace(i, args=tuple(self.renumbered(a) for a in i.args)) for i in self._builder.code)

    def renumbered(self, own: int) -> int:
        accesses, conditions = len(self._accesses), len(self._conditions)
        if own >= 0:
            return accesses + conditions + own
        return (-1 - own) // 2 if own % 2 else accesses + (-2 - own) // 2

    def value(self, value: ir.Value, at: Map) -> Expr:
        """A value under a map, evaluated once."""
        result = self._results.get((value, at))
        if result is None:
            if len(self._results) >= _MAX_EVALUATIONS:
                raise NotAffine(f"Index operations would make the kernel evaluate more than {_MAX_EVALUATIONS} values")
            result = self._results[value, at] = self._compute(value, at)
        return result

    def _compute(self, value: ir.Value, at: Map) -> Expr:
        tensor = constant(value)
        if tensor is not None and value not in self._inputs:
            return self._builder.const(tensor.numpy().reshape(()).item(), storage(value, self.shapes).compute)
        if value in self._inputs:
            return self._access(value, at)
        node, output = self._producers[value]
        return self.result(node, output, at)

    def result(self, node: ir.Node, output: int, at: Map) -> Expr:
        """Result `output` of a node under a map."""
        value = node.outputs[output]
        if looks_up(node):
            return self.looked_up(node, at)
        if is_index(node):
            return self._pieces(value, undo(node, output, at, self.shapes))
        result_dims = dims_of(value, self.shapes)
        operands = {}
        for operand in node.inputs:
            if operand is not None and operand not in operands:
                if constant(operand) is None:
                    coordinates = broadcast(at, result_dims, operand, self.shapes)
                    operands[operand] = self.value(operand, at.with_coordinates(coordinates))
                else:
                    operands[operand] = self.value(operand, at)
        return apply_operator(node, operands, self.opsets, self.shapes)

    def _pieces(self, value: ir.Value, pieces: Sequence[Piece]) -> Expr:
        dtype = storage(value, self.shapes).compute
        result: Expr | None = None
        for piece in reversed(pieces):
            part = self._builder.const(piece.fill, dtype) if piece.value is None else self.value(piece.value, piece.map)
            if result is None:
                result = part
                continue
            inside = functools.reduce(
                lambda a, b: a.apply("and", b), (self._condition(g, piece.map.digits) for g in piece.inside)
            )
            result = self.selected(inside, piece, part, result)
        if result is None:
            raise NotAffine("A result has no elements")
        return result

    def selected(self, inside: Expr, piece: Piece, part: Expr, rest: Expr) -> Expr:
        """A part of a result where `inside` states that its piece applies, else the rest."""
        return inside.where(part, rest)

    def _condition(self, guard: Guard, digits: tuple[Extent, ...]) -> Expr:
        return self._leaf(-2 - 2 * self._condition_number(guard, digits), "bool", "bool")

    def _leaf(self, number: int, dtype: str, storage: str) -> Expr:
        return self.leaves.setdefault(number, Expr(self._builder, number, dtype, storage))

    def _condition_number(self, guard: Guard, digits: tuple[Extent, ...]) -> int:
        constant_part = sum(e.factor for e in guard.form.offset.parts if not e.symbols)
        symbolic = guard.form.offset - constant_part
        condition = Condition(constant_part, _terms(guard.form, digits), guard.low - symbolic, guard.high - symbolic)
        number = self._conditions.setdefault(condition, len(self._conditions))
        if number >= MAX_CONDITIONS:
            raise NotAffine(
                f"The fused kernel would need more than {MAX_CONDITIONS} conditions for the parts of Concat and Pad"
            )
        return number

    def _is_inside(self, value: ir.Value, at: Map) -> bool:
        """Whether all reads stay inside the tensor even where the guards do not hold, so that reads need no guards."""
        for coordinate, dim in zip(at.coordinates, dims_of(value, self.shapes), strict=True):
            if not coordinate.terms and not coordinate.offset:
                continue
            if not at.is_inside(coordinate, dim):
                return False
        return True

    def looked_up(self, node: ir.Node, at: Map) -> Expr:
        """An element of a Gather's data at an index that the kernel reads."""
        data, indices = node.inputs
        if data is None or indices is None or data not in self._inputs:
            raise NotAffine("Gather looks elements up in what the same kernel would compute")
        dims, index_dims = dims_of(data, self.shapes), dims_of(indices, self.shapes)
        axis, rows = node.attributes.get_int("axis", 0) % len(dims), at.coordinates
        end = axis + len(index_dims)
        places = [Linear() if d == ONE else c for c, d in zip(rows[axis:end], index_dims, strict=True)]
        index = self.value(indices, at.with_coordinates(places)).id
        if any(a.lookup is not None for a in self._accesses_of(index)):
            raise NotAffine(f"Gather's indices `{indices.name}` would be looked up in the same kernel")
        lookup = Lookup(index, dims[axis], product(dims[axis + 1 :]))
        return self._access(data, at.with_coordinates([*rows[:axis], Linear(), *rows[end:]]), lookup)

    def _accesses_of(self, value: int) -> list[Access]:
        """The accesses that a value of this evaluation is computed from."""
        known, seen, open_ = tuple(self._accesses), set[int](), [value]
        while open_:
            value = open_.pop()
            if value not in seen:
                seen.add(value)
                open_ += self._builder.code[value].args if value >= 0 else ()
        return [known[(-1 - k) // 2] for k in seen if k < 0 and k % 2]

    def _access(self, value: ir.Value, at: Map, lookup: Lookup | None = None) -> Expr:
        stride, offset, flat = ONE, [], []
        for coordinate, dim in zip(reversed(at.coordinates), reversed(dims_of(value, self.shapes)), strict=True):
            offset += [stride * part for part in coordinate.offset.parts]
            flat += [(digit, c * stride) for digit, c in coordinate.terms]
            stride = stride * dim
        guards: tuple[int, ...] = ()
        if not self._is_inside(value, at) or (lookup and any(a.guards for a in self._accesses_of(lookup.index))):
            guards = tuple(sorted({self._condition_number(g, at.digits) for g in at.guards}))
        access = Access(self._inputs[value], _summed(offset), _terms(_merged(flat), at.digits), guards, lookup)
        if lookup is not None and len(access.terms) == MAX_TERMS:
            raise NotAffine(f"The index of one input would have more than {MAX_TERMS} terms")
        number = self._accesses.setdefault(access, len(self._accesses))
        if number >= MAX_ACCESSES:
            raise NotAffine(TOO_MANY_ACCESSES)
        dtype = storage(value, self.shapes)
        return self._leaf(-1 - 2 * number, DTYPES[dtype.name].compute, dtype.name)


def _symbols(dims: Sequence[tuple[Extent, ...]]) -> tuple[tuple[str, int, int], ...]:
    """(symbol, input, axis) for each symbol: the first input and axis whose size is the smallest multiple of it."""
    symbols: dict[str, tuple[int, int, int]] = {}
    for k, row in enumerate(dims):
        for axis, dim in enumerate(row):
            if len(dim.symbols) == 1:
                place = (dim.factor, k, axis)
                symbols[dim.symbols[0]] = min(symbols.get(dim.symbols[0], place), place)
    return tuple((name, k, axis) for name, (_, k, axis) in symbols.items())


def _summed(offset: list[Extent]) -> tuple[Extent, ...]:
    """The offset with summands of the same symbols added up."""
    sums: dict[tuple[str, ...], int] = {}
    for e in offset:
        sums[e.symbols] = sums.get(e.symbols, 0) + e.factor
    return tuple(Extent(factor, symbols) for symbols, factor in sums.items() if factor)


def _merged(flat: list[tuple[int, Extent]]) -> Linear:
    """One coefficient per digit. NotAffine where two coefficients of one digit have different symbols."""
    merged: dict[int, Extent] = {}
    for digit, coefficient in flat:
        before = merged.get(digit)
        if before is not None and before.symbols != coefficient.symbols:
            raise NotAffine("The index of an element depends on a sum of different symbolic dims")
        merged[digit] = coefficient if before is None else Extent(before.factor + coefficient.factor, before.symbols)
    return Linear(terms=tuple(sorted(merged.items())))


def _terms(form: Linear, digits: tuple[Extent, ...]) -> tuple[Term, ...]:
    """The terms of a form over the flat index, innermost first. Digits that are contiguous in memory are one term."""
    coefficients = dict(form.terms)
    terms: list[Term] = []
    open_at = -1  # the digit outside of the last term, which may extend the term
    div = ONE
    for k in range(len(digits) - 1, -1, -1):
        stride = coefficients.get(k)
        if stride is not None and stride.factor:
            last = terms[-1] if terms and open_at == k else None
            if last is not None and stride == last.stride * last.mod:
                terms[-1] = Term(last.div, last.mod * digits[k], last.stride)
            else:
                terms.append(Term(div, digits[k], stride))
            open_at = k - 1
        div = div * digits[k]
    if len(terms) > MAX_TERMS:
        raise NotAffine(f"The index of one input would have more than {MAX_TERMS} terms")
    return tuple(terms)
