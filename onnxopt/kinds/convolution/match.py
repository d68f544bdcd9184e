"""Convolution regions: a Conv in NHWC with the residual and the activation behind it.

    Transpose -> Conv with bias -> Transpose -> Add residual -> Relu
    Transpose -> Conv with bias -> Transpose -> SiLU | Clip | LeakyRelu | HardSwish -> Add residual

The Transposes are those of the layout pass (fusion/channels_last.py). The library runs a region as one call of cuDNN.
Every convolution in NHWC becomes a region, also one that nothing follows: ONNX Runtime would run the Transposes. Conv
may be a ConvTranspose. Only 1x1 convolutions without an activation, or with a Relu, are left to the kind gemm.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import onnx_ir as ir

from onnxopt.fusion import cost
from onnxopt.fusion.channels_last import CONVOLUTIONS, RSK, sandwich
from onnxopt.fusion.context import Context
from onnxopt.fusion.region import Kind, Region
from onnxopt.graph.codes import is_dequantize
from onnxopt.graph.layout.orders import RANKS
from onnxopt.graph.match import is_constant
from onnxopt.graph.refusal import Refusal
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.convolution.codes import why_not as why_not_codes
from onnxopt.kinds.convolution.steps import GrowingConvolution, candidates, is_step, rounds, runs_codes, start, take
from onnxopt.program.convolution import Convolution

_STAYS_NCHW = "auto_pad, output_shape and a computed weight keep a ConvTranspose in NCHW"
_COMPUTED_WEIGHT = "The weight is computed at run time, which keeps the Conv in NCHW, as ONNX Runtime's own kernel"


def find(context: Context, kind: Kind) -> tuple[list[Region], list[Refusal]]:
    """Regions of all convolutions in NHWC that no other kind has taken, and refusals of them and their neighbours."""
    regions: list[Region] = []
    refusals: list[Refusal] = []
    for convolution in grown(context, refusals):
        region = _region(convolution, context, kind)
        region.verify()
        regions.append(region)
        context.contract(region.nodes)
    return regions, refusals


def grown(context: Context, refusals: list[Refusal], *, in_block: bool = False) -> Iterator[GrowingConvolution]:
    """All convolutions in NHWC that no kind has taken and that are left to no other one, with what they absorb.

    refusals: of the convolutions and their neighbours, which are added. in_block: whether they will share tensors.
    """
    for node in list(context.order):
        if node.op_type not in CONVOLUTIONS or node.domain != "" or context.is_owned(node):
            continue
        convolution = start(node, context.shapes)
        if not isinstance(convolution, str) and convolution.codes is not None and in_block:
            continue
        if isinstance(convolution, str):
            around = sandwich(node, context.shapes)
            is_depthwise = not isinstance(around, str) and around.group > 1 and around.weight_order == RSK
            if isinstance(around, str) and node.op_type == "ConvTranspose":
                refusals.append(Refusal(node.name or "", node.op_type, "", f"{around}; {_STAYS_NCHW}"))
            elif isinstance(around, str) and _computes_weight(node, context.shapes):
                refusals.append(Refusal(node.name or "", node.op_type, "", _COMPUTED_WEIGHT))
            elif isinstance(around, str) and context.cuda and (reason := why_not_codes(node, context.shapes)):
                refusals.append(Refusal(node.name or "", node.op_type, "", f"{reason}; ONNX Runtime runs it on floats"))
            if not isinstance(around, str) and not is_depthwise:  # that kind says why it leaves one
                refusals.append(Refusal(node.name or "", node.op_type, "", convolution))
            continue
        if any(map(context.is_owned, convolution.nodes)):
            continue
        convolution, refused = _grow(dataclasses.replace(convolution, in_block=in_block), context)
        if convolution.codes is None and convolution.is_product() and convolution.activation.name in ("none", "relu"):
            continue  # cuBLASLt takes less time for most such layers (benchmarks/notes), and the kind gemm runs it
        refusals += refused
        if convolution.codes is not None and not runs_codes(convolution):
            reason = (
                "cuDNN multiplies int8 with the zero point 0, and no kernel of onnxopt computes what follows the Conv"
                " of other codes"
            )
            refusals.append(Refusal(node.name or "", node.op_type, "", reason))
            continue
        yield convolution


def lower(region: Region, shapes: Shapes) -> Convolution:
    """The meaning of a region of `find`."""
    convolution = start(next(n for n in region.nodes if n.op_type in CONVOLUTIONS), shapes)
    if isinstance(convolution, str):
        raise ValueError(f"`{region.nodes[0].name}` is no convolution in NHWC: {convolution}")
    while convolution.output is not region.outputs[0]:
        nodes = [n for n in candidates(convolution.output) if n in region.nodes]
        reason = take(convolution, nodes, shapes) if nodes else "its result has several readers"
        if reason is not None:
            raise ValueError(f"a convolution does not fuse the consumer of `{convolution.output.name}`: {reason}")
    return convolution.meaning(region.inputs, shapes)


def _computes_weight(conv: ir.Node, shapes: Shapes) -> bool:
    """Whether a Conv of images or volumes has a weight that is neither a constant nor dequantized."""
    weight = conv.inputs[1]
    if weight is None or is_constant(weight) or len(shapes.dims(weight) or ()) not in RANKS:
        return False
    return not is_dequantize(weight.producer())


def _grow(convolution: GrowingConvolution, context: Context) -> tuple[GrowingConvolution, list[Refusal]]:
    """The convolution with all nodes that it can absorb, and the refusals of its reader where it cannot."""
    conv = convolution.conv
    while True:
        nodes = candidates(convolution.output)
        readers = [n for n in dict.fromkeys(convolution.output.consumers()) if is_step(n)]
        if not nodes:
            reason = f"`{convolution.output.name}` is read elsewhere too, so the Conv must write it first"
            open_readers = [r for r in readers if not context.is_owned(r) and convolution.can_take_more()]
            return convolution, [Refusal(n.name or "", n.op_type, conv.name or "", reason) for n in open_readers]
        if any(map(context.is_owned, nodes)):
            if context.is_owned(nodes[0]) or not rounds(nodes):
                return convolution, []
            nodes = nodes[:1]
        grown, reason_against = _grown_by(convolution, nodes, context)
        if reason_against is not None and rounds(nodes):
            nodes = nodes[:1]
            grown, reason_against = _grown_by(convolution, nodes, context)
        if reason_against is not None:
            last = nodes[-1]
            refusal = Refusal(last.name or "", last.op_type, conv.name or "", reason_against)
            return convolution, [refusal] if is_step(last) else []
        convolution = grown


def _grown_by(
    convolution: GrowingConvolution, nodes: Sequence[ir.Node], context: Context
) -> tuple[GrowingConvolution, str | None]:
    """The convolution with the nodes of a step, and the reason against them, if there is one."""
    grown = dataclasses.replace(convolution, nodes=list(convolution.nodes))
    reason = take(grown, nodes, context.shapes)
    if reason is None and context.makes_cycle(grown.nodes):
        reason = "The other operand depends on the convolution's result"
    return grown, reason


def _region(convolution: GrowingConvolution, context: Context, kind: Kind) -> Region:
    nodes = sorted(convolution.nodes, key=context.order.__getitem__)
    inputs = list(dict.fromkeys(convolution.operands()))
    outputs = [convolution.output]
    moved = cost.region_traffic(nodes, inputs, outputs, context.shapes)
    return Region(tuple(nodes), tuple(inputs), tuple(outputs), moved, kind)
