"""Regions of attention of many queries, where the kernel is faster than ONNX Runtime's.

ONNX Runtime calls cuDNN's or flash attention kernels, which are faster for many keys. For few, they take longer, and
queries, keys and values that lie in one tensor are copied for them.
"""

from __future__ import annotations

import math

from onnxopt.costs import attention as costs
from onnxopt.costs.attention import AttentionSize
from onnxopt.fusion.context import Context
from onnxopt.fusion.kernel import Traffic
from onnxopt.fusion.region import Kind, Region
from onnxopt.graph.refusal import Refusal
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.flash_attention import entry_points
from onnxopt.kinds.flash_attention.attention import Attention
from onnxopt.kinds.flash_attention.codes import with_codes
from onnxopt.kinds.flash_attention.lower import attention, attention_of
from onnxopt.program import flash_attention
from onnxopt.program.flash_attention import FlashAttention

_FREE = frozenset({"Reshape", "Unsqueeze", "Squeeze", "Shape"})  # operators that move nothing


def find(context: Context, kind: Kind) -> tuple[list[Region], list[Refusal]]:
    """A region for every attention that a kernel should run, and refusals of the others."""
    regions: list[Region] = []
    refusals: list[Refusal] = []
    for node in list(context.order):
        if context.is_owned(node):
            continue
        match = attention(node, context.shapes)
        if match is None:
            continue
        reason = match if isinstance(match, str) else _why_not(match, context)
        if isinstance(match, str) or reason:
            refusals.append(Refusal(node.name or "", node.op_type, "", reason))
            continue
        match = _with_codes(match, context)
        region = _region(match, context, kind)
        region.verify()
        context.take([region.nodes])
        regions.append(region)
    return regions, refusals


def lower(region: Region, shapes: Shapes) -> FlashAttention:
    """The meaning of a region of `find`."""
    return attention_of(region.nodes[-1], shapes).meaning


def _why_not(match: Attention, context: Context) -> str:
    """Why ONNX Runtime's kernels may be faster, or why these nodes are no region of this graph; or ""."""
    if any(node not in context.order or context.is_owned(node) for node in match.nodes):
        return "Queries, keys or the mask are computed outside of the branch or loop that attends to them"
    meaning = match.meaning
    expected = context.shapes.expected
    queries, keys = (expected.of(n) for n in match.lengths)
    dims = context.shapes.dims(match.output)
    batch = expected.of(dims[0]) if dims else None
    visited = flash_attention.seen(meaning.before, meaning.after)
    hopper = entry_points.on_warpgroups(meaning)
    size = AttentionSize(
        keys, meaning.width, match.shares_tensors, hopper=hopper, causal=meaning.after == 0,
        bias=match.bias(context.shapes), queries=queries, seen=visited, alone=match.alone,
        dtype=meaning.dtype, heads=None if batch is None else batch * meaning.heads,
    )  # fmt: skip
    if costs.pays(size):
        return ""
    count = "an unknown number of" if keys is None else str(keys)
    return f"ONNX Runtime's kernel is faster for {count} keys, or may be"


def _with_codes(match: Attention, context: Context) -> Attention:
    """The attention with what makes codes of its results, where this graph has it and no region does."""
    coded = with_codes(match, context.shapes)
    added = [node for node in coded.nodes if node not in match.nodes]
    return coded if all(node in context.order and not context.is_owned(node) for node in added) else match


def _region(match: Attention, context: Context, kind: Kind) -> Region:
    nodes = tuple(sorted(match.nodes, key=context.order.__getitem__))
    moved = _traffic(match, context.shapes)
    return Region(nodes, match.inputs, (match.output,), moved, kind, match.meaning)


def _traffic(match: Attention, shapes: Shapes) -> Traffic:
    """Parts that are cut off are written and read again, and scores where no operator computes the whole."""
    node, meaning = match.node, match.meaning
    read_and_written = [shapes.bytes(v) for v in (*match.inputs, match.output)]
    inside = [n for n in match.nodes if n is not node] if match.alone else []
    parts = [shapes.bytes(v) for v in (() if match.alone else node.inputs[:3]) if v is not None]
    parts += [shapes.bytes(v) for n in inside if n.op_type not in _FREE for v in n.outputs]
    launches = sum(n.op_type not in _FREE for n in match.nodes) if match.alone else len(match.nodes)
    batch = shapes.dims(match.output)
    sizes = (None if batch is None else batch[0], *match.lengths)
    static = [n for n in sizes if isinstance(n, int)]
    flops = 2 * math.prod(static) * meaning.heads * (meaning.width + meaning.values) if len(static) == 3 else None
    if any(n is None for n in (*read_and_written, *parts)):
        return Traffic(None, None, launches, flops=flops)
    after = sum(n for n in read_and_written if n is not None)
    copied = 2 * sum(n for n in parts if n is not None) if launches > 1 else 0
    return Traffic(after + copied, after, launches, flops=flops)
