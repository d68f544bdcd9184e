"""Products in the form that other rules and kernels know: MatMul, and an Add of the bias.

    Reshape(Gemm(Reshape(x, [-1, K]), w, b), [.., N])    -> Add(MatMul(x, w), b)     x [.., K], of three dims or more
    Reshape(Gemm(Reshape(x, [-1, K]), w, b), [.., N, H]) -> Reshape(Add(MatMul(Reshape(x, [.., K]), w), b), [.., N, H])
    Transpose(MatMul(a, b)) -> MatMul(Transpose(b), Transpose(a))                    where no more Transposes are left

Two Transposes in a row are one, or none. Of as many, those of operands are preferred.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import MatchContext, MatchResult, RewriteRuleClassBase

from onnxopt.graph.match import is_constant, new_integers
from onnxopt.graph.passes.rooted import Rooted
from onnxopt.graph.rewrite.rule_sets import RuleSet
from onnxopt.graph.shapes.value_dims import same

_PLAIN = {"transA": 0, "alpha": 1.0, "beta": 1.0}


class GemmBetweenViews(RewriteRuleClassBase):
    """Gemm of the rows of a tensor of three dims or more, whose result has the tensor's leading dims again."""

    def pattern(self, op, rows, w, outer):
        product = op.Gemm(rows, w, _allow_other_inputs=True, _allow_other_attributes=True, _outputs=["product"])
        return op.Reshape(product, outer, _allow_other_attributes=True, _outputs=["y"])

    def check(
        self, context: MatchContext, rows: ir.Value, w: ir.Value, product: ir.Value, y: ir.Value, **_: ir.Value
    ) -> MatchResult:
        result, node, x = MatchResult(), product.producer(), _before_view(rows)
        assert node is not None
        for name, plain in _PLAIN.items():
            if name in node.attributes and node.attributes[name].value != plain:
                return result.fail(f"Gemm has {name} = {node.attributes[name].value}")
        if not is_constant(w) or len(w.const_value.shape) != 2:  # type: ignore[union-attr]
            return result.fail(f"the weight `{w.name}` is not a constant matrix")
        sizes = w.const_value.shape.numpy()  # type: ignore[union-attr]
        depth, columns = reversed(sizes) if _by_rows(node) else sizes
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        if bias is not None and (bias.shape is None or bias.shape.dims not in ((columns,), (1, columns), (1,), ())):
            return result.fail(f"`{bias.name}` is not a bias of {columns} columns")
        if x is None or x.shape is None or y.shape is None:
            return result.fail("the rows are no view, or the shapes of the views are not known")
        if _leading(x.shape, y.shape, depth, columns) is None:
            return result.fail(f"the views do not keep the leading dims of `{x.name}` around rows of {depth}")
        return result

    def rewrite(self, op, rows: ir.Value, w: ir.Value, product: ir.Value, y: ir.Value, **_: ir.Value):
        node, x = product.producer(), _before_view(rows)
        assert node is not None and x is not None and x.shape is not None and y.shape is not None
        sizes = w.const_value.shape.numpy()  # type: ignore[union-attr]
        depth, columns = reversed(sizes) if _by_rows(node) else sizes
        leading = _leading(x.shape, y.shape, depth, columns)
        assert leading is not None
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        operand = x if x.shape.dims[leading:] == (depth,) else op.Reshape(x, new_integers(op, [*[0] * leading, depth]))
        result = op.MatMul(operand, _columns(op, w) if _by_rows(node) else w)
        result = result if bias is None else op.Add(result, bias)
        rest = y.shape.dims[leading:]
        return (
            result
            if rest == (columns,)
            else op.Reshape(result, new_integers(op, [*[0] * leading, *(int(str(d)) for d in rest)]))
        )


def _leading(x: ir.Shape, y: ir.Shape, depth: int, columns: int) -> int | None:
    """How many leading dims, two or more, both views keep around rows of these sizes; None where they do not."""
    for count in range(min(len(x), len(y)) - 1, 1, -1):
        unchanged = all(same(a, b) for a, b in zip(x.dims[:count], y.dims[:count], strict=True))
        if unchanged and (_size(x, count), _size(y, count)) == (depth, columns):
            return count
    return None


def _size(shape: ir.Shape, count: int) -> int | None:
    """The product of the dims behind the first `count`."""
    numbers = [d for d in shape.dims[count:] if isinstance(d, int)]
    return math.prod(numbers) if len(numbers) == len(shape) - count else None


def _before_view(rows: ir.Value) -> ir.Value | None:
    """What a Reshape makes rows of: several products may read them."""
    node = rows.producer()
    return (
        node.inputs[0]
        if node is not None and (node.domain, node.op_type) in (("", "Reshape"), ("", "Flatten"))
        else None
    )


def _by_rows(node: ir.Node) -> bool:
    return bool(node.attributes.get_int("transB", 0))


def _columns(op, weight: ir.Value) -> ir.Value:
    """A constant matrix transposed: a new one where nothing else reads it."""
    tensor = weight.const_value
    assert tensor is not None
    if len(weight.uses()) > 1:
        return op.Transpose(weight, perm=[1, 0])
    rows, columns = tensor.shape.numpy()
    name = f"{weight.name}/turned"
    turned = ir.LazyTensor(
        lambda: ir.Tensor(np.ascontiguousarray(tensor.numpy().T), dtype=tensor.dtype, name=name),
        dtype=tensor.dtype, shape=ir.Shape([columns, rows]), name=name,
    )  # fmt: skip
    return op.initializer(turned)


class TransposedProduct(RewriteRuleClassBase):
    """The Transpose of a product as the product of Transposes, where no more of them are left."""

    def pattern(self, op, a, b):
        return op.Transpose(op.MatMul(a, b), _allow_other_attributes=True, _outputs=["y"])

    def check(self, context: MatchContext, a: ir.Value, b: ir.Value, y: ir.Value) -> MatchResult:
        result, node = MatchResult(), y.producer()
        assert node is not None
        if a.shape is None or b.shape is None or len(a.shape) != len(b.shape) or len(a.shape) < 2:
            return result.fail("the operands are not known to have as many dims as each other")
        if len(node.attributes.get_ints("perm", ())) != len(a.shape):
            return result.fail("the permutation of the Transpose is not stated")
        before = 1 + _is_transpose(a) + _is_transpose(b)
        after = sum(_moves(perm) for perm in (_turned_result(y), _turned(a), _turned(b)))
        if after > before or (after == before and _moves(_turned_result(y))):
            return result.fail("as many Transposes would remain")
        return result

    def rewrite(self, op, a: ir.Value, b: ir.Value, y: ir.Value):
        product = op.MatMul(_transposed(op, b), _transposed(op, a))
        perm = _turned_result(y)
        return op.Transpose(product, perm=perm) if _moves(perm) else product


def _turned_result(y: ir.Value) -> tuple[int, ...]:
    """What a Transpose of a product does besides to swap its last two dims."""
    perm = y.producer().attributes.get_ints("perm", ())  # type: ignore[union-attr]
    swap = _swap(len(perm))
    return tuple(swap[axis] for axis in perm)


def _turned(value: ir.Value) -> tuple[int, ...]:
    """The permutation of the last two dims swapped, behind the Transpose that makes the value, if there is one."""
    swap = _swap(len(value.shape))  # type: ignore[arg-type]
    first = value.producer().attributes.get_ints("perm", ()) if _is_transpose(value) else None  # type: ignore[union-attr]
    return swap if first is None else tuple(first[axis] for axis in swap)


def _transposed(op, value: ir.Value) -> ir.Value:
    """The value with its last two dims swapped."""
    node = value.producer()
    before = node.inputs[0] if node is not None and _is_transpose(value) else None
    source = value if before is None else before
    return op.Transpose(source, perm=_turned(value)) if _moves(_turned(value)) else source


def _moves(perm: tuple[int, ...]) -> bool:
    return perm != tuple(range(len(perm)))


def _is_transpose(value: ir.Value) -> bool:
    node = value.producer()
    return node is not None and (node.domain, node.op_type) == ("", "Transpose") and "perm" in node.attributes


def _swap(rank: int) -> tuple[int, ...]:
    return (*range(rank - 2), rank - 1, rank - 2)


GEMM = (RuleSet(lambda _: [Rooted("Reshape", GemmBetweenViews.rule())]),)
TRANSPOSED = (RuleSet(lambda _: [Rooted("Transpose", TransposedProduct.rule())]),)
