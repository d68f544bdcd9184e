"""Pool regions: a MaxPool or AveragePool of two dims that stands between the Transposes of the layout pass.

    x [N, H, W, C] -> Transpose -> MaxPool | AveragePool -> Transpose -> y [N, Ho, Wo, C]

cuDNN's pools of NHWC tensors take up to twenty times as long as a copy of the tensor (benchmarks/notes). On the CPU,
ONNX Runtime runs the inlined function and cancels its Transposes against its neighbours'.
"""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from onnxopt.fusion import channels_last, cost
from onnxopt.fusion.context import Context
from onnxopt.fusion.region import Kind, Region
from onnxopt.graph.refusal import Refusal
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.program.pool import DTYPES, OPERATIONS, Pool

_SINCE = 11  # the versions whose attributes mean what Pool says


def find(context: Context, kind: Kind) -> tuple[list[Region], list[Refusal]]:
    """A region for every pool that a kernel can run, and refusals of the others."""
    regions: list[Region] = []
    refusals: list[Refusal] = []
    for node in list(context.order):
        if node.op_type not in OPERATIONS or node.domain != "" or context.is_taken(node):
            continue
        around = channels_last.between_transposes(node, context.shapes)
        meaning = _meaning(node, context) if not isinstance(around, str) else around
        if isinstance(around, str) or isinstance(meaning, str):
            refusals.append(Refusal(node.name or "", node.op_type, "", str(meaning)))
            continue
        region = _region(node, around, meaning, context, kind)
        region.verify()
        regions.append(region)
        context.contract(region.nodes)
    return regions, refusals


def lower(region: Region, shapes: Shapes) -> Pool:
    """The meaning of a region of `find`."""
    meaning = _of(region.nodes[1], shapes)
    if isinstance(meaning, str):
        raise ValueError(f"`{region.nodes[1].name}` is not a pool of a kernel: {meaning}")
    return meaning


def _region(
    node: ir.Node, around: tuple[ir.Node, ir.Node], meaning: Pool, context: Context, kind: Kind
) -> Region:  # fmt: skip
    turn, back = around
    x = turn.inputs[0]
    assert x is not None
    outputs = (back.outputs[0],)
    moved = cost.of_region([node], (x,), outputs, context.shapes)
    return Region((turn, node, back), (x,), outputs, moved, kind, meaning)


def _meaning(node: ir.Node, context: Context) -> Pool | str:
    if context.opsets.get("", 0) < _SINCE:
        return f"{node.op_type} can be fused from opset {_SINCE} on"
    return _of(node, context.shapes)


def _of(node: ir.Node, shapes: Shapes) -> Pool | str:
    """What the pool computes, or the reason why no kernel can run it."""
    operation, x = OPERATIONS[node.op_type], node.inputs[0]
    if len(node.outputs) > 1:
        return "The kernel does not compute the Indices of MaxPool"
    dtype = shapes.dtype(x) if x is not None else None
    if dtype is None or dtype.name not in DTYPES[operation]:
        return f"No kernel runs {node.op_type} of {dtype.name if dtype else 'an unknown dtype'}"
    window = channels_last.window_of(node)
    if window is None:
        return f"{node.op_type} has no kernel_shape of two numbers"
    # The dilation of one row or column changes nothing.
    down, across = (1 if side == 1 else d for side, d in zip(window.kernel, window.dilations, strict=True))
    window = dataclasses.replace(window, dilations=(down, across))
    ceil_mode, count_include_pad = (bool(node.attributes.get_int(n, 0)) for n in ("ceil_mode", "count_include_pad"))
    stored = (dtype.name,)
    pool = Pool(stored, stored, operation, window, ceil_mode, operation == "average" and count_include_pad)
    if broken := pool.reason():
        return f"No kernel runs {node.op_type}: its {broken}"
    return pool
