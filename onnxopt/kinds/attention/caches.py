"""Caches of keys and values, with new tokens behind them or in slots, as graphs write them in front of attention.

    present = Concat(past, Transpose(k))
    present = Transpose(ScatterND(Transpose(past), slots, Transpose(k)))
    present = Concat(past, QuantizeLinear(Transpose(k)))
    present = QuantizeLinear(Concat(DequantizeLinear(past), Transpose(k)))

The last two hold codes, and a DequantizeLinear follows; the last one is for float8, which Concat does not take. Then
come what repeats keys for the heads of a group, and Reshapes.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import onnx_ir as ir

from onnxopt.graph.match import integers
from onnxopt.kinds.attention.codes import Coding, coding, dequantized, quantized

_SWAPPED = (0, 2, 1, 3)
_TOKENS_FIRST, _TOKENS_BACK, _TOKENS_BEFORE_BATCH = (2, 0, 1, 3), (1, 2, 0, 3), (1, 0, 2, 3)
# Of the nodes from a cache to the attention. Each Reshape joins dims; the last dims show which.
_FORMS = re.compile(
    "(?P<written>Concat( QuantizeLinear)?|ScatterND Transpose)( DequantizeLinear( Cast)?)?"
    "( Transpose( Unsqueeze Expand)?( Reshape)+)?"
)


class Cached(NamedTuple):
    """Keys or values: a cache and what is added to it. nodes: from what is added to the operator's input.

    fresh: (B, S, groups, H). slots: where that goes, (S, 1); None for behind the cache. coding: of a cache of codes.
    """

    nodes: tuple[ir.Node, ...]
    past: ir.Value
    fresh: ir.Value
    present: ir.Value
    slots: ir.Value | None = None
    coding: Coding | None = None


def cached(value: ir.Value | None) -> Cached | None:
    """Keys or values of a cache with new tokens, as (B, N, T, H) or, repeated for their groups, as (B, T, N H)."""
    nodes: list[ir.Node] = []
    while value is not None and (node := value.producer()) is not None and node.domain == "":
        nodes.insert(0, node)
        if node.op_type in ("Concat", "ScatterND"):
            break
        value = node.inputs[0]
    form = _FORMS.fullmatch(" ".join(node.op_type for node in nodes))
    if form is None:
        return None
    match form["written"].split():
        case ["Concat"]:
            match, rest = _appended(nodes[0]), nodes[1:]
        case ["Concat", _]:
            match, rest = _requantized(nodes[0], nodes[1]), nodes[2:]
        case _:
            match, rest = _scattered(nodes[0], nodes[1]), nodes[2:]
    if match is None or not all(map(_is_usual, rest)):
        return None
    if (match.coding is not None) != any(node.op_type == "DequantizeLinear" for node in rest):
        return None
    if match.coding is not None and coding(rest[0], match.coding) is None:
        return None
    return match._replace(nodes=(*match.nodes, *rest))


def _appended(concat: ir.Node) -> Cached | None:
    """Concat(past, Transpose(fresh))."""
    if len(concat.inputs) != 2 or concat.attributes.get_int("axis") not in (2, -2):
        return None
    added, of, coded = quantized(concat.inputs[1])
    past, turn = concat.inputs[0], _transpose(added, _SWAPPED)
    if past is None or turn is None or turn.inputs[0] is None:
        return None
    return Cached((turn, *of, concat), past, turn.inputs[0], concat.outputs[0], None, coded)


def _scattered(scatter: ir.Node, turned: ir.Node) -> Cached | None:
    """Transpose(ScatterND(Transpose(past), slots, Transpose(fresh))), of which the tokens come first in between."""
    added, of, coded = quantized(scatter.inputs[2], heads_axis=2)
    first, fresh = _transpose(scatter.inputs[0], _TOKENS_FIRST), _transpose(added, _TOKENS_BEFORE_BATCH)
    if first is None or fresh is None or _transpose(turned.outputs[0], _TOKENS_BACK) is None:
        return None
    past, slots, new = first.inputs[0], scatter.inputs[1], fresh.inputs[0]
    if past is None or slots is None or new is None or scatter.attributes.get_string("reduction", "none") != "none":
        return None
    return Cached((first, fresh, *of, scatter, turned), past, new, turned.outputs[0], slots, coded)


def _requantized(concat: ir.Node, quantize: ir.Node) -> Cached | None:
    """QuantizeLinear(Concat(DequantizeLinear(past), Transpose(fresh))); the codes of past stay what they are."""
    if len(concat.inputs) != 2 or concat.attributes.get_int("axis") not in (2, -2):
        return None
    past, dequantize = dequantized(concat.inputs[0])
    _, nodes, coded = quantized(quantize.outputs[0])
    if past is None or dequantize is None or coding(dequantize, coded) is None or nodes != (quantize,):
        return None
    cast = concat.inputs[1].producer() if concat.inputs[1] is not None else None
    between = (cast,) if cast is not None and (cast.domain, cast.op_type) == ("", "Cast") else ()
    turn = _transpose(between[0].inputs[0] if between else concat.inputs[1], _SWAPPED)
    if turn is None or turn.inputs[0] is None:
        return None
    held = (dequantize, turn, *between, concat, quantize)
    return Cached(held, past, turn.inputs[0], quantize.outputs[0], None, coded)


def _transpose(value: ir.Value | None, perm: tuple[int, ...]) -> ir.Node | None:
    """The Transpose with this permutation that makes a value."""
    node = value.producer() if value is not None else None
    if node is None or (node.domain, node.op_type) != ("", "Transpose"):
        return None
    return node if node.attributes.get_ints("perm") == perm else None


def _is_usual(node: ir.Node) -> bool:
    """Whether a node has the attributes and constants that `_repeat` and `flat` of to_contrib.py give it."""
    if node.op_type == "Transpose":
        return node.attributes.get_ints("perm") == _SWAPPED
    if node.op_type == "Unsqueeze":
        return integers(node.inputs[1]) == [3]
    if node.op_type == "Expand":
        shape = integers(node.inputs[1])
        return shape is not None and len(shape) == 5 and shape[:3] == [1, 1, 1] and shape[4] == 1
    return node.op_type in ("Reshape", "Cast", "DequantizeLinear")
