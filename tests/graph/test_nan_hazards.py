"""In which inputs NaN is not tried, and why."""

from __future__ import annotations

import onnx.parser
import onnx_ir as ir
import pytest

from onnxopt.graph.nan_hazards import inputs_of_hazards

HEADER = '<ir_version: 10, opset_import: ["" : 20, "elsewhere" : 1]> '
SIGNATURE = "g (float[n, 4] x, float[n, 4] s) => (float[n, 4] y) "


def _found(body: str, signature: str = SIGNATURE) -> dict[str, str]:
    return inputs_of_hazards(ir.from_proto(onnx.parser.parse_model(f"{HEADER}{signature}{{ {body} }}")))


@pytest.mark.parametrize(
    ("body", "inputs", "reason"),
    [
        ("k = Constant<value = int64[1] {2}>() t = Tanh(s) v, i = TopK(t, k) m = ReduceSum(v) y = Mul(x, m)", ["s"],
         "TopK: its order"),
        ("d = QuantizeLinear(x, h) e = DequantizeLinear(d, h) h = Constant<value = float {0.5}>() y = Add(e, s)", ["x"],
         "QuantizeLinear: which code"),
        ("b = IsNaN(x) z = Sub(s, s) y = Where(b, z, x)", [], ""),
        ("p = Softmax(x) b = IsNaN(p) z = Sub(s, s) y = Where(b, z, p)", ["x"], "IsNaN of a Softmax"),
        ("u = elsewhere.Op(s) y = Add(u, x)", ["s"], "elsewhere.Op is not known"),
        ("l = Shape(x) c = Cast<to = 1>(l) q = ReduceSum(c) z = Squeeze(q) o = Range(z, z, z) t = ReduceSum(o) "
         "y = Add(s, t)", [], ""),
    ],
    ids=["sorted", "quantized", "guard", "attention", "unknown", "shape"],
)  # fmt: skip
def test_the_inputs_that_reach_such_an_operand_are_named(body: str, inputs: list[str], reason: str) -> None:
    found = _found(body)
    assert sorted(found) == inputs
    assert all(text.startswith(reason) for text in found.values())


def test_an_operator_in_a_body_concerns_all_inputs() -> None:
    body = (
        "c = Constant<value = bool {1}>() y = If(c) <then_branch = t () => (float[n, 4] a) "
        "{ k = Constant<value = int64[1] {4}>() a, i = TopK(x, k) }, "
        "else_branch = e () => (float[n, 4] b) { b = Identity(x) }>"
    )
    assert sorted(_found(body)) == ["s", "x"]


@pytest.mark.parametrize(("grid", "inputs"), [("s", ["s"]), ("t", ["s", "x"])])
def test_pixels_of_maps_are_tried_where_their_positions_are_exact(grid: str, inputs: list[str]) -> None:
    signature = "g (float[1, 2, 3, 4] x, float[1, 5, 6, 2] s) => (float[1, 2, 5, 6] y) "
    found = _found(f"t = Tanh(s) u = Relu(t) y = GridSample(x, {grid})", signature)
    assert sorted(found) == inputs
    assert all(text.startswith("GridSample") for text in found.values())
