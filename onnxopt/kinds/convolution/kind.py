"""The kind of kernels that are convolutions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import onnx_ir as ir

from onnxopt.fusion.context import Context
from onnxopt.fusion.kernel import Meaning
from onnxopt.fusion.region import Kernel, Kind, Region
from onnxopt.graph.refusal import Refusal
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.convolution import coded_kernels, match
from onnxopt.program.convolution import Convolution
from onnxopt.program.schema import Variant


class ConvolutionKind(Kind):
    """A Conv in NHWC with bias, residual and activation. The library runs it through cuDNN; those of uint8
    codes, and of codes with a zero point, have CUDA code."""

    name = "convolution"
    library = "cuDNN"
    plans_shapes = True

    def find(self, context: Context) -> tuple[list[Region], list[Refusal]]:
        return match.find(context, self)

    def lower(self, region: Region, opsets: Mapping[str, int], shapes: Shapes) -> Meaning:
        return match.lower(region, shapes)

    def named_nodes(self, region: Region) -> Sequence[ir.Node]:
        return [n for n in region.nodes if n.op_type not in ("Transpose", "Reshape", "DequantizeLinear")]

    def entry_points(
        self, name: str, meaning: Meaning, regions: Sequence[Region], opsets: Mapping[str, int], shapes: Shapes
    ) -> tuple[Variant, ...]:
        return coded_kernels.choose(cast(Convolution, meaning))

    def headers(self, kernels: Sequence[Kernel]) -> list[str]:
        return [coded_kernels.HEADER]

    def cuda(self, kernel: Kernel) -> list[str]:
        return coded_kernels.lines(kernel)


CONVOLUTION = ConvolutionKind()
