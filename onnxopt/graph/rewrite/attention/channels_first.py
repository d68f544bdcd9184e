"""Attention of channels before tokens, [B, N, H, T], as YOLO's networks write it, in the order of the other rules.

    MatMul(v, Transpose(P)) -> Transpose(MatMul(P, Transpose(v)))             P: of a Softmax along its last dim
    Reshape(x, [B, N, H, T]) -> Transpose(Reshape(Transpose(Reshape(x, [B, N H, T])), [B, T, N, H]))   x [B, N H, ..]
    Split | Slice (Transpose(x)) -> Transpose(Split | Slice (x))
    Transpose(Mul | Div (x, number)) -> Mul | Div (Transpose(x), number)
    Reshape(Transpose(y), [B, N V, ..]) -> Transpose(Reshape(y', [B, .., N V]))                        y' [B, T, N, V]

The rules after the first one are for what such an attention reads, and the last one for what reads a Transpose that the
others added. Maps of convolutions are tokens then, which channels last needs no Transpose for (graph/layout/tokens.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from onnxopt.graph.layout.orders import TO_NCHW, TO_NHWC
from onnxopt.graph.match import constant, integers, is_private, operand
from onnxopt.graph.passes.new_nodes import NewNodes
from onnxopt.graph.rewrite.attention import near_misses
from onnxopt.graph.rewrite.attention.attention_operands import scalar
from onnxopt.graph.rewrite.rule_sets import Pass
from onnxopt.graph.shapes.value_dims import dims_of, same

_ROWS, _COLUMNS = "bnth", "bnht"  # the axes of queries and values, and of keys, as their product reads them
_SWAP, _TO_COLUMNS = (0, 1, 3, 2), (0, 2, 3, 1)  # permutations of [B, N, T, H] and [B, T, N, H] to [B, N, H, T]
_AROUND_WEIGHTS = {"Cast": 0, "Where": 2}  # operators after a Softmax, with the position of its weights


class _Step(NamedTuple):
    """A node on the way to an operand of an attention, and what the axes of its result are."""

    node: ir.Node
    result: ir.Value
    axes: str


def swap_products(model: ir.Model) -> int:
    """Let each attention multiply the values by its weights from the left, in place. Returns how many."""
    count = 0
    for _, last in near_misses.softmaxes(model.graph):
        values, turned = last.inputs
        weights = _source_of_swap(turned)
        if values is None or weights is None or not _comes_from_softmax(weights) or not _has_rank(values, 4):
            continue
        assert isinstance(last.graph, ir.Graph)
        new, result = NewNodes(last.graph, last), last.outputs[0]
        product = new.add("MatMul", [weights, _transposed(new, values, _SWAP)], result.dtype)
        result.replace_all_uses_with(_transposed(new, product, _SWAP), replace_graph_outputs=True)
        last.graph.remove(last, safe=True)
        count += 1
    return count


def turn_operands(model: ir.Model) -> int:
    """Let operands of attention come from tokens of heads, in place. Returns how many views and parts changed."""
    count = 0
    for softmax, last in near_misses.softmaxes(model.graph):
        first = near_misses.product_before(softmax)
        weights, ends = last.inputs[0], [(first, 0, _ROWS), (first, 1, _COLUMNS), (last, 1, _ROWS)]
        if first.op_type != "MatMul" or weights is None or not _comes_from_softmax(weights):
            continue
        ways = [_way(node.inputs[at], axes) for node, at, axes in ends if axes == _ROWS]
        if not any(step.axes == _COLUMNS for way in ways for step in way):
            continue
        for node, at, axes in ends:
            if node is first:
                _move_factors(node, at, axes)
            for step in reversed([step for step in _way(node.inputs[at], axes) if step.axes == _COLUMNS]):
                count += _turn_view(step) if step.node.op_type == "Reshape" else _turn_parts(step.node)
    return count


def join_heads(model: ir.Model) -> int:
    """Let maps that are made of [B, N, V, T] be made of tokens, in place. Returns how many."""
    count = 0
    for node in list(model.graph.all_nodes()):
        if (node.domain, node.op_type) == ("", "Reshape") and isinstance(node.graph, ir.Graph):
            count += _join(node, node.graph)
    return count


def _way(value: ir.Value | None, axes: str) -> Iterator[_Step]:
    """The nodes from an operand upstream: Transposes, parts and factors, up to a Reshape."""
    while value is not None and (node := value.producer()) is not None and node.domain == "":
        source = operand(node, 0)
        if node.op_type == "Reshape":
            yield _Step(node, value, axes)
            return
        if node.op_type == "Transpose":
            perm = node.attributes.get_ints("perm", ())
            if len(perm) != len(axes):
                return
            before = "".join(axes[perm.index(axis)] for axis in range(len(perm)))
        elif _is_factor(node) or (node.op_type in ("Split", "Slice") and _part_axes(node) == [axes.index("h")]):
            before = axes
        else:
            return
        yield _Step(node, value, axes)
        value, axes = source, before


def _move_factors(product: ir.Node, position: int, axes: str) -> None:
    """Let an operand of the scores get its factor last, where the scale of attention is looked for."""
    steps = []
    for step in _way(product.inputs[position], axes):
        if step.node.op_type != "Transpose" and not _is_factor(step.node):
            break
        steps.append(step)
    factors = [step.node for step in steps if _is_factor(step.node)]
    if not factors or steps[0].node in factors:
        return
    assert isinstance(product.graph, ir.Graph)
    new, value = NewNodes(product.graph, product), steps[-1].node.inputs[0]
    assert value is not None
    for step in reversed(steps):
        if step.node not in factors:
            value = _transposed(new, value, step.node.attributes.get_ints("perm", ()))
    for node in factors:
        value = new.add(node.op_type, [value, node.inputs[1]], value.dtype)
    product.replace_input_with(position, value)


def _turn_view(step: _Step) -> int:
    """Heads that a view takes apart along the channels, before the tokens."""
    node, y, x = step.node, step.result, step.node.inputs[0]
    if x is None or x.shape is None or not _has_rank(y, 4) or len(x.shape) not in (3, 4):
        return 0
    batch, heads, size, tokens = dims_of(y)
    if not isinstance(heads, int) or not isinstance(size, int) or x.shape[1] != heads * size:
        return 0
    if not same(batch, x.shape[0]) or (len(x.shape) == 3 and not same(x.shape[2], tokens)):
        return 0
    assert isinstance(node.graph, ir.Graph)
    new = NewNodes(node.graph, node)
    count = tokens if isinstance(tokens, int) else -1
    flat = x if len(x.shape) == 3 else _reshaped(new, x, [0, heads * size, count])
    rows = _reshaped(new, _transposed(new, flat, (0, 2, 1)), [0, 0, heads, size])
    _replace(node.graph, node, [_transposed(new, rows, _TO_COLUMNS)])
    return 1


def _turn_parts(node: ir.Node) -> int:
    """Parts of a Transpose as Transposes of parts."""
    source = node.inputs[0]
    turn = None if source is None else source.producer()
    if node.op_type not in ("Split", "Slice") or turn is None or turn.op_type != "Transpose" or turn.domain != "":
        return 0
    perm, graph = turn.attributes.get_ints("perm", ()), node.graph
    assert isinstance(graph, ir.Graph)
    new, inputs, attributes = NewNodes(graph, node), list(node.inputs), dict(node.attributes)
    inputs[0] = turn.inputs[0]
    (axis,) = _part_axes(node)
    if node.op_type == "Split":
        attributes["axis"] = ir.AttrInt64("axis", perm[axis])
    else:
        inputs[3] = new.constant(np.array([perm[axis]], np.int64))
    parts = new.add(node.op_type, inputs, node.outputs[0].dtype, list(attributes.values()), len(node.outputs))
    split = parts.producer()
    assert split is not None
    _replace(graph, node, [_transposed(new, part, perm) for part in split.outputs])
    return 1


def _join(node: ir.Node, graph: ir.Graph) -> int:
    """Heads that a view joins along the channels, before the tokens."""
    source, result = node.inputs[0], node.outputs[0]
    turn = None if source is None else source.producer()
    if turn is None or (turn.domain, turn.op_type) != ("", "Transpose") or result.shape is None:
        return 0
    y, perm = turn.inputs[0], turn.attributes.get_ints("perm", ())
    if y is None or perm not in (_SWAP, _TO_COLUMNS) or not _has_rank(y, 4) or len(result.shape) not in (3, 4):
        return 0
    if perm == _SWAP and not _is_attended(y):
        return 0  # a Transpose more
    batch, heads, size = (dims_of(y)[perm[axis]] for axis in (0, 1, 2))
    if not isinstance(heads, int) or not isinstance(size, int) or heads * size != result.shape[1]:
        return 0
    target = constant(node.inputs[1])
    if not same(batch, result.shape[0]) or (target is not None and 0 in target[1:]):
        return 0
    new = NewNodes(graph, node)
    rows = y if perm == _TO_COLUMNS else _transposed(new, y, (0, 2, 1, 3))
    if len(result.shape) == 3:
        joined = _transposed(new, _reshaped(new, rows, [0, 0, heads * size]), (0, 2, 1))
    else:
        order = new.constant(np.array(TO_NHWC, np.int64) if target is None else target[list(TO_NHWC)])
        dims = order if target is not None else new.add("Gather", [node.inputs[1], order], ir.DataType.INT64)
        joined = _transposed(new, new.add("Reshape", [rows, dims], rows.dtype), TO_NCHW)
    _replace(graph, node, [joined])
    return 1


def _is_attended(value: ir.Value) -> bool:
    """Whether a value is the product of an attention's weights, which one Transpose reads."""
    node = value.producer()
    weights = node.inputs[0] if node is not None and (node.domain, node.op_type) == ("", "MatMul") else None
    return weights is not None and is_private(value) and _comes_from_softmax(weights)


def _comes_from_softmax(value: ir.Value) -> bool:
    """Whether a value of four dims holds the weights of an attention, along its last dim."""
    node = value.producer()
    while node is not None and node.domain == "" and node.op_type in _AROUND_WEIGHTS:
        source = node.inputs[_AROUND_WEIGHTS[node.op_type]]
        node = None if source is None else source.producer()
    if node is None or (node.domain, node.op_type) != ("", "Softmax") or not _has_rank(value, 4):
        return False
    return node.attributes.get_int("axis", -1) in (-1, 3)


def _source_of_swap(value: ir.Value | None) -> ir.Value | None:
    """What a Transpose of the last two of four dims reads, where nothing else reads its result."""
    node = None if value is None or not is_private(value) else value.producer()
    if node is None or (node.domain, node.op_type) != ("", "Transpose"):
        return None
    return node.inputs[0] if node.attributes.get_ints("perm", ()) == _SWAP else None


def _part_axes(node: ir.Node) -> list[int]:
    """The axes along which a Split or a Slice of four dims cuts parts."""
    if node.op_type == "Split":
        axes: list[int] | None = [node.attributes.get_int("axis", 0)]
    else:
        axes = integers(operand(node, 3))
    return [] if axes is None else [axis % 4 for axis in axes]


def _is_factor(node: ir.Node) -> bool:
    return node.op_type in ("Mul", "Div") and scalar(node.inputs[1]) is not None and node.inputs[0] is not None


def _has_rank(value: ir.Value, rank: int) -> bool:
    return value.shape is not None and len(value.shape) == rank


def _transposed(new: NewNodes, value: ir.Value, perm: Sequence[int]) -> ir.Value:
    return new.add("Transpose", [value], value.dtype, [ir.AttrInt64s("perm", perm)])


def _reshaped(new: NewNodes, value: ir.Value, dims: Sequence[int]) -> ir.Value:
    return new.add("Reshape", [value, new.constant(np.array(dims, np.int64))], value.dtype)


def _replace(graph: ir.Graph, node: ir.Node, values: Sequence[ir.Value]) -> None:
    for old, value in zip(node.outputs, values, strict=True):
        value.shape = old.shape
        old.replace_all_uses_with(value, replace_graph_outputs=True)
    graph.remove(node, safe=True)


PRODUCTS = (Pass(lambda model, _: swap_products(model)),)
OPERANDS = (Pass(lambda model, _: turn_operands(model)),)
RESULTS = (Pass(lambda model, _: join_heads(model), counted=False),)
