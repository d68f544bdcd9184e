"""Lowering of squeeze-excite regions: the two products with their programs, and the depthwise convolution in front."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import onnx_ir as ir

from onnxopt.fusion.operands import storage
from onnxopt.fusion.programs import program_of
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.depthwise.kind import DEPTHWISE
from onnxopt.kinds.gemm.growing import GrowingGemm
from onnxopt.kinds.squeeze_excite import pairs
from onnxopt.program.depthwise import Depthwise
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
        pair_nodes = set(pair.nodes)
        map_nodes = [n for n in nodes if n not in pair_nodes and n is not pair.mean.producer()]
        read = {v for n in map_nodes for v in n.inputs}
        operands = [v for v in inputs if v in read]
        depthwise = cast(Depthwise, DEPTHWISE.lower_nodes(map_nodes, operands, outputs[:1], opsets, shapes))
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
        second=_layer(pair.second, pair.epilogue, pair.y, inputs, opsets, shapes),
        mean=inputs.index(pair.mean) if depthwise is None else None,
        depthwise=depthwise,
    )
    meaning.verify()
    return meaning


def _pair(nodes: Sequence[ir.Node], shapes: Shapes) -> pairs.Pair:
    """The pair among the nodes of a region."""
    inside, place = set(nodes), {n: k for k, n in enumerate(nodes)}
    products = [p for n in nodes if pairs.is_product(n) and (p := pairs.product(n, shapes)) is not None]
    by_result = {p.output: p for p in products}
    for second in reversed(products):
        pair = pairs.find(second, by_result, inside.__contains__, place.__getitem__, shapes)
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
    stored = storage(result, shapes).name
    program = program_of(nodes, [(gemm.output, "float32")], (result, stored), opsets, shapes)
    return SqueezeExciteLayer(inputs.index(gemm.b), program, None if gemm.bias is None else inputs.index(gemm.bias))
