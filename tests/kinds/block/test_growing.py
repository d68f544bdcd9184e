"""Blocks with growing Concats: what is written and read in place, what is copied, and what stays as it is."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from cases import block as halves
from cases import dense_block
from cases.block import Halves
from cases.dense_block import Dense
from cases.models import fuse, laid_out
from onnxopt.fusion.region import Region
from onnxopt.kinds.block.kind import BLOCK
from onnxopt.program.block import Block, BlockCopy, Part
from tests.kinds.block.test_regions import Change, add, blocks, reasons, the_block
from tests.support.kinds.blocks import evaluated


def inputs_of(region: Region, values: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """values: of the graph, by their names in NCHW, or x."""
    named = [(v, (v.name or "").removesuffix("_nhwc")) for v in region.inputs]
    return [values.get(name, values["x"]) if v.const_value is None else v.const_value.numpy() for v, name in named]


@pytest.mark.parametrize("seed", range(40))
def test_a_block_computes_what_the_nodes_do(seed: int) -> None:
    """By its meaning, in float64. Those of no growing Concats, too."""
    case = dense_block.draw(seed) if seed % 4 else halves.draw(seed)
    (region,) = blocks(fuse(laid_out(case.model())))
    assert isinstance(region.meaning, Block)
    region.meaning.verify()
    feeds = case.feeds()
    (found,) = evaluated(region.meaning, inputs_of(region, feeds if isinstance(case, Halves) else case.values(feeds)))
    np.testing.assert_allclose(found, case.expected(feeds), rtol=1e-9, atol=1e-9)


def parts_of(block: Block) -> list[tuple[Part, Part]]:
    return [(step.x, step.y) for step in block.steps]


def test_the_result_of_the_last_concat_is_the_only_tensor() -> None:
    (region,) = blocks(fuse(laid_out(Dense().model())))
    block = region.meaning
    assert isinstance(block, Block) and len(block.inputs) == 9
    assert block.channels == (192,) and block.copies == (BlockCopy(Part(0, 0, 64, 64), Part(9, 0, 64, 192)),)
    whole = [(Part(9, 0, 64 + 32 * k, 192), Part(9, 64 + 32 * k, 32, 192)) for k in range(4)]
    assert parts_of(block) == [(Part(0, 0, 64, 64), whole[0][1]), *whole[1:]]
    assert all((step.activation, step.activation_value) == ("leaky_relu", 0.125) for step in block.steps)
    pixel = 2 * 2 * 5 * 6  # bytes of one channel
    weights = 2 * sum(c * k * 9 + k for _, c, k, _ in Dense().sizes())
    read = sum(c for _, c, _, _ in Dense().sizes())
    assert region.traffic.bytes_after == pixel * (read + 4 * 32 + 2 * 64) + weights
    assert region.traffic.launches_after == 5


@pytest.mark.parametrize("changed", [{"nested": True}, {"dtype": "bfloat16"}, {"activation": "silu"}])
def test_forms_of_one_block(changed: dict[str, object]) -> None:
    block = the_block(fuse(laid_out(dataclasses.replace(Dense(), **changed).model())))
    wanted = the_block(fuse(laid_out(Dense().model())))
    assert parts_of(block) == parts_of(wanted) and block.copies == wanted.copies


def test_x_may_be_the_last_operand() -> None:
    block = the_block(fuse(laid_out(Dense(first=False).model())))
    assert block.copies == (BlockCopy(Part(0, 0, 64, 64), Part(9, 128, 64, 192)),)
    assert [step.y.first for step in block.steps] == [96, 64, 32, 0]
    assert [step.x.first for step in block.steps[1:]] == [96, 64, 32]


def _computed(result: str, *more: onnx.NodeProto) -> Change:
    """A change by which a convolution, and more nodes, compute the x of the block; and z, where one of them does."""
    weight = numpy_helper.from_array(np.eye(64, dtype=np.float16).reshape(64, 64, 1, 1).repeat(3, 2), "w")

    def change(nodes: list[onnx.NodeProto], names: list[str]) -> None:
        turn = next(n for n in nodes if n.name == "turn")
        turn.output[:] = ["image"]
        at = nodes.index(turn) + 1
        constant = helper.make_node("Constant", [], ["w"], value=weight)
        pads = {"kernel_shape": [3, 1], "pads": [1, 0, 1, 0]}
        nodes[at:at] = [constant, helper.make_node("Conv", ["image", "w"], [result], name="before", **pads), *more]
        names += ["z"] if any("z" in n.output for n in more) else []

    return change


SILU = [
    helper.make_node("Sigmoid", ["before"], ["gate"], name="gate"),
    helper.make_node("Mul", ["before", "gate"], ["x_nchw"], name="silu"),
]


@pytest.mark.parametrize("computed", [False, True])
@pytest.mark.parametrize("first", ["left", "right"])
def test_halves_of_x(computed: bool, first: str) -> None:
    """In place where a convolution computes x, with its halves in their order; else they are copied."""

    def change(nodes: list[onnx.NodeProto], names: list[str]) -> None:
        if computed:
            _computed("before", *SILU)(nodes, names)
        at = next(k for k, n in enumerate(nodes) if n.name == "conv0")
        nodes.insert(at, helper.make_node("Split", ["x_nchw"], ["left", "right"], name="split", axis=1, num_outputs=2))
        for node in nodes:
            if node.op_type == "Concat":
                node.input[:] = [*(["left", "right"] if first == "left" else ["right", "left"]), *node.input[1:]]

    block = the_block(fuse(laid_out(Dense().model(change))))
    assert [step.x.channels for step in block.steps[-4:]] == [64, 96, 128, 160]
    if first == "right":
        assert block.copies == tuple(BlockCopy(Part(0, 32 - k, 32, 64), Part(9, k, 32, 192)) for k in (0, 32))
    elif computed:
        assert not block.copies and block.steps[0].y == Part(10, 0, 64, 192)
    else:
        assert block.copies == (BlockCopy(Part(0, 0, 64, 64), Part(9, 0, 64, 192)),)


def test_x_that_a_convolution_computes() -> None:
    """It is copied where no kernel that cuDNN compiles writes it, and where others read it too."""
    neg = helper.make_node("Neg", ["x_nchw"], ["z"], name="neg")
    block = the_block(fuse(laid_out(Dense().model(_computed("before", *SILU)))))
    assert not block.copies and len(block.steps) == 5 and block.steps[0].y == Part(10, 0, 64, 192)
    for changed in (_computed("x_nchw"), _computed("before", *SILU, neg)):
        plan = fuse(laid_out(Dense().model(changed)))
        block = the_block(plan)
        assert len(block.copies) == 1 and len(block.steps) == 4
        assert {"block", "convolution"} <= {r.kind.name for r in plan.regions}


def test_blocks_one_after_the_other() -> None:
    """A residual goes around each, as in RRDB."""

    def change(nodes: list[onnx.NodeProto], names: list[str]) -> None:
        back = nodes.pop()
        weight = numpy_helper.from_array(np.full((64, 192, 1, 1), 0.01, np.float16), "w")
        second = []
        for node in nodes[1:]:
            second.append(copied := onnx.NodeProto())
            copied.CopyFrom(node)
            copied.name += "_2"
            copied.input[:] = [
                "sum" if i == "x_nchw" else i if "_w" in i or "bias" in i else f"{i}_2" for i in node.input
            ]
            copied.output[:] = [f"{o}_2" for o in node.output]
        back.input[0] = f"{back.input[0]}_2"
        nodes += [
            helper.make_node("Constant", [], ["w"], value=weight),
            helper.make_node("Conv", ["joined3", "w"], ["last"], name="last"),
            helper.make_node("Add", ["x_nchw", "last"], ["sum"], name="sum"),
            *second, back,
        ]  # fmt: skip

    plan = fuse(laid_out(Dense().model(change)))
    first, second = blocks(plan)
    assert isinstance(first.meaning, Block) and isinstance(second.meaning, Block)
    assert parts_of(first.meaning) == parts_of(second.meaning)
    assert first.meaning.copies == second.meaning.copies
    assert not any(n.op_type == "Concat" for r in plan.regions if r.kind is not BLOCK for n in r.nodes)


_PLACES = [("", [4]), ("conv0_y", [3]), ("conv1_y", [2]), ("conv2_y", [1]), ("joined0", [3]), ("conv3_y", [])]


@pytest.mark.parametrize("is_output", [False, True])
@pytest.mark.parametrize(("elsewhere", "steps"), _PLACES)
def test_results_that_others_read_are_copied(elsewhere: str, steps: list[int], is_output: bool) -> None:
    """The block begins with the convolutions that follow."""
    dense, values = Dense(), Dense().values(Dense().feeds())
    neg = [helper.make_node("Neg", [elsewhere], ["z"], name="neg")] if elsewhere and not is_output else []
    names = () if not elsewhere else (elsewhere,) if is_output else ("z",)
    found = blocks(fuse(laid_out(dense.model(add(*neg, outputs=names)))))
    assert [len(region.meaning.steps) for region in found if isinstance(region.meaning, Block)] == steps
    for region in found:
        assert isinstance(region.meaning, Block)
        (result,) = evaluated(region.meaning, inputs_of(region, values))
        np.testing.assert_allclose(result, dense.expected(dense.feeds()), rtol=1e-9, atol=1e-9)


def _between(nodes: list[onnx.NodeProto], names: list[str]) -> None:
    """A norm and a Relu before each convolution, as in DenseNet."""
    for k in range(1, 4):
        at = next(i for i, n in enumerate(nodes) if n.name == f"conv{k}")
        nodes[at].input[0] = f"relu{k}"
        nodes[at:at] = [
            helper.make_node("LpNormalization", [f"joined{k - 1}"], [f"norm{k}"], axis=1, name=f"norm{k}"),
            helper.make_node("Relu", [f"norm{k}"], [f"relu{k}"], name=f"relu{k}"),
        ]


def _twice(nodes: list[onnx.NodeProto], names: list[str]) -> None:
    last = next(n for n in nodes if n.name == "joined3")
    last.input[-1] = last.input[-2]


REFUSED = {
    "norms between": (Dense(), _between, ""),
    "one Concat": (Dense(layers=1), None, "`x` is no result of a convolution"),
    "a narrower Concat elsewhere": (Dense(), add(outputs=("joined2",)), "`x` is no result of a convolution"),
    "few bytes": (Dense(c=128, growth=8, layers=1), None, "`x` is no result of a convolution"),
    "relu": (Dense(activation="relu"), None, "`x` is no result of a convolution"),
    "no activation": (Dense(activation=""), None, "`x` is no result of a convolution"),
    "float32": (Dense(dtype="float32"), None, ""),
    "no usual size": (Dense(symbolic="N"), None, ""),
    "unaligned": (Dense(growth=20), None, "does not begin at a multiple of 16 bytes"),
    "many": (Dense(layers=25, growth=8, h=2, w=2), None, "the limit is 24"),
    "twice": (Dense(), _twice, ""),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    dense, change, reason = REFUSED[case]
    plan = fuse(laid_out(dense.model(change)))
    last = f"joined{dense.layers - 1}"
    assert not any(n.name == last for region in blocks(plan) for n in region.nodes)
    assert reason in reasons(plan)


def test_concats_nested_deeply_or_twice() -> None:
    """They are refused after few steps: written out, the last one has 2^60 operands."""

    def change(nodes: list[onnx.NodeProto], names: list[str]) -> None:
        back = nodes.pop()
        slices = [helper.make_node("Concat", ["joined0"] * 2, ["d0"], name="d0", axis=1)]
        for k in range(12):
            slices.append(helper.make_node("Concat", [f"d{k}"] * 2, [f"d{k + 1}"], name=f"d{k + 1}", axis=1))
        back.input[0] = "d12"
        nodes += [*slices, back]

    plan = fuse(laid_out(Dense(c=8, growth=8, layers=1).model(change)))
    assert not blocks(plan)


def test_concats_in_the_bodies_of_other_nodes_stay() -> None:
    """A branch joins x and a result, as a narrower Concat does."""
    branches = {}
    for name in ("then", "else"):
        joined = helper.make_node("Concat", ["x_nchw", "conv0_y"], [name], axis=1)
        value = helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT16, None)
        branches[f"{name}_branch"] = helper.make_graph([joined], name, [], [value])
    total = helper.make_node("ReduceSum", ["x_nchw"], ["total"], keepdims=0)
    flag = helper.make_node("Greater", ["total", "zero"], ["flag"])
    zero = helper.make_node("Constant", [], ["zero"], value=numpy_helper.from_array(np.float16(0), "zero"))
    chosen = helper.make_node("If", ["flag"], ["z"], **branches)
    found = blocks(fuse(laid_out(Dense().model(add(total, zero, flag, chosen, outputs=("z",))))))
    assert [len(region.meaning.steps) for region in found if isinstance(region.meaning, Block)] == [3]
