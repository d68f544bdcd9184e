"""Constants behind a convolution of one to three dims, folded into its weight and bias.

    Add | Sub (Conv(x, w, b), c)            -> Conv(x, w, b + c)               c one value a channel, or one value
    Mul | Div (Conv(x, w, b), c)            -> Conv(x, c w, c b)
    BatchNormalization(Conv(x, w, b), ...)  -> Conv(x, s w, s (b - mean) + beta)    s = gamma / sqrt(variance + epsilon)

The same for ConvTranspose of one group. Sums and products are computed in float64 and rounded once. Exporters write the
bias as an Add of [1, C, 1, 1]; kernels of convolutions take Conv's third input.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import MatchContext, MatchResult, RewriteRuleClassBase

from onnxopt.graph.match import is_constant
from onnxopt.graph.passes.rooted import Rooted
from onnxopt.graph.rewrite.rule_sets import RuleSet
from onnxopt.graph.rewrite.weights import FLOATS, array_of, loses_precision, rounded

_CONVOLUTIONS = ("Conv", "ConvTranspose")
_RANKS = (3, 4, 5)


class _Folded(RewriteRuleClassBase):
    """What all rules share: the conditions on the convolution, and the new one."""

    def __init__(self, name: str, convolution: str) -> None:
        super().__init__(name)
        self._convolution = convolution

    def _conv(self, op, x, w):
        convolution = getattr(op, self._convolution)
        return convolution(x, w, _allow_other_inputs=True, _allow_other_attributes=True, _outputs=["convolved"])

    def _obstacle(self, convolved: ir.Value, w: ir.Value) -> str:
        conv = convolved.producer()
        assert conv is not None
        bias = conv.inputs[2] if len(conv.inputs) > 2 else None
        if len(convolved.uses()) != 1 or convolved.is_graph_output():
            return f"{conv.op_type}'s result `{convolved.name}` has other readers"
        if not is_constant(w) or (bias is not None and not is_constant(bias)):
            return f"{conv.op_type}'s weight or bias is not a constant"
        assert w.const_value is not None
        if len(w.const_value.shape) not in _RANKS or w.const_value.dtype not in FLOATS:
            return f"{conv.op_type} has not one to three dims, or its dtype is {w.const_value.dtype}"
        if conv.op_type == "ConvTranspose" and conv.attributes.get_int("group", 1) != 1:
            return "ConvTranspose has groups"
        return ""

    def _folded(
        self, convolved: ir.Value, w: ir.Value, scale: np.ndarray | None, shift: np.ndarray | None
    ) -> tuple[ir.Tensor | None, ir.Tensor | None] | str:
        """Weight and bias, None where it stays; or the reason why not. scale, shift: float64, of one or K values."""
        conv = convolved.producer()
        assert conv is not None and w.const_value is not None
        dtype, axis = w.const_value.dtype, 0 if conv.op_type == "Conv" else 1
        channels = w.const_value.shape.numpy()[axis]
        old = conv.inputs[2] if len(conv.inputs) > 2 else None
        bias = np.zeros(channels) if old is None else array_of(old)
        if any(array is not None and array.size not in (1, channels) for array in (scale, shift)):
            return f"the constant has not one value for each of the {channels} channels"
        weight = None
        if scale is not None:
            if len(w.uses()) != 1:
                return f"the weight `{w.name}` has other readers, so a folded copy would make the model larger"
            factors = np.broadcast_to(scale, channels)
            with np.errstate(invalid="ignore"):
                weights = array_of(w)
                exact = weights * factors.reshape([-1 if k == axis else 1 for k in range(weights.ndim)])
                bias = bias * factors
            weight = rounded(exact, dtype, f"{w.name}/folded")
            if loses_precision(exact, weight, axis):
                return "the weights of a channel would become subnormal in float16"
        if shift is not None:
            bias = bias + shift
        result = rounded(bias, dtype, f"{w.name}/bias") if shift is not None or old is not None else None
        for tensor in (weight, result):
            if tensor is not None and not np.isfinite(tensor.numpy().astype(np.float64)).all():
                return f"the folded weight or bias overflows in {dtype}"
        return weight, result

    def _checked(self, convolved: ir.Value, w: ir.Value, *constants: np.ndarray | None) -> MatchResult:
        result = MatchResult()
        folded = self._folded(convolved, w, *constants)
        return result.fail(folded) if isinstance(folded, str) else result

    def _replaced(self, op, convolved: ir.Value, w: ir.Value, *constants: np.ndarray | None):
        conv = convolved.producer()
        assert conv is not None
        folded = self._folded(convolved, w, *constants)
        assert not isinstance(folded, str)
        weight, bias = folded
        inputs = [conv.inputs[0], w if weight is None else op.initializer(weight)]
        if bias is not None:
            inputs.append(op.initializer(bias))
        attributes = {name: attribute.value for name, attribute in conv.attributes.items()}
        return getattr(op, conv.op_type)(*inputs, **attributes)


class Arithmetic(_Folded):
    """Add, Sub, Mul or Div of a constant. first: the convolution is the first operand."""

    def __init__(self, operator: str, convolution: str, first: bool) -> None:
        super().__init__(f"{operator}_behind_{convolution}_{first}", convolution)
        self._operator, self._first = operator, first

    def pattern(self, op, x, w, c):
        convolved = self._conv(op, x, w)
        operator = getattr(op, self._operator)
        return operator(convolved, c) if self._first else operator(c, convolved)

    def check(self, context: MatchContext, x, w, c, convolved, **_):
        result = MatchResult()
        if reason := self._obstacle(convolved, w):
            return result.fail(reason)
        if not is_constant(c) or not _is_of_channels(c.const_value.shape.numpy(), len(w.const_value.shape)):
            return result.fail(f"{self._operator}'s operand `{c.name}` is not a constant with one value a channel")
        return self._checked(convolved, w, *self._constants(c))

    def _constants(self, c: ir.Value) -> tuple[np.ndarray | None, np.ndarray | None]:
        array = array_of(c).reshape(-1)
        with np.errstate(divide="ignore"):
            factors = {"Mul": array, "Div": 1.0 / array}
        terms = {"Add": array, "Sub": -array}
        return factors.get(self._operator), terms.get(self._operator)

    def rewrite(self, op, x, w, c, convolved, **_):
        return self._replaced(op, convolved, w, *self._constants(c))


class Normalization(_Folded):
    """BatchNormalization with constant statistics."""

    def pattern(self, op, x, w, gamma, beta, mean, variance):
        convolved = self._conv(op, x, w)
        return op.BatchNormalization(
            convolved, gamma, beta, mean, variance, _allow_other_attributes=True, _outputs=["normalized"]
        )

    def check(self, context: MatchContext, x, w, gamma, beta, mean, variance, convolved, normalized, **_):
        result = MatchResult()
        if reason := self._obstacle(convolved, w):
            return result.fail(reason)
        if reason := why_not_constant(normalized.producer()):
            return result.fail(reason)
        return self._checked(convolved, w, *factor_and_term(normalized.producer()))

    def rewrite(self, op, x, w, gamma, beta, mean, variance, convolved, normalized, **_):
        return self._replaced(op, convolved, w, *factor_and_term(normalized.producer()))


def why_not_constant(normalization: ir.Node) -> str:
    """The reason why a BatchNormalization is no factor and term that are known; "" where it is."""
    if not all(map(is_constant, normalization.inputs[1:5])):
        return "BatchNormalization's parameters are not constants"
    if normalization.attributes.get_int("training_mode", 0):
        return "BatchNormalization computes the statistics itself (training_mode)"
    return ""


def factor_and_term(node: ir.Node) -> tuple[np.ndarray, np.ndarray]:
    """Factor and term of each channel of a BatchNormalization with constants, in float64."""
    gamma, beta, mean, variance = (array_of(v) for v in node.inputs[1:5] if v is not None)
    with np.errstate(invalid="ignore", divide="ignore"):
        scale = gamma / np.sqrt(variance + node.attributes.get_float("epsilon", 1e-5))
    return scale, beta - mean * scale


def _is_of_channels(dims: tuple[int, ...], rank: int) -> bool:
    """Whether a tensor of these dims has one value, or one for each channel of [N, C, ...]."""
    padded = (1,) * (rank - len(dims)) + dims
    return len(padded) == rank and all(d == 1 for k, d in enumerate(padded) if k != 1)


_ORDERS = (("Add", True), ("Add", False), ("Sub", True), ("Mul", True), ("Mul", False), ("Div", True))
RULES = (
    RuleSet(
        lambda _: [
            *(Rooted("BatchNormalization", Normalization.rule(f"normalized_{c}", c)) for c in _CONVOLUTIONS),
            *(Rooted(op, Arithmetic.rule(op, c, first)) for c in _CONVOLUTIONS for op, first in _ORDERS),
        ]
    ),
)
