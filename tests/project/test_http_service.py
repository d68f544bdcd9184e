"""examples/fastapi: the service answers as the model does, over JSON and binary data, and says what is wrong."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gzip
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

import onnxopt
from tests.support.small_models import write

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "fastapi"
# Two inputs that share an open dim, a table that ids may leave, and an input whose open dim the graph does not excuse.
MODEL = """
served (float[batch, 4] x, int64[batch, n] ids, float bias)
    => (float[batch, 4] y, float[batch, n, 4] rows, bool[batch, 4] big)
<float[3, 4] table = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, float zero = {0}> {
  s = Add(x, bias)
  t = Tanh(s)
  y = Div(t, x)
  rows = Gather<axis = 0>(table, ids)
  big = Greater(x, zero)
}
"""
_PACKAGES = {"fastapi": "fastapi", "prometheus_client": "prometheus-client", "httpx2": "httpx2"}

Client = Any


@pytest.fixture(scope="module")
def modules() -> Iterator[dict[str, ModuleType]]:
    """The example's modules, which import each other by their plain names."""
    for name, package in _PACKAGES.items():
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


Start = Callable[..., Client]


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


def feeds(batch: int, n: int = 2) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(batch)
    return {
        "x": rng.standard_normal((batch, 4)).astype(np.float32),
        "ids": rng.integers(0, 3, (batch, n)),
        "bias": np.array(0.5, np.float32),
    }


def as_json(arrays: dict[str, np.ndarray], **changes: Any) -> dict[str, Any]:
    """A request; changes: members of an input, by its name."""
    datatypes = {"x": "FP32", "ids": "INT64", "bias": "FP32"}
    rows: list[dict[str, Any]] = [
        {"name": n, "datatype": datatypes[n], "shape": list(np.shape(a)), "data": np.ravel(a).tolist()}
        for n, a in arrays.items()
    ]
    return {"inputs": [row | changes.get(row["name"], {}) for row in rows]}


def infer(client: Client, request: Any, **headers: str) -> Any:
    body = request if isinstance(request, bytes) else json.dumps(request).encode()
    return client.post("/v2/models/served/infer", content=body, headers=headers)


def outputs(answer: Any) -> dict[str, np.ndarray]:
    assert answer.status_code == 200, answer.text
    return {row["name"]: np.reshape(row["data"], row["shape"]) for row in answer.json()["outputs"]}


def assert_same(found: dict[str, np.ndarray], plain: ort.InferenceSession, given: dict[str, np.ndarray]) -> None:
    expected = plain.run(None, given)
    assert list(found) == [output.name for output in plain.get_outputs()]
    for name, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(found[name], wanted, rtol=1e-5, atol=1e-6)


def binary_request(arrays: dict[str, np.ndarray], pad: int = 0, **header: Any) -> tuple[bytes, str]:
    """A request with binary data behind JSON; pad: spaces in the JSON, which move the data to another address."""
    request = as_json(arrays)
    for row, array in zip(request["inputs"], arrays.values(), strict=True):
        del row["data"]
        row["parameters"] = {"binary_data_size": array.nbytes}
    head = json.dumps(request | header).encode() + b" " * pad
    return head + b"".join(a.tobytes() for a in arrays.values()), str(len(head))


# --- answers ---------------------------------------------------------------------------------------------------------


def test_json(client: Client, plain: ort.InferenceSession) -> None:
    for batch in (1, 5, 1, 5):  # the second round runs in buffers that the first left
        given = feeds(batch)
        answer = infer(client, as_json(given) | {"id": f"no. {batch}"})
        assert_same(outputs(answer), plain, given)
        assert answer.json()["id"] == f"no. {batch}"
        assert answer.json()["model_name"] == "served"


def test_nested_data(client: Client, plain: ort.InferenceSession) -> None:
    given = feeds(2)
    assert_same(outputs(infer(client, as_json(given, x={"data": given["x"].tolist()}))), plain, given)


@pytest.mark.parametrize("pad", range(4))
def test_binary_data(client: Client, plain: ort.InferenceSession, pad: int) -> None:
    given = feeds(3)
    body, length = binary_request(given, pad, parameters={"binary_data_output": True})
    answer = infer(client, body, **{"Inference-Header-Content-Length": length})
    assert answer.status_code == 200, answer.text
    head = int(answer.headers["Inference-Header-Content-Length"])
    at, found = head, {}
    for row in json.loads(answer.content[:head])["outputs"]:
        size = row["parameters"]["binary_data_size"]
        dtype = {"FP32": np.float32, "BOOL": np.bool_}[row["datatype"]]
        found[row["name"]] = np.frombuffer(answer.content[at : at + size], dtype).reshape(row["shape"])
        at += size
    assert at == len(answer.content)
    assert_same(found, plain, given)


def test_outputs_are_chosen(client: Client) -> None:
    answer = infer(client, as_json(feeds(1)) | {"outputs": [{"name": "big"}]})
    assert [row["name"] for row in answer.json()["outputs"]] == ["big"]
    assert {type(value) for value in answer.json()["outputs"][0]["data"]} == {bool}


def test_concurrent_requests_are_kept_apart(client: Client, plain: ort.InferenceSession) -> None:
    """More shapes than it keeps buffers for, from several clients at once."""
    given = [feeds(1 + k % 20) for k in range(60)]
    with concurrent.futures.ThreadPoolExecutor(8) as clients:
        answers = list(clients.map(lambda arrays: infer(client, as_json(arrays)), given))
    for arrays, answer in zip(given, answers, strict=True):
        assert_same(outputs(answer), plain, arrays)


# --- what is wrong ---------------------------------------------------------------------------------------------------

VALID = as_json(feeds(2))


@pytest.mark.parametrize(
    ("request_body", "message"),
    [
        (b"", "the request is not JSON"),
        (b"{", "the request is not JSON"),
        (b"\xff\xfe{}", "the request is not JSON"),
        (b"[" * 100_000, "the request is not JSON: recursion limit"),
        ([1], "the request is a JSON list, expected an object"),
        ({}, "`inputs` must be a list of objects that have a `name`"),
        ({"inputs": [{"name": 3}]}, "`inputs` must be a list of objects that have a `name`"),
        ({"inputs": VALID["inputs"][:2]}, "the request lacks input bias"),
        ({"inputs": [{"name": "z"}]}, "there is no input z; the model has x, ids, bias"),
        ({"inputs": [*VALID["inputs"], VALID["inputs"][0]]}, "input x is there twice"),
        (VALID | {"outputs": [{"name": "z"}]}, "there is no output z; the model has y, rows, big"),
        (VALID | {"id": 3}, "`id` is a JSON number, expected a string"),
        (VALID | {"parameters": 3}, "`parameters` of the request is a JSON number"),
        (as_json(feeds(2), x={"datatype": "FP16"}), "input x is FP32; the request has FP16"),
        (as_json(feeds(2), x={"shape": [8]}), "input x has 2 dims; the request has 1"),
        (as_json(feeds(2), x={"shape": [2, 5]}), "has 8 elements; its shape [2, 5] has 10"),
        (as_json(feeds(2), x={"shape": [2, -4]}), "must be a list of sizes"),
        (as_json(feeds(2), x={"shape": [2, True]}), "must be a list of sizes"),
        (as_json(feeds(2), x={"shape": "2x4"}), "must be a list of sizes"),
        (as_json(feeds(2), x={"shape": [4, 2]}), "dim 1 of input x is 4; the request has 2"),
        (
            as_json(feeds(2), ids={"shape": [1, 4]}),
            "dim 0 of input x is 2: both are batch",
        ),
        (as_json(feeds(2), x={"data": ["a"] * 8}), "`data` of input x must hold numbers that fit FP32"),
        (as_json(feeds(2), x={"data": [None] * 8}), "`data` of input x must hold numbers that fit FP32"),
        (as_json(feeds(2), x={"data": [True] * 8}), "`data` of input x must hold numbers that fit FP32"),
        (as_json(feeds(2), x={"data": [[1] * 4, [1] * 3]}), "nested unevenly"),
        (as_json(feeds(2), x={"data": 3}), "`data` of input x is a JSON number, expected a list"),
        (as_json(feeds(2), x={"data": [1e39] * 8}), "has a number that FP32 cannot hold"),
        (as_json(feeds(2), x={"data": [math.nan] * 8}), "the request is not JSON: expected value"),
        (as_json(feeds(2), ids={"data": [0.5] * 4}), "must hold whole numbers that fit INT64"),
        (as_json(feeds(2), ids={"data": [2**63] * 4}), "INT64 cannot hold"),
        (as_json(feeds(2), ids={"data": [2**70] * 4}), "must hold whole numbers that fit INT64"),
        (as_json(feeds(2), ids={"data": [7] * 4}), "ONNX Runtime refuses the inputs: "),
        (as_json(feeds(2), x={"parameters": {"binary_data_size": 32}}), "input x has 32 bytes; 0 are left"),
    ],
)
def test_a_wrong_request_is_400_and_one_line(client: Client, request_body: Any, message: str) -> None:
    answer = infer(client, request_body)
    assert answer.status_code == 400, answer.text
    assert message in answer.json()["error"]
    assert "\n" not in answer.json()["error"]


@pytest.mark.parametrize(
    ("body", "length", "message"),
    [
        (b"{}", "x", "Inference-Header-Content-Length is 'x', and the body has 2 bytes"),
        (b"{}", "3", "Inference-Header-Content-Length is '3', and the body has 2 bytes"),
        (binary_request(feeds(2))[0] + b"more", binary_request(feeds(2))[1], "72 bytes of binary data follow the JSON"),
        (binary_request(feeds(2))[0][:-1], binary_request(feeds(2))[1], "input bias has 4 bytes; 3 are left"),
        (
            binary_request(feeds(2) | {"bias": np.zeros((), np.float64)})[0],
            binary_request(feeds(2) | {"bias": np.zeros((), np.float64)})[1],
            "binary_data_size of input bias is 8; its shape [] has 4",
        ),
    ],
)
def test_wrong_binary_data(client: Client, body: bytes, length: str, message: str) -> None:
    answer = infer(client, body, **{"Inference-Header-Content-Length": length})
    assert answer.status_code == 400, answer.text
    assert message in answer.json()["error"]


def test_nan_is_no_json(client: Client) -> None:
    given = feeds(1) | {"x": np.zeros((1, 4), np.float32), "bias": np.zeros((), np.float32)}
    answer = infer(client, as_json(given))
    assert answer.status_code == 406
    assert "output y has NaN or infinity, which JSON cannot hold: ask for it as binary data" in answer.text
    assert infer(client, as_json(given) | {"outputs": [{"name": "big"}]}).status_code == 200


def test_other_paths_and_bodies(client: Client) -> None:
    answer = client.post("/v2/models/other/infer", content=b"{}")
    assert (answer.status_code, answer.json()) == (404, {"error": "there is no model other; this service has served"})
    assert client.get("/v2/models/other").status_code == 404
    assert client.get("/v2/models/served/infer").status_code == 405
    answer = infer(client, gzip.compress(json.dumps(VALID).encode()), **{"Content-Encoding": "gzip"})
    assert answer.status_code == 415


@pytest.mark.parametrize("chunked", [False, True])
def test_a_large_body_is_not_read(start: Start, chunked: bool) -> None:
    client = start({"MAX_BODY_MB": "1"})
    body = json.dumps(VALID).encode() + b" " * (2 << 20)
    answer = client.post("/v2/models/served/infer", content=iter([body[:1000], body[1000:]]) if chunked else body)
    assert (answer.status_code, answer.json()["error"]) == (
        413,
        "the body is larger than 1 MB, the most that this service reads",
    )


def test_limits(start: Start) -> None:
    client = start({"LIMITS": "batch=2"})
    assert infer(client, as_json(feeds(2))).status_code == 200
    answer = infer(client, as_json(feeds(3)))
    assert answer.status_code == 400
    assert answer.json()["error"] == "dim 0 of input x is 3; this service takes batch up to 2"


def test_a_full_service_says_so(start: Start) -> None:
    answer = infer(start({"MAX_WAITING": "0"}), VALID)
    assert answer.status_code == 503
    assert answer.headers["Retry-After"] == "1"


def test_a_header_of_thousands_of_digits(client: Client) -> None:
    answer = client.post(
        "/v2/models/served/infer", content=b"{}", headers={"Inference-Header-Content-Length": "9" * 4400}
    )
    assert answer.status_code == 400
    assert answer.json()["error"] == f"Inference-Header-Content-Length is '{'9' * 40}', and the body has 2 bytes"


@pytest.mark.parametrize(("then", "status"), [("nothing", 408), ("hangs up", 499)])
def test_a_body_that_never_ends(start: Start, then: str, status: int) -> None:
    """It holds no place, and it is no error of the service."""
    client = start({"READ_SECONDS": "0.05", "MAX_WAITING": "1"})
    sent: list[dict[str, Any]] = []
    parts = iter([{"type": "http.request", "body": b"{", "more_body": True}])

    async def receive() -> dict[str, Any]:
        if part := next(parts, None):
            return part
        if then == "hangs up":
            return {"type": "http.disconnect"}
        assert infer(client, VALID).status_code == 200  # while this body is being read
        await asyncio.sleep(10)
        raise AssertionError("nobody waits this long")

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http", "http_version": "1.1", "method": "POST", "path": "/v2/models/served/infer", "query_string": b"",
        "raw_path": b"", "headers": [], "scheme": "http", "server": ("a", 1), "client": ("b", 2),
    }  # fmt: skip
    asyncio.run(client.app(scope, receive, send))
    assert sent[0]["status"] == status
    assert client.app.state.service.reading == client.app.state.service.waiting == 0
    assert f'status="{status}"}} 1.0' in client.get("/metrics").text


def test_bodies_that_are_read_at_one_time_are_limited(start: Start) -> None:
    client = start({"MAX_READING_MB": "1"})
    answer = infer(client, json.dumps(VALID).encode() + b" " * (2 << 20))
    assert (answer.status_code, answer.json()["error"]) == (503, "too many bodies are being read: try again later")
    assert infer(client, VALID).status_code == 200


# --- health, metrics, configuration ----------------------------------------------------------------------------------


def test_health_and_metadata(client: Client) -> None:
    assert client.get("/v2/health/live").status_code == 200
    assert client.get("/v2/health/ready").status_code == 200
    assert client.get("/v2/models/served/ready").status_code == 200
    described = client.get("/v2/models/served").json()
    assert described["inputs"] == [
        {"name": "x", "datatype": "FP32", "shape": [-1, 4]},
        {"name": "ids", "datatype": "INT64", "shape": [-1, -1]},
        {"name": "bias", "datatype": "FP32", "shape": []},
    ]
    assert [row["datatype"] for row in described["outputs"]] == ["FP32", "FP32", "BOOL"]


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"ARTIFACT": "/nowhere"}, "/nowhere/providers/cpu.json: cannot be read"),
        ({"CONFIGURATION": "h999"}, "h999.json: cannot be read"),
        ({"WARM": "tokens=8"}, "tokens: is no input and no open dim of the model"),
        ({"LIMITS": "tokens=8"}, "LIMITS: the model has no open dim tokens"),
        ({"WARM": "bias=2"}, "bias=2: the input has 0 dims"),
    ],
)
def test_a_service_that_cannot_become_ready(start: Start, environment: dict[str, str], message: str) -> None:
    client = start(environment)
    assert client.get("/v2/health/live").status_code == 503
    answer = client.get("/v2/health/ready")
    assert answer.status_code == 503
    assert message in answer.json()["error"]
    assert infer(client, VALID).status_code == 503


@pytest.mark.parametrize("text", ["batch", "batch=x", "=8", "batch=8x"])
def test_a_wrong_setting_stops_the_start(modules: dict[str, ModuleType], text: str) -> None:
    with pytest.raises(ValueError, match="expected NAME=SIZE"):
        modules["app"].Settings.read({"ARTIFACT": "a", "WARM": text})


def test_shapes_are_warm_when_it_is_ready(start: Start) -> None:
    service = start({"WARM": "batch=1,n=2; batch=8,ids=8x3"}).app.state.service
    assert set(service.model._bound) == {((1, 4), (1, 2), ()), ((8, 4), (8, 3), ())}


def test_metrics(start: Start) -> None:
    client = start()
    infer(client, VALID)
    infer(client, b"{")
    lines = client.get("/metrics").text.splitlines()
    assert 'inference_requests_total{model="served",status="200"} 1.0' in lines
    assert 'inference_requests_total{model="served",status="400"} 1.0' in lines
    assert 'inference_request_seconds_count{model="served"} 2.0' in lines
    assert 'inference_run_seconds_count{model="served"} 1.0' in lines
    assert 'model_ready{configuration="cpu",model="served"} 1.0' in lines
    assert 'inference_waiting{model="served"} 0.0' in lines


def test_the_file_that_tune_wrote_for_this_gpu(
    modules: dict[str, ModuleType], artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose, providers = modules["configuration"].choose, tmp_path / "providers"
    providers.mkdir()
    for path in (artifact / "providers").glob("c*.json"):
        (providers / path.name).write_bytes(path.read_bytes())
    tuned = json.loads((providers / "cuda.json").read_text()) | {"tuned": {"device": "NVIDIA H200"}}
    (providers / "h200.json").write_text(json.dumps(tuned))
    monkeypatch.setattr(ort, "get_available_providers", lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"])
    for device, name in ((None, "cpu"), ("NVIDIA H200", "h200"), ("NVIDIA H200 MIG 1g.18gb", "cuda")):
        monkeypatch.setattr(modules["configuration"], "gpu_name", lambda device=device: device)
        assert choose(tmp_path)[0] == name
    assert choose(tmp_path, "cuda")[0] == "cuda"
