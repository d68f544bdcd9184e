"""`quantize --format int8` of convolution networks: which maps become codes, and what runs on them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxopt
from cases.models import fuse, laid_out
from onnxopt.kinds.convolution.kind import CONVOLUTION
from onnxopt.program.convolution import Convolution

_CONVOLUTIONS = (  # name, what it reads, filters, channels of a filter, side of the window, groups
    ("stem", "x", 64, 3, 3, 1), ("narrow", "pooled", 64, 64, 1, 1), ("middle", "narrow_relu", 64, 64, 3, 1),
    ("wide", "middle_relu", 128, 64, 1, 1), ("skip", "pooled", 128, 64, 1, 1), ("again", "block", 128, 128, 3, 1),
    ("spread", "block2", 128, 1, 3, 128), ("few", "spread", 32, 128, 1, 1), ("head", "few", 64, 32, 1, 1),
)  # fmt: skip


def network() -> onnx.ModelProto:
    """Two blocks with residuals, one of them a convolution's, between a stem, a depthwise convolution and a head."""
    rng = np.random.default_rng(0)
    nodes, constants = {}, []
    for name, x, filters, channels, side, group in _CONVOLUTIONS:
        weight = rng.standard_normal((filters, channels, side, side)) / np.sqrt(channels * side * side)
        constants += [numpy_helper.from_array(weight.astype(np.float32), f"{name}_w")]
        constants += [numpy_helper.from_array(rng.standard_normal(filters).astype(np.float32) / 4, f"{name}_b")]
        inputs, pads = [x, f"{name}_w", f"{name}_b"], [side // 2] * 4
        nodes[name] = helper.make_node("Conv", inputs, [name], name=name, group=group, pads=pads)
    relu = lambda x, y: helper.make_node("Relu", [x], [y], name=y)  # noqa: E731
    add = lambda a, b, y: helper.make_node("Add", [a, b], [y], name=y)  # noqa: E731
    pool = helper.make_node("MaxPool", ["stem_relu"], ["pooled"], name="pooled", kernel_shape=[2, 2], strides=[2, 2])
    order = [
        nodes["stem"], relu("stem", "stem_relu"), pool, nodes["narrow"], relu("narrow", "narrow_relu"), nodes["middle"],
        relu("middle", "middle_relu"), nodes["wide"], nodes["skip"], add("wide", "skip", "sum"), relu("sum", "block"),
        nodes["again"], add("again", "block", "sum2"), relu("sum2", "block2"), nodes["spread"], nodes["few"],
        nodes["head"],
    ]  # fmt: skip
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, d) for n, d in (("x", [2, 3, 16, 16]), ("head", None)))
    graph = helper.make_graph(order, "network", [x], [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, onnxopt.Quantized]:
    folder = tmp_path_factory.mktemp("network")
    onnx.save(network(), folder / "network.onnx")
    np.savez(folder / "x.npz", x=np.random.default_rng(1).standard_normal((2, 3, 16, 16)).astype(np.float32))
    output = folder / "quantized.onnx"
    return output, onnxopt.quantize(folder / "network.onnx", output, format="int8", calibrate=[folder / "x.npz"])


def test_what_is_quantized(quantized: tuple[Path, onnxopt.Quantized]) -> None:
    _, result = quantized
    assert [p.node for p in result.products] == ["narrow", "middle", "wide", "skip", "again"]
    reasons = {row.node: row.reason for row in result.left}
    assert "no multiples of 16" in reasons["stem"] and "groups" in reasons["spread"] and "output" in reasons["head"]
    assert "fewer than 64" in reasons["few"]
    (quality,) = result.quality
    assert quality.sqnr_db is not None and quality.sqnr_db > 25


def test_a_residual_is_codes_and_the_sum_is_rounded_once(quantized: tuple[Path, onnxopt.Quantized]) -> None:
    graph = onnx.load(quantized[0]).graph
    makers = {name: node for node in graph.node for name in node.output}
    for name, convolutions in (("sum", {"wide", "skip"}), ("sum2", {"again"})):
        (add,) = [node for node in graph.node if node.name == name]
        assert Counter(makers[x].op_type for x in add.input) == {"Conv": 1, "DequantizeLinear": 1}
        assert convolutions & {makers[x].name for x in add.input}


def test_maps_between_convolutions_are_codes(quantized: tuple[Path, onnxopt.Quantized]) -> None:
    plan = fuse(laid_out(onnx.load(quantized[0]), gpu=True))
    meanings = [r.meaning for r in plan.regions if r.kind is CONVOLUTION and isinstance(r.meaning, Convolution)]
    coded = [m for m in meanings if m.codes is not None]
    assert len(coded) == 5
    assert [m.outputs[0] for m in coded].count("int8") == 4  # a depthwise convolution reads floats
    assert [m.inputs[m.residual] for m in coded if m.residual is not None] == ["int8", "int8"]
