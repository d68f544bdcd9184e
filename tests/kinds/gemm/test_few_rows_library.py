"""Products of few rows of 16-bit and 8-bit floats, chosen and launched by the library, device code run by g++: float64.

A stand-in for cuBLASLt is there, which multiplies nothing: only products of few rows have results.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from cases.models import fuse, outline
from onnxopt.fusion.region import Kernel
from tests.kinds.gemm.test_products_of_float8 import Layer, fused
from tests.kinds.gemm.test_products_of_float8 import model as float8_model
from tests.support.emulation import emulated_library

pytestmark = pytest.mark.usefixtures("library")
_STAND_IN = Path(__file__).parents[2] / "fuzz" / "library" / "stand_in_cublaslt.cc"


def test_entry_points_by_columns(tmp_path: Path) -> None:
    """Columns that fill few blocks and many, by one kernel; a's rows are a dim of the graph."""
    rng, sizes, depth = np.random.default_rng(2), {"few": 40, "many": 4300}, 72
    weights = {n: (rng.standard_normal((c, depth)) / 8).astype(np.float16) for n, c in sizes.items()}
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", n, f"b_{n}"], [f"y_{n}"], transB=1) for n in sizes], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT16, ["rows", depth])],
        [helper.make_tensor_value_info(f"y_{n}", TensorProto.FLOAT16, None) for n in sizes],
        [numpy_helper.from_array(a, n) for name, w in weights.items() for n, a in ((name, w), (f"b_{name}", w[:, 0]))],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    model = ir.serde.deserialize_model(proto)
    kernels = outline(model, fuse(model))
    feeds = [{"x": rng.standard_normal((rows, depth)).astype(np.float16)} for rows in (1, 3)]
    results, launched = _emulated(tmp_path, model, kernels, feeds)
    for given, found in zip(feeds, results, strict=True):
        for name, weight in weights.items():
            expected = given["x"].astype(np.float64) @ weight.T.astype(np.float64) + weight[:, 0]
            np.testing.assert_allclose(found[f"y_{name}"].astype(np.float64), expected, rtol=1e-3, atol=1e-3)
    assert launched == {"products16", "products8"}


def test_an_exact_gelu(tmp_path: Path) -> None:
    """Few rows have it in their kernel; of more rows it follows cuBLASLt's product."""
    rng, depth, columns = np.random.default_rng(6), 72, 40
    weight, bias = (rng.standard_normal((columns, depth)) / 8).astype(np.float16), np.linspace(-3, 3, columns)
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w", "b"], ["h"], transB=1), helper.make_node("Gelu", ["h"], ["g"]),
         helper.make_node("MatMul", ["g", "v"], ["y"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT16, ["rows", depth])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT16, None)],
        [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(bias.astype(np.float16), "b"),
         numpy_helper.from_array(np.eye(columns, dtype=np.float16), "v")],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    model = ir.serde.deserialize_model(proto)
    kernels = outline(model, fuse(model))
    feeds = [{"x": rng.standard_normal((rows, depth)).astype(np.float16)} for rows in (3, 9)]
    results, launched = _emulated(tmp_path, model, kernels, feeds)
    h = feeds[0]["x"].astype(np.float64) @ weight.T.astype(np.float64) + bias.astype(np.float16)
    expected = 0.5 * h * np.vectorize(math.erfc)(-h / math.sqrt(2))
    np.testing.assert_allclose(results[0]["y"].astype(np.float64), expected, rtol=2e-3, atol=1e-3)
    assert launched == {"products16", "activation"}


@pytest.mark.parametrize("layer", [Layer(rows=4), Layer("float32", rows=1, columns=4240, residual=True)], ids=repr)
def test_codes_of_8_bits(layer: Layer, tmp_path: Path) -> None:
    """Eight rows and two of e4m3 codes, against ONNX Runtime's own Q and DQ in float32."""
    assert isinstance(layer.rows, int)
    proto = float8_model(layer)
    model = ir.serde.deserialize_model(proto)
    kernels = fused(model)
    rng, dims = np.random.default_rng(4), {"x": layer.depth, "r": layer.columns}
    given = {
        i.name: rng.standard_normal((2, layer.rows, dims[i.name])).astype(layer.storage) for i in proto.graph.input
    }
    options = ort.SessionOptions()
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    (expected,) = ort.InferenceSession(proto.SerializeToString(), options).run(None, given)
    ((found,), launched) = _emulated(tmp_path, model, kernels, [given])
    bound = 2e-3 * np.abs(expected.astype(np.float64)).max()
    np.testing.assert_allclose(found["y0"].astype(np.float64), expected.astype(np.float64), atol=bound)
    assert {s for s in launched if s.startswith("products")} == {"products16" if layer.columns < 4224 else "products8"}
    assert "widen" not in launched


def _emulated(
    folder: Path, model: ir.Model, kernels: Sequence[Kernel], feeds: list[dict[str, np.ndarray]]
) -> tuple[list[dict[str, np.ndarray]], set[str]]:
    """The results, and the entry points that were launched, without names."""
    libraries = [emulated_library.stand_in(_STAND_IN, "libcublasLt.so.13")]
    results, launched = emulated_library.run(
        folder / "run", ir.serde.serialize_model(model), kernels, feeds, libraries=libraries
    )
    return results, {symbol.rsplit("_", 1)[1] for symbol in launched}
