"""Asks a Triton Inference Server for one inference: python client.py URL MODEL [INPUT=1x128 ...].

    pip install "tritonclient[http]"
    onnxopt export-triton ARTIFACT repository
    tritonserver --model-repository repository
    python client.py localhost:8000 MODEL

The client asks the server for the model's inputs. A dim of -1 is 1, unless a size is given. Integers are ones, which
are valid token ids, masks and types. Floats are noise from a fixed seed.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException, triton_to_np_dtype


def make_input(described: dict[str, Any], shapes: dict[str, list[int]]) -> triton.InferInput:
    name, datatype = described["name"], described["datatype"]
    dtype = triton_to_np_dtype(datatype)
    if dtype is None or dtype is np.object_:
        raise ValueError(f"input {name}: this example makes numbers, not {datatype}")
    shape = shapes.get(name, [max(int(d), 1) for d in described["shape"]])
    noise = np.random.default_rng(0).standard_normal(shape)
    values = (noise if np.dtype(dtype).kind == "f" else np.ones(shape)).astype(dtype)
    tensor = triton.InferInput(name, list(values.shape), datatype)
    tensor.set_data_from_numpy(values)
    return tensor


def main(url: str, model: str, *shapes: str) -> None:
    told = {name: [int(d) for d in dims.split("x")] for name, _, dims in (s.rpartition("=") for s in shapes)}
    with triton.InferenceServerClient(url) as client:
        if not client.is_model_ready(model):
            raise ValueError(f"the server at {url} has no model {model} that is ready")
        described = client.get_model_metadata(model)
        inputs = [make_input(i, told) for i in described["inputs"]]
        started = time.perf_counter()
        result = client.infer(model, inputs)
        milliseconds = (time.perf_counter() - started) * 1e3
        for output in described["outputs"]:
            array = result.as_numpy(output["name"])
            print(f"{output['name']}: {array.dtype}{list(array.shape)}, mean {array.mean():.6g}")
        print(f"{milliseconds:.2f} ms, with the network")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: client.py URL MODEL [INPUT=1x128 ...]")
    try:
        main(*sys.argv[1:])
    except (ValueError, OSError, InferenceServerException) as error:
        sys.exit(f"error: {error}")
