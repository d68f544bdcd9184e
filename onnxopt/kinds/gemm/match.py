"""GEMM regions: a MatMul or Gemm with the Transposes before it, and scale, bias, residual and activation behind it.

    Transpose -> MatMul | Gemm -> Mul | Div by a constant -> Add bias -> Reshape -> Add residual -> Relu | Gelu | SiLU
    Transpose -> MatMul | Gemm -> Mul | Div by a constant -> Add bias -> Relu | Gelu -> Split into equal columns
    Transpose -> 1x1 Conv -> Transpose -> the same nodes, with a weight for all samples or one for each
    (kinds/gemm/convolution.py)
    MatMulNBits -> the same nodes (kinds/gemm/packed.py)
    MatMulNBits -> Split -> Mul of one half behind an activation and the other (kinds/gemm/gated.py)

An exact Gelu and a SiLU are absorbed before another product or convolution (kinds/gemm/large_products.py).

A GEMM absorbs the nodes that follow it, one step at a time, while its value has one reader (kinds/gemm/steps.py). The
library runs the result as one call of cuBLASLt. Transposed weights are read without a copy
(graph/passes/transposed_weights.py).

Two kinds of GEMM stay with the execution provider, which folds scales and Transposes itself and calls cuBLASLt with the
same heuristic (measured, benchmarks/notes): a GEMM with neither bias nor residual nor activation, and a GEMM whose
bias or residual a following pointwise kernel can add at no cost, because that kernel reads the GEMM's result anyway.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import onnx_ir as ir

from onnxopt.fusion import cost, eligibility
from onnxopt.fusion.context import Context
from onnxopt.fusion.region import Kind, Region
from onnxopt.graph.codes import is_quantize
from onnxopt.graph.refusal import Refusal
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.gemm import convolution, gated, packed, steps
from onnxopt.kinds.gemm.growing import GrowingGemm
from onnxopt.kinds.gemm.steps import EPILOGUE, following, take, take_rows, take_transposes
from onnxopt.program.gemm import Gemm

_OPERATORS = frozenset({"MatMul", "Gemm", "Conv"})


def find(context: Context, kind: Kind) -> tuple[list[Region], list[Refusal]]:
    """Regions of GEMMs that absorb other nodes, and the refusals of their neighbours."""
    regions: list[Region] = []
    refusals: list[Refusal] = []
    for node in list(context.order):
        if not _is_gemm(node) or context.is_owned(node):
            continue
        gemm, refused = _grow(node, context)
        refusals += refused
        if gemm is None or not gemm.can_fuse():
            continue
        if node.op_type == "Conv" and any(map(context.is_owned, gemm.nodes)):
            continue  # another kind has a Transpose of it; nodes of products of codes are reserved for their products
        if (reason := _better_as_epilogue(gemm, context)) is not None:
            refusals.append(Refusal(node.name or "", node.op_type, gemm.nodes[-1].name or "", reason))
            gemm = _alone(node, context)
            if not gemm.can_fuse():
                continue
        region = _region(gemm, context, kind)
        region.verify()
        regions.append(region)
        context.contract(region.nodes)
    return regions, refusals


def reserve(context: Context) -> None:
    """Keep what makes numbers of a product's codes for the product: other kinds would store the numbers for it."""
    if not context.cuda:
        return
    for node in list(context.order):
        gemm = _start(node, context.shapes, lambda _: True) if _is_gemm(node) and node.op_type != "Conv" else ""
        if not isinstance(gemm, str) and gemm.multiplies_codes and not gemm.unread:
            context.take([[n for n in gemm.nodes if n is not node]])


def lower(region: Region, shapes: Shapes) -> Gemm:
    """The meaning of a region of `find`."""
    gemm = _start(next(n for n in region.nodes if _is_gemm(n)), shapes, set(region.nodes).__contains__)
    if isinstance(gemm, str):
        raise ValueError(f"`{region.nodes[0].name}` is not a GEMM: {gemm}")
    while gemm.output is not region.outputs[0]:
        if gated.take(gemm, shapes):
            continue
        nodes = following(gemm.output)
        reason = take(gemm, nodes, shapes)
        if reason is not None:
            raise ValueError(f"`{nodes[-1].name}` is in the region of a GEMM that cannot take it in: {reason}")
    return gemm.meaning(region.inputs, shapes)


def _is_gemm(node: ir.Node) -> bool:
    return (node.op_type in _OPERATORS and node.domain == "") or packed.is_packed(node)


def _start(node: ir.Node, shapes: Shapes, is_free: Callable[[ir.Node], bool]) -> GrowingGemm | str:
    """The GEMM of a node and the Transposes that belong to it, or the reason why cuBLASLt cannot run the node.

    is_free: whether a Transpose can belong to it: no kernel of another kind has it.
    """
    if node.op_type == "Conv":
        return convolution.start(node, shapes)
    if packed.is_packed(node):
        return packed.start(node, shapes)
    gemm = steps.start(node, shapes)
    if isinstance(gemm, str):
        return gemm
    convolved = convolution.sample_product(node, shapes)
    if convolved is not None and all(n is node or is_free(n) for n in convolved.nodes):
        return convolved
    take_transposes(gemm, shapes, is_free)
    take_rows(gemm, shapes, is_free)
    return gemm


def _grow(node: ir.Node, context: Context) -> tuple[GrowingGemm | None, list[Refusal]]:
    """The GEMM of a node with all nodes that it can absorb, and the refusals of further nodes."""
    gemm = _start(node, context.shapes, lambda n: not context.is_owned(n))
    if not isinstance(gemm, str) and not context.cuda and (reason := eligibility.reason_for_provider(node)) is not None:
        gemm = reason
    if isinstance(gemm, str):
        if node.op_type == "Conv":
            return None, []  # the kinds of convolutions say why a Conv stays
        adds = node.op_type == "Gemm" and len(node.inputs) > 2
        refused = [Refusal(node.name or "", node.op_type, "", gemm)]
        says = adds or packed.is_packed(node) or _epilogue_follows(node.outputs[0])
        return None, refused if says else []
    best = gemm
    while True:
        nodes = [] if gemm.parts else following(gemm.output)
        if not nodes or any(map(context.is_owned, nodes)):
            break
        grown = dataclasses.replace(gemm, nodes=list(gemm.nodes))
        if take(grown, nodes, context.shapes) is not None:
            break
        if context.makes_cycle(grown.nodes):
            break
        gemm = grown
        # A Reshape is absorbed only together with a residual of its shape, which gives the output its dims.
        if gemm.residual is not None or not gemm.residual_shape:
            best = gemm
    whole = dataclasses.replace(best, nodes=list(best.nodes))
    if gated.take(whole, context.shapes) and not any(map(context.is_owned, whole.nodes[len(best.nodes) :])):
        return whole, []
    return best, _refusals(node, best, context)


def _alone(node: ir.Node, context: Context) -> GrowingGemm:
    """The GEMM of a node without the nodes behind it."""
    gemm = _start(node, context.shapes, lambda n: not context.is_owned(n))
    if isinstance(gemm, str):
        raise ValueError(f"`{node.name}` was a GEMM before: {gemm}")
    return gemm


def _better_as_epilogue(gemm: GrowingGemm, context: Context) -> str | None:
    """The reason why the kernel of the readers should add the bias or residual, None where the GEMM should.

    Such a kernel is elementwise and reads the GEMM's result anyway. A result that an Add reads is part of the residual
    stream between norms and GEMMs, where the GEMM adds.
    """
    readers = list(dict.fromkeys(gemm.output.consumers()))
    gemm_adds = any(
        n.op_type == "Gemm" and len(n.inputs) > 2 for n in gemm.nodes
    )  # ONNX Runtime's Gemm is slow at adding C
    adds = gemm.bias is not None or gemm.residual is not None
    if gemm.is_convolution() or gemm.gate is not None:  # which add their bias themselves
        return None
    if gemm.has_float8_operands and gemm.activation != "none" and readers and all(map(is_quantize, readers)):
        return "The kernel that stores codes of the result adds the bias and computes the activation for less"
    if gemm_adds or not adds or gemm.activation != "none" or not readers or gemm.output.is_graph_output():
        return None
    for reader in readers:
        if reader.op_type == "Add" or not eligibility.is_elementwise(reader) or context.is_owned(reader):
            return None
        if context.why_not(reader) is not None:
            return None
    return (
        f"The kernel of {readers[0].op_type} adds the bias or the residual at no extra cost, so the"
        f" {gemm.nodes[0].op_type} runs without an epilogue"
    )


def _epilogue_follows(value: ir.Value) -> bool:
    return any(u.op_type in EPILOGUE for u in value.consumers())


def _refusals(node: ir.Node, gemm: GrowingGemm, context: Context) -> list[Refusal]:
    """Refusals of the readers of the GEMM's result that have an epilogue in some GEMM.

    A Reshape is never refused, because ONNX Runtime runs it without a kernel. An Add behind a residual is not refused
    for other readers of the value, because the residual stream has several readers.
    """
    value = gemm.output
    refusals: list[Refusal] = []
    if gemm.parts:
        return refusals
    for reader in dict.fromkeys(value.consumers()):
        if reader.op_type not in EPILOGUE or reader.op_type == "Reshape" or context.is_owned(reader):
            continue
        reason, nodes = None, following(value)
        if nodes:
            reason = take(dataclasses.replace(gemm, nodes=list(gemm.nodes)), nodes, context.shapes)
        elif reader.op_type == "Add" and gemm.residual is None:
            reason = f"`{value.name}` is read elsewhere too, so the {node.op_type} must write it before the Add"
        if reason is not None:
            refusals.append(Refusal(reader.name or "", reader.op_type, node.name or "", reason))
    return refusals


def _region(gemm: GrowingGemm, context: Context, kind: Kind) -> Region:
    nodes = sorted(gemm.nodes, key=context.order.__getitem__)
    inputs = list(dict.fromkeys(gemm.operands()))
    outputs = list(gemm.outputs())
    moved = cost.region_traffic(nodes, inputs, outputs, context.shapes)
    return Region(tuple(nodes), tuple(inputs), tuple(outputs), moved, kind)
