"""Constant padding becomes a part of the convolution or pool that reads it.

    Conv(Pad(x, 0), pads = p)                               -> Conv(x, pads = p + Pad's)
    QLinearConv(Pad(x, zero point), ...), ConvInteger       -> likewise
    Conv(DequantizeLinear(Pad(x, zero point)))              -> Conv(DequantizeLinear(x)), likewise
    AveragePool<count_include_pad = 1>(Pad(x, 0))           -> likewise
    MaxPool(Pad(x, the lowest number))                      -> likewise
    MaxPool(Pad(x, 0)), where no element of x is negative   -> likewise

TensorFlow and Keras state padding as nodes of their own (ZeroPadding2D). Negative pads crop and stay.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from onnxopt.graph.codes import DEQUANTIZE, QUANTIZE, is_plain
from onnxopt.graph.match import constant, operand

_ZERO_POINTS = {"ConvInteger": 2, "QLinearConv": 2}  # where an operator has the zero point of its first input
_POOLS = frozenset({"AveragePool", "MaxPool"})
_READERS = frozenset({"Conv", *_ZERO_POINTS, *_POOLS})
_NEVER_NEGATIVE = frozenset({"Abs", "Exp", "HardSigmoid", "ReduceL1", "ReduceL2", "Relu", "Sigmoid", "Softmax", "Sqrt"})
_KEEP_SIGNS = frozenset(
    {"Add", "AveragePool", "Cast", "Concat", "DepthToSpace", "GlobalAveragePool", "Identity", "MaxPool", "Mul"}
    | {"Reshape", "Slice", "SpaceToDepth", "Transpose"}
)  # of inputs that are never negative, no output is; Reshape's and Slice's further inputs are integers
_DEPTH = 8  # nodes that are asked for signs


class ConstantPaddingPass(ir.passes.InPlacePass):
    """The pass. No result changes. Pads that nobody reads any more stay, for other passes to remove."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        modified = False
        for graph in model.graphs():
            for node in graph:
                if node.op_type in _READERS and node.domain == "":
                    while _take(node):
                        modified = True
        return ir.passes.PassResult(model, modified)


@dataclasses.dataclass(frozen=True)
class _Padding:
    """before, after: along each spatial axis. fill: a number, or a code where the padded tensor holds codes."""

    node: ir.Node
    before: tuple[int, ...]
    after: tuple[int, ...]
    fill: np.ndarray


def _take(reader: ir.Node) -> bool:
    """Let a convolution or pool pad as the Pad does that its input comes from."""
    spatial = _spatial_rank(reader)
    chain = _path_to_pad(reader)
    if spatial is None or chain is None:
        return False
    pad, *through = chain
    padding = _padding(pad, spatial)
    if padding is None or not _same_at_borders(reader, through, padding):
        return False
    pads = _pads(reader, spatial)
    if pads is None or not _fits(reader, pads, padding):
        return False
    first = through[0] if through else reader
    first.replace_input_with(0, pad.inputs[0])
    for value in (value for node in through for value in node.outputs):
        value.shape = None
    total = [p + q for p, q in zip(pads, (*padding.before, *padding.after), strict=True)]
    reader.attributes.pop("auto_pad", None)
    reader.attributes["pads"] = ir.AttrInt64s("pads", total)
    if reader.op_type == "AveragePool":
        reader.attributes["count_include_pad"] = ir.AttrInt64("count_include_pad", 1)
    return True


def _path_to_pad(reader: ir.Node) -> list[ir.Node] | None:
    """The Pad and, downstream, the QuantizeLinear and DequantizeLinear up to the reader, which nobody else reads."""
    path: list[ir.Node] = []
    value = reader.inputs[0]
    while value is not None and (node := value.producer()) is not None and node.domain == "":
        path.insert(0, node)
        if node.op_type == "Pad":
            return path if node.graph is reader.graph else None
        alone = len(value.uses()) == 1 and not value.is_graph_output()
        if node.op_type not in (QUANTIZE, DEQUANTIZE) or not is_plain(node) or not alone:
            return None
        value = node.inputs[0]
    return None


def _spatial_rank(reader: ir.Node) -> int | None:
    kernel = reader.attributes.get_ints("kernel_shape", ())
    if kernel:
        return len(kernel)
    position = 3 if reader.op_type == "QLinearConv" else 1
    weight = reader.inputs[position] if len(reader.inputs) > position else None
    return None if weight is None or weight.shape is None else weight.shape.rank() - 2


def _padding(pad: ir.Node, spatial: int) -> _Padding | None:
    """What a Pad adds, where that is constant, along spatial axes alone, and nowhere negative."""
    pads, fill, axes = (constant(operand(pad, k)) for k in (1, 2, 3))
    if pads is None or pad.attributes.get_string("mode", "constant") != "constant":
        return None
    if (fill is None and operand(pad, 2) is not None) or (axes is None and operand(pad, 3) is not None):
        return None
    rank = spatial + 2
    places = [int(axis) % rank for axis in axes.flat] if axes is not None else list(range(rank))
    if pads.size != 2 * len(places) or len(set(places)) < len(places):
        return None
    begins, ends = [0] * rank, [0] * rank
    for k, place in enumerate(places):
        begins[place], ends[place] = int(pads.flat[k]), int(pads.flat[k + len(places)])
    if any((*begins[:2], *ends[:2])) or min(*begins, *ends) < 0:
        return None
    return _Padding(pad, tuple(begins[2:]), tuple(ends[2:]), np.zeros((), np.float32) if fill is None else fill)


def _same_at_borders(reader: ir.Node, through: list[ir.Node], padding: _Padding) -> bool:
    """Whether the reader takes what the Pad fills in, as it arrives, for what it pads with itself."""
    neutral: np.ndarray | None = padding.fill
    for node in through:
        neutral = _at_other_side(node, neutral)
        if neutral is None:
            return False
    assert neutral is not None
    if neutral.size != 1:
        return False
    number = neutral.reshape(())
    if reader.op_type in _ZERO_POINTS:
        return _is(reader, _ZERO_POINTS[reader.op_type], number)
    if reader.op_type == "MaxPool":
        if number <= _lowest(number):
            return True
        return bool(number == 0) and not through and _never_negative(padding.node.inputs[0], _DEPTH)
    return bool(number == 0)


def _at_other_side(node: ir.Node, value: np.ndarray | None) -> np.ndarray | None:
    """The zero point where a QuantizeLinear reads 0, and 0 where a DequantizeLinear reads the zero point."""
    if value is None or value.size != 1:
        return None
    if node.op_type == DEQUANTIZE:
        return np.zeros((), np.float32) if _is(node, 2, value.reshape(())) else None
    if value.reshape(()) != 0:
        return None
    return constant(operand(node, 2)) if operand(node, 2) is not None else np.zeros((), np.uint8)


def _is(node: ir.Node, position: int, code: np.ndarray) -> bool:
    """Whether the node's zero point is this code. Where there is none, it is 0."""
    if operand(node, position) is None:
        return bool(code == 0)
    zero_point = constant(operand(node, position))
    return zero_point is not None and zero_point.size == 1 and bool(zero_point.reshape(()) == code)


def _lowest(number: np.ndarray) -> float:
    if np.issubdtype(number.dtype, np.integer):
        return float(np.iinfo(number.dtype).min)
    return float(ir.DataType.from_numpy(number.dtype).min)


def _never_negative(value: ir.Value | None, depth: int) -> bool:
    """Whether the graph says that no element of a tensor is below 0."""
    node = None if value is None else value.producer()
    if node is None or node.domain != "" or depth == 0:
        return False
    if node.op_type in _NEVER_NEGATIVE:
        return True
    if node.op_type == "Clip":
        lowest = constant(operand(node, 1))
        return lowest is not None and bool(lowest >= 0)
    if node.op_type not in _KEEP_SIGNS:
        return False
    several = node.op_type in ("Add", "Concat", "Mul")
    return all(_never_negative(read, depth - 1) for read in node.inputs[: None if several else 1])


def _pads(reader: ir.Node, spatial: int) -> tuple[int, ...] | None:
    """The reader's own pads. None where it computes them, or where they cannot be added to."""
    way = reader.attributes.get_string("auto_pad", "NOTSET")
    if way not in ("NOTSET", "VALID"):
        return None
    none = (0,) * (2 * spatial)
    pads = tuple(reader.attributes.get_ints("pads", none)) if way == "NOTSET" else none
    return pads if len(pads) == len(none) and min(pads) >= 0 else None


def _fits(reader: ir.Node, pads: tuple[int, ...], padding: _Padding) -> bool:
    """Whether a pool takes the sum of the pads: ONNX Runtime wants each below the kernel, so no window lies in them."""
    if reader.op_type not in _POOLS:
        return True
    of = reader.attributes
    total = [p + q for p, q in zip(pads, (*padding.before, *padding.after), strict=True)]
    kernel = of.get_ints("kernel_shape", ())
    if of.get_int("ceil_mode", 0) or any(d != 1 for d in of.get_ints("dilations", ())):
        return False
    if any(p >= k for p, k in zip(total, (*kernel, *kernel), strict=True)) or len(reader.outputs) > 1:
        return False
    return reader.op_type == "MaxPool" or bool(of.get_int("count_include_pad", 0)) or not any(pads)
