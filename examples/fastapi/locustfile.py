"""A load test of the service, or of Triton: as many requests as some users get answered in some time.

    pip install locust
    SHAPES=x=8x128 locust -f examples/fastapi/locustfile.py --headless -u 4 -t 20s --host http://127.0.0.1:8000

Every user asks again as soon as an answer is there. Environment: MODEL_NAME; FORMAT: binary (the default) or json;
SHAPES: of the inputs, as in "ids=8x128,mask=8x128", open dims are 1 elsewhere; OUTPUTS: which are asked for, as in
"y,z", default all.
"""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np
from locust import FastHttpUser, constant, task

_DTYPES = {"BOOL": "bool", "FP16": "float16", "FP32": "float32", "FP64": "float64"}
_MODEL = f"/v2/models/{os.environ.get('MODEL_NAME', 'model')}"
_LENGTH = "Inference-Header-Content-Length"


def _values(described: dict[str, Any]) -> np.ndarray[Any, Any]:
    """Ones for integers, which are valid ids and masks; noise of a fixed seed for floats."""
    told = dict(pair.split("=") for pair in os.environ.get("SHAPES", "").split(",") if pair)
    name, datatype = described["name"], described["datatype"]
    shape = [int(d) for d in told[name].split("x")] if name in told else [max(d, 1) for d in described["shape"]]
    dtype = np.dtype(_DTYPES.get(datatype, datatype.lower()))
    return (np.random.default_rng(0).standard_normal(shape) if dtype.kind == "f" else np.ones(shape)).astype(dtype)


class User(FastHttpUser):
    """Sends one request over and over."""

    wait_time = constant(0)

    def on_start(self) -> None:
        binary = os.environ.get("FORMAT", "binary") == "binary"
        rows, tails = [], []
        for described in self.client.get(_MODEL).json()["inputs"]:
            array = _values(described)
            row = {"name": described["name"], "datatype": described["datatype"], "shape": list(array.shape)}
            if binary:
                row["parameters"] = {"binary_data_size": array.nbytes}
                tails.append(array.tobytes())
            else:
                row["data"] = array.ravel().tolist()
            rows.append(row)
        request: dict[str, Any] = {"inputs": rows, "parameters": {"binary_data_output": binary}}
        if names := os.environ.get("OUTPUTS"):
            request["outputs"] = [{"name": name} for name in names.split(",")]
        head = json.dumps(request).encode()
        self._body = head + b"".join(tails)
        self._headers = {"content-type": "application/octet-stream"} | ({_LENGTH: str(len(head))} if binary else {})

    @task
    def infer(self) -> None:
        self.client.post(f"{_MODEL}/infer", data=self._body, headers=self._headers)
