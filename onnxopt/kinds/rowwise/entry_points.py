"""The entry points of a rowwise kernel, chosen by the known lengths of its rows.

The library runs the first entry point that fits the shapes of a call (custom_ops/cuda/programs/rowwise_variant.cc).
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence

from onnxopt.costs.rowwise import numbers
from onnxopt.fusion.region import Region
from onnxopt.graph.shapes.shapes import Dims, Shapes
from onnxopt.kinds.pointwise.access_modes import Mode
from onnxopt.kinds.rowwise import access_order, launch_shapes
from onnxopt.kinds.rowwise import grid as row_domain
from onnxopt.kinds.rowwise.grid import Grid
from onnxopt.kinds.rowwise.launch_shapes import RowShape, RowWork
from onnxopt.program.dtypes import DTYPES
from onnxopt.program.hardware import ACCESS_BYTES
from onnxopt.program.rowwise import RowProgram
from onnxopt.program.schema import Variant

_MIN_COPIED = 4  # bytes of one copy to shared memory
# In the order in which the host tries them.
LAYOUTS = ("held", "ragged", "piped", "ring", "split", "looped", "split_strided", "strided")
SPLIT = ("split", "split_strided")  # with one launch per stage and one for the outputs
_MAX_LENGTHS = numbers().special_lengths
_LOOPED_THREADS, _CLUSTER = numbers().looped_threads, numbers().blocks_of_loop


@dataclasses.dataclass(frozen=True)
class RowVariant(Variant):
    """One entry point of a rowwise kernel.

    layout: held (in registers), ragged, piped, ring (in shared memory), looped, split, split_strided or strided; each
    has a file in cuda_kernels/rowwise/. lanes: threads that share a row. cluster: blocks that share a row. columns: the
    only row length that the entry point runs, 0 for any length that fits. resident: blocks that a multiprocessor should
    hold at once, 0 for no limit on the compiler's registers. fetched: bit mask of the inputs that go through shared
    memory. shared: bytes of shared memory per block. depth: rows that a ring holds. launch: of a kernel of SPLIT, which
    of its launches this is.
    modes: FLAT, BY_COLUMN, DENSE, CELL or ANY for each input (kinds/pointwise/access_modes.py).
    """

    layout: str = "held"
    lanes: int = 32
    cluster: int = 1
    columns: int = 0
    resident: int = 0
    fetched: int = 0
    shared: int = 0
    launch: int = 0
    depth: int = 0


def choose(
    name: str, program: RowProgram, regions: Sequence[Region], opsets: Mapping[str, int], shapes: Shapes
) -> tuple[RowVariant, ...]:
    """Variants in the order in which the host tries them: for known lengths, for ranges of lengths, for any length."""
    grids = row_domain.grids_of(program, regions, opsets, shapes)
    vector = widest(program)
    chosen: list[RowVariant] = []
    trailing = program.trailing
    lengths = collections.Counter(g.length for g in grids)
    if trailing or not all(_is_strided(g) for g in grids):
        modes = modes_of(regions, program, opsets, shapes)
        work = _work(program, grids, modes)
        for length, _ in lengths.most_common(_MAX_LENGTHS):
            shape = None if length is None else launch_shapes.for_length(length, vector, work)
            if length is not None and shape is not None:
                chosen.append(variant_of(name, program, modes, shape, length))
                if shape.layout == "piped" and shape.cluster == 1:  # for GPUs with less shared memory
                    held = dataclasses.replace(shape, layout="held", resident=0)
                    chosen.append(variant_of(name, program, modes, held, length))
        on_every_gpu = len(chosen) == len(lengths) and all(v.cluster == 1 and not v.shared for v in chosen)
        if not on_every_gpu:
            others = None in lengths or len(lengths) > _MAX_LENGTHS
            chosen += _general(name, program, vector, anywhere(modes), others)
        chosen.append(_fallback(name, program, vector))
    if not trailing:
        chosen += _strided(name, program, grids, modes_of(regions, program, opsets, shapes))
    if _may_be_large(regions, shapes):
        last = [v for v in chosen if v.layout in ("looped", "strided") and v.cluster == 1 and v.columns == 0]
        chosen += [dataclasses.replace(v, symbol=f"{v.symbol}_64", index=64) for v in last]
    return tuple({v.symbol: v for v in chosen}.values())


def widest(program: RowProgram) -> int:
    """Elements of the widest vector: one access of the operand with the largest elements."""
    return ACCESS_BYTES // max(DTYPES[d].size for d in (*program.leaves, *program.outputs))


def _work(program: RowProgram, grids: Sequence[Grid], modes: str) -> RowWork:
    elements = {k for k, o in enumerate(program.operands) if not o.row}
    reduced = {k for stage in program.stages for k in stage.element.reads}
    rows = [g.count for g in grids]
    largest = max((n for n in rows if n is not None), default=None) if None not in rows else None
    size = min(DTYPES[d].size for d in (*program.leaves, *program.outputs))
    return RowWork(
        size, len(elements), len(elements & reduced), largest, modes.count(Mode.FLAT), modes.count(Mode.BY_COLUMN)
    )


def variant_of(name: str, program: RowProgram, modes: str, shape: RowShape, length: int) -> RowVariant:
    """The entry point of this shape for rows of this length. modes: see modes_of."""
    if shape.layout == "looped":
        return _variant(name, "looped", anywhere(modes), shape)
    if shape.layout == "ragged":
        modes = modes.replace(Mode.CELL, Mode.ANY)
    fetched, shared = _fetched(program, modes, shape) if shape.layout in ("piped", "ring") else (0, 0)
    return _variant(name, shape.layout, modes, shape, columns=length, fetched=fetched, shared=shared)


def _fetched(program: RowProgram, modes: str, shape: RowShape) -> tuple[int, int]:
    """The inputs that fit in shared memory, as a bit mask, and their bytes.

    Inputs as large as the domain come first, then inputs that are the same for every row.
    """

    def block_bytes(k: int) -> int:
        return DTYPES[program.leaves[k]].size * shape.vector * shape.unroll * shape.threads

    whole = [k for k, guards in enumerate(program.guards) if not guards]
    wide = [k for k in whole if DTYPES[program.leaves[k]].size * shape.vector >= _MIN_COPIED]
    mask, room = 0, launch_shapes.shared_bytes(shape.resident)
    copied = [(k, block_bytes(k) * max(shape.depth, 1)) for k in wide if modes[k] == Mode.FLAT]
    copied += [(k, block_bytes(k)) for k in wide if modes[k] == Mode.BY_COLUMN and shape.keeps]
    for k, bytes_ in copied:
        if bytes_ <= room:
            mask, room = mask | 1 << k, room - bytes_
    return mask, launch_shapes.shared_bytes(shape.resident) - room


def _is_strided(grid: Grid) -> bool:
    """Whether the elements of a row are certainly not contiguous."""
    inner = [d for d in grid.dims[grid.last :] if d != 1]
    return bool(inner) and all(isinstance(d, int) for d in inner)


def _may_be_large(regions: Sequence[Region], shapes: Shapes) -> bool:
    sizes = [shapes.elements(v) for r in regions for v in (*r.inputs, *r.outputs)]
    return any(size is None or size >= 2**31 for size in sizes)


def _variant(
    name: str, layout: str, modes: str, shape: RowShape, *, columns: int = 0, fetched: int = 0, shared: int = 0,
    launch: int = 0,
) -> RowVariant:  # fmt: skip
    symbol = f"{name}_{layout}_{modes.replace(Mode.ANY, 'G')}"
    symbol += f"_w{shape.vector}u{shape.unroll}l{shape.lanes}t{shape.threads}"
    optional = {"c": shape.cluster if shape.cluster > 1 else 0, "r": shape.resident, "n": columns}
    optional |= {"f": fetched, "p": launch, "d": shape.depth}
    return RowVariant(
        symbol=symbol + "".join(f"{letter}{value}" for letter, value in optional.items() if value),
        modes=modes,
        index=32,
        vector=shape.vector,
        unroll=shape.unroll,
        threads=shape.threads,
        layout=layout,
        lanes=shape.lanes,
        cluster=shape.cluster,
        columns=columns,
        resident=shape.resident,
        fetched=fetched,
        shared=shared,
        launch=launch,
        depth=shape.depth,
        waits=True,
    )


def modes_of(regions: Sequence[Region], program: RowProgram, opsets: Mapping[str, int], shapes: Shapes) -> str:
    """The mode of every input, for the shapes of the first region."""
    if program.index is not None:
        return access_order.modes(program)
    grid = row_domain.grid_of(regions[0].nodes, opsets, shapes)
    letters: list[str] = []
    for value, operand in zip(regions[0].inputs, program.operands, strict=True):
        dims = shapes.dims(value)
        padded = None if dims is None else (*dims, *(1,) * operand.trailing)
        letters.append(Mode.ANY if padded is None or operand.row else mode_of(padded, operand.view, grid))
    return "".join(letters)


def mode_of(dims: Dims, view: int, grid: Grid) -> Mode:
    """The mode of an input of these dims, for rows of contiguous elements."""
    domain = grid.dims if view == 0 else grid.other
    if domain is None or len(dims) > len(domain):
        return Mode.ANY
    padded = (1,) * (len(domain) - len(dims)) + dims
    if padded == domain and None not in domain:
        return Mode.FLAT
    if view == 0:
        if padded[grid.first :] != grid.dims[grid.first :] or None in padded[grid.first :]:
            return Mode.ANY
        return Mode.BY_COLUMN if all(d == 1 for d in padded[: grid.first]) else Mode.DENSE
    whole_dims = [d == whole for d, whole in zip(padded, domain, strict=True) if whole != 1]
    runs = [whole_dims[k] for k in range(len(whole_dims)) if k == 0 or whole_dims[k] != whole_dims[k - 1]]
    return Mode.CELL if runs.count(True) == 1 and not whole_dims[-1] else Mode.ANY


def anywhere(modes: str) -> str:
    """The modes that hold for rows of any length and alignment."""
    return "".join(mode if mode in (Mode.FLAT, Mode.BY_COLUMN) else Mode.ANY for mode in modes)


def _fallback(name: str, program: RowProgram, vector: int) -> RowVariant:
    """The entry point for any memory layout of the operands: short code, because it rarely runs."""
    shape = RowShape("looped", vector, 1, _LOOPED_THREADS, _LOOPED_THREADS)
    return _variant(name, "looped", Mode.ANY * len(program.leaves), shape)


def _general(name: str, program: RowProgram, vector: int, modes: str, others: bool) -> list[RowVariant]:
    """Variants for rows of any length.

    Held ones of several capacities come first if there are lengths without an entry point of their own, then those that
    read rows several times.
    """
    chosen = []
    if others:
        for layout in ("held", "ragged"):
            for lanes, unroll, threads in ((8, 2, 128), (32, 2, 128), (32, 4, 128), (128, 4, 128), (512, 4, 512)):
                shape = RowShape(layout, vector, unroll, lanes, threads)
                chosen.append(_variant(name, layout, modes, shape))
    threads = _LOOPED_THREADS
    chosen += split_variants(name, program, RowShape("split", vector, 4, threads, threads), modes)
    for cluster in (_CLUSTER, 1):
        shape = RowShape("looped", vector, 4, threads * cluster, threads, cluster)
        chosen.append(_variant(name, "looped", modes, shape))
    return chosen


def split_variants(name: str, program: RowProgram, shape: RowShape, modes: str) -> list[RowVariant]:
    """The entry points of all launches of a split kernel."""
    modes = anywhere(modes)
    return [_variant(name, shape.layout, modes, shape, launch=k) for k in range(len(program.stages) + 1)]


def _strided(name: str, program: RowProgram, grids: Sequence[Grid], modes: str) -> list[RowVariant]:
    """Variants for rows of elements that are not contiguous: for the most common lengths, and for any length."""
    common = [length for length, _ in collections.Counter(g.length for g in grids).most_common(_MAX_LENGTHS)]
    values = sum(len(stage.reductions) for stage in program.stages)
    works = {n: _work(program, [g for g in grids if g.length == n], modes) for n in common}
    *shapes, fallback = launch_shapes.for_strided(works, widest(program), values)
    flat = "".join(mode if mode == Mode.FLAT else Mode.ANY for mode in modes)
    reads = len(program.stages) + bool(program.stored("element"))
    split = launch_shapes.for_split_strided(works, widest(program), values, reads)
    return [
        *(v for shape in split for v in split_variants(name, program, shape, flat)),
        *(_variant(name, "strided", flat, shape) for shape in shapes),
        _variant(name, "strided", Mode.ANY * len(program.leaves), fallback),
    ]
