"""The service of examples/fastapi in tests: its modules, its settings, and requests to it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

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
PACKAGES = {"fastapi": "fastapi", "prometheus_client": "prometheus-client", "httpx2": "httpx2"}

Client = Any
Start = Callable[..., Client]


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


VALID = as_json(feeds(2))
