"""Norms and factors of heads in front of attention's first product, where the projections' results lie.

    Mul(MatMul(q, k^T), s)      -> Mul(MatMul(Mul(q, s / c), k^T), c)       s [N, 1, 1], c its largest magnitude
    MatMul(f(Transpose(x)), y)  -> MatMul(Transpose(f(x)), y)               f: work on heads that reduces or scales

Attention of cosines (Swin v2) divides queries and keys by their norms, behind the Transpose that makes heads of them,
and has a scale for each head. With the Transpose behind all of that, what is left is attention's usual form, and one
kernel reads a product's rows and writes what the attention reads. s / c is at most 1, so that no query overflows.

    MultiHeadAttention(f(Reshape(Slice(p, a, b))), g(Reshape(Slice(p, b, c))), v)
        -> the same of the parts of h(Reshape(Slice(p, a, c)))

Once the projections are one product, f and g are the same operators with constants of their own, and h has those of
both, head by head: one kernel in place of two. f may end with a factor that g has not.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from onnxopt.graph.match import is_constant
from onnxopt.graph.passes.new_nodes import NewNodes
from onnxopt.graph.rewrite.attention import near_misses
from onnxopt.graph.rewrite.attention.attention_operands import scalar
from onnxopt.graph.rewrite.attention.head_work import RANK, HeadWork, reduces, work_after
from onnxopt.graph.rewrite.rule_sets import Pass
from onnxopt.graph.rewrite.weights import array_of, rounded
from onnxopt.graph.shapes.contrib_schemas import CONTRIB

_FACTORS = frozenset({"Mul", "Div"})
_KEYS_TURNED = (0, 1, 3, 2)
_HEAD_AXIS = 2  # the axis of heads [B, S, N, H]


def bring_to_products(model: ir.Model) -> int:
    """Apply the first two rules to the first product of each attention, in place. Returns how often."""
    count = 0
    for softmax, _ in near_misses.softmaxes(model.graph):
        product = near_misses.product_before(softmax)
        if product.op_type == "MatMul" and isinstance(product.graph, ir.Graph):
            count += _scale_queries(product, product.graph)
            for position in range(2):
                count += _sink(product, position, product.graph)
    return count


def _scale_queries(product: ir.Node, graph: ir.Graph) -> bool:
    """Multiply the queries in place of the scores, where these have a constant factor for each head."""
    scores, q = product.outputs[0], product.inputs[0]
    readers = scores.consumers()
    if len(scores.uses()) != 1 or scores.is_graph_output() or readers[0].op_type != "Mul" or readers[0].domain:
        return False
    at = 1 if readers[0].inputs[0] is scores else 0
    factor = readers[0].inputs[at]
    if factor is None or not is_constant(factor) or q is None or q.dtype is None or factor.dtype != q.dtype:
        return False
    factors = array_of(factor)
    heads = q.shape[1] if q.shape is not None and len(q.shape) == RANK else None
    if (
        not isinstance(heads, int)
        or factors.size == 1
        or factors.size != heads
        or factors.ndim > RANK
        or factors.shape[-3:] != (heads, 1, 1)
    ):
        return False
    largest = np.abs(factors).max()
    if not np.isfinite(largest) or largest == 0:
        return False
    new = NewNodes(graph, product)
    ratios = rounded(factors.reshape(1, heads, 1, 1) / largest, q.dtype, f"{factor.name}/of_largest")
    scaled = new.add("Mul", [q, new.held(ratios)], q.dtype)
    scaled.shape = q.shape
    product.replace_input_with(0, scaled)
    readers[0].replace_input_with(at, new.held(rounded(np.array(largest), q.dtype, f"{factor.name}/largest")))
    return True


def _sink(product: ir.Node, position: int, graph: ir.Graph) -> bool:
    """Move the Transpose in front of an operand of the product behind the work on its heads."""
    reader, at = product, position
    while True:
        value = reader.inputs[at]
        node = None if value is None else value.producer()
        if value is None or node is None or node.domain != "":
            return False
        turns_keys = position == 1 and node.op_type == "Transpose" and reader is product
        if turns_keys and node.attributes.get_ints("perm") == _KEYS_TURNED:
            reader, at = node, 0
        elif node.op_type in _FACTORS and scalar(node.inputs[1]) is not None:
            reader, at = node, 0  # attention takes it in
        else:
            break
    work = work_after(value, _keeps_elements)
    if work is None or not (any(map(reduces, work.nodes)) or work.constants()):
        return False
    transpose = work.source.producer()
    assert transpose is not None and transpose.inputs[0] is not None
    perm = transpose.attributes.get_ints("perm")
    assert perm is not None
    new, back = NewNodes(graph, node), [list(perm).index(k) for k in range(RANK)]
    constants = {v: new.held(turned(v, back)) for v in work.constants()}
    below = work.repeated(new, transpose.inputs[0], constants)
    transposed = new.add("Transpose", [below], value.dtype, [ir.AttrInt64s("perm", perm)])
    transposed.shape = value.shape
    reader.replace_input_with(at, transposed)
    if not value.uses() and not value.is_graph_output():
        graph.remove(work.nodes[::-1], safe=True)
    return True


def _keeps_elements(node: ir.Node) -> bool:
    """Whether a node is a Transpose of four dims that leaves the last one in its place."""
    perm = node.attributes.get_ints("perm") if node.op_type == "Transpose" else None
    return perm is not None and len(perm) == RANK and perm[-1] == RANK - 1


def turned(value: ir.Value, perm: list[int]) -> ir.Tensor:
    """A constant as it broadcasts in front of a Transpose. perm: back from behind it."""
    assert value.const_value is not None
    array = value.const_value.numpy()
    array = array.reshape((1,) * (RANK - array.ndim) + array.shape).transpose(perm)
    return ir.Tensor(np.ascontiguousarray(array), dtype=value.const_value.dtype, name=f"{value.name}/turned")


class _Norm(NamedTuple):
    """The work on heads [B, S, N, H] of columns of a product, from `first` on."""

    work: HeadWork
    product: ir.Value
    first: int
    heads: int
    size: int


def merge(model: ir.Model) -> int:
    """Apply the third rule to every attention, in place. Returns to how many."""
    count = 0
    for node in list(model.graph):
        if (node.domain, node.op_type) != (CONTRIB, "MultiHeadAttention") or len(node.inputs) < 2:
            continue
        q, k = (_norm(value, node) for value in node.inputs[:2])
        if q is None or k is None or q.product is not k.product or q.size != k.size:
            continue
        if q.first + q.heads * q.size == k.first and (pairs := _pairs(q, k)) is not None:
            _merge(model.graph, q, k, pairs)
            count += 1
    return count


def _norm(value: ir.Value | None, attention: ir.Node) -> _Norm | None:
    """The norm of an operand [B, S, N * H] that is cut out of a product."""
    flat = None if value is None else value.producer()
    result = flat.inputs[0] if flat is not None and (flat.domain, flat.op_type) == ("", "Reshape") else None
    if value is None or result is None or list(result.consumers()) != [flat]:
        return None
    if any(reader is not attention and reader.op_type != "Shape" for reader in value.consumers()):
        return None
    work = work_after(result, lambda node: node.op_type == "Reshape")
    if work is None or not any(map(reduces, work.nodes)):
        return None
    view = work.source.producer()
    slice_node = None if view is None or view.inputs[0] is None else view.inputs[0].producer()
    if slice_node is None or (slice_node.domain, slice_node.op_type) != ("", "Slice") or work.source.shape is None:
        return None
    product, (heads, size) = slice_node.inputs[0], list(work.source.shape)[2:]
    bounds = [
        None if v is None or v.const_value is None else v.const_value.numpy().tolist() for v in slice_node.inputs[1:]
    ]
    if not isinstance(heads, int) or not isinstance(size, int) or product is None or product.shape is None:
        return None
    is_whole = len(product.shape) == RANK - 1 and list(product.shape)[:2] == list(work.source.shape)[:2]
    if not is_whole or len(bounds) != len(("begin", "end", "axis")) or bounds[2] not in ([-1], [2]):
        return None
    first = bounds[0][0] if bounds[0] is not None else -1
    return _Norm(work, product, first, heads, size) if first >= 0 and bounds[1] == [first + heads * size] else None


def _pairs(q: _Norm, k: _Norm) -> dict[ir.Value, ir.Value | None] | None:
    """The constants of the norm of queries, each with the one of keys in its place; None where the norms differ.

    A factor behind the norm of queries alone has none in its place.
    """
    q_nodes, k_nodes = q.work.nodes, k.work.nodes
    pairs: dict[ir.Value, ir.Value | None] = {}
    if len(q_nodes) == len(k_nodes) + 1 and q_nodes[-1].op_type == "Mul":
        factor = next((v for v in q_nodes[-1].inputs if v is not None and is_constant(v)), None)
        if factor is None:
            return None
        pairs[factor], q_nodes = None, q_nodes[:-1]
    if len(q_nodes) != len(k_nodes):
        return None
    counterpart: dict[ir.Value, ir.Value] = {q.work.source: k.work.source}
    for a, b in zip(q_nodes, k_nodes, strict=True):
        if a.op_type != b.op_type or dict(a.attributes) != dict(b.attributes) or len(a.inputs) != len(b.inputs):
            return None
        for x, y in zip(a.inputs, b.inputs, strict=True):
            if x is None or y is None or (x in counterpart and counterpart[x] is not y):
                return None
            if x not in counterpart:
                if not is_constant(x) or not is_constant(y):
                    return None
                counterpart[x] = y
        counterpart[a.outputs[0]] = b.outputs[0]
    with_heads = {*q.work.constants(), *k.work.constants()}
    if not all(_is_of_heads(v) for v in with_heads):
        return None
    for x, y in counterpart.items():
        if not is_constant(x):
            continue
        if x in with_heads or y in with_heads:
            pairs[x] = y  # also where both norms read one constant
        elif x is not y and (
            x.const_value is None or y.const_value is None or not _equal(x.const_value, y.const_value)
        ):
            return None
    return pairs


def _is_of_heads(value: ir.Value) -> bool:
    """Whether a constant differs between heads and along them alone."""
    shape = () if value.const_value is None else value.const_value.shape.numpy()
    return all(dim == 1 for dim in shape[:-2])


def _equal(a: ir.TensorProtocol, b: ir.TensorProtocol) -> bool:
    return a.dtype == b.dtype and bool(np.array_equal(a.numpy(), b.numpy()))


def _merge(graph: ir.Graph, q: _Norm, k: _Norm, pairs: dict[ir.Value, ir.Value | None]) -> None:
    """Make the parts of one norm the results of both."""
    order = {node: number for number, node in enumerate(graph)}
    place = min((norm.work.nodes[0] for norm in (q, k)), key=order.__getitem__)
    new, dtype, heads = NewNodes(graph, place), q.product.dtype, q.heads + k.heads
    bounds = [new.constant(np.array([n], np.int64)) for n in (q.first, q.first + heads * q.size, -1)]
    sliced = new.add("Slice", [q.product, *bounds], dtype)
    view = new.add("Reshape", [sliced, new.constant(np.array([0, 0, heads, q.size], np.int64))], dtype)
    constants = {x: new.held(_both_constants(x, q.heads, y, k.heads)) for x, y in pairs.items()}
    both = q.work.repeated(new, view, constants)
    for norm, begin in ((q, 0), (k, q.heads)):
        ends = [new.constant(np.array([n], np.int64)) for n in (begin, begin + norm.heads, _HEAD_AXIS)]
        part = new.add("Slice", [both, *ends], norm.work.result.dtype)
        part.shape = norm.work.result.shape
        norm.work.result.replace_all_uses_with(part)


def _both_constants(x: ir.Value, x_heads: int, y: ir.Value | None, y_heads: int) -> ir.Tensor:
    """The constants of queries and keys, one after the other along the axis of heads; 1 where keys have none."""
    assert x.const_value is not None and (y is None or y.const_value is not None)
    arrays = []
    for value, heads in ((x, x_heads), (y, y_heads)):
        tensor = None if value is None else value.const_value
        array = np.ones(1, x.const_value.dtype.numpy()) if tensor is None else tensor.numpy()
        array = array.reshape((1,) * (RANK - array.ndim) + array.shape)
        arrays.append(np.broadcast_to(array, (*array.shape[:_HEAD_AXIS], heads, array.shape[-1])))
    width = max(array.shape[-1] for array in arrays)
    rows = [np.broadcast_to(array, (*array.shape[:-1], width)) for array in arrays]
    return ir.Tensor(np.concatenate(rows, axis=_HEAD_AXIS), dtype=x.const_value.dtype, name=f"{x.name}/of_both")


BEFORE_RECOGNITION = (Pass(lambda model, _: bring_to_products(model)),)
MERGED = (Pass(lambda model, _: merge(model), counted=False),)
