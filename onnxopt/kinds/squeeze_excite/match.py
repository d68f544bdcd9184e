"""Squeeze-excite regions: two small products, one behind the other, of the means of a map over height and width.

    mean [N, 1, 1, C] -> 1x1 Conv, MatMul or Gemm -> elementwise nodes -> another -> elementwise nodes -> y [N, 1, 1, K]

Where a depthwise convolution computes the map, both become one region once all kinds have searched
(kinds/squeeze_excite/merge.py). The Mul of the map by the factors stays with the kernel of its neighbours.

A block reads all weights. So a region pays only while the weights are small (costs/data/squeeze_excite.json).
"""

from __future__ import annotations

import onnx_ir as ir

from onnxopt.costs.squeeze_excite import numbers
from onnxopt.fusion import cost, eligibility, index_ops
from onnxopt.fusion.context import Context
from onnxopt.fusion.region import Kind, Region
from onnxopt.graph.refusal import Refusal
from onnxopt.kinds.gemm.growing import GrowingGemm
from onnxopt.kinds.squeeze_excite import pairs
from onnxopt.kinds.squeeze_excite.lower import lower
from onnxopt.kinds.squeeze_excite.pairs import Pair
from onnxopt.program.squeeze_excite import MAX_CHANNELS, MAX_HIDDEN

_MEANS = frozenset({"ReduceMean", "GlobalAveragePool"})
MAX_WEIGHT_BYTES, MAX_ALONE_BYTES = numbers().max_weight_bytes, numbers().max_alone_bytes
_MAX_IN_BETWEEN = 8  # nodes between a depthwise convolution and the mean
_MAX_PRODUCTS = numbers().max_products


def find(context: Context, kind: Kind) -> tuple[list[Region], list[Refusal]]:
    """A region for every pair of small products of means, and refusals of larger pairs."""
    free = [n for n in context.order if pairs.is_product(n) and not context.is_owned(n)]
    products = [(n, p) for n in free if (p := pairs.product(n, context.shapes)) is not None]
    by_result = {p.output: p for _, p in products}
    regions: list[Region] = []
    refusals: list[Refusal] = []
    for node, second in products:
        pair = _pair(second, by_result, context)
        if pair is None:
            continue
        reason = _why_not(pair, context)
        if reason is not None:
            refusals.append(Refusal(node.name or "", node.op_type, "", reason))
            continue
        region = _region(pair, context, kind)
        if region is None:
            continue
        context.take([region.nodes])
        regions.append(region)
    return regions, refusals


def _pair(second: GrowingGemm, by_result: dict[ir.Value, GrowingGemm], context: Context) -> Pair | None:
    def is_free(node: ir.Node) -> bool:
        is_open = node in context.order and not context.is_owned(node)
        return is_open and eligibility.is_elementwise(node) and context.why_not(node) is None

    pair = pairs.find(second, by_result, is_free, context.order.__getitem__, context.shapes)
    if pair is None or not _is_mean(pair.mean) or any(map(context.is_owned, pair.nodes)):
        return None
    return pair


def _is_mean(value: ir.Value) -> bool:
    """Whether a value is a mean, perhaps in another shape."""
    node = value.producer()
    while node is not None and index_ops.is_view(node) and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    return node is not None and node.domain == "" and node.op_type in _MEANS


def _is_of_depthwise(mean: ir.Value) -> bool:
    """Whether a mean is that of a convolution of many groups, with a few nodes in between."""
    pending = [mean.producer()]
    for _ in range(_MAX_IN_BETWEEN):
        node = pending.pop(0) if pending else None
        if node is None:
            return False
        if node.op_type == "Conv":
            return node.attributes.get_int("group", 1) > 1
        pending += [v.producer() for v in node.inputs if v is not None and v.producer() is not None]
    return False


def _why_not(pair: Pair, context: Context) -> str | None:
    """The reason why one kernel for both products would not be faster."""
    shapes = context.shapes
    first, second = (shapes.dims(p.b) or () for p in (pair.first, pair.second))
    (hidden, channels), (results, operands) = first, second
    assert isinstance(hidden, int) and isinstance(channels, int) and isinstance(results, int)
    if operands != hidden:
        return "The second product's operands are not the first product's results"
    size = sum(shapes.bytes(p.b) or 0 for p in (pair.first, pair.second))
    limit = MAX_WEIGHT_BYTES if _is_of_depthwise(pair.mean) else MAX_ALONE_BYTES
    if max(channels, results) > MAX_CHANNELS or hidden > MAX_HIDDEN or size > limit:
        return (
            f"Two products with weights of {size} bytes ({channels}, {hidden} and {results} channels) are faster as"
            " kernels of their own"
        )
    rows = (shapes.dims(pair.mean) or (None,))[0]
    if isinstance(rows, int) and rows * hidden * (channels + results) > _MAX_PRODUCTS:
        return f"Two products of {rows} rows are faster on tensor cores"
    return None


def _region(pair: Pair, context: Context, kind: Kind) -> Region | None:
    """The region of a pair, None where other nodes read what lies inside, or depend on it."""
    nodes = sorted(pair.nodes, key=context.order.__getitem__)
    inputs = pair.inputs()
    if context.outputs_of(nodes) != [pair.y] or context.makes_cycle(nodes):
        return None
    try:
        meaning = context.lowered(lower, nodes, inputs, [pair.y])
    except ValueError:
        return None
    moved = cost.region_traffic(nodes, inputs, [pair.y], context.shapes)
    region = Region(tuple(nodes), tuple(inputs), (pair.y,), moved, kind, meaning)
    region.verify()
    return region
