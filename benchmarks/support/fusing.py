"""From a normalized model to kernels, as the pipeline takes the steps, for benchmarks that need one of them."""

from __future__ import annotations

import onnx_ir as ir

from onnxopt.fusion import entry_points, outline
from onnxopt.fusion import fuse as fusing
from onnxopt.fusion.lower import lower
from onnxopt.fusion.region import FusionPlan, Kernel
from onnxopt.kinds import KINDS


def fuse(model: ir.Model) -> FusionPlan:
    """The regions of a model, lowered, and the refusals."""
    return lower(fusing.fuse(model, KINDS), model.opset_imports)


def outlined(model: ir.Model, plan: FusionPlan) -> tuple[Kernel, ...]:
    """Replace the regions by calls of their functions, in place; returns the kernels of the functions."""
    functions = outline.functions(plan, model.opset_imports)
    kernels = entry_points.choose(functions, model.opset_imports, plan.shapes)
    outline.replace(model, functions)
    return kernels
