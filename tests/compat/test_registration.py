"""What a session of each release runs where the library has CUDA ops: the functions' bodies, and CPU kernels that pay.

The schema of a custom op would hide the function of its name (custom_ops/registry/hidden_schema.h). No document of ONNX
Runtime promises that hiding the schema works, so every release is asked.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from tests.compat import RELEASES, CannotInstall, install
from tests.support.custom_ops import custom_ops_artifact as artifact
from tests.support.custom_ops import custom_ops_damage as damage
from tests.support.fakes import custom_ops_fake_driver as fake_driver

F = "float32"
PAYS, DOES_NOT = "Pays_0123abcd", "DoesNot_0123abcd"
_RUN = """
import sys
import numpy as np
import onnxruntime as ort
model, library, *levels = sys.argv[1:]
for level in levels:
    for inlining in "01":
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
        options.add_session_config_entry("session.disable_aot_function_inlining", inlining)
        options.register_custom_ops_library(library)
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        outputs = session.run(None, {"x": np.full((3,), 2, np.float32), "which": np.array(True)})
        print(ort.__version__, *(float(output[0]) for output in outputs))
"""


def _model() -> onnx.ModelProto:
    """Calls of both functions, whose bodies multiply by 10 where the kernels negate, also in the branch of an If."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(artifact.BARE, 1)]
    functions = []
    for name in (PAYS, DOES_NOT):
        body = [
            helper.make_node("Constant", [], ["ten"], value_float=10.0),
            helper.make_node("Mul", ["x0", "ten"], ["y0"]),
        ]
        functions.append(helper.make_function(artifact.BARE, name, ["x0"], ["y0"], body, opsets[:1]))

    def calls(*names: str) -> list[onnx.NodeProto]:
        return [
            helper.make_node(name, ["x"], [y], domain=artifact.BARE)
            for name, y in zip((PAYS, DOES_NOT), names, strict=True)
        ]

    def value(name: str, dtype: int = TensorProto.FLOAT, dims: object = ("n",)) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, dtype, dims)

    branches = {
        f"{branch}_branch": helper.make_graph(
            calls(f"{branch}_a", f"{branch}_b"), branch, [], [value(f"{branch}_a"), value(f"{branch}_b")]
        )
        for branch in ("then", "else")
    }
    nodes = [*calls("a", "b"), helper.make_node("If", ["which"], ["c", "d"], **branches)]
    inputs = [value("x"), value("which", TensorProto.BOOL, ())]
    graph = helper.make_graph(nodes, "g", inputs, [value(name) for name in "abcd"])
    return helper.make_model(graph, functions=functions, opset_imports=opsets, ir_version=8)


@pytest.mark.compat
@pytest.mark.usefixtures("library")
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler to build the stand-in driver with")
@pytest.mark.parametrize("release", RELEASES)
def test_cpu_sessions_beside_a_gpu(release: str, tmp_path: Path) -> None:
    try:
        path = install(release)
    except CannotInstall as error:
        pytest.skip(str(error))
    fatbin = fake_driver.fatbin((90, False))
    row = {"file": "kernels.fatbin", "sha256": hashlib.sha256(fatbin).hexdigest(), "bytes": len(fatbin)}
    program, variants = artifact.one_op("neg", (F,), F), [{**damage.VARIANT, "modes": "*"}]
    kernels = [artifact.kernel(program, name, cpu=name == PAYS, variants=variants) for name in (PAYS, DOES_NOT)]
    library = artifact.write(tmp_path, kernels, row)
    (tmp_path / "kernels.fatbin").write_bytes(fatbin)
    onnx.save(_model(), tmp_path / "model.onnx")
    driver = fake_driver.build()
    variables = {"LD_LIBRARY_PATH": str(driver), "FAKE_ARCH": "90", "PYTHONPATH": str(path)}
    command = [
        sys.executable,
        "-c",
        _RUN,
        str(tmp_path / "model.onnx"),
        str(library),
        "ORT_DISABLE_ALL",
        "ORT_ENABLE_ALL",
    ]
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{release} -2.0 20.0 -2.0 20.0"] * 4
