"""Rotary embedding of neighbouring elements of a head, as rotation of pairs by tables with each angle once.

    Add(Mul(x, twice(cos)), Mul(Reshape(Concat(Unsqueeze(Neg(x[..., 1::2])), Unsqueeze(x[..., ::2]))), twice(sin)))
        -> Reshape(Add(Mul(p, cos), Mul(Concat(Neg(p[..., 1:]), p[..., :1]), sin)), [0, 0, 0, H])
           p = Reshape(x, [0, 0, 0, H / 2, 2])

GPT-J, CodeGen, Cohere and RoFormer write it so, and repeat each angle for the two elements of a pair: by Expand, or by
Concat of a tensor with itself, in front of cos and sin or behind. Tables [..., H / 2, 1] broadcast along a pair, so
that nothing repeats them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import MatchContext, MatchResult, RewriteRuleClassBase

from onnxopt.graph.match import is_constant, new_integers
from onnxopt.graph.passes.rooted import Rooted
from onnxopt.graph.rewrite.attention.attention_operands import scalar
from onnxopt.graph.rewrite.rule_sets import RuleSet
from onnxopt.graph.shapes.value_dims import dims_of, same

_RANK = 4
_STEP = 4  # position among the inputs of Slice
_UNARY = frozenset({"Cast", "Cos", "Sin", "Neg", "Identity"})
_FACTORS = frozenset({"Mul", "Div"})
_Table = Callable[[Any], ir.Value]  # makes a table [..., H / 2, 1], of onnxscript's builder


class RotatePairs(RewriteRuleClassBase):
    """The rule above."""

    def __init__(self) -> None:
        super().__init__()
        self._tables = _Tables()

    def pattern(self, op, x, cos, sin):
        odd = op.Neg(op.Slice(x, _allow_other_inputs=True, _outputs=["odd"]))
        even = op.Slice(x, _allow_other_inputs=True, _outputs=["even"])
        parts = (op.Unsqueeze(part, _allow_other_inputs=True) for part in (odd, even))
        stack = op.Concat(*parts, axis=-1, _outputs=["stack"])
        turned = op.Reshape(stack, _allow_other_inputs=True, _allow_other_attributes=True, _outputs=["turned"])
        return op.Add(op.Mul(x, cos), op.Mul(turned, sin))

    def check(self, context: MatchContext, x, cos, sin, odd, even, stack, turned, **_) -> MatchResult:
        result = MatchResult()
        if any(v.shape is None for v in (x, cos, sin, stack, turned)) or len(x.shape) != _RANK:
            return result.fail(f"`{x.name}` is not known to have four dims")
        size = x.shape[3]
        if not isinstance(size, int) or size % 2:
            return result.fail("the number of elements of a head is not known to be even")
        if not _is_every_second(odd, 1) or not _is_every_second(even, 0):
            return result.fail("Slice does not take every second element of a head")
        pairs = [*dims_of(x)[:3], size // 2, 2]
        if len(stack.shape) != _RANK + 1 or not all(map(same, stack.shape, pairs)):
            return result.fail("Concat does not put the elements of a pair side by side")
        if len(turned.shape) != _RANK or not all(map(same, turned.shape, x.shape)):
            return result.fail("Reshape does not put the pairs one after the other")
        for table in (cos, sin):
            if len(table.shape) > _RANK or table.shape[-1] != size or self._tables.of(table) is None:
                return result.fail(f"the table `{table.name}` is not known to have each angle twice, side by side")
        return result

    def rewrite(self, op, x, cos, sin, **_):
        size = x.shape[3]
        pairs = op.Reshape(x, new_integers(op, [0, 0, 0, size // 2, 2]))
        first = op.Slice(pairs, new_integers(op, [0]), new_integers(op, [1]), new_integers(op, [_RANK]))
        second = op.Slice(pairs, new_integers(op, [1]), new_integers(op, [2]), new_integers(op, [_RANK]))
        cos_table, sin_table = (self._tables.of(table) for table in (cos, sin))
        assert cos_table is not None and sin_table is not None
        turned = op.Concat(op.Neg(second), first, axis=-1)
        rotated = op.Add(op.Mul(pairs, cos_table(op)), op.Mul(turned, sin_table(op)))
        return op.Reshape(rotated, new_integers(op, [0, 0, 0, size]))


def _is_every_second(part: ir.Value, start: int) -> bool:
    """Whether a Slice takes every second element of the last axis from `start` on."""
    node = part.producer()
    bounds = [_numbers(v) for v in node.inputs[1:]] if node is not None else []
    if len(bounds) != len(("start", "end", "axis", "step")) or part.shape is None or bounds[0] != [start]:
        return False
    source = None if node is None or node.inputs[0] is None else node.inputs[0].shape
    size = source[-1] if source is not None else None
    return (
        bounds[2] in ([-1], [_RANK - 1]) and bounds[3] == [2] and isinstance(size, int) and part.shape[-1] == size // 2
    )


class _Tables:
    """Tables with each angle once. Those that are constants are made once, for all that read them."""

    def __init__(self) -> None:
        self._constants: dict[ir.Value, ir.Value] = {}

    def of(self, table: ir.Value) -> _Table | None:
        """How [..., H / 2, 1] is made of a table of each angle twice, [..., H]; None where it is no such table."""
        if is_constant(table):
            return self._constant_table(table)
        node = table.producer()
        source = None if node is None or node.domain != "" else node.inputs[0]
        if node is None or source is None or table.shape is None:
            return None
        if node.op_type == "Reshape":
            return self._repeated(source, table)
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        if node.op_type == "Unsqueeze":
            axes = _numbers(node.inputs[1])
            computable = axes is not None and all(0 <= axis < len(table.shape) - 1 for axis in axes)
        else:
            computable = node.op_type in _UNARY or (node.op_type in _FACTORS and scalar(node.inputs[1]) is not None)
        inner = self.of(source) if computable else None
        return inner and (lambda op: getattr(op, node.op_type)(inner(op), *node.inputs[1:], **attributes))

    def _constant_table(self, table: ir.Value) -> _Table | None:
        assert table.const_value is not None
        array = table.const_value.numpy()
        if array.ndim == 0 or array.shape[-1] % 2 or not np.array_equal(array[..., ::2], array[..., 1::2]):
            return None
        return self._held(table, lambda: array[..., ::2, None])

    def _held(self, key: ir.Value, compute: Callable[[], np.ndarray]) -> _Table:
        def build(op) -> ir.Value:
            if key not in self._constants:
                tensor = ir.Tensor(np.ascontiguousarray(compute()), dtype=key.dtype, name=f"{key.name}/once")
                self._constants[key] = op.initializer(tensor)
            return self._constants[key]

        return build

    def _repeated(self, stack: ir.Value, table: ir.Value) -> _Table | None:
        """What Expand or Concat repeats, where a Reshape of `stack` [..., H / 2, 2] makes the table."""
        node = stack.producer()
        if node is None or node.domain != "" or stack.shape is None or table.shape is None or len(stack.shape) < 2:
            return None
        source, dims, size = node.inputs[0], list(stack.shape), table.shape[-1]
        if source is None or source.shape is None or not isinstance(size, int) or dims[-2:] != [size // 2, 2]:
            return None
        if len(dims) != len(table.shape) + 1 or not all(map(same, dims[:-2], table.shape[:-1])):
            return None
        if len(source.shape) != len(dims) or not all(map(same, source.shape, [*dims[:-1], 1])):
            return None
        last = node.attributes.get_int("axis", 0) in (-1, len(dims) - 1)
        joins = node.op_type == "Concat" and last and list(node.inputs) == [source, source]
        return self._slice(source) if joins or node.op_type == "Expand" else None

    def _slice(self, value: ir.Value) -> _Table:
        """How a value is made by a Slice where it is a part of a Split, so that kernels read it where it lies."""
        node = value.producer()
        source = None if node is None or node.domain != "" else node.inputs[0]
        if node is None or source is None:
            return lambda op: value
        if node.op_type == "Unsqueeze":
            inner = self._slice(source)
            return lambda op: op.Unsqueeze(inner(op), node.inputs[1])
        axis = node.attributes.get_int("axis", 0) or 0
        preceding = node.outputs[: node.outputs.index(value) + 1]
        sizes = [size for part in preceding if part.shape is not None and isinstance(size := part.shape[axis], int)]
        if node.op_type != "Split" or len(sizes) != len(preceding):
            return lambda op: value
        begin, end = sum(sizes[:-1]), sum(sizes)
        tensor = source.const_value
        if is_constant(source) and tensor is not None:
            return self._held(value, lambda: tensor.numpy().take(range(begin, end), axis))
        return lambda op: op.Slice(source, *(new_integers(op, [n]) for n in (begin, end, axis)))


def _numbers(value: ir.Value | None) -> list[int] | None:
    tensor = None if value is None or not is_constant(value) else value.const_value
    return None if tensor is None else [int(n) for n in tensor.numpy().ravel()]


def _either_order() -> list[Rooted]:
    """The rule for both orders of each operand pair of Add and Mul."""
    rule = RotatePairs.rule()
    return [Rooted("Add", variant) for variant in (rule, *rule.commute())]


def may_apply(graph: ir.Graph) -> bool:
    """Whether a graph takes every second element of something."""
    slices = (node for node in graph if (node.domain, node.op_type) == ("", "Slice") and len(node.inputs) > _STEP)
    return any(_numbers(node.inputs[_STEP]) == [2] for node in slices)


RULES = (RuleSet(lambda _: _either_order(), counted=False),)
