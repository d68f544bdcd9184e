"""The kind of kernels that are convolutions of images, with a prologue and an epilogue.

    x [N, C, H, W] -> g -> Transpose -> Pad -> Transpose -> Conv -> Transpose -> f -> y [N, Ho, Wo, K]

The first Transpose and the Pad, which appends a channel of zeros, are those of the layout pass. Both cost nothing here,
as the kernel reads the image where it is stored. x may also be NHWC. g is what makes floats of an image of bytes, or
16 bits of float32: a Cast, and a normalization by constants. The Transpose may be upstream of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import onnx_ir as ir

from onnxopt.costs.image_convolution import numbers
from onnxopt.fusion.channels_last import around_window
from onnxopt.fusion.context import Context
from onnxopt.fusion.core_growth import CoreKind
from onnxopt.fusion.core_lowering import CoreMatch
from onnxopt.fusion.kernel import Meaning
from onnxopt.fusion.region import Kernel, Region
from onnxopt.graph.layout.orders import TO_NHWC, transposes
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.image_convolution import cuda, entry_points
from onnxopt.kinds.image_convolution.match import image, with_transpose
from onnxopt.program.image_convolution import IMAGES, ImageConvolution
from onnxopt.program.schema import Variant


class ImageConvolutionKind(CoreKind):
    """A dense convolution of one to four channels, NCHW or NHWC, with NHWC results. Others are another kind's, which
    refuses."""

    name = "image_convolution"
    meaning = ImageConvolution
    operators = frozenset({"Conv"})
    epilogue_first = False
    whole_prologue = True
    constant_prologue = True
    prologue_inputs = IMAGES
    max_prologue_cost = numbers().prologue_cost

    def match(self, node: ir.Node, opsets: Mapping[str, int], shapes: Shapes) -> CoreMatch | str:
        return image(node, shapes)

    def match_within(self, nodes: Sequence[ir.Node], opsets: Mapping[str, int], shapes: Shapes) -> CoreMatch | str:
        match = super().match_within(nodes, opsets, shapes)
        if isinstance(match, str):
            return match
        turns = [n for n in nodes if transposes(n, TO_NHWC) and n not in match.nodes]
        if len(turns) > 1 or (turns and match.fields["planes"]):
            return "The prologue transposes more than the image"
        return with_transpose(match, turns[0]) if turns else match

    def with_prologue(
        self, match: CoreMatch, nodes: list[ir.Node], source: ir.Value, context: Context
    ) -> tuple[CoreMatch, list[ir.Node]]:
        turn = source.producer()
        if turn is not None and not match.fields["planes"] and _is_layout(turn, source, context):
            return with_transpose(match, turn), [turn, *nodes]
        return dataclasses.replace(match, first=(source, *match.first[1:])), nodes

    def entry_points(
        self, name: str, meaning: Meaning, regions: Sequence[Region], opsets: Mapping[str, int], shapes: Shapes
    ) -> tuple[Variant, ...]:
        return entry_points.choose(name, cast(ImageConvolution, meaning))

    def others(self, kernel: Kernel) -> Iterable[Variant]:
        return entry_points.others(kernel.name, cast(ImageConvolution, kernel.program))

    def headers(self, kernels: Sequence[Kernel]) -> list[str]:
        return [cuda.HEADER]

    def cuda(self, kernel: Kernel) -> list[str]:
        return cuda.lines(kernel)


def _is_layout(turn: ir.Node, image: ir.Value, context: Context) -> bool:
    """Whether a node turns an image to NHWC for the prologue alone, and for no other operator's kernel."""
    private = not image.is_graph_output() and len(context.readers(image)) == 1
    own = turn in context.order and not context.is_owned(turn) and around_window(turn) is None
    return private and own and transposes(turn, TO_NHWC) and turn.inputs[0] is not None


IMAGE_CONVOLUTION = ImageConvolutionKind()
