"""Attention of one token to a cache of keys and values and to itself, in 16 bit.

    Sdpa(q, k' = Concat(past_k, k), v' = Concat(past_v, v)) -> y, k', v' = GroupQueryAttention(q, k, v, past_k, past_v)

The operator appends the token to the cache and reads every head of keys once for its whole group. It is causal, as is
attention of one token that may see all keys. Rotary embedding stays outside: its tables hold the position of this token
alone.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import MatchContext, MatchResult, RewriteRuleClassBase

from onnxopt.graph.match import new_integers
from onnxopt.graph.rewrite.attention.attention_nodes import is_extended
from onnxopt.graph.rewrite.rule_sets import RuleSet
from onnxopt.graph.rewrite.to_contrib import SIXTEEN_BIT, flat, heads
from onnxopt.graph.shapes.contrib_schemas import CONTRIB, DOMAIN
from onnxopt.graph.shapes.value_dims import same


class CachedGroupQuery(RewriteRuleClassBase):
    def __init__(self) -> None:
        super().__init__("cached_group_query")

    def pattern(self, op, q, past_k, k, past_v, v):
        keys = op.Concat(past_k, k, _allow_other_attributes=True, _outputs=["keys"])
        values = op.Concat(past_v, v, _allow_other_attributes=True, _outputs=["values"])
        y = op.Sdpa(q, keys, values, _domain=DOMAIN, _allow_other_attributes=True, _outputs=["y"])
        return y, keys, values

    def check(self, context: MatchContext, q, past_k, k, past_v, v, keys, values, y):
        result = MatchResult()
        if q.dtype not in SIXTEEN_BIT:
            return result.fail(f"GroupQueryAttention has no CUDA kernel for {q.dtype}")
        if is_extended(y.producer()):
            return result.fail("GroupQueryAttention of older releases has neither a cap nor sinks")
        if any(x.shape is None or len(x.shape) != 4 for x in (q, past_k, k, past_v, v)):
            return result.fail("the shapes of q, the caches, k and v are not all known")
        if any(x.producer().attributes.get_int("axis") not in (2, -2) for x in (keys, values)):
            return result.fail("Concat concatenates keys or values along another axis than their sequence")
        if any(x.shape[2] != 1 for x in (q, k, v)):
            return result.fail("there is more than one token, and the attention is not known to be causal")
        if not same(past_k.shape[2], past_v.shape[2]):
            return result.fail("the lengths of the caches of keys and values are not known to be equal")
        if k.shape[3] != v.shape[3]:
            return result.fail("k and v have heads of different sizes")
        return result

    def rewrite(self, op, q, past_k, k, past_v, v, y, **_):
        queries = flat(op, q)
        lengths, total = _lengths(op, q, past_k)
        out, present_k, present_v = op.GroupQueryAttention(
            queries, flat(op, k), flat(op, v), past_k, past_v, lengths, total,
            num_heads=q.shape[1], kv_num_heads=k.shape[1], scale=y.producer().attributes.get_float("scale"),
            _domain=CONTRIB, _outputs=3,
        )  # fmt: skip
        return heads(op, out, y), present_k, present_v


def _lengths(op, q: ir.Value, past: ir.Value):
    """seqlens_k (B), the tokens before this one, and total_sequence_length (), this one included; both int32.

    Both are read off the operator's own cache, so that they become part of its kernel. The Shapes count from the last
    dim, as no other node does: otherwise equal nodes elsewhere would be merged with these, and share their results.
    """
    assert q.shape is not None and past.shape is not None
    batch, length = q.shape[0], past.shape[2]
    one = op.Constant(value=ir.tensor(np.array(1, np.int32)))
    if isinstance(length, int) and isinstance(batch, int):
        cached = op.Constant(value=ir.tensor(np.full(batch, length, np.int32)))
        return cached, op.Constant(value=ir.tensor(np.array(length + 1, np.int32)))
    tokens = op.Cast(op.Squeeze(op.Shape(past, start=-2, end=-1), new_integers(op, [0])), to=ir.DataType.INT32)
    total = op.Add(tokens, one)
    # Range writes to the GPU and takes numbers from the CPU, so that nothing is copied between the two.
    return op.Expand(op.Range(tokens, total, one), op.Shape(past, start=-4, end=-3)), total


RULES = (RuleSet(lambda _: [CachedGroupQuery.rule()], counted=False),)
