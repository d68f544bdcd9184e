"""Which convolutions become image convolutions, with what around them, and which are left to other kinds."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from cases.image_convolution import Case, fused
from cases.models import fuse, outline
from onnxopt.graph import normalize, rewrite

STEM = Case((2, 3, 16, 18), 16, (3, 3), (2, 2), (1, 1, 1, 1), behind="silu", appended=1)


def _kinds(case: Case) -> list[str]:
    return [region.kind.name for region in fused(case).plan.regions]


@pytest.mark.parametrize("behind", ["", "relu", "silu", "gelu_scale", "prelu", "hardswish"])
def test_all_that_stands_around_joins(behind: str) -> None:
    case = dataclasses.replace(STEM, behind=behind)
    found = fused(case)
    (region,) = found.plan.regions
    assert region.kind.name == "image_convolution" and not found.plan.refusals
    assert {n.op_type for n in region.nodes} >= {"Transpose", "Pad", "Conv"}
    assert [v.name for v in region.inputs[:3]] == ["t", "w", "bias"] and region.outputs[0].name == "y"
    (node,) = found.optimized.graph.node
    assert node.op_type.startswith("Conv")


def test_the_meaning() -> None:
    (kernel,) = fused(STEM).kernels
    meaning = kernel.program.to_json()
    assert (meaning["channels"], meaning["weight_channels"], meaning["filters"], meaning["planes"]) == (3, 4, 16, True)
    (kernel,) = fused(dataclasses.replace(STEM, planes=False, appended=0)).kernels
    meaning = kernel.program.to_json()
    assert (meaning["channels"], meaning["weight_channels"], meaning["planes"]) == (3, 3, False)


@pytest.mark.parametrize(
    "case",
    [
        dataclasses.replace(STEM, x=(2, 5, 16, 18), appended=0),
        dataclasses.replace(STEM, filters=12),
        dataclasses.replace(STEM, dtype="float64"),
        dataclasses.replace(STEM, kernel=(13, 13), pads=(6, 6, 6, 6)),
        dataclasses.replace(STEM, strides=(5, 2)),
        dataclasses.replace(STEM, kernel=(1, 1), pads=(0, 0, 0, 0)),
    ],
    ids=["channels", "filters", "float64", "kernel", "stride", "product"],
)
def test_others_are_left_to_other_kinds(case: Case) -> None:
    assert "image_convolution" not in _kinds(case)


def test_a_residual_stays_behind() -> None:
    model = dataclasses.replace(STEM, behind="").model()
    model.graph.node[-1].output[0] = "v"
    model.graph.node.append(helper.make_node("Add", ["v", "r"], ["y"]))
    model.graph.input.append(helper.make_tensor_value_info("r", onnx.TensorProto.FLOAT16, [2, 8, 9, 16]))
    plan = fuse(ir.serde.deserialize_model(model))
    (region,) = (r for r in plan.regions if r.kind.name == "image_convolution")
    assert region.outputs[0].name == "v"


def test_a_transposed_image_that_others_read_is_read_as_nhwc() -> None:
    model = dataclasses.replace(STEM, appended=0).model()
    model.graph.node.append(helper.make_node("Relu", ["t_nhwc"], ["z"]))
    model.graph.output.append(helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT16, None))
    plan = fuse(ir.serde.deserialize_model(model))
    (region,) = (r for r in plan.regions if r.kind.name == "image_convolution")
    assert region.inputs[0].name == "t_nhwc"


@pytest.mark.parametrize(
    ("image", "front", "turned_first", "planes"),
    [
        ("float32", "cast", False, True),
        ("float32", "normalize", False, True),
        ("uint8", "normalize", True, True),
        ("uint8", "normalize", False, False),
        ("", "scaled", True, True),
    ],
)
def test_what_makes_16_bits_of_an_image_joins(image: str, front: str, turned_first: bool, planes: bool) -> None:
    case = dataclasses.replace(STEM, image=image, front=front, turned_first=turned_first, planes=planes)
    found = fused(case)
    (region,) = found.plan.regions
    assert region.kind.name == "image_convolution" and not found.plan.refusals
    assert [v.name for v in region.inputs[:3]] == ["t", "w", "bias"]
    (kernel,) = found.kernels
    meaning = kernel.program.to_json()
    assert meaning["inputs"][0] == (image or "float16") and meaning["planes"] is planes
    reads = 2 if front == "normalize" else front == "scaled"
    assert [r["form"] for r in meaning["prologue"]["reads"]] == ["channel"] * reads
    assert "prologue" not in fused(STEM).kernels[0].program.to_json()


def _with_image(body: str, dtype: int, dims: list[object]) -> ir.Model:
    """STEM with this in front of its image `t`, which comes from `i`."""
    model = dataclasses.replace(STEM, behind="").model()
    nodes = onnx.parser.parse_graph(f"g () => () {{ {body} }}").node
    model.graph.node.extend(nodes)
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("i", dtype, dims))
    model = ir.serde.deserialize_model(model)
    ir.passes.common.TopologicalSortPass()(model)
    return model


@pytest.mark.parametrize(
    ("body", "dtype", "reads"),
    [
        ("t = Cast<to = 10>(i)", onnx.TensorProto.INT32, "t"),  # no dtype that the kernel reads
        ("c = Cast<to = 1>(i)  e = Erf(c)  f = Erf(e)  g = Erf(f)  t = Cast<to = 10>(g)", onnx.TensorProto.UINT8, "t"),
    ],
    ids=["int32", "work"],
)
def test_what_stays_in_front(body: str, dtype: int, reads: str) -> None:
    plan = fuse(_with_image(body, dtype, [2, 3, 16, 18]))
    (region,) = (r for r in plan.regions if r.kind.name == "image_convolution")
    assert region.inputs[0].name == reads


def test_an_image_that_the_prologue_reads_twice() -> None:
    body = "c = Neg(i)  a = Add(c, i)  t = Cast<to = 10>(a)"
    plan = fuse(_with_image(body, onnx.TensorProto.FLOAT, [2, 3, 16, 18]))
    (region,) = (r for r in plan.regions if r.kind.name == "image_convolution")
    assert region.inputs[0].name == "i"
    assert {n.op_type for n in region.nodes} >= {"Neg", "Add", "Cast"}


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_what_the_layout_pass_writes(channels: int, tmp_path) -> None:  # type: ignore[no-untyped-def]
    """A stem of an NCHW image, its Transpose and Pad included, is one region."""
    weight = np.random.default_rng(0).standard_normal((16, channels, 7, 7)).astype(np.float16)
    body = [
        helper.make_node("Conv", ["x", "w"], ["v"], strides=[2, 2], pads=[3] * 4),
        helper.make_node("Relu", ["v"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["y"], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4),
    ]
    infos = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT16, ["N", channels, 64, 64])]
    results = [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT16, None)]
    graph = helper.make_graph(body, "g", infos, results, [onnx.numpy_helper.from_array(weight, "w")])
    source = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    model = normalize.normalize(ir.from_proto(source)).model
    rewrite.rewrite(model, tmp_path)
    (stem,) = (r for r in fuse(model).regions if r.kind.name == "image_convolution")
    ops = [n.op_type for n in stem.nodes]
    assert ops.count("Relu") == 1 and ops.count("Pad") == (channels == 3)
    if channels > 1:  # of one channel, both layouts are the same memory
        assert stem.inputs[0].name == "x"


@pytest.mark.parametrize("first", ["Conv", "MaxPool", "Conv of 3x3"])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_the_result_of_another_window_keeps_its_transpose(channels: int, first: str, tmp_path) -> None:  # type: ignore[no-untyped-def]
    """A decoder of AutoencoderKL: a 1x1 Conv to 4 channels (post_quant_conv), then one of 3x3 to many (conv_in)."""
    random = np.random.default_rng(0)
    weights = {"w": random.standard_normal((16, channels, 3, 3))}
    node = helper.make_node("MaxPool", ["x"], ["a"], kernel_shape=[2, 2])
    if first != "MaxPool":
        side = 3 if "3x3" in first else 1
        weights["v"] = random.standard_normal((channels, channels, side, side))
        node = helper.make_node("Conv", ["x", "v"], ["a"])
    infos = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT16, ["N", channels, 12, 12])]
    results = [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT16, None)]
    constants = [onnx.numpy_helper.from_array(w.astype(np.float16), name) for name, w in weights.items()]
    graph = helper.make_graph([node, helper.make_node("Conv", ["a", "w"], ["y"])], "g", infos, results, constants)
    source = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    model = normalize.normalize(ir.from_proto(source)).model
    rewrite.rewrite(model, tmp_path)
    plan = fuse(model)
    nodes = [node for region in plan.regions for node in region.nodes]
    assert len(nodes) == len(set(nodes))
    (last,) = (r for r in plan.regions if r.kind.name == "image_convolution" and r.nodes[-1].outputs[0].name != "a")
    assert sum(n.op_type == "Conv" for n in last.nodes) == 1
    made = {v.name for r in plan.regions for v in r.outputs} | {v.name for n in model.graph for v in n.outputs}
    assert {v.name for v in last.inputs} <= made | set(model.graph.initializers) | {"x"}
    outline(model, plan)
    for value in (v for n in model.graph for v in n.inputs if v is not None and not v.is_initializer()):
        assert value.is_graph_input() or value.producer() in set(model.graph)
