"""Dims of 1 that are added to a mask go to what it is made of: where, where not and why, and equal results."""

from __future__ import annotations

import numpy as np
import pytest

from onnxopt.graph.normalize import normalize
from onnxopt.graph.passes.masks.viewed_masks import ViewedMask
from onnxopt.graph.shapes.infer import infer
from tests.support.graphs import graph, run, value

_INPUTS = "bool[B, 1, N] p, bool[N, N] q"
_CONSTANTS = (
    "int64[1] one = {1}, int64[1] first = {0}, int64[1] last = {-1}, int64[2] ends = {0, -1}, "
    "int64[4] to = {2, 1, 3, 3}, int64[2] flat = {6, 3}, float zero = {0}, float low = {-3e38}"
)
_SIZES = {"B": 2, "N": 3}
# Inputs, body, and the operators that are left.
APPLIED = {
    "And": (_INPUTS, "a = And(p, q) y = Unsqueeze(a, one)", ["Unsqueeze", "And"]),
    "Or, twice the same view": (
        _INPUTS, "a = Or(q, p) u = Unsqueeze(a, one) v = Unsqueeze(a, one) n = Not(v) y = Xor(u, n)",
        ["Unsqueeze", "Or", "Not", "Xor"],
    ),
    "Not of And": (_INPUTS, "a = And(p, q) n = Not(a) y = Unsqueeze(n, one)", ["Unsqueeze", "And", "Not"]),
    "a dim after all others": (_INPUTS, "a = And(p, q) y = Unsqueeze(a, last)", ["Unsqueeze", "Unsqueeze", "And"]),
    "a dim before all others": (_INPUTS, "a = And(q, p) y = Unsqueeze(a, first)", ["Unsqueeze", "And"]),
    "two dims": (_INPUTS, "a = And(p, q) y = Unsqueeze(a, ends)", ["Unsqueeze", "Unsqueeze", "And"]),
    "a choice of two numbers": (
        _INPUTS, "a = And(p, q) w = Where(a, zero, low) y = Unsqueeze(w, one)", ["Unsqueeze", "And", "Where"],
    ),
    "Reshape to known dims": (
        "bool[2, 1, 3] p, bool[3, 3] q", "a = And(p, q) y = Reshape(a, to)", ["Unsqueeze", "And"],
    ),
}  # fmt: skip
STAYS = {
    "other readers": (_INPUTS, "a = And(p, q) v = Unsqueeze(a, one) y = Xor(v, a)", ["And", "Unsqueeze", "Xor"]),
    "another view": (
        _INPUTS, "a = And(p, q) u = Unsqueeze(a, one) v = Unsqueeze(a, last) y = Xor(u, v)",
        ["And", "Unsqueeze", "Unsqueeze", "Xor"],
    ),
    "a mask of its own": (_INPUTS, "a = Equal(p, q) y = Unsqueeze(a, one)", ["Equal", "Unsqueeze"]),
    "a choice of other tensors": (
        "bool[N, N] q, float[N] x", "w = Where(q, x, low) y = Unsqueeze(w, one)", ["Where", "Unsqueeze"],
    ),
    "other dims": ("bool[2, 1, 3] p, bool[3, 3] q", "a = And(p, q) y = Reshape(a, flat)", ["And", "Reshape"]),
}  # fmt: skip


@pytest.mark.parametrize("name", [*APPLIED, *STAYS])
def test_operators_and_results(name: str) -> None:
    inputs, body, left = (APPLIED | STAYS)[name]
    source = graph(inputs, f"{'float' if 'choice' in name else 'bool'}[] y", body, constants=_CONSTANTS)
    changed = normalize(source.clone()).model
    assert sorted(node.op_type for node in changed.graph) == sorted(left)
    drawn, feeds = np.random.default_rng(0), {}
    for x in source.graph.inputs:
        shape = [dim if isinstance(dim, int) else _SIZES[str(dim.value)] for dim in x.shape]
        feeds[x.name] = (drawn.standard_normal(shape) > 0).astype(x.dtype.numpy())
    (expected,), (result,) = run(source, feeds), run(changed, feeds)
    assert result.shape == expected.shape
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("other readers", "`a` has other readers"),
        ("a mask of its own", "`a` is no combination of bools, nor a choice between two numbers"),
        ("other dims", "the view does more than add dims of 1"),
    ],
)
def test_reasons(name: str, reason: str) -> None:
    inputs, body, _ = STAYS[name]
    model = graph(inputs, "bool[] y", body, constants=_CONSTANTS)
    infer(model).write()
    view = next(node for node in model.graph if node.op_type in ("Unsqueeze", "Reshape"))
    checked = ViewedMask(view.op_type).check(None, x=value(model, "a"), y=view.outputs[0])
    assert checked.reason == reason
