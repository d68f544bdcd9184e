"""The entry points of a group norm: how wide a slab is, and how many blocks share it.

The library runs the first held entry point that has blocks for most of the GPU, else the one with the most blocks that
all have work; where no cluster's registers hold a slab, the split one; where addresses do not fit, the looped one
(custom_ops/cuda/group_norm.cc).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import cast

from onnxopt.costs.group_norm import numbers
from onnxopt.fusion.region import Kernel, Region
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.program.dtypes import DTYPES
from onnxopt.program.group_norm import GroupNorm, GroupNormVariant
from onnxopt.program.hardware import ACCESS_BYTES, WARP

_COSTS = numbers()


def choose(name: str, meaning: GroupNorm, regions: Sequence[Region], shapes: Shapes) -> tuple[GroupNormVariant, ...]:
    """Variants in the order in which the host tries them, without those that no known shape needs."""
    sizes = [_size(region, shapes) for region in regions]
    wanted = {v for size in sizes for v in _variants_of_size(name, meaning, size)}
    held = sorted(wanted, key=lambda v: (v.cluster, v.threads // v.columns * v.held))
    alone = all(size is not None and held[0].cluster == 1 and _fits(held[0], size[1]) for size in sizes if held)
    return (*held, *(() if held and alone else split(name, meaning)), looped(name, meaning))


def alternatives(kernel: Kernel) -> Iterable[GroupNormVariant]:
    """Other numbers of blocks of a cluster, and of vectors of a thread, for `tune`."""
    meaning = cast(GroupNorm, kernel.program)
    held = [v for v in kernel.variants if isinstance(v, GroupNormVariant) and v.layout == "held"]
    last = 0
    for pixels in sorted({v.cluster * (v.threads // v.columns) * v.held for v in held}):
        if 2 * pixels > 3 * last:  # else about as many as before
            last = pixels
            for cluster in _COSTS.clusters:
                yield from fitting(kernel.name, meaning, pixels, cluster)


def every(name: str, meaning: GroupNorm) -> Iterator[GroupNormVariant]:
    """The held entry points for any number of pixels, from the fewest blocks of a cluster on."""
    for shape in _COSTS.held:
        if _slab(meaning, _widest(meaning))[1] <= shape[1]:
            yield _held(name, meaning, *shape)


def fitting(name: str, meaning: GroupNorm, pixels: int, cluster: int) -> Iterator[GroupNormVariant]:
    """The held entry points that hold a slab of so many pixels with few threads idle, the best first."""
    columns = _slab(meaning, _widest(meaning))[1]
    part = -(-pixels // cluster)
    threads = {held: -(-(-(-part // held) * columns) // WARP) * WARP for held in _COSTS.vectors}
    few = [held for held in _COSTS.vectors if threads[held] <= _COSTS.few_threads]
    more = [held for held in reversed(_COSTS.vectors) if _COSTS.few_threads < threads[held] <= _COSTS.max_threads]
    for held in (*few, *more):
        if held <= part or held == min(_COSTS.vectors):
            yield _held(name, meaning, cluster, threads[held], held)


def _held(name: str, meaning: GroupNorm, cluster: int, threads: int, held: int) -> GroupNormVariant:
    vector, columns = _slab(meaning, _widest(meaning))
    symbol = f"{name}_held_v{vector}c{columns}t{threads}h{held}b{cluster}"
    return GroupNormVariant(
        symbol, "", 32, vector, held, threads, waits=True, layout="held", columns=columns, held=held, cluster=cluster
    )


def split(name: str, meaning: GroupNorm) -> tuple[GroupNormVariant, ...]:
    """Two launches, for any size."""
    vector, columns = _slab(meaning, _widest(meaning), _COSTS.min_run_of_split)
    return tuple(_reading(f"{name}_split{k}", vector, columns, "split", k) for k in (0, 1))


def looped(name: str, meaning: GroupNorm) -> GroupNormVariant:
    """One block a slab and single channels, for any size and address."""
    return _reading(f"{name}_looped", *_slab(meaning, 1), "looped")


def _reading(symbol: str, vector: int, columns: int, layout: str, launch: int = 0) -> GroupNormVariant:
    threads = max(_COSTS.threads, -(-columns // WARP) * WARP)
    symbol = f"{symbol}_v{vector}c{columns}"
    return GroupNormVariant(
        symbol, "", 32, vector, 4, threads, waits=True, layout=layout, columns=columns, launch=launch
    )


def _widest(meaning: GroupNorm) -> int:
    """The most channels of one access of which a slab has not too many."""
    widest = ACCESS_BYTES // max(DTYPES[d].size for d in (meaning.dtype, *meaning.outputs))
    vector = min(widest, meaning.channels & -meaning.channels)
    group = meaning.channels // meaning.groups
    while math.lcm(group, vector) // vector > _COSTS.max_columns:
        vector //= 2
        if vector <= 1:
            return 1
    return vector


def _slab(meaning: GroupNorm, vector: int, run: int = _COSTS.min_run) -> tuple[int, int]:
    """Channels of a vector and vectors of a slab: the least whole groups and vectors with `run` bytes of a pixel."""
    unit = math.lcm(meaning.channels // meaning.groups, vector)
    size = DTYPES[meaning.dtype].size
    slabs = meaning.channels // unit
    times = next(
        (k for k in range(1, slabs + 1) if slabs % k == 0 and k * unit * size >= run), slabs
    )  # fmt: skip
    while times > 1 and times * unit // vector > _COSTS.max_columns:
        times = next(k for k in range(times - 1, 0, -1) if slabs % k == 0)
    return vector, times * unit // vector


def _size(region: Region, shapes: Shapes) -> tuple[int, int] | None:
    """Samples of a region's x and pixels of one; None where they are not known."""
    meaning = cast(GroupNorm, region.meaning)
    dims = shapes.dims(region.inputs[meaning.x])
    if dims is None or not all(isinstance(d, int) for d in dims):
        return None
    samples, *pixels, _ = (d for d in dims if isinstance(d, int))
    return samples, math.prod(pixels)


def _fits(variant: GroupNormVariant, pixels: int) -> bool:
    part = -(-pixels // variant.cluster)
    return -(-part // (variant.threads // variant.columns)) <= variant.held


def _variants_of_size(name: str, meaning: GroupNorm, size: tuple[int, int] | None) -> list[GroupNormVariant]:
    """The held entry points that some GPU would choose for this size."""
    if size is None:
        return list(every(name, meaning))
    samples, pixels = size
    slab = math.prod(_slab(meaning, _widest(meaning)))
    chosen: list[GroupNormVariant] = []
    for cluster in _COSTS.clusters:
        blocks = cluster * samples * meaning.channels // slab
        variants = list(fitting(name, meaning, pixels, cluster))
        variant = next((v for v in variants if _at_once(v, blocks)), None)
        if variant is None and cluster == _COSTS.clusters[-1] and not chosen and variants:
            variant = variants[0]
        if variant is None:
            continue
        enough = bool(chosen) and chosen[-1].cluster * blocks // cluster >= _COSTS.enough_blocks
        if chosen and (enough or variant.threads < _COSTS.min_threads):
            break
        chosen.append(variant)
    return chosen


def _at_once(variant: GroupNormVariant, blocks: int) -> bool:
    return variant.cluster == 1 or _COSTS.at_once(blocks, variant.threads)
