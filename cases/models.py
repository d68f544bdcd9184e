"""What the cases of all kinds share: dtypes, nodes as text, and models after fusing."""

from __future__ import annotations

import dataclasses
import pathlib
import tempfile
import types
from collections.abc import Collection, Mapping

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper
from onnx_ir.passes.common import IdentityEliminationPass

from onnxopt.fusion import entry_points
from onnxopt.fusion import fuse as fusing
from onnxopt.fusion import outline as outlining
from onnxopt.fusion.lower import lower
from onnxopt.fusion.region import FusionPlan, Kernel
from onnxopt.graph import normalize, rewrite
from onnxopt.graph.passes.no_op_rules import no_op_rules
from onnxopt.kinds import KINDS

OPSET = 22


def numpy_dtype(dtype: str) -> np.dtype:
    """NumPy's dtype of a name, with those of ml_dtypes."""
    others = {"bfloat16": ml_dtypes.bfloat16, "float8e4m3fn": ml_dtypes.float8_e4m3fn}
    return np.dtype(others.get(dtype, dtype))


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """float32 values that the dtype holds exactly."""
    return values.astype(numpy_dtype(dtype)).astype(np.float32)


def tensor(name: str, values: np.ndarray, dtype: str) -> onnx.TensorProto:
    """An initializer of these values, rounded to the dtype."""
    stored = np.ascontiguousarray(values.astype(numpy_dtype(dtype)))
    if dtype != "bfloat16":
        return numpy_helper.from_array(stored, name)
    return helper.make_tensor(name, onnx.TensorProto.BFLOAT16, values.shape, stored.tobytes(), raw=True)


def text_dtype(dtype: str) -> str:
    """A dtype's name in onnx's text syntax."""
    return {"float32": "float", "float64": "double"}.get(dtype, dtype)


def parse_nodes(text: str) -> list[onnx.NodeProto]:
    """The nodes of `y = Op(a, b)  z = ...`, each named as its result."""
    parsed = []
    for line in (part for part in text.split("  ") if part):
        result, call = line.split(" = ")
        op, operands = call.rstrip(")").split("(")
        parsed.append(helper.make_node(op, operands.split(", "), [result], name=result))
    return parsed


def graph(
    inputs: str, outputs: str, body: str, *, constants: str = "", opset: int = 20, contrib: bool = False
) -> ir.Model:
    """A model from the parts of onnx's text syntax. Nodes are named after their first outputs. contrib: imports the
    operators of ONNX Runtime too."""
    more = ', "com.microsoft" : 1' if contrib else ""
    header = f'<ir_version: 9, opset_import: ["" : {opset}{more}]>'
    model = ir.from_onnx_text(f"{header} g ({inputs}) => ({outputs}) <{constants}> {{ {body} }}")
    for owner in model.graphs():
        for node in owner:
            node.name = node.outputs[0].name
    return model


def laid_out(
    model: onnx.ModelProto, *, gpu: bool = False, usual: Mapping[str, int] = types.MappingProxyType({})
) -> ir.Model:
    """The model in the form that regions are searched in, without Transposes beside others that undo them. gpu: as for
    GPUs. usual: sizes that most runs have."""
    normalized = normalize.normalize(ir.from_proto(model)).model
    with tempfile.TemporaryDirectory() as folder:
        rewrite.rewrite(normalized, pathlib.Path(folder), gpu=gpu, usual=usual)
    no_op_rules()(normalized)
    IdentityEliminationPass()(normalized)
    return normalized


def fuse(
    model: ir.Model, spilled: Collection[frozenset[str]] = (), usual: Mapping[str, int] = types.MappingProxyType({})
) -> FusionPlan:
    """The regions of a model, lowered, and the refusals."""
    return lower(fusing.fuse(model, KINDS, spilled, usual=usual), model.opset_imports)


def outline(model: ir.Model, plan: FusionPlan) -> tuple[Kernel, ...]:
    """Replace the regions by calls of their functions, in place; returns the kernels of the functions."""
    functions = outlining.functions(plan, model.opset_imports)
    kernels = entry_points.choose(functions, model.opset_imports, plan.shapes)
    outlining.replace(model, functions)
    return kernels


@dataclasses.dataclass(frozen=True)
class Fused:
    """A model after fusing and outlining. original: before."""

    plan: FusionPlan
    kernels: tuple[Kernel, ...]
    original: onnx.ModelProto
    optimized: onnx.ModelProto


def fused_model(original: onnx.ModelProto, model: ir.Model | None = None) -> Fused:
    """A model, fused. model: what is fused in its place, which changes."""
    model = model or ir.serde.deserialize_model(original)
    plan = fuse(model)
    kernels = outline(model, plan)
    return Fused(plan, kernels, original, ir.to_proto(model))
