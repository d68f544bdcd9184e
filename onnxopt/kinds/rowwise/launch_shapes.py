"""How threads share the rows of a rowwise kernel: the rules by which shapes of launches are chosen.

They were taken from `benchmarks/gpu_rows.py --sweep` (docs/notes.md has what it showed).
"""

from __future__ import annotations

import dataclasses
import math

from onnxopt.program.hardware import ACCESS_BYTES, SECTOR_BYTES, STATIC_SHARED_BYTES, WARP

MULTIPROCESSOR_BYTES = 228 << 10  # shared memory of a Hopper multiprocessor, of which each block takes 1 KB more
_SHARED_LEFT = 2048  # bytes for what a block reserves and for partial results
_THREADS = 128
_KEPT = 8  # elements of a row that one thread keeps, where a warp can share it:
_KEPT_BYTES = 32  # or so many bytes, where rows are many,
_SHORT_VECTORS = 16  # unless the row has no more whole vectors than this: then one a thread
_LEAST_READ = 2560  # bytes of an input that a block reads: fewer take less time than the start of a block
_MOST_BYTES = 64  # that a thread keeps of an input where more threads can share the row
_SHORT_VECTOR = 4  # bytes; below, a row may rather be cut as memory is than by its own length:
_SHORT_ODD = 64  # up to so many elements,
_LONG_ODD = 512  # and from so many on; in between, whole vectors cost more instructions than they save
_MOST_HELD = 32  # elements a thread, of rows that a block or less shares
_MOST_RAGGED = 40
_MOST_VECTORS = 32  # a thread: code grows with them
_LEAST_LOADED = 4  # bytes of a vector of rows that only many threads can hold
_MOST_STRIDED = 64
_MOST_WASTED = 1.31  # lanes over those that have something to do
_MULTIPROCESSORS = 132
_FEW_ROWS = 8 * _MULTIPROCESSORS
_LARGE = 512  # threads of a block that shares a long row
_MOST_BLOCKS = 16  # of a cluster
_NARROW_CLUSTERS = ((1, 80), (2, 64), (4, 64), (16, 64))  # blocks and elements a thread, 16 bits each
_WIDE_CLUSTERS = ((1, 40), (2, 40), (4, 40), (8, 40), (16, 40))
_MOST_OF_TWO = 32  # elements a thread, of 16 bits, of which two blocks have room in a multiprocessor's registers


@dataclasses.dataclass(frozen=True)
class RowShape:
    """How threads share rows, see row_variants.RowVariant for the words.

    keeps: whether inputs that are the same for every row stay in the shared memory of a piped or ring kernel.
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
    """What a kernel reads of a row.

    size: bytes of the narrowest operand's elements. inputs: those of one value an element, of which `reduced` are read
    before the last reduction, `flat` are as large as the domain and `same` are the same for every row. rows: how many
    there are, if known.
    """

    size: int
    inputs: int = 1
    reduced: int = 1
    rows: int | None = None
    flat: int = 1
    same: int = 0


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
    kept = _KEPT
    if layout == "held" and not few:
        short = vectors <= _SHORT_VECTORS and vector * work.size == ACCESS_BYTES
        kept = vector if short else max(_KEPT, _KEPT_BYTES // work.size)

    def cost(lanes: int) -> tuple[bool, float]:
        unroll = -(-vectors // lanes)
        waste = lanes * unroll / vectors
        return waste > _MOST_WASTED, abs(math.log2(unroll * vector / kept)) + 2 * (waste - 1) + (lanes > WARP) * 0.6

    most = min(_MOST_HELD, _MOST_BYTES // work.size)

    def fits(lanes: int) -> bool:
        return -(-vectors // lanes) * vector <= most and lanes * vector * work.size >= SECTOR_BYTES

    sharing = [n for n in (1, 2, 4, 8, 16, 32, 64) if fits(n)]
    if not sharing:
        return None
    wide = [n for n in (128, 256) if fits(n) and vectors <= 256]
    lanes = min(sharing + wide, key=cost)
    threads = max(_THREADS, lanes)
    if layout == "held" and not few and threads // lanes * length * work.size < _LEAST_READ:
        threads = 2 * _THREADS
    return RowShape(layout, vector, -(-vectors // lanes), lanes, threads)


def _ragged_by_blocks(length: int, vector: int) -> RowShape | None:
    vectors = vectors_of("ragged", length, vector)
    for threads in (64, 128, 256, 512):
        unroll = -(-vectors // threads)
        if unroll * vector <= _MOST_RAGGED:
            return RowShape("ragged", vector, unroll, threads, threads)
    return None


def _shared_by_blocks(length: int, vector: int, work: RowWork) -> RowShape | None:
    """Rows that a block or a cluster of blocks shares."""
    vectors = length // vector
    for most in (min(_MOST_BYTES // work.size, _MOST_HELD), _MOST_HELD):
        for threads in (64, 128, 256):
            if -(-vectors // threads) * vector <= most:
                return _by_blocks("held", vectors, vector, threads)
    if -(-vectors // _LARGE) * vector <= _MOST_HELD:
        return _shared_by_large_block(vectors, vector, work)
    if vector * work.size < _LEAST_LOADED:
        return None
    narrow = work.size <= 2
    twice = not narrow and work.reduced > 1  # each thread has half, where what is reduced is computed of several inputs
    threads = 2 * _LARGE if twice else _LARGE
    for cluster, most in _NARROW_CLUSTERS if narrow else _WIDE_CLUSTERS:
        unroll = -(-vectors // (threads * cluster))
        if unroll * vector <= (most // 2 if twice else most) and unroll <= _MOST_VECTORS:
            two = narrow and cluster == _MOST_BLOCKS and work.flat <= 1 and unroll * vector <= _MOST_OF_TWO
            if cluster == 1 and not work.same:  # nothing to keep: blocks need not stay
                return _by_blocks("held", vectors, vector, threads)
            return _by_blocks("piped", vectors, vector, threads, cluster, 2 if two else 1)
    ring = _by_blocks("ring", vectors, vector, 2 * _LARGE, _MOST_BLOCKS, 1, 1)
    return ring if _has_room(ring, work) else None


def _by_blocks(
    layout: str, vectors: int, vector: int, threads: int, cluster: int = 1, resident: int = 0, depth: int = 0
) -> RowShape:
    lanes = threads * cluster
    return RowShape(layout, vector, -(-vectors // lanes), lanes, threads, cluster, resident, True, depth)


def _shared_by_large_block(vectors: int, vector: int, work: RowWork) -> RowShape:
    """Rows that 512 threads share, two of them on a multiprocessor if its registers have room.

    Rows of one input, or of much, are held by blocks of their own. The others' blocks stay: they keep what all rows
    share in shared memory, or read it while the next row is on its way.
    """
    if work.inputs == 1 or work.flat != 1 or work.size > 4:
        return _by_blocks("held", vectors, vector, _LARGE)
    two = work.size <= 2 or work.inputs == 2
    return _by_blocks("piped", vectors, vector, _LARGE, 1, 2 if two else 1)


def _has_room(ring: RowShape, work: RowWork) -> bool:
    """Whether a block's shared memory holds its part of as many rows as the ring is deep."""
    taken = ring.unroll * ring.vector * ring.threads * work.size * ring.depth * max(work.flat, 1)
    return ring.unroll <= _MOST_VECTORS and taken <= shared_bytes(ring.resident)


def shared_bytes(resident: int) -> int:
    """What each of so many blocks on one multiprocessor can have."""
    return MULTIPROCESSOR_BYTES // max(resident, 1) - _SHARED_LEFT


def for_strided(length: int | None, widest: int, values: int, work: RowWork) -> list[RowShape]:
    """Shapes for rows whose elements lie apart, those for long vectors first.

    values: what all stages together reduce, each of which takes shared memory.
    """
    found = []
    for vector in dict.fromkeys((min(widest, 4), 1)):
        held = None if length is None else _strided_held(length, vector, values, work)
        found.append(held or RowShape("strided", vector, 0, 8, 256))
    return [*found, RowShape("strided", 1, 0, 8, 256)]


def _strided_held(length: int, vector: int, values: int, work: RowWork) -> RowShape | None:
    side = WARP  # threads side by side
    while (
        work.rows is not None
        and work.rows < _MULTIPROCESSORS * side * vector
        and side * vector * work.size > SECTOR_BYTES
    ):
        side //= 2
    least = 512 if side == WARP else 256
    for threads in (128, 256, 512, 1024):
        lanes = threads // side
        unroll = -(-length // lanes)
        enough = threads >= least or length < 2 * lanes  # threads share a row as long as each has something of it
        most = _MOST_STRIDED if threads < 1024 else _MOST_HELD
        fits = unroll * vector <= most and threads * vector * 8 * values <= STATIC_SHARED_BYTES
        if enough and fits:
            return RowShape("strided", vector, unroll, lanes, threads)
    return None
