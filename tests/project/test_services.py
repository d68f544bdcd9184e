"""The examples that serve: the HTTP service, the client of Triton, and the batch script, each run as a user would."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest

import onnxopt
from tests.support.small_models import CHAIN, HEADER, write

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory, library: Path) -> Path:
    """CHAIN with its bias and weight as initializers, so that x is the only input."""
    folder = tmp_path_factory.mktemp("services")
    model = onnx.parser.parse_model(HEADER + CHAIN)
    rng = np.random.default_rng(1)
    for name, shape in (("bias", (8,)), ("weight", (8, 8))):
        model.graph.initializer.append(onnx.numpy_helper.from_array(rng.standard_normal(shape).astype("f"), name))
    del model.graph.input[1:]
    onnx.save(model, folder / "chain.onnx")
    return onnxopt.optimize(folder / "chain.onnx", folder / "artifact", archs=()).path


@pytest.fixture(scope="module")
def plain(artifact: Path) -> ort.InferenceSession:
    """The artifact's model without the library: what the examples must agree with."""
    return ort.InferenceSession(artifact / "model.onnx", providers=["CPUExecutionProvider"])


def expected(plain: ort.InferenceSession, x: np.ndarray) -> np.ndarray:
    return np.asarray(plain.run(None, {"x": x})[0])


# --- fastapi/app.py and triton/client.py -----------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def service(artifact: Path) -> Iterator[str]:
    """HOST:PORT of the service, started by the command of its docstring."""
    for package in ("fastapi", "uvicorn", "prometheus_client", "tritonclient.http"):
        pytest.importorskip(package, reason=f"{package} is missing: pip install -e '.[examples]'")
    address = f"127.0.0.1:{free_port()}"
    command = ["uvicorn", "--app-dir", str(EXAMPLES / "fastapi"), "--factory", "app:create_app"]
    process = subprocess.Popen(
        [sys.executable, "-m", *command, "--port", address.rpartition(":")[2]],
        env={**os.environ, "ARTIFACT": str(artifact), "MODEL_NAME": "chain"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"http://{address}/v2/health/ready", timeout=5).close()
            break
        except OSError:
            time.sleep(0.1)
    else:
        process.kill()
        pytest.fail(f"the service did not start:\n{process.communicate()[0]}")
    yield address
    process.terminate()
    process.communicate(timeout=30)


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True)


def test_triton_client(service: str, plain: ort.InferenceSession) -> None:
    result = run(EXAMPLES / "triton/client.py", service, "chain", "x=3x8")
    assert result.returncode == 0, result.stderr
    x = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
    assert f"y: float32[3, 8], mean {expected(plain, x).mean():.6g}" in result.stdout


def test_triton_client_says_what_is_wrong(service: str) -> None:
    result = run(EXAMPLES / "triton/client.py", service, "other")
    assert result.returncode == 1
    assert "has no model other that is ready" in result.stderr
    result = run(EXAMPLES / "triton/client.py", service, "chain", "x=3x7")
    assert result.returncode == 1
    assert "dim 1 of input x is 8; the request has 7" in result.stderr
    result = run(EXAMPLES / "triton/client.py", f"127.0.0.1:{free_port()}", "chain")
    assert result.returncode == 1
    assert result.stderr.startswith("error: ")


# --- python/batch.py -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", ["4", "32"])
def test_batch(artifact: Path, plain: ort.InferenceSession, tmp_path: Path, batch: str) -> None:
    x = np.random.default_rng(0).standard_normal((11, 8)).astype(np.float32)
    np.savez(tmp_path / "in.npz", x=x)
    result = run(EXAMPLES / "python/batch.py", artifact, tmp_path / "in.npz", tmp_path / "out.npz", batch)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("11 samples in ")
    np.testing.assert_allclose(np.load(tmp_path / "out.npz")["y"], expected(plain, x), rtol=1e-5, atol=1e-6)


def test_batch_fills_a_fixed_batch_up(library: Path, tmp_path: Path) -> None:
    model = write(tmp_path / "m.onnx", "g (float[4, 2] x) => (float[4, 2] y) { a = Tanh(x) y = Mul(a, x) }")
    made = onnxopt.optimize(model, tmp_path / "artifact", archs=()).path
    x = np.arange(14, dtype=np.float32).reshape(7, 2)
    np.savez(tmp_path / "in.npz", x=x)
    result = run(EXAMPLES / "python/batch.py", made, tmp_path / "in.npz", tmp_path / "out.npz")
    assert result.returncode == 0, result.stderr
    np.testing.assert_allclose(np.load(tmp_path / "out.npz")["y"], np.tanh(x) * x, rtol=1e-5)


def test_batch_says_what_is_wrong(artifact: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", z=np.zeros((1, 8), np.float32))
    result = run(EXAMPLES / "python/batch.py", artifact, tmp_path / "in.npz", tmp_path / "out.npz")
    assert result.returncode == 1
    assert result.stderr == "error: the data lacks x; it has z\n"  # nothing of a GPU that is not there
