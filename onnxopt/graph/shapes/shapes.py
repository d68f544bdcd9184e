"""Dtypes and shapes of every value as fusing reads them, inferred anew from the graph's inputs and weights.

Declared shapes of intermediate values and outputs are not read: exporters and editing tools get them wrong.
"""

from __future__ import annotations

import copy
import math
import types
from collections.abc import Mapping

import onnx_ir as ir
import sympy

from onnxopt.graph.shapes import infer as inference
from onnxopt.graph.shapes.checked_sizes import checked_sizes
from onnxopt.graph.shapes.dims import quotient
from onnxopt.graph.shapes.expected import ExpectedSizes
from onnxopt.program.dtypes import Dtype, from_ir
from onnxopt.program.extents import ZERO, Extent, Sum, extent, total
from onnxopt.program.operators import row_operators
from onnxopt.program.operators import table as operators

Dims = tuple[int | str | None, ...]


class Shapes:
    """Dtypes and dims of the values of one model. A dim is an int, a symbol's name, or None where it is not known.

    expected: sizes of symbolic dims to choose by, where several ways are right.
    """

    def __init__(
        self,
        dtypes: dict[ir.Value, ir.DataType | None],
        dims: dict[ir.Value, Dims | None],
        expected: ExpectedSizes,
        inferred: inference.Knowledge,
    ) -> None:
        self._dtypes = dtypes
        self._dims = dims
        self._inferred = inferred
        self._multiples: Mapping[str, Extent] = {}
        self.expected = expected
        self._roots: dict[ir.Value, ir.Value] = {}

    def dtype(self, value: ir.Value) -> Dtype | None:
        """The storage dtype of a value, or None where it is unknown or no kernel can store it."""
        return from_ir(self.ir_dtype(value))

    def ir_dtype(self, value: ir.Value) -> ir.DataType | None:
        """The dtype of a value, also where no kernel can store it; None where it is unknown."""
        return self._dtypes.get(value, value.dtype)

    def dims(self, value: ir.Value) -> Dims | None:
        """The dims of a value, or None where not even its rank is known."""
        return self._dims.get(value)

    def usual(self, value: ir.Value) -> Dims | None:
        """The dims of a value in most runs; those that are not known stay as they are."""
        dims = self.dims(value)
        return None if dims is None else tuple(d if (n := self.expected.of(d)) is None else n for d in dims)

    def extent(self, dim: int | str) -> Extent:
        """A dim as kernels count it: its name is a symbol, where it is not written as a multiple of another one."""
        return self._multiples.get(dim, extent(dim)) if isinstance(dim, str) else extent(dim)

    def length(self, dim: int | str) -> Sum:
        """A dim as a sum, whose symbols are those of the dims of inputs where kernels count in these."""
        if isinstance(dim, int) or not self._multiples:
            return total(self.extent(dim))
        length = ZERO
        for term in sympy.Add.make_args(sympy.expand(self._inferred.named(dim))):
            if (part := _monomial(term)) is None:
                return total(self.extent(dim))
            length += part
        return length

    def monomial(self, dim: str) -> Extent | None:
        """A dim as a number times symbols of the model's inputs, and of sizes that are multiples; None for others."""
        part = _monomial(sympy.sympify(self._inferred.named(dim)))
        return part if part is not None and part.factor > 0 else None

    def with_multiples(self, multiples: Mapping[str, Extent]) -> Shapes:
        """The same shapes, with some dims written as multiples of others."""
        written = copy.copy(self)
        written._multiples = multiples
        return written

    def times(self, dim: str, part: str) -> int | None:
        """How many times `part` the dim is at every run, by name; None where that is no whole number."""
        ratio = quotient(self._inferred.named(dim), self._inferred.named(part))
        return ratio if isinstance(ratio, int) else None

    def elements(self, value: ir.Value) -> int | None:
        """The number of elements of a value, or None where a dim is not a number."""
        dims = self.dims(value)
        if dims is None or any(not isinstance(d, int) for d in dims):
            return None
        return math.prod(d for d in dims if isinstance(d, int))

    def bytes(self, value: ir.Value) -> int | None:
        """The bytes a value takes, or None where they are not known."""
        elements, dtype = self.elements(value), self.dtype(value)
        return None if elements is None or dtype is None else elements * dtype.size

    def same(self, a: ir.Value, b: ir.Value) -> bool:
        """Whether two values are known to have the same shape at every run."""
        if self.root(a) is self.root(b):
            return True
        x, y = self.dims(a), self.dims(b)
        return x is not None and x == y and None not in x

    def root(self, value: ir.Value) -> ir.Value:
        """The value farthest upstream whose shape `value` has by way of elementwise operators and norms."""
        trail = []
        while value not in self._roots:
            upstream = self._shape_giver(value)
            if upstream is None:
                self._roots[value] = value
            else:
                trail.append(value)
                value = upstream
        for passed in trail:
            self._roots[passed] = self._roots[value]
        return self._roots[value]

    def _shape_giver(self, value: ir.Value) -> ir.Value | None:
        node = value.producer()
        if node is not None and row_operators.keeps_shape(node.domain, node.op_type) and value is node.outputs[0]:
            return node.inputs[0]
        if node is None or operators.OPERATORS.get((node.domain, node.op_type)) is None:
            return None
        operands = [v for v in dict.fromkeys(node.inputs) if v is not None]
        for operand in operands:
            if all(o is operand or self._is_absorbed(o, operand) for o in operands):
                return operand
        return None

    def _is_absorbed(self, small: ir.Value, large: ir.Value) -> bool:
        """Whether broadcasting `small` against `large` always gives the shape of `large`."""
        s, big = self.dims(small), self.dims(large)
        if s is None or big is None or len(s) > len(big):
            return s == ()
        return all(d == 1 or (d == b and d is not None) for d, b in zip(reversed(s), reversed(big), strict=False))


def _monomial(term: sympy.Expr) -> Extent | None:
    factor, rest = term.as_coeff_Mul()
    powers = rest.as_powers_dict().items()
    if not factor.is_Integer or any(
        not (base == 1 or base.is_Symbol) or not power.is_Integer for base, power in powers
    ):
        return None
    names = [str(base) for base, power in powers if base != 1 for _ in range(int(power))]
    return Extent(int(factor), tuple(sorted(names))) if all(power > 0 for _, power in powers) else None


def infer(model: ir.Model, usual: Mapping[str, int] = types.MappingProxyType({})) -> Shapes:
    """Infer dtypes and shapes of all values. The model is not changed. Nodes must be in topological order.

    usual: sizes that symbols of the inputs have in most runs.
    """
    produced = [v for graph in model.graphs() for node in graph for v in node.outputs]
    declared = [(v, v.type, v.shape) for v in produced]
    for value in produced:
        value.shape = None
    try:
        inferred = inference.infer(model)
        inferred.write()
        values = [*produced]
        for graph in model.graphs():
            values += [*graph.inputs, *graph.initializers.values()]
        dtypes = {v: v.dtype for v in values}
        checked = checked_sizes(model.graph)
        dims = {v: _dims(v, checked) for v in values}
    finally:
        for value, value_type, shape in declared:
            value.type, value.shape = value_type, shape
    return Shapes(dtypes, dims, ExpectedSizes(inferred, usual), inferred)


def _dims(value: ir.Value, checked: Mapping[str, int]) -> Dims | None:
    """The dims as they are written on a value. checked: sizes of symbols that the graph checks."""
    if value.const_value is not None:
        return tuple(int(d) for d in value.const_value.shape.numpy())
    if value.shape is None:
        return None
    return tuple(d if isinstance(d, int) else checked.get(d.value or "", d.value) for d in value.shape.dims)
