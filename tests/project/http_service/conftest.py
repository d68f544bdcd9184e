"""The service of examples/fastapi, started in this process."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import onnxruntime as ort
import pytest

import onnxopt
from tests.support.http_service import EXAMPLE, MODEL, PACKAGES, Client, Start
from tests.support.small_models import write


@pytest.fixture(scope="module")
def modules() -> Iterator[dict[str, ModuleType]]:
    """The example's modules, which import each other by their plain names."""
    for name, package in PACKAGES.items():
        pytest.importorskip(name, reason=f"{package} is missing: pip install -e '.[examples]'")
    names = [path.stem for path in EXAMPLE.glob("*.py") if path.stem != "locustfile"]
    sys.path.insert(0, str(EXAMPLE))
    yield {name: __import__(name) for name in names}
    sys.path.remove(str(EXAMPLE))
    for name in names:
        del sys.modules[name]


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory, library: Path) -> Path:
    folder = tmp_path_factory.mktemp("http")
    return onnxopt.optimize(write(folder / "served.onnx", MODEL), folder / "artifact", archs=()).path


@pytest.fixture(scope="module")
def start(modules: dict[str, ModuleType], artifact: Path) -> Iterator[Start]:
    """Starts a service of some settings, and waits until it is ready or has failed."""
    from starlette.testclient import TestClient

    opened = []

    def started(environment: dict[str, str] | None = None) -> Client:
        app = modules["app"]
        settings = app.Settings.read({"ARTIFACT": str(artifact), "MODEL_NAME": "served", **(environment or {})})
        client = TestClient(app.create_app(settings), raise_server_exceptions=False)
        opened.append(client)
        client.__enter__()
        service = client.app.state.service
        deadline = time.monotonic() + 60
        while service.model is None and service.failure is None and time.monotonic() < deadline:
            time.sleep(0.01)
        return client

    yield started
    for client in opened:
        client.__exit__(None, None, None)


@pytest.fixture(scope="module")
def client(start: Start) -> Client:
    return start()


@pytest.fixture(scope="module")
def plain(artifact: Path) -> ort.InferenceSession:
    """The artifact's model without the library: what the service must agree with."""
    return ort.InferenceSession(artifact / "model.onnx", providers=["CPUExecutionProvider"])
