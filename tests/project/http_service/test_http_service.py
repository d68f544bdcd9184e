"""examples/fastapi: the service answers as the model does, over JSON and binary data, and says what it is."""

from __future__ import annotations

import concurrent.futures
import json
from pathlib import Path
from types import ModuleType

import numpy as np
import onnxruntime as ort
import pytest

from tests.support.http_service import VALID, Client, Start, as_json, assert_same, binary_request, feeds, infer, outputs


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
