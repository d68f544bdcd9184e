"""What sizes of symbolic dims are expected, from what the user says and from what tables allow."""

from __future__ import annotations

import pytest

from onnxopt.graph.shapes.expected import ExpectedSizes
from onnxopt.graph.shapes.infer import infer
from tests.support.graphs import graph

# The second half of a table is read elsewhere: only what begins at the front says how long a sequence may be.
MODEL = """
    shape = Shape <start = 1, end = 2> (x)
    front = Slice (table, zero, shape)
    y = Add (x, front)
    rest = Slice (table, shape, last)
"""


def _expected(usual: dict[str, int]) -> ExpectedSizes:
    model = graph(
        "float[B, S, 4] x, float[30, 4] table", "float[B, S, 4] y, float[R, 4] rest", MODEL,
        constants="int64[1] zero = {0}, int64[1] last = {30}",
    )  # fmt: skip
    return ExpectedSizes(infer(model), usual)


@pytest.mark.parametrize(
    ("dim", "usual", "size"),
    [
        (7, {}, 7),
        (None, {}, None),
        ("S", {}, 15),
        ("S", {"S": 20}, 20),
        ("B", {}, None),
        ("2*S + 1", {}, 31),
        ("B*S", {"B": 3}, 45),
        ("Min(30, S)", {"S": 20}, 20),
        ("past + S", {"past": 10}, 25),
        ("S", {"past + S": 10}, 15),  # no size of a symbol
        ("3*S", {"S": 0}, 0),
        ("no name: ?", {}, None),
    ],
)
def test_sizes(dim: int | str | None, usual: dict[str, int], size: int | None) -> None:
    assert _expected(usual).of(dim) == size
