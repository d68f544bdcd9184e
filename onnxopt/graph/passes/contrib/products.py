"""Products and convolutions with what ONNX Runtime fused into them.

FusedMatMul(a, b; alpha)      -> alpha a b, of operands whose last two dims, or whose first dim, moved
FusedGemm(a, b, c?)           -> f(Gemm(a, b, c))
FusedConv(x, w, b?, z?)       -> f(Conv(x, w, b) + z)           f: the activation that the node names
NhwcConv(x, w, b?), NhwcFusedConv(x, w, b?, z?)  -> the same of an NHWC tensor; NhwcConv has weights in OHWI
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnxopt.graph.match import operand
from onnxopt.graph.passes.contrib.building import Decomposition, NoStandardForm, Standard, rank_of, required

_ACTIVATIONS: dict[str, tuple[str, ...]] = {  # with their attributes, as activation_params has them
    "Relu": (),
    "Tanh": (),
    "Sigmoid": (),
    "Softplus": (),
    "Softsign": (),
    "LeakyRelu": ("alpha",),
    "Elu": ("alpha",),
    "ThresholdedRelu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "Selu": ("alpha", "gamma"),
}
_OWN = ("activation", "activation_params", "activation_alpha", "activation_beta", "activation_gamma")
_TO_NCHW, _TO_NHWC = (0, 3, 1, 2), (0, 2, 3, 1)


def _fused_matmul(op: Standard) -> Sequence[ir.Value]:
    node, operands = op.node, []
    for position, name in enumerate("AB"):
        value = required(node, position)
        turned, batch = (node.attributes.get_int(f"trans{of}{name}", 0) for of in ("", "Batch"))
        if turned or batch:
            rank = rank_of(value)
            if rank < 2:
                raise NoStandardForm("FusedMatMul transposes one dim")
            order = list(range(rank))
            if batch:
                order = [*order[1:-1], 0, order[-1]]
            if turned:
                order[-2:] = reversed(order[-2:])
            value = op("Transpose", value, perm=order)
        operands.append(value)
    product, alpha = op("MatMul", *operands), node.attributes.get_float("alpha", 1.0)
    return (product if alpha == 1 else op("Mul", product, op.number(alpha, required(node, 0))),)


def _fused_gemm(op: Standard) -> Sequence[ir.Value]:
    node = op.node
    numbers = {k: node.attributes[f"activation_{k}"].value for k in ("alpha", "beta", "gamma")
               if f"activation_{k}" in node.attributes}  # fmt: skip
    return (_activated(op, op("Gemm", *node.inputs, **_others(node)), numbers),)


def _fused_conv(op: Standard) -> Sequence[ir.Value]:
    x, weight, *bias = op.node.inputs[:3]
    assert x is not None
    return (_convolved(op, x, op("Conv", x, weight, *bias, **_others(op.node)), operand(op.node, 3)),)


def _nhwc_fused_conv(op: Standard) -> Sequence[ir.Value]:
    return _nhwc(op, required(op.node, 1))


def _nhwc_conv(op: Standard) -> Sequence[ir.Value]:
    return _nhwc(op, op("Transpose", required(op.node, 1), perm=_TO_NCHW))


def _nhwc(op: Standard, weight: ir.Value) -> Sequence[ir.Value]:
    x = required(op.node, 0)
    if rank_of(x) != 4:
        raise NoStandardForm(f"`{x.name}` has not four dims")
    maps = op("Conv", op("Transpose", x, perm=_TO_NCHW), weight, *op.node.inputs[2:3], **_others(op.node))
    return (_convolved(op, x, op("Transpose", maps, perm=_TO_NHWC), operand(op.node, 3)),)


def _convolved(op: Standard, x: ir.Value, result: ir.Value, added: ir.Value | None) -> ir.Value:
    """The result of a convolution with its residual and activation."""
    total = result if added is None else op("Add", result, added)
    numbers = [float(n) for n in op.node.attributes.get_floats("activation_params", ())]
    name = op.node.attributes.get_string("activation", "")
    if name == "Clip" and len(numbers) == 2:
        return op("Clip", total, *(op.number(n, x) for n in numbers))
    return _activated(op, total, dict(zip(_ACTIVATIONS.get(name or "", ()), numbers, strict=False)))


def _activated(op: Standard, x: ir.Value, numbers: dict[str, float]) -> ir.Value:
    name = op.node.attributes.get_string("activation", "")
    if not name:
        return x
    if name not in _ACTIVATIONS:
        raise NoStandardForm(f"the activation {name} has no form here")
    if missing := set(_ACTIVATIONS[name]) - set(numbers):
        raise NoStandardForm(f"{name} has no {', '.join(sorted(missing))}")
    return op(name, x, **{k: float(np.float32(numbers[k])) for k in _ACTIVATIONS[name]})


def _others(node: ir.Node) -> dict[str, object]:
    """The attributes that Conv and Gemm have too."""
    return {name: a.value for name, a in node.attributes.items() if name not in _OWN}


PRODUCTS: dict[str, Decomposition] = {
    "FusedMatMul": _fused_matmul,
    "TransposeMatMul": _fused_matmul,
    "FusedGemm": _fused_gemm,
    "FusedConv": _fused_conv,
    "NhwcConv": _nhwc_conv,
    "NhwcFusedConv": _nhwc_fused_conv,
}
