"""Which entry points a rowwise kernel gets, by the lengths that its rows are known to have.

The library tries them in order and takes the first that fits the shapes at hand (custom_ops/row_variant.cc).
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Mapping, Sequence

from onnxopt import row_domain
from onnxopt.dtypes import DTYPES
from onnxopt.regions import Region, Variant
from onnxopt.row_domain import Grid
from onnxopt.row_program import RowProgram
from onnxopt.shapes import Dims, Shapes

_ACCESS_BYTES = 16  # the widest load or store an instruction makes
_MOST_LENGTHS = 3  # lengths of rows that get an entry point of their own
_THREADS = 128
_LOOPED_THREADS = 512
_CLUSTER = 8
_KEPT = 8  # elements of a row that one thread keeps, where a warp can share it
_SECTOR = 32  # bytes that memory moves at least


@dataclasses.dataclass(frozen=True)
class RowVariant(Variant):
    """One entry point of a rowwise kernel.

    layout: held (in registers), ragged, piped, looped or strided, as rowwise.cuh has them. lanes: threads that share a
    row. cluster: blocks that share a row. columns: the only length of a row that it runs, 0 for any that fits.
    resident: blocks that a multiprocessor should hold at once, 0 where the compiler may take the registers it wants.
    fetched: mask of the inputs that come through shared memory, which takes `shared` bytes a block.
    modes: one letter an input: F flat, K by the column, D dense in each row, C one value a channel, * any.
    """

    layout: str = "held"
    lanes: int = 32
    cluster: int = 1
    columns: int = 0
    resident: int = 0
    fetched: int = 0
    shared: int = 0


def choose(
    name: str, program: RowProgram, regions: Sequence[Region], opsets: Mapping[str, int], shapes: Shapes
) -> tuple[RowVariant, ...]:
    """Variants in the order the host tries them: those for foreseen lengths, for ranges of lengths, for any."""
    grids = [row_domain.of_region(r.nodes, opsets, shapes) for r in regions]
    widest = max(DTYPES[d].size for d in (*program.inputs, *program.outputs))
    vector = _ACCESS_BYTES // widest
    chosen: list[RowVariant] = []
    trailing = program.last == program.views[0].rank
    if trailing or not all(_is_strided(g) for g in grids):
        lengths = collections.Counter(g.length for g in grids)
        for length, _ in lengths.most_common(_MOST_LENGTHS):
            if length is not None:
                chosen += _for_length(name, program, length, vector, _modes(regions, grids, program, shapes))
        held = len(chosen) == len(lengths)  # every length that is foreseen
        chosen += [_fallback(name, program, vector)] if held else _general(name, program, vector, None in lengths)
    if not trailing:
        chosen.append(_variant(name, "strided", "*" * len(program.inputs), vector, 1, 256))
    if _may_be_large(regions, shapes):
        for variant in (chosen[-1], chosen[-2]) if not trailing and len(chosen) > 1 else (chosen[-1],):
            chosen.append(dataclasses.replace(variant, symbol=f"{variant.symbol}_64", index=64))
    return tuple({v.symbol: v for v in chosen}.values())


def _is_strided(grid: Grid) -> bool:
    """Whether rows certainly do not lie side by side."""
    inner = [d for d in grid.dims[grid.last :] if d != 1]
    return bool(inner) and all(isinstance(d, int) for d in inner)


def _may_be_large(regions: Sequence[Region], shapes: Shapes) -> bool:
    sizes = [shapes.elements(v) for r in regions for v in (*r.inputs, *r.outputs)]
    return any(size is None or size >= 2**31 for size in sizes)


def _variant(name: str, layout: str, modes: str, vector: int, unroll: int, threads: int, **more: int) -> RowVariant:
    lanes = more.get("lanes", threads * more.get("cluster", 1))
    text = f"{name}_{layout}_{modes.replace('*', 'G')}_w{vector}u{unroll}l{lanes}t{threads}"
    text += "".join(f"{k[0]}{v}" for k, v in more.items() if k != "lanes" and v > (k == "cluster"))
    return RowVariant(
        text, modes, 32, vector, unroll, threads, layout, lanes, more.get("cluster", 1), more.get("columns", 0)
    )


def _modes(regions: Sequence[Region], grids: Sequence[Grid], program: RowProgram, shapes: Shapes) -> str:
    """One letter an input, as the shapes of the first region tell."""
    letters = []
    for value, operand in zip(regions[0].inputs, program.operands, strict=True):
        dims = shapes.dims(value)
        known = None if dims is None else (*dims, *(1,) * operand.trailing)
        letters.append("*" if known is None or operand.row else _mode(known, operand.view, grids[0]))
    return "".join(letters)


def _mode(dims: Dims, view: int, grid: Grid) -> str:
    """How an input of these dims lies over rows that lie side by side."""
    domain = grid.dims if view == 0 else grid.other
    if domain is None or len(dims) > len(domain):
        return "*"
    padded = (1,) * (len(domain) - len(dims)) + dims
    if padded == domain and None not in domain:
        return "F"
    if view == 0:
        if padded[grid.first :] != grid.dims[grid.first :] or None in padded[grid.first :]:
            return "*"
        return "K" if all(d == 1 for d in padded[: grid.first]) else "D"
    kept = [d == whole for d, whole in zip(padded, domain, strict=True) if whole != 1]
    runs = [kept[k] for k in range(len(kept)) if k == 0 or kept[k] != kept[k - 1]]
    return "C" if runs.count(True) == 1 and not kept[-1] else "*"


def shape_of_held(length: int, vector: int, size: int) -> tuple[int, int, int, int, int] | None:
    """(vector, vectors a thread, lanes, threads, cluster) that hold rows of this length; None where none does.

    vector: the widest that may be; size: bytes of the narrowest operand's elements. As many lanes share a row as leave
    each about _KEPT elements without wasting many, and as read whole sectors of memory.
    """
    while length % vector:
        vector //= 2
    vectors = length // vector

    def cost(lanes: int) -> tuple[bool, float]:
        unroll = -(-vectors // lanes)
        waste = lanes * unroll / vectors
        return waste > 1.31, abs(math.log2(unroll * vector / _KEPT)) + 2 * (waste - 1) + (lanes > 32) * 0.6

    sharing = [n for n in (1, 2, 4, 8, 16, 32, 64) if -(-vectors // n) * vector <= 32 and n * vector * size >= _SECTOR]
    if sharing:
        lanes = min(sharing, key=cost)
        return vector, -(-vectors // lanes), lanes, _THREADS, 1
    for cluster in (1, 2, 4, 8):
        for threads in (64, 128, 256, 512):
            unroll = -(-vectors // (threads * cluster))
            if unroll * vector <= (32 if threads < 512 else 64):
                return vector, unroll, threads * cluster, threads, cluster
    return None


def _for_length(name: str, program: RowProgram, length: int, vector: int, modes: str) -> list[RowVariant]:
    size = min(DTYPES[d].size for d in (*program.inputs, *program.outputs))
    shape = shape_of_held(length, vector, size)
    if shape is None:
        return []
    width, unroll, lanes, threads, cluster = shape
    return [_variant(name, "held", modes, width, unroll, threads, lanes=lanes, cluster=cluster, columns=length)]


def _fallback(name: str, program: RowProgram, vector: int) -> RowVariant:
    """For operands that lie where no vector begins: short code, as it hardly ever runs."""
    return _variant(name, "looped", "*" * len(program.inputs), vector, 1, _LOOPED_THREADS)


def _general(name: str, program: RowProgram, vector: int, dynamic: bool) -> list[RowVariant]:
    """Variants for rows of any length: held ones by capacity where lengths are not known, then the looped ones."""
    modes = "*" * len(program.inputs)
    chosen = []
    if dynamic:
        for width in dict.fromkeys((vector, 1)):
            for lanes, unroll, threads in ((8, 2, 128), (32, 2, 128), (32, 4, 128), (128, 4, 128), (512, 4, 512)):
                chosen.append(_variant(name, "held", modes, width, unroll, threads, lanes=lanes))
    chosen.append(_variant(name, "looped", modes, vector, 4, _LOOPED_THREADS, cluster=_CLUSTER))
    chosen.append(_variant(name, "looped", modes, vector, 4, _LOOPED_THREADS))
    return chosen
