"""Caches of decoders: keys and values that a step reads and returns, so that they may be stored narrower.

    present = Concat(past, new)    present = ScatterND(past, indices, new)    present = Attention(..., past, ...)

with views, Slices and Concats of parts before and after, also in branches of If. They are recognised by this structure:
an output of the dtype and the dims of an input, but for the length, which elements of the input reach by operators that
move elements. Where several files share a cache, one returns what another reads: an output or input of four dims or
more, whose elements attention of the graph reads as keys or values (keys_and_values.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence

import onnx_ir as ir

from onnxopt.graph.branches import branches_of
from onnxopt.graph.precision.keys_and_values import KeysAndValues

FLOAT = ir.DataType.FLOAT
_MIN_RANK = 3  # batch, length and elements
_MIN_RANK_OF_HEADS = 4  # batch, heads, length and elements
_CONTRIB = "com.microsoft"
# Operators that move elements of these operands, by position; None for all.
_MOVES: dict[str, tuple[int, ...] | None] = {
    **dict.fromkeys(
        ("Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Slice", "Split", "Gather", "Expand"), (0,)
    ),
    "Concat": None,
}
_ADDING: dict[str, tuple[int, ...] | None] = {
    "Concat": None, **dict.fromkeys(("ScatterElements", "ScatterND", "TensorScatter"), (0,)), "Where": (1, 2),
}  # fmt: skip
# Attention: which operand becomes which result.
_ATTENTION: dict[tuple[str, str], Mapping[int, int]] = {
    ("", "Attention"): {1: 4, 2: 5},
    (_CONTRIB, "GroupQueryAttention"): {1: 3, 2: 4},
    (_CONTRIB, "MultiHeadAttention"): {1: 6, 2: 7},
    (_CONTRIB, "DecoderMaskedMultiHeadAttention"): {1: 5, 2: 6},
    (_CONTRIB, "Attention"): {1: 4},
}


@dataclasses.dataclass(frozen=True)
class Cache:
    """An input and an output of a model, by name: what a step reads and what the next one reads."""

    past: str
    present: str


def find(model: ir.Model) -> tuple[str, ...]:
    """The names of the inputs and outputs of a normalized model that are float32 caches. The model stays as it is."""
    pairs = find_pairs(model)
    names = {name for pair in pairs for name in (pair.past, pair.present)}
    read = KeysAndValues(model.graph)
    names |= {str(v.name) for v in model.graph.inputs if _is_of_heads(v) and read.holds(v)}
    names |= {str(v.name) for v in model.graph.outputs if _is_of_heads(v) and any(map(read.holds, _moved_to(v)))}
    return tuple(str(v.name) for v in (*model.graph.inputs, *model.graph.outputs) if v.name in names)


def find_pairs(model: ir.Model) -> tuple[Cache, ...]:
    """The inputs that come back as outputs, in the order of the inputs."""
    pairs: dict[ir.Value, ir.Value] = {}
    for output in model.graph.outputs:
        for past in _sources(output):
            if past not in pairs and _is_same(past, output):
                pairs[past] = output
                break
    inputs = [value for value in model.graph.inputs if value in pairs]
    return tuple(Cache(str(past.name), str(pairs[past].name)) for past in inputs)


def narrow(model: ir.Model, caches: Collection[str], dtype: ir.DataType) -> None:
    """Give inputs and outputs of these names this dtype, in place, with Casts after inputs and before outputs."""
    graph = model.graph
    first = next(iter(graph))
    for value in graph.inputs:
        if value.name in caches:
            cast = _cast(value, FLOAT, f"{value.name}_float")
            value.replace_all_uses_with(cast.outputs[0])
            cast.replace_input_with(0, value)
            value.type = ir.TensorType(dtype)
            graph.insert_before(first, cast)
    for k, value in enumerate(list(graph.outputs)):
        if value.name in caches and value.producer() is not None:
            name = str(value.name)
            value.name = f"{name}_float"
            cast = _cast(value, dtype, name)
            graph.outputs[k] = cast.outputs[0]
            graph.append(cast)


def _cast(value: ir.Value, dtype: ir.DataType, name: str) -> ir.Node:
    node = ir.node("Cast", inputs=[value], attributes={"to": dtype.value}, name=f"{name}/Cast")
    result = node.outputs[0]
    result.name, result.type = name, ir.TensorType(dtype)
    result.shape = None if value.shape is None else value.shape.copy(frozen=False)
    return node


def _sources(output: ir.Value) -> Iterator[ir.Value]:
    """The inputs whose elements move to an output, to which a node on the way adds others."""
    for value, added in _walk(output):
        if added and value.producer() is None and value.is_graph_input() and value.const_value is None:
            yield value


def _moved_to(output: ir.Value) -> Iterator[ir.Value]:
    """The values whose elements move to an output."""
    return (value for value, _ in _walk(output))


def _walk(output: ir.Value) -> Iterator[tuple[ir.Value, bool]]:
    """The values whose elements move to an output, and whether a node on the way adds others."""
    pending, seen = [(output, False)], set[tuple[ir.Value, bool]]()
    while pending:
        value, added = pending.pop()
        if (value, added) in seen:
            continue
        seen.add((value, added))
        yield value, added
        node = value.producer()
        if node is not None:
            # The first operand of Concat is seen first: new elements come after those of a cache.
            pending += [(operand, added or adds) for operand, adds in reversed(_moved(node, value))]


def _moved(node: ir.Node, value: ir.Value) -> list[tuple[ir.Value, bool]]:
    """The operands whose elements are in a result, and whether there are others beside them."""
    attention = _ATTENTION.get((node.domain, node.op_type), {})
    position = attention.get(value.index() or 0)
    if position is not None:
        return [(v, True) for v in _at(node, (position,))]
    if branches := branches_of(node):
        return [(branch.outputs[value.index() or 0], False) for branch in branches]
    if node.domain != "":
        return []
    values = [(v, True) for v in _at(node, _ADDING[node.op_type])] if node.op_type in _ADDING else []
    return values + ([(v, False) for v in _at(node, _MOVES[node.op_type])] if node.op_type in _MOVES else [])


def _at(node: ir.Node, positions: Sequence[int] | None) -> list[ir.Value]:
    chosen = node.inputs if positions is None else [node.inputs[k] for k in positions if k < len(node.inputs)]
    return [v for v in chosen if v is not None and v.dtype == FLOAT]


def _is_of_heads(value: ir.Value) -> bool:
    return value.dtype == FLOAT and value.shape is not None and len(value.shape) >= _MIN_RANK_OF_HEADS


def _is_same(past: ir.Value, present: ir.Value) -> bool:
    """Whether the sizes are equal, but for one dim. Exporters name the dims of inputs and outputs as they like."""
    if past.dtype != FLOAT or present.dtype != FLOAT or past.shape is None or present.shape is None:
        return False
    if len(past.shape) != len(present.shape) or len(past.shape) < _MIN_RANK:
        return False
    pairs = [(_size(a), _size(b)) for a, b in zip(past.shape, present.shape, strict=True)]
    if any(a is not None and b is None for a, b in pairs):
        return False  # the next step could not read it: new elements of a known number
    return sum(a != b for a, b in pairs if a is not None) <= 1


def _size(dim: int | ir.SymbolicDim) -> int | None:
    """The size of a dim that is no symbol, as which some exporters write sizes too."""
    text = str(dim)
    return int(text) if text.isdecimal() else None
