"""The portable form: standard operators in place of those of com.microsoft that rewrite rules created.

It is for execution providers without these operators, above all TensorRT and DirectML, which recognise standard
attention by patterns of their own. Products stay merged, and masks and guards stay dropped, so that both forms have the
same weights.

    Attention(x, W, b, mask?)           -> Split(x W + b) -> MultiHeadAttention
    GroupQueryAttention(packed | q, k, v) -> Rotary(q), Rotary(k), v -> Sdpa
    GroupQueryAttention(packed | q, k, v, past_k, past_v) -> Sdpa(q, Concat(past_k, k), Concat(past_v, v))
    MultiHeadAttention(q, k, v, mask?)  -> Sdpa -> MatMul(Softmax(MatMul(q scale, k^T) + mask), v)
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import MatchContext, MatchResult, RewriteRuleClassBase

from onnxopt.graph.match import new_integers
from onnxopt.graph.passes.rooted import Rooted
from onnxopt.graph.rewrite.rule_sets import RuleSet
from onnxopt.graph.rewrite.to_contrib import ROTARY_NODES
from onnxopt.graph.shapes.contrib_schemas import CONTRIB, DOMAIN

_MASK = 5  # position among the inputs of MultiHeadAttention and Attention
_CONTRIB_INPUTS = {"_domain": CONTRIB, "_allow_other_inputs": True, "_allow_other_attributes": True}


class AttentionNodes(RewriteRuleClassBase):
    def pattern(self, op, x, weight, bias):
        return op.Attention(x, weight, bias, **_CONTRIB_INPUTS, _outputs=["y"])

    def check(self, context: MatchContext, x, weight, bias, y):
        if any(value is not None for at, value in enumerate(y.producer().inputs) if at > 2 and at != _MASK):
            return MatchResult().fail("Attention has inputs besides a bias of scores, which no rule here gives it")
        return MatchResult() if weight.const_value is not None else MatchResult().fail("the weight is no constant")

    def rewrite(self, op, x, weight, bias, y):
        node = y.producer()
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        width = weight.const_value.shape[1]
        sizes = list(attributes.pop("qkv_hidden_sizes", None) or [width // 3] * 3)
        parts = op.Split(op.Add(op.MatMul(x, weight), bias), new_integers(op, sizes), axis=-1, _outputs=3)
        return op.MultiHeadAttention(*parts, *node.inputs[3:], _domain=CONTRIB, **attributes)


class MultiHeadNodes(RewriteRuleClassBase):
    def pattern(self, op, q, k, v):
        return op.MultiHeadAttention(q, k, v, **_CONTRIB_INPUTS, _outputs=["y"])

    def check(self, context: MatchContext, q, k, v, y):
        if any(value is not None for at, value in enumerate(y.producer().inputs) if at > 2 and at != _MASK):
            return MatchResult().fail("MultiHeadAttention has inputs besides a mask, which no rule here gives it")
        return MatchResult()

    def rewrite(self, op, q, k, v, y):
        node = y.producer()
        heads = node.attributes.get_int("num_heads")
        mask = [node.inputs[_MASK]] if len(node.inputs) > _MASK else []
        keys, values = (x if x.shape is not None and len(x.shape) == 4 else _split_heads(op, x, heads) for x in (k, v))
        out = op.Sdpa(
            _split_heads(op, q, heads), keys, values, *mask, scale=node.attributes.get_float("scale"),
            causal=node.attributes.get_int("unidirectional", 0), _domain=DOMAIN,
        )  # fmt: skip
        return _merge_heads(op, out)


class GroupQueryNodes(RewriteRuleClassBase):
    def pattern(self, op, q):
        return op.GroupQueryAttention(q, **_CONTRIB_INPUTS, _outputs=["y", "present_key", "present_value"])

    def check(self, context: MatchContext, q, y, present_key, present_value):
        node = y.producer()
        if node.inputs[3] is not None and node.attributes.get_int("do_rotary", 0):
            return MatchResult().fail("the positions of tokens with a cache are not known")
        return MatchResult() if q.shape is not None else MatchResult().fail("the width of q is not known")

    def rewrite(self, op, q, y, present_key, present_value):
        node = y.producer()
        heads, groups = (node.attributes.get_int(name) for name in ("num_heads", "kv_num_heads"))
        parts = [q, node.inputs[1], node.inputs[2]]
        if parts[1] is None:
            size = q.shape[2] // (heads + 2 * groups)
            parts = op.Split(q, new_integers(op, [heads * size, groups * size, groups * size]), axis=-1, _outputs=3)
        queries, keys, values = (_split_heads(op, x, n) for x, n in zip(parts, (heads, groups, groups), strict=True))
        if node.attributes.get_int("do_rotary", 0):
            tables = [_whole_table(op, table) for table in node.inputs[7:9]]
            queries, keys = (op.Rotary(x, *tables, _domain=DOMAIN) for x in (queries, keys))
        scale = node.attributes.get_float("scale")
        past_key, past_value = node.inputs[3:5]
        if past_key is not None:  # one token, which sees every key
            keys, values = (op.Concat(p, x, axis=2) for p, x in ((past_key, keys), (past_value, values)))
        causal = int(past_key is None)
        out = op.Sdpa(queries, keys, values, scale=scale, causal=causal, _domain=DOMAIN)
        return _merge_heads(op, out), keys, values


class RotaryOperatorNodes(RewriteRuleClassBase):
    def pattern(self, op, x, start, cos, sin):
        return op.RotaryEmbedding(x, start, cos, sin, _domain=CONTRIB, _allow_other_attributes=True, _outputs=["y"])

    def check(self, context: MatchContext, x, start, cos, sin, y):
        begins_at_zero = start.const_value is not None and not start.const_value.numpy().any()
        return MatchResult() if begins_at_zero else MatchResult().fail("the positions do not begin at 0")

    def rewrite(self, op, x, start, cos, sin, y):
        heads = _split_heads(op, x, y.producer().attributes.get_int("num_heads"))
        out = op.Rotary(heads, _whole_table(op, cos), _whole_table(op, sin), _domain=DOMAIN)
        return _merge_heads(op, out)


class SdpaNodes(RewriteRuleClassBase):
    def pattern(self, op, q, k, v):
        return op.Sdpa(q, k, v, _domain=DOMAIN, _allow_other_inputs=True, _allow_other_attributes=True, _outputs=["y"])

    def rewrite(self, op, q, k, v, y):
        node, dtype = y.producer(), y.dtype
        scale = op.Constant(value=_scalar(node.attributes.get_float("scale"), dtype))
        scores = op.MatMul(op.Mul(q, scale), op.Transpose(k, perm=[0, 1, 3, 2]))
        if node.attributes.get_int("causal"):
            low = op.Constant(value=_scalar(_lowest(dtype), dtype))
            scores = op.Where(_seen(op, q, k), scores, low)
        if len(node.inputs) > 3 and node.inputs[3] is not None:
            scores = op.Add(scores, node.inputs[3])
        return op.MatMul(op.Softmax(scores, axis=-1), v)


def _split_heads(op, x, heads: int):
    return op.Transpose(op.Reshape(x, new_integers(op, [0, 0, heads, -1])), perm=[0, 2, 1, 3])


def _merge_heads(op, x):
    return op.Reshape(op.Transpose(x, perm=[0, 2, 1, 3]), new_integers(op, [0, 0, -1]))


def _whole_table(op, table):
    """(S, H / 2) as (1, 1, S, H)."""
    return op.Unsqueeze(op.Concat(table, table, axis=-1), new_integers(op, [0, 1]))


def _seen(op, q: ir.Value, k: ir.Value):
    """(S, T), true where key <= query + T - S."""
    queries, keys = (x.shape[2] if x.shape is not None else None for x in (q, k))
    if isinstance(queries, int) and isinstance(keys, int):
        rows = op.Constant(value=ir.tensor(np.arange(keys - queries, keys)[:, None]))
        return op.GreaterOrEqual(rows, op.Constant(value=ir.tensor(np.arange(keys)[None])))
    zero, one = (op.Constant(value=ir.tensor(np.array(n, np.int64))) for n in (0, 1))
    length, total = (op.Squeeze(op.Shape(x, start=2, end=3), new_integers(op, [0])) for x in (q, k))
    rows = op.Unsqueeze(op.Range(op.Sub(total, length), total, one), new_integers(op, [1]))
    return op.GreaterOrEqual(rows, op.Range(zero, total, one))


def _scalar(value: float, dtype: ir.DataType) -> ir.TensorProtocol:
    return ir.tensor(np.array(value).astype(dtype.numpy()), dtype=dtype)


def _lowest(dtype: ir.DataType) -> float:
    return -65504.0 if dtype == ir.DataType.FLOAT16 else -3.3895313892515355e38  # the latter fits bfloat16 too


ATTENTION = (RuleSet(lambda _: [Rooted("Attention", AttentionNodes.rule())]),)
TO_INTERNAL = (
    RuleSet(lambda _: [Rooted("GroupQueryAttention", GroupQueryNodes.rule())]),
    RuleSet(lambda _: [Rooted("RotaryEmbedding", RotaryOperatorNodes.rule())]),
    RuleSet(lambda _: [Rooted("MultiHeadAttention", MultiHeadNodes.rule())]),
)
TO_STANDARD = (*ROTARY_NODES, RuleSet(lambda _: [Rooted("Sdpa", SdpaNodes.rule())]))
