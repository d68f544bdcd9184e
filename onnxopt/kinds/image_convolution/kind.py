"""The kind of kernels that are convolutions of images."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import onnx_ir as ir

from onnxopt.fusion.context import Context
from onnxopt.fusion.kernel import Meaning, Variant
from onnxopt.fusion.region import Kernel, Kind, Region
from onnxopt.graph.refusal import Refusal
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.image_convolution import cuda, entry_points, find, lower
from onnxopt.program.image_convolution import ImageConvolution


class ImageConvolutionKind(Kind):
    """A dense convolution of one to four channels, NCHW or NHWC, with the elementwise work behind it, NHWC."""

    name = "image_convolution"

    def find(self, context: Context) -> tuple[list[Region], list[Refusal]]:
        return find.find(context, self)

    def lower(self, region: Region, opsets: Mapping[str, int], shapes: Shapes) -> Meaning:
        return lower.lower(region.nodes, region.inputs, region.outputs, opsets, shapes)

    def named_nodes(self, region: Region) -> Sequence[ir.Node]:
        return [n for n in region.nodes if n.op_type not in ("Transpose", "Pad")]

    def entry_points(
        self, name: str, meaning: Meaning, regions: Sequence[Region], opsets: Mapping[str, int], shapes: Shapes
    ) -> tuple[Variant, ...]:
        return entry_points.choose(name, cast(ImageConvolution, meaning))

    def alternatives(self, kernel: Kernel) -> Iterable[Variant]:
        known = {variant.symbol for variant in kernel.variants}
        others = entry_points.others(kernel.name, cast(ImageConvolution, kernel.program))
        return [variant for variant in others if variant.symbol not in known]

    def headers(self, kernels: Sequence[Kernel]) -> list[str]:
        return [cuda.HEADER]

    def cuda(self, kernel: Kernel) -> list[str]:
        return cuda.lines(kernel)


IMAGE_CONVOLUTION = ImageConvolutionKind()
