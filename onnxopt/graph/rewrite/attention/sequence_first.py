"""Attention of tensors [T, B, C], as torch's MultiheadAttention computes it, takes and gives [B, T, C].

    Transpose(Reshape(L, [T, B N, H]), [1, 0, 2]) -> Reshape(Transpose(Reshape(L', [B, T, N, H]), [0, 2, 1, 3]))
    Transpose(L, [1, 0, 2])                       -> L'
    Reshape(Transpose(y [B N, T, H], [1, 0, 2]))  -> Reshape(Transpose(Reshape(y, [B, N, T, H]), [2, 0, 1, 3]))

L' is L with its first two dims swapped, which is computed in that order from the start:

    L  = Transpose(x, [1, 0, 2])                             L' = x
    L  = MatMul(M, weight) | Add(M, bias)                    L' = the same of M'
    L  = Reshape(Gemm(Reshape(M, [T B, C])), [T, B, D])      L' = Add(MatMul(M', weight), bias)
    L  = Reshape(Transpose(y, [2, 0, 1, 3]), [T, B, C])      L' = Reshape(Transpose(y, [0, 2, 1, 3]), [B, T, C])
    L  = one of the parts of Reshape(M, [T, B, 3, C])        L' = Slice(M')

The heads of queries, keys and values are otherwise copied three times on their way to an attention: a kernel reads them
where they lie in [B, T, C] alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import MatchContext, MatchResult, RewriteRuleClassBase

from onnxopt.graph.match import new_integers
from onnxopt.graph.passes.rooted import Rooted
from onnxopt.graph.rewrite.rule_sets import RuleSet
from onnxopt.graph.shapes.dims import simplest
from onnxopt.graph.shapes.value_dims import dims_of, parsed, same

_Build = Callable[[Any], ir.Value]  # makes a value with its first two dims swapped, of onnxscript's builder
_SWAP = (1, 0, 2)
_BETWEEN = frozenset({"Add", "Reshape", "Unsqueeze", "Transpose", "Squeeze", "Gather", "Slice"})
_DEEPEST = 16  # operators


class SwappedHeads(RewriteRuleClassBase):
    """Heads that are taken apart in [T, B N, H]."""

    def pattern(self, op, x):
        apart = op.Reshape(x, _allow_other_inputs=True, _allow_other_attributes=True, _outputs=["apart"])
        return op.Transpose(apart, _allow_other_attributes=True, _outputs=["y"])

    def check(self, context: MatchContext, x: ir.Value, apart: ir.Value, y: ir.Value) -> MatchResult:
        result = MatchResult()
        if _perm(y.producer()) not in (_SWAP, (1, 2, 0)):
            return result.fail("Transpose does not bring batch and heads to the front")
        if x.shape is None or apart.shape is None or len(x.shape) != 3 or len(apart.shape) != 3:
            return result.fail("Reshape does not make three dims of three")
        (tokens, _, width), (rows, _, size) = dims_of(x), dims_of(apart)
        if not isinstance(width, int) or not isinstance(size, int) or not same(tokens, rows) or width % size:
            return result.fail("Reshape does not take the heads of each token apart")
        return result

    def rewrite(self, op, x: ir.Value, apart: ir.Value, y: ir.Value):
        width, size = dims_of(x)[2], dims_of(apart)[2]
        assert isinstance(width, int) and isinstance(size, int)  # as check found
        build = _swapped(x, 0)
        tokens = build(op) if build is not None else op.Transpose(x, perm=_SWAP)
        heads = op.Reshape(tokens, new_integers(op, [0, 0, width // size, size]))
        by_token = _perm(y.producer()) == _SWAP
        heads = op.Transpose(heads, perm=[0, 2, 1, 3] if by_token else [0, 2, 3, 1])
        length = dims_of(x)[0]
        if isinstance(length, int):
            return op.Reshape(heads, new_integers(op, [-1, length, size] if by_token else [-1, size, length]))
        axis = 2 if by_token else 3
        counted = op.Shape(heads, start=axis, end=axis + 1)
        dims = [counted, new_integers(op, [size])] if by_token else [new_integers(op, [size]), counted]
        return op.Reshape(heads, op.Concat(new_integers(op, [-1]), *dims, axis=0))


class SwappedTokens(RewriteRuleClassBase):
    """Tokens that are brought back to [B, T, C]."""

    def pattern(self, op, x):
        return op.Transpose(x, perm=list(_SWAP))

    def check(self, context: MatchContext, x: ir.Value) -> MatchResult:
        if x.shape is None or len(x.shape) != 3 or _swapped(x, 0) is None:
            return MatchResult().fail(f"`{x.name}` is not known to come from tokens in the other order")
        return MatchResult()

    def rewrite(self, op, x: ir.Value):
        build = _swapped(x, 0)
        assert build is not None  # as check found
        return build(op)


class HeadsJoinedByToken(RewriteRuleClassBase):
    """Heads [B N, T, H] that are joined in [T, B, C], and stay in this order."""

    def pattern(self, op, x, shape):
        turned = op.Transpose(x, perm=list(_SWAP))
        return op.Reshape(turned, shape, _allow_other_attributes=True, _outputs=["y"])

    def check(self, context: MatchContext, x: ir.Value, shape: ir.Value, y: ir.Value) -> MatchResult:
        result = MatchResult()
        product = x.producer()
        if product is None or product.op_type != "MatMul" or x.shape is None or len(x.shape) != 3:
            return result.fail("the heads are no product in three dims")
        size, width = dims_of(x)[2], None if y.shape is None else y.shape[-1]
        if not isinstance(size, int) or not isinstance(width, int) or width % size or width == size:
            return result.fail("Reshape does not join the heads of each token")
        if not _divides(width // size, dims_of(x)[0]):
            return result.fail("the heads are not known to be a multiple of those that Reshape merges")
        if shape.const_value is not None and 0 in shape.const_value.numpy():
            return result.fail("Reshape copies a dim")
        return result

    def rewrite(self, op, x: ir.Value, shape: ir.Value, y: ir.Value):
        size, width = dims_of(x)[2], dims_of(y)[-1]
        assert isinstance(size, int) and isinstance(width, int)  # as check found
        heads = _unpacked(x, width // size, size)(op)
        return op.Reshape(op.Transpose(heads, perm=[2, 0, 1, 3]), shape)


def _divides(count: int, dim: int | ir.SymbolicDim) -> bool:
    """Whether a dim is known to be a multiple of a number."""
    whole = simplest(parsed(dim))
    terms = [whole] if isinstance(whole, int) else whole.as_coefficients_dict().values()
    return all(term % count == 0 for term in terms)


def _swapped(value: ir.Value, depth: int) -> _Build | None:
    """How [T, B, C] is made as [B, T, C] without a Transpose of its own; None where it is not."""
    node = value.producer()
    if node is None or node.domain != "" or depth > _DEEPEST or value.shape is None or len(value.shape) != 3:
        return None
    source = node.inputs[0] if node.inputs else None
    if source is None:
        return None
    if node.op_type == "Transpose":
        return (lambda op: source) if _perm(node) == _SWAP else None
    if node.op_type in ("MatMul", "Add"):
        return _before_product(node, depth)
    if node.op_type == "Reshape":
        return _before_heads(source, value) or _before_gemm(source, value, depth)
    if node.op_type in ("Gather", "Squeeze"):
        return _before_part(node, value, depth)
    return None


def _before_product(node: ir.Node, depth: int) -> _Build | None:
    """A product of rows by one matrix, or a sum of rows with one vector."""
    rank = 2 if node.op_type == "MatMul" else 1
    operands = list(node.inputs)
    if rank == 1 and operands[0] is not None and operands[0].shape is not None and len(operands[0].shape) == 1:
        operands.reverse()
    rows, other = operands
    if rows is None or other is None or other.shape is None or len(other.shape) != rank:
        return None
    build = _swapped(rows, depth + 1) if rank == 1 or _is_read_swapped(node.outputs[0]) else None
    return None if build is None else lambda op: getattr(op, node.op_type)(build(op), other)


def _is_read_swapped(value: ir.Value, depth: int = 0) -> bool:
    """Whether all readers of a product, through views and a bias, swap its first two dims.

    Else it would be computed twice.
    """
    if value.is_graph_output() or depth > _DEEPEST:
        return False
    for reader in value.consumers():
        if reader.domain != "" or reader.op_type not in _BETWEEN:
            return False
        result = reader.outputs[0]
        ends = _perm(reader) in (_SWAP, (1, 2, 0)) and result.shape is not None and len(result.shape) == 3
        if not ends and not _is_read_swapped(result, depth + 1):
            return False
    return True


def _before_heads(source: ir.Value, value: ir.Value) -> _Build | None:
    """Heads [B, N, T, H], or [B N, T, H], that were turned to [T, B, N, H] and joined."""
    node, width = source.producer(), dims_of(value)[2]
    if node is None or node.op_type != "Transpose" or node.domain != "" or not isinstance(width, int):
        return None
    heads = node.inputs[0]
    if heads is None or heads.shape is None or source.shape is None:
        return None
    if not same(dims_of(source)[0], dims_of(value)[0]):
        return None
    if len(heads.shape) == 4 and _perm(node) == (2, 0, 1, 3) and same(dims_of(heads)[0], dims_of(value)[1]):
        by_head: _Build = lambda op: heads  # noqa: E731
    elif len(heads.shape) == 3 and _perm(node) == _SWAP:
        size = dims_of(heads)[2]
        if not isinstance(size, int) or width % size:
            return None
        by_head = _unpacked(heads, width // size, size)
    else:
        return None
    return lambda op: op.Reshape(op.Transpose(by_head(op), perm=[0, 2, 1, 3]), new_integers(op, [0, 0, width]))


def _unpacked(heads: ir.Value, count: int, size: int) -> _Build:
    """[B N, T, H] as [B, N, T, H]."""
    length = dims_of(heads)[1]
    if isinstance(length, int):
        return lambda op: op.Reshape(heads, new_integers(op, [-1, count, length, size]))

    def build(op: Any) -> ir.Value:
        counted = op.Shape(heads, start=1, end=2)
        return op.Reshape(heads, op.Concat(new_integers(op, [-1, count]), counted, new_integers(op, [size]), axis=0))

    return build


def _before_gemm(source: ir.Value, value: ir.Value, depth: int) -> _Build | None:
    """Gemm of the rows of [T, B, C], which its result is given back."""
    node = source.producer()
    if node is None or node.op_type != "Gemm" or node.domain != "" or len(node.inputs) < 2:
        return None
    plain = {"transA": 0, "alpha": 1.0, "beta": 1.0}
    if any(name in node.attributes and node.attributes[name].value != number for name, number in plain.items()):
        return None
    rows, weight, bias = (*node.inputs, None)[:3]
    flattened = None if rows is None else rows.producer()
    if flattened is None or flattened.op_type != "Reshape" or weight is None or not _is_read_swapped(source):
        return None
    if bias is not None and (bias.shape is None or len(bias.shape) != 1):
        return None
    if rows.shape is None or len(rows.shape) != 2 or not same(dims_of(source)[-1], dims_of(value)[2]):  # type: ignore[union-attr]
        return None
    build = _before_rows(flattened, value, depth)
    if build is None:
        return None
    by_rows = bool(node.attributes.get_int("transB", 0))

    def product(op: Any) -> ir.Value:
        result = op.MatMul(build(op), op.Transpose(weight, perm=[1, 0]) if by_rows else weight)
        return result if bias is None else op.Add(result, bias)

    return product


def _before_rows(node: ir.Node, value: ir.Value, depth: int) -> _Build | None:
    """The operand [T B, C] of a Gemm as [B, T, C], where `value` [T, B, D] tells T and B."""
    rows, of = node.outputs[0], node.inputs[0]
    if of is None or of.shape is None or len(of.shape) not in (3, 4):
        return None
    width = dims_of(rows)[1]
    if not isinstance(width, int) or not same(dims_of(of)[0], dims_of(value)[0]):
        return None
    if len(of.shape) == 3 and same(dims_of(of)[2], width):
        return _swapped(of, depth + 1) if same(dims_of(of)[1], dims_of(value)[1]) else None
    like = ir.Value(name="like", shape=ir.Shape([*dims_of(value)[:2], width]), type=value.type)
    return _before_heads(of, like)


def _before_part(node: ir.Node, value: ir.Value, depth: int) -> _Build | None:
    """One of several parts of each token, which were brought to the front: [T, B, P C] -> [P, T, B, C] -> [T, B, C]."""
    place = _position(node)
    if place is None:
        return None
    parts, position = place
    squeezed = parts.producer()
    if squeezed is None or squeezed.op_type != "Squeeze" or _constant(squeezed, 1) not in ([-2], [3]):
        return None
    turned = squeezed.inputs[0].producer() if squeezed.inputs[0] is not None else None
    if turned is None or turned.op_type != "Transpose" or _perm(turned) != (3, 1, 2, 0, 4):
        return None
    wider = turned.inputs[0].producer() if turned.inputs[0] is not None else None
    if wider is None or wider.op_type != "Unsqueeze" or _constant(wider, 1) not in ([0], [-5]):
        return None
    apart = wider.inputs[0].producer() if wider.inputs[0] is not None else None
    if apart is None or apart.op_type != "Reshape" or apart.domain != "" or apart.inputs[0] is None:
        return None
    tokens, width, of = apart.inputs[0], dims_of(value)[2], apart.outputs[0]
    if of.shape is None or len(of.shape) != 4 or tokens.shape is None or len(tokens.shape) != 3:
        return None
    if not isinstance(width, int) or not all(map(same, dims_of(of)[:2], dims_of(tokens)[:2])):
        return None
    build = _swapped(tokens, depth + 1)
    if build is None:
        return None
    bounds = [position * width, (position + 1) * width, 2]
    return lambda op: op.Slice(build(op), *(new_integers(op, [n]) for n in bounds))


def _position(node: ir.Node) -> tuple[ir.Value, int] | None:
    """The tensor along whose first axis a node takes one place, and which: Gather, or Squeeze of a Slice."""
    if node.op_type == "Gather" and node.inputs[1] is not None and node.attributes.get_int("axis", 0) == 0:
        index = node.inputs[1].const_value
        if node.inputs[0] is None or index is None or index.numpy().ndim or int(index.numpy()) < 0:
            return None
        return node.inputs[0], int(index.numpy())
    slice_node = node.inputs[0].producer() if node.op_type == "Squeeze" and node.inputs[0] is not None else None
    if slice_node is None or slice_node.op_type != "Slice" or _constant(node, 1) != [0] or slice_node.inputs[0] is None:
        return None
    starts, ends, axes = (_constant(slice_node, k) for k in (1, 2, 3))
    steps = _constant(slice_node, 4) if len(slice_node.inputs) > 4 else [1]
    if axes != [0] or steps != [1] or not starts or not ends or starts[0] < 0 or ends[0] != starts[0] + 1:
        return None
    return slice_node.inputs[0], starts[0]


def _constant(node: ir.Node, position: int) -> list[int] | None:
    value = node.inputs[position] if len(node.inputs) > position else None
    return None if value is None or value.const_value is None else np.ravel(value.const_value.numpy()).tolist()


def _perm(node: ir.Node | None) -> tuple[int, ...]:
    return () if node is None else tuple(node.attributes.get_ints("perm", ()))  # type: ignore[arg-type]


RULES = (
    RuleSet(lambda _: [Rooted("Transpose", SwappedHeads.rule())]),
    RuleSet(lambda _: [Rooted("Transpose", SwappedTokens.rule())]),
    RuleSet(lambda _: [Rooted("Reshape", HeadsJoinedByToken.rule())]),
)
