"""Entry points of samples: how many channels a thread computes. The library runs the first one that fits a call."""

from __future__ import annotations

from collections.abc import Sequence

from onnxopt.fusion.region import Region
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.program.grid_sample import GridSample, GridSampleVariant

THREADS = 128
_OF_PLANES = 4  # channels of a thread that reads them one by one: their pixels and weights are the same


def choose(name: str, meaning: GridSample, regions: Sequence[Region], shapes: Shapes) -> tuple[GridSampleVariant, ...]:
    """The widest vectors that the channels of the regions may have, and single channels."""
    widths = {1, *(_width(meaning, _channels(meaning, region, shapes)) for region in regions)}
    return tuple(variant(name, width) for width in sorted(widths, reverse=True))


def variant(name: str, width: int) -> GridSampleVariant:
    return GridSampleVariant(f"{name}_w{width}", "", 32, width, 1, THREADS, waits=True)


def _channels(meaning: GridSample, region: Region, shapes: Shapes) -> int | None:
    if meaning.view is not None:
        return meaning.view.channels
    dims = shapes.dims(region.inputs[meaning.data])
    channels = None if dims is None else dims[1 if meaning.planes else -1]
    return channels if isinstance(channels, int) else None


def _width(meaning: GridSample, channels: int | None) -> int:
    """Channels of a thread."""
    has_vectors = meaning.reads_vectors or not meaning.result_planes
    widest = meaning.widest if has_vectors else min(meaning.widest, _OF_PLANES)
    if not channels:
        return widest
    if has_vectors:
        return min(widest, channels & -channels)
    return min(widest, 1 << (channels - 1).bit_length())  # the last thread may have fewer
