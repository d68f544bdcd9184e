"""What an attention mask is known to show: every key, or the keys up to the query's own position.

Where(all true, 0, low)               shows every key
Where(q - k + offset >= 0, 0, low)    is causal
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import onnx_ir as ir

from onnxopt.graph.rewrite.masks.index_functions import Affine, Choice, Truth, uniform
from onnxopt.graph.rewrite.masks.index_values import IndexValues
from onnxopt.graph.shapes.dims import Dim, simplest

_HIDES = -1e4  # an added mask of this or less makes a weight 0 in every float dtype
_PASSED_THROUGH = frozenset({"Expand", "Unsqueeze", "Cast", "Identity"})


@dataclasses.dataclass(frozen=True)
class Mask:
    """What a mask shows. kind: "none" (every key), "causal" (key <= query + offset) or "any" (not known).

    finite: whether the mask is known to hold no -inf.
    """

    kind: str
    offset: Dim = 0
    finite: bool = True


NONE = Mask("none")


def additive(value: ir.Value, known: IndexValues) -> Mask:
    """What a mask shows that is added to the scores."""
    choice = known.of(value)
    if isinstance(choice, Choice):
        numbers = (choice.shown, choice.hidden)
        if choice.truth.always or choice.truth.never:
            numbers = (choice.shown if choice.truth.always else choice.hidden,) * 2
        finite = all(map(math.isfinite, numbers))
        if numbers[0] == 0 and numbers[1] == 0:
            return NONE
        if numbers[0] == 0 and numbers[1] <= _HIDES:
            return _of(choice.truth, finite, value, known)
        if numbers[1] == 0 and numbers[0] <= _HIDES:
            return _of(choice.truth.negated(), finite, value, known)
    return Mask("any", finite=_is_finite(value))


def _is_finite(value: ir.Value) -> bool:
    """Whether a mask is known to hold no infinity: a constant without one, or a choice between finite numbers."""
    node = value.producer()
    if value.const_value is not None:
        return bool(np.isfinite(value.const_value.numpy().astype(np.float32)).all())
    if node is None or not node.inputs or node.inputs[0] is None:
        return False
    if node.op_type == "Where":
        return all(n is not None and math.isfinite(n) for n in map(uniform, node.inputs[1:]))
    return node.op_type in _PASSED_THROUGH and _is_finite(node.inputs[0])


def boolean(value: ir.Value, known: IndexValues, *, shows: bool) -> Mask:
    """What a mask of bools shows that is true where a key is shown (shows=False: where a key is hidden)."""
    truth = known.of(value)
    if not isinstance(truth, Truth):
        return Mask("any")
    return _of(truth if shows else truth.negated(), True, value, known)


def _of(shown: Truth, finite: bool, mask: ir.Value, known: IndexValues) -> Mask:
    if shown.always or _shows_the_last_key(shown, mask, known):
        return NONE
    coefficients = shown.expression.coefficients
    if coefficients[-2:] == (1, -1) and not any(coefficients[:-2]):
        return Mask("causal", shown.expression.offset, finite)
    return Mask("any", finite=finite)


def _shows_the_last_key(shown: Truth, mask: ir.Value, known: IndexValues) -> bool:
    """Whether a mask that hides keys from some position on has no key there: one token behind a cache."""
    expression, dims = shown.expression, known.dims(mask)
    if not dims or not expression.coefficients or expression.coefficients[-1] != -1:
        return False
    last = dims[-1] - 1
    return Affine(simplest(expression.offset - last), expression.coefficients[:-1]).never_negative()
