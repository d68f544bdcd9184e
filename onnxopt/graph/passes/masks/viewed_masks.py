"""Rewrite rules that add dims of 1 to what a mask is made of, not to the mask, and change no bit of any result.

    Unsqueeze(And(a, b)) -> And(Unsqueeze(a), Unsqueeze(b))                  also Or, Xor, Not; Reshape that adds dims
    Unsqueeze(Where(c, low, 0)) -> Where(Unsqueeze(c), low, 0)               of two constants of one element

An operand that has no dim before the new one broadcasts as it is. So the parts of a mask, each of keys or of positions,
are apart where attention is recognised.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir
from onnxscript.rewriter import MatchContext, MatchResult, RewriteRule, RewriteRuleClassBase

from onnxopt.graph.passes.equal_views import constant_of
from onnxopt.graph.shapes.checked_sizes import is_check
from onnxopt.graph.shapes.value_dims import same

_COMBINED = ("And", "Or", "Xor", "Not")
_VIEWS = ("Unsqueeze", "Reshape")


class ViewedMask(RewriteRuleClassBase):
    """A view that adds dims of 1 to bools that an operator combines, or to a choice between two numbers."""

    def __init__(self, op_type: str) -> None:
        super().__init__(f"ViewedMask{op_type}")
        self._op_type = op_type

    def pattern(self, op, x):  # type: ignore[no-untyped-def]
        return getattr(op, self._op_type)(x, _allow_other_inputs=True, _allow_other_attributes=True, _outputs=["y"])

    def check(self, context: MatchContext, x: ir.Value, y: ir.Value) -> MatchResult:
        axes = _added_axes(x, y)
        return MatchResult().fail(axes) if isinstance(axes, str) else MatchResult()

    def rewrite(self, op, x: ir.Value, y: ir.Value):  # type: ignore[no-untyped-def]
        axes, node = _added_axes(x, y), x.producer()
        assert not isinstance(axes, str) and node is not None and x.shape is not None
        operands = [_viewed(op, value, axes, len(x.shape)) for value in node.inputs if value is not None]
        return getattr(op, node.op_type)(*operands)


def _added_axes(x: ir.Value, y: ir.Value) -> list[int] | str:
    """The axes of y that x has not, all of them dims of 1; or why the view stays."""
    node = x.producer()
    if node is None or node.domain != "" or not _is_mask(node):
        return f"`{x.name}` is no combination of bools, nor a choice between two numbers"
    if is_check(y.producer()):
        return "Reshape checks the sizes of an input"
    if x.shape is None or y.shape is None or any(v is None or v.shape is None for v in node.inputs):
        return "the shape of the mask, or of an operand, is not known"
    if x.is_graph_output() or any(r.op_type not in _VIEWS or not _alike(r.outputs[0], y) for r in x.consumers()):
        return f"`{x.name}` has other readers"
    axes, rest = [], list(x.shape)
    for axis, dim in enumerate(y.shape):
        if rest and same(dim, rest[0]):
            rest.pop(0)
        elif dim == 1:
            axes.append(axis)
        else:
            return "the view does more than add dims of 1"
    return axes if axes and not rest else "the view does more than add dims of 1"


def _is_mask(node: ir.Node) -> bool:
    if node.op_type == "Where":
        return all((tensor := constant_of(value)) is not None and tensor.size == 1 for value in node.inputs[1:])
    return node.op_type in _COMBINED


def _alike(one: ir.Value, other: ir.Value) -> bool:
    if one.shape is None or other.shape is None or len(one.shape) != len(other.shape):
        return False
    return all(same(a, b) for a, b in zip(one.shape, other.shape, strict=True))


def _viewed(op, value: ir.Value, axes: list[int], rank: int):  # type: ignore[no-untyped-def]
    """An operand of a mask of `rank` dims, with those of the new dims that come after one of its own.

    One with as many dims as the mask has gets all of them.
    """
    assert value.shape is not None
    missing = rank - len(value.shape)
    inner = [a for count, a in enumerate(axes) if not missing or a - count > missing]  # `count` new dims come before
    if not inner:
        return value
    skipped = missing + len(axes) - len(inner)
    return op.Unsqueeze(value, op.Constant(value=ir.tensor([a - skipped for a in inner], dtype=ir.DataType.INT64)))


# Each rule with the operator that computes its pattern's result, as those of no_op_rules.py.
RULES: tuple[tuple[str, Callable[[], RewriteRule]], ...] = (
    ("Unsqueeze", lambda: ViewedMask.rule("Unsqueeze")),
    ("Reshape", lambda: ViewedMask.rule("Reshape")),
)
