"""Depthwise convolutions with a 1x1 convolution in front: what becomes one kernel, what does not, and its tiles."""

from __future__ import annotations

import dataclasses
from typing import Any

import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import helper

from cases.depthwise import fused, ops, worst
from cases.expanded_depthwise import ExpandedCase
from cases.models import fuse
from onnxopt.codegen import generate
from onnxopt.kinds.depthwise import expanded
from onnxopt.kinds.depthwise.kind import DEPTHWISE
from onnxopt.program.depthwise import MAX_EXPANDED, Depthwise, DepthwiseVariant

CASE = ExpandedCase((32, 56, 56, 24), pads=(1, 1, 1, 1), wide=144, behind="silu")
_FRONT = "Reshape Transpose Conv Transpose"
_LAST = "Transpose Transpose Conv Transpose Sigmoid Mul"


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({}, f"{_FRONT} Sigmoid Mul {_LAST}"),
        ({"in_front": "", "behind": ""}, f"{_FRONT} Transpose Transpose Conv Transpose"),
        ({"in_front": "relu6", "known": False}, f"{_FRONT} Clip {_LAST}"),
        ({"in_front": "bias_silu"}, f"{_FRONT} Add Sigmoid Mul {_LAST}"),
        ({"in_front": "hardswish", "dtype": "bfloat16"}, f"{_FRONT} Add Clip Mul Div {_LAST}"),
    ],
)
def test_both_convolutions_are_one_kernel(changed: dict[str, Any], found: str) -> None:
    costly = changed.get("in_front", "silu").endswith("silu")  # for cuDNN, behind a narrow convolution
    made = fused(dataclasses.replace(CASE, **changed), by_rule=costly)
    (kernel,) = made.kernels
    assert ops(made.kernels) == [found]
    assert kernel.kind is DEPTHWISE and not kernel.cpu
    assert [n.op_type for n in made.optimized.graph.node] == [kernel.name]
    meaning = kernel.program
    assert isinstance(meaning, Depthwise) and meaning.expansion is not None
    (region,) = made.plan.regions
    names = [v.name for v in region.inputs]
    of = meaning.expansion
    assert (names[meaning.x], names[of.weight], names[of.bias or 0]) == ("t", "w1", "b1")
    assert (of.channels, meaning.channels) == (24, 144)
    assert (meaning.prologue is None) == (changed.get("in_front") == "")
    assert "struct Expansion" in generate.generate(made.kernels)


@pytest.mark.parametrize(
    "changed",
    [
        {"dtype": "float32"},  # tensor cores have no float32
        {"x": (4, 9, 9, 12)},  # channels of no whole vectors
        {"wide": 36},
        {"x": (4, 9, 9, MAX_EXPANDED + 8)},
        {"kernel": (9, 9), "pads": (4, 4, 4, 4)},
        {"strides": (3, 3)},
        {"dilations": (2, 2)},
    ],
    ids=str,
)
def test_other_convolutions_stay_apart(changed: dict[str, Any]) -> None:
    kernels = fused(dataclasses.replace(CASE, **changed)).kernels
    assert all(k.program.expansion is None for k in kernels if isinstance(k.program, Depthwise))
    assert any(isinstance(k.program, Depthwise) for k in kernels) and "expanded" not in str(kernels)


def _with_output(case: ExpandedCase, name: str) -> ir.Model:
    model = case.model()
    model.graph.output.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT16, None))
    return ir.serde.deserialize_model(model)


@pytest.mark.parametrize("name", ["e", "x"])
def test_a_wide_tensor_that_something_else_reads_is_stored(name: str) -> None:
    plan = fuse(_with_output(CASE, name))
    assert all(r.meaning.expansion is None for r in plan.regions if isinstance(r.meaning, Depthwise))


def test_a_residual_of_the_results_shape_stays_apart() -> None:
    """The program behind reads no tensor; the residual's Add runs behind the kernel."""
    made = fused(dataclasses.replace(CASE, behind="residual"))
    (kernel,) = (k for k in made.kernels if isinstance(k.program, Depthwise))
    assert isinstance(kernel.program, Depthwise) and kernel.program.expansion is not None
    assert "Add" not in kernel.ops and len(made.optimized.graph.node) == 2


@pytest.mark.parametrize("known", [True, False])
def test_without_the_library_onnx_runtime_runs_the_nodes(known: bool) -> None:
    case = dataclasses.replace(CASE, x=(2, 12, 9, 16), wide=32, in_front="relu6", known=known)
    found = fused(case)
    feeds = case.feeds()
    plain, inlined = (
        ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)[0]
        for model in (found.original, found.optimized)
    )
    wide = dataclasses.replace(case, behind="")  # ONNX Runtime rounds between the nodes behind, too
    assert wide.limit() == case.limit()
    assert worst(case, inlined, plain.astype("float64")) <= 1


def test_the_rule_goes_by_the_work_of_the_halo_against_bytes_and_the_activation() -> None:
    def pays(case: ExpandedCase) -> bool:
        (kernel,) = fused(case).kernels
        assert isinstance(kernel.program, Depthwise)
        return expanded.pays(kernel.program, case.x[:3])

    assert pays(CASE)
    assert pays(dataclasses.replace(CASE, x=(32, 112, 112, 16), strides=(2, 2), wide=96))
    large = dataclasses.replace(CASE, kernel=(7, 7), pads=(3, 3, 3, 3))
    assert not pays(dataclasses.replace(large, x=(256, 56, 56, 96)))
    assert not pays(dataclasses.replace(CASE, in_front=""))
    assert not pays(dataclasses.replace(CASE, x=(32, 14, 14, 80), wide=480))
    assert pays(dataclasses.replace(CASE, x=(1, 56, 56, 24)))  # two launches take longer than the work
    assert not expanded.pays(_meaning(CASE), (0, 56, 56))


def _meaning(case: ExpandedCase) -> Depthwise:
    (kernel,) = fused(case).kernels
    assert isinstance(kernel.program, Depthwise)
    return kernel.program


def _variants(case: ExpandedCase) -> list[DepthwiseVariant]:
    (kernel,) = fused(case).kernels
    assert all(isinstance(v, DepthwiseVariant) and v.layout == "expanded" for v in kernel.variants)
    return list(kernel.variants)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "tile"),
    [
        ({}, (14, 14, 48)),  # 56 is four times 14, and 144 three times 48
        ({"x": (32, 112, 112, 16), "strides": (2, 2), "wide": 96}, (8, 8, 48)),
        ({"x": (1, 56, 56, 24)}, (4, 8, 24)),  # one image fills the multiprocessors by smaller blocks
    ],
    ids=str,
)
def test_tiles_go_by_the_map(changed: dict[str, Any], tile: tuple[int, int, int]) -> None:
    first = _variants(dataclasses.replace(CASE, **changed))[0]
    assert (first.down, first.across, 8 * first.chunks) == tile


@pytest.mark.parametrize("kernel", [3, 5, 7])
@pytest.mark.parametrize("narrow", [8, 24, 64, MAX_EXPANDED])
@pytest.mark.parametrize("stride", [1, 2])
def test_every_gpu_has_an_entry_point(kernel: int, narrow: int, stride: int) -> None:
    """The smallest tile fits 64 KB of shared memory, which all of them have, mostly 48 KB."""
    pads = (kernel // 2,) * 4
    for known in (True, False):
        case = dataclasses.replace(
            CASE, x=(8, 28, 28, narrow), kernel=(kernel,) * 2, strides=(stride,) * 2, pads=pads, known=known
        )
        assert min(v.shared for v in _variants(case)) <= 64 << 10
