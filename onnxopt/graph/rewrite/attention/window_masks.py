"""Masks of attention in windows, added by way of a fifth dim, as masks of the scores themselves.

    Reshape(Add(Reshape(scores + bias, [B / W, W, N, S, T]), mask [1, W, 1, S, T]), [B, N, S, T])
        -> Add(scores, Tile(bias + mask, [B / W, 1, 1, 1]))                  of constants
        -> Add(scores, Tile(bias + mask [W, 1, S, T], [B / W, 1, 1, 1]))     of a mask that is computed

A second mask of this shape may be added to the first (Swin v2 adds its mask twice). A shifted window hides keys of
other windows from its queries by a mask of its own, and all windows of an image have one table of relative positions.
Both are constants, but for the mask of images of dynamic size. Where B is symbolic, B / W is read off an input, and
later off the attention's queries, so that a kernel that runs the attention can take the Tile in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import MatchContext, MatchResult, RewriteRuleClassBase, pattern

from onnxopt.graph.match import is_constant
from onnxopt.graph.passes.rooted import Rooted
from onnxopt.graph.rewrite.rule_sets import Pass, RuleSet
from onnxopt.graph.rewrite.weights import array_of, rounded
from onnxopt.graph.shapes.contrib_schemas import CONTRIB
from onnxopt.graph.shapes.dims import product, simplest
from onnxopt.graph.shapes.infer import Knowledge
from onnxopt.graph.shapes.value_dims import dims_of, parsed, same

_MAX_BYTES = 64 << 20
_MASK = 5  # position among the inputs of MultiHeadAttention
_ONES = [1, 1, 1]


class WindowMask(RewriteRuleClassBase):
    """inputs: of the graph, off which a symbolic number of images can be read."""

    def __init__(self, inputs: Sequence[ir.Value]) -> None:
        super().__init__()
        self._inputs = inputs

    def pattern(self, op, scores, bias, mask, more):
        biased = pattern.OrValue(
            [op.Add(scores, bias), op.Add(bias, scores), scores], tag_var="form", tag_values=["bias", "bias", "none"]
        )
        apart = op.Reshape(biased, _allow_other_inputs=True, _allow_other_attributes=True, _outputs=["apart"])
        once = [op.Add(apart, mask), op.Add(mask, apart)]
        twice = [total for added in once for total in (op.Add(added, more), op.Add(more, added))]
        masked = pattern.OrValue([*twice, *once], tag_var="masks", tag_values=["two"] * 4 + ["one"] * 2)
        return op.Reshape(masked, _allow_other_inputs=True, _allow_other_attributes=True, _outputs=["y"])

    def check(self, context: MatchContext, scores, mask, apart, y, form, masks, bias=None, more=None):
        result = MatchResult()
        added = [mask, *([more] if masks == "two" else []), *([bias] if form == "bias" else [])]
        if not all(map(is_constant, added)):
            return result.fail("the mask, or the bias, is no constant")
        if any(v.shape is None for v in (scores, apart, y)) or len(scores.shape) != 4 or len(apart.shape) != 5:
            return result.fail("the scores are not known to have four dims, and five in between")
        dims, five, mask_dims = dims_of(scores), dims_of(apart), mask.const_value.shape.numpy()
        if len(y.shape) != 4 or not all(same(a, b) for a, b in zip(dims, dims_of(y), strict=True)):
            return result.fail("the result has another shape than the scores")
        if masks == "two" and more.const_value.shape.numpy() != mask_dims:
            return result.fail("the two masks differ in shape")
        if len(mask_dims) != 5 or mask_dims[0] != 1 or not all(isinstance(d, int) for d in five[1:]):
            return result.fail("the mask does not repeat along the batch, or dims of a window are symbolic")
        windows = simplest(parsed(five[0]) * five[1]) == simplest(parsed(dims[0]))
        if not windows or tuple(five[2:]) != tuple(dims[1:]) or mask_dims[1] != five[1]:
            return result.fail("the fifth dim does not number the windows of an image")
        if not isinstance(five[0], int) and self._place(five[0]) is None:
            return result.fail("the number of images is no dim of an input")
        if math.prod(d for d in five[1:] if isinstance(d, int)) * y.dtype.itemsize > _MAX_BYTES:
            return result.fail("the masks of all windows would be too large")
        return result

    def rewrite(self, op, scores, mask, apart, y, form, masks, bias=None, more=None):
        images = dims_of(apart)[0]
        five = [d for d in dims_of(apart)[1:] if isinstance(d, int)]  # all of them are
        whole = array_of(mask)[0] + (array_of(more)[0] if masks == "two" else 0.0)
        if form == "bias":
            whole = whole + array_of(bias)
        whole = np.broadcast_to(whole, (five[0], *whole.shape[1:-2], *five[2:]))
        name = f"{mask.name}/windows"
        window_bias = op.initializer(rounded(whole, y.dtype, name), name=name)
        if isinstance(images, int):
            repeats = op.Constant(value=ir.tensor([images, 1, 1, 1], dtype=ir.DataType.INT64))
        else:
            place = self._place(images)
            assert place is not None
            value, axis = place
            ones = op.Constant(value=ir.tensor(_ONES, dtype=ir.DataType.INT64))
            repeats = op.Concat(op.Shape(value, start=axis, end=axis + 1), ones, axis=0)
        return op.Add(scores, op.Tile(window_bias, repeats))

    def _place(self, dim: ir.SymbolicDim) -> tuple[ir.Value, int] | None:
        return _place(self._inputs, dim)


class ComputedMask(RewriteRuleClassBase):
    """A mask that is computed, of a number of windows that may be symbolic. inferred: dims of the graph's values."""

    def __init__(self, inputs: Sequence[ir.Value], inferred: Knowledge) -> None:
        super().__init__()
        self._inputs, self._inferred = inputs, inferred

    def pattern(self, op, scores, mask, bias):
        biased = pattern.OrValue(
            [op.Add(scores, bias), op.Add(bias, scores), scores], tag_var="form", tag_values=["bias", "bias", "none"]
        )
        apart = op.Reshape(biased, _allow_other_inputs=True, _allow_other_attributes=True, _outputs=["apart"])
        masked = pattern.OrValue([op.Add(apart, mask), op.Add(mask, apart)])
        return op.Reshape(masked, _allow_other_inputs=True, _allow_other_attributes=True, _outputs=["y"])

    def check(self, context: MatchContext, scores, mask, apart, y, form, bias=None):
        result = MatchResult()
        if is_constant(mask):
            return result.fail("the mask is a constant")
        if form == "bias" and not is_constant(bias):
            return result.fail("the bias is no constant")
        dims, five, mask_dims, after = map(self._inferred.dims, (scores, apart, mask, y))
        if dims is None or five is None or mask_dims is None or (len(dims), len(five), len(mask_dims)) != (4, 5, 5):
            return result.fail("the scores are not known to have four dims, and five in between")
        if after != dims:
            return result.fail("the result has another shape than the scores")
        if mask_dims[0] != 1 or mask_dims[1] != five[1] or not all(isinstance(d, int) for d in mask_dims[2:]):
            return result.fail("the mask does not repeat along the batch, or dims of a window are symbolic")
        if product(five[:2]) != dims[0] or five[2:] != dims[1:]:
            return result.fail("the fifth dim does not number the windows of an image")
        images = dims_of(apart)[0]
        if not isinstance(images, int) and _place(self._inputs, images) is None:
            return result.fail("the number of images is no dim of an input")
        return result

    def rewrite(self, op, scores, mask, apart, form, bias=None, **_):
        images, window = dims_of(apart)[0], [d for d in dims_of(mask)[2:] if isinstance(d, int)]  # all of them are
        ones = op.Constant(value=ir.tensor(_ONES, dtype=ir.DataType.INT64))
        if isinstance(images, int):
            count = op.Constant(value=ir.tensor([images], dtype=ir.DataType.INT64))
        else:
            place = _place(self._inputs, images)
            assert place is not None
            count = op.Shape(place[0], start=place[1], end=place[1] + 1)
        masks = op.Reshape(mask, op.Constant(value=ir.tensor([-1, *window], dtype=ir.DataType.INT64)))
        masks = op.Add(bias, masks) if form == "bias" else masks
        return op.Add(scores, op.Tile(masks, op.Concat(count, ones, axis=0)))


def _place(inputs: Sequence[ir.Value], dim: ir.SymbolicDim) -> tuple[ir.Value, int] | None:
    """An input and its axis that has this dim."""
    return next(((v, k) for v in inputs for k, d in enumerate(v.shape or ()) if same(d, dim)), None)


def read_off_queries(model: ir.Model) -> int:
    """Let the Tile of the mask of each attention in 16 bits count the images of its own queries, in place.

    Tile(masks [W, N, S, T], Concat(Shape(input), [1, 1, 1])) -> Tile(masks, Concat(Shape(q) / W, [1, 1, 1]))

    W is Shape(masks) where it is symbolic. Returns how many attentions there are.
    """
    count = 0
    for node in list(model.graph):
        tile = _tile_of(node)
        if tile is None or tile.inputs[1] is None or is_constant(tile.inputs[1]):
            continue
        q, masks, mask = node.inputs[0], tile.inputs[0], tile.outputs[0]
        repeats = tile.inputs[1].producer()
        if q is None or masks is None or repeats is None or repeats.op_type != "Concat":
            continue
        if q.dtype not in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16):
            continue  # no kernel fuses the Tile
        if q.shape is None or mask.shape is None or not same(q.shape[0], mask.shape[0]):
            continue
        batch = ir.node("Shape", [q], {"start": 0, "end": 1})
        windows = ir.node("Shape", [masks], {"start": 0, "end": 1})
        if masks.const_value is not None:
            number = ir.tensor(masks.const_value.shape.numpy()[:1], dtype=ir.DataType.INT64)
            windows = ir.node("Constant", [], {"value": number})
        images = ir.node("Div", [batch.outputs[0], windows.outputs[0]])
        ones = ir.node("Constant", [], {"value": ir.tensor(_ONES, dtype=ir.DataType.INT64)})
        sizes = ir.node("Concat", [images.outputs[0], ones.outputs[0]], {"axis": 0})
        own = ir.node("Tile", [masks, sizes.outputs[0]])
        own.outputs[0].shape, own.outputs[0].type = mask.shape, mask.type
        model.graph.insert_before(node, [batch, windows, images, ones, sizes, own])
        node.replace_input_with(_MASK, own.outputs[0])
        count += 1
    return count


def _tile_of(node: ir.Node) -> ir.Node | None:
    """The Tile that makes the mask of a MultiHeadAttention."""
    if (node.domain, node.op_type) != (CONTRIB, "MultiHeadAttention") or len(node.inputs) <= _MASK:
        return None
    mask = node.inputs[_MASK]
    producer = None if mask is None else mask.producer()
    return producer if producer is not None and producer.op_type == "Tile" else None


RULES = (
    RuleSet(lambda scope: [Rooted("Reshape", WindowMask.rule(scope.graph.inputs))]),
    RuleSet(lambda scope: [Rooted("Reshape", ComputedMask.rule(scope.graph.inputs, scope.inferred))]),
)
QUERY_SIZES = (Pass(lambda model, _: read_off_queries(model), counted=False),)
