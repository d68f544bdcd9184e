"""Taps of convolutions that read padding alone are cut off the weight.

    Conv<pads = [1, ..]>(x [N, C, 1, H, W], w [K, C, 3, R, S]) -> Conv<pads = [0, ..]>(x, w[:, :, 1:2])

The first and last taps of an axis, at sizes that are known: a window of three over a depth of 1, as the deepest blocks
of 3D networks have, and windows whose dilation exceeds their map, as atrous pyramids on small images.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import MatchContext, MatchResult, RewriteRuleClassBase

from onnxopt.graph.match import is_constant
from onnxopt.graph.passes.rooted import Rooted
from onnxopt.graph.rewrite.rule_sets import RuleSet


class _Cut(NamedTuple):
    """Of each axis, the taps that stay; and all pads, those before each axis first."""

    taps: tuple[slice, ...]
    pads: tuple[int, ...]


class IdleTaps(RewriteRuleClassBase):
    def __init__(self) -> None:
        super().__init__()
        self._parts: dict[tuple[ir.Value, object], ir.Value] = {}  # a weight, the graph that reads it -> its part

    def pattern(self, op, x, w):
        return op.Conv(x, w, _allow_other_inputs=True, _allow_other_attributes=True, _outputs=["convolved"])

    def check(self, context: MatchContext, x: ir.Value, w: ir.Value, convolved: ir.Value) -> MatchResult:
        result, conv = MatchResult(), convolved.producer()
        assert conv is not None
        cut = _cut_of(conv)
        if isinstance(cut, str):
            return result.fail(cut)
        if any(use.idx != 1 or _taps(use.node) != cut.taps for use in w.uses()):
            return result.fail(f"what else reads the weight `{w.name}` needs it as it is")
        return result

    def rewrite(self, op, x: ir.Value, w: ir.Value, convolved: ir.Value):
        conv = convolved.producer()
        assert conv is not None
        cut = _cut_of(conv)
        assert not isinstance(cut, str)
        if (w, conv.graph) not in self._parts:
            self._parts[w, conv.graph] = op.initializer(_part(w, cut.taps))
        attributes = {name: attribute.value for name, attribute in conv.attributes.items()}
        attributes |= {"pads": cut.pads, "kernel_shape": tuple(t.stop - t.start for t in cut.taps)}
        return op.Conv(x, self._parts[w, conv.graph], *conv.inputs[2:], **attributes)


def _taps(node: ir.Node) -> tuple[slice, ...] | None:
    cut = _cut_of(node)
    return None if isinstance(cut, str) else cut.taps


def _cut_of(conv: ir.Node) -> _Cut | str:
    """What stays of a Conv, or why all of it does."""
    if conv.op_type != "Conv" or conv.domain != "" or conv.attributes.get_string("auto_pad", "NOTSET") != "NOTSET":
        return "it is no Conv that states its padding"
    x, w, y = conv.inputs[0], conv.inputs[1], conv.outputs[0]
    if x is None or x.shape is None or y.shape is None or w is None or w.const_value is None or not is_constant(w):
        return "shapes are not known, or Conv's weight is not a constant"
    kernel = w.const_value.shape.numpy()[2:]
    ones, none = (1,) * len(kernel), (0,) * 2 * len(kernel)
    pads = list(conv.attributes.get_ints("pads", none))
    strides, dilations = (conv.attributes.get_ints(name, ones) for name in ("strides", "dilations"))
    if not len(x.shape) == len(y.shape) == len(kernel) + 2 or len(pads) != len(none):
        return "the ranks of Conv's operands differ"
    taps = []
    for axis, (count, stride, step) in enumerate(zip(kernel, strides, dilations, strict=True)):
        size, windows, before = x.shape[2 + axis], y.shape[2 + axis], pads[axis]
        first, end = 0, count
        if isinstance(size, int) and isinstance(windows, int) and size > 0 and windows > 0:
            idle = [_is_idle(k * step - before, stride, size, windows) for k in range(count)]
            while end - first > 1 and idle[first] and pads[axis] >= step:
                first, pads[axis] = first + 1, pads[axis] - step
            while end - first > 1 and idle[end - 1] and pads[len(kernel) + axis] >= step:
                end, pads[len(kernel) + axis] = end - 1, pads[len(kernel) + axis] - step
        taps.append(slice(first, end))
    if all(part.stop - part.start == count for part, count in zip(taps, kernel, strict=True)):
        return "every tap reads an element of its input, or sizes are not known"
    return _Cut(tuple(taps), tuple(pads))


def _is_idle(place: int, stride: int, size: int, windows: int) -> bool:
    """Whether no window reads an element by a tap, which reads this place in the first one."""
    first = max(-(place // stride), 0)  # the first window in which it is not before the input
    return first >= windows or place + first * stride >= size


def _part(w: ir.Value, taps: tuple[slice, ...]) -> ir.LazyTensor:
    tensor, name = w.const_value, f"{w.name}/taps"
    assert tensor is not None
    dims = (*tensor.shape.numpy()[:2], *(part.stop - part.start for part in taps))

    def evaluate() -> ir.Tensor:
        return ir.Tensor(np.ascontiguousarray(tensor.numpy()[:, :, *taps]), dtype=tensor.dtype, name=name)

    return ir.LazyTensor(evaluate, dtype=tensor.dtype, shape=ir.Shape(dims), name=name)


RULES = (RuleSet(lambda _: [Rooted("Conv", IdleTaps.rule())]),)
