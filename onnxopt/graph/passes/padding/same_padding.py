"""Padding that a graph computes of its input's height and width, as networks of TensorFlow are exported.

Conv(Pad(x, [0, 0, t // 2, l // 2, 0, 0, t - t // 2, l - l // 2])) -> Conv<auto_pad = SAME_UPPER>(x)

    t = max((ceil(h / stride) - 1) * stride + (kernel - 1) * dilation + 1 - h, 0), l likewise of the width

What computed the pads is left for other passes to remove.
"""

from __future__ import annotations

import onnx_ir as ir
import sympy

from onnxopt.graph.shapes.dims import Dim, greatest, simplest
from onnxopt.graph.shapes.infer import Knowledge, infer

_RANK = 4


class SamePaddingPass(ir.passes.InPlacePass):
    """Lets convolutions pad their input themselves. No result changes."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        pads = [n for graph in model.graphs() for n in graph if n.op_type == "Pad" and n.domain == ""]
        computed = [
            n for n in pads if len(n.inputs) > 1 and n.inputs[1] is not None and n.inputs[1].const_value is None
        ]
        inferred = infer(model) if computed else None
        modified = False
        for pad in computed:
            assert inferred is not None
            modified |= _fold(pad, inferred)
        return ir.passes.PassResult(model, modified)


def _fold(pad: ir.Node, inferred: Knowledge) -> bool:
    """Let the one convolution that reads a Pad pad its input as the Pad does, where auto_pad says so."""
    readers = list(pad.outputs[0].uses())
    conv = readers[0].node if len(readers) == 1 else None
    if conv is None or conv.op_type != "Conv" or conv.domain != "" or pad.outputs[0].is_graph_output():
        return False
    if readers[0].idx != 0 or not _pads_with_zeros(pad) or not _is_same(pad, conv, inferred):
        return False
    conv.replace_input_with(0, pad.inputs[0])
    conv.attributes.pop("pads", None)
    conv.attributes["auto_pad"] = ir.AttrString("auto_pad", "SAME_UPPER")
    return True


def _pads_with_zeros(pad: ir.Node) -> bool:
    fill = pad.inputs[2] if len(pad.inputs) > 2 else None
    zero = fill is None or (
        fill.const_value is not None and not fill.is_graph_input() and not fill.const_value.numpy().any()
    )
    all_axes = len(pad.inputs) < 4 or pad.inputs[3] is None
    return zero and all_axes and pad.attributes.get_string("mode", "constant") == "constant"


def _is_same(pad: ir.Node, conv: ir.Node, inferred: Knowledge) -> bool:
    """Whether the pads are those of SAME_UPPER at every size of the input."""
    dims, weight, pads = inferred.dims(pad.inputs[0]), inferred.dims(conv.inputs[1]), inferred.contents(pad.inputs[1])
    of = conv.attributes
    if dims is None or weight is None or pads is None or len(dims) != _RANK or pads.size != 2 * _RANK:
        return False
    if of.get_string("auto_pad", "NOTSET") not in ("NOTSET", "VALID") or any(of.get_ints("pads", ())):
        return False
    strides, dilations = (of.get_ints(name, (1, 1)) for name in ("strides", "dilations"))
    kernel = weight[2:]
    if len(kernel) != 2 or any(d != 1 for d in dilations) or not all(isinstance(k, int) for k in kernel):
        return False  # ONNX Runtime takes no dilations beside auto_pad
    begin, end = list(pads.flat)[:_RANK], list(pads.flat)[_RANK:]
    if begin[:2] != [0, 0] or end[:2] != [0, 0]:
        return False
    for axis, side in enumerate(kernel):
        total = _padding(dims[2 + axis], int(side), strides[axis])  # type: ignore[call-overload]
        if simplest(begin[2 + axis] + end[2 + axis] - total) != 0:
            return False
        if simplest(begin[2 + axis] - sympy.floor(sympy.sympify(total) / 2)) != 0:
            return False
    return True


def _padding(size: Dim, kernel: int, stride: int) -> Dim:
    """What SAME adds to both sides together."""
    windows = sympy.ceiling(sympy.sympify(size) / stride)
    return greatest(0, simplest((windows - 1) * stride + kernel - size))
