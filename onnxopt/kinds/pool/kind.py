"""The kind of kernels that are pools of NHWC tensors, a core without a prologue and an epilogue.

cuDNN's pools of NHWC tensors take up to twenty times as long as a copy of the tensor (benchmarks/notes). On the CPU,
ONNX Runtime runs the inlined function and cancels its Transposes against its neighbours'.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import onnx_ir as ir

from onnxopt.fusion.core_growth import CoreKind
from onnxopt.fusion.core_lowering import CoreMatch
from onnxopt.fusion.kernel import Meaning
from onnxopt.fusion.region import Kernel, Region
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.pool import entry_points
from onnxopt.kinds.pool.match import pool
from onnxopt.program.pool import OPERATIONS, Pool
from onnxopt.program.schema import Variant


class PoolKind(CoreKind):
    """MaxPool and AveragePool of two or three dims between the Transposes of the layout pass."""

    name = "pool"
    meaning = Pool
    operators = frozenset(OPERATIONS)
    has_transforms = False

    def match(self, node: ir.Node, opsets: Mapping[str, int], shapes: Shapes) -> CoreMatch | str:
        return pool(node, shapes, opsets.get("", 0))

    def refuses(self, node: ir.Node, shapes: Shapes) -> bool:
        return True

    def entry_points(
        self, name: str, meaning: Meaning, regions: Sequence[Region], opsets: Mapping[str, int], shapes: Shapes
    ) -> tuple[Variant, ...]:
        return entry_points.choose(name, cast(Pool, meaning), regions, shapes)

    def alternatives(self, kernel: Kernel) -> Iterable[Variant]:
        return entry_points.alternatives(kernel)

    def headers(self, kernels: Sequence[Kernel]) -> list[str]:
        return [entry_points.HEADER]

    def cuda(self, kernel: Kernel) -> list[str]:
        return entry_points.lines(kernel)


POOL = PoolKind()
