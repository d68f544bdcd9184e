"""Products of few rows of 16-bit weights on the GPU, with infinities among them, against float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxopt.pipeline import flow
from onnxopt.runtime import sessions
from tests.conftest import device_arch
from tests.kinds.gemm.test_products_of_float8 import Layer, model

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("library")]

_SIZES = ((96, 64), (2048, 5632), (4224, 520), (11264, 2048), (33, 1000))  # columns, depth


def test_every_number_of_rows(tmp_path: Path) -> None:
    """Rows are a dim of the graph, so one session takes the entry points of few rows and cuBLASLt."""
    rng, nodes, constants, inputs, outputs = np.random.default_rng(0), [], [], [], []
    weights = {}
    for k, (columns, depth) in enumerate(_SIZES):
        weights[k] = (rng.standard_normal((columns, depth)) / depth**0.5).astype(np.float16)
        weights[k][5, 7] = np.inf
        constants += [numpy_helper.from_array(weights[k], f"w{k}"), numpy_helper.from_array(weights[k][:, 0], f"b{k}")]
        nodes.append(helper.make_node("Gemm", [f"x{k}", f"w{k}", f"b{k}"], [f"y{k}"], transB=1))
        inputs.append(helper.make_tensor_value_info(f"x{k}", TensorProto.FLOAT16, ["rows", depth]))
        outputs.append(helper.make_tensor_value_info(f"y{k}", TensorProto.FLOAT16, None))
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), tmp_path / "m.onnx")
    made = flow.optimize(tmp_path / "m.onnx", tmp_path / "out", archs=(device_arch(),), verify=False)
    assert all(len(kernel.variants) == 4 for kernel in made.manifest.kernels)
    session = made.session(providers=[sessions.CUDA])
    for rows in (1, 2, 3, 4, 5, 9):
        given = {f"x{k}": rng.standard_normal((rows, d)).astype(np.float16) for k, (_, d) in enumerate(_SIZES)}
        for k, found in enumerate(session.run(None, given)):
            wide = [x.astype(np.float64) for x in (given[f"x{k}"], weights[k])]
            expected = wide[0] @ wide[1].T + wide[1][:, 0]
            assert np.isinf(expected[:, 5]).all()
            np.testing.assert_allclose(found.astype(np.float64), expected, rtol=1e-3, atol=4e-3, err_msg=f"{rows} {k}")


@pytest.mark.parametrize("rows", [1, 4])
def test_codes_of_8_bits(rows: int, tmp_path: Path) -> None:
    """Two and eight rows, against ONNX Runtime's own Q and DQ on the CPU, whose norm rounds some codes another way."""
    if int(device_arch().removeprefix("sm_")) < 89:
        pytest.skip("an artifact for this GPU alone multiplies codes of 8 bits as float16")
    proto = model(Layer(rows=rows, columns=2064, depth=1040))
    onnx.save(proto, tmp_path / "m.onnx")
    made = flow.optimize(tmp_path / "m.onnx", tmp_path / "out", archs=(device_arch(),), verify=False)
    assert any("products16" in name for kernel in made.manifest.kernels for name in kernel.variants)
    x = np.random.default_rng(rows).standard_normal((2, rows, 1040)).astype(np.float16)
    options = ort.SessionOptions()
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    (expected,) = ort.InferenceSession(proto.SerializeToString(), options).run(None, {"x": x})
    (found,) = made.session(providers=[sessions.CUDA]).run(None, {"x": x})
    bound = 1e-2 * np.abs(expected.astype(np.float64)).max()
    np.testing.assert_allclose(found.astype(np.float64), expected.astype(np.float64), atol=bound)
