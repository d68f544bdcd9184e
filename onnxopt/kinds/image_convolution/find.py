"""Regions of image convolutions: a dense convolution of one to four channels, with the elementwise nodes behind it.

    x [N, C, H, W] -> Transpose -> Pad -> Transpose -> Conv -> Transpose -> f -> y [N, Ho, Wo, K]

The first Transpose and the Pad, which appends a channel of zeros, are those of the layout pass. Both cost nothing here,
as the kernel reads the image where it lies. x may also be NHWC.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxopt.fusion import cost
from onnxopt.fusion.behind import grow_behind
from onnxopt.fusion.context import Context
from onnxopt.fusion.region import Kind, Region
from onnxopt.graph.refusal import Refusal
from onnxopt.kinds.image_convolution.lower import Image, image, inputs_of, lower
from onnxopt.program.image_convolution import MOST_INPUTS


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
        inputs, outputs = inputs_of(of, nodes), context.outputs_of(nodes)
        if len(inputs) > MOST_INPUTS or len(outputs) != 1 or context.makes_cycle(nodes):
            return False
        try:
            meaning = context.lowered(lower, nodes, inputs, outputs)
        except ValueError:
            return False
        return meaning.cost <= cost.MAX_COST

    start = sorted(of.nodes, key=context.order.__getitem__)
    nodes = grow_behind(start, of.found.y, context, fits)
    inputs, outputs = inputs_of(of, nodes), context.outputs_of(nodes)
    meaning = context.lowered(lower, nodes, inputs, outputs)
    moved = cost.of_region(nodes, inputs, outputs, context.shapes)
    return Region(tuple(nodes), tuple(inputs), tuple(outputs), moved, kind, meaning)
