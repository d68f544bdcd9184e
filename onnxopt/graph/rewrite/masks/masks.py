"""What an attention mask is known to show: every key, the keys up to the query's own position, or those near it.

Where(all true, 0, low)                           shows every key
Where(q - k + offset >= 0, 0, low)                is causal
Where(q - k + after >= 0 and k - q + before >= 0) is local
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import onnx_ir as ir

from onnxopt.graph.rewrite.masks.index_functions import Affine, Choice, Truth
from onnxopt.graph.rewrite.masks.index_values import IndexValues
from onnxopt.graph.shapes.dims import Dim, simplest
from onnxopt.graph.shapes.value_dims import uniform

HIDES = -1e4  # an added mask of this or less makes a weight 0 in every float dtype
_PASSED_THROUGH = frozenset({"Expand", "Unsqueeze", "Cast", "Identity"})


@dataclasses.dataclass(frozen=True)
class Mask:
    """What a mask shows. kind: "none" (every key), "causal" (key <= query + offset), "local" or "any" (not known).

    Local is query - before <= key <= query + offset, without the latter where offset is None. finite: whether the mask
    is known to hold no -inf.
    """

    kind: str
    offset: Dim | None = 0
    finite: bool = True
    before: Dim = 0

    def window(self) -> dict[str, int]:
        """How many keys in front of its own a query of local attention sees, and behind it, as far as that is limited.

        Empty for other masks, and where a limit is not known.
        """
        if self.kind != "local":
            return {}
        limits = {"before": self.before} | ({} if self.offset is None else {"after": self.offset})
        window = {k: v for k, v in limits.items() if isinstance(v, int) and v >= 0}
        return window if len(window) == len(limits) else {}

    def limits(self) -> dict[str, int]:
        """The same, where a causal mask is a window without beginning."""
        if self.kind == "causal":
            return {"after": self.offset} if isinstance(self.offset, int) and self.offset >= 0 else {}
        return self.window()


NONE = Mask("none")


def additive(value: ir.Value, index_values: IndexValues) -> Mask:
    """What a mask shows that is added to the scores."""
    choice = index_values.of(value)
    if isinstance(choice, Choice):
        numbers = (choice.shown, choice.hidden)
        if choice.truth.always or choice.truth.never:
            numbers = (choice.shown if choice.truth.always else choice.hidden,) * 2
        finite = all(map(math.isfinite, numbers))
        if numbers[0] == 0 and numbers[1] == 0:
            return NONE
        if numbers[0] == 0 and numbers[1] <= HIDES:
            return shown_by(choice.truth, finite, value, index_values)
        if numbers[1] == 0 and numbers[0] <= HIDES:
            hidden = choice.truth.negated()
            return Mask("any", finite=finite) if hidden is None else shown_by(hidden, finite, value, index_values)
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


def boolean(value: ir.Value, index_values: IndexValues, *, shows: bool) -> Mask:
    """What a mask of bools shows that is true where a key is shown (shows=False: where a key is hidden)."""
    truth = index_values.of(value)
    if not isinstance(truth, Truth):
        return Mask("any")
    shown = truth if shows else truth.negated()
    return Mask("any") if shown is None else shown_by(shown, True, value, index_values)


def shown_by(shown: Truth, finite: bool, mask: ir.Value, index_values: IndexValues) -> Mask:
    """What a mask shows where `shown` holds."""
    limits = [e for e in shown.expressions if not (e.never_negative() or _shows_the_last_key(e, mask, index_values))]
    if not limits:
        return NONE
    dims = dict[tuple[int, ...], Dim]()
    for limit in limits:
        *others, query_step, key_step = (0, 0, *limit.coefficients)
        if any(others) or dims.setdefault((query_step, key_step), limit.offset) != limit.offset:
            return Mask("any", finite=finite)
    if set(dims) == {(1, -1)}:
        return Mask("causal", dims[1, -1], finite)
    if set(dims) <= {(1, -1), (-1, 1)}:
        return Mask("local", dims.get((1, -1)), finite, dims[-1, 1])
    return Mask("any", finite=finite)


def _shows_the_last_key(expression: Affine, mask: ir.Value, index_values: IndexValues) -> bool:
    """Whether a limit that hides keys from some position on has no key there: one token behind a cache."""
    dims = index_values.dims(mask)
    if not dims or not expression.coefficients or expression.coefficients[-1] != -1:
        return False
    last = dims[-1] - 1
    return Affine(simplest(expression.offset - last), expression.coefficients[:-1]).never_negative()
