"""The examples do what the README says: they run an artifact with the library and without it, and the outputs agree."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*command: str | Path) -> str:
    result = subprocess.run([str(c) for c in command], capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def optimized(tmp_path_factory: pytest.TempPathFactory, library: Path) -> Path:
    """An artifact of y = gelu(x + bias) * x with dynamic batch, made by the command."""
    folder = tmp_path_factory.mktemp("example")
    bias = onnx.numpy_helper.from_array(np.linspace(-1, 1, 96, dtype=np.float32), "bias")
    nodes = [
        onnx.helper.make_node("Add", ["x", "bias"], ["sum"]),
        onnx.helper.make_node("Gelu", ["sum"], ["gelu"]),
        onnx.helper.make_node("Mul", ["gelu", "x"], ["y"]),
    ]
    values = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["batch", 96]) for n in ("x", "y")]
    graph = onnx.helper.make_graph(nodes, "example", values[:1], values[1:], [bias])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=9)
    onnx.save(model, folder / "model.onnx")
    command = (sys.executable, "-m", "onnxopt", "optimize", folder / "model.onnx", "-o", folder / "artifact")
    run(*command, "--arch", "sm_90", "--no-verify")
    return folder / "artifact"


def differences(output: str) -> list[float]:
    return [float(number) for number in re.findall(r"max difference (\S+)", output)]


def test_python(optimized: Path) -> None:
    found = differences(run(sys.executable, ROOT / "examples/python/run.py", optimized, "x=64x96"))
    assert len(found) == 2
    assert max(found) < 1e-5


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory, library: Path) -> Path:
    path = tmp_path_factory.mktemp("cpp") / "run"
    run(ROOT / "examples/cpp/build", sys.executable, path)
    return path


@pytest.mark.models
def test_from_torch(tmp_path: Path, library: Path) -> None:
    pytest.importorskip("torch")
    output = run(sys.executable, "examples/python/from_torch.py", tmp_path / "artifact")
    assert float(output.rsplit(":", 1)[1]) < 1e-4


def test_cpp(optimized: Path, program: Path) -> None:
    output = run(program, optimized, "x=64x96")
    assert differences(output)[0] < 1e-5
    assert "y [64x96]" in output
    assert re.search(r"with the library +\d", output)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "usage: run ARTIFACT"),
        (("no-such-folder",), "no-such-folder"),
        (("{artifact}", "x64x96"), "expected INPUT=DIMS"),
        (("{artifact}", "x=64x95"), "95"),
    ],
)
def test_cpp_says_what_is_wrong(optimized: Path, program: Path, arguments: tuple[str, ...], message: str) -> None:
    command = [str(program), *(a.format(artifact=optimized) for a in arguments)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode in (1, 2)
    assert message in result.stderr
