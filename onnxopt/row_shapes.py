"""How threads share the rows of a rowwise kernel: the rules by which shapes of launches are chosen.

They were taken from `benchmarks/gpu_rows.py --sweep` (docs/notes.md has what it showed).
"""

from __future__ import annotations

import dataclasses
import math

MULTIPROCESSOR_BYTES = 228 << 10  # shared memory of a Hopper multiprocessor, of which each block takes 1 KB more
_SHARED_LEFT = 2048  # bytes for what a block reserves and for partial results
_THREADS = 128
_KEPT = 8  # elements of a row that one thread keeps, where a warp can share it
_SECTOR = 32  # bytes that memory moves at least
_SHORT_VECTOR = 8  # bytes; below, a row is rather cut as memory is than by its own length
_MOST_HELD = 32  # elements a thread, of rows that a block or less shares
_MOST_PIPED = 64  # elements a thread, of rows that clusters share
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


def for_length(length: int, widest: int, size: int) -> RowShape | None:
    """The shape that keeps a row of this length on the chip; None where none does.

    widest: elements of the longest vector; size: bytes of the narrowest operand's elements.
    """
    vector = math.gcd(length, widest)
    if vector * size < _SHORT_VECTOR and vector < widest and length > widest:
        shared = _shared_by_lanes("ragged", length, widest, size)
        if shared is not None:
            return shared
    return _shared_by_lanes("held", length, vector, size) or _shared_by_blocks(length, vector)


def vectors_of(layout: str, length: int, vector: int) -> int:
    """Vectors that hold a row; a ragged one begins anywhere in the first."""
    return -(-(length + (vector - 1 if layout == "ragged" else 0)) // vector)


def _shared_by_lanes(layout: str, length: int, vector: int, size: int) -> RowShape | None:
    """As many lanes share a row as leave each about _KEPT elements without wasting many, and read whole sectors."""
    vectors = vectors_of(layout, length, vector)

    def cost(lanes: int) -> tuple[bool, float]:
        unroll = -(-vectors // lanes)
        waste = lanes * unroll / vectors
        return waste > 1.31, abs(math.log2(unroll * vector / _KEPT)) + 2 * (waste - 1) + (lanes > _WARP) * 0.6

    def fits(lanes: int) -> bool:
        return -(-vectors // lanes) * vector <= _MOST_HELD and lanes * vector * size >= _SECTOR

    sharing = [n for n in (1, 2, 4, 8, 16, 32, 64) if fits(n)]
    if sharing:
        lanes = min(sharing, key=cost)
        return RowShape(layout, vector, -(-vectors // lanes), lanes, _THREADS)
    for threads in (64, 128, 256, 512) if layout == "ragged" else ():
        unroll = -(-vectors // threads)
        if unroll * vector <= _MOST_HELD:
            return RowShape(layout, vector, unroll, threads, threads)
    return None


def _shared_by_blocks(length: int, vector: int) -> RowShape | None:
    vectors = length // vector
    for threads in (64, 128, 256, 512):
        unroll = -(-vectors // threads)
        if unroll * vector <= _MOST_HELD:
            return RowShape("held", vector, unroll, threads, threads)
    for cluster in (1, 2, 4, 8):
        unroll = -(-vectors // (512 * cluster))
        if unroll * vector <= _MOST_PIPED:
            return RowShape("piped", vector, unroll, 512 * cluster, 512, cluster, 1)
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
        for threads in (256, 512, 1024):
            unroll = 0 if length is None else -(-length // (threads // _WARP))
            if 0 < unroll * vector <= _MOST_HELD and threads * vector * 8 * values <= _STATIC_SHARED:
                found.append(RowShape("strided", vector, unroll, 1, threads))
                break
        else:
            found.append(RowShape("strided", vector, 0, 1, 256))
    return [*found, RowShape("strided", 1, 0, 1, 256)]
