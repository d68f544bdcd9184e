"""Activations with a bias, and what diffusion models add.

BiasGelu(a, b)            -> Gelu(a + b)              FastGelu(x, b?)     -> Gelu(x + b; tanh)
QuickGelu(x; alpha)       -> x Sigmoid(alpha x)       Gelu(x)             -> Gelu(x)
BiasSplitGelu(x, b)       -> l Gelu(r)                l, r = Split(x + b)
BiasAdd(x, b, s)          -> x + b + s                BiasSoftmax(x, b)   -> Softmax(x + b)    of the last axis
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxopt.graph.match import operand
from onnxopt.graph.passes.contrib.building import Decomposition, NoStandardForm, Standard, rank_of, required

_QUICK = 1.702  # default of QuickGelu's alpha


def _bias_gelu(op: Standard) -> Sequence[ir.Value]:
    return (op("Gelu", op("Add", required(op.node, 0), required(op.node, 1))),)


def _gelu(op: Standard) -> Sequence[ir.Value]:
    return (op("Gelu", required(op.node, 0)),)


def _fast_gelu(op: Standard) -> Sequence[ir.Value]:
    x, bias = required(op.node, 0), operand(op.node, 1)
    return (op("Gelu", x if bias is None else op("Add", x, bias), approximate="tanh"),)


def _quick_gelu(op: Standard) -> Sequence[ir.Value]:
    x, alpha = required(op.node, 0), op.node.attributes.get_float("alpha", _QUICK)
    return (op("Mul", x, op("Sigmoid", x if alpha == 1 else op("Mul", x, op.number(alpha, x)))),)


def _bias_split_gelu(op: Standard) -> Sequence[ir.Value]:
    left, right = op.several(
        "Split", 2, op("Add", required(op.node, 0), required(op.node, 1)), axis=-1, num_outputs=2
    )  # fmt: skip
    return (op("Mul", left, op("Gelu", right)),)


def _bias_add(op: Standard) -> Sequence[ir.Value]:
    return (op("Add", op("Add", required(op.node, 0), required(op.node, 1)), required(op.node, 2)),)


def _bias_softmax(op: Standard) -> Sequence[ir.Value]:
    x, axis = required(op.node, 0), op.node.attributes.get_int("axis", 1)
    if axis not in (-1, rank_of(x) - 1):
        raise NoStandardForm("BiasSoftmax is of several axes")
    return (op("Softmax", op("Add", x, required(op.node, 1)), axis=-1),)


ACTIVATIONS: dict[str, Decomposition] = {
    "BiasGelu": _bias_gelu,
    "Gelu": _gelu,
    "FastGelu": _fast_gelu,
    "QuickGelu": _quick_gelu,
    "BiasSplitGelu": _bias_split_gelu,
    "BiasAdd": _bias_add,
    "BiasSoftmax": _bias_softmax,
}
