"""Shape rules of the operators through which onnx's own inference loses symbols, one function an operator.

A rule takes the node and what is known of values. It returns the dims of the node's one output, or None where it knows
no more than onnx's rule for that operator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import onnx_ir as ir
import sympy

from onnxopt.graph.shapes import contrib_rules, window_rules
from onnxopt.graph.shapes.contents import Contents
from onnxopt.graph.shapes.dims import (
    Dim,
    Dims,
    Unknowns,
    broadcast,
    broadcast_dim,
    greatest,
    joined,
    not_negative,
    product,
    quotient,
    slice_length,
    step_count,
)
from onnxopt.program.operators import table as operators


class InferredShapes(Protocol):
    """What a rule may ask about the values inferred so far."""

    unknowns: Unknowns

    def dims(self, value: ir.Value | None) -> Dims | None: ...

    def contents(self, value: ir.Value | None) -> Contents | None: ...

    def dtype(self, value: ir.Value) -> ir.DataType | None: ...

    def is_size(self, dim: Dim) -> bool: ...


Rule = Callable[[ir.Node, InferredShapes], Dims | None]


def rule_of(node: ir.Node) -> Rule | None:
    """The rule for a node's operator, None where onnx's own rule is as good."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    if (domain, node.op_type) in contrib_rules.RULES:
        return contrib_rules.RULES[domain, node.op_type][0]
    if len(node.outputs) != 1:
        return None
    row = operators.OPERATORS.get((domain, node.op_type))
    if row is not None:
        return _same if any(operand.along_axis for operand in row.operands.values()) else _elementwise
    return {"": _RULES, "com.microsoft": _MICROSOFT}.get(domain, {}).get(node.op_type)


def _elementwise(node: ir.Node, inferred: InferredShapes) -> Dims | None:
    shapes = [inferred.dims(v) for v in node.inputs if v is not None]
    if not shapes or any(s is None for s in shapes):
        return None
    return broadcast([s for s in shapes if s is not None])


def _same(node: ir.Node, inferred: InferredShapes) -> Dims | None:
    return inferred.dims(node.inputs[0])


def _matmul(node: ir.Node, inferred: InferredShapes) -> Dims | None:
    a, b = inferred.dims(node.inputs[0]), inferred.dims(node.inputs[1])
    if a is None or b is None or len(a) < 2 or len(b) < 2:
        return None
    return (*broadcast([a[:-2], b[:-2]]), a[-2], b[-1])


def _vector(value: ir.Value | None, inferred: InferredShapes) -> list[Dim] | None:
    held = inferred.contents(value)
    return list(held) if held is not None and held.ndim == 1 else None


def _wanted(value: ir.Value | None, inferred: InferredShapes) -> list[Dim] | None:
    """The elements of a shape tensor; unknown ones where only its length is known."""
    held = _vector(value, inferred)
    length = inferred.dims(value)
    if held is None and length is not None and len(length) == 1 and isinstance(length[0], int):
        return [inferred.unknowns.integer() for _ in range(length[0])]
    return held


def _reshape(node: ir.Node, inferred: InferredShapes) -> Dims | None:
    source, wanted = inferred.dims(node.inputs[0]), _wanted(node.inputs[1], inferred)
    if wanted is None:
        return None
    copies = not node.attributes.get_int("allowzero", 0)
    dims: list[Dim | None] = []
    for k, dim in enumerate(wanted):
        own = source[k] if source is not None and k < len(source) else None
        if (copies and dim == 0) or dim == own:  # the latter also where it is 0, whether 0 copies or not
            dims.append(own)
        elif dim == -1:
            dims.append(None)
        else:  # a computed dim that may be 0 or -1 would mean something else then
            dims.append(dim if inferred.is_size(dim) or (isinstance(dim, int) and dim == 0) else None)
    missing = [k for k, dim in enumerate(dims) if dim is None]
    if len(missing) == 1 and source is not None:
        rest = product(dim for dim in dims if dim is not None)
        if rest != 0:
            dims[missing[0]] = quotient(product(source), rest)
    return tuple(inferred.unknowns.dim() if dim is None else dim for dim in dims)


def _expand(node: ir.Node, inferred: InferredShapes) -> Dims | None:
    source, wanted = inferred.dims(node.inputs[0]), _wanted(node.inputs[1], inferred)
    if source is None or wanted is None:
        return None
    rank = max(len(source), len(wanted))
    a: list[Dim] = [1] * (rank - len(source)) + list(source)
    b: list[Dim] = [1] * (rank - len(wanted)) + wanted
    return tuple(_expanded(x, y, inferred) for x, y in zip(a, b, strict=True))


def _expanded(own: Dim, wanted: Dim, inferred: InferredShapes) -> Dim:
    if own == wanted:  # also where both are 0
        return own
    if inferred.is_size(wanted):
        return broadcast_dim(own, wanted)
    return own if isinstance(own, int) and own > 1 else inferred.unknowns.dim()


def _slice(node: ir.Node, inferred: InferredShapes) -> Dims | None:
    source = inferred.dims(node.inputs[0])
    starts, ends = (_vector(v, inferred) for v in node.inputs[1:3])
    axes, steps = (_optional(node, k, inferred) for k in (3, 4))
    if source is None or axes is None or not all(isinstance(axis, int) for axis in axes or ()):
        return None
    axes = axes or list(range(len(starts or ends or ())))
    dims = list(source)
    for k, axis in enumerate(int(axis) % len(source) for axis in axes):
        step = None if steps is None else (steps or [1] * len(axes))[k]
        window = None
        if starts is not None and ends is not None and isinstance(step, int):
            window = slice_length(source[axis], starts[k], ends[k], step)
        dims[axis] = inferred.unknowns.dim() if window is None else window[1]
    return tuple(dims) if axes else None


def _optional(node: ir.Node, position: int, inferred: InferredShapes) -> list[Dim] | None:
    """The elements of an optional input: [] where it is left out, None where they are not known."""
    if len(node.inputs) <= position or node.inputs[position] is None:
        return []
    return _vector(node.inputs[position], inferred)


def _range(node: ir.Node, inferred: InferredShapes) -> Dims | None:
    held = [inferred.contents(v) for v in node.inputs]
    if any(h is None or h.size != 1 for h in held):
        return None
    start, limit, delta = (h.item() for h in held if h is not None)
    if not isinstance(delta, int) or delta == 0:
        return None
    count = step_count(limit - start, delta)
    return (count if not_negative(count) else greatest(0, count),)


def _constant_of_shape(node: ir.Node, inferred: InferredShapes) -> Dims | None:
    wanted = _wanted(node.inputs[0], inferred)
    return None if wanted is None else tuple(dim if not_negative(dim) else inferred.unknowns.dim() for dim in wanted)


def _tile(node: ir.Node, inferred: InferredShapes) -> Dims | None:
    source, repeats = inferred.dims(node.inputs[0]), _vector(node.inputs[1], inferred)
    if source is None or repeats is None:
        return None
    return tuple(product(pair) for pair in zip(source, repeats, strict=True))


def _concat(node: ir.Node, inferred: InferredShapes) -> Dims | None:
    shapes = [inferred.dims(v) for v in node.inputs]
    if any(s is None for s in shapes):
        return None
    present = [s for s in shapes if s is not None]
    axis = node.attributes["axis"].as_int() % len(present[0])
    dims = [_simplest_of([s[k] for s in present]) for k in range(len(present[0]))]
    dims[axis] = joined(sum((s[axis] for s in present), start=sympy.Integer(0)))
    return tuple(dims)


def _simplest_of(equal: list[Dim]) -> Dim:
    """Of several equal dims the most telling one: a number, else the shortest expression."""
    return min(equal, key=lambda dim: (not isinstance(dim, int), len(str(dim))))


def _gather(node: ir.Node, inferred: InferredShapes) -> Dims | None:
    data, indices = inferred.dims(node.inputs[0]), inferred.dims(node.inputs[1])
    if not data or indices is None:
        return None
    axis = node.attributes.get_int("axis", 0) % len(data)
    return (*data[:axis], *indices, *data[axis + 1 :])


def _flatten(node: ir.Node, inferred: InferredShapes) -> Dims | None:
    source, axis = inferred.dims(node.inputs[0]), node.attributes.get_int("axis", 1)
    return None if source is None else (product(source[:axis]), product(source[axis:]))


def _transpose(node: ir.Node, inferred: InferredShapes) -> Dims | None:
    source = inferred.dims(node.inputs[0])
    if source is None:
        return None
    order = node.attributes.get_ints("perm", tuple(range(len(source)))[::-1])
    return tuple(source[axis] for axis in order)


def _unsqueeze(node: ir.Node, inferred: InferredShapes) -> Dims | None:
    source, axes = inferred.dims(node.inputs[0]), _vector(node.inputs[1], inferred)
    if source is None or axes is None or not all(isinstance(axis, int) for axis in axes):
        return None
    new = {int(axis) % (len(source) + len(axes)) for axis in axes}
    if len(new) != len(axes):
        raise ValueError(f"axes {list(axes)} name one dim twice")
    rest = iter(source)
    return tuple(1 if k in new else next(rest) for k in range(len(source) + len(axes)))


def _attention(node: ir.Node, inferred: InferredShapes) -> Dims | None:
    """MultiHeadAttention of (B, S, D) operands: the shape of the queries, where the values are as wide."""
    query, value = inferred.dims(node.inputs[0]), inferred.dims(node.inputs[2]) if len(node.inputs) > 2 else None
    if query is None or value is None or len(query) != 3 or len(value) != 3 or query[2] != value[2]:
        return None
    return query


_RULES: dict[str, Rule] = {
    "MatMul": _matmul,
    "SimplifiedLayerNormalization": _same,  # ONNX Runtime's, in ONNX's domain
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Expand": _expand,
    "Slice": _slice,
    "Range": _range,
    "ConstantOfShape": _constant_of_shape,
    "Tile": _tile,
    "Concat": _concat,
    "Gather": _gather,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    **window_rules.RULES,
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax", "LayerNormalization", "CumSum", "Trilu", "CastLike"), _same),
    **dict.fromkeys(("InstanceNormalization", "GroupNormalization", "RMSNormalization", "Dropout"), _same),
}
_MICROSOFT: dict[str, Rule] = {
    "MultiHeadAttention": _attention,
    **dict.fromkeys(("Gelu", "FastGelu", "BiasGelu", "RotaryEmbedding", "SkipLayerNormalization"), _same),
    "SkipSimplifiedLayerNormalization": _same,
}
