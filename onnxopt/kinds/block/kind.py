"""The kind of kernels that are blocks of convolutions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import onnx_ir as ir

from onnxopt.fusion.context import Context
from onnxopt.fusion.kernel import Meaning
from onnxopt.fusion.region import Kernel, Kind, Region
from onnxopt.graph.refusal import Refusal
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.block import dense_steps, match
from onnxopt.kinds.convolution import dense_kernels
from onnxopt.program.block import Block
from onnxopt.program.schema import Variant


class BlockKind(Kind):
    """Convolutions in NHWC with the Splits and Concats between them. The library runs each through cuDNN; those of few
    channels have CUDA code."""

    name = "block"
    library = "cuDNN"
    plans_shapes = True

    def find(self, context: Context) -> tuple[list[Region], list[Refusal]]:
        return match.find(context, self)

    def lower(self, region: Region, opsets: Mapping[str, int], shapes: Shapes) -> Meaning:
        raise ValueError("a block has its meaning since it was recognised")

    def named_nodes(self, region: Region) -> Sequence[ir.Node]:
        return [n for n in region.nodes if n.op_type in ("Conv", "Split", "Slice", "Concat")]

    def entry_points(
        self, name: str, meaning: Meaning, regions: Sequence[Region], opsets: Mapping[str, int], shapes: Shapes
    ) -> tuple[Variant, ...]:
        return dense_steps.entry_points(cast(Block, meaning))

    def headers(self, kernels: Sequence[Kernel]) -> list[str]:
        return [dense_kernels.HEADER]

    def cuda(self, kernel: Kernel) -> list[str]:
        return dense_steps.lines(kernel)


BLOCK = BlockKind()
