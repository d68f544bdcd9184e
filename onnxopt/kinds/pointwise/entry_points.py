"""The entry points of a pointwise kernel: one per known memory layout of its operands, and general ones."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Sequence

import onnx_ir as ir

from onnxopt.costs import pointwise as launch
from onnxopt.fusion.region import Region
from onnxopt.graph.shapes.shapes import Dims, Shapes
from onnxopt.kinds.pointwise import tiles
from onnxopt.kinds.pointwise.access_modes import (
    ALONG,
    GATHERED,
    Fit,
    Mode,
    access_mode,
    columns,
    condition_mode,
    gathered,
)
from onnxopt.program.dtypes import DTYPES
from onnxopt.program.extents import ONE, Extent, extent, product
from onnxopt.program.hardware import ACCESS_BYTES
from onnxopt.program.indexing import Access, Indexing, Term
from onnxopt.program.pointwise import PointwiseVariant, Program

_WORD_BYTES = 4  # of a bank of shared memory
_COSTS = launch.numbers()
# An entry point is named after its slowest access.
_STRIDED = frozenset(
    {Mode.RUN_2, Mode.CELL_2, Mode.RUN_ANY, Mode.CELL_ANY, Mode.INTERLEAVED, Mode.SPLIT_2, Mode.SPLIT_ANY,
     Mode.GUARDED, Mode.ANY}
)  # fmt: skip
_ALIKE = frozenset({Mode.SCALAR, Mode.CELL, Mode.CELL_2, Mode.CELL_ANY, Mode.UNIFORM})  # one element for a vector
_CELLS, _RUNS = frozenset({Mode.CELL, Mode.SPLIT_CELL}), frozenset({Mode.RUN, Mode.SPLIT_RUN})


def choose(name: str, program: Program, regions: Sequence[Region], shapes: Shapes) -> tuple[PointwiseVariant, ...]:
    """Variants in the order that the host tries: those for known shapes, most frequent first, then general ones.

    There is no 64-bit variant where every shape is known and none needs 64-bit indices.
    """
    vector = vector_width(program)
    if program.index is None:
        special = _plain(name, vector, regions, shapes)
    else:
        special = _indexed(name, program, program.index, vector)
    general = Mode.ANY * len(program.accesses) + Mode.PER_ELEMENT * program.conditions
    if program.index is not None:
        vector = 1  # for buffers that are not aligned; a special variant covers every aligned buffer
    chosen = [*special, PointwiseVariant(f"{name}_strided", general, 32, vector, 1, _COSTS.general_threads, waits=True)]
    sizes = [shapes.elements(v) for r in regions for v in (*r.inputs, *r.outputs)]
    if any(size is None or size >= 2**31 for size in sizes):
        chosen.append(PointwiseVariant(f"{name}_strided64", general, 64, vector, 1, _COSTS.general_threads, waits=True))
    return tuple(chosen)


def vector_width(program: Program) -> int:
    """Elements that a thread loads at once: 16 bytes of the widest operand, so that no access is split."""
    return ACCESS_BYTES // _widest(program)


def _leaves_of_indices(program: Program) -> frozenset[int]:
    return program.leaves_of([] if program.index is None else [lookup.index for _, lookup in program.index.lookups])


def _widest(program: Program) -> int:
    """Bytes of the widest operand. Indices that are looked up count only where their values are computed with."""
    indices = _leaves_of_indices(program) - program.leaves_of(program.results)
    read = (d for k, d in enumerate(program.accesses) if k not in indices)
    return max(DTYPES[d].size for d in (*read, *program.outputs))


def _variant(name: str, modes: str, vector: int, full: int, block: launch.Block) -> PointwiseVariant:
    suffix = modes.replace(Mode.ANY, "A") + ("" if vector == full else f"_{vector}")
    symbol = f"{name}_{_kind(modes)}_{suffix}"
    return PointwiseVariant(symbol, modes, 32, vector, block.unroll, block.threads, waits=True)


def _kind(modes: str) -> str:
    if set(ALONG) & set(modes):
        return "tiled"
    if _STRIDED & set(modes):
        return "strided"
    return "column" if _CELLS & set(modes) else "row" if _RUNS & set(modes) else "contiguous"


def _plain(name: str, vector: int, regions: Sequence[Region], shapes: Shapes) -> list[PointwiseVariant]:
    """Variants without index operations: numpy broadcasting of known dims."""
    foreseen = [[_modes(region, shapes, Fit(vector, certain)) for certain in (False, True)] for region in regions]
    counts: collections.Counter[str] = collections.Counter(aligned for aligned, _ in foreseen if aligned is not None)
    frequent = [modes for modes, _ in counts.most_common(_COSTS.special_variants)]
    # Symbolic dims may be odd at run time; the variants for odd dims come last.
    odd = [any_ for aligned, any_ in foreseen if aligned in frequent and any_ is not None and any_ not in frequent]
    modes = (*frequent, *dict.fromkeys(odd))
    return [_variant(name, m, vector, vector, launch.block()) for m in modes]


def _modes(region: Region, shapes: Shapes, fit: Fit) -> str | None:
    """One letter per input, None where the shapes do not determine the letters."""
    letters: list[Mode] = []
    domain = shapes.dims(region.outputs[0])
    for value in region.inputs:
        if shapes.elements(value) == 1:
            letters.append(Mode.SCALAR)
        elif shapes.same(value, region.outputs[0]):
            letters.append(Mode.FLAT)
        else:
            terms = _broadcast_terms(value, domain, shapes)
            if terms is None:
                return None
            count = _size(domain)
            letters.append(access_mode(terms, (), fit, count))
    return "".join(letters)


def _size(dims: Dims | None) -> Extent | None:
    if dims is None or any(d is None for d in dims):
        return None
    return product(extent(d) for d in dims if d is not None)


def _broadcast_terms(value: ir.Value, domain: Dims | None, shapes: Shapes) -> tuple[Term, ...] | None:
    """The terms of an operand that is broadcast into the domain, None where the dims do not determine them."""
    dims = shapes.dims(value)
    if dims is None or domain is None or len(dims) > len(domain):
        return None
    terms: list[Term] = []
    div = stride = ONE
    is_open = False
    padded = (1,) * (len(domain) - len(dims)) + dims
    for dim, whole in zip(reversed(padded), reversed(domain), strict=True):
        if whole == 1:
            continue
        if dim is None or whole is None or dim not in (1, whole):
            return None
        if dim == 1:
            is_open = False
        elif is_open:
            terms[-1] = Term(terms[-1].div, terms[-1].mod * extent(whole), terms[-1].stride)
        else:
            terms.append(Term(div, extent(whole), stride))
            is_open = True
        div = div * extent(whole)
        stride = stride * (ONE if dim == 1 else extent(whole))
    return tuple(terms)


def _indexed(name: str, program: Program, index: Indexing, full: int) -> list[PointwiseVariant]:
    """Variants with index operations: tiled ones where an input is transposed, and one or two that are not tiled."""
    chosen = _tiled(name, program, index, full)
    seen = set()
    for certain in (False, True):
        options = [(w, _index_modes(index, Fit(w, certain))) for w in _widths(program, full)]
        accesses = len(index.accesses)
        width, modes = min(options, key=lambda o: (sum(m in GATHERED for m in o[1][:accesses]), -o[0]))
        if any(modes[leaf] not in _ALIKE for leaf in _leaves_of_indices(program)):
            width, modes = options[-1]  # so that neighbouring threads, not those of a thread, read neighbours
        if (width, modes) not in seen:
            seen.add((width, modes))
            chosen.append(_variant(name, modes, width, full, launch.block()))
    return chosen


def _widths(program: Program, full: int) -> Iterable[int]:
    widest, width = _widest(program), full
    while width > 1 and width * widest >= _COSTS.min_vector_bytes:
        yield width
        width //= 2
    if width == full:
        yield full


def _index_modes(index: Indexing, fit: Fit) -> str:
    count = product(index.shapes[0])
    conditions = [condition_mode(c, fit) for c in index.conditions]
    letters: list[Mode] = []
    for access in index.accesses:
        steps = () if access.lookup is None else (access.lookup.stride,)
        letter = access_mode(access.terms, (*access.offset, *steps), fit, count)
        if letter == Mode.RUN and access.lookup is not None:
            letter = Mode.RUN_ANY  # a run of a table, which no cache is to keep
        if any(conditions[g] == Mode.PER_ELEMENT for g in access.guards):
            letter = Mode.GUARDED if letter != Mode.SCALAR else Mode.SCALAR
        elif access.guards and letter == Mode.FLAT:
            letter = Mode.RUN
        letters.append(letter)
    for leader in set(index.leaders):  # the accesses of a group share one load, so they share one letter
        group = {k for k, other in enumerate(index.leaders) if other == leader}
        if len({letters[k] for k in group}) > 1:
            each = any(letters[k] == Mode.GUARDED for k in group)
            for k in group:
                letters[k] = Mode.GUARDED if each else gathered(index.accesses[k].terms, fit)
    return "".join((*letters, *conditions))


def _tiled(name: str, program: Program, index: Indexing, full: int) -> list[PointwiseVariant]:
    """Variants whose transposed inputs go through shared memory; none where tiles do not pay."""
    apart = {*_leaves_of_indices(program), *(k for k, _ in index.lookups)}
    along = {k: t for k, a in enumerate(index.accesses) if k not in apart and (t := columns(a.terms)) is not None}
    if not along:
        return []
    chosen, _ = collections.Counter(along.values()).most_common(1)[0]
    members = [k for k, term in along.items() if term == chosen]
    count = product(index.shapes[0])
    sizes = [DTYPES[program.accesses[k]].size for k in members if index.leaders[k] == k]
    variants = []
    for tile in tiles.choose(chosen, count, sizes, full):
        letters: list[str] = list(_index_modes(index, Fit(tile.width)))
        if all(letters[k] == Mode.INTERLEAVED for k in members):
            continue  # the input is read in memory order, without shared memory
        for certain in (False, True):
            for k in members:
                group = [m for m in members if index.leaders[m] == index.leaders[k]]
                options = [_along(index.accesses[m], chosen, program.accesses[m], tile, certain) for m in group]
                letters[k] = min(options, key=ALONG.index)
                if letters[k] == Mode.COLUMN_SHIFTED and len(group) > 1:
                    letters[k] = Mode.COLUMN
            variants.append(_tiled_variant(name, "".join(letters), tile, full))
        if any(index.accesses[k].guards for k in members):  # at run time a guard may begin or end inside a vector
            modes = "".join(Mode.COLUMN if c in ALONG else c for c in letters)
            variants.append(_tiled_variant(name, modes, tile, full))
    return list(dict.fromkeys(variants))


def _along(access: Access, column: Term, dtype: str, tile: tiles.Tile, certain: bool) -> str:
    """The mode of an access that a tile reads along columns: the widest vectors that fit."""
    rest = [t.stride for t in access.terms if t != column]
    size = DTYPES[dtype].size
    full = ACCESS_BYTES // size
    for letter, width in ((Mode.COLUMN_16, full), (Mode.COLUMN_8, full // 2)):
        fit = Fit(width, certain)
        fills = width > 1 and tile.columns % width == 0 and (letter == Mode.COLUMN_16 or tile.columns < full)
        if fills and fit.whole(column.mod, *rest, *access.offset):
            return letter
        if width > tile.columns and column.mod.number == tile.columns and not access.guards:
            inner, *others = (t for t in access.terms if t != column)
            sides = inner.stride == column.mod and tile.rows % (width // tile.columns) == 0
            if sides and fit.whole(inner.mod * column.mod, *(t.stride for t in others), *access.offset):
                return letter
    rows = access.terms[: access.terms.index(column)]
    words = Fit(max(1, _WORD_BYTES // size), certain)
    in_turns = len(rows) == 1 or words.whole(*(t.stride for t in rows))
    return Mode.COLUMN_SHIFTED if in_turns and tile.columns % full == 0 else Mode.COLUMN


def _tiled_variant(name: str, modes: str, tile: tiles.Tile, full: int) -> PointwiseVariant:
    variant = _variant(name, modes, tile.width, full, launch.Block(tile.threads, 1))
    symbol = variant.symbol + "_slides" * tile.slides
    return dataclasses.replace(
        variant, symbol=symbol, tile=tile.rows, tile_columns=tile.columns, whole=tile.whole, slides=tile.slides
    )
