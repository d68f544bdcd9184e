"""Pools between the Transposes of the layout pass.

x [N, H, W, C] -> Transpose -> MaxPool | AveragePool -> Transpose -> y [N, Ho, Wo, C]

Volumes have a depth after N, and windows may go over it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import onnx_ir as ir

from onnxopt.fusion import channels_last
from onnxopt.fusion.core_lowering import CoreMatch
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.program.pool import DTYPES, OPERATIONS, Pool

_SINCE = 11  # the versions whose attributes mean what Pool says


def pool(node: ir.Node, shapes: Shapes, opset: int) -> CoreMatch | str:
    """The pool around a node, or the reason why no kernel can run it."""
    around = channels_last.between_transposes(node, shapes)
    if isinstance(around, str):
        return around
    if opset < _SINCE:
        return f"{node.op_type} can be fused from opset {_SINCE} on"
    operation, x = OPERATIONS[node.op_type], node.inputs[0]
    if len(node.outputs) > 1:
        return "The kernel does not compute the Indices of MaxPool"
    dtype = shapes.dtype(x) if x is not None else None
    if dtype is None or dtype.name not in DTYPES[operation]:
        return f"No kernel runs {node.op_type} of {dtype.name if dtype else 'an unknown dtype'}"
    window = channels_last.window_of(node)
    if window is None:
        return f"{node.op_type} has no kernel_shape of two or three numbers"
    # The dilation of one row, column or plane changes nothing.
    down, across = (1 if side == 1 else d for side, d in zip(window.kernel, window.dilations, strict=True))
    depth = window.depth
    if depth is not None and depth.kernel == 1:
        depth = dataclasses.replace(depth, dilation=1)
    window = dataclasses.replace(window, dilations=(down, across), depth=depth)
    ceil_mode, count_include_pad = _flags(node, shapes)
    fields: dict[str, Any] = {
        "operation": operation,
        "window": window,
        "ceil_mode": ceil_mode,
        "count_include_pad": operation == "average" and count_include_pad,
    }
    if broken := Pool((dtype.name,), (dtype.name,), **fields).reason():
        return f"No kernel runs {node.op_type}: its {broken}"
    turn, back = around
    x, y = turn.inputs[0], back.outputs[0]
    assert x is not None
    return CoreMatch((turn, node, back), x, y, operands={}, first=(x,), fields=fields, layout=around)


def _is_multiple(dim: int | str | None, added: int, stride: int, shapes: Shapes) -> bool:
    """Whether dim + added is a multiple of the stride, whatever the sizes of symbols are."""
    if stride == 1 or dim is None:
        return stride == 1
    if isinstance(dim, int):
        return (dim + added) % stride == 0
    size = shapes.monomial(dim)
    return size is not None and size.factor % stride == added % stride == 0


def _flags(node: ir.Node, shapes: Shapes) -> tuple[bool, bool]:
    """ceil_mode and count_include_pad where they change a result: a window reaches beyond x, or over padding."""
    of, dims = node.attributes, (shapes.dims(node.inputs[0]) or ())[2:]  # type: ignore[arg-type]
    ceil_mode, counts = (bool(of.get_int(name, 0)) for name in ("ceil_mode", "count_include_pad"))
    kernel, pads = of.get_ints("kernel_shape", ()), of.get_ints("pads", ())
    if of.get_string("auto_pad", "NOTSET") not in ("NOTSET", "VALID") or len(dims) != len(kernel):
        return ceil_mode, counts
    ones = (1,) * len(kernel)
    padded = [a + b for a, b in zip(pads, pads[len(kernel) :], strict=False)] or [0] * len(kernel)
    windows = zip(dims, kernel, of.get_ints("strides", ones), of.get_ints("dilations", ones), padded, strict=True)
    ceil_mode &= not all(
        _is_multiple(dim, pad - (side - 1) * dilation - 1, stride, shapes)
        for dim, side, stride, dilation, pad in windows
    )
    return ceil_mode, counts and (ceil_mode or any(pads))
