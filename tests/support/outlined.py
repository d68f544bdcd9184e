"""Every convolution in channels last as a function, cut out by a kind without kernels: for tests of the functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from onnxopt.fusion import boundary, channels_last, fuse, outline
from onnxopt.fusion.context import Context
from onnxopt.fusion.kernel import Traffic
from onnxopt.fusion.lower import lower
from onnxopt.fusion.region import Kind, Region
from onnxopt.graph.refusal import Refusal
from onnxopt.kinds import KINDS


@dataclasses.dataclass(frozen=True)
class _Nothing:
    """The meaning of a region whose kernel is never made."""

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()

    def verify(self) -> None:
        pass

    def to_json(self) -> dict[str, Any]:
        return {}


class Outlined(Kind):
    """A convolution with its Transposes, an Add behind it, and a Relu behind that."""

    name = "outlined"

    def find(self, context: Context) -> tuple[list[Region], list[Refusal]]:
        regions: list[Region] = []
        for node in context.graph:
            found = (
                channels_last.sandwich(node, context.shapes)
                if node.op_type in channels_last.CONVOLUTIONS
                else "no Conv"
            )
            if isinstance(found, str):
                continue
            nodes, last = list(found.nodes), found.y
            for op_type in ("Add", "Relu"):
                readers = list(last.consumers())
                fits = len(readers) == 1 and readers[0].op_type == op_type and not last.is_graph_output()
                if fits and not any(readers[0] in region.nodes for region in regions):
                    nodes.append(readers[0])
                    last = readers[0].outputs[0]
            inside = tuple(sorted(nodes, key=context.order.__getitem__))
            region = Region(
                inside, tuple(boundary.inputs_of(inside)), tuple(boundary.outputs_of(inside)),
                Traffic(None, None, len(inside)), self, _Nothing(),
            )  # fmt: skip
            region.verify()
            regions.append(region)
        return regions, []

    def lower(self, region: Region, opsets: Any, shapes: Any) -> Any:
        raise AssertionError("regions have a meaning")

    def entry_points(self, *args: Any) -> Any:
        raise AssertionError("there are no kernels")

    def headers(self, kernels: Sequence[Any]) -> list[str]:
        raise AssertionError("there are no kernels")

    def cuda(self, kernel: Any) -> list[str]:
        raise AssertionError("there are no kernels")


def outlined(model: ir.Model) -> int:
    """Replace all regions by functions, in place, convolutions first; the number of convolutions in functions."""
    plan = lower(fuse.fuse(model, (Outlined(), *KINDS)), model.opset_imports)
    functions = outline.functions(plan, model.opset_imports)
    outline.replace(model, functions)
    return sum(isinstance(region.kind, Outlined) for region in plan.regions)
