"""Regions of attention of many queries, where the kernel is faster than ONNX Runtime's.

ONNX Runtime calls cuDNN's or flash attention kernels, which are faster for many keys. For few, they take longer, and
queries, keys and values that lie in one tensor are copied for them.
"""

from __future__ import annotations

import math

from onnxopt.fusion.context import Context
from onnxopt.fusion.kernel import Traffic
from onnxopt.fusion.region import Kind, Region
from onnxopt.graph.refusal import Refusal
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.flash_attention.lower import OPERATOR, Attention, Lengths, attention, lengths
from onnxopt.program.flash_attention import FlashAttention, pays


def find(context: Context, kind: Kind) -> tuple[list[Region], list[Refusal]]:
    """A region for every MultiHeadAttention that a kernel should run, and refusals of the others."""
    regions: list[Region] = []
    refusals: list[Refusal] = []
    for node in list(context.order):
        if (node.domain, node.op_type) != OPERATOR or context.is_taken(node):
            continue
        found = attention(node, context.shapes)
        if isinstance(found, str):
            refusals.append(Refusal(node.name or "", node.op_type, "", found))
            continue
        counts = lengths(node, context.shapes)
        keys = context.shapes.expected.of(counts[1])
        if not pays(keys, found.meaning.width, packed=found.shares_tensors):
            count = "an unknown number of" if keys is None else str(keys)
            reason = f"ONNX Runtime's kernel is faster for {count} keys, or may be"
            refusals.append(Refusal(node.name or "", node.op_type, "", reason))
            continue
        region = _region(found, counts, context, kind)
        region.verify()
        context.take([region.nodes])
        regions.append(region)
    return regions, refusals


def lower(region: Region, shapes: Shapes) -> FlashAttention:
    """The meaning of a region of `find`."""
    found = attention(region.nodes[-1], shapes)
    if isinstance(found, str):
        raise ValueError(f"`{region.nodes[-1].name}` is no attention of this kind: {found}")
    return found.meaning


def _region(found: Attention, counts: Lengths, context: Context, kind: Kind) -> Region:
    nodes = tuple(sorted(found.nodes, key=context.order.__getitem__))
    moved = _traffic(found, counts, context.shapes)
    return Region(nodes, found.inputs, tuple(found.node.outputs[:1]), moved, kind, found.meaning)


def _traffic(found: Attention, counts: Lengths, shapes: Shapes) -> Traffic:
    """Parts that are cut off are written and read again. counts: of queries and keys."""
    node, meaning = found.node, found.meaning
    given = [shapes.bytes(v) for v in (*found.inputs, node.outputs[0])]
    parts = [shapes.bytes(v) for v in node.inputs[:3] if v is not None]
    launches = len(found.nodes)
    batch = shapes.dims(node.inputs[0]) if node.inputs[0] is not None else None
    sizes = (None if batch is None else batch[0], *counts)
    known = [n for n in sizes if isinstance(n, int)]
    flops = 2 * math.prod(known) * meaning.heads * (meaning.width + meaning.values) if len(known) == 3 else None
    if any(n is None for n in (*given, *parts)):
        return Traffic(None, None, launches, flops=flops)
    after = sum(n for n in given if n is not None)
    copied = 2 * sum(n for n in parts if n is not None) if launches > 1 else 0
    return Traffic(after + copied, after, launches, flops=flops)
