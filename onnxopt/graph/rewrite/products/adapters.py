"""Products of low rank beside a product of the same tensor, as adapters (LoRA) are exported, become part of its weight.

    Add(MatMul(x, w), Mul(MatMul(MatMul(x, a), b), s)) -> MatMul(x, w + s a b)          w [K, N], a [K, R], b [R, N]
    Add(Add(MatMul(x, w), c), ...)                     -> Add(MatMul(x, w + s a b), c)

The Mul by a scalar s is optional, and may be one of x a as well (Hu et al., LoRA: Low-Rank Adaptation of Large Language
Models, 2021). The weight is computed in float32 and rounded once, as merging adapters before the export does.
"""

from __future__ import annotations

from typing import NamedTuple

import ml_dtypes
import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import MatchContext, MatchResult, RewriteRuleClassBase

from onnxopt.graph.match import is_constant, is_private
from onnxopt.graph.passes.rooted import Rooted
from onnxopt.graph.rewrite.rule_sets import RuleSet
from onnxopt.graph.rewrite.weights import FLOATS, array_of

_RANK = 2  # of the smallest product, which a scalar of no more dims keeps


class _Adapter(NamedTuple):
    x: ir.Value
    down: ir.Value
    up: ir.Value
    scale: float


class _Base(NamedTuple):
    """bias: what the graph adds to the product first, or None."""

    x: ir.Value
    weight: ir.Value
    bias: ir.Value | None


class Adapters(RewriteRuleClassBase):
    def pattern(self, op, a, b):
        return op.Add(a, b)

    def check(self, context: MatchContext, a: ir.Value, b: ir.Value, **_: object) -> MatchResult:
        result, pair = MatchResult(), _pair(a, b)
        return result.fail(pair) if isinstance(pair, str) else result

    def rewrite(self, op, a: ir.Value, b: ir.Value, **_: object):
        pair = _pair(a, b)
        assert not isinstance(pair, str)
        base, adapter = pair
        weight = base.weight.const_value
        assert weight is not None
        name = f"{base.weight.name}/adapted"

        def evaluate() -> ir.Tensor:
            low_rank = _wide(adapter.down) @ _wide(adapter.up)
            exact = _wide(base.weight) + np.float32(adapter.scale) * low_rank
            return ir.Tensor(exact.astype(weight.dtype.numpy()), dtype=weight.dtype, name=name)

        tensor = ir.LazyTensor(evaluate, dtype=weight.dtype, shape=ir.Shape(weight.shape.numpy()), name=name)
        product = op.MatMul(base.x, op.initializer(tensor))
        return product if base.bias is None else op.Add(product, base.bias)


def _pair(a: ir.Value, b: ir.Value) -> tuple[_Base, _Adapter] | str:
    """A product and an adapter of the same tensor and columns; or why the two operands are none."""
    for one, other in ((a, b), (b, a)):
        adapter = _adapter(other)
        base = None if adapter is None else _base(one)
        if adapter is not None and base is not None and base.x is adapter.x:
            return _refusal(base, adapter) or (base, adapter)
    return "the operands are no product and no product of low rank of one tensor"


def _refusal(base: _Base, adapter: _Adapter) -> str:
    w, down, up = (v.const_value for v in (base.weight, adapter.down, adapter.up))
    assert w is not None and down is not None and up is not None
    if not w.dtype == down.dtype == up.dtype or w.dtype not in FLOATS:
        return "the weights are not of one dtype of floats"
    (depth, columns), rank = w.shape.numpy(), down.shape.numpy()[1]
    if len(base.weight.uses()) != 1:
        return f"the weight `{base.weight.name}` has other readers, so a sum would make the model larger"
    if down.shape.numpy() != (depth, rank) or up.shape.numpy() != (rank, columns):
        return "the adapter has other rows or columns than the weight"
    with np.errstate(all="ignore"):
        largest = [float(np.abs(_wide(v)).max(initial=0.0)) for v in (base.weight, adapter.down, adapter.up)]
    bound = largest[0] + abs(adapter.scale) * rank * largest[1] * largest[2]
    return "" if bound < float(ml_dtypes.finfo(w.dtype.numpy()).max) else "the sum of the weights may overflow"


def _base(value: ir.Value) -> _Base | None:
    product = _product(value)
    if product is not None:
        return _Base(*product, None)
    node = value.producer()
    if node is None or (node.domain, node.op_type) != ("", "Add") or not is_private(value):
        return None
    for position, bias in enumerate(node.inputs):
        other = node.inputs[1 - position]
        product = None if other is None or bias is None or not is_constant(bias) else _product(other)
        if product is not None and bias is not None and len(bias.const_value.shape) <= 1:  # type: ignore[union-attr]
            return _Base(*product, bias)
    return None


def _adapter(value: ir.Value) -> _Adapter | None:
    scaled, outer = _unscaled(value)
    up = None if scaled is None else _product(scaled)
    hidden, inner = _unscaled(up[0]) if up is not None else (None, 1.0)
    down = None if hidden is None else _product(hidden)
    return None if up is None or down is None else _Adapter(down[0], down[1], up[1], outer * inner)


def _product(value: ir.Value) -> tuple[ir.Value, ir.Value] | None:
    """The operands of a MatMul with a constant matrix, whose result nothing else reads."""
    node = value.producer()
    if node is None or (node.domain, node.op_type) != ("", "MatMul") or not is_private(value):
        return None
    x, w = node.inputs
    if x is None or w is None or not is_constant(w) or len(w.const_value.shape) != 2:  # type: ignore[union-attr]
        return None
    return x, w


def _unscaled(value: ir.Value) -> tuple[ir.Value | None, float]:
    """What a Mul multiplies by a constant scalar, and the scalar; the value and 1 where there is no such Mul."""
    node = value.producer()
    if node is None or (node.domain, node.op_type) != ("", "Mul") or not is_private(value):
        return value, 1.0
    for position, scale in enumerate(node.inputs):
        tensor = scale.const_value if scale is not None and is_constant(scale) else None
        if scale is not None and tensor is not None and tensor.size == 1 and len(tensor.shape) <= _RANK:
            return node.inputs[1 - position], float(array_of(scale).reshape(()))
    return value, 1.0


def _wide(value: ir.Value) -> np.ndarray:
    assert value.const_value is not None
    return value.const_value.numpy().astype(np.float32)


RULES = (RuleSet(lambda _: [Rooted("Add", Adapters.rule())]),)
