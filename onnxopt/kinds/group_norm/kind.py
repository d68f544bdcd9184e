"""The kind of kernels that norm groups of channels in NHWC, with a prologue and an epilogue.

    y = f(GroupNorm(g(x)), residual, one element a channel, one a channel of each sample, ...)

The kernel reads x once: the elements of a sample's groups stay in registers between their sums and their use, so that g
is computed twice for each element. Time embeddings are such a g: one sum a channel of each sample.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import onnx_ir as ir

from onnxopt.fusion.core_growth import CoreKind
from onnxopt.fusion.core_lowering import CoreMatch, RowSlice
from onnxopt.fusion.kernel import Meaning
from onnxopt.fusion.region import Kernel, Region
from onnxopt.graph.layout.orders import RANKS
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.group_norm import cuda, entry_points
from onnxopt.kinds.group_norm.match import NORMS, norm
from onnxopt.kinds.group_norm.row_slices import row_slice
from onnxopt.program.group_norm import GroupNorm
from onnxopt.program.schema import Variant


class GroupNormKind(CoreKind):
    """A norm over groups of channels in NHWC. Other norms are for kernels of rows, so none is refused."""

    name = "group_norm"
    meaning = GroupNorm
    operators = NORMS
    rounds_prologue = False
    by_sample = RANKS

    def match(self, node: ir.Node, opsets: Mapping[str, int], shapes: Shapes) -> CoreMatch | str:
        return norm(node, shapes, opsets.get("", 0))

    def row_slice(self, value: ir.Value, shapes: Shapes) -> RowSlice | None:
        return row_slice(value, shapes)

    def entry_points(
        self, name: str, meaning: Meaning, regions: Sequence[Region], opsets: Mapping[str, int], shapes: Shapes
    ) -> tuple[Variant, ...]:
        return entry_points.choose(name, cast(GroupNorm, meaning), regions, shapes)

    def others(self, kernel: Kernel) -> Iterable[Variant]:
        return entry_points.alternatives(kernel)

    def headers(self, kernels: Sequence[Kernel]) -> list[str]:
        return [cuda.HEADER]

    def cuda(self, kernel: Kernel) -> list[str]:
        return cuda.lines(kernel)


GROUP_NORM = GroupNormKind()
