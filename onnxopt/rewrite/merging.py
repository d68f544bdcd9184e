"""Products of one input with several weights, as one product with the weights beside each other.

    MultiHeadAttention(x Wq + bq, x Wk + bk, x Wv + bv) -> MultiHeadAttention(Split(x [Wq Wk Wv] + [bq bk bv]))
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

    def _product(self, op, x: ir.Value, weights: Sequence[ir.Value], biases: Sequence[ir.Value | None]):  # type: ignore[no-untyped-def]
        tensors = [w.const_value for w in weights if w.const_value is not None]
        name = "+".join(str(w.name) for w in weights)
        product = op.MatMul(x, op.initializer(self._joiner.columns(tensors, name)))
        if all(b is None for b in biases):
            return product
        dtype = tensors[0].dtype
        rows = [
            np.zeros(int(t.shape[1]), dtype.numpy()) if b is None or b.const_value is None else b.const_value.numpy()
            for t, b in zip(tensors, biases, strict=True)
        ]
        bias = ir.Tensor(np.concatenate(rows), dtype=dtype, name=f"{name}/bias")
        return op.Add(product, op.initializer(bias))

    def _parts(self, op, product, weights: Sequence[ir.Value]):  # type: ignore[no-untyped-def]
        widths = [int(w.const_value.shape[1]) for w in weights if w.const_value is not None]
        sizes = op.Constant(value=ir.tensor(widths, dtype=ir.DataType.INT64))
        return op.Split(product, sizes, axis=-1, _outputs=len(widths))


def _projection(op, x, name: str):  # type: ignore[no-untyped-def]
    weight, bias = pattern.Var(f"w{name}"), pattern.Var(f"b{name}", can_match_none=True)
    product = op.MatMul(x, weight)
    return pattern.OrValue([op.Add(product, bias), op.Add(bias, product), product])


class AttentionProjections(_Merge):
    """q, k and v of one attention operator. packed: into its first input; else split in three."""

    def __init__(self, op_type: str, packed: bool, joiner: Joiner) -> None:
        super().__init__(f"merge_{op_type}", joiner)
        self._op_type, self._packed = op_type, packed
        self._more_outputs = ["present_key", "present_value"] if op_type == "GroupQueryAttention" else []

    def pattern(self, op, x):  # type: ignore[no-untyped-def]
        return getattr(op, self._op_type)(
            *(_projection(op, x, name) for name in "qkv"),
            _domain=CONTRIB, _allow_other_inputs=True, _allow_other_attributes=True, _outputs=["y", *self._more_outputs],
        )  # fmt: skip

    def check(self, context: MatchContext, x, wq, wk, wv, y, bq=None, bk=None, bv=None, **_):  # type: ignore[no-untyped-def]
        reason = self._obstacle(x, (wq, wk, wv), (bq, bk, bv))
        return MatchResult().fail(reason) if reason else MatchResult()

    def rewrite(self, op, x, wq, wk, wv, y, bq=None, bk=None, bv=None, **_):  # type: ignore[no-untyped-def]
        node = y.producer()
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        product = self._product(op, x, (wq, wk, wv), (bq, bk, bv))
        inputs = (product, None, None) if self._packed else self._parts(op, product, (wq, wk, wv))
        return getattr(op, self._op_type)(
            *inputs, *node.inputs[3:], _domain=CONTRIB, _outputs=len(node.outputs), **attributes
        )  # fmt: skip


class GateAndUp(_Merge):
    """The two products of a gated MLP; silu: written as g * Sigmoid(g), else any one operator of one operand."""

    def __init__(self, activation: str, gate_first: bool, joiner: Joiner) -> None:
        super().__init__(f"merge_gate_{activation}", joiner)
        self._activation, self._gate_first = activation, gate_first

    def pattern(self, op, x):  # type: ignore[no-untyped-def]
        gate, up = self._activated(op, _projection(op, x, "g")), _projection(op, x, "u")
        return op.Mul(gate, up) if self._gate_first else op.Mul(up, gate)

    def _activated(self, op, gate):  # type: ignore[no-untyped-def]
        if self._activation == "Silu":
            return op.Mul(gate, op.Sigmoid(gate))
        return getattr(op, self._activation)(gate, _allow_other_attributes=True, _outputs=["activated"])

    def check(self, context: MatchContext, x, wg, wu, bg=None, bu=None, activated=None):  # type: ignore[no-untyped-def]
        reason = self._obstacle(x, (wg, wu), (bg, bu))
        return MatchResult().fail(reason) if reason else MatchResult()

    def rewrite(self, op, x, wg, wu, bg=None, bu=None, activated=None):  # type: ignore[no-untyped-def]
        gate, up = self._parts(op, self._product(op, x, (wg, wu), (bg, bu)), (wg, wu))
        if activated is None:
            return op.Mul(op.Mul(gate, op.Sigmoid(gate)), up)
        attributes = {name: attribute.value for name, attribute in activated.producer().attributes.items()}
        return op.Mul(getattr(op, self._activation)(gate, **attributes), up)
