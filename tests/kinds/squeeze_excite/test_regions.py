"""Squeeze-excite regions: which products become one kernel, when a depthwise convolution joins, and what is refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

from cases.models import Fused, fused_model
from cases.squeeze_excite import Case, fused, worst
from onnxopt.codegen import generate
from onnxopt.kinds.squeeze_excite.kind import SQUEEZE_EXCITE
from onnxopt.kinds.squeeze_excite.match import MAX_ALONE_BYTES, MAX_WEIGHT_BYTES
from onnxopt.program.depthwise import DepthwiseVariant
from onnxopt.program.squeeze_excite import SqueezeExcite

CASE = Case((4, 14, 14, 48), 12, "float16")


def _kinds(found: Fused) -> list[str]:
    return sorted(k.kind.name for k in found.kernels)


@pytest.mark.parametrize(
    "changed",
    [
        {}, {"known": False}, {"dtype": "bfloat16"}, {"dtype": "float32", "bias": False}, {"in_front": True},
        {"activation": "relu", "gate": "hardsigmoid"}, {"activation": "hardswish", "gate": "spelled"},
        {"kernel": 5, "stride": 2}, {"x": (4, 14, 14, 37), "hidden": 7}, {"x": (300, 7, 7, 16)},
        {"narrow": 16}, {"narrow": 24, "known": False},
    ],
    ids=str,
)  # fmt: skip
def test_the_convolution_the_mean_and_the_products_are_one_kernel(changed: dict[str, Any]) -> None:
    found = fused(dataclasses.replace(CASE, **changed))
    assert _kinds(found) == ["squeeze_excite"]
    assert found.kernel.kind is SQUEEZE_EXCITE and not found.kernel.cpu
    meaning = found.kernel.program
    assert isinstance(meaning, SqueezeExcite) and meaning.depthwise is not None and meaning.mean is None
    symbols = [v.symbol.removeprefix(found.kernel.name) for v in found.kernel.variants]
    assert symbols[:3] == ["_rows1", "_rows4", "_fold"] and isinstance(found.kernel.variants[3], DepthwiseVariant)
    assert '#include "squeeze_excite/behind_depthwise.cuh"' in generate.generate(found.kernels)


@pytest.mark.parametrize("form", ["conv", "gemm", "matmul"])
@pytest.mark.parametrize("known", [True, False])
def test_without_a_convolution_the_products_are_one_kernel(form: str, known: bool) -> None:
    case = dataclasses.replace(CASE, depthwise=False, form=form, known=known)
    found = fused(case)
    assert "squeeze_excite" in _kinds(found) and not {"gemm", "convolution"} & set(_kinds(found))
    meaning = found.kernel.program
    assert isinstance(meaning, SqueezeExcite) and meaning.mean == 0 and meaning.depthwise is None
    assert (meaning.channels, meaning.hidden, meaning.results) == (48, 12, 48)
    assert len(found.kernel.variants) == 2


@pytest.mark.parametrize("form", ["gemm", "matmul"])
def test_a_mean_of_another_shape_keeps_the_convolution_apart(form: str) -> None:
    assert {"depthwise", "squeeze_excite"} <= set(_kinds(fused(dataclasses.replace(CASE, form=form))))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"x": (2, 7, 7, 2049)}, "are faster as kernels of their own"),
        ({"hidden": 513, "x": (2, 7, 7, 8)}, "are faster as kernels of their own"),
        ({"x": (2, 7, 7, 1024), "hidden": 129}, f"{MAX_WEIGHT_BYTES + 4096} bytes"),
        ({"x": (2, 7, 7, 1024), "hidden": 33, "depthwise": False}, f"{MAX_ALONE_BYTES + 4096} bytes"),
        ({"x": (6000, 1, 1, 256), "hidden": 64, "kernel": 1}, "Two products of 6000 rows are faster on tensor cores"),
    ],
)
def test_larger_products_are_refused(changed: dict[str, Any], said: str) -> None:
    found = fused(dataclasses.replace(CASE, **changed))
    assert "squeeze_excite" not in _kinds(found)
    assert any(said in r.reason for r in found.plan.refusals)


def _changed(case: Case, change: str) -> onnx.ModelProto:
    """The case with another reader of the mean or of the hidden channels, or with other axes."""
    model = case.model()
    graph = model.graph
    element = graph.input[0].type.tensor_type.elem_type
    if change in ("mean", "q"):
        graph.node.append(helper.make_node("Neg", [change], ["z"], name="z"))
        graph.output.append(helper.make_tensor_value_info("z", element, None))
    elif change == "axes":
        (axes,) = (t for t in graph.initializer if t.name == "axes")
        axes.CopyFrom(onnx.numpy_helper.from_array(np.array([1]), "axes"))
        (node,) = (n for n in graph.node if n.name == "mean")
        node.output[0] = "half"
        graph.node.insert(list(graph.node).index(node) + 1, helper.make_node("ReduceMean", ["half", "two"], ["mean"]))
        graph.initializer.append(onnx.numpy_helper.from_array(np.array([2]), "two"))
    else:
        (node,) = (n for n in graph.node if n.name == "mean")
        node.op_type = "ReduceMax"
    return model


@pytest.mark.parametrize(
    ("change", "expected"),
    [("mean", {"depthwise", "squeeze_excite"}), ("axes", {"depthwise", "squeeze_excite"}), ("q", {"depthwise"}),
     ("max", {"depthwise"})],
)  # fmt: skip
def test_what_does_not_join(change: str, expected: set[str]) -> None:
    found = fused_model(_changed(CASE, change))
    kinds = set(_kinds(found))
    assert expected <= kinds and ("squeeze_excite" in kinds) is ("squeeze_excite" in expected)


@pytest.mark.parametrize(
    ("gate", "scaling"), [("sigmoid", "Sigmoid Mul"), ("hardsigmoid", "HardSigmoid Mul"), ("spelled", "Div Mul")]
)
def test_the_kernel_that_scales_the_map_ends_the_gate(gate: str, scaling: str) -> None:
    """A Mul alone would stay with ONNX Runtime."""
    case = dataclasses.replace(CASE, gate=gate)
    model = case.model()
    model.graph.node.append(helper.make_node("Mul", ["v", "f"], ["scaled"], name="scaled"))
    del model.graph.output[:]
    model.graph.output.append(
        helper.make_tensor_value_info("scaled", model.graph.input[0].type.tensor_type.elem_type, None)
    )
    found = fused_model(model)
    assert {k.kind.name: " ".join(k.ops) for k in found.kernels}["pointwise"] == scaling
    assert _kinds(found) == ["pointwise", "squeeze_excite"]


@pytest.mark.parametrize("changed", [{}, {"known": False, "form": "gemm"}, {"depthwise": False, "form": "matmul"}])
def test_without_the_library_onnx_runtime_runs_the_nodes(changed: dict[str, Any]) -> None:
    case = dataclasses.replace(CASE, dtype="float32", **changed)
    feeds = case.feeds()
    session = ort.InferenceSession(fused(case).optimized.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    assert worst(case, dict(zip(names, session.run(names, feeds), strict=True)), case.expected(feeds)) <= 1


def test_the_map_is_not_read_again() -> None:
    """Bytes: x, the weights, the map and the factors."""
    (region,) = fused(CASE).plan.regions
    map_bytes = 4 * 14 * 14 * 48 * 2
    weights = (9 * 48 + 48 + 2 * 12 * 48 + 12 + 48) * 2
    assert region.traffic.bytes_after == 2 * map_bytes + weights + 4 * 48 * 2
