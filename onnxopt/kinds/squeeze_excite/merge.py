"""Joining the two products of a squeeze-excite with the mean that they read and the depthwise convolution before it.

The convolution's kernel then leaves the sums of its tiles, so that no kernel reads the map again for its mean.
"""

from __future__ import annotations

import dataclasses
from typing import cast

import onnx_ir as ir

from onnxopt.fusion import cost
from onnxopt.fusion.context import Context
from onnxopt.fusion.region import Kind, Region
from onnxopt.graph.match import is_constant
from onnxopt.graph.refusal import Refusal
from onnxopt.kinds.depthwise.kind import DEPTHWISE
from onnxopt.kinds.squeeze_excite.lower import lower
from onnxopt.program.squeeze_excite import SqueezeExcite


def merge(context: Context, kind: Kind, regions: list[Region]) -> tuple[list[Region], list[Refusal]]:
    """The regions of all kinds after joining. kind: that of squeeze-excites."""
    of = {n: r for r in regions for n in r.nodes}
    retained = {id(region): region for region in regions}
    for region in [r for r in regions if r.kind is kind]:
        parts = _parts(region, of)
        union = None if parts is None else _union(region, *parts, context, kind)
        if parts is None or union is None:
            continue
        _, mean_region, map_region = parts
        for part in (region, map_region, *([mean_region] if mean_region is not None else [])):
            del retained[id(part)]
        retained[id(union)] = union
        context.take([union.nodes])
    return list(retained.values()), []


def _parts(region: Region, of: dict[ir.Node, Region]) -> tuple[ir.Node, Region | None, Region] | None:
    """The mean over height and width that the products read, its region if it has one, and the region of the map."""
    position = cast(SqueezeExcite, region.meaning).mean
    node = region.inputs[position].producer() if position is not None else None
    if node is None or node.op_type != "ReduceMean" or node.domain != "" or not _is_over_height_and_width(node):
        return None
    mean_region = of.get(node)
    value = node.inputs[0]
    producer = value.producer() if value is not None else None
    map_region = of.get(producer) if producer is not None else None
    if (
        (mean_region is not None and mean_region.nodes != (node,))
        or map_region is None
        or map_region.kind is not DEPTHWISE
    ):
        return None
    return (node, mean_region, map_region) if map_region.outputs == (value,) else None


def _is_over_height_and_width(node: ir.Node) -> bool:
    axes = node.inputs[1] if len(node.inputs) > 1 else None
    if axes is None:
        dims = node.attributes.get_ints("axes", ())
    elif is_constant(axes) and axes.const_value is not None:
        dims = tuple(axes.const_value.numpy().ravel().tolist())
    else:
        return False
    return sorted(a % 4 for a in dims) == [1, 2] and node.attributes.get_int("keepdims", 1) == 1


def _union(
    region: Region, node: ir.Node, mean_region: Region | None, map_region: Region, context: Context, kind: Kind
) -> Region | None:
    """One region of all parts, None where other nodes read the mean, or something lies between the parts."""
    nodes = sorted((*map_region.nodes, node, *region.nodes), key=context.order.__getitem__)
    outputs = (*map_region.outputs, *region.outputs)
    mean = node.outputs[0]
    inputs = list(dict.fromkeys((*map_region.inputs, *(v for v in region.inputs if v is not mean))))
    if context.outputs_of(nodes) != list(outputs) or len(context.shapes.dims(outputs[0]) or ()) != 4:
        return None
    if (mean_region is None and context.is_owned(node)) or context.makes_cycle(nodes):
        return None
    try:
        meaning = context.lowered(lower, nodes, inputs, outputs)
    except ValueError:
        return None
    moved = dataclasses.replace(cost.region_traffic(nodes, inputs, outputs, context.shapes), launches_after=2)
    union = Region(tuple(nodes), tuple(inputs), outputs, moved, kind, meaning)
    union.verify()
    return union
