"""Products of few rows of 16-bit weights, chosen and launched by the library, the device code run by g++: float64.

A stand-in for cuBLASLt is there, which multiplies nothing: only products of few rows have results.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.support import emulated_library
from tests.support.fusing import fuse, outline

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
    made = tmp_path / "stand_in" / "libcublasLt.so.13"
    made.parent.mkdir()
    subprocess.run(["g++", "-shared", "-fPIC", "-O1", "-o", made, _STAND_IN], check=True)
    feeds = [{"x": rng.standard_normal((rows, depth)).astype(np.float16)} for rows in (1, 3)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LD_LIBRARY_PATH", str(made.parent))
        results, launched = emulated_library.run(tmp_path / "run", ir.serde.serialize_model(model), kernels, feeds)
    for given, found in zip(feeds, results, strict=True):
        for name, weight in weights.items():
            expected = given["x"].astype(np.float64) @ weight.T.astype(np.float64) + weight[:, 0]
            np.testing.assert_allclose(found[f"y_{name}"].astype(np.float64), expected, rtol=1e-3, atol=1e-3)
    assert {symbol.rsplit("_", 1)[1] for symbol in launched} == {"products16", "products8"}
