"""Gemm regions: a matrix product with the transposes before it, and scale, bias, residual and activation behind it.

    Transpose -> MatMul | Gemm -> Mul | Div by a constant -> Add bias -> Reshape -> Add residual -> Relu | Gelu(tanh)
    Transpose -> MatMul | Gemm -> Mul | Div by a constant -> Add bias -> Relu | Gelu(tanh) -> Split into equal columns

A product takes in what follows it, one step at a time, for as long as its value goes nowhere else; kinds/gemm/steps.py has
the steps. The library runs the result as one call of cuBLASLt.

Weights that lie transposed are read so (graph/passes/transposed_weights.py). Two other kinds of product are left to the
execution provider, which folds scales and transposes itself and calls the same library with the same heuristic
(measured, docs/notes.md): one with neither bias nor residual nor activation, and one whose bias or residual a pointwise
kernel behind it can add at no cost, as that kernel reads the product anyway.
"""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from onnxopt.fusion import cost, eligibility
from onnxopt.fusion.context import Context
from onnxopt.fusion.region import Kind, Region
from onnxopt.graph.refusal import Refusal
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.gemm.steps import EPILOGUE, Product, start, take, take_transposes
from onnxopt.program.gemm import Gemm

_PRODUCTS = frozenset({"MatMul", "Gemm"})


def find(context: Context, kind: Kind) -> tuple[list[Region], list[Refusal]]:
    """Regions of products with something to take in, and why their neighbours stayed apart."""
    regions: list[Region] = []
    refusals: list[Refusal] = []
    for node in list(context.order):
        if not _is_product(node) or context.is_taken(node):
            continue
        product, refused = _grow(node, context)
        refusals += refused
        if product is None or not product.takes_in_work():
            continue
        if (reason := _better_behind(product, context)) is not None:
            refusals.append(Refusal(node.name or "", node.op_type, product.nodes[-1].name or "", reason))
            product = _alone(node, context)
            if not product.takes_in_work():
                continue
        region = _region(product, context, kind)
        region.verify()
        regions.append(region)
        context.contract(region.nodes)
    return regions, refusals


def lower(region: Region, shapes: Shapes) -> Gemm:
    """The meaning of a region that `find` gave."""
    product = start(next(n for n in region.nodes if _is_product(n)), shapes)
    if isinstance(product, str):
        raise ValueError(f"`{region.nodes[0].name}` is not a GEMM: {product}")
    take_transposes(product, shapes)
    while product.output is not region.outputs[0]:
        (follower,) = product.output.consumers()
        reason = take(product, follower, shapes)
        if reason is not None:
            raise ValueError(f"`{follower.name}` is in the region of a GEMM that cannot take it in: {reason}")
    return product.meaning(region.inputs, shapes)


def _is_product(node: ir.Node) -> bool:
    return node.op_type in _PRODUCTS and node.domain == ""


def _grow(node: ir.Node, context: Context) -> tuple[Product | None, list[Refusal]]:
    """The product of a node with all that it can take in, and why it ends there."""
    product = start(node, context.shapes)
    if isinstance(product, str):
        adds = node.op_type == "Gemm" and len(node.inputs) > 2
        refused = [Refusal(node.name or "", node.op_type, "", product)]
        return None, refused if adds or _epilogue_follows(node.outputs[0]) else []
    take_transposes(product, context.shapes)
    best = product
    while True:
        follower = None if product.parts else _follower(product.output)
        if follower is None:
            break
        grown = dataclasses.replace(product, nodes=list(product.nodes))
        if context.is_taken(follower) or take(grown, follower, context.shapes) is not None:
            break
        if context.makes_cycle(grown.nodes):
            break
        product = grown
        # A Reshape is taken in only together with a residual of its shape, which gives the output its dims.
        if product.residual is not None or not product.residual_shape:
            best = product
    return best, _refusals(node, best, context)


def _alone(node: ir.Node, context: Context) -> Product:
    """The product of a node with nothing behind it."""
    product = start(node, context.shapes)
    if isinstance(product, str):
        raise ValueError(f"`{node.name}` was a GEMM before: {product}")
    take_transposes(product, context.shapes)
    return product


def _follower(value: ir.Value) -> ir.Node | None:
    """The one node that reads a value, if nothing else does."""
    uses = list(value.uses())
    return uses[0].node if len(uses) == 1 and not value.is_graph_output() else None


def _better_behind(product: Product, context: Context) -> str | None:
    """Why another kernel should add what the product took in, or None.

    That is one that only computes element by element and would have to read the product anyway. A value with a sum
    among its readers runs along the residual stream, between norms and products.
    """
    readers = list(dict.fromkeys(product.output.consumers()))
    gemm_adds = any(n.op_type == "Gemm" and len(n.inputs) > 2 for n in product.nodes)  # the provider's is slow at that
    adds = product.bias is not None or product.residual is not None
    if gemm_adds or not adds or product.activation != "none" or not readers or product.output.is_graph_output():
        return None
    for reader in readers:
        if reader.op_type == "Add" or not eligibility.is_elementwise(reader) or context.is_taken(reader):
            return None
        if context.why_not(reader) is not None:
            return None
    return (
        f"The kernel of {readers[0].op_type} adds the bias or the residual at no extra cost, so the"
        f" {product.nodes[0].op_type} runs without an epilogue"
    )


def _epilogue_follows(value: ir.Value) -> bool:
    return any(u.op_type in EPILOGUE for u in value.consumers())


def _refusals(node: ir.Node, product: Product, context: Context) -> list[Refusal]:
    """Why what follows the product's last value stays apart, where it could be part of some product.

    A Reshape is no kernel, and a value that the product takes a residual to is meant to go to several places.
    """
    value = product.output
    found: list[Refusal] = []
    if product.parts:
        return found
    for reader in dict.fromkeys(value.consumers()):
        if reader.op_type not in EPILOGUE or reader.op_type == "Reshape" or context.is_taken(reader):
            continue
        reason = None
        if _follower(value) is None:
            if reader.op_type == "Add" and product.residual is None:
                reason = f"`{value.name}` is read elsewhere too, so the {node.op_type} must write it before the Add"
        else:
            reason = take(dataclasses.replace(product, nodes=list(product.nodes)), reader, context.shapes)
        if reason is not None:
            found.append(Refusal(reader.name or "", reader.op_type, node.name or "", reason))
    return found


def _turns_weight(node: ir.Node) -> bool:
    """Whether the execution provider does this once, when it loads the model."""
    value = node.inputs[0]
    return node.op_type == "Transpose" and value is not None and value.const_value is not None


def _region(product: Product, context: Context, kind: Kind) -> Region:
    nodes = sorted(product.nodes, key=context.order.__getitem__)
    inputs = list(dict.fromkeys(product.operands()))
    outputs = list(product.outputs())
    run_today = [n for n in nodes if not _turns_weight(n)]
    moved = cost.of_region(run_today, inputs, outputs, context.shapes)
    return Region(tuple(nodes), tuple(inputs), tuple(outputs), moved, kind)
