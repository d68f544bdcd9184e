"""Quantized convolutions run on codes: which nodes a kernel takes, what is refused and why, and what it computes."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from cases.models import fuse, laid_out, outline
from onnxopt.artifact.folder import write_library
from onnxopt.codegen import kernels_json
from onnxopt.fusion.region import FusionPlan, Kernel
from onnxopt.kinds.convolution.kind import CONVOLUTION
from onnxopt.program.convolution import Convolution
from onnxopt.runtime import sessions
from onnxopt.runtime.sessions import WITHOUT_INTEGER_KERNELS
from tests.support.fakes import idle_gpu
from tests.support.kinds import coded_convolutions
from tests.support.kinds.coded_convolutions import RESULT_SCALE, Layer
from tests.support.wrong_bodies import with_wrong_bodies

_TOLERANCE = {"float": 2e-6, "float16": 2e-3}  # of the largest |value|
_OFF = 0.05  # the part of all codes that may be the next one: numbers between two codes are rounded either way


@dataclasses.dataclass(frozen=True)
class Case:
    """A model of a convolution of codes, fused."""

    original: onnx.ModelProto
    fused: onnx.ModelProto
    plan: FusionPlan
    kernels: tuple[Kernel, ...]

    @property
    def meanings(self) -> list[Convolution]:
        return [k.program for k in self.kernels if isinstance(k.program, Convolution)]


def case(layer: Layer, seed: int = 0, usual: Mapping[str, int] = types.MappingProxyType({})) -> Case:
    proto = coded_convolutions.model(layer, seed)
    onnx.checker.check_model(proto, full_check=True)
    model = laid_out(proto, gpu=True, usual=usual)
    plan = fuse(model, usual=usual)
    kernels = outline(model, plan)
    return Case(proto, ir.to_proto(model), plan, kernels)


def by_cudnn(one: Case) -> list[Kernel]:
    """The convolutions without entry points, so that cuDNN runs all."""
    return [dataclasses.replace(k, variants=()) for k in one.kernels if k.kind is CONVOLUTION]


def run(proto: onnx.ModelProto, feeds: dict[str, np.ndarray], *, integers: bool = False) -> np.ndarray:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    if not integers:
        options.add_session_config_entry(*WITHOUT_INTEGER_KERNELS)
    (y,) = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"]).run(None, feeds)
    return y


def off(layer: Layer, found: np.ndarray, wanted: np.ndarray) -> str:
    """What is wrong with a result, "" where nothing is."""
    error = np.abs(found.astype(np.float64) - wanted.astype(np.float64))
    limit = _TOLERANCE[layer.dtype] * np.abs(wanted.astype(np.float64)).max()
    step = RESULT_SCALE * 1.5 if layer.rounded or layer.result else 0.0
    if not (error <= limit + step * (2.1 if layer.dtype == "float16" else 1.01)).all():
        return f"off by {error.max()}"
    part = np.mean(error > limit)
    return f"{part:.1%} of the codes are off" if part > _OFF else ""


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("seeds", [range(k, k + 30) for k in (0, 30)], ids=str)
def test_results_do_not_change(seeds: range, tmp_path: Path) -> None:
    """Of ONNX Runtime on the original, with the functions inlined, and of the graph that the library gives cuDNN."""
    layers = [coded_convolutions.drawn(seed) for seed in seeds]
    cases = [case(layer, seed) for layer, seed in zip(layers, seeds, strict=True)]
    feeds = [coded_convolutions.feeds(one.original) for one in cases]
    jobs = [(one.fused, by_cudnn(one), [given]) for one, given in zip(cases, feeds, strict=True)]
    found = idle_gpu.products(tmp_path / "gpu", jobs, kinds=(CONVOLUTION,))
    for layer, one, given, (ours,) in zip(layers, cases, feeds, found, strict=True):
        (meaning,) = one.meanings
        assert meaning.codes is not None
        took = bool(meaning.codes.result), bool(meaning.codes.rounded), meaning.residual is not None
        assert took == (bool(layer.result), layer.rounded, bool(layer.residual)), layer
        wanted = run(one.original, given)
        np.testing.assert_array_equal(run(one.fused, given), wanted)
        (y,) = ours.values()
        assert (y.dtype, y.shape) == (wanted.dtype, wanted.shape)
        assert not (reason := off(layer, y, wanted)), f"{layer}: {reason}"


@pytest.mark.gpu
@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("seeds", [range(k, k + 15) for k in (100, 115)], ids=str)
def test_results_on_the_gpu(seeds: range, tmp_path: Path) -> None:
    """Of floats of 32 bits: ONNX Runtime's QuantizeLinear of float16 on CUDA divides in 16 bits."""
    for seed in seeds:
        layer = dataclasses.replace(coded_convolutions.drawn(seed), dtype="float", c=32 + 32 * (seed % 3))
        one = case(layer, seed)
        kernels = by_cudnn(one)
        library = write_library(tmp_path / f"lib{seed}", kernels_json.to_json(kernels, None), None)
        path = tmp_path / f"{seed}.onnx"
        onnx.save(with_wrong_bodies(one.fused, [k.name for k in kernels]), path)
        feeds = coded_convolutions.feeds(one.original)
        session = sessions.open_session(path, provider=sessions.CUDA, library=library)
        (y,) = sessions.run(session, feeds).values()
        assert not (reason := off(layer, y, run(one.original, feeds))), f"{layer}: {reason}"


@pytest.mark.parametrize("layer", [Layer(), Layer(activation="", residual="codes", rounded=True)])
def test_a_session_on_the_cpu_has_its_integer_kernels(layer: Layer) -> None:
    """Without the library, ONNX Runtime cancels the Transposes and computes what it does for the original."""
    one = case(layer)
    feeds = coded_convolutions.feeds(one.original)
    np.testing.assert_array_equal(run(one.fused, feeds, integers=True), run(one.original, feeds, integers=True))


def test_codes_reach_both_ends() -> None:
    one = case(Layer(activation=""))
    codes = np.rint(run(one.original, coded_convolutions.feeds(one.original)) / RESULT_SCALE)
    assert codes.min() == -128 and codes.max() == 127


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"x_zero": 5, "residual": "float"}, "cuDNN multiplies int8 with the zero point 0"),
        ({"x_codes": np.uint8, "activation": "HardSwish"}, "cuDNN multiplies int8 with the zero point 0"),
        ({"x_codes": np.uint8, "result": ""}, "cuDNN multiplies int8 with the zero point 0"),
        ({"c": 3200, "kernel": (5, 5), "pads": (2, 2, 2, 2), "h": 1, "w": 1}, "larger than int32 holds"),
        ({"w_zero": 3}, "no constant of int8 with the zero point 0"),
        ({"group": 2}, "has groups"),
        ({"c": 24}, "no multiples of 16"),
        ({"k": 40}, "no multiples of 16"),
    ],
)
def test_what_stays_with_onnx_runtime(changed: dict[str, object], reason: str) -> None:
    layer = dataclasses.replace(Layer(), **changed)  # type: ignore[arg-type]
    one = case(layer)
    assert not one.meanings
    assert any(reason in refusal.reason for refusal in one.plan.refusals if refusal.op_type == "Conv")
    feeds = coded_convolutions.feeds(one.original)
    np.testing.assert_array_equal(run(one.fused, feeds), run(one.original, feeds))


@pytest.mark.parametrize("usual", [{}, {"N": 4}], ids=str)
def test_a_batch_is_stated(usual: dict[str, int]) -> None:
    """cuDNN compiles a kernel for each size, so that it runs no codes where the size is not known."""
    one = case(Layer(symbolic=True), usual=usual)
    assert bool(one.meanings) == bool(usual)
    refused = [r.reason for r in one.plan.refusals if r.op_type == "Conv"]
    assert usual or any("no usual one was stated" in reason for reason in refused)
    original = [node.op_type for node in one.original.graph.node]
    assert usual or [n.op_type for n in one.fused.graph.node].count("Conv") == original.count("Conv")
