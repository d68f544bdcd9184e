"""Padding that a mask finds by a sum becomes one condition: where, where not, and equal results."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from onnxopt.graph.normalize import normalize
from tests.support.graphs import graph, run

# As Transformers up to 4.52 wrote the masks of decoders. {c}: what is shown by position.
_BODY = """
    n = Shape <start = 1, end = 2> (tokens) count = Squeeze (n) keys = Range (none, count, once)
    queries = Unsqueeze (keys, last) later = Greater (keys, queries) sizes = Concat <axis = 0> (n, n)
    full = ConstantOfShape <value = float[1] {{-3e38}}> (sizes) upper = Trilu (full, once)
    kept = Cast <to = 1> (later) causal = Mul (upper, kept) c = Unsqueeze (causal, outer)
    inner = Unsqueeze (tokens, middle) x = {padding}
    sum = {sum} padded = Equal ({compared}) y = Where (padded, {low}, {shown})
"""
_SPELLED = {
    "padding": "Cast <to = 1> (inner)", "sum": "Add (c, x)", "compared": "sum, zero", "low": "low", "shown": "c",
}  # fmt: skip


def _model(dtype: str = "int64", **spelled: str) -> ir.Model:
    return graph(
        f"{dtype}[B, S] tokens", "float[] y", _BODY.format(**{**_SPELLED, **spelled}),
        constants="int64 none = {0}, int64 once = {1}, int64[1] last = {-1}, int64[2] outer = {0, 1}, "
        "int64[2] middle = {1, 2}, float zero = {0}, float low = {-3e38}, float less = {-1e30}",
    )  # fmt: skip


def _operators(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


@pytest.mark.parametrize(
    ("dtype", "spelled"),
    [
        ("int64", {}),
        ("int32", {"sum": "Add (x, c)"}),
        ("bool", {"compared": "zero, sum"}),
        ("float", {"padding": "Abs (inner)"}),
    ],
)
def test_padding_becomes_a_condition(dtype: str, spelled: dict[str, str]) -> None:
    source = _model(dtype, **spelled)
    changed = normalize(source.clone()).model
    assert {"And", "Where"} <= set(_operators(changed)) and not {"Add", "Equal"} & set(_operators(changed))
    for tokens in ([[1, 1, 0, 1, 0]], [[0, 0, 0, 0]], [[2, 0, 1], [0, 1, 1]], [[1]]):
        feeds = {"tokens": np.array(tokens).astype({"float": np.float32}.get(dtype, dtype))}
        if dtype == "float":
            feeds["tokens"][0, 0] = np.nan
        np.testing.assert_array_equal(run(changed, feeds)[0], run(source, feeds)[0])


@pytest.mark.parametrize(
    "spelled",
    [{"low": "less"}, {"shown": "x"}, {"compared": "sum, low"}, {"sum": "Mul (c, x)"}],
    ids=["another number", "another mask", "not 0", "a product"],
)
def test_others_stay(spelled: dict[str, str]) -> None:
    source = _model(**spelled)
    changed = normalize(source.clone()).model
    assert "Equal" in _operators(changed)
    feeds = {"tokens": np.array([[1, 0, 1]])}
    np.testing.assert_array_equal(run(changed, feeds)[0], run(source, feeds)[0])
