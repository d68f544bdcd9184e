"""Products of one input with several weights, as one product with the weights beside each other.

    MultiHeadAttention(x Wq + bq, x Wk + bk, x Wv + bv) -> Attention(x, [Wq Wk Wv], [bq bk bv])
    GroupQueryAttention(x Wq, x Wk, x Wv) -> GroupQueryAttention(x [Wq Wk Wv]), which takes them packed
    Mul(act(x Wg), x Wu) -> Mul(act(g), u)    g, u = Split(x [Wg Wu])

Only where each weight has no other reader, so that the model does not grow. A missing bias counts as zeros.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import MatchContext, MatchResult, RewriteRuleClassBase, pattern

from onnxopt.passes.attention_schemas import CONTRIB
from onnxopt.rewrite.weights import Joiner

_ATTENTION_BIAS = 5  # position of the mask among the inputs of MultiHeadAttention and of Attention


class _Merge(RewriteRuleClassBase):
    def __init__(self, name: str, joiner: Joiner) -> None:
        super().__init__(name)
        self._joiner = joiner

    def _obstacle(self, x: ir.Value, weights: Sequence[ir.Value], biases: Sequence[ir.Value | None]) -> str:
        if len(set(weights)) != len(weights):
            return "two of the products have the same weight"
        for weight in weights:
            if weight.const_value is None or weight.is_graph_input() or len(weight.const_value.shape) != 2:
                return f"{weight.name} is not a constant matrix"
            if len(weight.uses()) != 1 or weight.is_graph_output():
                return f"{weight.name} is read elsewhere too, so a joined copy would make the model larger"
        if len({(w.const_value.dtype, w.const_value.shape[0]) for w in weights if w.const_value is not None}) != 1:
            return "the weights differ in dtype or in what they take in"
        for weight, bias in zip(weights, biases, strict=True):
            if bias is None:
                continue
            width = weight.const_value.shape[1] if weight.const_value is not None else None
            if bias.const_value is None or bias.is_graph_input() or bias.const_value.shape.numpy() != (width,):
                return f"{bias.name} is not a constant vector of {width}"
        return ""

    def _joined(self, weights: Sequence[ir.Value]) -> ir.TensorProtocol:
        return self._joiner.columns([w.const_value for w in weights if w.const_value is not None], _name(weights))

    def _joined_bias(self, weights: Sequence[ir.Value], biases: Sequence[ir.Value | None]) -> ir.Tensor:
        """The biases beside each other, zeros where there is none."""
        rows = []
        for weight, bias in zip(weights, biases, strict=True):
            assert weight.const_value is not None
            dtype, width = weight.const_value.dtype, weight.const_value.shape.numpy()[1]
            given = bias.const_value if bias is not None else None
            rows.append(np.zeros(width, dtype.numpy()) if given is None else given.numpy())
        return ir.Tensor(np.concatenate(rows), dtype=dtype, name=f"{_name(weights)}/bias")

    def _product(self, op, x: ir.Value, weights: Sequence[ir.Value], biases: Sequence[ir.Value | None]):
        product = op.MatMul(x, op.initializer(self._joined(weights)))
        if all(b is None for b in biases):
            return product
        return op.Add(product, op.initializer(self._joined_bias(weights, biases)))

    def _parts(self, op, product, weights: Sequence[ir.Value]):
        widths = _widths(weights)
        sizes = op.Constant(value=ir.tensor(widths, dtype=ir.DataType.INT64))
        return op.Split(product, sizes, axis=-1, _outputs=len(widths))


def _name(weights: Sequence[ir.Value]) -> str:
    return "+".join(str(w.name) for w in weights)


def _widths(weights: Sequence[ir.Value]) -> list[int]:
    return [w.const_value.shape.numpy()[1] for w in weights if w.const_value is not None]


def _projection(op, x, name: str):
    weight, bias = pattern.Var(f"w{name}"), pattern.Var(f"b{name}", can_match_none=True)
    product = op.MatMul(x, weight)
    return pattern.OrValue([op.Add(product, bias), op.Add(bias, product), product])


class SelfAttention(_Merge):
    """q, k and v of one MultiHeadAttention, whose products go into an Attention.

    Attention splits its product again, in the kernel that adds the bias: twice the bytes of q, k and v, where three
    products read x three times and each fills the GPU less. Measured (docs/notes.md), one product is faster up to
    about 16 MB.
    """

    _LARGEST = 16 << 20  # bytes of q, k and v together

    def pattern(self, op, x):
        return op.MultiHeadAttention(
            *(_projection(op, x, name) for name in "qkv"),
            _domain=CONTRIB, _allow_other_inputs=True, _allow_other_attributes=True, _outputs=["y"],
        )  # fmt: skip

    def check(self, context: MatchContext, x, wq, wk, wv, y, bq=None, bk=None, bv=None, **_):
        result = MatchResult()
        if reason := self._obstacle(x, (wq, wk, wv), (bq, bk, bv)):
            return result.fail(reason)
        node, widths = y.producer(), _widths((wq, wk, wv))
        if any(v is not None for k, v in enumerate(node.inputs) if k > 2 and k != _ATTENTION_BIAS):
            return result.fail("it has inputs besides a mask, which Attention takes in another form")
        if widths[0] != widths[1]:
            return result.fail("q and k have different widths")
        if x.shape is None or len(x.shape) != 3:
            return result.fail("what is projected is not known to have three dims")
        rows = [d for d in x.shape.dims[:2] if isinstance(d, int)]
        if len(rows) == 2 and rows[0] * rows[1] * sum(widths) * wq.const_value.dtype.itemsize > self._LARGEST:
            return result.fail("to take q, k and v out of one product would cost more than it saves")
        return result

    def rewrite(self, op, x, wq, wk, wv, y, bq=None, bk=None, bv=None, **_):
        node, weights = y.producer(), (wq, wk, wv)
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        widths = _widths(weights)
        if widths[2] != widths[0]:
            attributes["qkv_hidden_sizes"] = list(widths)
        mask = node.inputs[_ATTENTION_BIAS] if len(node.inputs) > _ATTENTION_BIAS else None
        extra = [] if mask is None else [None, None, mask]
        weight = op.initializer(self._joined(weights))
        bias = op.initializer(self._joined_bias(weights, (bq, bk, bv)))
        return op.Attention(x, weight, bias, *extra, _domain=CONTRIB, **attributes)


class GroupQueryProjections(_Merge):
    """q, k and v of one GroupQueryAttention, which takes them as one."""

    def pattern(self, op, x):
        return op.GroupQueryAttention(
            *(_projection(op, x, name) for name in "qkv"),
            _domain=CONTRIB, _allow_other_inputs=True, _allow_other_attributes=True,
            _outputs=["y", "present_key", "present_value"],
        )  # fmt: skip

    def check(self, context: MatchContext, x, wq, wk, wv, bq=None, bk=None, bv=None, **_):
        reason = self._obstacle(x, (wq, wk, wv), (bq, bk, bv))
        return MatchResult().fail(reason) if reason else MatchResult()

    def rewrite(self, op, x, wq, wk, wv, y, bq=None, bk=None, bv=None, **_):
        node = y.producer()
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        product = self._product(op, x, (wq, wk, wv), (bq, bk, bv))
        return op.GroupQueryAttention(
            product, None, None, *node.inputs[3:], _domain=CONTRIB, _outputs=3, **attributes
        )  # fmt: skip


class GateAndUp(_Merge):
    """The two products of a gated MLP; silu: written as g * Sigmoid(g), else any one operator of one operand."""

    def __init__(self, activation: str, gate_first: bool, joiner: Joiner) -> None:
        super().__init__(f"merge_gate_{activation}", joiner)
        self._activation, self._gate_first = activation, gate_first

    def pattern(self, op, x):
        gate, up = self._activated(op, _projection(op, x, "g")), _projection(op, x, "u")
        return op.Mul(gate, up) if self._gate_first else op.Mul(up, gate)

    def _activated(self, op, gate):
        if self._activation == "Silu":
            return op.Mul(gate, op.Sigmoid(gate))
        return getattr(op, self._activation)(gate, _allow_other_attributes=True, _outputs=["activated"])

    def check(self, context: MatchContext, x, wg, wu, bg=None, bu=None, activated=None):
        reason = self._obstacle(x, (wg, wu), (bg, bu))
        return MatchResult().fail(reason) if reason else MatchResult()

    def rewrite(self, op, x, wg, wu, bg=None, bu=None, activated=None):
        gate, up = self._parts(op, self._product(op, x, (wg, wu), (bg, bu)), (wg, wu))
        if activated is None:
            return op.Mul(op.Mul(gate, op.Sigmoid(gate)), up)
        attributes = {name: attribute.value for name, attribute in activated.producer().attributes.items()}
        return op.Mul(getattr(op, self._activation)(gate, **attributes), up)
