"""Sdpa and Rotary as the fastest operators that ONNX Runtime's CUDA and CPU providers both have kernels for.

    Sdpa(Rotary(q), Rotary(k), v; causal)  grouped, 16 bit -> GroupQueryAttention with do_rotary
    Sdpa(q, k, v; causal)                  grouped, 16 bit -> GroupQueryAttention
    Sdpa(q, k, v, mask?)                                   -> MultiHeadAttention, mask as attention_bias
    Sdpa(q, k, v, mask?; cap or sinks)                     -> standard operators (attention_nodes.py)
    Rotary(x, cos, sin)                    float32, on CPUs -> RotaryEmbedding
                                           others           -> standard operators

All of them take (B, S, N H), so each operand gets Reshape(Transpose(x)) and each result the reverse. The exporter's own
Reshapes and Transposes cancel against these (rewrite/layout.py). On the CPU, ONNX Runtime inserts Casts around float16.
benchmarks/notes: attention has the measurements that the choice of operators rests on.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import MatchContext, MatchResult, RewriteRuleClassBase

from onnxopt.costs.rewrite import numbers
from onnxopt.graph.match import new_integers
from onnxopt.graph.passes.common_subexpressions import keep_apart
from onnxopt.graph.passes.rooted import Rooted
from onnxopt.graph.rewrite.attention import hidden_rows
from onnxopt.graph.rewrite.attention.attention_nodes import (
    AttentionNodes,
    count_of_own,
    is_extended,
    keep_for_kernel,
    kernel_supports,
    local_mask,
    window_left_of,
    window_of,
)
from onnxopt.graph.rewrite.rule_sets import RuleSet, Scope
from onnxopt.graph.shapes.contrib_schemas import CONTRIB, DOMAIN
from onnxopt.graph.shapes.value_dims import dims_of, same

SIXTEEN_BIT = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
GROUPED_OF_FLOAT16 = numbers().grouped_float16
_ROTARY_MULTIPLE = 16  # of a head's size that GroupQueryAttention's rotary embedding asks for


class GroupQuery(RewriteRuleClassBase):
    """Causal attention with grouped heads that no kernel of onnxopt's will run.

    rotary: with the rotary embedding of q and k inside. scope: of the rules.
    """

    def __init__(self, rotary: bool, scope: Scope) -> None:
        super().__init__("group_query_rotary" if rotary else "group_query")
        self._rotary = rotary
        self._graph, self._scope = scope.graph, scope

    def pattern(self, op, q, k, v, cos, sin):
        queries, keys = (op.Rotary(x, cos, sin, _domain=DOMAIN) if self._rotary else x for x in (q, k))
        return op.Sdpa(queries, keys, v, _domain=DOMAIN, _allow_other_attributes=True, _outputs=["y"])

    def check(self, context: MatchContext, q, k, v, y, cos=None, sin=None):
        result = MatchResult()
        if not y.producer().attributes.get_int("causal") or is_extended(y.producer()):
            return result.fail("GroupQueryAttention is causal without a cap or sinks, and this attention is not")
        if q.dtype not in SIXTEEN_BIT:
            return result.fail(f"GroupQueryAttention has no CUDA kernel for {q.dtype}")
        if q.dtype == ir.DataType.FLOAT16 and not GROUPED_OF_FLOAT16:
            return result.fail("MultiHeadAttention is faster in FLOAT16: a fused kernel prepares its operands")
        if kernel_supports(y.producer(), self._scope):
            return result.fail("onnxopt's kernel of attention is faster, and reads grouped heads where they lie")
        if q.shape[3] != v.shape[3]:
            return result.fail("k and v have heads of different sizes")
        if not same(q.shape[2], k.shape[2]):
            return result.fail("there are more keys than queries")
        if q.shape[1] == k.shape[1] and not self._rotary:
            return result.fail("every query head has keys of its own, as MultiHeadAttention takes them")
        if self._rotary:
            if q.shape[3] % _ROTARY_MULTIPLE:
                return result.fail(f"heads have {q.shape[3]} elements, which is no multiple of {_ROTARY_MULTIPLE}")
            if not all(x.shape[0] == 1 and same(x.shape[2], q.shape[2]) for x in (cos, sin)):
                return result.fail("positions differ from sequence to sequence")
        return result

    def rewrite(self, op, q, k, v, y, cos=None, sin=None):
        queries = flat(op, q)
        lengths, total = _lengths(op, self._graph, q, queries)
        tables = [_half_table(op, x) for x in (cos, sin)] if self._rotary else []
        out, _, _ = op.GroupQueryAttention(
            queries, flat(op, k), flat(op, v), None, None, lengths, total, *tables,
            num_heads=q.shape[1], kv_num_heads=k.shape[1], scale=y.producer().attributes.get_float("scale"),
            do_rotary=int(self._rotary), _domain=CONTRIB, _outputs=3,
        )  # fmt: skip
        return heads(op, out, y)


class MultiHead(RewriteRuleClassBase):
    """Attention whose query heads all have keys of their own. scope: of the rules."""

    def __init__(self, scope: Scope) -> None:
        super().__init__("multi_head")
        self._graph, self._scope = scope.graph, scope

    def pattern(self, op, q, k, v):
        return op.Sdpa(q, k, v, _domain=DOMAIN, _allow_other_inputs=True, _allow_other_attributes=True, _outputs=["y"])

    def check(self, context: MatchContext, q, k, v, y):
        if q.shape[1] != k.shape[1]:
            return MatchResult().fail("several query heads share keys")
        if is_extended(y.producer()):
            return MatchResult().fail("MultiHeadAttention has neither a cap nor sinks")
        return MatchResult()

    def rewrite(self, op, q, k, v, y):
        node = y.producer()
        mask = node.inputs[3] if len(node.inputs) > 3 else None
        flattens = _is_transposed(k) or _is_transposed(v) or not same(k.shape[3], v.shape[3])
        queries, keys, values = flat(op, q), *(flat(op, x) if flattens else x for x in (k, v))
        causal = node.attributes.get_int("causal", 0)
        attributes: dict[str, int | str] = {"unidirectional": 1} if causal else {}
        window = {} if causal else window_of(node)
        window_left = window_left_of(node)
        read = window_left if window else mask
        has_kernel = kernel_supports(node, self._scope) and (read is None or same(dims_of(read)[-1], k.shape[2]))
        windowed = bool(window) and has_kernel
        attributes |= hidden_rows.attribute_of(node, windowed) if mask is not None else {}
        if windowed:
            query_count = count_of_own(op, self._graph, queries, 0, q.shape[2])
            key_count = count_of_own(op, self._graph, keys, 1, k.shape[2], 1 if flattens else 2)
            extra = [None, None, local_mask(op, (query_count, key_count), node, q.dtype)]
        elif mask is not None and has_kernel:
            extra = [None, None, _mask_of_kernel(op, self._graph, mask, queries, q.shape[2])]
        else:
            extra = [] if mask is None else [None, None, _full_mask(op, self._graph, mask, q, k)]
        out = op.MultiHeadAttention(
            queries, keys, values, *extra,
            num_heads=q.shape[1], scale=node.attributes.get_float("scale"), **attributes, _domain=CONTRIB,
        )  # fmt: skip
        if has_kernel:
            keep_for_kernel(out)
        return heads(op, out, y)


class Ungroup(RewriteRuleClassBase):
    """Keys and values are repeated for each query head, over (B, T, M, H), for operators without grouped heads."""

    def pattern(self, op, q, k, v):
        return op.Sdpa(q, k, v, _domain=DOMAIN, _allow_other_inputs=True, _allow_other_attributes=True, _outputs=["y"])

    def check(self, context: MatchContext, q, k, v, y):
        return MatchResult() if q.shape[1] != k.shape[1] else MatchResult().fail("there are no groups")

    def rewrite(self, op, q, k, v, y):
        node = y.producer()
        groups = q.shape[1] // k.shape[1]
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        keys, values = (_repeat(op, x, groups) for x in (k, v))
        for repeated, source in ((keys, k), (values, v)):
            repeated.shape = ir.Shape([source.shape[0], q.shape[1], *source.shape[2:]])
            repeated.dtype = source.dtype
        return op.Sdpa(q, keys, values, *node.inputs[3:], _domain=DOMAIN, **attributes)


class RotaryOperator(RewriteRuleClassBase):
    """Rotary embedding whose table begins at the first position for every sequence, where no kernel for GPUs runs it.

    gpu: whether such kernels are made. They run it with the norm before and the Expand after it.
    """

    def __init__(self, gpu: bool) -> None:
        super().__init__()
        self._gpu = gpu

    def pattern(self, op, x, cos, sin):
        return op.Rotary(x, cos, sin, _domain=DOMAIN, _outputs=["y"])

    def check(self, context: MatchContext, x, cos, sin, y):
        if self._gpu or x.dtype in SIXTEEN_BIT or _is_widened(x):
            return MatchResult().fail("a fused kernel runs rotary embedding with the operators around it")
        if not isinstance(x.shape[1], int):
            return MatchResult().fail("the number of heads is not known")
        if not all(t.shape[0] == 1 and same(t.shape[2], x.shape[2]) for t in (cos, sin)):
            return MatchResult().fail("positions differ from sequence to sequence")
        return MatchResult()

    def rewrite(self, op, x, cos, sin, y):
        start = op.Constant(value=ir.tensor(np.zeros(1, np.int64)))
        tables = [_half_table(op, t) for t in (cos, sin)]
        out = op.RotaryEmbedding(flat(op, x), start, *tables, num_heads=x.shape[1], _domain=CONTRIB)
        return heads(op, out, y)


class RotaryNodes(RewriteRuleClassBase):
    """Rotary embedding as plain operators over (B, S, N, H), which is how products write and attention reads it.

    Fusing makes one kernel of it and of the operators around it.
    """

    def pattern(self, op, x, cos, sin):
        return op.Rotary(x, cos, sin, _domain=DOMAIN)

    def rewrite(self, op, x, cos, sin):
        return swapped(op, rotated(op, swapped(op, x), x.shape[3], cos, sin))


def rotated(op, x, size: int, cos, sin):
    """The rotary embedding of x (B, S, N, size); cos and sin (1 or B, 1, S, size)."""
    half = size // 2
    cos, sin = (op.Reshape(table, new_integers(op, [0, -1, 1, size])) for table in (cos, sin))
    first = op.Slice(x, new_integers(op, [0]), new_integers(op, [half]), new_integers(op, [3]))
    second = op.Slice(x, new_integers(op, [half]), new_integers(op, [size]), new_integers(op, [3]))
    return op.Add(op.Mul(x, cos), op.Mul(op.Concat(op.Neg(second), first, axis=-1), sin))


def swapped(op, x: ir.Value):
    """(B, N, S, H) as (B, S, N, H) or the reverse."""
    return op.Transpose(x, perm=[0, 2, 1, 3])


def flat(op, x: ir.Value):
    """(B, N, S, H) as (B, S, N H)."""
    assert x.shape is not None
    width = x.shape[1] * x.shape[3]
    return op.Reshape(swapped(op, x), new_integers(op, [0, 0, width]))


def heads(op, out, y: ir.Value):
    """(B, S, N H) as (B, N, S, H), the shape of y."""
    assert y.shape is not None
    return swapped(op, op.Reshape(out, new_integers(op, [0, 0, y.shape[1], y.shape[3]])))


def _is_widened(x: ir.Value) -> bool:
    """Whether x is a Cast of 16-bit floats."""
    node = x.producer()
    source = node.inputs[0] if node is not None and node.op_type == "Cast" else None
    return source is not None and source.dtype in SIXTEEN_BIT


def _is_transposed(x: ir.Value) -> bool:
    """Whether x is a Transpose of (B, T, N, H), so that flattening it costs nothing."""
    node = x.producer()
    if node is None:
        return False
    if node.domain == DOMAIN and node.op_type == "Rotary" and node.inputs[0] is not None:
        return _is_transposed(node.inputs[0])
    return node.op_type == "Transpose" and node.attributes.get_ints("perm") == (0, 2, 1, 3)


def _repeat(op, x: ir.Value, groups: int):
    assert x.shape is not None
    once = op.Unsqueeze(swapped(op, x), new_integers(op, [3]))
    expanded = op.Expand(once, new_integers(op, [1, 1, 1, groups, 1]))
    every = op.Reshape(expanded, new_integers(op, [0, 0, x.shape[1] * groups, x.shape[3]]))
    return swapped(op, every)


def _mask_of_kernel(op, graph: ir.Graph, mask: ir.Value, queries, count: object):
    """The mask as (1 or B, 1 or N, S, T). queries: (B, S, N H). count: S.

    The kernel takes the Expand in that repeats it for queries, so that each attention keeps one of its own.
    """
    mask = hidden_rows.unrepeated(mask)
    dims = [*[1] * (4 - len(dims_of(mask))), *dims_of(mask)]
    result = mask if len(dims_of(mask)) == 4 else op.Unsqueeze(mask, new_integers(op, range(4 - len(dims_of(mask)))))
    if dims[2] != 1 or count == 1:
        return result
    if isinstance(count, int):
        sizes = new_integers(op, [1, 1, count, 1])
    else:
        sizes = op.Concat(
            new_integers(op, [1, 1]), count_of_own(op, graph, queries, 0, count), new_integers(op, [1]), axis=0
        )
    repeated = op.Expand(result, sizes)
    keep_apart(repeated)
    return repeated


def _full_mask(op, graph: ir.Graph, mask: ir.Value, q: ir.Value, k: ir.Value):
    """The mask as (1 or B, 1 or N, S, T): attention_bias broadcasts along the first two dims only."""
    assert mask.shape is not None and q.shape is not None and k.shape is not None
    result, dims = mask, list[object](mask.shape.dims)
    if len(dims) < 4:
        result = op.Unsqueeze(mask, new_integers(op, range(4 - len(dims))))
        dims = [*[1] * (4 - len(dims)), *dims]
    lengths = []
    for dim, source in zip(dims, (None, None, q, k), strict=True):
        if source is None or not (dim == 1 and dims_of(source)[2] != 1):
            lengths.append(new_integers(op, [1]))
        elif isinstance(dims_of(source)[2], int):
            lengths.append(new_integers(op, [dims_of(source)[2]]))
        else:
            lengths.append(_dim_of(op, graph, dims_of(source)[2], source, 2))
    if all(length.producer().op_type == "Constant" for length in lengths):
        lengths_known = [int(length.producer().attributes["value"].value.numpy()[0]) for length in lengths]
        return result if lengths_known == [1, 1, 1, 1] else op.Expand(result, new_integers(op, lengths_known))
    return op.Expand(result, op.Concat(*lengths, axis=0))


def _lengths(op, graph: ir.Graph, q: ir.Value, queries):
    """GroupQueryAttention's seqlens_k (B), each length less 1, and total_sequence_length (), both int32.

    Where they are not constants, Range writes the former to the GPU from numbers on the CPU, so that nothing is copied.
    """
    assert q.shape is not None
    batch, length = q.shape[0], q.shape[2]
    if isinstance(length, int):
        total = op.Constant(value=ir.tensor(np.array(length, np.int32)))
        count = batch if isinstance(batch, int) else 1
        last = op.Constant(value=ir.tensor(np.full(count, length - 1, np.int32)))
        if isinstance(batch, int):
            return last, total
    else:
        total = op.Cast(op.Squeeze(_dim_of(op, graph, length, queries, 1), new_integers(op, [0])), to=ir.DataType.INT32)
        step = op.Constant(value=ir.tensor(np.array(1, np.int32)))
        last = op.Range(op.Sub(total, step), total, step)
    return op.Expand(last, _dim_of(op, graph, batch, queries, 0)), total


def _dim_of(op, graph: ir.Graph, dim: object, value, axis: int):
    """The length of `value` along `axis`, read off a graph input with this dim where there is one, else off `value`."""
    for source in graph.inputs:
        for position, other in enumerate(source.shape.dims if source.shape is not None else ()):
            if same(other, dim):
                return op.Shape(source, start=position, end=position + 1)
    return op.Shape(value, start=axis, end=axis + 1)


def _half_table(op, table: ir.Value):
    """(1, 1, S, H) with equal halves as (S, H / 2)."""
    assert table.shape is not None
    half = table.shape[3] // 2
    if table.const_value is not None:
        array = np.ascontiguousarray(table.const_value.numpy()[0, 0, :, :half])
        return op.Constant(value=ir.tensor(array, dtype=table.dtype))
    return op.Reshape(
        op.Slice(table, new_integers(op, [0]), new_integers(op, [half]), new_integers(op, [3])),
        new_integers(op, [-1, half]),
    )


GROUPED = (
    RuleSet(lambda scope: [Rooted("Sdpa", GroupQuery.rule(True, scope))], counted=False),
    RuleSet(lambda scope: [Rooted("Sdpa", GroupQuery.rule(False, scope))], counted=False),
)
UNGROUP = (RuleSet(lambda _: [Rooted("Sdpa", Ungroup.rule())], counted=False),)
ROTARY_NODES = (RuleSet(lambda _: [Rooted("Rotary", RotaryNodes.rule())], counted=False),)
# After these, and GROUPED before them, no operator of the internal domain is left.
ATTENTION = (
    RuleSet(lambda scope: [Rooted("Sdpa", AttentionNodes.rule(scope))], counted=False),
    *UNGROUP,
    RuleSet(lambda scope: [Rooted("Sdpa", MultiHead.rule(scope))], counted=False),
)
ROTARY = (RuleSet(lambda scope: [Rooted("Rotary", RotaryOperator.rule(scope.gpu))], counted=False), *ROTARY_NODES)
