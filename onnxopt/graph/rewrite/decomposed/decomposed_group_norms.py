"""A norm over groups of channels in elementary operators becomes the three nodes that exporters of PyTorch write.

    g = Reshape(x [N, H, W, C], [N, H, W, groups, C / groups])
    m = mean(g), v = mean((g - m)^2), k = scale / sqrt(v + e)
    Reshape(g k + (bias - m k))  |  Reshape((g - m) / sqrt(v + e) scale + bias)
        -> Transpose, Reshape [N, groups, -1], InstanceNormalization(1, 0; e), Reshape, Mul(scale), Add(bias), Transpose

Keras writes the first form, through TensorFlow's moments and batch_normalization. The layout passes cancel the
Transposes against those of the convolutions around it. Scale and bias are constants.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import MatchResult, RewriteRuleClassBase, pattern

from onnxopt.graph.layout.forms import CONVOLVED
from onnxopt.graph.layout.orders import TO_NCHW, TO_NHWC
from onnxopt.graph.match import integers, is_constant, new_integers
from onnxopt.graph.passes.rooted import Rooted
from onnxopt.graph.rewrite.decomposed.decomposed_layer_norms import number_of
from onnxopt.graph.rewrite.rule_sets import RuleSet
from onnxopt.graph.shapes.value_dims import dims_of, same
from onnxopt.program.group_norm import MAX_GROUP

_AXES = (1, 2, 4)  # of [N, H, W, groups, C / groups]
_FORMS = ("terms", "no bias", "deviation")


class GroupNorm(RewriteRuleClassBase):
    """One of the forms. swapped: whether each of three commutative operators has its operands the other way round."""

    def __init__(self, form: str, *swapped: bool) -> None:
        super().__init__(f"GroupNorm{form}{swapped}")
        self._form, self._swapped = form, swapped

    def pattern(self, op, x, epsilon, scale, bias):  # type: ignore[no-untyped-def]
        loose = {"_allow_other_inputs": True, "_allow_other_attributes": True}
        grouped = op.Reshape(x, **loose, _outputs=["grouped"])
        mean = op.ReduceMean(grouped, **loose, _outputs=["mean"])
        deviation = op.Sub(grouped, mean)
        square = pattern.OrValue([op.Mul(deviation, deviation), op.Pow(deviation, pattern.Var("two"))])
        root = op.Sqrt(op.Add(op.ReduceMean(square, **loose, _outputs=["variance"]), epsilon))
        inverse = op.Reciprocal(root)
        first, second, third = self._swapped
        if self._form == "deviation":
            normed = pattern.OrValue([op.Div(deviation, root), *self._either(op.Mul, deviation, inverse)])
            total = op.Add(op.Mul(normed, scale), bias)
        else:
            factor = op.Mul(inverse, scale)
            shift = self._ordered(op.Mul, first, op.Neg(mean), factor)
            shift = shift if self._form == "no bias" else op.Add(shift, bias)
            total = self._ordered(op.Add, second, self._ordered(op.Mul, third, grouped, factor), shift)
        return op.Reshape(total, **loose, _outputs=["y"])

    def _ordered(self, operator, swapped, a, b):  # type: ignore[no-untyped-def]
        return operator(b, a) if swapped else operator(a, b)

    def _either(self, operator, a, b):  # type: ignore[no-untyped-def]
        return [operator(a, b), operator(b, a)]

    def check(self, context, x, grouped, y, mean, variance, epsilon, scale, bias=None, two=None):  # type: ignore[no-untyped-def]
        result = MatchResult()
        if number_of(epsilon) is None or (two is not None and number_of(two) != 2):
            return result.fail("the deviation is not squared, or epsilon is no constant of one element")
        if any(v.shape is None for v in (x, grouped, y)) or x.dtype not in CONVOLVED:
            return result.fail("the dims are not known, or no floats of convolutions")
        of, dims = dims_of(x), dims_of(grouped)
        if len(of) != 4 or len(dims) != 5 or len(y.shape) != 4 or not all(map(same, of, dims_of(y))):
            return result.fail("the operand is no map, or the result has another shape")
        if not all(map(same, of[:3], dims[:3])) or not all(isinstance(d, int) for d in (of[3], dims[3])):
            return result.fail("Reshape does not cut the channels into groups")
        if not isinstance(dims[4], int) or dims[4] > MAX_GROUP or any(_axes(v) != _AXES for v in (mean, variance)):
            return result.fail("the means are not those of groups, or groups have too many channels")
        for value in (scale, bias):
            leading = None if value is None or value.shape is None else tuple(value.shape)
            if value is not None and (not is_constant(value) or leading not in (dims[3:], (1, 1, 1, *dims[3:]))):
                return result.fail(f"`{value.name}` has not one constant for each channel")
        return result

    def rewrite(self, op, x, grouped, epsilon, scale, bias=None, **_):  # type: ignore[no-untyped-def]
        *outer, channels = dims_of(x)
        groups = int(dims_of(grouped)[3])  # type: ignore[arg-type]
        numpy = x.dtype.numpy()
        turned = op.Transpose(x, perm=TO_NCHW)
        ones = op.Constant(value=ir.Tensor(np.ones(groups, numpy), dtype=x.dtype))
        zeros = op.Constant(value=ir.Tensor(np.zeros(groups, numpy), dtype=x.dtype))
        flat = op.Reshape(turned, new_integers(op, [0, groups, -1]))
        normed = op.InstanceNormalization(flat, ones, zeros, epsilon=number_of(epsilon))
        numbers = [d for d in outer[1:] if isinstance(d, int)]
        shape = new_integers(op, [-1, channels, *numbers]) if len(numbers) == 2 else op.Shape(turned)
        result = op.Mul(op.Reshape(normed, shape), self._by_channel(op, scale))
        result = result if bias is None else op.Add(result, self._by_channel(op, bias))
        return op.Transpose(result, perm=TO_NHWC)

    def _by_channel(self, op, value: ir.Value):  # type: ignore[no-untyped-def]
        tensor = value.const_value
        assert tensor is not None
        return op.Constant(value=ir.Tensor(tensor.numpy().reshape(-1, 1, 1), dtype=tensor.dtype))


def _axes(mean: ir.Value) -> tuple[int, ...]:
    """The axes of a ReduceMean of five dims that keeps them; () where they are not constant."""
    node = mean.producer()
    assert node is not None
    if node.attributes.get_int("keepdims", 1) != 1:
        return ()
    axes = integers(node.inputs[1]) if len(node.inputs) > 1 else node.attributes.get_ints("axes", ())
    return tuple(sorted(axis % 5 for axis in axes or ()))


def may_apply(graph: ir.Graph) -> bool:
    """Whether a graph has a convolution, and a mean of what Reshape gives five dims."""
    nodes = list(graph)
    means = (n.inputs[0] for n in nodes if n.op_type == "ReduceMean")
    grouped = any(
        v is not None and v.shape is not None and len(v.shape) == 5 and v.producer() is not None for v in means
    )
    return grouped and any(n.op_type in ("Conv", "ConvTranspose") for n in nodes)


def _rules() -> Iterator[Rooted]:
    for form in _FORMS:
        for swapped in itertools.product((False, True), repeat=3):
            if form != "deviation" or not any(swapped):
                yield Rooted("Reshape", GroupNorm.rule(form, *swapped))


RULES = (RuleSet(lambda _: list(_rules())),)
