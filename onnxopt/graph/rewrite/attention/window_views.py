"""Views around attention of images' windows, in which batch and heads, or rows and columns of tokens, are joined.

    part of Reshape(p [3, B, N, S, H], [3, B N, S, H])
        -> Reshape(part of p, [B N, S, H])                  where p is a Transpose: Transpose(part of its operand)
    Reshape(Transpose(Reshape(y [B, N, S, H], [B, N, R, C, H]), [0, 2, 3, 1, 4]), [B, R, C, N H])
        -> Reshape(Transpose(y, [0, 2, 1, 3]), [B, R, C, N H])                  y may have three dims, [B N, S, H]
    Reshape(x [M, S, T], [M, R, C, K, L]) + u + v, reshaped to [M, S, T]
        -> x + Reshape(u + v, [M, S, T])                                        u [M, R, C, K, 1], v [M, R, C, 1, L]

Encoders with positions of rows and columns apart (SAM, ViTDet) compute so. What is left is attention in its usual form
with a bias of the scores. The sum of u and v is rounded first.
"""

from __future__ import annotations

import onnx_ir as ir
from onnxscript.rewriter import MatchContext, MatchResult, RewriteRuleClassBase, pattern

from onnxopt.graph.match import integers, new_integers
from onnxopt.graph.passes.rooted import Rooted
from onnxopt.graph.rewrite.rule_sets import RuleSet
from onnxopt.graph.shapes.value_dims import dims_of, same


class PartOfJoined(RewriteRuleClassBase):
    """One place along the first axis. gathered: taken by Gather, else by Slice or Split, and Squeeze."""

    def __init__(self, gathered: bool) -> None:
        super().__init__("gathered_part" if gathered else "sliced_part")
        self._gathered = gathered

    def pattern(self, op, x, place):  # no deeper: all parts read one Reshape
        return op.Gather(x, place, axis=0, _outputs=["y"]) if self._gathered else op.Squeeze(x, place, _outputs=["y"])

    def check(self, context: MatchContext, x: ir.Value, place: ir.Value, y: ir.Value) -> MatchResult:
        result = MatchResult()
        source = x if self._gathered else _sliced(x)
        p = None if source is None else _input_of("Reshape", source)
        if p is None or source is None or any(v.shape is None for v in (p, source, y)):
            return result.fail("the part is not taken of a Reshape's result")
        five, four = dims_of(p), dims_of(source)
        if (len(five), len(four), len(dims_of(y))) != (5, 4, 3) or not isinstance(five[0], int) or five[0] != four[0]:
            return result.fail("Reshape does not merge two of five dims after the first one")
        if sum(not isinstance(d, int) for d in dims_of(y)) > 1:
            return result.fail("more than one dim of the part is symbolic")
        if self._gathered and (place.const_value is None or place.const_value.numpy().ndim):
            return result.fail("the place is no constant number")
        if not self._gathered and integers(place) != [0]:
            return result.fail("the part is not taken along the first dim")
        return result

    def rewrite(self, op, x: ir.Value, place: ir.Value, y: ir.Value):
        p = _input_of("Reshape", x if self._gathered else _sliced(x))
        turned = _input_of("Transpose", p)
        perm = [0] if turned is None else list(p.producer().attributes.get_ints("perm", (4, 3, 2, 1, 0)))  # type: ignore
        source, axis = p if turned is None else turned, perm[0]
        if self._gathered:
            part = op.Gather(source, place, axis=axis)
        else:
            node = x.producer()
            assert node is not None
            at = node.outputs.index(x)
            bounds = (
                node.inputs[1:3] if node.op_type == "Slice" else (new_integers(op, [at]), new_integers(op, [at + 1]))
            )
            part = op.Squeeze(op.Slice(source, *bounds, new_integers(op, [axis])), new_integers(op, [axis]))
        if turned is not None:
            part = op.Transpose(part, perm=[k - (k > axis) for k in perm[1:]])
        return op.Reshape(part, new_integers(op, [d if isinstance(d, int) else -1 for d in dims_of(y)]))


def _sliced(x: ir.Value) -> ir.Value | None:
    """What a Slice along the first axis reads, without steps, or a Split into parts of one place."""
    node = x.producer()
    if node is not None and node.op_type == "Split" and node.attributes.get_int("axis", 0) == 0:
        ones = all(part.shape is not None and list(part.shape)[:1] == [1] for part in node.outputs)
        return _input_of("Split", x) if ones else None
    if node is None or len(node.inputs) < 4 or integers(node.inputs[3]) != [0]:
        return None
    if len(node.inputs) > 4 and integers(node.inputs[4]) != [1]:
        return None
    return _input_of("Slice", x)


def _input_of(op_type: str, value: ir.Value | None) -> ir.Value | None:
    """The first input of the node that computes a value, where it is of this operator."""
    node = None if value is None else value.producer()
    return node.inputs[0] if node is not None and (node.domain, node.op_type) == ("", op_type) else None


class TokensApart(RewriteRuleClassBase):
    """Heads move behind tokens whose rows and columns were taken apart."""

    def pattern(self, op, x):
        apart = op.Reshape(x, _allow_other_inputs=True, _allow_other_attributes=True, _outputs=["apart"])
        turned = op.Transpose(apart, perm=[0, 2, 3, 1, 4])
        return op.Reshape(turned, _allow_other_inputs=True, _allow_other_attributes=True, _outputs=["y"])

    def check(self, context: MatchContext, x, apart, y):
        result = MatchResult()
        if any(v.shape is None for v in (x, apart, y)) or len(x.shape) not in (3, 4) or len(apart.shape) != 5:
            return result.fail("Reshape does not make five dims of three or four")
        five, dims = dims_of(apart), dims_of(x)
        if not all(isinstance(d, int) for d in (*five[1:], *dims[1:])):
            return result.fail("dims of a window are symbolic")
        if dims[-1] != five[4] or dims[-2] != five[2] * five[3]:
            return result.fail("Reshape does more than to take tokens apart")
        if len(dims) == 4 and (not same(dims[0], five[0]) or dims[1] != five[1]):
            return result.fail("Reshape does more than to take tokens apart")
        if sum(not isinstance(d, int) for d in dims_of(y)) > 1:
            return result.fail("more than one dim of the result is symbolic")
        return result

    def rewrite(self, op, x, apart, y):
        heads = x
        if len(dims_of(x)) == 3:
            four = (*dims_of(apart)[:2], *dims_of(x)[1:])
            heads = op.Reshape(x, new_integers(op, [d if isinstance(d, int) else -1 for d in four]))
        tokens = op.Transpose(heads, perm=[0, 2, 1, 3])
        return op.Reshape(tokens, new_integers(op, [d if isinstance(d, int) else -1 for d in dims_of(y)]))


class BiasOfRowsAndColumns(RewriteRuleClassBase):
    """Scores that are taken apart to add a bias of rows and one of columns."""

    def pattern(self, op, x, u, v):
        apart = op.Reshape(x, _allow_other_inputs=True, _allow_other_attributes=True, _outputs=["apart"])
        once = pattern.OrValue([op.Add(apart, u), op.Add(u, apart)])
        twice = pattern.OrValue([op.Add(once, v), op.Add(v, once)])
        return op.Reshape(twice, _allow_other_inputs=True, _allow_other_attributes=True, _outputs=["y"])

    def check(self, context: MatchContext, x, u, v, apart, y):
        result = MatchResult()
        if any(value.shape is None for value in (x, u, v, apart, y)) or len(apart.shape) != 5:
            return result.fail("the scores are not known to have five dims in between")
        if len(x.shape) != len(y.shape) or not all(map(same, dims_of(x), dims_of(y))):
            return result.fail("the result has another shape than the scores")
        if len(u.shape) != 5 or len(v.shape) != 5:
            return result.fail("a bias is not known to have five dims")
        if not all(same(a, d) or same(b, d) for a, b, d in zip(dims_of(u), dims_of(v), dims_of(apart), strict=True)):
            return result.fail("the sum of both biases is smaller than the scores")
        if sum(not isinstance(d, int) for d in dims_of(y)) > 1:
            return result.fail("more than one dim of the scores is symbolic")
        return result

    def rewrite(self, op, x, u, v, apart, y):
        bias = op.Reshape(op.Add(u, v), new_integers(op, [d if isinstance(d, int) else -1 for d in dims_of(y)]))
        return op.Add(x, bias)


RULES = (
    RuleSet(
        lambda _: [
            Rooted("Gather", PartOfJoined.rule(True)),
            Rooted("Squeeze", PartOfJoined.rule(False)),
            Rooted("Reshape", TokensApart.rule()),
            Rooted("Reshape", BiasOfRowsAndColumns.rule()),
        ]
    ),
)
