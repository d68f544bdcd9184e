"""Which kernels a CPU-only machine uses: where ONNX Runtime moves blocks or fuses itself, it keeps the nodes."""

from __future__ import annotations

import pytest

from cases.models import fuse
from tests.support.graphs import graph

K = "int64[1] zero = {0}, int64[1] half = {4}, int64[1] all = {8}, int64[1] last = {-1}"
ROTARY = (
    "l = Slice(x, zero, half, last)  h = Slice(x, half, all, last)  n = Neg(h)  r = Concat<axis = -1>(n, l)"
    "  a = Mul(x, c)  b = Mul(r, s)  y = Add(a, b)"
)


@pytest.mark.parametrize(
    ("body", "wins"),
    [
        ("a = Sigmoid(x)  y = Mul(a, c)", True),
        (ROTARY, False),
        (ROTARY.replace("y = Add(a, b)", "z = Add(a, b)  y = Tanh(z)"), True),
        ("a = Sigmoid(x)  b = Relu(c)  y = Concat<axis = 1>(a, b)", False),
        ("a = Sigmoid(x)  t = Transpose<perm = [0, 2, 1, 3]>(a)  y = Relu(t)", False),
        ("v = MaxPool<kernel_shape = [1, 1]>(x)  a = Sigmoid(v)  y = Relu(a)", False),
    ],
    ids=["elementwise", "rotary", "rotary and one more", "concat", "transpose", "beside a pool"],
)
def test_kernels_of_the_cpu(body: str, wins: bool) -> None:
    dims = "float[2, 3, 4, 8]"
    (region,) = [
        r
        for r in fuse(graph(f"{dims} x, {dims} c, {dims} s", "float[] y", body, constants=K)).regions
        if len(r.nodes) > 1
    ]
    assert region.kind.pays_on_cpu(region) == wins
