"""Depthwise regions: which convolutions and neighbours become one kernel, and what the kernel is told."""

from __future__ import annotations

import dataclasses
from typing import Any

import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import helper

from cases.depthwise import Case, fused, ops, worst
from cases.models import fuse
from onnxopt.codegen import generate
from onnxopt.fusion import entry_points as entry_points_of
from onnxopt.kinds.depthwise import entry_points
from onnxopt.kinds.depthwise.kind import DEPTHWISE
from onnxopt.program.core import TransformRead
from onnxopt.program.depthwise import Depthwise

CASE = Case((8, 56, 56, 144), pads=(1, 1, 1, 1), dtype="float16")


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({}, "Transpose Transpose Conv Transpose"),
        ({"behind": "silu"}, "Transpose Transpose Conv Transpose Sigmoid Mul"),
        ({"behind": "hardswish"}, "Transpose Transpose Conv Transpose Add Clip Mul Div"),
        ({"behind": "gelu_residual_scale"}, "Transpose Transpose Conv Transpose Gelu Mul Add"),
        ({"behind": "residual", "skip": True, "known": False}, "Transpose Transpose Conv Transpose Add"),
        ({"in_front": "bias_silu", "behind": "relu"}, "Add Sigmoid Mul Transpose Transpose Conv Transpose Relu"),
        ({"behind": "gate"}, "Transpose Transpose Conv Transpose Split Mul"),
        ({"behind": "gelu_gate", "known": False}, "Transpose Transpose Conv Transpose Split Gelu Mul Mul"),
    ],
)
def test_neighbours_join(changed: dict[str, Any], found: str) -> None:
    made = fused(dataclasses.replace(CASE, **changed))
    assert ops(made.kernels) == [found]
    (kernel,) = made.kernels
    assert kernel.kind is DEPTHWISE and not kernel.cpu
    assert [n.op_type for n in made.optimized.graph.node] == [kernel.name]
    assert '#include "depthwise/depthwise.cuh"' in generate.generate(made.kernels)


@pytest.mark.parametrize("known", [True, False])
def test_without_the_library_onnx_runtime_runs_the_nodes(known: bool) -> None:
    case = Case((2, 12, 9, 8), pads=(1, 1, 1, 1), in_front="relu6", behind="residual", skip=True, known=known)
    found = fused(case)
    feeds = case.feeds()
    plain, inlined = (
        ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)[0]
        for model in (found.original, found.optimized)
    )
    assert worst(case, inlined, case.expected(feeds)) <= 1
    assert worst(case, plain, case.expected(feeds)) <= 1


def _meaning(case: Case) -> Depthwise:
    (kernel,) = fused(case).kernels
    assert isinstance(kernel.program, Depthwise)
    return kernel.program


def test_operands() -> None:
    meaning = _meaning(dataclasses.replace(CASE, in_front="scale", behind="gelu_residual_scale"))
    (region,) = fused(dataclasses.replace(CASE, in_front="scale", behind="gelu_residual_scale")).plan.regions
    names = [v.name for v in region.inputs]
    assert (names[meaning.x], names[meaning.weight], names[meaning.bias or 0]) == ("t", "w", "bias")
    assert meaning.prologue is not None
    assert [(names[r.input], r.form) for r in meaning.prologue.reads] == [("c", "channel")]
    assert {(names[r.input], r.form) for r in meaning.epilogue.reads} == {("d", "channel"), ("r", "element")}
    assert meaning.channels == 144 and meaning.window.pads == (1, 1, 1, 1)


def test_a_residual_may_be_the_input_itself() -> None:
    meaning = _meaning(dataclasses.replace(CASE, behind="residual", skip=True))
    assert meaning.epilogue.reads == (TransformRead(meaning.x, "element"),)


def test_halves_of_the_channels_are_read_in_one_kernel() -> None:
    meaning = _meaning(dataclasses.replace(CASE, behind="gelu_gate"))
    assert meaning.gated and (meaning.channels, meaning.filters, meaning.x_channels) == (72, 144, 144)
    assert [r.form for r in meaning.epilogue.reads if r.input == meaning.x] == ["half"]
    assert meaning.epilogue.program.inputs[:2] == ("float32", "float32")  # neither sum is rounded in between
    assert not _meaning(dataclasses.replace(CASE, behind="silu")).gated


def _change(name: str, **attributes: Any) -> Any:
    def change(model: Any) -> None:
        (node,) = (n for n in model.graph.node if n.name == name)
        for key, value in attributes.items():
            kept = [a for a in node.attribute if a.name != key]
            del node.attribute[:]
            node.attribute.extend([*kept, helper.make_attribute(key, value)])

    return change


def _outputs(*names: str) -> Any:
    def change(model: Any) -> None:
        element = model.graph.output[0].type.tensor_type.elem_type
        model.graph.output.extend(helper.make_tensor_value_info(name, element, None) for name in names)

    return change


def _in_two_kernels(model: Any) -> None:
    """The halves meet after an operator that no kernel has."""
    (gate,) = (n for n in model.graph.node if n.name == "y")
    gate.input[1] = "hard"
    model.graph.node.insert(len(model.graph.node) - 1, helper.make_node("Hardmax", ["v2"], ["hard"], name="hard"))


@pytest.mark.parametrize(
    "change",
    [_outputs("v1"), _outputs("v2"), _outputs("v"), _change("split", axis=2), _in_two_kernels],
)
def test_halves_that_others_read_end_the_region(change: Any) -> None:
    model = dataclasses.replace(CASE, behind="gate", known=False).model()
    change(model)
    (region,) = (r for r in fuse(ir.serde.deserialize_model(model)).regions if r.kind is DEPTHWISE)
    assert [v.name for v in region.outputs] == ["v"]


def test_one_channel() -> None:
    """A bias of one element is an input all the same, not a part of the code."""
    meaning = _meaning(dataclasses.replace(CASE, x=(1, 9, 9, 1), kernel=(1, 1), pads=(0, 0, 0, 0)))
    assert meaning.bias is not None and len(meaning.inputs) == 3


@pytest.mark.parametrize(
    ("case", "joins"),
    [
        # a copy of 77 MB there and back takes longer than the loads of a convolution with stride 2
        (Case((32, 112, 112, 96), strides=(2, 2), pads=(1, 1, 1, 1), dtype="float16", in_front="bias_silu"), True),
        (Case((32, 28, 28, 240), (5, 5), pads=(2, 2, 2, 2), dtype="float16", in_front="bias_silu"), True),
        (Case((16, 28, 28, 192), (7, 7), pads=(3, 3, 3, 3), dtype="float16", in_front="relu6"), True),
        # every input is computed twice there: 17 to 22 us, where a kernel of its own takes 16
        (Case((32, 56, 56, 144), (5, 5), (2, 2), pads=(2, 2, 2, 2), dtype="float16", in_front="bias_silu"), False),
        (Case((32, 28, 28, 240), (5, 5), pads=(2, 2, 2, 2), in_front="bias_silu", known=False), False),
    ],
)
def test_nodes_in_front_join_where_that_pays(case: Case, joins: bool) -> None:
    assert [k.kind.name for k in fused(case, by_rule=True).kernels] == ["depthwise"] * joins or not joins
    assert (len(fused(case, by_rule=True).kernels) == 1) is joins


@pytest.mark.parametrize(("in_front", "stored"), [("relu6", True), ("bias_silu", False), ("scale", False)])
def test_a_clip_in_front_is_not_rounded(in_front: str, stored: bool) -> None:
    (kernel,) = fused(Case((1, 8, 8, 16), pads=(1, 1, 1, 1), dtype="float16", in_front=in_front)).kernels
    assert f"kStored = {str(stored).lower()};" in generate.generate([kernel])


def test_relu_stays_with_the_product_in_front() -> None:
    """cuBLASLt and cuDNN apply it at no cost."""
    model = CASE.model()
    (x,) = (n for n in model.graph.node if n.name == "to_nchw")
    x.input[0] = "p"
    one = helper.make_tensor("m", model.graph.initializer[0].data_type, [144, 144], [0.0] * 144 * 144)
    model.graph.initializer.append(one)
    model.graph.node.insert(0, helper.make_node("Relu", ["q"], ["p"], name="p"))
    model.graph.node.insert(0, helper.make_node("MatMul", ["t", "m"], ["q"], name="q"))
    plan = fuse(ir.serde.deserialize_model(model))
    (region,) = (r for r in plan.regions if r.kind is DEPTHWISE)
    assert "Relu" not in [n.op_type for n in region.nodes]


@pytest.mark.parametrize(("channels", "joins"), [(16, True), (64, False)])
def test_an_activation_stays_with_a_convolution_that_applies_it(channels: int, joins: bool) -> None:
    model = Case((32, 112, 112, 96), strides=(2, 2), pads=(1, 1, 1, 1), dtype="float16", in_front="bias_silu").model()
    element = model.graph.initializer[0].data_type
    model.graph.initializer.append(helper.make_tensor("e", element, [96, channels, 1, 1], [0.0] * 96 * channels))
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("z", element, [32, 112, 112, channels]))
    nodes = [("Transpose", ["z"], "z_nchw", [0, 3, 1, 2]), ("Transpose", ["t_nchw"], "t", [0, 2, 3, 1])]
    turned = [helper.make_node(op, x, [y], name=y, perm=perm) for op, x, y, perm in nodes]
    expand = helper.make_node("Conv", ["z_nchw", "e"], ["t_nchw"], name="expand")
    for node in (turned[1], expand, turned[0]):
        model.graph.node.insert(0, node)
    plan = fuse(ir.serde.deserialize_model(model))
    (region,) = (r for r in plan.regions if r.kind is DEPTHWISE)
    assert ("Sigmoid" in [n.op_type for n in region.nodes]) is joins


def test_a_value_that_others_read_ends_the_region() -> None:
    model = dataclasses.replace(CASE, behind="silu").model()
    model.graph.output.append(
        helper.make_tensor_value_info("v", model.graph.output[0].type.tensor_type.elem_type, None)
    )
    plan = fuse(ir.serde.deserialize_model(model))
    (region,) = (r for r in plan.regions if r.kind is DEPTHWISE)
    assert [v.name for v in region.outputs] == ["v"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_change("turn_w", perm=[3, 2, 1, 0]), "in the order of its kernel's rows"),
        (_change("conv", strides=[300, 1]), "kernel, stride or dilation is above 255"),
        (_change("to_nhwc", perm=[0, 3, 2, 1]), "The Conv's result is NCHW, or other nodes read it too"),
    ],
)
def test_others_stay_with_a_reason(change: Any, reason: str) -> None:
    model = dataclasses.replace(CASE, x=(1, 9, 9, 144)).model()
    change(model)
    plan = fuse(ir.serde.deserialize_model(model))
    assert not [r for r in plan.regions if r.kind is DEPTHWISE]
    assert any(reason in r.reason for r in plan.refusals)


def test_dilations_beside_same_padding_stay_with_onnx_runtime_which_refuses_them() -> None:
    plan = fused(dataclasses.replace(CASE, dilations=(2, 2), auto_pad="SAME_UPPER")).plan
    assert not plan.regions
    assert any("ONNX Runtime refuses dilations beside auto_pad" in r.reason for r in plan.refusals)


def test_double_stays() -> None:
    plan = fuse(ir.serde.deserialize_model(CASE.model("float64")))
    assert any("is not one of float16, bfloat16, float32" in r.reason for r in plan.refusals)


@pytest.mark.parametrize(
    ("case", "chosen"),
    [
        (CASE, ["held_v2d7a4", "held_v2d7a2", "held_v2d4a2", "held_v1d4a4"]),
        (dataclasses.replace(CASE, x=(8, 20, 3, 32)), ["held_v2d7a2", "held_v2d4a2", "held_v1d4a4"]),
        (dataclasses.replace(CASE, x=(8, 56, 56, 37)), ["held_v1d4a4"]),
        (dataclasses.replace(CASE, behind="gate"), ["held_v2d7a2", "held_v2d4a2", "held_v1d4a2"]),
        (dataclasses.replace(CASE, kernel=(7, 7), behind="gate"), ["held_v1d7a2"]),
        (dataclasses.replace(CASE, kernel=(9, 9), x=(8, 20, 20, 6)), ["walking_v2a4", "walking_v1a4"]),
        (dataclasses.replace(CASE, dtype="float32", strides=(2, 2)), ["held_v2d2a2", "held_v1d2a4"]),
        (Case((8, 1, 500, 32), (1, 3), dtype="float16"), ["held_v2d1a14", "held_v2d1a8", "held_v1d1a14"]),
        (Case((8, 1, 500, 32), (1, 31), dtype="float16"), ["held_v1d1a14"]),
        (Case((8, 2, 500, 32), (1, 31), dtype="float16"), ["held_v1d7a4"]),
    ],
)
def test_entry_points_for_known_sizes(case: Case, chosen: list[str]) -> None:
    (kernel,) = fused(case).kernels
    assert [v.symbol.removeprefix(f"{kernel.name}_") for v in kernel.variants] == chosen


@pytest.mark.parametrize("kernel", [(1, 1), (3, 3), (5, 5), (7, 7), (11, 11), (3, 5), (31, 31)])
@pytest.mark.parametrize("strides", [(1, 1), (2, 2)])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("in_front", ["", "scale"])
def test_every_window_has_an_entry_point_that_fits_every_call(
    kernel: tuple[int, int], strides: tuple[int, int], dtype: str, in_front: str
) -> None:
    case = Case((1, 40, 40, 16), kernel, strides, dtype=dtype, in_front=in_front)
    every = entry_points.every("k", _meaning(case))
    assert every[-1].vector == 1 and every[-1].layout != "banded"
    assert len({v.symbol for v in every}) == len(every)


@pytest.mark.parametrize(
    "case", [CASE, dataclasses.replace(CASE, dtype="float32"), dataclasses.replace(CASE, kernel=(31, 31))]
)
def test_tune_has_others_to_measure_that_no_rule_chooses(case: Case) -> None:
    (kernel,) = fused(case).kernels
    others = list(DEPTHWISE.alternatives(kernel))
    assert bool(others) is (case.kernel != (31, 31))
    assert not {v.symbol for v in others} & {v.symbol for v in kernel.variants}
    assert all(v.narrowest > 2**30 for v in others)
    assert {v.layout for v in others} <= ({"held"} if case.dtype == "float32" else {"held", "banded"})
    every = entry_points_of.with_alternatives(kernel)
    assert generate.generate([every]).count("__global__") == len(kernel.variants) + len(others)
