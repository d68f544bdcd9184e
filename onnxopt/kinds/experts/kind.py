"""The kind of kernels that run the chosen experts of each token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import onnx_ir as ir

from onnxopt.fusion.context import Context
from onnxopt.fusion.kernel import Meaning
from onnxopt.fusion.region import Kernel, Kind, Region
from onnxopt.graph.refusal import Refusal
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.experts import cuda, match
from onnxopt.program.experts import Experts
from onnxopt.program.schema import Variant


class ExpertsKind(Kind):
    """Tokens choose some of many experts, which are two products each."""

    name = "experts"

    def find(self, context: Context) -> tuple[list[Region], list[Refusal]]:
        return match.find(context, self)

    def lower(self, region: Region, opsets: Mapping[str, int], shapes: Shapes) -> Meaning:
        return match.lower(region, opsets, shapes)

    def named_nodes(self, region: Region) -> Sequence[ir.Node]:
        return match.named(region)

    def entry_points(
        self, name: str, meaning: Meaning, regions: Sequence[Region], opsets: Mapping[str, int], shapes: Shapes
    ) -> tuple[Variant, ...]:
        return cuda.entry_points(name, cast(Experts, meaning))

    def headers(self, kernels: Sequence[Kernel]) -> list[str]:
        return [cuda.HEADER]

    def cuda(self, kernel: Kernel) -> list[str]:
        return cuda.lines(kernel)


EXPERTS = ExpertsKind()
