"""Lowering of squeeze-excite regions: the two products with their programs, and the depthwise convolution in front."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from onnxopt.fusion.operands import apply_operator, storage
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.depthwise.lower import lower as lower_depthwise
from onnxopt.kinds.gemm.steps import GrowingGemm
from onnxopt.kinds.pointwise.lower import immediate
from onnxopt.kinds.squeeze_excite import pairs
from onnxopt.program.expressions import Builder, Expr
from onnxopt.program.pointwise import Program, without_dead_code
from onnxopt.program.squeeze_excite import SqueezeExcite, SqueezeExciteLayer


def lower(
    nodes: Sequence[ir.Node],
    inputs: Sequence[ir.Value],
    outputs: Sequence[ir.Value],
    opsets: Mapping[str, int],
    shapes: Shapes,
) -> SqueezeExcite:
    """The meaning of nodes in topological order: two products, and with two outputs a depthwise convolution and its
    result's mean too. Raises ValueError, with the reason, where the nodes cannot be kernels of this kind.
    """
    pair = _pair(nodes, shapes)
    if pair.y is not outputs[-1]:
        raise ValueError(f"`{outputs[-1].name}` is not what two products compute")
    depthwise = None
    if len(outputs) == 2:
        of_pair = set(pair.nodes)
        of_map = [n for n in nodes if n not in of_pair and n is not pair.mean.producer()]
        read = {v for n in of_map for v in n.inputs}
        operands = [v for v in inputs if v in read]
        depthwise = lower_depthwise(of_map, operands, outputs[:1], opsets, shapes)
        if list(inputs[: len(operands)]) != operands:
            raise ValueError("The first inputs are not those of the depthwise convolution")
    (hidden, channels), (results, _) = (shapes.dims(p.b) or () for p in (pair.first, pair.second))
    assert isinstance(hidden, int) and isinstance(channels, int) and isinstance(results, int)
    meaning = SqueezeExcite(
        inputs=tuple(storage(v, shapes).name for v in inputs),
        outputs=tuple(storage(v, shapes).name for v in outputs),
        channels=channels,
        hidden=hidden,
        results=results,
        first=_layer(pair.first, pair.between, pair.second.a, inputs, opsets, shapes),
        second=_layer(pair.second, pair.behind, pair.y, inputs, opsets, shapes),
        mean=inputs.index(pair.mean) if depthwise is None else None,
        depthwise=depthwise,
    )
    meaning.verify()
    return meaning


def _pair(nodes: Sequence[ir.Node], shapes: Shapes) -> pairs.Pair:
    """The pair among the nodes of a region."""
    known, place = set(nodes), {n: k for k, n in enumerate(nodes)}
    made = [p for n in nodes if pairs.is_product(n) and (p := pairs.product(n, shapes)) is not None]
    by_result = {p.output: p for p in made}
    for second in reversed(made):
        pair = pairs.find(second, by_result, known.__contains__, place.__getitem__, shapes)
        if pair is not None:
            return pair
    raise ValueError("The region holds no two products, one of the other's results")


def _layer(
    gemm: GrowingGemm,
    nodes: Sequence[ir.Node],
    result: ir.Value,
    inputs: Sequence[ir.Value],
    opsets: Mapping[str, int],
    shapes: Shapes,
) -> SqueezeExciteLayer:
    builder = Builder(("float32",))
    known: dict[ir.Value, Expr] = {gemm.output: builder.inputs[0]}
    for node in nodes:
        for value in node.inputs:
            if value is not None and value not in known:
                known[value] = immediate(builder, value, shapes)[0]
        known[node.outputs[0]] = apply_operator(node, known, opsets, shapes)
    program = Program(
        inputs=("float32",),
        outputs=(storage(result, shapes).name,),
        code=tuple(builder.code),
        results=(known[result].id,),
        depends=((0,),),
        ranks=(0,),
    )
    program = without_dead_code(program)
    program.verify()
    return SqueezeExciteLayer(inputs.index(gemm.b), program, None if gemm.bias is None else inputs.index(gemm.bias))
