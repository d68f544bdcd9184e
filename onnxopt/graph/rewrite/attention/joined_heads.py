"""Attention in three dims, with batch and heads joined to one, computes in four.

    Reshape(f(Reshape(a, [B N, S, T]), ...), [B, N, S, V]) -> f(a, ...)

f: MatMul or Softmax along the last dim, at least once; Transpose of the last dims, Cast, Add, Sub, Mul, Div. torch.bmm
and baddbmm multiply three dims, so models reshape queries, keys and values for them, add a bias of [B N, 1, T] there,
or reshape the scores for a mask in between. What comes out is attention's usual form.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir
from onnxscript.rewriter import MatchContext, MatchResult, RewriteRuleClassBase

from onnxopt.graph.passes.rooted import Rooted
from onnxopt.graph.rewrite.rule_sets import RuleSet
from onnxopt.graph.shapes.value_dims import dims_of, same

_ELEMENTWISE = frozenset({"Add", "Sub", "Mul", "Div", "Cast"})
_DEEPEST = 12  # operators between two Reshapes
_Build = Callable[[Any], ir.Value]  # makes a value in four dims, of onnxscript's builder


class JoinedHeads(RewriteRuleClassBase):
    """The rule above."""

    def pattern(self, op, x, shape):
        return op.Reshape(x, shape, _allow_other_attributes=True, _outputs=["y"])

    def check(self, context: MatchContext, x: ir.Value, y: ir.Value, **_: ir.Value) -> MatchResult:
        heads = _heads_of(x, y)
        return MatchResult().fail(heads) if isinstance(heads, str) else MatchResult()

    def rewrite(self, op, x: ir.Value, y: ir.Value, **_: ir.Value):
        heads = _heads_of(x, y)
        assert not isinstance(heads, str)
        return heads(op)


def _heads_of(x: ir.Value, y: ir.Value) -> _Build | str:
    """How y is made in four dims, or why it is not."""
    if x.shape is None or y.shape is None or len(x.shape) != 3 or len(y.shape) != 4:
        return "Reshape does not make four dims of three"
    if not (same(x.shape[1], y.shape[2]) and same(x.shape[2], y.shape[3])):
        return "Reshape does more than to take batch and heads apart"
    apart = _Apart(x, y)
    build = apart.of(x, 0)
    if isinstance(build, str):
        return build
    return build if apart.costly else "neither MatMul nor Softmax computes three dims"


class _Apart:
    """Takes a dim apart into two, here and in the values that it comes from."""

    def __init__(self, x: ir.Value, y: ir.Value) -> None:
        self._whole, (self._batch, self._heads, *_) = dims_of(x), dims_of(y)
        self._merged = self._whole[0]
        self._target = _input(y, 1)
        self.costly = 0  # products and Softmaxes

    def of(self, value: ir.Value, depth: int) -> _Build | str:
        """How a value of three dims, the first of which is to be taken apart, is made in four; or why it is not."""
        node = value.producer()
        if value.shape is None or len(value.shape) != 3 or not same(value.shape[0], self._merged):
            return f"`{value.name}` is not known to have three dims with batch and heads first"
        if node is None or node.domain != "" or depth > _DEEPEST:
            return f"`{value.name}` comes from no Reshape"
        if node.op_type == "Reshape":
            return self._before(node, value)
        costly = self.costly
        build = self._operator(node, depth)
        if self.costly > costly and (len(value.uses()) != 1 or value.is_graph_output()):
            return f"`{value.name}` has other readers, for which it would be computed twice"
        return build

    def _operator(self, node: ir.Node, depth: int) -> _Build | str:
        if node.op_type == "Transpose":
            if tuple(node.attributes.get_ints("perm", (2, 1, 0))) != (0, 2, 1):
                return f"Transpose `{node.name}` moves batch and heads"
            return self._with(node, depth, perm=[0, 1, 3, 2])
        if node.op_type == "MatMul":
            self.costly += 1
            return self._with(node, depth)
        if node.op_type == "Softmax":
            self.costly += 1
            last = node.attributes.get_int("axis", -1) in (-1, 2)
            return self._with(node, depth, axis=-1) if last else f"Softmax `{node.name}` is not along the last dim"
        if node.op_type in _ELEMENTWISE:
            return self._with(node, depth, **{name: attribute.value for name, attribute in node.attributes.items()})
        return f"{node.op_type} `{node.name}` is between the Reshapes"

    def _before(self, node: ir.Node, value: ir.Value) -> _Build | str:
        """What a Reshape joined: (B, N, S, T), (B, N, T) where S is 1, or (B, M, N / M, S, T) of repeated heads."""
        source = node.inputs[0]
        if source is None or source.shape is None or len(source.shape) not in (3, 4, 5):
            return f"Reshape `{node.name}` merges something else than batch and heads"
        dims, merged = source.shape, dims_of(value)
        if len(dims) == 5:
            return self._group_dims(source, merged) or f"Reshape `{node.name}` merges more than batch, groups and heads"
        apart = same(dims[0], self._batch) and same(dims[1], self._heads)
        if not apart or not all(
            same(a, b) for a, b in zip(dims[2:], merged[len(merged) - len(dims) + 2 :], strict=True)
        ):
            return f"Reshape `{node.name}` merges something else than batch and heads"
        if len(dims) == 4:
            return lambda op: source
        if merged[1] != 1:
            return f"Reshape `{node.name}` merges something else than batch and heads"
        return lambda op: op.Unsqueeze(source, op.Constant(value=ir.tensor([2], dtype=ir.DataType.INT64)))

    def _group_dims(self, source: ir.Value, merged: tuple[int | ir.SymbolicDim, ...]) -> _Build | None:
        batch, groups, times, length, size = dims_of(source)
        if not isinstance(groups, int) or not isinstance(times, int) or groups * times != self._heads:
            return None
        if (
            not same(batch, self._batch)
            or not same(length, merged[1])
            or size != merged[2]
            or not isinstance(size, int)
        ):
            return None
        shape = ir.tensor([0, groups * times, -1, size], dtype=ir.DataType.INT64)
        return lambda op: op.Reshape(source, op.Constant(value=shape))

    def _with(self, node: ir.Node, depth: int, **attributes: Any) -> _Build | str:
        """The same operator of operands in four dims."""
        operands: list[_Build] = []
        for operand in node.inputs:
            assert operand is not None  # none of these operators has optional inputs
            broadcast = node.op_type != "MatMul" and _has_no_merged_dim(operand)
            costly = self.costly
            value = _as_it_is(operand) if broadcast else self.of(operand, depth + 1)
            if isinstance(value, str) and node.op_type in _ELEMENTWISE:
                reshaped = self._reshaped(operand)
                value, self.costly = (value, self.costly) if reshaped is None else (reshaped, costly)
            if isinstance(value, str):
                return value
            operands.append(value)
        return lambda op: getattr(op, node.op_type)(*(build(op) for build in operands), **attributes)

    def _reshaped(self, value: ir.Value) -> _Build | None:
        """A bias that was gathered, or made in more dims, is reshaped: where it has the dims of the Reshape's operand
        like that, else where the number of heads and its own last dims are numbers."""
        if value.shape is None or len(value.shape) != 3 or not same(value.shape[0], self._merged):
            return None
        if all(map(same, value.shape, self._whole)):
            return lambda op: op.Reshape(value, self._target)
        dims = [self._heads, *dims_of(value)[1:]]
        static = [dim for dim in dims if isinstance(dim, int)]
        if len(static) != len(dims):
            return None
        return lambda op: op.Reshape(value, op.Constant(value=ir.tensor([-1, *static], dtype=ir.DataType.INT64)))


def _input(value: ir.Value, position: int) -> ir.Value:
    node = value.producer()
    operand = None if node is None else node.inputs[position]
    assert operand is not None
    return operand


def _as_it_is(value: ir.Value) -> _Build:
    return lambda op: value


def _has_no_merged_dim(value: ir.Value) -> bool:
    """Whether a value broadcasts to scores in four dims as it does to those in three."""
    return value.shape is not None and (len(value.shape) < 3 or (len(value.shape) == 3 and value.shape[0] == 1))


RULES = (RuleSet(lambda _: [Rooted("Reshape", JoinedHeads.rule())]),)
