"""Scales, zero points and blocks that nothing can dequantize with are refused in one line, and nothing is written."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from onnxopt.errors import ModelError
from onnxopt.graph import code_limits
from tests.support.command import assert_refused, run
from tests.support.decoders import genai_graphs
from tests.support.graphs import graph

_PAIR = "q = QuantizeLinear<axis = {axis}>(x, s, z)  y = DequantizeLinear<axis = {axis}>(q, s, z)"
_BLOCKS = "y = DequantizeLinear<axis = 0, block_size = {size}>(w, s)"
_FOUR = "{1, 2, 3, 4}"
# body, constants, the reason; x is [N, 4]
_WRONG = {
    "scale of 0": (_PAIR.format(axis=1), f"float[4] s = {{1, 0, 2, 3}}, uint8[4] z = {_FOUR}",
                   "QuantizeLinear `q`: the scale `s` is 0, and numbers are divided by it"),
    "scales of another length": (
        _PAIR.format(axis=1), "float[3] s = {1, 2, 3}, uint8[3] z = {1, 2, 3}",
        "the scale has shape [3]; it takes one value, or one for each of 4 on axis 1"),
    "scales of rank 2": (_PAIR.format(axis=1), "float[2, 2] s = {1, 2, 3, 4}, uint8[2, 2] z = {1, 2, 3, 4}",
                         "the scale has shape [2, 2]; it takes one value"),
    "zero points of another length": (
        _PAIR.format(axis=1), f"float[4] s = {_FOUR}, uint8[3] z = {{1, 2, 3}}",
        "the zero point has shape [3], the scale [4]"),
    "axis": (_PAIR.format(axis=2), f"float[4] s = {_FOUR}, uint8[4] z = {_FOUR}",
             "axis 2 is none of a tensor of 2 dims"),
    "blocks that do not divide": (
        _BLOCKS.format(size=3), "int8[4, 1] w = {1, 2, 3, 4}, float[1, 1] s = {1}",
        "[4, 1] in blocks of 3 along axis 0 takes scales of shape [2, 1], these have [1, 1]"),
}  # fmt: skip


_WRONG["blocks of less than 0"] = (_BLOCKS.format(size=-2), "int8[4, 1] w = {1, 2, 3, 4}, float[2, 1] s = {1, 2}",
                                   "DequantizeLinear `y`: blocks of -2")  # fmt: skip


def _model(body: str, constants: str) -> ir.Model:
    return graph("float[N, 4] x", "float[M, K] y", body, constants=constants, opset=21)


@pytest.mark.parametrize("case", _WRONG)
def test_wrong(case: str, tmp_path: Path) -> None:
    body, constants, reason = _WRONG[case]
    ir.save(_model(body, constants), tmp_path / "model.onnx")
    result = run("optimize", tmp_path / "model.onnx", "-o", tmp_path / "out", "--arch", "none")
    assert_refused(result)
    assert reason in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_scale_that_is_no_number(number: float) -> None:
    model = _model(_PAIR.format(axis=1), "float s = {1}, uint8 z = {3}")
    model.graph.initializers["s"].const_value = ir.tensor(np.array(number, np.float32), name="s")
    with pytest.raises(ModelError, match=f"the scale `s` has a value that is no number: {number:g}"):
        code_limits.check(model)


@pytest.mark.parametrize(
    ("body", "constants"),
    [
        (_PAIR.format(axis=1), "float s = {0.1}, uint8[1] z = {3}"),
        (_PAIR.format(axis=7), "float s = {0.1}, uint8 z = {3}"),  # of the whole tensor: no axis is asked for
        (_PAIR.format(axis=-1), f"float[4] s = {_FOUR}, uint8[4] z = {_FOUR}"),
        ("y = DequantizeLinear(w, s)", "int8[2, 2] w = {1, 2, 3, 4}, float s = {0}"),  # a tensor of zeros
        (_BLOCKS.format(size=3), "int8[4, 1] w = {1, 2, 3, 4}, float[2, 1] s = {1, 2}"),
    ],
)
def test_right(body: str, constants: str) -> None:
    code_limits.check(_model(body, constants))


@pytest.mark.parametrize(
    ("attribute", "value", "reason"),
    [
        ("block_size", 48, "blocks of 48; they are a power of two from 16 on"),
        ("bits", 5, "weights of 5 bits; there are 2, 4, 8"),
        ("K", 96, "the weight has 3072 bytes; K 96 and N 96 of 4 bits in blocks of 32 take 4608"),
        ("block_size", 64, "192 scales; K 64 and N 96 of 4 bits in blocks of 64 take 96"),
    ],
)
def test_wrong_products(attribute: str, value: int, reason: str) -> None:
    proto = genai_graphs.genai(layers=1)
    (node,) = [n for n in proto.graph.node if n.output[0] == "layers.0.gate"]
    next(a for a in node.attribute if a.name == attribute).i = value
    with pytest.raises(ModelError, match=r"MatMulNBits `layers\.0\.gate_node`: ") as error:
        code_limits.check(ir.from_proto(proto))
    assert reason in str(error.value)


def test_too_few_scales_of_a_product() -> None:
    proto = genai_graphs.genai(layers=1)
    for initializer in proto.graph.initializer:
        if initializer.name == "layers.0.gate.scales":
            initializer.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(initializer)[:, :1], initializer.name))
    with pytest.raises(ModelError, match="96 scales; K 64 and N 96 of 4 bits in blocks of 32 take 192"):
        code_limits.check(ir.from_proto(proto))


@pytest.mark.parametrize(
    ("zero_points", "reason"),
    [
        (np.zeros(95, np.uint8), "95 bytes of zero points; K 64 and N 96 of 4 bits in blocks of 32 take 96"),
        (np.zeros((96, 2), np.uint8), "192 bytes of zero points; K 64 and N 96 of 4 bits in blocks of 32 take 96"),
        (np.zeros(96, np.float32), "96 zero points; K 64 and N 96 of 4 bits in blocks of 32 take 192"),
        (np.zeros(96, np.uint8), ""),
        (np.zeros((96, 2), np.float32), ""),
    ],
)
def test_zero_points_of_a_product(zero_points: np.ndarray, reason: str) -> None:
    proto = genai_graphs.genai(layers=1)
    (node,) = [n for n in proto.graph.node if n.output[0] == "layers.0.gate"]
    node.input.append("zero_points")
    proto.graph.initializer.append(numpy_helper.from_array(zero_points, "zero_points"))
    if not reason:
        code_limits.check(ir.from_proto(proto))
        return
    with pytest.raises(ModelError, match=f"MatMulNBits `.*`: {reason}"):
        code_limits.check(ir.from_proto(proto))


def test_the_zero_point_of_8_bit_floats_is_0() -> None:
    model = _model(_PAIR.format(axis=1), "float s = {1}, uint8 z = {3}")
    tensor = ir.tensor(np.array(2, ml_dtypes.float8_e4m3fn), name="z")
    model.graph.initializers["z"].const_value = tensor
    with pytest.raises(ModelError, match="the zero point is 2; codes that are 8-bit floats have none but 0"):
        code_limits.check(model)
