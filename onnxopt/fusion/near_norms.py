"""Norms that no kernel runs as a whole: a mean of squares whose root is computed, or used, outside of its region."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import onnx_ir as ir

from onnxopt.fusion.region import FusionPlan, Region
from onnxopt.graph.match import constant
from onnxopt.graph.refusal import Refusal

_SUMS = frozenset({"ReduceMean", "ReduceSum", "ReduceSumSquare", "ReduceL2", "GlobalAveragePool"})
_BETWEEN = frozenset({"Add", "Mul", "Div", "Max", "Clip", "Cast", "Reshape", "Squeeze", "Unsqueeze", "Expand"})
_ROOTS = frozenset({"Sqrt", "Pow", "Reciprocal"})
_FAR = 4  # operators between the mean and the root


def with_refusals(plan: FusionPlan, model: ir.Model) -> FusionPlan:
    """The plan, and a refusal for each norm whose nodes do not run in one kernel."""
    owners = {node: region for region in plan.regions for node in region.nodes}
    reasons = {row.node: row.reason for row in plan.refusals}
    rows = tuple(
        Refusal(mean.name or "", mean.op_type, outside.name or "", _reason(mean, outside, reasons))
        for mean in model.graph.all_nodes()
        if mean.domain == "" and mean.op_type in _SUMS and _is_of_squares(mean)
        for outside in _first_outside(mean, owners)
    )
    return dataclasses.replace(plan, refusals=(*rows, *plan.refusals))


def _reason(mean: ir.Node, outside: ir.Node, reasons: dict[str, str]) -> str:
    said = next((reasons[n] for n in (mean.name or "", outside.name or "") if n in reasons), "")
    stops = f"{outside.op_type} `{outside.name}` is outside of the kernel of {mean.op_type}"
    return f"not recognised as a norm: {said or stops}"


def _is_of_squares(mean: ir.Node) -> bool:
    if mean.op_type in ("ReduceSumSquare", "ReduceL2"):
        return True
    square = mean.inputs[0].producer() if mean.inputs and mean.inputs[0] is not None else None
    if square is None or square.domain != "":
        return False
    if square.op_type == "Pow":
        power = constant(square.inputs[1])
        return power is not None and power.size == 1 and float(power.item()) == 2.0
    return square.op_type == "Mul" and square.inputs[0] is square.inputs[1]


def _first_outside(mean: ir.Node, owners: dict[ir.Node, Region]) -> Iterator[ir.Node]:
    """The root downstream of the mean, or what scales by it, if that does not run in the kernel of the mean."""
    ring = [mean]
    for _ in range(_FAR):
        ring = [other for node in ring for other in _consumers(node)]
        for node in ring:
            if node.op_type in _ROOTS and node.domain == "":
                wanted = [node, *(scale for scale in _consumers(node) if scale.op_type in ("Mul", "Div"))]
                region = owners.get(mean)
                yield from [n for n in wanted if region is None or owners.get(n) is not region][:1]
                return
        ring = [node for node in ring if node.op_type in _BETWEEN]


def _consumers(node: ir.Node) -> list[ir.Node]:
    return [other for value in node.outputs for other in value.consumers()]
