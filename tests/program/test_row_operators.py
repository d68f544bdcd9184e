"""Every row of the table of rowwise operators, on the CPU kernel, against onnx's reference evaluator in float64."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Set
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from cases.models import fuse, outline
from onnxopt.codegen import generate, nvrtc
from onnxopt.program.dtypes import DTYPES, to_ir
from onnxopt.program.operators.row_operators import ROW_OPERATORS, RowOperator
from onnxopt.runtime import sessions
from tests.support.kinds import rowwise_models

pytestmark = pytest.mark.usefixtures("library")

_MATRICES = ((5, 67), (2, 9000))
_IMAGES = ((2, 8, 5, 7),)
_IN_FLOAT32 = {"LayerNormalization", "RMSNormalization", "InstanceNormalization", "GroupNormalization"}  # so the oracle
_EPSILON = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}


@dataclasses.dataclass(frozen=True)
class Use:
    """One operator with one attribute set on one shape. axes: the second input of reductions."""

    row: RowOperator
    attributes: Mapping[str, Any]
    dtype: str
    shape: tuple[int, ...]
    axes: tuple[int, ...] | None

    @property
    def opset(self) -> int:
        return self.row.before - 1 if self.row.before else 23

    def parameter_shape(self) -> tuple[int, ...]:
        if self.row.channels:
            return (self.shape[1],)
        return self.shape[-1:]

    def model(self, dtype: str) -> onnx.ModelProto:
        element = int(to_ir(dtype))
        inputs = [helper.make_tensor_value_info("x", element, self.shape)]
        inputs += [
            helper.make_tensor_value_info(f"p{k}", element, self.parameter_shape()) for k in range(1, self.row.operands)
        ]
        names = [i.name for i in inputs] + (["axes"] if self.axes is not None else [])
        node = helper.make_node(self.row.name, names, ["y"], name="node", **self.attributes)
        result = int(self.row.result([to_ir(dtype)] * self.row.operands, self.attributes))
        graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", result, None)])
        if self.axes is not None:
            graph.initializer.append(helper.make_tensor("axes", onnx.TensorProto.INT64, [len(self.axes)], self.axes))
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=9)

    def feeds(self) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(len(self.shape) + sum(self.shape))
        low, high = self.row.samples
        numpy_dtype = ml_dtypes.bfloat16 if self.dtype == "bfloat16" else np.dtype(self.dtype)
        shapes = {"x": self.shape} | {f"p{k}": self.parameter_shape() for k in range(1, self.row.operands)}
        if DTYPES[self.dtype].kind == "float":
            return {k: rng.uniform(low, high, s).astype(numpy_dtype) for k, s in shapes.items()}
        return {k: rng.integers(0, 50, s).astype(numpy_dtype) for k, s in shapes.items()}


_DTYPES = frozenset({"float16", "bfloat16", "float32", "float64", "int32", "uint8"})


def _uses(dtypes: Set[str] = _DTYPES) -> Iterator[Use]:
    for row in (r for rows in ROW_OPERATORS.values() for r in rows if r.alone):
        spatial = row.axes in ("spatial", "groups")
        for attributes in row.attributes:
            attributes = {**attributes, "num_groups": 4} if row.axes == "groups" else attributes
            told = "axes" in attributes
            for dtype in sorted(row.dtypes & dtypes):
                for shape in _IMAGES if spatial else _MATRICES[:1] if row.name == "ReduceProd" else _MATRICES:
                    yield Use(row, attributes, dtype, shape, (-1,) if row.axes == "axes" and not told else None)
                if row.axes == "axes" and not told:
                    yield Use(row, attributes, dtype, (3, 40, 6), (1,))
                    yield Use(row, attributes, dtype, (4, 5, 6), (0, 1))


def _name(use: Use) -> str:
    extra = "".join(f"-{k}{v}" for k, v in use.attributes.items())
    return f"{use.row.name}{use.opset}-{use.dtype}-{'x'.join(map(str, use.shape))}{extra}-{use.axes}"


def run(use: Use, folder) -> tuple[np.ndarray, np.ndarray]:
    """What the CPU kernel computes, and the reference in float64 (integers in their own dtype)."""
    proto = use.model(use.dtype)
    model = ir.from_proto(proto)
    plan = fuse(model)
    assert [r.kind.name for r in plan.regions] == ["rowwise"], [r.reason for r in plan.refusals]
    kernels = tuple(dataclasses.replace(k, cpu=True) for k in outline(model, plan))
    made = rowwise_models.Fused(plan, kernels, b"", ir.to_proto(model).SerializeToString())
    feeds = use.feeds()
    found = sessions.run(rowwise_models.with_library(made, folder), feeds)["y"]
    is_float = DTYPES[use.dtype].kind == "float"
    wide = {k: v.astype(np.float64) if is_float else v for k, v in feeds.items()}
    if use.row.name == "MeanVarianceNormalization":  # the reference has its function's constants in float32 alone
        x, axes = wide["x"], use.attributes["axes"]
        return found, (x - x.mean(axes, keepdims=True)) / (x.std(axes, keepdims=True) + 1e-9)
    (expected,) = ReferenceEvaluator(use.model("float64" if is_float else use.dtype)).run(None, wide)
    return found, expected


@pytest.mark.parametrize("use", [pytest.param(u, id=_name(u)) for u in _uses()])
def test_operator(use: Use, tmp_path) -> None:
    found, expected = run(use, tmp_path)
    if found.dtype.kind in "iu":
        np.testing.assert_array_equal(found, expected)
        return
    epsilon = _EPSILON[use.dtype]
    step = use.row.ulp * (max(epsilon, _EPSILON["float32"]) if use.row.name in _IN_FLOAT32 else epsilon)
    scale = float(np.abs(expected).max(initial=1.0))
    assert rowwise_models.difference(found, expected, step, step * min(scale, 1.0)) <= 1


def test_cuda_text_of_every_operator_compiles(tmp_path) -> None:
    """In the widest and the narrowest dtype of each, as partial results are aligned to what they hold."""
    kernels = {}
    for dtypes in ({"float64", "int64"}, {"float16", "uint8"}):
        chosen = {u.row.name: u for u in _uses(dtypes)}
        for use in chosen.values():
            model = ir.from_proto(use.model(use.dtype))
            for kernel in outline(model, fuse(model)):
                kernels[kernel.name] = dataclasses.replace(kernel, variants=kernel.variants[:1])
    assert len(kernels) > 40
    assert nvrtc.compile_cuda(generate.generate(tuple(kernels.values())), ["sm_75"], tmp_path)
