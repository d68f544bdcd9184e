"""Depthwise convolutions of what a 1x1 convolution computes, in one kernel: where they pay, and their entry points.

    x [N, H, W, narrow] -> Conv 1x1 -> g -> depthwise Conv -> f -> y [N, Ho, Wo, channels]

A block computes the wide tensor for its tile of outputs and its halo, so that the tensor is never stored. What that
saves is the tensor's bytes, written once and read once; what it costs is the work of the halo (rule.json).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import onnx_ir as ir

from onnxopt.fusion.channels_last import Sandwich
from onnxopt.fusion.context import Context
from onnxopt.graph.shapes.dims import Dim
from onnxopt.kinds.depthwise.lower import expansion
from onnxopt.kinds.depthwise.rule import table
from onnxopt.kinds.depthwise.tiles import DepthwiseVariant, expanded_bytes, slots
from onnxopt.program.depthwise import MOST_EXPANDED_SIDE, Depthwise
from onnxopt.program.hardware import WARP

# Outputs of a block, down and across, and rows of a thread.
_TILES = ((14, 14, 7), (8, 16, 4), (7, 14, 7), (8, 8, 4), (7, 7, 7), (4, 8, 4), (4, 4, 4))
_OTHERS = (*_TILES, (14, 28, 7), (8, 28, 4), (16, 16, 4), (14, 8, 7), (4, 14, 4))
_UNKNOWN = (8, 8, 4)  # where the map's size is not known
_MOST_SHARED = 72 << 10  # bytes of a block, so that three run on a multiprocessor
_EVERY_GPU = 48 << 10  # bytes that a block can have on every GPU
# Wide channels of a round -> warps, so that a thread's items are of the same channels.
_ROUNDS = {32: 4, 48: 6, 24: 6, 40: 5, 16: 4, 8: 4}
_MOST_WEIGHTS = 48  # registers of a thread for the weights of a round
_FEW_TAPS = 9  # up to here a thread holds the taps of four channels, else of two
_NOMINAL = 32 * 56 * 56  # pixels of a tensor of unknown size


def producer_of(value: ir.Value | None, found: Sandwich, front: Sequence[ir.Node], context: Context) -> Sandwich | None:
    """The 1x1 convolution that computes a value for a depthwise one and nodes in front of that alone, else None."""
    turned = value.producer() if value is not None else None
    before = turned.inputs[0] if turned is not None and turned.op_type == "Transpose" else None
    conv = before.producer() if before is not None else None
    if value is None or conv is None or conv.op_type != "Conv":
        return None
    wide = expansion(conv, context.shapes)
    if isinstance(wide, str) or wide.y is not value or any(map(context.is_taken, wide.nodes)):
        return None
    inside = {*found.nodes, *front}
    private = not value.is_graph_output() and set(context.readers(value)) <= inside
    window = found.window
    if not private or window is None or any(node not in context.order for node in wide.nodes):
        return None
    fits = max(window.kernel) <= MOST_EXPANDED_SIDE and max(window.strides) <= 2 and max(window.dilations) == 1
    return wide if fits else None


def pays(meaning: Depthwise, x: Sequence[Dim]) -> bool:
    """Whether storing and reading the wide tensor takes longer than computing the halo. x: N, H and W, as far as they
    are known."""
    assert meaning.expansion is not None
    of, known = table(), [d if isinstance(d, int) else None for d in x]
    batch, height, width = known if len(known) == 3 else (None, None, None)
    down, across = meaning.window.strides
    result = (height // down if height is not None else None, width // across if width is not None else None)
    if 0 in (batch, height, width, *result):
        return False
    variant = _variant("", meaning, _tile(meaning, *result))
    pixels = _NOMINAL if batch is None or height is None or width is None else batch * height * width
    if result[0] is None or result[1] is None:
        ratio = slots(meaning.window, variant) / (variant.down * down * variant.across * across)
    else:
        assert height is not None and width is not None
        ratio = _work(meaning, variant, result[0], result[1]) / (height * width)
    instructions = meaning.before.program.cost if meaning.before is not None else 0
    load = of["load_us"]["held"]
    element = load["self"] + load["instruction"] * instructions + of["expanded"]["channel"] * meaning.expansion.channels
    millions = pixels * meaning.channels / 1e6
    saved = 2 * 2 * millions * of["pass_us"]["megabyte"] + of["pass_us"]["launch"]
    return float(saved) > float((ratio - 1) * millions * element)


def choose(
    name: str, meaning: Depthwise, results: Sequence[tuple[int | None, int | None]]
) -> tuple[DepthwiseVariant, ...]:
    """Variants in the order in which the host tries them. results: heights and widths, None where they are unknown."""
    chosen: dict[str, DepthwiseVariant] = {}
    for height, width in results:
        variant = _variant(name, meaning, _tile(meaning, height, width))
        if height is not None and width is not None:
            variant = dataclasses.replace(variant, narrowest=max(width, 1), widest=max(width, 1))
        before = chosen.get(variant.symbol, variant)
        ends = [v.widest for v in (before, variant)]
        chosen[variant.symbol] = dataclasses.replace(
            variant,
            narrowest=min(before.narrowest, variant.narrowest),
            widest=0 if 0 in ends else max(ends),
        )
    if not chosen or any(v.shared > _EVERY_GPU for v in chosen.values()):
        small = next(v for v in _every(name, meaning, _TILES) if v.shared <= _EVERY_GPU or v.down * v.across == 16)
        chosen.setdefault(small.symbol, small)
    return tuple(chosen.values())


def others(name: str, meaning: Depthwise) -> Iterator[DepthwiseVariant]:
    """Further tiles."""
    return (v for v in _every(name, meaning, _OTHERS) if v.shared <= 2 * _MOST_SHARED)


def _every(name: str, meaning: Depthwise, tiles: Sequence[tuple[int, int, int]]) -> Iterator[DepthwiseVariant]:
    return (_variant(name, meaning, tile) for tile in tiles)


def _tile(meaning: Depthwise, height: int | None, width: int | None) -> tuple[int, int, int]:
    """The tile with the least work whose blocks fit a multiprocessor three times."""
    small = [t for t in _TILES if _variant("", meaning, t).shared <= _MOST_SHARED]
    if not height or not width:
        return _UNKNOWN if _UNKNOWN in small else small[0]
    return min(small, key=lambda tile: _work(meaning, _variant("", meaning, tile), height, width))


def _work(meaning: Depthwise, variant: DepthwiseVariant, height: int, width: int) -> int:
    """Pixels that all tiles of an image expand."""
    return -(-height // variant.down) * -(-width // variant.across) * slots(meaning.window, variant)


def _channels(meaning: Depthwise) -> int:
    """Wide channels of a round: no more than needed are computed."""
    assert meaning.expansion is not None
    octets = meaning.expansion.channels // 8
    fitting = [c for c in _ROUNDS if c // 8 * octets <= _MOST_WEIGHTS]
    return min(fitting, key=lambda c: -(-meaning.channels // c) * c)


def _variant(name: str, meaning: Depthwise, tile: tuple[int, int, int]) -> DepthwiseVariant:
    return variant(name, meaning, tile, _channels(meaning))


def variant(name: str, meaning: Depthwise, tile: tuple[int, int, int], channels: int) -> DepthwiseVariant:
    """The entry point of a tile and a number of wide channels of a round."""
    assert meaning.expansion is not None
    down, across, strip = tile
    taps, warps = meaning.window.kernel[0] * meaning.window.kernel[1], _ROUNDS[channels]
    vector = 4 if taps <= _FEW_TAPS else 2
    symbol = f"{name}_expanded_d{down}a{across}s{strip}c{channels}w{warps}"
    made = DepthwiseVariant(
        symbol, "", 32, vector, 1, WARP * warps, waits=True, layout="expanded", down=down, across=across,
        chunks=channels // 8, warps=warps, strip=strip,
    )  # fmt: skip
    return dataclasses.replace(made, shared=expanded_bytes(meaning.window, made, meaning.expansion.channels))
