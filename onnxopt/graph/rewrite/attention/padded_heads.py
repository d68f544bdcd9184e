"""Heads of a size that no fused attention kernel takes, padded with zeros: in the weights, so that nothing runs for it.

    Sdpa(heads(x Wq + bq), heads(z Wk + bk), heads(z Wv + bv)), joined, Wo    heads of 20 elements
        -> the same with Wq, bq, Wk, bk, Wv, bv of 24 columns a head, and Wo of 24 rows a head

Every score and every result is the same sum plus products of zeros, for finite x and z. The scale stays that of 20
elements. Where the result does not go into a constant weight, a Slice behind the attention cuts it.

ONNX Runtime's cuDNN and flash kernels take heads whose size is a multiple of 8 up to 256, the memory-efficient one up
to 1024; none asks for more. Flash computes with 32 elements where there are 24, in registers, and reads and writes 24.

From q, k, v and the result, the axis of the heads is followed from operator to operator (head_axis.py) until constant
weights end it everywhere: either all values on the way get wider heads, or none.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from onnxopt.costs.rewrite import numbers
from onnxopt.graph.rewrite.attention.attention_operands import HEAD_STEP, has_usual_heads
from onnxopt.graph.rewrite.attention.head_axis import Mark, across, weight_of, widen
from onnxopt.graph.rewrite.rule_sets import Pass, Scope
from onnxopt.graph.rewrite.to_contrib import SIXTEEN_BIT
from onnxopt.graph.rewrite.weights import Joiner
from onnxopt.graph.shapes.contrib_schemas import DOMAIN
from onnxopt.graph.shapes.value_dims import dims_of

_LARGEST = 256  # elements of a head that ONNX Runtime's fused kernels take
_USUAL_LENGTH, _PASSES_OF_SCORES = numbers().padded_length, numbers().passes_of_scores


@dataclasses.dataclass(frozen=True)
class Attention:
    """One attention: q (B, N, S, H), v (B, N, T, V), y (B, N, S, V), and k with its elements along k_axis: (B, N, T, H)
    or (B, N, H, T). mask: what the scores are masked with. inside: the nodes between q, k, v and y."""

    q: ir.Value
    k: ir.Value
    v: ir.Value
    y: ir.Value
    mask: ir.Value | None
    k_axis: int
    inside: frozenset[ir.Node]


@dataclasses.dataclass(frozen=True)
class Plan:
    """marks: the values that get wider heads. nodes: those that read or compute them. sliced: whether the result is
    cut behind the attention instead."""

    marks: dict[ir.Value, Mark]
    nodes: tuple[ir.Node, ...]
    sliced: bool


def plan(attention: Attention) -> Plan | str:
    """How the heads are padded, or what is in the way."""
    q, v = attention.q, attention.v
    if q.dtype not in SIXTEEN_BIT:
        return f"attention of {q.dtype} gains less; only 16-bit floats are padded"
    if max(_padded(_size(q)), _padded(_size(v))) > _LARGEST:
        return f"the faster kernels take up to {_LARGEST} elements"
    spread = _spread(attention, sliced=False)
    if isinstance(spread, str) and _size(v) % HEAD_STEP:
        spread = _spread(attention, sliced=True)
    if isinstance(spread, Plan) and not _pays(attention, spread):
        return "the zeros would move more bytes than the scores do"
    return spread


def pad(model: ir.Model, joiner: Joiner) -> int:
    """Pad the heads of every Sdpa that has a plan, in place. Returns how many.

    Shapes have to be inferred again afterwards.
    """
    count = 0
    for node in list(model.graph.all_nodes()):
        if (node.domain, node.op_type) != (DOMAIN, "Sdpa"):
            continue
        q, k, v, *rest = node.inputs
        assert q is not None and k is not None and v is not None
        mask = rest[0] if rest else None
        if has_usual_heads(q, v):
            continue
        chosen = plan(Attention(q, k, v, node.outputs[0], mask, 3, frozenset({node})))
        if isinstance(chosen, Plan):
            _apply(chosen, node, joiner)
            count += 1
    return count


def _size(value: ir.Value) -> int:
    size = dims_of(value)[3]
    assert isinstance(size, int)
    return size


def _padded(size: int) -> int:
    return -(-size // HEAD_STEP) * HEAD_STEP


def _spread(attention: Attention, sliced: bool) -> Plan | str:
    """The values that get wider heads, from those of the attention to the weights, or what is in the way."""
    sizes = {"q": _size(attention.q), "v": _size(attention.v)}
    ends = [(attention.q, 3, "q"), (attention.k, attention.k_axis, "q"), (attention.v, 3, "v")]
    ends += [] if sliced else [(attention.y, 3, "v")]
    asked = [(x, Mark(axis, sizes[of], _padded(sizes[of]))) for x, axis, of in ends if sizes[of] % HEAD_STEP]
    marks: dict[ir.Value, Mark] = {}
    nodes: dict[ir.Node, None] = {}
    owner = next(iter(attention.inside)).graph
    while asked:
        value, mark = asked.pop()
        if value in marks:
            if marks[value] != mark:
                return f"`{value.name}` holds heads of two sizes, or along two axes"
            continue
        producer = value.producer()
        if producer is None or value.is_graph_output() or value is attention.mask:
            return f"`{value.name}` is an input or output of the graph, or the mask"
        marks[value] = mark
        for node in (producer, *value.consumers()):
            if node in attention.inside:
                continue
            if node.graph is not owner:
                return f"{node.op_type} `{node.name}` reads `{value.name}` in a subgraph"
            widened = across(node, value, mark)
            if isinstance(widened, str):
                return widened
            nodes[node] = None
            asked += widened
    return Plan(marks, tuple(nodes), sliced)


def _pays(attention: Attention, chosen: Plan) -> bool:
    """Whether the unfused attention moves more scores than padding moves zeros, counted in elements."""
    batch, heads = (d if isinstance(d, int) else 1 for d in dims_of(attention.q)[:2])
    queries, keys = (
        d if isinstance(d, int) else _USUAL_LENGTH for d in (dims_of(x)[2] for x in (attention.q, attention.v))
    )
    rows = batch * heads
    more_q, more_v = (_padded(_size(x)) - _size(x) for x in (attention.q, attention.v))
    zeros = 2 * rows * (queries + keys) * (more_q + more_v)  # q, k, v and the result, written and read
    if chosen.sliced:
        zeros += 2 * rows * queries * _size(attention.v)
    for node in chosen.nodes:
        weight = weight_of(node)
        if weight is not None and weight.const_value is not None:
            mark = next(chosen.marks[x] for x in (*node.outputs, *node.inputs) if x in chosen.marks)
            zeros += weight.const_value.size * (mark.padded - mark.size) // mark.size
    return zeros < _PASSES_OF_SCORES * rows * queries * keys


def _apply(chosen: Plan, node: ir.Node, joiner: Joiner) -> None:
    for other in chosen.nodes:
        widen(other, chosen.marks, joiner)
    for value, mark in chosen.marks.items():
        dims = list(dims_of(value))
        dims[mark.axis] = mark.width(int(dims[mark.axis]))  # type: ignore[arg-type]
        value.shape = ir.Shape(dims)
    if chosen.sliced:
        _sliced(node)


def _sliced(node: ir.Node) -> None:
    """Put a Slice behind an Sdpa whose v has got wider heads, and whose result keeps its size."""
    y, v, graph = node.outputs[0], node.inputs[2], node.graph
    assert v is not None and y.dtype is not None and isinstance(graph, ir.Graph)
    wide = ir.node("Sdpa", node.inputs, domain=node.domain)
    for attribute in node.attributes.values():
        wide.attributes.add(attribute)
    wide.outputs[0].shape, wide.outputs[0].dtype = ir.Shape([*dims_of(y)[:3], _size(v)]), y.dtype
    bounds = [
        ir.node("Constant", [], {"value": ir.tensor(np.array([number], np.int64))}) for number in (0, _size(y), 3)
    ]
    sliced = ir.node("Slice", [wide.outputs[0], *(bound.outputs[0] for bound in bounds)])
    ir.convenience.replace_nodes_and_values(graph, node, [node], [wide, *bounds, sliced], [y], sliced.outputs)


def _pass(model: ir.Model, scope: Scope) -> int:
    assert scope.joiner is not None
    return pad(model, scope.joiner)


RULES = (Pass(_pass, counted=False),)
