"""kernels.json: complete, deterministic, and plain JSON."""

from __future__ import annotations

import hashlib
import json

from cases.models import fuse, outline
from onnxopt.codegen import kernels_json
from onnxopt.fusion.region import Kernel
from tests.support.graphs import graph


def _kernels() -> tuple[Kernel, ...]:
    body = "a = Max(x, c)  b = Tanh(a)  s = Hardmax(b)  d = Neg(s)  y = Exp(d)"
    model = graph("float[N, 8] x", "float[N, 8] y", body, constants="float c = {-inf}")
    return outline(model, fuse(model))


def test_every_kernel_is_described() -> None:
    kernels = _kernels()
    document = json.loads(kernels_json.to_json(kernels, b"image"))
    assert list(document) == ["sha256", "schema", "fatbin", "kernels"]
    assert document["schema"] == 4
    assert document["fatbin"] == {"file": "kernels.fatbin", "sha256": hashlib.sha256(b"image").hexdigest(), "bytes": 5}
    assert [k["name"] for k in document["kernels"]] == [k.name for k in kernels]
    first, described = kernels[0], document["kernels"][0]
    assert described == {
        "name": first.name,
        "kind": "pointwise",
        "inputs": ["float32"],
        "outputs": ["float32"],
        "code": [
            {"op": "const", "dtype": "float32", "args": [], "value": "-inf"},
            {"op": "max", "dtype": "float32", "args": [0, 1]},
            {"op": "tanh", "dtype": "float32", "args": [2]},
        ],
        "results": [3],
        "depends": [[0]],
        "ranks": [0],
        "cpu": True,
        "variants": [v.to_json() for v in first.variants],
    }
    fields = {"symbol", "modes", "index", "vector", "unroll", "threads", "tile", "tile_columns", "whole", "slides"}
    assert set(described["variants"][0]) == fields | {"waits"}


def test_without_a_fatbin() -> None:
    assert json.loads(kernels_json.to_json(_kernels(), None))["fatbin"] is None
    assert json.loads(kernels_json.to_json((), b""))["fatbin"]["bytes"] == 0


def test_the_same_kernels_give_the_same_text() -> None:
    assert kernels_json.to_json(_kernels(), b"image") == kernels_json.to_json(_kernels(), b"image")


def test_plain_json_without_nan_and_infinity() -> None:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    json.loads(kernels_json.to_json(_kernels(), None), parse_constant=refuse)


def test_cpu_is_false_next_to_a_convolution() -> None:
    body = "m = Conv(x, w)  a = Relu(m)  y = Tanh(a)"
    model = graph("float[1, 3, 8, 8] x, float[4, 3, 1, 1] w", "float[1, 4, 8, 8] y", body)
    (kernel,) = outline(model, fuse(model))
    assert json.loads(kernels_json.to_json([kernel], None))["kernels"][0]["cpu"] is False
