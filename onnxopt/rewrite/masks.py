"""What an attention mask lets through, where it can be proved: everything, or the keys up to the query's own position.

    Where(all true, 0, low)           lets everything through
    Where(q - k + offset >= 0, 0, low)    causal
"""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from onnxopt.rewrite.index_values import Affine, Found, IndexValues, Truth, fit
from onnxopt.rewrite.symbolic import Dim

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
    tensor = value.const_value
    if tensor is not None:
        return _constant(tensor.numpy().astype(np.float32))
    node = value.producer()
    if node is None:
        return Mask("any", finite=False)
    if node.op_type in _PASSED_THROUGH and node.inputs[0] is not None:
        return additive(node.inputs[0], known)
    if node.op_type == "Where" and node.inputs[1] is not None and node.inputs[2] is not None:
        shown, hidden = _scalar(node.inputs[1]), _scalar(node.inputs[2])
        if shown == 0 and hidden is not None and hidden <= _HIDES:
            return _of(known.of(node.inputs[0]), bool(np.isfinite(hidden)))
        if hidden == 0 and shown is not None and shown <= _HIDES:
            return _of(_negated(known.of(node.inputs[0])), bool(np.isfinite(shown)))
    return Mask("any", finite=False)


def boolean(value: ir.Value, known: IndexValues, *, shows: bool) -> Mask:
    """What a condition lets through that is true where a key is shown (or, with shows=False, hidden)."""
    found = known.of(value)
    return _of(found if shows else _negated(found), finite=True)


def _of(found: Found, finite: bool) -> Mask:
    if not isinstance(found, Truth):
        return Mask("any", finite=finite)
    if found.always:
        return NONE
    coefficients = found.expression.coefficients
    if coefficients[-2:] == (1, -1) and not any(coefficients[:-2]):
        return Mask("causal", found.expression.offset, finite)
    return Mask("any", finite=finite)


def _negated(found: Found) -> Found:
    return Truth(Affine(-1).plus(found.expression, -1)) if isinstance(found, Truth) else None


def _constant(array: np.ndarray) -> Mask:
    finite = bool(np.isfinite(array).all())
    shown = array == 0
    if not bool((shown | (array <= _HIDES)).all()):
        return Mask("any", finite=finite)
    return _of(fit(shown), finite)


def _scalar(value: ir.Value) -> float | None:
    tensor = value.const_value
    return float(tensor.numpy().item()) if tensor is not None and tensor.size == 1 else None
