"""Which entry points a kernel gets: one for each way its operands are known to lie, and the general ones."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Sequence

import onnx_ir as ir

from onnxopt.dtypes import DTYPES
from onnxopt.extents import ONE, Extent, extent, product
from onnxopt.indexing import Indexing, Term
from onnxopt.modes import GATHERED, Fit, access_mode, columns, condition_mode
from onnxopt.program import Program
from onnxopt.regions import Region, Variant
from onnxopt.shapes import Dims, Shapes

_ACCESS_BYTES = 16  # the widest load or store an instruction makes
_NARROWEST_BYTES = 4  # below, gathering is as good
_MOST_SPECIAL = 3
_THREADS = 128
_TILE_THREADS = 256
_TILE_COLUMNS = 64  # as cuda_kernels/abi.h
_SHARED_BYTES = 48 << 10
_LARGE = 1 << 23  # elements
_SHORTEST_SIDE = 8  # of a tile that is worth the way through shared memory


def choose(name: str, program: Program, regions: Sequence[Region], shapes: Shapes) -> tuple[Variant, ...]:
    """Variants in the order the host tries them: those the shapes foresee, most frequent first, then the general ones.

    The 64-bit variant is left out where every shape is known and none needs it.
    """
    vector = vector_width(program)
    if program.index is None:
        special = _plain(name, vector, regions, shapes)
    else:
        special = _indexed(name, program, program.index, vector)
    general = "*" * len(program.accesses) + "p" * program.conditions
    if program.index is not None:
        vector = 1  # only for buffers that are not aligned: the others have a variant that knows how they lie
    chosen = [*special, Variant(f"{name}_strided", general, 32, vector, 1, _THREADS)]
    sizes = [shapes.elements(v) for r in regions for v in (*r.inputs, *r.outputs)]
    if any(size is None or size >= 2**31 for size in sizes):
        chosen.append(Variant(f"{name}_strided64", general, 64, vector, 1, _THREADS))
    return tuple(chosen)


def vector_width(program: Program) -> int:
    """Elements a thread loads at once: 16 bytes of the widest operand, so that no access is split."""
    widest = max(DTYPES[d].size for d in (*program.accesses, *program.outputs))
    return _ACCESS_BYTES // widest


def _variant(name: str, modes: str, vector: int, full: int, tile: int = 0) -> Variant:
    suffix = modes.replace("*", "A") + ("" if vector == full else f"_{vector}")
    threads = _TILE_THREADS if tile else _THREADS
    unroll = 1 if tile else _unroll(modes)
    return Variant(f"{name}_{_kind(modes)}_{suffix}", modes, 32, vector, unroll, threads, tile=tile)


def _unroll(modes: str) -> int:
    """Vectors a thread handles: two keep enough loads in flight where one operand is read, else one does.

    Measured (docs/notes.md); with operands whose index is computed a second vector costs more than it brings.
    """
    return 2 if modes.count("F") <= 1 and not set("TUVWtGPp") & set(modes) else 1


def _kind(modes: str) -> str:
    if "X" in modes:
        return "tiled"
    if set("TUVWtG") & set(modes):
        return "strided"
    return "column" if set("Cc") & set(modes) else "row" if set("Rr") & set(modes) else "contiguous"


def _plain(name: str, vector: int, regions: Sequence[Region], shapes: Shapes) -> list[Variant]:
    """Without index operations: numpy broadcasting, as far as the dims tell."""
    foreseen = [[_modes(region, shapes, Fit(vector, certain)) for certain in (False, True)] for region in regions]
    found: collections.Counter[str] = collections.Counter(hoped for hoped, _ in foreseen if hoped is not None)
    frequent = [modes for modes, _ in found.most_common(_MOST_SPECIAL)]
    # Where symbolic dims may turn out to be odd, the variants for that come behind.
    behind = [c for h, c in foreseen if h in frequent and c is not None and c not in frequent]
    return [_variant(name, modes, vector, vector) for modes in (*frequent, *dict.fromkeys(behind))]


def _modes(region: Region, shapes: Shapes, fit: Fit) -> str | None:
    """One letter an input, or None where shapes do not tell."""
    letters = []
    domain = shapes.dims(region.outputs[0])
    for value in region.inputs:
        if shapes.elements(value) == 1:
            letters.append("S")
        elif shapes.same(value, region.outputs[0]):
            letters.append("F")
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
    """The terms of an operand that is broadcast into the domain, or None where that cannot be told."""
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


def _indexed(name: str, program: Program, index: Indexing, full: int) -> list[Variant]:
    """With index operations: a tiled variant where an input lies across the domain's order, and one that is not."""
    chosen = []
    tiled = _tiled(name, program, index, full)
    if tiled is not None:
        chosen.append(tiled)
    seen = set()
    for certain in (False, True):
        options = [(w, _index_modes(index, Fit(w, certain))) for w in _widths(program, full)]
        accesses = len(index.accesses)
        width, modes = min(options, key=lambda o: (sum(m in GATHERED for m in o[1][:accesses]), -o[0]))
        if (width, modes) not in seen:
            seen.add((width, modes))
            chosen.append(_variant(name, modes, width, full))
    return chosen


def _widths(program: Program, full: int) -> Iterable[int]:
    widest = max(DTYPES[d].size for d in (*program.accesses, *program.outputs))
    width = full
    while width > 1 and width * widest >= _NARROWEST_BYTES:
        yield width
        width //= 2
    if width == full:
        yield full


def _index_modes(index: Indexing, fit: Fit) -> str:
    count = product(index.shapes[0])
    conditions = [condition_mode(c, fit) for c in index.conditions]
    letters = []
    for access in index.accesses:
        letter = access_mode(access.terms, access.offset, fit, count)
        if any(conditions[g] == "p" for g in access.guards):
            letter = "G" if letter != "S" else "S"
        elif access.guards and letter == "F":
            letter = "R"
        letters.append(letter)
    return "".join((*letters, *conditions))


def _tiled(name: str, program: Program, index: Indexing, full: int) -> Variant | None:
    """A variant whose transposed inputs go through shared memory, or None where there are none worth it."""
    along = {k: t for k, a in enumerate(index.accesses) if (t := columns(a.terms)) is not None}
    if not along:
        return None
    chosen, _ = collections.Counter(along.values()).most_common(1)[0]
    if any(n is not None and n < _SHORTEST_SIDE for n in (chosen.div.number, chosen.mod.number)):
        return None
    members = [k for k, term in along.items() if term == chosen]
    width = max((w for w in (16, 8, 4, 2, 1) if w <= full and chosen.div.factor % w == 0), default=1)
    letters = list(_index_modes(index, Fit(width)))
    for k in members:
        letters[k] = "X"
    row_bytes = sum(_TILE_COLUMNS * DTYPES[program.accesses[k]].size + 8 for k in members)
    size = product(index.shapes[0]).number
    many = size is None or size >= _LARGE  # smaller tensors need smaller tiles to keep all of a GPU busy
    rows = 64 if many and (chosen.div.number is None or chosen.div.number > 32) else 32
    while rows * row_bytes > _SHARED_BYTES:
        rows //= 2
    if rows < max(width, _SHORTEST_SIDE):
        return None
    return _variant(name, "".join(letters), width, full, tile=rows)
