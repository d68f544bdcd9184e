"""Attention that no operator of ONNX Runtime computes, and masks of local attention, as nodes that one kernel runs.

    Sdpa(q, k, v, mask?, sinks?; scale, cap?) -> MatMul(Softmax(scores), v)
        scores = cap tanh(scale q k^T / cap) + mask, with the sinks behind them, whose weights are cut off

    local mask = Where(in the window(query - key), 0 or what is left of the mask, low)
    local mask = Add(what is left of the mask, Where(in the window(query - key), 0, low))      see hidden_rows.py

The numbers of queries and keys of such a mask are read off the operands of its own attention, so that the kernel takes
the mask's nodes in and computes none of it. Where no kernel would, attention keeps the mask that the model has, which
its layers share. Operands of a MultiHeadAttention may become parts of one product: `count_of_own` reads an input of the
graph at first, and `read_off_operands` the operands when products are merged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import MatchContext, MatchResult, RewriteRuleClassBase

from onnxopt.costs import attention as costs
from onnxopt.costs.attention import AttentionSize
from onnxopt.graph.match import new_integers
from onnxopt.graph.rewrite.attention import hidden_rows
from onnxopt.graph.rewrite.attention.attention_operands import has_usual_heads
from onnxopt.graph.rewrite.masks.parts import LOW, MIN, least_of
from onnxopt.graph.rewrite.rule_sets import Pass, Scope
from onnxopt.graph.shapes.contrib_schemas import CONTRIB, DOMAIN
from onnxopt.graph.shapes.value_dims import dims_of, same
from onnxopt.program import flash_attention

_MASK, _SINKS, _WINDOW_SIZE = 3, 4, 5  # positions among the inputs of Sdpa
_COUNTED = "onnxopt.counted"  # in a value's meta: which operand of a MultiHeadAttention it counts the tokens of
_BIAS, _DEEPEST = 5, 10  # position of a MultiHeadAttention's bias, nodes between it and what counts tokens
_OURS = "onnxopt.ours"  # in the meta of an attention's result: a kernel of onnxopt's will run it


class AttentionNodes(RewriteRuleClassBase):
    """Attention with a cap or sinks as standard operators. scope: of the rules."""

    def __init__(self, scope: Scope) -> None:
        super().__init__("attention_nodes")
        self._graph, self._scope = scope.graph, scope

    def pattern(self, op, q, k, v):
        return op.Sdpa(q, k, v, _domain=DOMAIN, _allow_other_inputs=True, _allow_other_attributes=True, _outputs=["y"])

    def check(self, context: MatchContext, q, k, v, y):
        if not is_extended(y.producer()):
            return MatchResult().fail("operators of ONNX Runtime compute it")
        return MatchResult()

    def rewrite(self, op, q, k, v, y):
        node, dtype, window = y.producer(), q.dtype, window_of(y.producer())
        windowed = bool(window) and kernel_supports(node, self._scope)
        mask, sinks = (node.inputs[at] if len(node.inputs) > at else None for at in (_MASK, _SINKS))
        cap = node.attributes.get_float("cap", 0.0)
        k, v = (_repeated(op, x, q) for x in (k, v))
        keys = op.Transpose(k, perm=[0, 1, 3, 2])
        if windowed:
            query_count, key_count = op.Shape(q, start=2, end=3), op.Shape(keys, start=3, end=4)
            mask = local_mask(op, (query_count, key_count), node, dtype)
        if mask is not None:
            rank = len(mask.shape) if mask.shape is not None else 4
            mask = mask if rank == 4 else op.Unsqueeze(mask, new_integers(op, range(4 - rank)))
        queries = q
        if mask is not None and hidden_rows.weighs_alike(node):
            weigh = hidden_rows.weigh_of(node, windowed)
            queries = hidden_rows.zeroed(op, q, mask, self._graph.opset_imports.get("", 0), weigh)
        scores = op.MatMul(queries, keys)
        scores = op.Mul(scores, _scalar(op, node.attributes.get_float("scale"), dtype))
        if cap:
            limit = _scalar(op, cap, dtype)
            scores = op.Mul(op.Tanh(op.Div(scores, limit)), limit)
        scores = scores if mask is None else op.Add(scores, mask)
        if sinks is None:
            return op.MatMul(op.Softmax(scores, axis=-1), v)
        shape = op.Concat(op.Shape(q, start=0, end=3), new_integers(op, [1]), axis=0)
        columns = op.Expand(op.Reshape(sinks, new_integers(op, [1, -1, 1, 1])), shape)
        weights = op.Softmax(op.Concat(scores, columns, axis=-1), axis=-1)
        return op.MatMul(op.Slice(weights, new_integers(op, [0]), new_integers(op, [-1]), new_integers(op, [3])), v)


def _repeated(op, x, q):
    """Keys or values (B, M, T, H) for every head of q, as exporters repeat them."""
    heads, groups = dims_of(q)[1], dims_of(x)[1]
    if heads == groups or not isinstance(heads, int) or not isinstance(groups, int):
        return x
    expanded = op.Expand(op.Unsqueeze(x, new_integers(op, [2])), new_integers(op, [1, 1, heads // groups, 1, 1]))
    return op.Reshape(expanded, new_integers(op, [0, heads, -1, dims_of(x)[3]]))


def is_extended(sdpa: ir.Node) -> bool:
    """Whether an Sdpa has a cap or sinks, which operators of ONNX Runtime's releases do not all have.

    So are heads of a size that its faster kernels do not take.
    """
    has_sinks = len(sdpa.inputs) > _SINKS and sdpa.inputs[_SINKS] is not None
    q, v = sdpa.inputs[0], sdpa.inputs[2]
    unusual = q is not None and v is not None and not has_usual_heads(q, v)
    return bool(sdpa.attributes.get_float("cap", 0.0)) or has_sinks or unusual


def window_of(sdpa: ir.Node) -> Mapping[str, int]:
    """How many keys in front of its own each query sees, and behind it, as far as that is limited."""
    if sdpa.attributes.get_int("causal", 0):
        return {"after": 0}
    return {name: sdpa.attributes[name].as_int() for name in ("before", "after") if name in sdpa.attributes}


def window_left_of(sdpa: ir.Node) -> ir.Value | None:
    """What is added to the scores beside what the window shows."""
    return sdpa.inputs[_WINDOW_SIZE] if len(sdpa.inputs) > _WINDOW_SIZE else None


def has_mask(attention: ir.Node) -> bool:
    """Whether a MultiHeadAttention has a mask of keys, or a bias of scores."""
    return any(attention.inputs[4:6])


def keep_for_kernel(attended: ir.Value) -> None:
    """Note that a kernel of onnxopt's will run the MultiHeadAttention with this result, whatever its mask."""
    attended.meta[_OURS] = True


def is_for_kernel(attention: ir.Node) -> bool:
    """Whether `keep_for_kernel` noted that."""
    return _OURS in attention.outputs[0].meta


def attends(dtype: ir.DataType | None, gpu: bool) -> bool:
    """Whether kernels of onnxopt's attend in this dtype. gpu: whether kernels for GPUs are made.

    Without them, ONNX Runtime's Attention takes float32, with the projections inside.
    """
    return dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16) or (gpu and dtype == ir.DataType.FLOAT)


def kernel_supports(sdpa: ir.Node, scope: Scope) -> bool:
    """Whether the kernel of attention of many queries will run an Sdpa."""
    q, k, v = sdpa.inputs[:3]
    assert q is not None and k is not None and v is not None
    if not attends(q.dtype, scope.gpu) or q.dtype is None:
        return False
    expected = scope.expected
    heads, groups, width, values = dims_of(q)[1], dims_of(k)[1], dims_of(q)[3], dims_of(v)[3]
    scale = sdpa.attributes.get_float("scale", 0.0) or 0.0
    sizes = [n for n in (heads, groups, width, values) if isinstance(n, int)]
    if len(sizes) != 4 or flash_attention.why_not(sizes[0], sizes[1], sizes[2], sizes[3], scale):
        return False
    batch, queries, keys = (expected.of(d) for d in (dims_of(q)[0], dims_of(q)[2], dims_of(k)[2]))
    window = window_of(sdpa)
    hopper = flash_attention.is_hopper(sizes[2], sizes[3])
    size = AttentionSize(
        keys, sizes[2], hopper=hopper, causal=window.get("after") == 0, bias=_bias(sdpa), queries=queries,
        seen=flash_attention.seen(**window), alone=is_extended(sdpa), dtype=q.dtype.name.lower(),
        heads=None if batch is None else batch * sizes[0],
    )  # fmt: skip
    return costs.pays(size)


def _bias(sdpa: ir.Node) -> Literal["", "keys", "scores"]:
    """Whether something is added to the scores of an Sdpa that no window stands for, and the same for all queries."""
    mask, q = (sdpa.inputs[at] if len(sdpa.inputs) > at else None for at in (_MASK, 0))
    if window_of(sdpa):
        mask = window_left_of(sdpa)
    if mask is None or q is None:
        return ""
    dims = dims_of(hidden_rows.unrepeated(mask))
    return "keys" if len(dims) == 1 or dims[-2] == 1 else "scores"


def local_mask(op, counts: tuple[ir.Value, ir.Value], sdpa: ir.Node, dtype: ir.DataType):
    """(1 or B, 1 or N, S, T): 0, or what is added besides, where query s sees key t, and a low number elsewhere.

    It is added to what is added besides where a key may be hidden twice, and -inf where others are hidden once at most.

    The last query stands at the last key. counts: S and T, of shape [1]. sdpa: with a window.
    """
    window, mask_left = window_of(sdpa), window_left_of(sdpa)
    # A mask of unknown numbers hides keys by the least one, if by any.
    low = _scalar(op, (LOW if mask_left is None or least_of(mask_left) is not None else MIN)[dtype], dtype)
    queries, keys = (op.Squeeze(count, new_integers(op, [0])) for count in counts)
    none, one = (op.Constant(value=ir.tensor(np.array(n, np.int64))) for n in (0, 1))
    rows = op.Unsqueeze(op.Range(op.Sub(keys, queries), keys, one), new_integers(op, [1]))
    apart = op.Sub(rows, op.Range(none, keys, one))
    limits = []
    if "before" in window:
        limits.append(op.LessOrEqual(apart, op.Constant(value=ir.tensor(np.array(window["before"], np.int64)))))
    if "after" in window:
        limits.append(op.GreaterOrEqual(apart, op.Constant(value=ir.tensor(np.array(-window["after"], np.int64)))))
    shown = limits[0] if len(limits) == 1 else op.And(*limits)
    weigh = sdpa.attributes.get_string(hidden_rows.WEIGH, "")
    if mask_left is None or weigh == "once":
        alone = op.Unsqueeze(op.Where(shown, _scalar(op, 0.0, dtype), low), new_integers(op, [0, 1]))
    if mask_left is None:
        return alone
    rank = len(dims_of(mask_left))
    mask_left = mask_left if rank == 4 else op.Unsqueeze(mask_left, new_integers(op, range(4 - rank)))
    if weigh == "once":
        return op.Add(mask_left, alone)
    if weigh == "window":
        low = _scalar(op, -math.inf, dtype)
    return op.Where(op.Unsqueeze(shown, new_integers(op, [0, 1])), mask_left, low)


def count_of_own(op, graph: ir.Graph, operand: ir.Value, position: int, dim: object, axis: int = 1):
    """The number of tokens [1] of an operand of MultiHeadAttention, which is the input `position` of it.

    dim: that number, which lies along `axis`. It is read off an input of the graph where one has it, up to
    `read_off_operands`.
    """
    places = ((x, k) for x in graph.inputs for k, d in enumerate(x.shape or ()) if same(d, dim))
    source, at = next(places, (operand, axis))
    count = op.Shape(source, start=at, end=at + 1)
    count.meta[_COUNTED] = (position, axis)
    return count


def read_off_operands(model: ir.Model) -> int:
    """Let the masks of every MultiHeadAttention count the tokens of its own operands, in place. Returns how often."""
    changed = 0
    for node in model.graph:
        if (node.domain, node.op_type) != (CONTRIB, "MultiHeadAttention") or len(node.inputs) <= _BIAS:
            continue
        for count in _counts(node.inputs[_BIAS]):
            position, axis = count.meta[_COUNTED]
            operand, shape = node.inputs[position], count.producer()
            if operand is None or shape is None:
                continue
            shape.replace_input_with(0, operand)
            for name, at in (("start", axis), ("end", axis + 1)):
                shape.attributes[name] = ir.AttrInt64(name, at)
            changed += 1
    return changed


def _counts(mask: ir.Value | None) -> list[ir.Value]:
    """Values of `count_of_own` that a mask is made of."""
    counts: dict[ir.Value, None] = {}
    waiting = [(mask, 0)]
    while waiting:
        value, depth = waiting.pop()
        node = None if value is None else value.producer()
        if value is None or node is None or depth > _DEEPEST:
            continue
        if _COUNTED in value.meta:
            counts[value] = None
        else:
            waiting += [(v, depth + 1) for v in node.inputs]
    return list(counts)


def _scalar(op, value: float, dtype: ir.DataType):
    return op.Constant(value=ir.tensor(np.array(value).astype(dtype.numpy()), dtype=dtype))


OPERAND_SIZES = (Pass(lambda model, _: read_off_operands(model), counted=False),)
