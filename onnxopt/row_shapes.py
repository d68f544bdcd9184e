"""How threads share the rows of a rowwise kernel: the rules by which shapes of launches are chosen.

They were taken from `benchmarks/gpu_rows.py --sweep` (docs/notes.md has what it showed).
"""

from __future__ import annotations

import dataclasses
import math

MULTIPROCESSOR_BYTES = 228 << 10  # shared memory of a Hopper multiprocessor, of which each block takes 1 KB more
_SHARED_LEFT = 2048  # bytes for what a block reserves and for partial results
_THREADS = 128
_KEPT = 8  # elements of a row that one thread keeps, where a warp can share it:
_KEPT_VECTORS = 2  # or so many vectors, where rows are many: a block of fewer bytes takes less time than its start
_SECTOR = 32  # bytes that memory moves at least
_SHORT_VECTOR = 4  # bytes; below, a row may rather be cut as memory is than by its own length:
_SHORT_ODD = 64  # up to so many elements,
_LONG_ODD = 512  # and from so many on; in between, whole vectors cost more instructions than they save
_MOST_HELD = 32  # elements a thread, of rows that a block or less shares
_MOST_RAGGED = 40
_MOST_VECTORS = 32  # a thread: code grows with them
_LEAST_LOADED = 4  # bytes of a vector of rows that only many threads can hold
_MOST_STRIDED = 64
_MOST_WASTED = 1.31  # lanes over those that have something to do
_MOST_WASTED_OF_FEW = 1.34  # where there are so few rows that lanes would be idle anyway:
_FEW_ROWS = 1056  # eight a multiprocessor
_WARP = 32
_STATIC_SHARED = 48 << 10  # bytes that a block has without asking for more


@dataclasses.dataclass(frozen=True)
class RowShape:
    """How threads share rows, see row_variants.RowVariant for the words.

    keeps: whether inputs that are the same for every row stay in the shared memory of a piped kernel.
    """

    layout: str
    vector: int
    unroll: int
    lanes: int
    threads: int
    cluster: int = 1
    resident: int = 0
    keeps: bool = True
    depth: int = 0


@dataclasses.dataclass(frozen=True)
class RowWork:
    """What a kernel reads of a row. size: bytes of the narrowest operand's elements; inputs: those of one value an
    element; reduced: how many of these are read before the last reduction; rows: how many there are, if known."""

    size: int
    inputs: int = 1
    reduced: int = 1
    rows: int | None = None


def for_length(length: int, widest: int, work: RowWork) -> RowShape | None:
    """The shape that keeps a row of this length on the chip; None where none does.

    widest: elements of the longest vector.
    """
    vector = math.gcd(length, widest)
    short, long = length <= _SHORT_ODD, length >= _LONG_ODD
    if vector * work.size < _SHORT_VECTOR and widest < length and (short or long):
        ragged = _shared_by_lanes("ragged", length, widest, work) if short else _ragged_by_blocks(length, widest)
        if ragged is not None:
            return ragged
    return _shared_by_lanes("held", length, vector, work) or _shared_by_blocks(length, vector, work)


def vectors_of(layout: str, length: int, vector: int) -> int:
    """Vectors that hold a row; a ragged one begins anywhere in the first."""
    return -(-(length + (vector - 1 if layout == "ragged" else 0)) // vector)


def _shared_by_lanes(layout: str, length: int, vector: int, work: RowWork) -> RowShape | None:
    """As many lanes share a row as leave each about _KEPT elements without wasting many, and read whole sectors."""
    vectors = vectors_of(layout, length, vector)
    few = work.rows is not None and work.rows <= _FEW_ROWS
    most = _MOST_WASTED_OF_FEW if few else _MOST_WASTED
    kept = max(_KEPT, _KEPT_VECTORS * vector) if layout == "held" and not few else _KEPT

    def cost(lanes: int) -> tuple[bool, float]:
        unroll = -(-vectors // lanes)
        waste = lanes * unroll / vectors
        return waste > most, abs(math.log2(unroll * vector / kept)) + 2 * (waste - 1) + (lanes > _WARP) * 0.6

    def fits(lanes: int) -> bool:
        return -(-vectors // lanes) * vector <= _MOST_HELD and lanes * vector * work.size >= _SECTOR

    sharing = [n for n in (1, 2, 4, 8, 16, 32, 64) if fits(n)]
    if not sharing:
        return None
    wide = [n for n in (128, 256) if fits(n) and vectors <= 256]
    lanes = min(sharing + wide, key=cost)
    return RowShape(layout, vector, -(-vectors // lanes), lanes, max(_THREADS, lanes))


def _ragged_by_blocks(length: int, vector: int) -> RowShape | None:
    vectors = vectors_of("ragged", length, vector)
    for threads in (64, 128, 256, 512):
        unroll = -(-vectors // threads)
        if unroll * vector <= _MOST_RAGGED:
            return RowShape("ragged", vector, unroll, threads, threads)
    return None


def _shared_by_blocks(length: int, vector: int, work: RowWork) -> RowShape | None:
    """Rows that a block or a cluster of blocks shares, and that one block of a multiprocessor keeps waiting for."""
    vectors = length // vector
    much = work.reduced >= 2 or work.inputs >= 3  # to keep: little else fits beside it
    narrow = work.size <= 2
    for threads in (64, 128, 256, 512):
        unroll = -(-vectors // threads)
        if unroll * vector <= _MOST_HELD:
            piped = threads == 512 and narrow and much
            return RowShape("piped" if piped else "held", vector, unroll, threads, threads, 1, int(piped))
    ways = [(512, 1, 80), (512, 2, 64), (512, 4, 64)] if narrow else [(1024, n, 20) for n in (1, 2, 4, 8)]
    if vector * work.size < _LEAST_LOADED:
        return None
    for threads, cluster, most in (*ways, (512, 8, 64)):
        unroll = -(-vectors // (threads * cluster))
        if unroll * vector <= most and unroll <= _MOST_VECTORS:
            held = cluster == 8 and narrow and not much  # two blocks a multiprocessor
            layout, resident = ("held", 2) if held else ("piped", 1)
            return RowShape(layout, vector, unroll, threads * cluster, threads, cluster, resident)
    return None


def shared_bytes(resident: int) -> int:
    """What each of so many blocks on one multiprocessor can have."""
    return MULTIPROCESSOR_BYTES // max(resident, 1) - _SHARED_LEFT


def for_strided(length: int | None, widest: int, values: int) -> list[RowShape]:
    """Shapes for rows whose elements lie apart, those for long vectors first.

    values: what all stages together reduce, each of which takes shared memory.
    """
    found = []
    for vector in dict.fromkeys((min(widest, 4), 1)):
        held = None if length is None else _strided_held(length, vector, values)
        found.append(held or RowShape("strided", vector, 0, 1, 256))
    return [*found, RowShape("strided", 1, 0, 1, 256)]


def _strided_held(length: int, vector: int, values: int) -> RowShape | None:
    for threads in (128, 256, 512, 1024):
        shares = threads // _WARP
        unroll = -(-length // shares)
        enough = threads >= 512 or length < 2 * shares  # threads share a row as long as each has something of it
        most = _MOST_STRIDED if threads < 1024 else _MOST_HELD
        fits = unroll * vector <= most and threads * vector * 8 * values <= _STATIC_SHARED
        if enough and fits:
            return RowShape("strided", vector, unroll, 1, threads)
    return None
