"""examples/fastapi: what is wrong with a request is said in one line, and no request holds the service up."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import http.client
import json
import math
import socket
import threading
import time
from typing import Any

import numpy as np
import pytest

from tests.support.http_service import VALID, Client, Start, as_json, binary_request, feeds, infer


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


# --- what it takes at one time ---------------------------------------------------------------------------------------


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
    answer = infer(client, b"{}", **{"Inference-Header-Content-Length": "9" * 4400})
    assert answer.status_code == 400
    assert answer.json()["error"] == f"Inference-Header-Content-Length is '{'9' * 40}', and the body has 2 bytes"
    body, length = binary_request(feeds(2), parameters={"binary_data_output": True})
    assert infer(client, body, **{"Inference-Header-Content-Length": "0" * 4400 + length}).status_code == 200


@pytest.mark.parametrize(("then", "status"), [("nothing", 408), ("single bytes", 408), ("hangs up", 499)])
def test_a_body_that_never_ends(start: Start, then: str, status: int) -> None:
    """It holds no place, and it is no error of the service."""
    client = start({"READ_SECONDS": "0.05", "MAX_WAITING": "1"})
    sent: list[dict[str, Any]] = []
    deadline = time.monotonic() + 5
    parts = iter([{"type": "http.request", "body": b"{", "more_body": True}])

    async def receive() -> dict[str, Any]:
        if part := next(parts, None):
            return part
        if then == "hangs up":
            return {"type": "http.disconnect"}
        if then == "single bytes":
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)
            return {"type": "http.request", "body": b" ", "more_body": True}
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


def test_sockets_that_send_a_part_lock_nobody_out(start: Start) -> None:
    """More of them than requests may wait, on a server of its own."""
    uvicorn = pytest.importorskip("uvicorn", reason="uvicorn is missing: pip install -e '.[examples]'")
    client = start({"MAX_WAITING": "2", "READ_SECONDS": "60"})
    server = uvicorn.Server(uvicorn.Config(client.app, port=0, log_level="critical", lifespan="off"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        address = server.servers[0].sockets[0].getsockname()
        head = b"POST /v2/models/served/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 500\r\n\r\n{"
        with contextlib.ExitStack() as held:
            for _ in range(16):
                held.enter_context(socket.create_connection(address)).sendall(head)
            while client.app.state.service.reading < 16:
                time.sleep(0.01)
            connection = http.client.HTTPConnection(*address, timeout=30)
            connection.request("POST", "/v2/models/served/infer", json.dumps(VALID))
            assert connection.getresponse().status == 200
            connection.close()
    finally:
        server.should_exit = True
        thread.join()
    assert 'status="499"} 16.0' in client.get("/metrics").text
    assert 'status="500"' not in client.get("/metrics").text


def test_bodies_that_are_read_at_one_time_are_limited(start: Start) -> None:
    client = start({"MAX_READING_MB": "1"})
    answer = infer(client, json.dumps(VALID).encode() + b" " * (2 << 20))
    assert (answer.status_code, answer.json()["error"]) == (503, "too many bodies are being read: try again later")
    assert infer(client, VALID).status_code == 200
