"""Blocks: which convolutions write and read channels of shared tensors, and which Concats and Splits stay, and why."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from cases.block import Halves
from cases.models import fuse, laid_out, outline
from onnxopt.fusion.region import FusionPlan, Region
from onnxopt.kinds.block.kind import BLOCK
from onnxopt.program.block import Block, BlockStep, Part
from onnxopt.program.convolution import Convolution

Change = Callable[[list[onnx.NodeProto], list[str]], None]


def fused(halves: Halves, change: Change | None = None) -> FusionPlan:
    return fuse(laid_out(halves.model(change)))


def blocks(plan: FusionPlan) -> list[Region]:
    return [r for r in plan.regions if r.kind is BLOCK]


def the_block(plan: FusionPlan) -> Block:
    (region,) = blocks(plan)
    assert isinstance(region.meaning, Block)
    region.meaning.verify()
    return region.meaning


def with_concat(plan: FusionPlan) -> list[Region]:
    return [r for r in blocks(plan) if any(n.op_type == "Concat" for n in r.nodes)]


def reasons(plan: FusionPlan) -> str:
    return "\n".join(r.reason for r in plan.refusals if r.op_type == "Concat")


def add(*added: onnx.NodeProto, outputs: tuple[str, ...] = ()) -> Change:
    """A change that adds nodes and outputs."""

    def change(nodes: list[onnx.NodeProto], names: list[str]) -> None:
        nodes += added
        names += outputs

    return change


def test_halves_in_place() -> None:
    block = the_block(fused(Halves()))
    parts = [(step.x, step.residual, step.y) for step in block.steps]
    x, y, inside = 0, 11, (12, 13)
    assert len(block.inputs) == 11 and block.channels == (256, 64, 64)
    assert parts == [
        (Part(x, 0, 64, 64), None, Part(y, 0, 128, 256)),
        (Part(y, 64, 64, 256), None, Part(inside[0], 0, 64, 64)),
        (Part(inside[0], 0, 64, 64), Part(y, 64, 64, 256), Part(y, 128, 64, 256)),
        (Part(y, 128, 64, 256), None, Part(inside[1], 0, 64, 64)),
        (Part(inside[1], 0, 64, 64), Part(y, 128, 64, 256), Part(y, 192, 64, 256)),
    ]
    assert all(step.activation == "silu" and step.bias is not None for step in block.steps)
    assert [step.residual_last for step in block.steps] == [False, False, True, False, True]


def test_everything_is_one_region() -> None:
    halves = Halves()
    plan = fused(halves)
    (region,) = plan.regions
    assert {n.op_type for n in region.nodes} >= {"Slice", "Concat", "Conv", "Add"}
    pixel = 2 * halves.n * halves.h * halves.w  # bytes of one channel
    weights = 2 * sum(c * k * side * side + k for _, c, k, side in halves.layers())
    # Each convolution reads and writes its own channels: open, then twice a pair of which the second adds.
    assert region.traffic.bytes_after == pixel * (64 + 128 + 2 * (4 * 64 + 64)) + weights
    # Five convolutions with SiLU, two additions, the Slice, the Concat, and the model's own Transpose of x.
    assert region.traffic.launches_after == 5 and region.traffic.launches_before == 5 * 3 + 2 + 2 + 1
    assert region.traffic.bytes_before is not None
    assert region.traffic.bytes_before > region.traffic.bytes_after + pixel * 2 * (128 + 256)


def test_without_shortcut() -> None:
    block = the_block(fused(Halves(shortcut=False, depth=1)))
    assert block.channels == (192, 64)
    assert [step.y for step in block.steps] == [Part(7, 0, 128, 192), Part(8, 0, 64, 64), Part(7, 128, 64, 192)]


def test_a_split_whose_parts_convolutions_alone_read() -> None:
    """Where the Concat stays, the convolution still reads its half in place."""

    def change(nodes: list[onnx.NodeProto], names: list[str]) -> None:
        (concat,) = (n for n in nodes if n.op_type == "Concat")
        concat.input[:] = ["b0_y", "neg"]
        nodes.insert(nodes.index(concat), helper.make_node("Neg", ["other_y"], ["neg"], name="neg"))
        others = [n for n in nodes if n.name.startswith(("a0", "b0"))][:3]
        for n in others:
            copy = onnx.NodeProto()
            copy.CopyFrom(n)
            copy.name = n.name.replace("a0", "other")
            inner = ("a0_c", "a0_g")
            copy.input[:] = ["left" if i == "right" else i.replace("a0", "other") if i in inner else i for i in n.input]
            copy.output[:] = [o.replace("a0", "other") for o in n.output]
            nodes.insert(nodes.index(concat) - 1, copy)

    block = the_block(fused(Halves(depth=1, shortcut=False), change))
    assert {step.x for step in block.steps if step.x.tensor == 0} == {Part(0, 64, 64, 128), Part(0, 0, 64, 128)}
    assert len(block.channels) == len(block.outputs) == len(block.steps) == 2


@pytest.mark.parametrize(("axis", "end"), [(0, 1), (2, 4), (3, 5)])
def test_a_slice_of_other_dims_is_no_part(axis: int, end: int) -> None:
    def change(nodes: list[onnx.NodeProto], names: list[str]) -> None:
        at = next(k for k, n in enumerate(nodes) if n.name == "a0")
        convolution = nodes[at : at + 3]
        convolution[0].input[0] = "part"
        bounds = {"starts": 0, "ends": end, "axes": axis}
        constants = [helper.make_node("Constant", [], [name], value_ints=[value]) for name, value in bounds.items()]
        cut = helper.make_node("Slice", ["right", *bounds], ["part"], name="part")
        last = helper.make_node("Transpose", ["a0_y"], ["y"], perm=[0, 2, 3, 1])
        nodes[at:] = [*constants, cut, *convolution, last]

    plan = fused(Halves(), change)
    assert not blocks(plan)
    assert [r.kind.name for r in plan.regions].count("convolution") == 2


def test_few_channels_are_in_place_where_a_concat_goes() -> None:
    """Elsewhere, a convolution of 40 channels leaves its SiLU to a kernel after it."""
    halves = Halves(half=40)
    assert all(step.activation == "silu" for step in the_block(fused(halves)).steps)
    plan = fused(halves, add(helper.make_node("Neg", ["sum0"], ["z"]), outputs=("z",)))
    assert not blocks(plan)
    activations = [r.meaning.activation for r in plan.regions if isinstance(r.meaning, Convolution)]
    assert activations == ["silu", "none", "none", "none", "none"]  # the first is a 1x1 convolution


def test_a_batch_of_any_size() -> None:
    """Where most runs have a known size, plans are made for it."""
    model = laid_out(Halves(symbolic="N").model())
    plan = fuse(model, usual={"N": 6})
    assert the_block(plan) == the_block(fused(Halves()))
    (kernel,) = [k for k in outline(model, plan) if k.kind is BLOCK]
    (shapes,) = kernel.usual
    halves = Halves()
    assert shapes[0] == (6, halves.h, halves.w, halves.c) and len(shapes) == len(kernel.program.inputs)
    assert not blocks(fused(Halves(symbolic="N")))


def test_bfloat16() -> None:
    assert len(the_block(fused(Halves(dtype="bfloat16"))).steps) == 5


REFUSED = {
    "relu": (Halves(activation="relu", shortcut=False), None, "is no result of a convolution"),
    "few channels": (Halves(half=24), None, "is slow for fewer than 32 channels to 32"),
    "float32": (Halves(dtype="float32"), None, ""),
    "unaligned": (Halves(half=68), None, "does not begin at a multiple of 16 bytes"),
    "many": (Halves(depth=12), None, "the limit is 24"),
    "a result elsewhere": (
        Halves(), add(helper.make_node("Neg", ["sum0"], ["z"]), outputs=("z",)), "reads `sum0",
    ),
    "a half elsewhere": (
        Halves(), add(helper.make_node("Neg", ["right"], ["z"]), outputs=("z",)), "reads `open_y",
    ),
    "an output": (Halves(shortcut=False), add(outputs=("b1_y",)), "reads `b1_y"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    halves, change, reason = REFUSED[case]
    plan = fused(halves, change)
    assert not with_concat(plan)
    assert reason in reasons(plan)


def _rewired(**inputs: list[str]) -> Change:
    """A change that gives nodes other inputs."""

    def change(nodes: list[onnx.NodeProto], names: list[str]) -> None:
        for node in nodes:
            if node.name in inputs:
                node.input[:] = inputs[node.name]

    return change


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        (["right", "left", "sum0", "sum1"], "twice or in another order"),
        (["left", "right", "sum0", "sum0"], "twice or in another order"),
        (["left", "sum0", "sum1"], "leaves out channels"),
        (["left", "right", "sum0", "x_nchw"], "is no result of a convolution"),
    ],
)
def test_other_orders_are_refused(parts: list[str], reason: str) -> None:
    plan = fused(Halves(), _rewired(joined=parts))
    assert reason in reasons(plan)
    assert not with_concat(plan)


def test_work_between_the_convolutions_is_refused() -> None:
    """A convolution reads another one's result, and also something else that does."""

    def change(nodes: list[onnx.NodeProto], names: list[str]) -> None:
        at = next(k for k, n in enumerate(nodes) if n.name == "b0")
        nodes.insert(at, helper.make_node("Neg", ["a0_y"], ["negated"], name="neg"))
        nodes[at + 1].input[0] = "negated"
        (total,) = (n for n in nodes if n.name == "sum0")
        total.input[0] = "a0_y"

    plan = fused(Halves(depth=1), change)
    assert "read some of their results and compute others" in reasons(plan)


def _between(op_type: str, *activation: onnx.NodeProto) -> Change:
    """A change that puts a convolution with an activation of `m_c` to `m_y` behind the first one of the pair."""

    def change(nodes: list[onnx.NodeProto], names: list[str]) -> None:
        at = next(k for k, n in enumerate(nodes) if n.name == "b0")
        nodes[at].input[0] = "m_y"
        window = {"kernel_shape": [3, 3], "pads": [1] * 4}
        nodes[at:at] = [
            helper.make_node(op_type, ["a0_y", "a0_w", "a0_bias"], ["m_c"], name="m", **window),
            *activation,
        ]

    return change


def test_other_activations_stay_in_a_block() -> None:
    leaky = helper.make_node("LeakyRelu", ["m_c"], ["m_y"], alpha=0.25, name="leaky")
    block = the_block(fused(Halves(depth=1), _between("Conv", leaky)))
    found = [(step.activation, step.activation_value) for step in block.steps]
    assert found == [("silu", 0), ("silu", 0), ("leaky_relu", 0.25), ("silu", 0)]
    assert [row["activation_value"] for row in block.to_json()["steps"]] == [0, 0, 0.25, 0]
    slopes = numpy_helper.from_array(np.linspace(0, 1, 64, dtype=np.float16).reshape(64, 1, 1), "slopes")
    constant = helper.make_node("Constant", [], ["slopes"], value=slopes)
    sloped = helper.make_node("PRelu", ["m_c", "slopes"], ["m_y"], name="sloped")
    (region,) = blocks(fused(Halves(depth=1), _between("Conv", constant, sloped)))
    assert isinstance(region.meaning, Block)
    step = region.meaning.steps[2]
    assert step.activation == "prelu" and step.slope is not None
    assert region.inputs[step.slope].const_value is not None


def test_transposed_convolutions_are_in_no_block() -> None:
    relu = helper.make_node("Relu", ["m_c"], ["m_y"], name="relu")
    plan = fused(Halves(depth=1), _between("ConvTranspose", relu))
    assert not blocks(plan) and "reads `open_y" in reasons(plan)
    (found,) = (r for r in plan.regions if any(n.op_type == "ConvTranspose" for n in r.nodes))
    assert isinstance(found.meaning, Convolution) and found.meaning.activation == "relu"


def test_a_block_verifies_itself() -> None:
    block = the_block(fused(Halves(depth=1)))
    first, *others = block.steps
    narrow = dataclasses.replace(others[1], y=Part(7, 128, 32, 192), residual=None, residual_last=False)
    wrong: list[tuple[tuple[BlockStep, ...], str]] = [
        ((dataclasses.replace(first, y=Part(7, 0, 64, 192)), *others), "has channels that no earlier step wrote"),
        ((first, first, *others), "has channels that an earlier step wrote"),
        ((first, others[0]), "that nothing reads"),
        ((first, others[0], narrow), "that no step writes to the end"),
        ((dataclasses.replace(first, y=Part(7, 100, 128, 192)), *others), "reach beyond the tensor"),
        ((dataclasses.replace(first, w=99), *others), "is 99, and there are"),
        ((dataclasses.replace(first, transposed=True), *others), "is set in a block"),
        ((*others, first), "has channels that no earlier step wrote"),
        ((), "steps: are 0"),
    ]
    for steps, problem in wrong:
        with pytest.raises(ValueError, match=problem):
            dataclasses.replace(block, steps=steps).verify()
