"""traits: what verification needs to know of a model, read from its graph."""

from __future__ import annotations

import onnx_ir as ir

from onnxopt.graph import traits


def test_outputs_that_no_float_decides() -> None:
    model = ir.from_onnx_text("""<ir_version: 9, opset_import: ["" : 20]> g (float[N, 4] x, int64[N] k)
        => (int64[2] shape, int64[N] twice, int64[N] best) {
            shape = Shape(x)  twice = Add(k, k)  best = ArgMax <axis = 1, keepdims = 0> (x)
        }""")
    assert traits.of(model).float_decided == {"best"}


def test_precision_is_the_coarsest_of_all_values() -> None:
    body = "g (float[N] x) => (float[N] y) { h = Cast <to = %d> (x)  y = Cast <to = 1> (h) }"
    for dtype, precision in ((ir.DataType.FLOAT16, "float16"), (ir.DataType.DOUBLE, "float32")):
        model = ir.from_onnx_text(f'<ir_version: 9, opset_import: ["" : 20]> {body % dtype}')
        assert traits.of(model).precision == precision
