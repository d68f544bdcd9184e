"""Launch shapes of rowwise kernels: the rules that decide how threads share rows.

The numbers in the rules are those of costs/data/rowwise.json, which says what each means and where it was measured.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from onnxopt.costs.rowwise import numbers
from onnxopt.program.hardware import ACCESS_BYTES, SECTOR_BYTES, STATIC_SHARED_BYTES, WARP


@dataclasses.dataclass(frozen=True)
class RowShape:
    """How threads share rows. RowVariant in kinds/rowwise/entry_points.py explains the fields.

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
    """The reads of a kernel.

    size: bytes of an element of the narrowest operand. inputs: the number of inputs with one value per element.
    reduced: the number of these inputs that are read before the last reduction. flat: the number of inputs as large as
    the domain. same: the number of inputs that are the same for every row. rows: the number of rows, None if unknown.
    """

    size: int
    inputs: int = 1
    reduced: int = 1
    rows: int | None = None
    flat: int = 1
    same: int = 0


def for_length(length: int, widest: int, work: RowWork) -> RowShape | None:
    """The shape that reads a row of this length from memory once; None where no shape does.

    widest: elements of the widest vector.
    """
    limits = numbers()
    vector = math.gcd(length, widest)
    short, long = length <= limits.short_odd_row, length >= limits.long_odd_row
    if vector * work.size < limits.short_vector_bytes and widest < length and (short or long):
        ragged = _shared_by_lanes("ragged", length, widest, work) if short else _ragged_by_blocks(length, widest)
        if ragged is not None:
            return ragged
    return _shared_by_lanes("held", length, vector, work) or _shared_by_blocks(length, vector, work)


def vectors_of(layout: str, length: int, vector: int) -> int:
    """The number of vectors that hold a row. A ragged row begins anywhere in its first vector."""
    return -(-(length + (vector - 1 if layout == "ragged" else 0)) // vector)


def _shared_by_lanes(layout: str, length: int, vector: int, work: RowWork) -> RowShape | None:
    """The shape of rows that lanes share: about the usual elements per lane, few idle lanes, reads of whole sectors."""
    limits = numbers()
    vectors = vectors_of(layout, length, vector)
    few = work.rows is not None and work.rows <= limits.few_rows
    usual = limits.usual_elements  # a lane
    if layout == "held" and not few:
        short = vectors <= limits.short_row_vectors and vector * work.size == ACCESS_BYTES
        usual = vector if short else max(limits.usual_elements, limits.usual_bytes // work.size)

    def cost(lanes: int) -> tuple[bool, float]:
        unroll = -(-vectors // lanes)
        waste = lanes * unroll / vectors
        distance = abs(math.log2(unroll * vector / usual)) + limits.waste_weight * (waste - 1)
        distance += (lanes > WARP) * limits.block_weight
        return waste > limits.max_wasted, distance

    limit = min(limits.max_held, limits.max_bytes // work.size)

    def fits(lanes: int) -> bool:
        return -(-vectors // lanes) * vector <= limit and lanes * vector * work.size >= SECTOR_BYTES

    sharing = [n for n in limits.lanes if fits(n)]
    if not sharing:
        return None
    wide = [n for n in limits.wide_lanes if fits(n) and vectors <= limits.wide_lane_vectors]
    lanes = min(sharing + wide, key=cost)
    threads = max(limits.threads, lanes)
    if layout == "held" and not few and threads // lanes * length * work.size < limits.min_bytes_of_block:
        threads = 2 * limits.threads
    return RowShape(layout, vector, -(-vectors // lanes), lanes, threads)


def _ragged_by_blocks(length: int, vector: int) -> RowShape | None:
    limits = numbers()
    vectors = vectors_of("ragged", length, vector)
    for threads in limits.ragged_threads:
        unroll = -(-vectors // threads)
        if unroll * vector <= limits.max_ragged:
            return RowShape("ragged", vector, unroll, threads, threads)
    return None


def _shared_by_blocks(length: int, vector: int, work: RowWork) -> RowShape | None:
    """The shape of rows that a block or a cluster of blocks shares."""
    limits = numbers()
    vectors = length // vector
    for limit in (min(limits.max_bytes // work.size, limits.max_held), limits.max_held):
        for threads in limits.block_threads:
            if -(-vectors // threads) * vector <= limit:
                return _by_blocks("held", vectors, vector, threads)
    if -(-vectors // limits.large_threads) * vector <= limits.max_held:
        return _shared_by_large_block(vectors, vector, work)
    if vector * work.size < limits.min_vector_bytes_of_cluster:
        return None
    narrow = work.size <= 2
    twice = not narrow and work.reduced > 1  # half as many elements per thread, because several inputs take registers
    threads = 2 * limits.large_threads if twice else limits.large_threads
    for cluster, limit in limits.narrow_clusters if narrow else limits.wide_clusters:
        unroll = -(-vectors // (threads * cluster))
        if unroll * vector <= (limit // 2 if twice else limit) and unroll <= limits.max_vectors:
            fits_twice = work.flat <= 1 and unroll * vector <= limits.max_of_two_blocks
            two = narrow and cluster == limits.max_blocks and fits_twice
            if cluster == 1 and not work.same:  # no input is the same for every row, so blocks have nothing to keep
                return _by_blocks("held", vectors, vector, threads)
            return _by_blocks("piped", vectors, vector, threads, cluster, 2 if two else 1)
    ring = _by_blocks("ring", vectors, vector, 2 * limits.large_threads, limits.max_blocks, 1, 1)
    return ring if _has_room(ring, work) else None


def _by_blocks(
    layout: str, vectors: int, vector: int, threads: int, cluster: int = 1, resident: int = 0, depth: int = 0
) -> RowShape:
    lanes = threads * cluster
    return RowShape(layout, vector, -(-vectors // lanes), lanes, threads, cluster, resident, True, depth)


def _shared_by_large_block(vectors: int, vector: int, work: RowWork) -> RowShape:
    """The shape of rows that one large block shares, with two blocks per multiprocessor if the registers suffice.

    A row of one input, of several inputs as large as the domain, or of 64-bit elements has a block of its own. In other
    kernels, a block runs row after row. Such a block keeps the inputs that all rows share in shared memory, and reads
    them while the next row is loaded.
    """
    limits = numbers()
    if work.inputs == 1 or work.flat != 1 or work.size > 4:
        return _by_blocks("held", vectors, vector, limits.large_threads)
    two = work.size <= 2 or work.inputs == 2
    return _by_blocks("piped", vectors, vector, limits.large_threads, 1, 2 if two else 1)


def _has_room(ring: RowShape, work: RowWork) -> bool:
    """Whether a block's shared memory holds its part of all rows of the ring."""
    limits = numbers()
    used = ring.unroll * ring.vector * ring.threads * work.size * ring.depth * max(work.flat, 1)
    return ring.unroll <= limits.max_vectors and used <= shared_bytes(ring.resident)


def shared_bytes(resident: int) -> int:
    """Bytes of shared memory per block where `resident` blocks share one multiprocessor."""
    limits = numbers()
    return limits.shared_bytes // max(resident, 1) - limits.reserved_shared_bytes


def for_strided(works: Mapping[int | None, RowWork], widest: int, values: int) -> list[RowShape]:
    """Shapes for rows of elements that are not contiguous, in the order in which the host tries them: those for wide
    vectors first, then those for short rows.

    works: by the length of a row, None where it is not known. values: the number of values that all stages reduce; each
    takes shared memory.
    """
    shapes = []
    for vector in dict.fromkeys((min(widest, 4), 1)):
        looped = None
        for length in sorted(works, key=lambda n: math.inf if n is None else n):
            held = None if length is None else _strided_held(length, vector, values, works[length])
            if held is None:
                looped = looped or _strided_looped(vector, values, works[length])
            else:
                shapes.append(held)
        shapes += [looped] if looped else []
    return [*shapes, _strided_unknown(1)]


def for_split_strided(works: Mapping[int | None, RowWork], widest: int, values: int, reads: int) -> list[RowShape]:
    """Shapes for long rows of elements that are not contiguous, whose tiles may be fewer than the multiprocessors.

    The host decides by the sizes of a call. reads: how often a row is read. Other arguments are those of for_strided.
    """
    limits = numbers()

    def may_be_few(length: int | None, vector: int) -> bool:
        rows, tile = works[length].rows, limits.split_strided_side * vector
        return (length is None or length * reads >= limits.split_strided_columns) and (
            rows is None or rows < limits.multiprocessors * tile
        )

    shapes = []
    for vector in dict.fromkeys((min(widest, 4), 1)):
        threads = limits.strided_part_threads
        fits = threads * vector * 8 * values <= STATIC_SHARED_BYTES
        if fits and any(may_be_few(length, vector) for length in works):
            lanes = threads // limits.split_strided_side
            shapes.append(RowShape("split_strided", vector, 1, lanes, threads))
    return shapes


def _threads_side_by_side(vector: int, work: RowWork) -> int:
    """As many as a warp has, or fewer where the rows would not give every multiprocessor a block."""
    limits = numbers()
    side = WARP
    while (
        work.rows is not None
        and work.rows < limits.multiprocessors * side * vector
        and side * vector * work.size > SECTOR_BYTES
    ):
        side //= 2
    return side


def _strided_unknown(vector: int) -> RowShape:
    limits = numbers()
    return RowShape("strided", vector, 0, limits.strided_lanes, limits.strided_part_threads)


def _strided_looped(vector: int, values: int, work: RowWork) -> RowShape:
    """For rows too long to be held: the fewer blocks there are, the more threads share a row."""
    if work.rows is None:
        return _strided_unknown(vector)
    limits = numbers()
    side = _threads_side_by_side(vector, work)
    blocks = work.rows // (side * vector)
    fitting = [t for t in limits.strided_looped_threads if t * vector * 8 * values <= STATIC_SHARED_BYTES]
    fitting = fitting or [limits.strided_looped_threads[0]]
    threads = next((t for t in fitting if blocks * t >= limits.multiprocessors * limits.filled_threads), fitting[-1])
    return RowShape("strided", vector, 0, threads // side, threads)


def _strided_held(length: int, vector: int, values: int, work: RowWork) -> RowShape | None:
    limits = numbers()
    side = _threads_side_by_side(vector, work)
    threads_needed = limits.strided_warp_threads if side == WARP else limits.strided_part_threads
    for threads in limits.strided_threads:
        lanes = threads // side
        unroll = -(-length // lanes)
        enough = threads >= threads_needed or length < 2 * lanes  # larger blocks, as long as each thread has an element
        limit = limits.max_strided if threads < limits.strided_threads[-1] else limits.max_held
        fits = unroll * vector <= limit and threads * vector * 8 * values <= STATIC_SHARED_BYTES
        if enough and fits:
            return RowShape("strided", vector, unroll, lanes, threads)
    return None
