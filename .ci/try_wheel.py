"""Optimizes, verifies and runs a small model with the onnxopt that is installed, as someone without a compiler would.

`make try-wheel` runs it in a new virtual environment of the wheel and what the wheel asks for, the tests in theirs with
an unpacked wheel. It fails where a compiler is on PATH or where onnxopt is a source tree.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx.parser
import onnxruntime as ort

import onnxopt

MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
chain (float[batch, 64] x) => (float[batch, 64] y) {
  a = Tanh(x)
  b = Sigmoid(a)
  c = Mul(a, b)
  y = Add(c, x)
}
"""


def calls_of_kernels(artifact: Path) -> int:
    """How many nodes of a session with the library are calls of onnxopt's functions."""
    options = ort.SessionOptions()
    options.register_custom_ops_library(str(artifact / "lib" / "libonnxopt_ops.so"))
    options.optimized_model_filepath = str(artifact.parent / "run.onnx")
    options.log_severity_level = 3  # it warns that such a file belongs to this machine
    ort.InferenceSession(artifact / "model.onnx", options, providers=["CPUExecutionProvider"])
    nodes = onnx.load(options.optimized_model_filepath).graph.node
    return sum(node.domain.startswith("onnxopt") for node in nodes)


def main() -> None:
    if (Path(onnxopt.__file__).parents[1] / "setup.py").exists():
        sys.exit(f"{onnxopt.__file__} is a source tree, and not what a wheel installs")
    if found := [name for name in ("g++", "c++", "gcc", "clang", "nvcc") if shutil.which(name)]:
        sys.exit(f"{found[0]} is on PATH, so this would not tell whether the wheel works without a compiler")
    with tempfile.TemporaryDirectory() as folder:
        model, artifact = Path(folder) / "model.onnx", Path(folder) / "artifact"
        onnx.save(onnx.parser.parse_model(MODEL), model)
        onnxopt.optimize(model, artifact, archs=["sm_90"], verify=False)
        if (status := onnxopt.verify(model, artifact, seconds=0.1).status) != "passed":
            sys.exit(f"verification {status}")
        x = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)
        plain = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
        np.testing.assert_allclose(onnxopt.load(artifact).run(None, {"x": x})[0], plain.run(None, {"x": x})[0], 1e-5)
        if not calls_of_kernels(artifact):
            sys.exit("the library runs none of the fused functions")
    print(f"onnxopt {onnxopt.__version__}: a model was optimized, verified and run")


if __name__ == "__main__":
    main()
