"""Regions of image convolutions: a dense convolution of one to four channels, with the elementwise nodes around it.

    x [N, C, H, W] -> g -> Transpose -> Pad -> Transpose -> Conv -> Transpose -> f -> y [N, Ho, Wo, K]

The first Transpose and the Pad, which appends a channel of zeros, are those of the layout pass. Both cost nothing here,
as the kernel reads the image where it lies. x may also be NHWC. g is what makes floats of an image of bytes, or
16 bits of float32: a Cast, and a normalization by constants. The Transpose may stand in front of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxopt.costs.image_convolution import numbers
from onnxopt.fusion import cost
from onnxopt.fusion.behind import grow_behind, is_free
from onnxopt.fusion.channels_last import around_window
from onnxopt.fusion.context import Context
from onnxopt.fusion.region import Kind, Region
from onnxopt.graph.layout.orders import TO_NHWC, transposes
from onnxopt.graph.match import is_constant
from onnxopt.graph.refusal import Refusal
from onnxopt.kinds.image_convolution.lower import Image, image, inputs_of, lower
from onnxopt.program.image_convolution import IMAGES, MAX_INPUTS

_MOST_IN_FRONT = numbers().prologue_cost


def find(context: Context, kind: Kind) -> tuple[list[Region], list[Refusal]]:
    """A region for every convolution of an image that a kernel can run. Others are another kind's, which refuses."""
    regions: list[Region] = []
    for node in list(context.order):
        if node.op_type != "Conv" or node.domain != "" or context.is_taken(node):
            continue
        of = image(node, context.shapes)
        if isinstance(of, str) or any(map(context.is_taken, of.nodes)):
            continue
        region = _region(of, context, kind)
        region.verify()
        context.take([region.nodes])
        regions.append(region)
    return regions, []


def _region(of: Image, context: Context, kind: Kind) -> Region:
    def fits(nodes: Sequence[ir.Node]) -> bool:
        """Whether the nodes can and should be one kernel."""
        inputs, outputs = inputs_of(of, nodes, source), context.outputs_of(nodes)
        if len(inputs) > MAX_INPUTS or len(outputs) != 1 or context.makes_cycle(nodes):
            return False
        try:
            meaning = context.lowered(lower, nodes, inputs, outputs)
        except ValueError:
            return False
        in_front_cost = meaning.prologue.program.cost if meaning.prologue is not None else 0
        return meaning.cost <= cost.MAX_COST and in_front_cost <= _MOST_IN_FRONT

    source, in_front = _in_front(of, context)
    start = sorted((*of.nodes, *in_front), key=context.order.__getitem__)
    if in_front and not fits(start):
        source, start = of.x, sorted(of.nodes, key=context.order.__getitem__)
    nodes = grow_behind(start, of.found.y, context, fits)
    inputs, outputs = inputs_of(of, nodes, source), context.outputs_of(nodes)
    meaning = context.lowered(lower, nodes, inputs, outputs)
    moved = cost.of_region(nodes, inputs, outputs, context.shapes)
    return Region(tuple(nodes), tuple(inputs), tuple(outputs), moved, kind, meaning)


def _in_front(of: Image, context: Context) -> tuple[ir.Value, list[ir.Node]]:
    """The image, and the nodes that make x of it; x and none where no kernel reads what they do."""
    value, nodes = of.x, list[ir.Node]()
    best: tuple[ir.Value, list[ir.Node]] = (of.x, [])
    while (node := value.producer()) is not None and node in context.order and _is_private(value, context):
        source = _image_of(node, value, context)
        turned = not of.planes and transposes(node, TO_NHWC) and not context.is_taken(node)
        turned = turned and around_window(node) is None  # that Transpose is a part of the other operator's kernel
        if turned and best[1] and best[0] is value and node.inputs[0] is not None:
            return node.inputs[0], [node, *nodes]
        if source is None:
            break
        value, nodes = source, [node, *nodes]
        dtype = context.shapes.dtype(value)
        if dtype is not None and dtype.name in IMAGES:
            best = (value, nodes)
    return best


def _is_private(value: ir.Value, context: Context) -> bool:
    return not value.is_graph_output() and len(context.readers(value)) == 1


def _image_of(node: ir.Node, value: ir.Value, context: Context) -> ir.Value | None:
    """The one tensor of the value's shape that an elementwise node computes it from, with constants."""
    read = list(dict.fromkeys(v for v in node.inputs if v is not None and not is_constant(v)))
    if len(read) != 1 or not is_free(node, context) or not context.shapes.same(read[0], value):
        return None
    return read[0]
