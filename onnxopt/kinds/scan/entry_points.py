"""The entry points of a scan kernel, and how threads share its rows.

The library runs the first entry point that fits the shapes of a call (custom_ops/cuda/programs/scan.cc).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from onnxopt.costs.scan import numbers
from onnxopt.fusion.region import Region
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.pointwise.access_modes import Mode
from onnxopt.kinds.rowwise import entry_points, launch_shapes
from onnxopt.kinds.rowwise.entry_points import RowVariant
from onnxopt.kinds.rowwise.grid import Grid
from onnxopt.kinds.scan import lower
from onnxopt.program.dtypes import DTYPES
from onnxopt.program.hardware import ACCESS_BYTES, WARP
from onnxopt.program.scan import ScanProgram

_COSTS = numbers()


def choose(name: str, program: ScanProgram, regions: Sequence[Region], shapes: Shapes) -> tuple[RowVariant, ...]:
    """Variants in the order in which the host tries them: for rows that fit in registers, for long and for any rows."""
    grids = [_grid(r, shapes) for r in regions]
    modes = "".join(
        Mode.ANY if is_row else entry_points.mode_of(shapes.dims(v) or (None,), 0, grids[0])
        for v, is_row in zip(regions[0].inputs, program.rows, strict=True)
    )
    dense = any(_may_be_dense(g) for g in grids)
    chosen: list[RowVariant] = []
    if dense:
        chosen += _dense(name, program, modes, [g.length for g in grids])
    if not all(g.last == len(g.dims) for g in grids):
        chosen += _strided(name, modes)
    if _may_be_large(regions, shapes):
        last = {v.layout: v for v in chosen if v.layout in ("looped", "strided")}  # the most general of each layout
        chosen += [dataclasses.replace(v, symbol=f"{v.symbol}_64", index=64) for v in last.values()]
    return tuple({v.symbol: v for v in chosen}.values())


def _grid(region: Region, shapes: Shapes) -> Grid:
    return lower.grid_of(next(n for n in region.nodes if lower.is_scan(n)), shapes)


def _may_be_dense(grid: Grid) -> bool:
    """Whether the elements of a row may be contiguous: no later axis is known to have several elements."""
    return all(d == 1 or not isinstance(d, int) for d in grid.dims[grid.last :])


def _may_be_large(regions: Sequence[Region], shapes: Shapes) -> bool:
    sizes = [shapes.elements(v) for r in regions for v in (*r.inputs, *r.outputs)]
    return any(size is None or size >= 2**31 for size in sizes)


def _widest(program: ScanProgram) -> int:
    return ACCESS_BYTES // max(DTYPES[d].size for d in (*program.inputs, *program.outputs))


def _dense(name: str, program: ScanProgram, modes: str, lengths: Sequence[int | None]) -> list[RowVariant]:
    vector = _widest(program)
    anywhere = entry_points.anywhere(modes)
    length_shapes = [_shape_for(n, vector) for n in lengths if n is not None]
    shapes = {s for s in length_shapes if s is not None}
    if None in lengths:
        shapes |= {(layout, *shape) for layout in ("held", "ragged") for shape in _COSTS.held}
    chosen = [
        variant(name, layout, modes if layout == "held" else anywhere, vector, unroll, lanes, _COSTS.threads)
        for layout, lanes, unroll in sorted(shapes, key=lambda s: (s[0], s[1] * s[2]))
    ]
    if None in length_shapes or None in lengths:
        threads, unroll = _COSTS.split
        chosen += [variant(name, "split", anywhere, vector, unroll, threads, threads, launch=k) for k in range(2)]
    threads, unroll = _COSTS.looped
    for letters in dict.fromkeys((anywhere, Mode.ANY * len(modes))):
        chosen.append(variant(name, "looped", letters, vector, unroll, threads, threads))
    return chosen


def _shape_for(length: int, vector: int) -> tuple[str, int, int] | None:
    """Layout, lanes and vectors per lane for rows of this length; None where the rows do not fit in registers."""
    layout = "held" if length % vector == 0 else "ragged"
    vectors = launch_shapes.vectors_of(layout, length, vector)
    lanes = _COSTS.lanes_of(vectors)
    return None if lanes is None else (layout, lanes, max(-(-vectors // lanes), 1))


def _strided(name: str, modes: str) -> list[RowVariant]:
    flat = "".join(mode if mode == Mode.FLAT else Mode.ANY for mode in modes)
    return [
        variant(name, "strided", letters, 1, unroll, threads // WARP, threads)
        for letters in dict.fromkeys((flat, Mode.ANY * len(modes)))
        for threads, unroll in _COSTS.strided
    ]


def variant(
    name: str, layout: str, modes: str, vector: int, unroll: int, lanes: int, threads: int, launch: int = 0
) -> RowVariant:
    """One entry point. unroll: vectors per thread, for strided rows elements along the axis. launch: of a split one."""
    text = f"{name}_{layout}_{modes.replace(Mode.ANY, 'G')}_w{vector}u{unroll}l{lanes}t{threads}p{launch}"
    return RowVariant(
        symbol=text, modes=modes, index=32, vector=vector, unroll=unroll, threads=threads, layout=layout, lanes=lanes,
        launch=launch, waits=True,
    )  # fmt: skip
