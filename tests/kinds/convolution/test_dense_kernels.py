"""Convolutions of few channels in a kernel of ours: device code run by g++, as the library chooses and launches it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest

from cases.block import TABLE, Halves
from cases.convolution import FEW_CHANNELS, SAME, Layer, bare, error
from cases.dense_block import Dense
from cases.models import Fused, fused_model
from onnxopt.fusion.region import Kernel
from onnxopt.kinds.block.kind import BLOCK
from onnxopt.kinds.convolution.kind import CONVOLUTION
from tests.support.emulation import emulated_library
from tests.support.fakes import idle_gpu

SMALL = Layer(c=32, k=32, pads=SAME, dtype="float16")


def _kernels(layer: Layer) -> list[Kernel]:
    return [k for k in fused_model(layer.model()).kernels if k.kind is CONVOLUTION]


def _run(
    folder: Path, models: Sequence[Fused], feeds: Sequence[dict[str, np.ndarray]], kernels: Iterable[Kernel]
) -> tuple[list[list[dict[str, np.ndarray]]], set[str]]:
    """The results of each model, and the entry points that ran."""
    stand_ins = [
        emulated_library.stand_in(idle_gpu.CONVOLVES, "libcudnn.so.9"),
        emulated_library.stand_in(idle_gpu.MULTIPLIES, "libcublasLt.so.13"),
    ]
    given = [(of.optimized, [of_model]) for of, of_model in zip(models, feeds, strict=True)]
    return emulated_library.run_models(folder / "run", given, [*kernels], 8, stand_ins)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_results_of_each_step(dtype: str, tmp_path: Path) -> None:
    layers = [bare(layer, dtype=dtype) for layer in FEW_CHANNELS]
    models = [fused_model(layer.model()) for layer in layers]
    feeds = [layer.feeds() for layer in layers]
    kernels = {kernel.name: kernel for of in models for kernel in of.kernels}
    found, launched = _run(tmp_path, models, feeds, kernels.values())
    for layer, given, (ours,) in zip(layers, feeds, found, strict=True):
        (y,) = ours.values()
        assert error(layer, "", y, layer.expected(given)) <= 1, layer
    dense = [k for k in kernels.values() if k.kind is CONVOLUTION]
    chosen = {k.name: [v.symbol for v in k.variants if v.symbol in launched] for k in dense}
    assert all(chosen.values()), chosen


BLOCKS = (  # of channels that convolutions of ours read and write in place, and of others
    Dense(n=1, h=18, w=9, c=32, growth=32, layers=2),
    Dense(n=2, h=5, w=6, c=32, growth=16, layers=4, activation="prelu"),
    Halves(n=2, h=17, w=8, half=32, depth=2),
    Halves(n=1, h=8, w=8, half=48, depth=1, shortcut=False),
)


@pytest.mark.usefixtures("library")
def test_results_of_blocks(tmp_path: Path) -> None:
    models = [fused_model(block.model()) for block in BLOCKS]
    feeds = [block.feeds() for block in BLOCKS]
    kernels = {k.name: k for of in models for k in of.kernels}
    found, launched = _run(tmp_path, models, feeds, kernels.values())
    for block, given, (ours,) in zip(BLOCKS, feeds, found, strict=True):
        assert TABLE.worst(block, ours, block.expected(given)) <= 1, block
    for kernel in (k for k in kernels.values() if k.kind is BLOCK):
        steps = {v.step for v in kernel.variants if v.symbol in launched}  # type: ignore[attr-defined]
        assert steps == {v.step for v in kernel.variants} != set()  # type: ignore[attr-defined]


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(("pixels", "runs"), [(0, True), (9 * 11, True), (9 * 11 - 1, False)])
def test_a_tile_runs_up_to_so_many_outputs(pixels: int, runs: bool, tmp_path: Path) -> None:
    """cuDNN runs the others."""
    layer = bare(SMALL, n=1)
    model, given = fused_model(layer.model()), layer.feeds()
    (kernel,) = model.kernels
    limited = [dataclasses.replace(v, tile=dataclasses.replace(v.tile, pixels=pixels)) for v in kernel.variants]  # type: ignore[attr-defined]
    kernel = dataclasses.replace(kernel, variants=tuple(limited))
    ((results,),), launched = _run(tmp_path, [model], [given], [kernel])
    (y,) = results.values()
    assert error(layer, "", y, layer.expected(given)) <= 1
    assert bool(launched) == runs


@pytest.mark.parametrize(
    "changed",
    [
        {"c": 24}, {"k": 40}, {"c": 64, "k": 64}, {"dtype": "float32"}, {"kernel": (3, 5)}, {"group": 2},
        {"dilations": (2, 2)}, {"strides": (2, 2)}, {"transposed": True},
    ],
)  # fmt: skip
def test_what_cudnn_runs(changed: dict[str, object]) -> None:
    (kernel,) = _kernels(dataclasses.replace(SMALL, **changed))  # type: ignore[arg-type]
    assert not kernel.variants


def test_an_activation_is_fused_from_any_number_of_channels() -> None:
    for name in ("silu", "hardswish", "leaky_relu"):
        (kernel,) = _kernels(dataclasses.replace(SMALL, activation=name))
        assert kernel.program.activation == name  # type: ignore[union-attr]


def test_layers_with_other_pads_share_their_entry_points() -> None:
    (one,), (other,) = (_kernels(dataclasses.replace(SMALL, pads=pads)) for pads in (SAME, (0, 0, 0, 0)))
    assert one.program != other.program and one.variants == other.variants
