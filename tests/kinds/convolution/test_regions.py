"""Convolution regions: what a Conv in NHWC takes in, what it leaves and why, and that nothing it computes changes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from cases.convolution import ACTIVATIONS, SLOPE, Layer
from cases.models import fuse, outline
from onnxopt.codegen import kernels_json
from onnxopt.fusion.region import FusionPlan, Region
from onnxopt.kinds.convolution.kind import CONVOLUTION
from onnxopt.program.convolution import Convolution
from onnxopt.program.window import Window
from tests.support.graphs import run

SAME = (1, 1, 1, 1)
WIDE = Layer(dtype="float16", c=64, k=64, pads=SAME, activation="silu")


def regions(plan: FusionPlan) -> list[Region]:
    return [r for r in plan.regions if r.kind is CONVOLUTION]


def fused(model: onnx.ModelProto) -> FusionPlan:
    return fuse(ir.from_proto(model))


def reasons(plan: FusionPlan) -> list[str]:
    return [r.reason for r in plan.refusals]


@pytest.mark.parametrize(
    ("layer", "nodes", "fields"),
    [
        (Layer(), "w_turned x_nchw conv v", {"bias": 2}),
        (Layer(bias=False), "w_turned x_nchw conv v", {}),
        (Layer(activation="relu"), "w_turned x_nchw conv v active", {"bias": 2, "activation": "relu"}),
        (Layer(residual="before"), "w_turned x_nchw conv v sum", {"bias": 2, "residual": 3}),
        (
            Layer(residual="before", activation="relu"),
            "w_turned x_nchw conv v sum active",
            {"bias": 2, "residual": 3, "activation": "relu"},
        ),
        (
            dataclasses.replace(WIDE, c=32),
            "w_turned x_nchw conv v gate active",
            {"bias": 2, "activation": "silu"},
        ),
        (WIDE, "w_turned x_nchw conv v gate active", {"bias": 2, "activation": "silu"}),
        (
            dataclasses.replace(WIDE, residual="last"),
            "w_turned x_nchw conv v gate active sum",
            {"bias": 2, "residual": 3, "residual_last": True, "activation": "silu"},
        ),
        (
            dataclasses.replace(WIDE, activation="clip"),
            "w_turned x_nchw conv v active",
            {"bias": 2, "activation": "clip", "activation_value": 6.0},
        ),
        (
            dataclasses.replace(WIDE, activation="leaky_relu", residual="last"),
            "w_turned x_nchw conv v active sum",
            {"bias": 2, "residual": 3, "residual_last": True, "activation": "leaky_relu", "activation_value": SLOPE},
        ),
        (
            dataclasses.replace(WIDE, activation="prelu"),
            "w_turned x_nchw conv v active",
            {"bias": 2, "activation": "prelu", "slope": 3},
        ),
        (
            dataclasses.replace(WIDE, activation="hardswish"),
            "w_turned x_nchw conv v active",
            {"bias": 2, "activation": "hardswish"},
        ),
        (
            dataclasses.replace(WIDE, activation="hardswish_of_gate"),
            "w_turned x_nchw conv v gate active",
            {"bias": 2, "activation": "hardswish"},
        ),
        (
            dataclasses.replace(WIDE, activation="hardswish_scaled_gate"),
            "w_turned x_nchw conv v shifted clipped gate active",
            {"bias": 2, "activation": "hardswish"},
        ),
        (
            dataclasses.replace(WIDE, activation="hardswish_scaled_product", residual="last"),
            "w_turned x_nchw conv v shifted clipped product active sum",
            {"bias": 2, "residual": 3, "residual_last": True, "activation": "hardswish"},
        ),
        (Layer(transposed=True), "w_turned x_nchw conv v", {"bias": 2, "transposed": True}),
        (
            Layer(transposed=True, activation="relu", symbolic=("N", "H", "W")),
            "w_turned x_nchw conv v active",
            {"bias": 2, "transposed": True, "activation": "relu"},
        ),
        (
            Layer(symbolic=("N", "H", "W"), pads=SAME, residual="before"),
            "w_turned x_nchw conv v sum",
            {"bias": 2, "residual": 3},
        ),
    ],
)
def test_what_a_convolution_takes_in(layer: Layer, nodes: str, fields: dict[str, object]) -> None:
    model = ir.from_proto(layer.model())
    plan = fuse(model)
    (region,) = regions(plan)
    assert " ".join(str(n.name) for n in region.nodes) == nodes
    count = len(region.inputs)
    window = Window(layer.kernel, pads=layer.pads)
    assert region.meaning == Convolution((layer.dtype,) * count, (layer.dtype,), window=window, **fields)  # type: ignore[arg-type]
    (kernel,) = [k for k in outline(model, plan) if k.kind is CONVOLUTION]
    assert not kernel.cpu  # on the CPU, ONNX Runtime inlines the function
    assert kernel.name.startswith("Conv")


@pytest.mark.parametrize(
    "layer",
    [
        Layer(kernel=(3, 2), strides=(2, 3), dilations=(1, 2), pads=(1, 0, 2, 1)),
        Layer(kernel=(1, 1), strides=(2, 2)),
        Layer(auto_pad="SAME_LOWER", strides=(2, 2)),
        Layer(auto_pad="VALID", group=4, residual="before", activation="relu"),
        Layer(c=64, k=64, pads=SAME, activation="silu", residual="last"),
        Layer(kernel=(3, 2), strides=(2, 3), pads=(1, 0, 0, 1), output_padding=(1, 2), transposed=True),
        Layer(kernel=(2, 2), strides=(2, 2), group=4, transposed=True, activation="relu"),
        *(Layer(c=64, k=64, pads=SAME, activation=name) for name in (*ACTIVATIONS, "prelu")),
    ],
)
def test_the_outlined_model_computes_the_same(layer: Layer) -> None:
    model = ir.from_proto(layer.model())
    outline(model, fuse(model))
    (found,) = run(model, layer.feeds())
    np.testing.assert_allclose(found, layer.expected(layer.feeds()), atol=2e-5)


def test_a_shape_that_most_runs_have() -> None:
    """An activation joins that cuDNN compiles a kernel for, as it can be ready for that shape."""
    layer = dataclasses.replace(WIDE, residual="last", symbolic=("N", "H", "W"))
    model = ir.from_proto(layer.model())
    plan = fuse(model, usual={"N": 8, "H": 20, "W": 30})
    (region,) = regions(plan)
    assert " ".join(str(n.name) for n in region.nodes) == "w_turned x_nchw conv v gate active sum"
    (kernel,) = outline(model, plan)
    assert kernel.usual == (((8, 20, 30, 64), (64, 3, 3, 64), (64,), (8, 20, 30, 64)),)
    document = json.loads(kernels_json.to_json([kernel], None))
    assert document["kernels"][0]["usual"] == [[[8, 20, 30, 64], [64, 3, 3, 64], [64], [8, 20, 30, 64]]]
    some = fuse(ir.from_proto(layer.model()), usual={"N": 8, "H": 20})
    assert any("no usual one was stated" in r.reason for r in some.refusals)


def test_shapes_that_the_graph_states_are_not_stated_again() -> None:
    model = ir.from_proto(WIDE.model())
    (kernel,) = outline(model, fuse(model, usual={"N": 8}))
    assert kernel.usual == () and "usual" not in json.loads(kernels_json.to_json([kernel], None))["kernels"][0]


def test_a_transposed_convolution_of_any_shape_keeps_its_activation_apart() -> None:
    layer = dataclasses.replace(WIDE, symbolic=("N",), transposed=True)
    plan = fuse(ir.from_proto(layer.model()), usual={"N": 8})
    assert [r.meaning.activation for r in regions(plan) if isinstance(r.meaning, Convolution)] == ["none"]


def test_the_window_is_part_of_the_meaning() -> None:
    layer = Layer(kernel=(3, 2), strides=(2, 3), dilations=(1, 2), pads=(1, 0, 2, 1), group=2)
    (region,) = regions(fused(layer.model()))
    meaning = region.meaning
    assert isinstance(meaning, Convolution)
    assert meaning.window == Window((3, 2), (2, 3), (1, 2), (1, 0, 2, 1)) and meaning.group == 2
    padded = dataclasses.replace(layer, auto_pad="SAME_UPPER", pads=(0, 0, 0, 0), dilations=(1, 1))
    (region,) = regions(fused(padded.model()))
    assert isinstance(region.meaning, Convolution)
    assert region.meaning.window == Window((3, 2), (2, 3), auto_pad="SAME_UPPER")


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (dataclasses.replace(WIDE, dtype="float32"), "SiLU for 16-bit floats alone"),
        (dataclasses.replace(WIDE, c=24), "slow for fewer than 32 channels to 64"),
        (dataclasses.replace(WIDE, c=32, k=40), "slow for fewer than 32 channels to 64"),
        (dataclasses.replace(WIDE, symbolic=("N",)), "the shape is not known yet"),
        (dataclasses.replace(WIDE, activation="clip", dtype="float32"), "with Clip for 16-bit floats alone"),
        (dataclasses.replace(WIDE, activation="hardswish_scaled_gate", c=24), "with HardSwish is slow for fewer"),
        (dataclasses.replace(WIDE, activation="clip", transposed=True, group=2), "for a ConvTranspose with groups"),
        (dataclasses.replace(WIDE, activation="leaky_relu", residual="before"), "The LeakyRelu follows a residual"),
        (Layer(residual="last", activation="relu"), "The Add follows a Relu"),
    ],
)
def test_what_stays_for_another_kernel(layer: Layer, reason: str) -> None:
    plan = fused(layer.model())
    (region,) = regions(plan)
    assert isinstance(region.meaning, Convolution)
    assert region.meaning.activation in ("none", layer.activation)
    assert (region.meaning.residual is None) == (layer.residual != "before")
    assert any(reason in r for r in reasons(plan))


def changed(layer: Layer, change: Callable[[onnx.GraphProto], None]) -> onnx.ModelProto:
    model = layer.model()
    change(model.graph)
    return model


def a_sum_for_each_sample(graph: onnx.GraphProto) -> None:
    """The residual is [N, 1, 1, K], as a time embedding is."""
    (residual,) = [i for i in graph.input if i.name == "residual"]
    for axis in (1, 2):
        residual.type.tensor_type.shape.dim[axis].dim_value = 1


def an_output_of_its_own(graph: onnx.GraphProto) -> None:
    graph.output.append(helper.make_tensor_value_info("v", TensorProto.FLOAT, None))


def another_reader(graph: onnx.GraphProto) -> None:
    graph.node.append(helper.make_node("Neg", ["v"], ["negative"], name="negative"))
    graph.output.append(helper.make_tensor_value_info("negative", TensorProto.FLOAT, None))


@pytest.mark.parametrize(
    ("layer", "change", "reason"),
    [
        (Layer(residual="before"), a_sum_for_each_sample, "is no residual of shape [2, 7, 9, 24]"),
        (Layer(activation="relu"), an_output_of_its_own, "is read elsewhere too"),
        (Layer(activation="relu"), another_reader, "is read elsewhere too"),
    ],
)
def test_other_readers_and_shapes(layer: Layer, change: Callable[[onnx.GraphProto], None], reason: str) -> None:
    plan = fused(changed(layer, change))
    (region,) = regions(plan)
    assert isinstance(region.meaning, Convolution)
    assert (region.meaning.residual, region.meaning.activation) == (None, "none")
    assert any(reason in r for r in reasons(plan))


def with_constant(name: str, value: float) -> Callable[[onnx.GraphProto], None]:
    def change(graph: onnx.GraphProto) -> None:
        (tensor,) = [t for t in graph.initializer if t.name == name]
        tensor.CopyFrom(numpy_helper.from_array(np.array(value, np.float16), name))

    return change


def a_computed_bound(graph: onnx.GraphProto) -> None:
    (tensor,) = [t for t in graph.initializer if t.name == "six"]
    graph.initializer.remove(tensor)
    graph.input.append(helper.make_tensor_value_info("six", TensorProto.FLOAT16, []))


def slopes_of(shape: tuple[int, ...]) -> Callable[[onnx.GraphProto], None]:
    def change(graph: onnx.GraphProto) -> None:
        (tensor,) = [t for t in graph.initializer if t.name == "slopes"]
        tensor.CopyFrom(numpy_helper.from_array(np.full(shape, 0.25, np.float16), "slopes"))

    return change


def computed_slopes(graph: onnx.GraphProto) -> None:
    (tensor,) = [t for t in graph.initializer if t.name == "slopes"]
    graph.initializer.remove(tensor)
    graph.input.append(helper.make_tensor_value_info("slopes", TensorProto.FLOAT16, [64]))


def a_reader_of_the_gate(graph: onnx.GraphProto) -> None:
    graph.output.append(helper.make_tensor_value_info("gate", TensorProto.FLOAT16, None))


def another_operator(name: str, op_type: str) -> Callable[[onnx.GraphProto], None]:
    def change(graph: onnx.GraphProto) -> None:
        (node,) = [n for n in graph.node if n.name == name]
        node.op_type = op_type

    return change


@pytest.mark.parametrize(
    ("activation", "change"),
    [
        ("clip", with_constant("zero", -1.0)),
        ("clip", with_constant("six", -2.0)),
        ("clip", a_computed_bound),
        ("prelu", slopes_of((11, 64))),
        ("prelu", computed_slopes),
        ("hardswish_scaled_gate", with_constant("three", 2.0)),
        ("hardswish_scaled_product", with_constant("six", 5.0)),
        ("hardswish_scaled_gate", a_reader_of_the_gate),
        ("hardswish_of_gate", a_reader_of_the_gate),
        ("hardswish_scaled_product", another_operator("active", "Mul")),
        ("hardswish_scaled_gate", another_operator("shifted", "Sub")),
        ("hardswish_scaled_gate", another_operator("active", "Add")),
    ],
)
def test_what_looks_like_an_activation(activation: str, change: Callable[[onnx.GraphProto], None]) -> None:
    plan = fused(changed(dataclasses.replace(WIDE, activation=activation), change))
    (region,) = regions(plan)
    assert isinstance(region.meaning, Convolution) and region.meaning.activation == "none"


def test_one_slope_is_that_of_a_leaky_relu() -> None:
    (region,) = regions(fused(changed(dataclasses.replace(WIDE, activation="prelu"), slopes_of((1,)))))
    assert isinstance(region.meaning, Convolution)
    assert (region.meaning.activation, region.meaning.activation_value) == ("leaky_relu", 0.25)


def test_a_clip_without_an_upper_bound_is_a_relu() -> None:
    (region,) = regions(fused(changed(dataclasses.replace(WIDE, activation="clip"), with_constant("six", np.inf))))
    assert isinstance(region.meaning, Convolution)
    assert (region.meaning.activation, region.meaning.activation_value) == ("relu", 0.0)


def set_attribute(name: str, value: object) -> Callable[[onnx.GraphProto], None]:
    def change(graph: onnx.GraphProto) -> None:
        (conv,) = [n for n in graph.node if n.op_type == "Conv"]
        for attribute in [a for a in conv.attribute if a.name == name]:
            conv.attribute.remove(attribute)
        conv.attribute.append(helper.make_attribute(name, value))

    return change


def a_weight_of_another_order(graph: onnx.GraphProto) -> None:
    (turn,) = [n for n in graph.node if n.name == "w_turned"]
    turn.attribute[0].CopyFrom(helper.make_attribute("perm", [3, 2, 0, 1]))
    (weight,) = [t for t in graph.initializer if t.name == "w"]
    weight.dims[:] = [3, 3, 16, 24]


def a_weight_that_is_an_input(graph: onnx.GraphProto) -> None:
    (weight,) = [t for t in graph.initializer if t.name == "w"]
    graph.initializer.remove(weight)
    graph.input.append(helper.make_tensor_value_info("w", weight.data_type, list(weight.dims)))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (set_attribute("pads", [-1, 0, 0, 0]), "pads: is (-1, 0, 0, 0), not integers from 0"),
        (set_attribute("auto_pad", "SAME_UPPER"), "beside auto_pad"),
        (a_weight_of_another_order, "The weight does not lie as [K, R, S, C / group]"),
        (a_weight_that_is_an_input, "The weight is computed at run time"),
    ],
)
def test_convolutions_that_stay_with_onnx_runtime(change: Callable[[onnx.GraphProto], None], reason: str) -> None:
    plan = fused(changed(Layer(pads=SAME), change))
    assert regions(plan) == []
    assert any(reason in r for r in reasons(plan)), reasons(plan)


def test_a_transposed_convolution_in_nchw_says_why() -> None:
    nodes = [helper.make_node("ConvTranspose", ["x", "w"], ["y"], name="spread", auto_pad="SAME_UPPER")]
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4, 8, 8]) for name in ("x", "y")]
    weight = numpy_helper.from_array(np.zeros((4, 4, 3, 3), np.float32), "w")
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], [weight])
    plan = fused(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10))
    (refusal,) = plan.refusals
    assert (refusal.node, refusal.op_type) == ("spread", "ConvTranspose")
    assert "auto_pad, output_shape and a computed weight keep a ConvTranspose in NCHW" in refusal.reason


@pytest.mark.parametrize(("maker", "says"), [("ConstantOfShape", True), ("DequantizeLinear", False)])
def test_a_computed_weight_in_nchw_says_why(maker: str, says: bool) -> None:
    """Not of codes, which are no float weight in the first place."""
    given = {"ConstantOfShape": ["extents"], "DequantizeLinear": ["codes", "scale"]}[maker]
    nodes = [
        helper.make_node(maker, given, ["w"], name="weight"),
        helper.make_node("Conv", ["x", "w"], ["y"], name="conv"),
    ]
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4, 8, 8]) for name in ("x", "y")]
    infos[1].type.tensor_type.shape.dim[2].dim_value = infos[1].type.tensor_type.shape.dim[3].dim_value = 6
    tensors = {
        "extents": np.array([4, 4, 3, 3]),
        "codes": np.ones((4, 4, 3, 3), np.int8),
        "scale": np.array(0.5, np.float32),
    }
    constants = [numpy_helper.from_array(tensors[name], name) for name in given]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], constants)
    plan = fused(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10))
    found = [r.reason for r in plan.refusals if (r.node, r.op_type) == ("conv", "Conv")]
    assert any("The weight is computed at run time" in reason for reason in found) == says


def test_the_same_layer_twice_is_one_kernel() -> None:
    one, other = Layer(seed=1), Layer(seed=2)
    names = []
    for layer in (one, other):
        model = ir.from_proto(layer.model())
        names += [k.name for k in outline(model, fuse(model))]
    assert names[0] == names[1]
