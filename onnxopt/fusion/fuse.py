"""Fuse: find the regions of a model, kind by kind, and the reasons why other nodes stay apart.

One kernel runs each region. A node belongs to at most one region. The graph whose vertices are the regions and the
other nodes has no cycle (fusion/context.py).
"""

from __future__ import annotations

import types
from collections.abc import Collection, Mapping, Sequence

import onnx_ir as ir

from onnxopt.fusion import eligibility
from onnxopt.fusion.context import Context
from onnxopt.fusion.region import FusionPlan, Kind, Region
from onnxopt.graph.refusal import Refusal
from onnxopt.graph.shapes import shapes as shape_inference


def fuse(
    model: ir.Model,
    kinds: Sequence[Kind],
    spilled: Collection[frozenset[str]] = (),
    *,
    cuda: bool = True,
    usual: Mapping[str, int] = types.MappingProxyType({}),
) -> FusionPlan:
    """Regions of all graphs of a model, control-flow bodies included, and the refusals. The model is not changed.

    kinds: in the order of the search; later kinds leave alone the nodes that a kind takes. spilled: the node names of
    every region whose kernel spilled registers when it was compiled; no new region holds more than half of one. cuda:
    whether kernels run on GPUs too. usual: sizes that symbols of the inputs have in most runs.
    """
    shapes = shape_inference.infer(model, usual)
    host = eligibility.host_values(model.graphs(), shapes)
    regions: list[Region] = []
    refusals: list[Refusal] = []
    for graph in model.graphs():
        context = Context(graph, model.opset_imports, shapes, host, spilled, cuda=cuda)
        merged: list[Region] = []
        for kind in kinds:
            merged += kind.find_early(context)
        for kind in kinds:
            new, refused = kind.find(context)
            context.take([region.nodes for region in new])
            merged += new
            refusals += refused
            _check_disjoint(merged)
        for kind in kinds:
            merged, refused = kind.merge(context, merged)
            refusals += refused
        regions += sorted(merged, key=lambda r: context.order[r.nodes[0]])
    return FusionPlan(tuple(regions), tuple(refusals), shapes)


def _check_disjoint(regions: Sequence[Region]) -> None:
    """ValueError where two regions share a node: one of them would read a value that no node of the model makes."""
    owners: dict[ir.Node, Region] = {}
    for region in regions:
        for node in region.nodes:
            other = owners.setdefault(node, region)
            if other is not region:
                raise ValueError(
                    f"{node.op_type} `{node.name}` is in a region of the kind {other.kind.name} and in one of "
                    f"{region.kind.name}; a node belongs to one region"
                )
