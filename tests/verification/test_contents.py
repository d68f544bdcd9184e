"""contents: inputs that restrict their elements are drawn so that ONNX Runtime accepts them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import onnxopt
from onnxopt.graph import input_uses, signature
from onnxopt.graph.input_uses import Use
from onnxopt.runtime import sessions
from onnxopt.verification.sampling import contents, samples
from tests.support.small_models import write

HEADER = '<ir_version: 8, opset_import: ["" : 18, "com.microsoft" : 1]>\n'
RESTRICTED = {
    "Gather": "g (float[5, 3] t, int64[n] i) => (float[5, n] y) { y = Gather<axis = 1>(t, i) }",
    "GatherCast": "g (float[3, 5] t, float[n] i) => (float[n, 5] y) { j = Cast<to = 7>(i) y = Gather(t, j) }",
    "GatherElements": "g (float[3, 2] t, int64[3, 2] i) => (float[3, 2] y) { y = GatherElements<axis = 1>(t, i) }",
    "GatherND": "g (float[2, 9] t, int64[5, 2] i) => (float[5] y) { y = GatherND(t, i) }",
    "ScatterElements": "g (float[2, 5] t, int64[1, 2] i, float[1, 2] u) => (float[2, 5] y)"
    " { y = ScatterElements<axis = 1>(t, i, u) }",
    "ScatterND": "g (float[4, 2] t, int64[3, 1] i, float[3, 2] u) => (float[4, 2] y) { y = ScatterND(t, i, u) }",
    "ReduceMax": "g (float[a, 3, 4] x, int64[2] axes) => (float[d, e, f] y) { y = ReduceMax<keepdims = 1>(x, axes) }",
    "Squeeze": "g (float[3, 1, 4] x, int64[1] axes) => (float[3, 4] y) { y = Squeeze(x, axes) }",
    "Unsqueeze": "g (float[3, 4] x, int64[2] axes) => (float[d, e, f, h] y) { y = Unsqueeze(x, axes) }",
    "CumSum": "g (float[3, 4] x, int64 axis) => (float[3, 4] y) { y = CumSum(x, axis) }",
    "Reshape": "g (float[4, 6] x, int64[3] s) => (float[2, 3, 4] y) { y = Reshape(x, s) }",
    "ReshapeUndeclared": "g (float[4, 6] x, int64[3] s) => (float[d, e, f] y) { y = Reshape(x, s) }",
    "Expand": "g (float[4, 1] x, int64[2] s) => (float[4, 6] y) { y = Expand(x, s) }",
    "Div": "g (int32[n] x, int32[n] z) => (int32[n] y) { y = Div(x, z) }",
    "Mod": "g (int64[n] x, int64[1, n] z) => (int64[1, n] y) { y = Mod(x, z) }",
    "Range": "g (float a, float b, float c) => (float[n] y) { y = Range(a, b, c) }",
    "ConstantOfShape": "g (int64[2] s) => (float[d, e] y) { y = ConstantOfShape(s) }",
    "Slice": "g (float[5, 6] x, int64[1] a, int64[1] b, int64[1] c, int64[1] d) => (float[e, f] y)"
    " { y = Slice(x, a, b, c, d) }",
    "Pad": "g (float[3, 4] x, int64[4] p, float v) => (float[d, e] y) { y = Pad(x, p, v) }",
    "TopK": "g (float[3, 4] x, int64[1] k) => (float[3, d] y, int64[3, d] i) { y, i = TopK(x, k) }",
    "OneHot": "g (int64[3] i, int64 depth, float[2] values) => (float[3, d] y) { y = OneHot(i, depth, values) }",
    "Split": "g (float[7, 2] x, int64[2] s) => (float[d, 2] y, float[e, 2] z) { y, z = Split(x, s) }",
    "Resize": "g (float[1, 1, 2, 2] x, float[4] s) => (float[1, 1, 4, 6] y) { r = Constant<value_floats = [0.0]>()"
    ' y = Resize<mode = "nearest">(x, , s) }',
    "Tile": "g (float[2, 3] x, int64[2] r) => (float[d, e] y) { y = Tile(x, r) }",
    "text": "g (string[n] x) => (float[n] y) { y = Cast<to = 1>(x) }",
}


@pytest.mark.parametrize("name", RESTRICTED)
def test_inputs_are_accepted(name: str, tmp_path: Path) -> None:
    model = write(tmp_path / "m.onnx", HEADER + RESTRICTED[name])
    report = onnxopt.verify(model, model, providers=[sessions.CPU])
    assert report.status == "passed", report.reason
    assert not report.skipped
    assert len({check.case for check in report.checks}) >= 3


def test_indices_into_a_scatter_are_distinct() -> None:
    """Of two equal indices either update may win, so that two right models could differ."""
    use = Use("distinct_index", (4, 6), axis=1)
    drawn = contents.draw(np.random.default_rng(0), (use,), (4, 6), {}, False)
    assert drawn is not None
    assert (np.sort(drawn, axis=1) == np.arange(6)).all()


def test_uses_are_followed_through_operators_and_functions(tmp_path: Path) -> None:
    text = (
        '<ir_version: 8, opset_import: ["" : 18, "own" : 1]>'
        "g (float[5, 2] t, int32[n] i) => (float[n, 2] y) { j = Cast<to = 7>(i) y = own.Rows(t, j) }"
        '<domain: "own", opset_import: ["" : 18]> Rows (t, i) => (y) { k = Identity(i) y = Gather(t, k) }'
    )
    model = ir.load(write(tmp_path / "m.onnx", text))
    uses = input_uses.uses_of_inputs(model)
    assert [(use.role, use.data) for use in uses["i"]] == [("index", (5, 2))]
    drawn = samples.draw(signature.inputs_of(model), {"n": 200}, 0, uses)["i"]
    assert drawn.dtype == np.int32
    assert set(np.unique(drawn)) == {0, 1, 2, 3, 4}


def test_a_table_of_a_dynamic_size_is_looked_up_at_the_size_of_the_run() -> None:
    use = Use("index", ("rows + 1", 2))
    drawn = contents.draw(np.random.default_rng(0), (use,), (500,), {"rows": 9}, False)
    assert drawn is not None
    assert drawn.max() == 9


def test_every_role_can_be_drawn_without_knowing_any_dim() -> None:
    roles = {row.role for rows in input_uses._USES.values() for row in rows.values()}
    for role in roles:
        for shape in ((), (1,), (2, 3)):
            assert contents.draw(np.random.default_rng(0), (Use(role),), shape, {}, False) is not None
