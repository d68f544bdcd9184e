"""The examples that serve: the HTTP service, the client of Triton, and the batch script, each run as a user would."""

from __future__ import annotations

import concurrent.futures
import http.server
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


# --- fastapi/app.py --------------------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def service(artifact: Path) -> Iterator[str]:
    """The address of the service, started by the command of its docstring."""
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    port = free_port()
    command = ["-m", "uvicorn", "--app-dir", str(EXAMPLES / "fastapi"), "app:app", "--port", str(port)]
    process = subprocess.Popen(
        [sys.executable, *command],
        env={**os.environ, "ARTIFACT": str(artifact)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + 60
    while process.poll() is None:
        try:
            urllib.request.urlopen(f"{url}/health", timeout=5).close()
            break
        except OSError:
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)
    if process.poll() is not None or time.monotonic() > deadline:
        process.kill()
        pytest.fail(f"the service did not start:\n{process.communicate()[0]}")
    yield url
    process.terminate()
    process.communicate(timeout=30)


def post(url: str, body: object) -> Any:
    data = json.dumps(body).encode()
    request = urllib.request.Request(f"{url}/infer", data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


def test_service_answers_as_the_model_does(service: str, plain: ort.InferenceSession) -> None:
    with urllib.request.urlopen(f"{service}/health", timeout=60) as response:
        assert json.load(response) == {"provider": "CPUExecutionProvider", "inputs": {"x": "float32"}, "outputs": ["y"]}
    rng = np.random.default_rng(0)
    for rows in (1, 5, 1, 5):  # the second round runs in buffers that the first left
        x = rng.standard_normal((rows, 8)).astype(np.float32)
        np.testing.assert_allclose(post(service, {"x": x.tolist()})["y"], expected(plain, x), rtol=1e-4, atol=1e-6)


def test_service_keeps_concurrent_requests_apart(service: str, plain: ort.InferenceSession) -> None:
    """More shapes than it keeps buffers for, from several clients at once."""
    rng = np.random.default_rng(0)
    feeds = [rng.standard_normal((1 + k % 20, 8)).astype(np.float32) for k in range(120)]
    with concurrent.futures.ThreadPoolExecutor(8) as clients:
        answers = list(clients.map(lambda x: post(service, {"x": x.tolist()})["y"], feeds))
    for x, answer in zip(feeds, answers, strict=True):
        np.testing.assert_allclose(answer, expected(plain, x), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"z": [[1.0]]}, 422, "inputs are x; the request has z"),
        ({}, 422, "the request has none"),
        ({"x": [[1.0, 2.0]]}, 422, "Expected: 8"),
        ({"x": [["a"] * 8]}, 422, "could not convert"),
        ({"x": [[1.0], [1.0, 2.0]]}, 422, "inhomogeneous"),
        ([1], 422, "dict"),
        ({"x": [[float("nan")] * 8]}, 500, "output y has NaN or infinity"),
    ],
)
def test_service_says_what_is_wrong(service: str, body: object, status: int, message: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        post(service, body)
    assert caught.value.code == status
    assert message in caught.value.read().decode()


# --- triton/client.py ------------------------------------------------------------------------------------------------


class _StandIn(http.server.BaseHTTPRequestHandler):
    """Triton's HTTP protocol (KServe v2 with the binary extension), as much of it as one inference takes."""

    session: ort.InferenceSession
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Nothing: pytest's output is not a server's log."""

    def _answer(self, body: bytes = b"", status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        if not self.path.startswith("/v2/models/chain"):
            self._answer(b'{"error": "unknown model"}', 400)
        elif self.path.endswith("/ready"):
            self._answer()
        else:
            x, y = ({"name": n, "datatype": "FP32", "shape": [-1, 8]} for n in ("x", "y"))
            self._answer(json.dumps({"name": "chain", "inputs": [x], "outputs": [y]}).encode())

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        length = int(self.headers["Inference-Header-Content-Length"])
        (described,) = json.loads(body[:length])["inputs"]
        size = described["parameters"]["binary_data_size"]
        x = np.frombuffer(body[length : length + size], np.float32).reshape(described["shape"])
        y = expected(self.session, x)
        output = {"name": "y", "datatype": "FP32", "shape": y.shape, "parameters": {"binary_data_size": y.nbytes}}
        head = json.dumps({"model_name": "chain", "model_version": "1", "outputs": [output]}).encode()
        self._answer(head + y.tobytes(), Inference_Header_Content_Length=str(len(head)))


@pytest.fixture(scope="module")
def triton(plain: ort.InferenceSession) -> Iterator[str]:
    pytest.importorskip("tritonclient.http")
    handler = type("Handler", (_StandIn,), {"session": plain})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True)


def test_triton_client(triton: str, plain: ort.InferenceSession) -> None:
    result = run(EXAMPLES / "triton/client.py", triton, "chain", "x=3x8")
    assert result.returncode == 0, result.stderr
    x = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
    assert f"y: float32[3, 8], mean {expected(plain, x).mean():.6g}" in result.stdout


def test_triton_client_says_what_is_wrong(triton: str) -> None:
    result = run(EXAMPLES / "triton/client.py", triton, "other")
    assert result.returncode == 1
    assert "has no model other that is ready" in result.stderr
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
    assert result.stderr.endswith("error: the data lacks x; it has z\n")  # after what ORT says of missing GPUs
