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
from onnxopt.kinds.convolution import coded_kernels, dense_kernels, match
from onnxopt.program.convolution import Convolution
from onnxopt.program.schema import Variant


class ConvolutionKind(Kind):
    """A Conv in NHWC with bias, residual and activation. The library runs it through cuDNN; those of few channels, of
    uint8 codes, and of codes with a zero point, have CUDA code."""

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
        convolution = cast(Convolution, meaning)
        if convolution.codes is not None:
            return coded_kernels.choose(convolution)
        steps = dense_kernels.steps_of(convolution, convolution.dtype)
        channels = [_channels(region, convolution, shapes) for region in regions]
        return () if steps is None else dense_kernels.entry_points(steps, channels)

    def headers(self, kernels: Sequence[Kernel]) -> list[str]:
        coded = {cast(Convolution, kernel.program).codes is not None for kernel in kernels}
        return [*[dense_kernels.HEADER] * (False in coded), *[coded_kernels.HEADER] * (True in coded)]

    def cuda(self, kernel: Kernel) -> list[str]:
        convolution = cast(Convolution, kernel.program)
        if convolution.codes is not None or not kernel.variants:
            return coded_kernels.lines(kernel)
        name = kernel.variants[0].symbol.rpartition("_c")[0]
        steps = dense_kernels.steps_of(convolution, convolution.dtype)
        assert steps is not None
        return dense_kernels.lines(name, steps, kernel.variants)


def _channels(region: Region, convolution: Convolution, shapes: Shapes) -> tuple[int, int]:
    """The channels and filters of a region; 0 where they are not known."""
    c, k = (shapes.dims(value) or (None,) for value in (region.inputs[convolution.x], region.outputs[0]))
    return (c[-1] if isinstance(c[-1], int) else 0, k[-1] if isinstance(k[-1], int) else 0)


CONVOLUTION = ConvolutionKind()
