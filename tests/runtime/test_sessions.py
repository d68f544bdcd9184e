"""Sessions of what ONNX Runtime's own optimizer spoils."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxopt
from onnxopt.runtime import footprint, sessions
from tests.support import forks


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


@pytest.mark.usefixtures("library")
def test_a_product_of_halves_behind_a_transpose_does_not_end_the_process(tmp_path: Path) -> None:
    """ONNX Runtime's issue 28392: the first nodes of a TransformerEncoder of PyTorch. In a process of its own."""
    text = """
    <ir_version: 9, opset_import: ["" : 18]>
    g (float16[batch, 8, 16] x, float16[16] s, float16[16, 48] w) => (float16[8, batch, 48] y) {
      n = LayerNormalization <axis = -1> (x, s)
      t = Transpose <perm = [1, 0, 2]> (n)
      y = MatMul (t, w)
    }
    """
    model = onnx.parser.parse_model(text)
    for name, shape in {"s": (16,), "w": (16, 48)}.items():
        model.graph.initializer.append(numpy_helper.from_array(np.ones(shape, np.float16), name))
        model.graph.input.remove(next(i for i in model.graph.input if i.name == name))
    onnx.save(model, tmp_path / "m.onnx")
    paths = (tmp_path / "m.onnx", tmp_path / "a")
    assert forks.result(_optimized_and_timed, *paths, variables={}, libraries=()) == "passed"


def _optimized_and_timed(model: Path, output: Path) -> str:
    """The status of an artifact that opens and is timed."""
    made = onnxopt.optimize(model, output, archs=())
    made.session()
    with mock.patch.object(footprint, "measure", side_effect=sessions.RunError("switched off")):
        assert onnxopt.bench(made.path, iterations=1).ratio > 0
    assert made.manifest.verify is not None
    return made.manifest.verify.status
