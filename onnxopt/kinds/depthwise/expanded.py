"""Depthwise convolutions of what a 1x1 convolution computes, in one kernel: where they pay, and their entry points.

    x [N, H, W, narrow] -> Conv 1x1 -> g -> depthwise Conv -> f -> y [N, Ho, Wo, channels]

A block computes the wide tensor for its tile of outputs and its halo, so that the tensor is never stored. What that
saves is the tensor's bytes, written once and read once, and a launch; what it costs is the work of the halo. Times of
both are predicted from measured ones (costs/data/depthwise.json).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import onnx_ir as ir

from onnxopt.costs.depthwise import ExpandedWork, numbers
from onnxopt.fusion.channels_last import Sandwich
from onnxopt.fusion.context import Context
from onnxopt.fusion.core_lowering import CoreMatch
from onnxopt.graph.shapes.dims import Dim
from onnxopt.kinds.depthwise.match import expansion
from onnxopt.kinds.depthwise.tiles import expanded_bytes, slots
from onnxopt.program.depthwise import MAX_EXPANDED_SIDE, Depthwise, DepthwiseVariant
from onnxopt.program.hardware import WARP
from onnxopt.program.window import Window

# Outputs of a block, down and across, and rows of a thread.
_TILES = numbers().expanded_tiles
_STRIDED_TILES = _TILES[numbers().expanded_first_strided :]
_OTHERS = numbers().expanded_others
_UNKNOWN = numbers().expanded_unknown
_MAX_SHARED = numbers().expanded_max_shared
_EVERY_GPU = 48 << 10  # bytes that a block can have on every GPU
_ROUNDS = numbers().expanded_rounds  # wide channels
_SMALL_ROUND = numbers().expanded_small_round
_ROUND_CHANNELS = numbers().expanded_round_channels
_BATCH = numbers().expanded_batch
_WARPS = numbers().expanded_warps
_RESIDENT, _RESIDENT_OF_MORE = numbers().expanded_resident_warps, numbers().expanded_resident_warps_of_more
_FEW_WEIGHTS = numbers().expanded_few_weights
_MULTIPROCESSOR = 227 << 10  # bytes of shared memory, of which each block takes another 1024
_MAX_WEIGHTS = 48  # registers of a thread for the weights of a round
_FEW_TAPS = 9  # up to here a thread holds the taps of four channels, else of two
_NOMINAL = numbers().expanded_nominal


def producer_of(
    value: ir.Value | None, match: CoreMatch, prologue: Sequence[ir.Node], context: Context
) -> Sandwich | None:
    """The 1x1 convolution that computes a value for a depthwise one and its prologue alone, else None."""
    turned = value.producer() if value is not None else None
    source = turned.inputs[0] if turned is not None and turned.op_type == "Transpose" else None
    conv = source.producer() if source is not None else None
    if value is None or conv is None or conv.op_type != "Conv":
        return None
    wide = expansion(conv, context.shapes)
    if isinstance(wide, str) or wide.y is not value or any(map(context.is_owned, wide.nodes)):
        return None
    inside = {*match.nodes, *prologue}
    private = not value.is_graph_output() and set(context.readers(value)) <= inside
    window: Window = match.fields["window"]
    if not private or any(node not in context.order for node in wide.nodes):
        return None
    fits = max(window.kernel) <= MAX_EXPANDED_SIDE and max(window.strides) <= 2 and max(window.dilations) == 1
    return wide if fits else None


def pays(meaning: Depthwise, x: Sequence[Dim]) -> bool:
    """Whether two kernels, of which one stores the wide tensor, are predicted to take longer. x: N, H and W, as far as
    they are known."""
    static = [d if isinstance(d, int) else None for d in x]
    batch, height, width = static if len(static) == 3 else (None, None, None)
    down, across = meaning.window.strides
    result = (height // down if height is not None else None, width // across if width is not None else None)
    if 0 in (batch, height, width, *result):
        return False
    if batch is None or height is None or width is None:
        batch, height, width = _NOMINAL
        result = (height // down, width // across)
        best = _best("", meaning, batch, None, None)
    else:
        best = _best("", meaning, batch, *result)
    assert result[0] is not None and result[1] is not None
    return numbers().one_kernel_pays(_work(meaning, best, (batch, height, width), (result[0], result[1])))


def _work(
    meaning: Depthwise, chosen: DepthwiseVariant, x: tuple[int, int, int], result: tuple[int, int]
) -> ExpandedWork:
    """The work of both convolutions. x: N, H and W. result: Ho and Wo."""
    assert meaning.expansion is not None
    instructions = meaning.prologue.program.cost if meaning.prologue is not None else 0
    wide = x[0] * x[1] * x[2] * meaning.channels / 1e6  # millions of elements
    taps = x[0] * result[0] * result[1] * meaning.channels / 1e6 * meaning.window.kernel[0] * meaning.window.kernel[1]
    computed = x[0] * _tiles(chosen, *result) * slots(meaning.window, chosen) * meaning.channels / 1e6
    return ExpandedWork(wide, computed, taps, meaning.expansion.channels, instructions)


def choose(
    name: str, meaning: Depthwise, results: Sequence[tuple[int | None, int | None, int | None]]
) -> tuple[DepthwiseVariant, ...]:
    """Variants in the order in which the host tries them. results: N, Ho and Wo of each call, as far as known."""
    chosen: dict[str, DepthwiseVariant] = {}
    for batch, height, width in results:
        best = _best(name, meaning, batch, height, width)
        if height is not None and width is not None:
            best = dataclasses.replace(best, narrowest=max(width, 1), widest=max(width, 1))
        before = chosen.get(best.symbol, best)
        narrowest, ends = min(before.narrowest, best.narrowest), [before.widest, best.widest]
        chosen[best.symbol] = dataclasses.replace(best, narrowest=narrowest, widest=0 if 0 in ends else max(ends))
    if not chosen or any(v.shared > _EVERY_GPU for v in chosen.values()):
        small = _small(name, meaning)
        chosen.setdefault(small.symbol, small)
    return tuple(chosen.values())


def others(name: str, meaning: Depthwise) -> Iterator[DepthwiseVariant]:
    """Further tiles, and further numbers of wide channels at a time."""
    rounds = [c for c in _ROUNDS if _weights(meaning, c) <= _MAX_WEIGHTS]
    rounds.sort(key=lambda c: -(-meaning.channels // c) * (c + _ROUND_CHANNELS))
    variants = (
        variant(name, meaning, t, c) for k, c in enumerate(rounds[:2]) for t in (_OTHERS if k == 0 else _TILES[:4])
    )
    return (v for v in variants if v.shared <= _MAX_SHARED)


def _best(name: str, meaning: Depthwise, batch: int | None, height: int | None, width: int | None) -> DepthwiseVariant:
    """The entry point with the least work for a result of these sizes, None where they are unknown."""
    usual = _STRIDED_TILES if max(meaning.window.strides) > 1 else _TILES
    tiles = usual if height and width else (_UNKNOWN,)
    rounds = [c for c in _ROUNDS if _weights(meaning, c) <= _MAX_WEIGHTS]
    fitting = [v for t in tiles for c in rounds if (v := variant(name, meaning, t, c)).shared <= _MAX_SHARED]
    if not fitting:
        return _small(name, meaning)
    sizes = (batch or _BATCH, height or _BATCH * _UNKNOWN[0], width or _UNKNOWN[1])
    return min(fitting, key=lambda v: _cost(meaning, v, sizes))


def _small(name: str, meaning: Depthwise) -> DepthwiseVariant:
    """The largest tile with the usual number of wide channels that every GPU can have, else the smallest tile."""
    variants = [variant(name, meaning, tile, _SMALL_ROUND) for tile in _TILES]
    return next((v for v in variants if v.shared <= _EVERY_GPU), variants[-1])


def _cost(meaning: Depthwise, chosen: DepthwiseVariant, sizes: tuple[int, int, int]) -> float:
    """Expanded elements, with what a round costs by itself, by how well the multiprocessors are filled."""
    channels = 8 * chosen.chunks
    rounds = -(-meaning.channels // channels) * sizes[0] * _tiles(chosen, *sizes[1:])  # of all blocks
    resident = min(_MULTIPROCESSOR // (chosen.shared + 1024), chosen.blocks)
    return numbers().round_cost(rounds, resident, slots(meaning.window, chosen), channels)


def _tiles(chosen: DepthwiseVariant, height: int, width: int) -> int:
    """Of an image."""
    return -(-height // chosen.down) * -(-width // chosen.across)


def _weights(meaning: Depthwise, channels: int) -> int:
    """Registers of a thread for the 1x1 weights of a round of so many channels."""
    assert meaning.expansion is not None
    return channels // 8 * meaning.expansion.channels // 8


def variant(name: str, meaning: Depthwise, tile: tuple[int, int, int], channels: int) -> DepthwiseVariant:
    """The entry point of a tile and a number of wide channels of a round."""
    assert meaning.expansion is not None
    down, across, strip = tile
    few = meaning.window.kernel[0] * meaning.window.kernel[1] <= _FEW_TAPS
    vector = 4 if few else 2
    symbol = f"{name}_expanded_d{down}a{across}s{strip}c{channels}w{_WARPS}"
    result = DepthwiseVariant(
        symbol, "", 32, vector, 1, WARP * _WARPS, waits=True, layout="expanded", down=down, across=across,
        chunks=channels // 8, warps=_WARPS, strip=strip,
    )  # fmt: skip
    shared = expanded_bytes(meaning.window, result, meaning.expansion.channels)
    light = few and _weights(meaning, channels) <= _FEW_WEIGHTS
    resident = (_RESIDENT if light else _RESIDENT_OF_MORE) // _WARPS
    return dataclasses.replace(result, shared=shared, blocks=max(1, min(resident, _MULTIPROCESSOR // (shared + 1024))))
