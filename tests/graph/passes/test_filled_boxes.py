"""ScatterND that fills a box becomes a choice: where, where not and why, and equal results."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from onnxopt.graph.normalize import normalize
from onnxopt.graph.passes.masks.filled_boxes import box_of
from onnxopt.graph.shapes.infer import infer
from tests.support.graphs import graph, run

_LAST = 2**63 - 1
# x[:, a:b, c:d] = k of x [1, H, W, 1], as torch's TorchScript exporter writes it. {first} and {step}: of the rows.
_BODY = """
    n = Shape <start = 1, end = 2> (x) rows_n = Squeeze (n)  m = Shape <start = 2, end = 3> (x) columns_n = Squeeze (m)
    rows = Range ({first}, rows_n, {step})  columns = Range (none, columns_n, once)
    some = Slice (rows, a, b, zero, one)  others = Slice (columns, c, d, zero, one)
    cut = Slice (x, a, b, one, one)  part = Slice (cut, c, d, two, one)  sizes = Shape (part)
    low = Reshape (some, to_rows)  high = Reshape (others, to_columns)
    i0 = Expand (origin, sizes)  i1 = Expand (low, sizes)  i2 = Expand (high, sizes)  i3 = Expand (zero, sizes)
    u0 = Unsqueeze (i0, last) u1 = Unsqueeze (i1, last) u2 = Unsqueeze (i2, last) u3 = Unsqueeze (i3, last)
    grid = Concat <axis = -1> (u0, u1, u2, u3)
    updates = {updates}
    y = ScatterND (data, grid, updates)
"""
_FILL = "ConstantOfShape <value = float[1] {3}> (sizes)"
_GRID = {"first": "none", "step": "once", "updates": _FILL}


def _model(rows: tuple[int, int], columns: tuple[int, int], data: str = "data = Abs (x)", **spelled: str) -> ir.Model:
    bounds = dict(zip("abcd", (*rows, *columns), strict=True))
    constants = ", ".join(f"int64[1] {name} = {{{number}}}" for name, number in bounds.items())
    return graph(
        "float[1, H, W, 1] x", "float[] y", data + _BODY.format(**{**_GRID, **spelled}),
        constants=f"{constants}, int64 none = {{0}}, int64 once = {{1}}, int64 twice = {{2}}, int64[1] zero = {{0}}, "
        "int64[1] one = {1}, int64[1] two = {2}, int64[1] last = {-1}, int64[3] to_rows = {-1, 1, 1}, "
        "int64[2] to_columns = {-1, 1}, int64[1, 1, 1, 1] origin = {0}, int64[4] outer = {1, 1, 1, 1}",
    )  # fmt: skip


def _agree(source: ir.Model, changed: ir.Model) -> None:
    for height, width in ((6, 5), (4, 4), (2, 3), (1, 1)):
        x = np.random.default_rng(height).standard_normal((1, height, width, 1)).astype(np.float32)
        (expected,), (result,) = run(source, {"x": x}), run(changed, {"x": x})
        assert result.shape == expected.shape
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("rows", [(0, -4), (-4, -2), (-2, _LAST), (1, 3), (0, 2), (-3, 4)])
@pytest.mark.parametrize("columns", [(0, -2), (2, _LAST), (0, _LAST)])
def test_boxes_become_choices(rows: tuple[int, int], columns: tuple[int, int]) -> None:
    source = _model(rows, columns)
    changed = normalize(source.clone()).model
    operators = [node.op_type for node in changed.graph]
    assert "ScatterND" not in operators and operators.count("Where") == 1
    _agree(source, changed)


def test_sizes_stay_on_the_host() -> None:
    changed = normalize(_model((0, -4), (-2, _LAST))).model
    bounds = [v.producer().op_type for n in changed.graph if n.op_type == "Range" for v in n.inputs if v.producer()]
    assert bounds.count("Neg") == 2
    assert "Sub" not in {node.op_type for node in changed.graph}


def test_of_one_number_both_are_constants() -> None:
    source = _model((0, -4), (-2, _LAST), "s = Shape (x) data = ConstantOfShape <value = float[1] {7}> (s)")
    changed = normalize(source.clone()).model
    assert not {"ScatterND", "ConstantOfShape"} & {node.op_type for node in changed.graph}
    _agree(source, changed)
    source = _model((0, -4), (0, _LAST), "s = Shape (x) data = ConstantOfShape <value = float[1] {7}> (s)")
    changed = normalize(source.clone()).model  # all columns: the choice has fewer elements than the data
    assert "ConstantOfShape" in {node.op_type for node in changed.graph}
    _agree(source, changed)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (_model((0, -4), (0, 2), updates="Neg (part)"), "the updates are not one number that is stored"),
        (_model((0, _LAST), (0, _LAST)), "all elements are replaced"),
        (_model((0, -4), (0, 2), first="once"), "the positions along axis 1 are no part of those that are there"),
        (_model((0, -4), (0, 2), step="twice"), "the positions along axis 1 are no part of those that are there"),
    ],
    ids=["other updates", "all", "from 1 on", "every second one"],
)  # fmt: skip
def test_what_stays(source: ir.Model, why: str) -> None:
    found = source.clone()
    node = next(n for n in found.graph if n.op_type == "ScatterND")
    assert box_of(node, infer(found)) == why
    assert "ScatterND" in [n.op_type for n in normalize(found).model.graph]


def test_a_reduction_stays() -> None:
    source = _model((0, -4), (0, 2))
    node = next(n for n in source.graph if n.op_type == "ScatterND")
    node.attributes.add(ir.AttrString("reduction", "add"))
    assert box_of(node, infer(source)) == "the updates are not one number that is stored"
