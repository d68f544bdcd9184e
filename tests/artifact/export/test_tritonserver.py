"""export-triton: NVIDIA's tritonserver itself reads the repository, warms the model up, batches and answers.

The server comes with the package nvidia-pytriton, which has no ONNX Runtime backend. A backend in Python stands in for
that one (tests/support/fakes/triton_backend.py); the rest is Triton's own: config.pbtxt, shapes, warm-up, HTTP.
"""

from __future__ import annotations

import concurrent.futures
import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onnxopt
from onnxopt.artifact.export import triton
from onnxopt.runtime import sessions
from tests.support.artifacts import BATCHED, make
from tests.support.small_models import CHAIN, TOKENS

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.slow
MODELS = {"batched": BATCHED, "chain": CHAIN, "tokens": TOKENS}
BACKEND = '''
from pathlib import Path

import numpy as np
import triton_python_backend_utils as triton

from tests.support.fakes.triton_backend import Model


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        return config

    def initialize(self, args):
        self.model = Model(Path(args["model_repository"]))

    def execute(self, requests):
        """All requests in one run, one behind the other, as the ONNX Runtime backend runs what Triton batched."""
        session, batched = self.model.session, self.model.config.max_batch_size > 0
        names = [entry.name for entry in session.get_inputs()]
        # By DLPack: Triton's own conversion does not know the arrays of numpy 2.
        feeds = [{n: np.from_dlpack(triton.get_input_tensor_by_name(r, n)) for n in names} for r in requests]
        assert batched or len(feeds) == 1
        rows = np.cumsum([len(f[names[0]]) for f in feeds[:-1]]) if batched else []
        results = session.run(None, {n: np.concatenate([f[n] for f in feeds]) for n in names} if batched else feeds[0])
        parts = zip(*(np.split(r, rows) for r in results)) if batched else [results]
        print("requests in this run:", len(requests), flush=True)
        outputs = [entry.name for entry in session.get_outputs()]
        answers = [[triton.Tensor.from_dlpack(n, np.array(a)) for n, a in zip(outputs, part)] for part in parts]
        return [triton.InferenceResponse(answer) for answer in answers]
'''


class Server:
    """tritonserver over a repository. log: what it has printed."""

    def __init__(self, folder: Path, repository: Path):
        spec = importlib.util.find_spec("pytriton")
        if spec is None or not spec.submodule_search_locations:
            pytest.skip("tritonserver is missing: make test-extras, or pip install --no-deps nvidia-pytriton")
        installed = Path(spec.submodule_search_locations[0]) / "tritonserver"
        backends, release = folder / "backends", f"{sys.version_info[0]}.{sys.version_info[1]}"
        (backends / "onnxruntime").mkdir(parents=True)
        (backends / "onnxruntime" / "model.py").write_text(BACKEND)
        (backends / "python").mkdir()
        stub = installed / "python_backend_stubs" / release / "triton_python_backend_stub"
        if not stub.is_file():
            pytest.skip(f"this nvidia-pytriton has no backend for Python {release}")
        for file in (*(installed / "backends" / "python").glob("*.*"), stub):
            shutil.copy(file, backends / "python")  # Triton follows no link out of the folder
        self.path = folder / "log"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.url = f"127.0.0.1:{probe.getsockname()[1]}"
        options = (f"--model-repository={repository}", f"--backend-directory={backends}", "--http-address=127.0.0.1")
        options += (f"--http-port={self.url.rpartition(':')[2]}", "--allow-grpc=false", "--allow-metrics=false")
        # Triton's Python has the packages of the first python in PATH, and those of the folder it runs in.
        self.process = subprocess.Popen(
            [installed / "bin" / "tritonserver", *options],
            cwd=ROOT,
            env={
                **os.environ,
                "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
                "LD_LIBRARY_PATH": str(installed.parents[1] / "nvidia_pytriton.libs"),
            },
            stdout=self.path.open("w"),
            stderr=subprocess.STDOUT,
        )

    @property
    def log(self) -> str:
        return self.path.read_text()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory, library: Path) -> Path:
    folder = tmp_path_factory.mktemp("triton")
    for name, text in MODELS.items():
        triton.export_triton(make(folder / name, text, ()), folder / "repository", name=name, max_batch=4)
    return folder / "repository"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Iterator[Server]:
    client = pytest.importorskip("tritonclient.http", reason="pip install 'tritonclient[http]'")
    started = Server(tmp_path_factory.mktemp("server"), repository)
    deadline = time.monotonic() + 60
    with client.InferenceServerClient(started.url) as probe:
        while started.process.poll() is None and time.monotonic() < deadline:
            try:
                if probe.is_server_ready():
                    break
            except OSError:
                time.sleep(0.2)
        else:
            started.process.kill()
            pytest.fail(f"tritonserver did not become ready:\n{started.log}")
    yield started
    started.process.terminate()
    started.process.wait(30)


def infer(server: Server, name: str, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    import tritonclient.http as client
    from tritonclient.utils import np_to_triton_dtype

    inputs = []
    for key, array in feeds.items():
        inputs.append(client.InferInput(key, list(array.shape), np_to_triton_dtype(array.dtype)))
        inputs[-1].set_data_from_numpy(array)
    with client.InferenceServerClient(server.url) as connection:
        result = connection.infer(name, inputs)
        return {row["name"]: result.as_numpy(row["name"]) for row in result.get_response()["outputs"]}


def feeds_of(session: Any, rows: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(rows)
    feeds = {}
    for entry in session.get_inputs():
        shape = [d if isinstance(d, int) else rows for d in entry.shape]
        values = rng.integers(0, 3, shape) if "int" in entry.type else rng.standard_normal(shape)
        feeds[entry.name] = values.astype("int64" if "int" in entry.type else "float32")
    return feeds


@pytest.mark.parametrize("name", MODELS)
def test_tritonserver_answers_as_the_artifact_does(server: Server, repository: Path, name: str) -> None:
    assert re.search(rf"\| {name} +\| 1 +\| READY", server.log), server.log
    session = onnxopt.load(repository.parent / name, providers=[sessions.CPU])
    for rows in (1, 3):
        feeds = feeds_of(session, rows)
        found = infer(server, name, feeds)
        expected = session.run(None, feeds)
        assert list(found) == [output.name for output in session.get_outputs()]
        for array, wanted in zip(found.values(), expected, strict=True):
            np.testing.assert_allclose(array, wanted, rtol=1e-5, atol=1e-6)


def test_tritonserver_batches_requests(server: Server, repository: Path) -> None:
    session = onnxopt.load(repository.parent / "batched", providers=[sessions.CPU])
    given = [feeds_of(session, 1) for _ in range(32)]
    with concurrent.futures.ThreadPoolExecutor(8) as clients:
        answers = list(clients.map(lambda feeds: infer(server, "batched", feeds), given))
    for feeds, answer in zip(given, answers, strict=True):
        for array, wanted in zip(answer.values(), session.run(None, feeds), strict=True):
            np.testing.assert_allclose(array, wanted, rtol=1e-5, atol=1e-6)
    runs = [int(n) for n in re.findall(r"requests in this run: (\d+)", server.log)]
    assert 1 < max(runs) <= 4
