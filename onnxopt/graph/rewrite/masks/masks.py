"""What an attention mask lets through, where it can be proved: everything, or the keys up to the query's own position.

Where(all true, 0, low)           lets everything through
Where(q - k + offset >= 0, 0, low)    causal
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import onnx_ir as ir

from onnxopt.graph.rewrite.masks.index_functions import Affine, Choice, Found, Truth, simplified, uniform
from onnxopt.graph.rewrite.masks.index_values import IndexValues
from onnxopt.graph.rewrite.symbolic import Dim, dims_of

_HIDES = -1e4  # additive masks from this value on give weights of 0 in every float dtype
_PASSED_THROUGH = frozenset({"Expand", "Unsqueeze", "Cast", "Identity"})


@dataclasses.dataclass(frozen=True)
class Mask:
    """kind: "none" (lets everything through), "causal" (key <= query + offset) or "any". finite: it holds no -inf."""

    kind: str
    offset: Dim = 0
    finite: bool = True


NONE = Mask("none")


def additive(value: ir.Value, known: IndexValues) -> Mask:
    """What a mask that is added to the scores lets through."""
    found = known.of(value)
    if isinstance(found, Choice):
        numbers = (found.shown, found.hidden)
        if found.truth.always or found.truth.never:
            numbers = (found.shown if found.truth.always else found.hidden,) * 2
        finite = all(map(math.isfinite, numbers))
        if numbers[0] == 0 and numbers[1] == 0:
            return NONE
        if numbers[0] == 0 and numbers[1] <= _HIDES:
            return _of(found.truth, finite, value)
        if numbers[1] == 0 and numbers[0] <= _HIDES:
            return _of(_negated(found.truth), finite, value)
    return Mask("any", finite=_is_finite(value))


def _is_finite(value: ir.Value) -> bool:
    """Whether a mask provably holds no infinity: a constant without one, or a choice between finite numbers."""
    node = value.producer()
    if value.const_value is not None:
        return bool(np.isfinite(value.const_value.numpy().astype(np.float32)).all())
    if node is None or not node.inputs or node.inputs[0] is None:
        return False
    if node.op_type == "Where":
        return all(n is not None and math.isfinite(n) for n in map(uniform, node.inputs[1:]))
    return node.op_type in _PASSED_THROUGH and _is_finite(node.inputs[0])


def boolean(value: ir.Value, known: IndexValues, *, shows: bool) -> Mask:
    """What a condition lets through that is true where a key is shown (or, with shows=False, hidden)."""
    found = known.of(value)
    return _of(found if shows else _negated(found), True, value)


def _of(found: Found, finite: bool, mask: ir.Value) -> Mask:
    if not isinstance(found, Truth):
        return Mask("any", finite=finite)
    if found.always or _shows_the_last_key(found, mask):
        return NONE
    coefficients = found.expression.coefficients
    if coefficients[-2:] == (1, -1) and not any(coefficients[:-2]):
        return Mask("causal", found.expression.offset, finite)
    return Mask("any", finite=finite)


def _shows_the_last_key(found: Truth, mask: ir.Value) -> bool:
    """Whether a mask that hides keys from some position on ends before it: one token behind a cache."""
    expression = found.expression
    if mask.shape is None or not mask.shape or not expression.coefficients or expression.coefficients[-1] != -1:
        return False
    last = dims_of(mask)[-1] - 1
    return Affine(simplified(expression.offset - last), expression.coefficients[:-1]).never_negative()


def _negated(found: Found) -> Found:
    return Truth(Affine(-1).plus(found.expression, -1)) if isinstance(found, Truth) else None
