"""Arithmetic of choices between two numbers, as masks are computed from others.

Mul(Trilu(low, 1), Cast(k > q))    low where both hold, else 0
Add(Choice, 1)                     each of the two numbers and 1
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir

from onnxopt.graph.rewrite.masks.index_functions import Choice

_FUNCTIONS: Mapping[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Max": np.maximum, "Min": np.minimum
}  # fmt: skip


def combined(node: ir.Node, a: Choice, b: Choice) -> Choice | None:
    """What an operator of two choices holds, in the arithmetic of their dtype; None where that is no choice."""
    dtype = next((v.dtype for v in (*node.outputs, *node.inputs) if v is not None and v.dtype is not None), None)
    if dtype is None or not dtype.is_floating_point():
        return None

    def number(x: float, y: float) -> float:
        with np.errstate(over="ignore", invalid="ignore"):
            return float(_FUNCTIONS[node.op_type](*(np.array(n, dtype.numpy()) for n in (x, y))))

    one, other = a.everywhere, b.everywhere
    if other is not None:
        result = Choice(a.truth, number(a.shown, other), number(a.hidden, other))
    elif one is not None:
        result = Choice(b.truth, number(one, b.shown), number(one, b.hidden))
    elif a.truth == b.truth:
        result = Choice(a.truth, number(a.shown, b.shown), number(a.hidden, b.hidden))
    elif node.op_type == "Mul" and a.hidden == b.hidden == 0 and math.isfinite(a.shown) and math.isfinite(b.shown):
        result = Choice(a.truth.both(b.truth), number(a.shown, b.shown), 0.0)
    else:
        return None
    return None if math.isnan(result.shown) or math.isnan(result.hidden) else result
