"""Sessions of what ONNX Runtime's own optimizer spoils."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxopt.runtime import sessions


@pytest.mark.parametrize("weight", ["w", "numbers"])
def test_float8_codes_in_front_of_a_product_with_a_bias(weight: str, tmp_path: Path) -> None:
    """Its Gemm needs a Reshape, which it moves to the codes, and it has none for those."""
    rng = np.random.default_rng(0)
    constants = {
        "s": np.float32(0.05), "z": np.zeros((), ml_dtypes.float8_e4m3fn), "b": rng.standard_normal(16),
        "w": rng.standard_normal((16, 16)), "codes": rng.standard_normal((16, 16)).astype(ml_dtypes.float8_e4m3fn),
    }  # fmt: skip
    tensors = [
        numpy_helper.from_array(np.asarray(x, np.float32) if np.asarray(x).dtype == np.float64 else np.asarray(x), name)
        for name, x in constants.items()
    ]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["a"]),
        helper.make_node("DequantizeLinear", ["codes", "s", "z"], ["numbers"]),
        helper.make_node("MatMul", ["a", weight], ["m"]),
        helper.make_node("Add", ["m", "b"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 8, 16]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(Exception, match=r"float8|Reshape"):
        ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    x = rng.standard_normal((2, 8, 16)).astype(np.float32)
    (y,) = sessions.run(sessions.open_session(tmp_path / "m.onnx"), {"x": x}).values()
    rounded = (x / np.float32(0.05)).astype(ml_dtypes.float8_e4m3fn).astype(np.float32) * np.float32(0.05)
    numbers = constants["codes"].astype(np.float32) * np.float32(0.05) if weight == "numbers" else constants["w"]
    np.testing.assert_allclose(y, rounded @ numbers + constants["b"], rtol=1e-4, atol=1e-4)
