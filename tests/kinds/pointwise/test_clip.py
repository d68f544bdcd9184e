"""A Clip without a bound takes the dtype's lowest or greatest number for it, so that no infinity passes."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

import onnxopt
from cases.convolution import Layer
from cases.models import fuse
from onnxopt.program.convolution import Convolution
from tests.support.fusing import cpu_kernels_forced


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
@pytest.mark.parametrize("bounds", [[], ["low"], ["", "high"]], ids=["none", "low", "high"])
def test_infinities_become_the_greatest_number(dtype: type[np.floating], bounds: list[str], tmp_path: Path) -> None:
    of = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = [helper.make_node("Clip", ["x", *bounds], ["y"]), helper.make_node("Mul", ["y", "zero"], ["z"])]
    infos = [helper.make_tensor_value_info(name, of, ["N"]) for name in "xyz"]
    constants = [numpy_helper.from_array(np.array(v, dtype), k) for k, v in {"low": -2, "high": 2, "zero": 0}.items()]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with cpu_kernels_forced():
        artifact = onnxopt.optimize(model, tmp_path / "a", archs=())
    assert all(kernel.cpu for kernel in artifact.manifest.kernels) and artifact.manifest.kernels
    feeds = {"x": np.array([np.inf, -np.inf, np.nan, 1, -3, 3, 0] * 5, dtype)}
    greatest = ml_dtypes.finfo(dtype).max
    low, high = -2 if "low" in bounds else -greatest, 2 if "high" in bounds else greatest
    session = artifact.session(providers=["CPUExecutionProvider"])
    y, z = session.run(None, feeds)
    np.testing.assert_array_equal(y, np.array([high, low, np.nan, 1, max(low, -3), min(high, 3), 0] * 5, dtype))
    np.testing.assert_array_equal(np.isnan(z), np.isnan(feeds["x"]))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_clip_from_0_alone_is_no_relu(dtype: str) -> None:
    """Relu passes positive infinity on; Clip from 0 does not."""
    model = Layer(c=64, k=128, activation="clip", dtype=dtype).model()
    (clip,) = (n for n in model.graph.node if n.op_type == "Clip")
    del clip.input[2]
    meanings = [r.meaning for r in fuse(ir.from_proto(model)).regions if isinstance(r.meaning, Convolution)]
    found = [(meaning.activation, meaning.activation_value) for meaning in meanings]
    assert found == [("clip", 65504.0) if dtype == "float16" else ("none", 0.0)]
