"""Regions of mixtures of experts, and refusals that say what of the others is left.

ONNX Runtime runs expert after expert: where each one's rows end is read back to the CPU, rows are gathered, multiplied
and joined again. One kernel runs all experts' products in a few launches (cuda_kernels/experts/), and nothing goes to
the CPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from onnxopt.fusion import cost, index_ops
from onnxopt.fusion.context import Context
from onnxopt.fusion.kernel import Traffic
from onnxopt.fusion.operands import storage
from onnxopt.fusion.programs import program_of
from onnxopt.fusion.region import Kind, Region
from onnxopt.graph.refusal import Refusal
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.experts import loops, mixture, products
from onnxopt.kinds.experts.mixture import Activation, Mixture
from onnxopt.kinds.experts.products import GroupedProducts
from onnxopt.program.experts import FIRST, MAX_CHOSEN, MAX_EXPERTS, STORED, Experts, why_sizes_do_not_fit
from onnxopt.program.pointwise import Program

_LAUNCHES = 4  # finding the rows, two products, adding up
_MOVING = frozenset({"Split", "Squeeze", "Gather", "Range", "Slice", "GatherND", "Unsqueeze"})
_CONTRIB = (("com.microsoft", "MoE"), ("com.microsoft", "QMoE"))


def find(context: Context, kind: Kind) -> tuple[list[Region], list[Refusal]]:
    """A region for every whole mixture of experts, and refusals of experts' products that are left."""
    regions: list[Region] = []
    refusals = [
        Refusal(n.name or "", n.op_type, "", "ONNX Runtime's kernel runs all experts of it")
        for n in context.order
        if (n.domain, n.op_type) in _CONTRIB
    ]
    concats = [n for n in context.order if (n.domain, n.op_type) == ("", "Concat")]
    by_result = {product.y: product for n in concats if (product := products.find(n)) is not None}
    reasons = dict.fromkeys(by_result.values(), "No other experts' products are a function of them")
    for second in by_result.values():
        region = _region(second, by_result, context, kind)
        if isinstance(region, str):
            reasons[second] = region
            continue
        context.take([region.nodes])
        regions.append(region)
    covered = {node for region in regions for node in region.nodes}
    refusals += [_refusal(product, reason) for product, reason in reasons.items() if product.nodes[-1] not in covered]
    refusals += loops.refusals(context)
    return regions, refusals


def _in_order(match: Mixture) -> tuple[ir.Node, ...]:
    """The nodes in an order that follows from what they compute, so that equal mixtures become equal functions."""
    rest, ordered, pending = set(match.nodes), list[ir.Node](), [match.y.producer()]
    while pending:
        node = pending[-1]
        read = [] if node is None or node not in rest else [v.producer() for v in node.inputs if v is not None]
        earlier = next((producer for producer in read if producer in rest), None)
        if earlier is not None:
            pending.append(earlier)
        elif (done := pending.pop()) in rest and done is not None:
            rest.remove(done)
            ordered.append(done)
    return tuple(ordered)


def _refusal(product: GroupedProducts, reason: str) -> Refusal:
    """What is left of experts' products, and why."""
    launches = sum(not index_ops.is_view(n) and n.op_type != "Split" for n in product.nodes)
    text = (
        f"{product.experts} experts' products run one after the other, {product.experts} products in {launches} "
        f"launches: {reason[0].lower()}{reason[1:]}"
    )
    node = product.nodes[-1]
    return Refusal(node.name or "", node.op_type, "", text)


def _region(
    second: GroupedProducts, by_result: dict[ir.Value, GroupedProducts], context: Context, kind: Kind
) -> Region | str:
    match = mixture.find(second, by_result, context.shapes)
    if isinstance(match, str):
        return match
    if any(node not in context.order for node in match.nodes):
        return "A part of them is outside of the branch or loop"
    nodes = _in_order(match)
    if any(map(context.is_owned, nodes)):
        return "Another kernel has a part of them"
    if (read := context.outputs_of(nodes)) != [match.y]:
        name = next((v.name for v in read if v is not match.y), "")
        return f"`{name}` inside is read elsewhere too"
    if context.makes_cycle(nodes):
        return "What they read depends on what they compute"
    try:
        meaning = _meaning(match, nodes, context.opsets, context.shapes)
    except ValueError as error:
        return str(error)
    region = Region(nodes, match.inputs, (match.y,), _traffic(match, meaning, nodes, context.shapes), kind, meaning)
    region.verify()
    return region


def named(region: Region) -> list[ir.Node]:
    """The first expert's products and the activation."""
    grouped = [product for n in region.nodes if n.op_type == "Concat" and (product := products.find(n)) is not None]
    matmuls = [next(n for n in product.nodes if n.op_type == "MatMul") for product in grouped]
    between = region.nodes[region.nodes.index(grouped[0].nodes[-1]) : region.nodes.index(matmuls[-1])]
    activation = [n for n in between if n.op_type not in ("Concat", *_MOVING)]
    return [matmuls[0], *activation, matmuls[-1]]


def lower(region: Region, opsets: Mapping[str, int], shapes: Shapes) -> Experts:
    """The meaning of a region of `find`. Raises ValueError, with the reason, where the nodes are no mixture."""
    grouped = [p for n in region.nodes if n.op_type == "Concat" and (p := products.find(n)) is not None]
    by_result = {p.y: p for p in grouped}
    for second in grouped:
        match = mixture.find(second, by_result, shapes)
        if not isinstance(match, str):
            return _meaning(match, region.nodes, opsets, shapes)
    raise ValueError("The region holds no mixture of experts")


def _traffic(match: Mixture, meaning: Experts, nodes: Sequence[ir.Node], shapes: Shapes) -> Traffic:
    """Where the number of tokens is known: the weights of as many experts as there may be are read once.

    ONNX Runtime also gathers the rows of each expert, and joins the results.
    """
    launches = sum(not index_ops.is_view(n) for n in nodes)
    tokens, weights = shapes.elements(match.ids), cost.total(match.inputs[FIRST:], shapes)
    ends = cost.total((*match.inputs[:FIRST], match.y), shapes)
    if tokens is None or weights is None or ends is None:
        return Traffic(None, None, launches, _LAUNCHES, None)
    size, halves = storage(match.y, shapes).size, 2 if meaning.gated else 1
    read = weights * min(tokens, meaning.experts) // meaning.experts
    after = ends + read + 2 * tokens * (meaning.hidden + meaning.columns) * size
    copied = 2 * tokens * (3 * meaning.columns + (halves + 2) * meaning.hidden) * size
    flops = tokens * meaning.flops_of_row
    return Traffic(after + copied, after, launches, _LAUNCHES, flops)


def _meaning(match: Mixture, nodes: Sequence[ir.Node], opsets: Mapping[str, int], shapes: Shapes) -> Experts:
    first, second, x = (shapes.dims(v) for v in (match.first.weight, match.second.weight, match.x))
    if first is None or second is None or x is None or not len(first) == len(second) == 3 or len(x) != 2:
        raise ValueError("The shapes of the experts' weights are not known")
    experts, columns, wide = first
    hidden = second[1]
    if not all(isinstance(n, int) for n in (experts, columns, wide, *second)):
        raise ValueError("The sizes of the experts' weights are not known")
    assert isinstance(columns, int) and isinstance(hidden, int)
    halves = len(match.activation.operands)
    if first != (match.first.experts, columns, halves * hidden) or second != (experts, hidden, columns):
        raise ValueError("The experts' two weights do not fit together")
    if x[1] != columns:
        raise ValueError(f"`{match.x.name}` is not known to have {columns} columns")
    if match.first.experts > MAX_EXPERTS or match.chosen > MAX_CHOSEN:
        raise ValueError(f"The kernel takes up to {MAX_EXPERTS} experts and {MAX_CHOSEN} for each token")
    dtype = storage(match.y, shapes).name
    if dtype not in STORED or storage(match.x, shapes).name != dtype:
        raise ValueError(f"The kernel takes {', '.join(STORED)}, the same for tokens, weights and results")
    if reason := why_sizes_do_not_fit(columns, hidden, dtype):
        raise ValueError(reason)
    for bias, width in ((match.first.bias, wide), (match.second.bias, columns)):
        if bias is not None and (shapes.dims(bias) != (experts, width) or storage(bias, shapes).name != dtype):
            raise ValueError(f"`{bias.name}` is no bias of each expert in {dtype}")
    biases = [match.inputs.index(bias) if bias is not None else None for bias in (match.first.bias, match.second.bias)]
    meaning = Experts(
        inputs=tuple(storage(v, shapes).name for v in match.inputs),
        outputs=(dtype,),
        experts=match.first.experts,
        chosen=match.chosen,
        columns=columns,
        hidden=hidden,
        program=_program(match.activation, nodes, dtype, opsets, shapes),
        first_bias=biases[0],
        second_bias=biases[1],
        interleaved=match.activation.interleaved,
    )
    meaning.verify()
    return meaning


def _program(
    activation: Activation, nodes: Sequence[ir.Node], dtype: str, opsets: Mapping[str, int], shapes: Shapes
) -> Program:
    """The function of one sum, or of two, that the activation is. nodes: of the region, in topological order."""
    part = {n for n in activation.nodes if not set(n.outputs) & set(activation.operands)}
    operands = [(value, "float32") for value in activation.operands]
    return program_of([n for n in nodes if n in part], operands, (activation.result, dtype), opsets, shapes)
