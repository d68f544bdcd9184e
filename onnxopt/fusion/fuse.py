"""Fuse: find the regions that one kernel each can run, kind by kind, and the reasons for what stays apart.

A node belongs to one region at most, and the graph whose vertices are the regions never gets a cycle (fusion/context.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import onnx_ir as ir

from onnxopt.fusion import eligibility
from onnxopt.fusion.context import Search
from onnxopt.fusion.regions import FusionPlan, Region
from onnxopt.graph.refusal import Refusal
from onnxopt.graph.shapes import shapes as shape_inference
from onnxopt.kinds.attention import token_attention
from onnxopt.kinds.gemm import find as gemm_regions
from onnxopt.kinds.pointwise import find as pointwise_regions
from onnxopt.kinds.rowwise import find as rowwise_regions
from onnxopt.kinds.rowwise import join
from onnxopt.kinds.scan import find as scan_regions

# In this order: what a kind takes, those after it leave alone. Attention takes operators that no other kind does, with
# the nodes that tell their lengths. Rows come before products: a bias or a residual costs a
# norm's kernel less than cuBLASLt's epilogue (docs/notes.md), and what leads from a reduction to a scan costs nothing
# behind the reduction. Pointwise regions take what is left over.
FINDERS: tuple[Callable[[Search], tuple[list[Region], list[Refusal]]], ...] = (
    token_attention.find,
    rowwise_regions.find,
    scan_regions.find,
    gemm_regions.find,
    pointwise_regions.find,
)


def fuse(model: ir.Model, spilled: Collection[frozenset[str]] = ()) -> FusionPlan:
    """Regions of all graphs of a model, control-flow bodies included, and the refusals. The model is not changed.

    spilled: names of the nodes of regions whose kernels were found to spill registers: no region has most of one.
    """
    shapes = shape_inference.infer(model)
    host = eligibility.host_values(model.graphs(), shapes)
    regions: list[Region] = []
    refusals: list[Refusal] = []
    for graph in model.graphs():
        search = Search(graph, model.opset_imports, shapes, host, spilled)
        found: list[Region] = []
        for find in FINDERS:
            new, refused = find(search)
            search.take(new)
            found += new
            refusals += refused
        found, refused = join.join(search, found)
        refusals += refused
        regions += sorted(found, key=lambda r: search.order[r.nodes[0]])
    return FusionPlan(tuple(regions), tuple(refusals), shapes)
