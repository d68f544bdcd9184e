"""Attention of the tokens of several streams: heads that are joined along their tokens.

    Concat(f(Transpose(a)), g(Transpose(b)), axis=2) -> Transpose(Concat(f(a), g(b), axis=1))
                                                        f, g: work on heads, such as norms with weights of their own

Each stream has a projection, and norms, of its own. With the Transpose after the Concat, attention has its usual form,
and a kernel reads the rows of both products and writes what attention reads.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxopt.graph.match import is_private
from onnxopt.graph.passes.new_nodes import NewNodes
from onnxopt.graph.rewrite.attention import joined_rotary
from onnxopt.graph.rewrite.attention.head_norms import turned
from onnxopt.graph.rewrite.attention.head_work import RANK, HeadWork, work_after
from onnxopt.graph.rewrite.rule_sets import Pass

_SWAPPED = (0, 2, 1, 3)  # [B, S, N, H] to [B, N, S, H], and back
_TOKENS = 2  # the axis of tokens [B, N, S, H]


def join(model: ir.Model) -> int:
    """Apply the rule to Concats whose operands all begin at Transposes, in place. Returns how often.

    Rotary embedding between the two moves after the Concat first (joined_rotary.py).
    """
    concats = [n for n in model.graph if n.op_type == "Concat" and n.domain == "" and _is_of_tokens(n)]
    tables: dict[joined_rotary.Streams, ir.Value] = {}
    before_rotary = [joined_rotary.join(node, model.graph, tables) or node for node in concats]
    return sum(_join(node, model.graph) for node in before_rotary)


def _is_of_tokens(node: ir.Node) -> bool:
    shape = node.outputs[0].shape
    is_of_heads = shape is not None and len(shape) == RANK and len(node.inputs) > 1
    return is_of_heads and node.attributes.get_int("axis", 0) % RANK == _TOKENS  # type: ignore[operator]


def _join(node: ir.Node, graph: ir.Graph) -> bool:
    result = node.outputs[0]
    streams = [None if value is None else _stream(value) for value in node.inputs]
    if any(stream is None for stream in streams):
        return False
    new = NewNodes(graph, node)
    parts = [_untransposed(new, stream) for stream in streams if stream is not None]
    axis = ir.AttrInt64("axis", _SWAPPED.index(_TOKENS))
    joined = new.add("Concat", parts, result.dtype, [axis])
    assert result.shape is not None
    joined.shape = ir.Shape([result.shape[k] for k in _SWAPPED])
    heads = new.add("Transpose", [joined], result.dtype, [ir.AttrInt64s("perm", _SWAPPED)])
    heads.shape = result.shape.copy()
    result.replace_all_uses_with(heads, replace_graph_outputs=True)
    return True


def _stream(value: ir.Value) -> HeadWork | None:
    """The work on heads, if any, after a Transpose that swaps heads and tokens.

    None for other values, and where anything else reads the result of the work.
    """
    node = value.producer()
    if node is not None and _is_swap(node):
        return HeadWork(value, value, ())
    return work_after(value, _is_swap) if is_private(value) else None


def _is_swap(node: ir.Node) -> bool:
    perm: Sequence[int] | None = node.attributes.get_ints("perm")
    return node.op_type == "Transpose" and node.domain == "" and perm is not None and tuple(perm) == _SWAPPED


def _untransposed(new: NewNodes, stream: HeadWork) -> ir.Value:
    """The result of the work with heads and tokens as they are before the Transpose."""
    transpose = stream.source.producer()
    assert transpose is not None and transpose.inputs[0] is not None
    constants = {v: new.held(turned(v, list(_SWAPPED))) for v in stream.constants()}
    return stream.repeated(new, transpose.inputs[0], constants)


RULES = (Pass(lambda model, _: join(model)),)
