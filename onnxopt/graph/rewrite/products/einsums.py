"""An Einsum of one or two floating operands becomes a MatMul or a Mul, with the Transposes and Reshapes that it takes.

    Einsum<"ibnd,jbnd->bnij">(a, b) -> MatMul(Transpose(a), Transpose(b))
    Einsum<"bhwc,hkc->bhwk">(a, b)  -> Transpose(Reshape(MatMul(Reshape(Transpose(a)), Transpose(b))))
    Einsum<"i,d->id">(a, b)         -> Mul(Unsqueeze(a), b)
    Einsum<"ijb->bij">(a)           -> Transpose(a)

As products they are part of attention and of kernels with epilogues. Reshape joins the labels that are summed to one
dim, those of b alone, and those of a alone unless b is one matrix.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import MatchContext, MatchResult, RewriteRuleClassBase

from onnxopt.graph.match import is_constant, new_integers
from onnxopt.graph.passes.rooted import Rooted
from onnxopt.graph.rewrite.rule_sets import RuleSet
from onnxopt.graph.shapes.value_dims import dims_of, same

_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE)
_Size = int | ir.SymbolicDim


@dataclasses.dataclass(frozen=True)
class _Equation:
    """Labels of the operands and of the result, and the size of each label."""

    operands: tuple[str, ...]
    result: str
    sizes: dict[str, _Size]


class EinsumProduct(RewriteRuleClassBase):
    """An Einsum of two operands."""

    def pattern(self, op, a, b):
        return op.Einsum(a, b, _allow_other_attributes=True, _outputs=["y"])

    def check(self, context: MatchContext, a: ir.Value, b: ir.Value, y: ir.Value) -> MatchResult:
        equation = _equation(y, (a, b))
        product = equation if isinstance(equation, str) else _product(equation)
        return MatchResult().fail(product) if isinstance(product, str) else MatchResult()

    def rewrite(self, op, a: ir.Value, b: ir.Value, y: ir.Value):
        equation = _equation(y, (a, b))
        assert isinstance(equation, _Equation)  # as check found
        product = _product(equation)
        assert not isinstance(product, str)
        return product.build(op, a, b)


class EinsumTranspose(RewriteRuleClassBase):
    """An Einsum of one operand that sums nothing."""

    def pattern(self, op, a):
        return op.Einsum(a, _allow_other_attributes=True, _outputs=["y"])

    def check(self, context: MatchContext, a: ir.Value, y: ir.Value) -> MatchResult:
        equation = _equation(y, (a,))
        if isinstance(equation, str):
            return MatchResult().fail(equation)
        if len(equation.result) != len(equation.operands[0]):
            return MatchResult().fail(f"Einsum sums {equation.operands[0]} to {equation.result}")
        return MatchResult()

    def rewrite(self, op, a: ir.Value, y: ir.Value):
        equation = _equation(y, (a,))
        assert isinstance(equation, _Equation)  # as check found
        return _transposed(op, a, equation.operands[0], equation.result)


def _equation(y: ir.Value, operands: Sequence[ir.Value]) -> _Equation | str:
    """The equation of the Einsum that computes y, or why it is not taken."""
    node = y.producer()
    assert node is not None
    text = node.attributes.get_string("equation", "").replace(" ", "")  # type: ignore[union-attr]
    terms, arrow, result = text.partition("->")
    labels = terms.split(",")
    if not arrow or not all(term.isalpha() or not term for term in (*labels, result)):
        return f"Einsum `{text}` has an ellipsis, or does not state its result"
    if any(len(set(term)) != len(term) for term in (*labels, result)):
        return f"Einsum `{text}` reads a diagonal"
    sizes: dict[str, _Size] = {}
    for term, operand in zip(labels, operands, strict=True):
        if operand.dtype not in _FLOATS:
            return f"`{operand.name}` is not known to be of a floating dtype"
        if operand.shape is None or len(operand.shape) != len(term):
            return f"`{operand.name}` is not known to have {len(term)} dims"
        for label, size in zip(term, dims_of(operand), strict=True):
            if not same(sizes.setdefault(label, size), size):
                return f"the sizes of {label} in Einsum `{text}` are not known to be equal"
    return _Equation(tuple(labels), result, sizes)


def _product(equation: _Equation) -> _MatMul | _Mul | str:
    """How the product is written, or why it is not."""
    a, b = equation.operands
    summed = "".join(label for label in a if label in b and label not in equation.result)
    alone = [label for label in a + b if (label in a) != (label in b) and label not in equation.result]
    if alone:
        return f"Einsum sums {', '.join(alone)} of one operand"
    if not summed:
        return _Mul(equation)
    batch = "".join(label for label in equation.result if label in a and label in b)
    rows, columns = ("".join(x for x in equation.result if x in own and x not in batch) for own in (a, b))
    product = _MatMul(equation, batch, rows, columns, summed)
    return product.obstacle() or product


@dataclasses.dataclass(frozen=True)
class _Mul:
    """Both operands in the order of the result, with dims of 1 for the labels that they lack."""

    equation: _Equation

    def build(self, op, a: ir.Value, b: ir.Value):
        result = self.equation.result
        operands = []
        for value, labels in zip((a, b), self.equation.operands, strict=True):
            turned = _transposed(op, value, labels, "".join(label for label in result if label in labels))
            first = next((k for k, label in enumerate(result) if label in labels), len(result))
            lacking = [k for k, label in enumerate(result) if label not in labels and k > first]
            operands.append(op.Unsqueeze(turned, new_integers(op, lacking)) if lacking else turned)
        return op.Mul(*operands)


@dataclasses.dataclass(frozen=True)
class _MatMul:
    """a (batch, rows, summed) times b (batch, summed, columns)."""

    equation: _Equation
    batch: str
    rows: str
    columns: str
    summed: str

    @property
    def _keeps_rows(self) -> bool:
        """Whether the rows of a stay apart, as b is one matrix."""
        return not self.batch and len(self.rows) > 0

    def _groups(self) -> tuple[list[str], list[str], list[str]]:
        """Of a, b and their product: labels that make one dim each, in order."""
        rows = list(self.rows) if self._keeps_rows else [self.rows]
        batch = list(self.batch)
        return (
            [*batch, *rows, self.summed],
            [*batch, self.summed, self.columns],
            [*batch, *rows, self.columns],
        )

    def obstacle(self) -> str:
        """Why a Reshape cannot be written, or ""."""
        a, b, y = self._groups()
        wanted = (*((groups, True) for groups in (a, b)), (y, False))
        if any(_target(groups, self.equation.sizes, joins) is None for groups, joins in wanted):
            return "Einsum merges several dims, and more than one is symbolic"
        return ""

    def build(self, op, a: ir.Value, b: ir.Value):
        a_groups, b_groups, y_groups = self._groups()
        left, right = (
            self._merged(op, value, labels, groups)
            for value, labels, groups in zip((a, b), self.equation.operands, (a_groups, b_groups), strict=True)
        )
        product = op.MatMul(left, right)
        if any(len(group) != 1 for group in y_groups):
            product = op.Reshape(product, new_integers(op, self._sizes_of(y_groups, joins=False)))
        return _transposed(op, product, "".join(y_groups), self.equation.result)

    def _merged(self, op, value: ir.Value, labels: str, groups: list[str]):
        order = "".join(groups)
        sizes = None if all(len(group) == 1 for group in groups) else self._sizes_of(groups, joins=True)
        if is_constant(value) and (labels == order or len(value.uses()) == 1) and (labels != order or sizes):
            return _arranged(op, value, [labels.index(label) for label in order], sizes)
        turned = _transposed(op, value, labels, order)
        return turned if sizes is None else op.Reshape(turned, new_integers(op, sizes))

    def _sizes_of(self, groups: list[str], joins: bool) -> list[int]:
        target = _target(groups, self.equation.sizes, joins)
        assert target is not None  # as obstacle found
        return target


def _target(groups: Sequence[str], sizes: dict[str, _Size], joins: bool) -> list[int] | None:
    """The shape that a Reshape is given to join the labels of each group, or to take them apart; None for none.

    A symbolic dim in front of all groups of several labels, or of none, keeps its place and is 0. There may be one
    other, which is -1.
    """
    target: list[int] = []
    moved = False
    for group in groups:
        parts = [[sizes[label] for label in group]] if joins else [[sizes[label]] for label in group]
        moved = moved or len(group) != 1
        for part in parts:
            static = [size for size in part if isinstance(size, int)]
            symbolic = -1 if moved else 0
            target.append(math.prod(static) if len(static) == len(part) else symbolic)
    return target if target.count(-1) <= 1 else None


def _arranged(op, value: ir.Value, perm: Sequence[int], sizes: Sequence[int] | None):
    """A constant with its axes in another order, and then reshaped: a new constant, in place of one that goes."""
    tensor = value.const_value
    assert tensor is not None
    dims = tensor.shape.numpy()
    shape = [dims[axis] for axis in perm] if sizes is None else sizes
    kind = f"{len(shape)}d" if list(perm) == sorted(perm) else "turned"
    name = f"{value.name}/{kind}"
    arranged = ir.LazyTensor(
        lambda: ir.Tensor(np.ascontiguousarray(tensor.numpy().transpose(perm).reshape(shape)), dtype=tensor.dtype),
        dtype=tensor.dtype, shape=ir.Shape(shape), name=name,
    )  # fmt: skip
    return op.initializer(arranged, name=name)


def _transposed(op, value: ir.Value, labels: str, wanted: str):
    if labels == wanted:
        return value
    return op.Transpose(value, perm=[labels.index(label) for label in wanted])


RULES = (RuleSet(lambda _: [Rooted("Einsum", EinsumProduct.rule()), Rooted("Einsum", EinsumTranspose.rule())]),)
