"""Symbolic dims that are whole multiples of others: those that Resize makes, and those that Concat says are as long.

    Resize(x [N, C, h, w], 2) -> y [N, C, 2*h, 2*w]        "2*h" is two times "h"
    Concat(y, z [N, K, H, W], axis 1)                      "H" is as long as "2*h"
    Reshape(x [N, 4*h, 4*w, C]) -> [N, h, 4, w, 4, C]      "h" is a part of "4*h", which a dim of x says

Dims have names of their own elsewhere, "2*h" as well as "h", because a kernel learns each from an input's shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.program.extents import Extent


def with_multiples(nodes: Sequence[ir.Node], inputs: Sequence[ir.Value], shapes: Shapes) -> Shapes:
    """The shapes as a kernel for these nodes counts them, which reads `inputs`.

    They are the same where no node is a Resize of symbolic dims and every symbolic dim is one of an input.
    """
    multiples: dict[str, Extent] = {}
    resizes = [node for node in nodes if node.op_type == "Resize" and node.domain == ""]
    for node in resizes:
        for dim, part in _pairs(node.outputs[0], node.inputs[0], shapes):
            times = shapes.times(dim, part)
            if dim != part and times is not None:
                multiples.setdefault(dim, multiples.get(part, shapes.extent(part)) * times)
    if not multiples:
        return shapes.with_multiples(_of_symbols(nodes, inputs, shapes))
    for node in nodes:
        if node.op_type == "Concat" and node.domain == "":
            _add_equal(node, shapes, multiples)
    return shapes.with_multiples(multiples)


def _of_symbols(nodes: Sequence[ir.Node], inputs: Sequence[ir.Value], shapes: Shapes) -> dict[str, Extent]:
    """The dims that are products of symbols, each of which a dim of an input tells."""
    own = _names(inputs, shapes)
    computed = _names([value for node in nodes for value in node.outputs], shapes)
    if computed.keys() <= own.keys():
        return {}
    parts = {name: part for name in (*own, *computed) if (part := shapes.monomial(name)) is not None}
    told = {parts[name].symbols[0] for name in own if name in parts and len(parts[name].symbols) == 1}
    return {name: part for name, part in parts.items() if told.issuperset(part.symbols)}


def _names(values: Sequence[ir.Value], shapes: Shapes) -> dict[str, None]:
    """The names of the symbolic dims of values, in order."""
    return dict.fromkeys(dim for value in values for dim in shapes.dims(value) or () if isinstance(dim, str))


def _pairs(a: ir.Value | None, b: ir.Value | None, shapes: Shapes) -> Iterator[tuple[str, str]]:
    """The names of the dims of two values of one rank, axis by axis, where both are symbolic."""
    dims = [shapes.dims(v) if v is not None else None for v in (a, b)]
    for one, other in zip(dims[0] or (), dims[1] or (), strict=False):
        if isinstance(one, str) and isinstance(other, str):
            yield one, other


def _add_equal(concat: ir.Node, shapes: Shapes, multiples: dict[str, Extent]) -> None:
    """Write the dims that a Concat's operands and result share as the multiple that one of them is."""
    shared = [shapes.dims(v) for v in (*concat.inputs, *concat.outputs) if v is not None]
    if not all(shared):
        return
    rank = len(shared[0] or ())
    for axis in set(range(rank)) - {concat.attributes.get_int("axis", 0) % rank}:
        names = [dims[axis] for dims in shared if dims is not None and len(dims) == rank]
        present = [multiples[name] for name in names if isinstance(name, str) and name in multiples]
        for name in names:
            if present and isinstance(name, str):
                multiples.setdefault(name, present[0])
