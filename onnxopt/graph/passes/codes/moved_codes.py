"""Codes are moved in place of the numbers that they stand for.

    Move(DequantizeLinear(x))                       -> DequantizeLinear(Move(x))
    Concat(DequantizeLinear(x), ...)                -> DequantizeLinear(Concat(x, ...))     of one scale and zero point
    QuantizeLinear(View(x))                         -> View(QuantizeLinear(x))
    QuantizeLinear(DequantizeLinear(x, s, z), s, z) -> x

All are exact: a Move copies elements, and the last row holds where (x - z) * s is off by less than half a step. Scales
are of the whole tensor. Codes are uint8, int16 or uint16, which every provider moves.

int8 is left alone: on x86-64, ONNX Runtime's CPU provider has integer kernels of uint8 only for most operators. It
turns int8 into uint8 where a DequantizeLinear stands right behind its QuantizeLinear, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnxopt.graph.codes import DEQUANTIZE, QUANTIZE, dtype_of, is_plain, scalar

VIEWS = frozenset({"Flatten", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
_PARTS = frozenset({"Gather", "Slice"})  # no larger than what they read, as a rule
_MOVES = VIEWS | _PARTS | {"DepthToSpace", "SpaceToDepth", "Split"}
_CODES = frozenset({ir.DataType.UINT8, ir.DataType.INT16, ir.DataType.UINT16})
_FARTHEST = {ir.DataType.FLOAT: 2.0**17, ir.DataType.FLOAT16: 2.0**9}  # code minus zero point, whose product is exact


class MoveCodesPass(ir.passes.InPlacePass):
    """The pass. Nodes that nobody reads any more stay; new values need names. Nodes must be in topological order.

    laid_out: whether Transposes beside a Conv are its kernel's, so that nothing is moved over them.
    """

    def __init__(self, *, laid_out: bool = False) -> None:
        super().__init__()
        self._laid_out = laid_out

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        if not any(node.op_type == DEQUANTIZE for node in model.graph.all_nodes()):
            return ir.passes.PassResult(model, False)
        changed = False
        for graph in model.graphs():
            for node in tuple(graph):
                changed |= (not self._stays(node) and _move_down(node)) or _cancel(node)
            for node in reversed(tuple(graph)):
                view = node.inputs[0].producer() if node.inputs and node.inputs[0] is not None else None
                changed |= not self._stays(view) and _move_up(node)
        return ir.passes.PassResult(model, changed)

    def _stays(self, node: ir.Node | None) -> bool:
        """Whether a node is a Transpose of a Conv's operand or result."""
        if not self._laid_out or node is None or node.op_type != "Transpose":
            return False
        around = [node.inputs[0].producer() if node.inputs[0] is not None else None, *node.outputs[0].consumers()]
        return any(n is not None and n.op_type == "Conv" for n in around)


def _move_down(node: ir.Node) -> bool:
    """Let a Move, or a Concat, read codes. DQ stands behind it then."""
    if node.domain != "" or (node.op_type not in _MOVES and node.op_type != "Concat"):
        return False
    count = len(node.inputs) if node.op_type == "Concat" else 1
    sources = [_source(value, node) for value in node.inputs[:count]]
    first = sources[0] if sources else None
    if first is None or any(s is None or not _same_codes(s, first) for s in sources):
        return False
    codes = [s.inputs[0] for s in sources if s is not None]
    moved = _like(node, [*codes, *node.inputs[count:]], dtype_of(codes[0]))
    for old, new in zip(node.outputs, moved.outputs, strict=True):
        _replace(old, _like(first, [new, *first.inputs[1:]], old.dtype, template=node))
    return True


def _source(value: ir.Value | None, reader: ir.Node) -> ir.Node | None:
    """The DQ behind a value that should stand behind the reader instead."""
    node = None if value is None else value.producer()
    if node is None or value is None or node.op_type != DEQUANTIZE or not is_plain(node):
        return None
    if node.graph is not reader.graph or dtype_of(node.inputs[0]) not in _CODES:
        return None
    # Where others read the numbers, DQ would run twice; it costs less than before where the reader takes a part.
    moves_all = all(r.op_type in _MOVES or r.op_type == "Concat" for r in value.consumers())
    return node if reader.op_type in _PARTS or (moves_all and not value.is_graph_output()) else None


def _move_up(node: ir.Node) -> bool:
    """Quantize before a view."""
    if node.op_type != QUANTIZE or not is_plain(node) or node.inputs[0] is None:
        return False
    view, between = node.inputs[0].producer(), node.inputs[0]
    if view is None or view.op_type not in VIEWS or view.domain != "" or view.graph is not node.graph:
        return False
    if (
        len(between.uses()) != 1
        or between.is_graph_output()
        or dtype_of(node.outputs[0]) not in _CODES - {ir.DataType.INT8}
    ):
        return False
    if view.inputs[0] is None or view.inputs[0].const_value is not None or view.inputs[0].is_graph_input():
        return False
    quantized = _like(node, [view.inputs[0], *node.inputs[1:]], dtype_of(node.outputs[0]))
    _replace(
        node.outputs[0], _like(view, [quantized.outputs[0], *view.inputs[1:]], dtype_of(node.outputs[0]), template=node)
    )
    return True


def _cancel(node: ir.Node) -> bool:
    """Drop a Q behind a DQ of the same codes."""
    value = node.inputs[0] if node.inputs else None
    source = None if value is None else value.producer()
    if node.op_type != QUANTIZE or source is None or source.op_type != DEQUANTIZE:
        return False
    if not (is_plain(node) and is_plain(source) and _same_codes(source, node)):
        return False
    codes = source.inputs[0]
    if codes is None or dtype_of(codes) != dtype_of(node.outputs[0]) or not _is_exact(source):
        return False
    if node.outputs[0].is_graph_output():
        return False
    node.outputs[0].replace_all_uses_with(codes)
    return True


def _is_exact(dequantize: ir.Node) -> bool:
    """Whether quantizing the numbers of a DQ gives its codes again."""
    scale, dtype = scalar(dequantize.inputs[1]), dtype_of(dequantize.inputs[0])
    if scale is None or dtype is None or dtype not in _CODES:
        return False
    farthest = _FARTHEST.get(dtype_of(dequantize.inputs[1]) or ir.DataType.UNDEFINED, 0.0)
    span, step = 2.0 ** (dtype.bitwidth + 1), float(scale.reshape(()))
    return span <= farthest and step > 0 and step * span <= float(np.finfo(scale.dtype).max)


def _same_codes(one: ir.Node, other: ir.Node) -> bool:
    """Whether two nodes have equal scales and zero points, of the same dtypes."""
    scales = [scalar(n.inputs[1]) for n in (one, other)]
    zeros = [scalar(n.inputs[2]) if len(n.inputs) > 2 else None for n in (one, other)]
    dtypes = [(dtype_of(n.inputs[1]), dtype_of(_codes(n))) for n in (one, other)]
    points = [0 if z is None else int(z.reshape(())) for z in zeros]
    steps = [None if s is None else float(s.reshape(())) for s in scales]
    return dtypes[0] == dtypes[1] and steps[0] == steps[1] and points[0] == points[1]


def _codes(node: ir.Node) -> ir.Value | None:
    """The codes that a DQ reads or a Q writes."""
    return node.inputs[0] if node.op_type == DEQUANTIZE else node.outputs[0]


def _like(
    node: ir.Node, inputs: Sequence[ir.Value | None], dtype: ir.DataType | None, template: ir.Node | None = None
) -> ir.Node:
    """A new node of the same operator and attributes, before `template` or the node itself."""
    new = ir.Node(
        node.domain, node.op_type, inputs, list(node.attributes.values()), num_outputs=len(node.outputs), name=node.name
    )
    for old, value in zip(node.outputs, new.outputs, strict=True):
        value.type, value.shape = None if dtype is None else ir.TensorType(dtype), old.shape
    place = template or node
    assert place.graph is not None
    place.graph.insert_before(place, new)
    return new


def _replace(old: ir.Value, node: ir.Node) -> None:
    """Let everybody read the result of a node instead of `old`."""
    new = node.outputs[0]
    new.name, new.type, new.shape = old.name, old.type, old.shape
    old.replace_all_uses_with(new, replace_graph_outputs=True)
