"""Models with rowwise regions, optimized in memory and run with the library's CPU kernel."""

from __future__ import annotations

import dataclasses
import pathlib

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from cases.models import fuse, outline
from onnxopt.codegen import kernels_json
from onnxopt.fusion.region import FusionPlan, Kernel
from onnxopt.kinds.rowwise.kind import ROWWISE
from tests.support import graphs
from tests.support.custom_ops.custom_ops_artifact import copy_library


@dataclasses.dataclass
class Fused:
    """A model after fusing and outlining. original: bytes of the model before; optimized: after."""

    plan: FusionPlan
    kernels: tuple[Kernel, ...]
    original: bytes
    optimized: bytes

    @property
    def rowwise(self) -> list[str]:
        """The operators of every rowwise region."""
        return [" ".join(n for n in k.ops) for k in self.kernels if k.kind is ROWWISE]


def fused(
    inputs: str, outputs: str, body: str, *, constants: str = "", opset: int = 21, contrib: bool = False
) -> Fused:
    """The model of graphs.graph, fused."""
    model = graphs.graph(inputs, outputs, body, constants=constants, opset=opset, contrib=contrib)
    original = ir.to_proto(model).SerializeToString()
    plan = fuse(model)
    kernels = tuple(dataclasses.replace(k, cpu=True) for k in outline(model, plan))
    return Fused(plan, kernels, original, ir.to_proto(model).SerializeToString())


def session(model: bytes, library: pathlib.Path | None = None, threads: int = 2) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if library is not None:
        options.register_custom_ops_library(str(library))
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def with_library(found: Fused, folder: pathlib.Path, threads: int = 2) -> ort.InferenceSession:
    """A session that runs the fused functions with the CPU kernel."""
    library = copy_library(folder)
    (folder / "kernels.json").write_text(kernels_json.to_json(found.kernels, None))
    return session(found.optimized, library, threads)


def difference(found: np.ndarray, expected: np.ndarray, relative: float, absolute: float) -> float:
    """The largest difference as a multiple of absolute + relative * |expected|; NaN and infinities must agree."""
    a, b = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    if a.shape != b.shape or not np.array_equal(np.isnan(a), np.isnan(b)):
        return np.inf
    special = ~np.isfinite(b)
    if not np.array_equal(a[special], b[special], equal_nan=True):
        return np.inf
    error = np.abs(a - b)[~special]
    return float((error / (absolute + relative * np.abs(b[~special]))).max(initial=0.0))
