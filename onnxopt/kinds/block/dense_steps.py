"""Entry points for the convolutions of few channels of a block (kinds/convolution/dense_kernels.py)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from onnxopt.fusion.region import Kernel
from onnxopt.kinds.convolution import dense_kernels
from onnxopt.kinds.convolution.dense_kernels import DenseSteps
from onnxopt.program.block import Block, BlockVariant
from onnxopt.program.convolution import DenseTile
from onnxopt.program.hardware import WARP


def entry_points(block: Block) -> tuple[BlockVariant, ...]:
    """One for each tile of a step; steps that differ in their tensors alone have the same."""
    own = list(_own(block))
    name = dense_kernels.name_of("Block", *((steps, tiles) for _, steps, tiles in own))
    structs = _structs(name, block)
    return tuple(
        BlockVariant(
            dense_kernels.symbol(structs[steps], tile, warps), "", 32, 8, 1, WARP * warps, waits=True, tile=tile,
            step=number, shared=dense_kernels.shared_bytes(block.steps[number].window, tile, warps),
        )
        for number, steps, tiles in own
        for tile, warps in tiles
    )  # fmt: skip


def lines(kernel: Kernel) -> list[str]:
    """A struct for what steps do with a sum, and its entry points, each once."""
    if not kernel.variants:
        return []
    block = cast(Block, kernel.program)
    variants = {variant.symbol: variant for variant in kernel.variants}
    name = kernel.variants[0].symbol.rpartition("_c")[0].rpartition("_")[0]
    return [
        line
        for steps, struct in _structs(name, block).items()
        for line in dense_kernels.lines(struct, steps, (v for s, v in variants.items() if s.startswith(f"{struct}_c")))
    ]


def _own(block: Block) -> Iterator[tuple[int, DenseSteps, list[tuple[DenseTile, int]]]]:
    """The steps with entry points: their numbers, what they compute, and tiles."""
    for number, step in enumerate(block.steps):
        steps = dense_kernels.steps_of(step, block.dtype)
        tiles = [] if steps is None else dense_kernels.tiles(steps, [(step.x.channels, step.y.channels)])
        if steps is not None and tiles:
            yield number, steps, tiles


def _structs(name: str, block: Block) -> dict[DenseSteps, str]:
    """The names of what differs between the steps."""
    different = dict.fromkeys(steps for _, steps, _ in _own(block))
    return {steps: f"{name}_{k}" for k, steps in enumerate(different)}
