"""GatherND of positions that follow each other is a Slice, in front of the Transpose that computes its operand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from onnxopt.graph.rewrite import rewrite
from onnxopt.graph.rewrite.gathers import KnownPart
from onnxopt.graph.rewrite.masks.index_functions import Affine
from onnxopt.graph.rewrite.masks.index_values import IndexValues
from onnxopt.graph.shapes.infer import infer
from tests.support.graphs import graph, hold, run, value
from tests.support.refused import reason

HEADS = "t = Transpose<perm = [2, 0, 1, 3]>(x) "


def model_of(body: str, where: list[list[int]], dims: str = "batch, length, 4, 8") -> ir.Model:
    model = graph(f"float[{dims}] x, int64[{len(where)}, {len(where[0])}] where", "float[] y", body)
    hold(model, {"where": np.array(where)}, np.int64)
    return model


@pytest.mark.parametrize("where", [[[-2]], [[3]], [[1], [2]], [[-4], [-3], [-2], [-1]], [[0], [1]]])
@pytest.mark.parametrize("back", ["y = Transpose<perm = [1, 0, 2, 3]>(g)", "y = Identity(g)"])
def test_a_part_of_the_heads_is_cut_off(where: list[list[int]], back: str, tmp_path: Path) -> None:
    model = model_of(f"{HEADS} g = GatherND(t, where) {back}", where)
    found = model.clone()
    rewrite(found, tmp_path)
    assert [node.op_type for node in found.graph if node.op_type != "Identity"][:2] == ["Slice", "Transpose"]
    for batch, length in ((2, 3), (1, 1)):
        x = {"x": np.random.default_rng(0).standard_normal((batch, length, 4, 8)).astype(np.float32)}
        np.testing.assert_array_equal(run(found, x)[0], run(model, x)[0])


@pytest.mark.parametrize(
    ("body", "where", "why"),
    [
        (f"{HEADS} y = GatherND(t, where)", [[1], [3]], "the positions do not follow each other"),
        (f"{HEADS} y = GatherND(t, where)", [[2], [1]], "the positions do not follow each other"),
        (f"{HEADS} y = GatherND(t, where)", [[0], [1], [3]], "the positions are not known"),
        (f"{HEADS} y = GatherND(t, where)", [[3], [4]], "the data has no such positions"),
        (f"{HEADS} y = GatherND(t, where)", [[-5]], "the data has no such positions"),
        (f"{HEADS} y = GatherND(t, where)", [[-1], [0]], "the data has no such positions"),
        (f"{HEADS} y = GatherND(t, where)", [[1, 0]], "the positions are not a known number along the first axis"),
        ("y = GatherND(x, where)", [[1]], "the positions, or the dims of the data, are not known"),
        (f"{HEADS} y = GatherND<batch_dims = 1>(t, where)", [[1]], "GatherND has batch dims"),
    ],
)  # fmt: skip
def test_other_positions_are_gathered(body: str, where: list[list[int]], why: str) -> None:
    model = model_of(body, where)
    assert reason(model, "y", KnownPart.rule(IndexValues(model.graph, infer(model)))) == why


def test_positions_of_a_view_that_adds_or_removes_dims_of_one() -> None:
    """As exporters write Unsqueeze where the number of positions is dynamic."""
    body = (
        "s = Shape (x) n = Squeeze (s) r = Range (i0, n, i1) down = Reshape (r, column) across = Reshape (down, row) "
        "y = Add (down, across)"
    )
    constants = "int64[2] column = {-1, 1}, int64[2] row = {1, -1}"
    model = graph("float[N] x, int64 i0, int64 i1", "int64[N, N] y", body, constants=constants)
    hold(model, {"i0": np.array(0), "i1": np.array(1)}, np.int64)
    values = IndexValues(model.graph, infer(model))
    assert values.of(value(model, "down")) == Affine(0, (1, 0))
    assert values.of(value(model, "across")) == Affine(0, (0, 1))
    assert values.of(value(model, "y")) == Affine(0, (1, 1))
