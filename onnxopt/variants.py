"""Which entry points a kernel gets: one for each way its operands are known to broadcast, and the general ones."""

from __future__ import annotations

import collections
from collections.abc import Sequence

import onnx_ir as ir

from onnxopt.dtypes import DTYPES
from onnxopt.program import Program
from onnxopt.regions import Region, Variant
from onnxopt.shapes import Dims, Shapes

_ACCESS_BYTES = 16  # the widest load or store an instruction makes
_MOST_SPECIAL = 3
_THREADS = 128


def choose(name: str, program: Program, regions: Sequence[Region], shapes: Shapes) -> tuple[Variant, ...]:
    """Variants in the order the host tries them: those the shapes foresee, most frequent first, then the general ones.

    The 64-bit variant is left out where every shape is known and none needs it.
    """
    foreseen = collections.Counter(modes for r in regions if (modes := _modes(r, shapes)) is not None)
    vector = vector_width(program)
    chosen = []
    for modes, _ in foreseen.most_common(_MOST_SPECIAL):
        chosen.append(
            Variant(f"{name}_{_kind(modes)}_{modes.replace('*', 'G')}", modes, 32, vector, _unroll(modes), _THREADS)
        )  # fmt: skip
    general = "*" * len(program.inputs)
    chosen.append(Variant(f"{name}_strided", general, 32, vector, 1, _THREADS))
    sizes = [shapes.elements(v) for r in regions for v in (*r.inputs, *r.outputs)]
    if any(size is None or size >= 2**31 for size in sizes):
        chosen.append(Variant(f"{name}_strided64", general, 64, vector, 1, _THREADS))
    return tuple(chosen)


def vector_width(program: Program) -> int:
    """Elements a thread loads at once: 16 bytes of the widest operand, so that no access is split."""
    widest = max(DTYPES[d].size for d in (*program.inputs, *program.outputs))
    return _ACCESS_BYTES // widest


def _unroll(modes: str) -> int:
    """Vectors a thread handles: two keep enough loads in flight where one operand is read, else one does.

    Measured (docs/notes.md); with operands whose index is computed a second vector costs more than it brings.
    """
    return 2 if modes.count("F") <= 1 and not set("T*") & set(modes) else 1


def _kind(modes: str) -> str:
    if "T" in modes or "*" in modes:
        return "strided"
    return "column" if "C" in modes else "row" if "R" in modes else "contiguous"


def _modes(region: Region, shapes: Shapes) -> str | None:
    """One letter an input (regions.Variant), or None where shapes do not tell or an input needs the general variant."""
    domain = shapes.dims(region.outputs[0])
    letters = [_mode(v, region.outputs[0], domain, shapes) for v in region.inputs]
    return None if None in letters else "".join(letter for letter in letters if letter is not None)


def _mode(value: ir.Value, output: ir.Value, domain: Dims | None, shapes: Shapes) -> str | None:
    if shapes.elements(value) == 1:
        return "S"
    if shapes.same(value, output):
        return "F"
    dims = shapes.dims(value)
    if dims is None or domain is None or len(dims) > len(domain):
        return None
    padded = (1,) * (len(domain) - len(dims)) + dims
    kept = [_kept(d, whole) for d, whole in zip(padded, domain, strict=True) if whole != 1]
    if None in kept:
        return None
    runs = [kept[k] for k in range(len(kept)) if k == 0 or kept[k] != kept[k - 1]]
    if runs.count(True) != 1:
        return {0: "S", 2: "T"}.get(runs.count(True), "*")
    return "F" if runs == [True] else "R" if kept[-1] else "C"


def _kept(dim: int | str | None, whole: int | str | None) -> bool | None:
    """Whether an operand runs along a dim (True), is broadcast over it (False), or cannot be told (None)."""
    if dim is not None and dim == whole:
        return True
    return False if dim == 1 else None
