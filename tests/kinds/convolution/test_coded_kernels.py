"""Convolutions of codes in a kernel of ours: device code run by g++, as the library chooses and launches it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxopt.artifact.folder import write_library
from onnxopt.codegen import generate, kernels_json, nvrtc
from onnxopt.fusion.region import Kernel
from onnxopt.kinds.convolution.kind import CONVOLUTION
from onnxopt.runtime import sessions
from tests.conftest import device_arch
from tests.kinds.convolution.test_codes import Case, case, off, run
from tests.support.emulation import emulated_library
from tests.support.fakes import idle_gpu
from tests.support.kinds import coded_convolutions
from tests.support.kinds.coded_convolutions import Layer
from tests.support.wrong_bodies import with_wrong_bodies

PRODUCT = Layer(x_codes=np.uint8, kernel=(1, 1), pads=(0, 0, 0, 0))
BYTES = Layer(x_codes=np.uint8)
LAYERS = (  # rows, columns and depths with tails, several tiles a block, and each step of the epilogue
    dataclasses.replace(PRODUCT, c=64, k=64),
    dataclasses.replace(PRODUCT, c=16, k=32, h=9, w=11, residual="codes", rounded=True),
    dataclasses.replace(
        PRODUCT, c=80, k=144, h=12, w=13, residual="codes", activation="Clip", result="uint8", zero=121
    ),
    dataclasses.replace(PRODUCT, c=272, k=208, n=1, h=5, w=5, bias="float", per_filter=False, activation="", zero=7),
    dataclasses.replace(PRODUCT, c=512, k=16, n=3, h=6, w=11, residual="codes", last=True, bias=""),
    dataclasses.replace(PRODUCT, c=64, k=256, n=1, h=17, w=17, activation="", dtype="float16", bias="float"),
    dataclasses.replace(PRODUCT, c=48, k=400, n=1, h=30, w=20),
    dataclasses.replace(BYTES, c=64, k=64, h=9, w=11),
    dataclasses.replace(BYTES, h=9, kernel=(5, 2), strides=(2, 1), dilations=(1, 3), pads=(2, 1, 3, 0), result="uint8"),
    dataclasses.replace(
        BYTES, c=48, k=144, n=1, h=13, residual="codes", rounded=True, activation="", result="uint8", zero=9
    ),
    dataclasses.replace(
        BYTES, c=48, k=80, h=9, w=11, x_zero=117, residual="codes", bias="float", result="uint8", zero=9
    ),
    dataclasses.replace(BYTES, c=80, k=32, kernel=(1, 3), pads=(0, 2, 0, 1), x_zero=255, result="uint8"),
    Layer(c=16, k=160, h=5, w=13, kernel=(5, 5), strides=(2, 3), pads=(2, 4, 1, 3), x_zero=-128, activation="Clip"),
    dataclasses.replace(PRODUCT, x_codes=np.int8, c=144, k=64, x_zero=-9, bias=""),
    dataclasses.replace(BYTES, c=80, k=208, h=8, kernel=(1, 1), pads=(0, 0, 0, 0), strides=(2, 2)),
    dataclasses.replace(BYTES, c=256, k=64, n=1, h=5, w=5, kernel=(1, 1), pads=(1, 1, 0, 2), activation="Clip"),
)


def products(one: Case) -> list[Kernel]:
    return [k for k in one.kernels if k.kind is CONVOLUTION and k.variants]


@pytest.mark.usefixtures("library")
def test_results_do_not_change(tmp_path: Path) -> None:
    cases = [case(layer, seed) for seed, layer in enumerate(LAYERS)]
    feeds = [coded_convolutions.feeds(one.original) for one in cases]
    kernels = {kernel.name: kernel for one in cases for kernel in products(one)}
    stand_ins = [
        emulated_library.stand_in(idle_gpu.CONVOLVES, "libcudnn.so.9"),
        emulated_library.stand_in(idle_gpu.MULTIPLIES, "libcublasLt.so.13"),
    ]
    models = [(one.fused, [given]) for one, given in zip(cases, feeds, strict=True)]
    found, launched = emulated_library.run_models(tmp_path / "run", models, [*kernels.values()], 8, stand_ins)
    for layer, one, given, (ours,) in zip(LAYERS, cases, feeds, found, strict=True):
        (y,) = ours.values()
        assert not (reason := off(layer, y, run(one.original, given))), f"{layer}: {reason}"
    steps = {v.symbol.rpartition("_")[0] for kernel in kernels.values() for v in kernel.variants}
    assert {name.rpartition("_")[0] for name in launched} == steps
    assert {name.rpartition("_")[2] for name in launched} == {"columns64", "columns128"}


def test_layers_of_other_scales_share_their_entry_points() -> None:
    one, other = (case(BYTES, seed) for seed in range(2))
    changed = dataclasses.replace(BYTES, result="int8", zero=3)
    (first,), (second,), (third,) = (products(of) for of in (one, other, case(changed)))
    assert first.variants == second.variants == third.variants
    assert generate.generate([first, third]).count("__global__") == len(first.variants)


@pytest.mark.parametrize(
    "changed",
    [
        {"c": 528}, {"c": 80, "kernel": (3, 3), "pads": (1, 1, 1, 1)}, {"activation": "HardSwish"}, {"result": ""},
        {"residual": "float"},
    ],
)  # fmt: skip
def test_what_cudnn_runs(changed: dict[str, object]) -> None:
    one = case(dataclasses.replace(PRODUCT, x_codes=np.int8, **changed))  # type: ignore[arg-type]
    assert one.meanings and not products(one)


@pytest.mark.gpu
@pytest.mark.usefixtures("library")
def test_results_on_the_gpu(tmp_path: Path) -> None:
    for number, layer in enumerate(LAYERS):
        layer = dataclasses.replace(layer, dtype="float", n=5)
        one = case(layer, number)
        kernels = products(one)
        fatbin = nvrtc.compile_cuda(generate.generate(kernels), [device_arch()])
        library = write_library(tmp_path / f"lib{number}", kernels_json.to_json(kernels, fatbin), fatbin)
        path = tmp_path / f"{number}.onnx"
        onnx.save(with_wrong_bodies(one.fused, [k.name for k in kernels]), path)
        feeds = coded_convolutions.feeds(one.original)
        session = sessions.open_session(path, provider=sessions.CUDA, library=library)
        (y,) = sessions.run(session, feeds).values()
        assert not (reason := off(layer, np.asarray(y), run(one.original, feeds))), f"{layer}: {reason}"
