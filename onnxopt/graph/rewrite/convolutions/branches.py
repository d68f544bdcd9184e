"""Convolutions of one input whose results are added, as blocks have them that are trained in branches, are one.

    Add(Conv(x, w, b), Conv(x, v, c))               -> Conv(x, w + v, b + c)    taps of v are taps of w as well
    Add(Conv(x, w, b), BatchNormalization(x, ...))  -> Conv(x, w + s, b + t)    s at the tap that reads the pixel itself
    Sub(..)                                         -> the same, with a minus

RepVGG, MobileOne, YOLO and RT-DETR are exported with such branches. Every sum is computed in float64 and rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import MatchContext, MatchResult, RewriteRuleClassBase

from onnxopt.graph.match import is_constant, is_private
from onnxopt.graph.passes.rooted import Rooted
from onnxopt.graph.rewrite.convolutions.constants import factor_and_term, why_not_constant
from onnxopt.graph.rewrite.rule_sets import RuleSet
from onnxopt.graph.rewrite.weights import FLOATS, array_of, loses_precision, rounded

_RANKS = (3, 4, 5)


class _Taps(NamedTuple):
    """What a convolution reads. places: of every tap along each axis, in the first window, in elements of the input.

    excess: how many more places than elements of the input a window may begin at, along each axis.
    """

    places: tuple[tuple[int, ...], ...]
    strides: tuple[int, ...]
    excess: tuple[int, ...]
    group: int


class _Branch(NamedTuple):
    """weight [K, C / group, ...] and bias [K], in float64. dtype: of the model."""

    x: ir.Value
    dtype: ir.DataType
    taps: _Taps
    weight: np.ndarray
    bias: np.ndarray | None

    def times(self, sign: int) -> _Branch:
        return self._replace(weight=sign * self.weight, bias=None if self.bias is None else sign * self.bias)


class Branches(RewriteRuleClassBase):
    """sign: of the second operand, +1 of an Add and -1 of a Sub."""

    def __init__(self, operator: str, sign: int) -> None:
        super().__init__(f"branches_of_{operator}")
        self._operator, self._sign = operator, sign

    def pattern(self, op, a, b):
        return getattr(op, self._operator)(a, b)

    def check(self, context: MatchContext, a: ir.Value, b: ir.Value, **_: object) -> MatchResult:
        result, sum_of_both = MatchResult(), _sum(a, b, self._sign)
        return result.fail(sum_of_both) if isinstance(sum_of_both, str) else result

    def rewrite(self, op, a: ir.Value, b: ir.Value, **_: object):
        sum_of_both = _sum(a, b, self._sign)
        assert not isinstance(sum_of_both, str)
        conv, weight, bias = sum_of_both
        inputs = [conv.inputs[0], op.initializer(weight), *([] if bias is None else [op.initializer(bias)])]
        return op.Conv(*inputs, **{name: attribute.value for name, attribute in conv.attributes.items()})


def _sum(a: ir.Value, b: ir.Value, sign: int) -> tuple[ir.Node, ir.Tensor, ir.Tensor | None] | str:
    """The Conv whose taps are those of both, weight and bias of a and sign times b; or why there is none."""
    convs = [node for node in (a.producer(), b.producer()) if node is not None and _is_conv(node)]
    if not convs:
        return "neither operand is a Conv with constant weights in floats of 16 or 32 bits"
    if a is b or not is_private(a) or not is_private(b):
        return "what the branches compute has other readers"
    conv = max(convs, key=lambda node: _weight(node).size)
    other = b.producer() if conv is a.producer() else a.producer()
    first = _of_conv(conv)
    second = _of_conv(other) if other in convs else _of_normalization(other, first)
    if isinstance(second, str):
        return second
    if second.x is not first.x or second.dtype != first.dtype or second.weight.shape[:2] != first.weight.shape[:2]:
        return "the branches read other inputs or channels"
    places = _places_of(second.taps, first.taps)
    signs = (1, sign) if conv is a.producer() else (sign, 1)
    return places if isinstance(places, str) else _added(conv, first.times(signs[0]), second.times(signs[1]), places)


def _added(
    conv: ir.Node, first: _Branch, second: _Branch, places: list[list[int]]
) -> tuple[ir.Node, ir.Tensor, ir.Tensor | None] | str:
    dtype, exact, name = first.dtype, first.weight.copy(), _weight(conv).name
    exact[np.ix_(*map(range, exact.shape[:2]), *places)] += second.weight
    weight = rounded(exact, dtype, f"{name}/branches")
    biases = [branch.bias for branch in (first, second) if branch.bias is not None]
    bias = rounded(np.sum(biases, axis=0), dtype, f"{name}/bias") if biases else None
    if not all(np.isfinite(t.numpy().astype(np.float64)).all() for t in (weight, bias) if t is not None):
        return f"the sum of weights or biases overflows in {dtype}"
    if loses_precision(exact, weight, 0):
        return "the weights of a channel would become subnormal in float16"
    return conv, weight, bias


def _is_conv(node: ir.Node) -> bool:
    """Whether it is a Conv of one to three dims that states its padding, with constant weights."""
    if (node.domain, node.op_type) != ("", "Conv") or node.attributes.get_string("auto_pad", "NOTSET") != "NOTSET":
        return False
    constants = [value for value in node.inputs[1:] if value is not None]
    if node.inputs[0] is None or not constants or not all(map(is_constant, constants)):
        return False
    dims, bias = _weight(node).shape.numpy(), constants[1].const_value if len(constants) > 1 else None
    if _weight(node).dtype not in FLOATS or len(dims) not in _RANKS or 0 in dims:
        return False
    return (bias is None or bias.shape.numpy() == dims[:1]) and _states_its_window(node, dims[2:])


def _states_its_window(conv: ir.Node, kernel: Sequence[int]) -> bool:
    lengths = {"kernel_shape": len(kernel), "pads": 2 * len(kernel), "strides": len(kernel), "dilations": len(kernel)}
    stated = {name: conv.attributes.get_ints(name) for name in lengths}
    return all(v is None or len(v) == lengths[name] for name, v in stated.items()) and (
        stated["kernel_shape"] is None or list(stated["kernel_shape"]) == list(kernel)
    )


def _weight(conv: ir.Node) -> ir.TensorProtocol:
    tensor = conv.inputs[1].const_value if conv.inputs[1] is not None else None
    assert tensor is not None
    return tensor


def _of_conv(conv: ir.Node) -> _Branch:
    x, w = conv.inputs[:2]
    assert x is not None and w is not None
    kernel = _weight(conv).shape.numpy()[2:]
    ones, rank = (1,) * len(kernel), len(kernel)
    pads = conv.attributes.get_ints("pads", (0,) * 2 * rank)
    steps = conv.attributes.get_ints("dilations", ones)
    places = tuple(tuple(k * steps[axis] - pads[axis] for k in range(count)) for axis, count in enumerate(kernel))
    excess = tuple(pads[axis] + pads[rank + axis] - (count - 1) * steps[axis] for axis, count in enumerate(kernel))
    taps = _Taps(places, tuple(conv.attributes.get_ints("strides", ones)), excess, conv.attributes.get_int("group", 1))
    bias = conv.inputs[2] if len(conv.inputs) > 2 else None
    return _Branch(x, _weight(conv).dtype, taps, array_of(w), None if bias is None else array_of(bias))


def _of_normalization(node: ir.Node | None, like: _Branch) -> _Branch | str:
    """A BatchNormalization of the same channels as a convolution of one pixel."""
    if node is None or (node.domain, node.op_type) != ("", "BatchNormalization") or node.inputs[0] is None:
        return "one operand is neither a Conv nor a BatchNormalization"
    if reason := why_not_constant(node):
        return reason
    scale, term = factor_and_term(node)
    channels, read = like.weight.shape[:2]
    if len(scale) != channels or read * like.taps.group != channels:
        return "the Conv has other channels than the BatchNormalization"
    weight = np.zeros((channels, read))
    weight[np.arange(channels), np.arange(channels) % read] = scale
    rank = like.weight.ndim - 2
    taps = _Taps(((0,),) * rank, (1,) * rank, (0,) * rank, like.taps.group)
    return _Branch(node.inputs[0], like.dtype, taps, weight.reshape(channels, read, *(1,) * rank), term)


def _places_of(few: _Taps, many: _Taps) -> list[list[int]] | str:
    """Of each axis, the indices of few's taps among those of many; or why they are not all among them."""
    if (few.strides, few.excess, few.group) != (many.strides, many.excess, many.group):
        return "the branches differ in their strides, groups or sizes"
    places = [[all_.index(p) for p in some if p in all_] for some, all_ in zip(few.places, many.places, strict=True)]
    if any(len(found) != len(some) for found, some in zip(places, few.places, strict=True)):
        return "one branch has taps that the other has not"
    return places


RULES = (RuleSet(lambda _: [Rooted(op, Branches.rule(op, sign)) for op, sign in (("Add", 1), ("Sub", -1))]),)
