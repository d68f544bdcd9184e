"""Cases whose model is onnx's text, beside what ONNX Runtime gives for it in float32."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx import helper

from cases.models import fused_model, graph
from cases.table import Row, Table
from onnxopt.runtime import sessions

_LIMITS = {"float16": 2.0**-9, "bfloat16": 2.0**-6}  # relative to 1 + the magnitude
_LIMIT = 2e-5


@dataclasses.dataclass(frozen=True)
class Case:
    """A graph, and the shapes of its inputs at a call. limit: of errors, relative to 1 + the magnitude; 0: by dtype."""

    inputs: str
    outputs: str
    body: str
    shapes: tuple[tuple[int, ...], ...]
    constants: str = ""
    opset: int = 21
    limit: float = 0.0

    def at(self, *shapes: tuple[int, ...]) -> Case:
        """The same graph at other shapes."""
        return dataclasses.replace(self, shapes=shapes)

    def model(self, dtype: str = "") -> onnx.ModelProto:
        """dtype: of what is float16 in inputs, outputs and constants, as text."""
        parts = [self.inputs, self.outputs, self.constants]
        inputs, outputs, constants = (part.replace("float16", dtype) if dtype else part for part in parts)
        return ir.to_proto(graph(inputs, outputs, self.body, constants=constants, opset=self.opset))

    def feeds(self, seed: int = 0) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(seed)
        inputs = self.model().graph.input
        return {
            value.name: _drawn(rng, shape, value.type.tensor_type.elem_type)
            for value, shape in zip(inputs, self.shapes, strict=True)
        }

    def expected(self, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """What ONNX Runtime's CPU provider gives without optimizations, float16 as float32."""
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        model = self.model("float")
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        widened = {k: v.astype(np.float32) if v.dtype == np.float16 else v for k, v in feeds.items()}
        return sessions.run(session, widened)


def _drawn(rng: np.random.Generator, shape: tuple[int, ...], element: int) -> np.ndarray:
    dtype = helper.tensor_dtype_to_np_dtype(element)
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(max(info.min, -100), min(info.max, 100), shape, dtype)
    return rng.standard_normal(shape).astype(dtype)


def error(case: Case, _: str, found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> float:
    """The largest error of any output as a multiple of the limit; integers must agree."""
    errors = [0.0]
    for name, right in expected.items():
        limit = case.limit or _LIMITS.get(str(found[name].dtype), _LIMIT) if right.dtype.kind == "f" else 1e-9
        wide, right = (np.asarray(x).astype(np.float64) for x in (found[name], right))
        if wide.shape != right.shape or not np.array_equal(np.isnan(wide), np.isnan(right)):
            return np.inf
        off = np.abs(wide - right) / (limit * (1 + np.abs(right)))
        errors.append(float(np.nan_to_num(off[wide != right], posinf=np.inf).max(initial=0.0)))
    return max(errors)


def table(kind: str, cases: Mapping[str, tuple[Case, ...]]) -> Table:
    """Of graphs, each at several shapes, which all are damaged too."""
    rows = tuple(Row(name, of) for name, of in cases.items())
    return Table(kind, rows, lambda case: fused_model(case.model()), error, emulated="", damaged=cases)
