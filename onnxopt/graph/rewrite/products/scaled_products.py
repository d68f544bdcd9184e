"""A constant factor behind a product with a constant matrix, folded into the matrix and the bias.

    Mul(c, Add(MatMul(x, w), b)) -> Add(Mul(MatMul(x, c / s w), s), c b)     c one value a column, or one value
    Mul(c, Transpose(Add(MatMul(x, w), b))) -> Transpose(Mul(c', Add(MatMul(x, w), b)))

Vision models scale every block's result this way (layer scale, often small numbers) before they add it to the residual.
s is a power of two that keeps the matrix in the range of its dtype: 1 where it stays there anyway. Kernels of products
multiply by one number for nothing, and then add the bias and the residual themselves.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import MatchContext, MatchResult, RewriteRuleClassBase, pattern

from onnxopt.graph.match import is_constant, is_private
from onnxopt.graph.passes.rooted import Rooted
from onnxopt.graph.rewrite.rule_sets import RuleSet
from onnxopt.graph.rewrite.weights import FLOATS, Joiner, array_of, loses_precision, rounded

_USUAL_FLOAT16 = (2.0**-8, 2.0**6)  # the largest weight of a matrix that needs no s


class ScaledProduct(RewriteRuleClassBase):
    """first: the factor is the first operand of Mul."""

    def __init__(self, joiner: Joiner, first: bool) -> None:
        super().__init__(f"scaled_product_{first}")
        self._joiner, self._first = joiner, first

    def pattern(self, op, x, w, c):
        bias = pattern.Var("b", can_match_none=True)
        product = op.MatMul(x, w, _outputs=["product"])
        total = pattern.OrValue([op.Add(product, bias), op.Add(bias, product), product], name="total")
        return op.Mul(c, total) if self._first else op.Mul(total, c)

    def check(self, context: MatchContext, x, w, c, product, total, b=None, **_) -> MatchResult:
        result = MatchResult()
        for value in {product, total}:
            if len(value.uses()) != 1 or value.is_graph_output():
                return result.fail(f"the product's result `{value.name}` has other readers")
        if not is_constant(w) or len(w.const_value.shape) != 2 or w.const_value.dtype not in FLOATS:
            return result.fail(f"the weight `{w.name}` is not a constant matrix of floats")
        if len(w.uses()) != 1:
            return result.fail(f"the weight `{w.name}` has other readers, so a folded copy would make the model larger")
        columns, rank = w.const_value.shape.numpy()[1], None if x.shape is None else len(x.shape)
        for name, value in (("factor", c), ("bias", b)):
            if value is None:
                continue
            if not is_constant(value) or not _is_of_columns(value.const_value.shape.numpy(), columns, rank):
                return result.fail(f"the {name} `{value.name}` is not a constant with one value a column")
        if b is None and c.const_value.size == 1:
            return result.fail(f"the factor `{c.name}` is one number after a product alone: kernels apply it directly")
        folded = _folded(w, c, b)
        return result.fail(folded) if isinstance(folded, str) else result

    def rewrite(self, op, x, w, c, product, total, b=None, **_):
        folded = _folded(w, c, b)
        assert not isinstance(folded, str)
        scale, weight, bias = folded
        constant = self._joiner.constant(weight.numpy(), weight.dtype, str(weight.name))
        result = op.MatMul(x, op.initializer(constant))
        if scale is not None:
            result = op.Mul(result, op.initializer(scale))
        return result if bias is None else op.Add(result, op.initializer(bias))


class ScaledTranspose(RewriteRuleClassBase):
    """A factor of channels that comes after the columns were moved to their place, as ConvNeXt's in NCHW."""

    def __init__(self, first: bool) -> None:
        super().__init__(f"scaled_transpose_{first}")
        self._first = first

    def pattern(self, op, total, c):
        moved = op.Transpose(total, _allow_other_attributes=True, _outputs=["moved"])
        return op.Mul(c, moved) if self._first else op.Mul(moved, c)

    def check(self, context: MatchContext, total, c, moved) -> MatchResult:
        result, perm = MatchResult(), moved.producer().attributes.get_ints("perm", ())
        if len(moved.uses()) != 1 or moved.is_graph_output() or not _is_of_product(total):
            return result.fail("the Transpose is not one of a product alone, or has other readers")
        if not perm or not is_constant(c) or c.const_value.size == 1 or len(c.const_value.shape) > len(perm):
            return result.fail(f"the factor `{c.name}` is not a constant of several values")
        dims = (1,) * (len(perm) - len(c.const_value.shape)) + tuple(c.const_value.shape.numpy())
        if any(dim != 1 and axis != len(perm) - 1 for dim, axis in zip(dims, perm, strict=True)):
            return result.fail(f"the factor `{c.name}` has not one value a column")
        return result

    def rewrite(self, op, total, c, moved):
        factor = ir.Tensor(c.const_value.numpy().reshape(-1), dtype=c.const_value.dtype, name=f"{moved.name}/factor")
        scaled = op.Mul(total, op.initializer(factor))
        return op.Transpose(scaled, perm=list(moved.producer().attributes.get_ints("perm")))


def _is_of_product(total: ir.Value) -> bool:
    """Whether a value is a product, or its sum with a constant, that one node reads."""
    node = total.producer()
    if node is not None and node.op_type == "Add" and node.domain == "" and is_private(total):
        inner = [v for v in node.inputs if v is not None and not is_constant(v)]
        total, node = inner[0], inner[0].producer() if len(inner) == 1 else None
    return node is not None and (node.op_type, node.domain) == ("MatMul", "") and is_private(total)


def _folded(w: ir.Value, c: ir.Value, b: ir.Value | None) -> tuple[ir.Tensor | None, ir.Tensor, ir.Tensor | None] | str:
    """s, the matrix and the bias; None where there is none. Or the reason why the factor stays."""
    assert w.const_value is not None
    dtype = w.const_value.dtype
    factors, weights = array_of(c).reshape(-1), array_of(w)
    with np.errstate(invalid="ignore", over="ignore"):
        exact = weights * factors
        largest = float(np.abs(exact).max(initial=0.0))
        scale = _scale(dtype, largest, float(np.abs(weights).max(initial=0.0)))
        exact /= scale
        weight = rounded(exact, dtype, f"{w.name}/scaled")
        bias = None if b is None else rounded(array_of(b).reshape(-1) * factors, dtype, f"{w.name}/bias")
    if loses_precision(exact, weight, channels=1):
        return "the weights of a column would become subnormal in float16"
    for tensor in (weight, bias):
        if tensor is not None and not np.isfinite(tensor.numpy().astype(np.float64)).all():
            return f"the folded weight or bias overflows in {dtype}"
    return None if scale == 1 else rounded(np.array(scale), dtype, f"{w.name}/scale"), weight, bias


def _scale(dtype: ir.DataType, largest: float, before: float) -> float:
    """s: what makes the largest weight about as large as it was before."""
    low, high = _USUAL_FLOAT16
    if dtype != ir.DataType.FLOAT16 or not np.isfinite(largest) or largest == 0 or low <= largest <= high:
        return 1.0
    return float(2.0 ** np.clip(np.round(np.log2(largest / before)), -24, 15))  # powers of two that float16 has


def _is_of_columns(dims: tuple[int, ...], columns: int, rank: int | None) -> bool:
    """Whether a tensor of these dims, added to or multiplied with the result, is a vector along its last dim."""
    if int(np.prod(dims)) == 1 or (dims and dims[-1] == columns and int(np.prod(dims)) == columns):
        return len(dims) <= (1 if rank is None else rank)
    return False


RULES = (
    RuleSet(lambda _: [Rooted("Mul", ScaledTranspose.rule(first)) for first in (True, False)], counted=False),
    RuleSet(
        lambda scope: [
            Rooted("Mul", ScaledProduct.rule(joiner, first)) for joiner in (scope.joiner,) for first in (True, False)
        ]
    ),
)
