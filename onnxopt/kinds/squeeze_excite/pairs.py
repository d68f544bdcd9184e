"""Pairs of products: 1x1 Convs, MatMuls or Gemms of one row a sample, with elementwise nodes between and behind."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import onnx_ir as ir

from onnxopt.fusion import eligibility
from onnxopt.fusion.operands import constant
from onnxopt.graph.match import is_constant
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.gemm import convolution, steps
from onnxopt.kinds.gemm.growing import GrowingGemm

_PRODUCTS = frozenset({"Conv", "MatMul", "Gemm"})
_MAX_NODES = 16  # elementwise, behind one product


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two products. between, epilogue: elementwise nodes, in topological order; each part computes one value from one.

    y: what the last of them gives.
    """

    first: GrowingGemm
    between: tuple[ir.Node, ...]
    second: GrowingGemm
    epilogue: tuple[ir.Node, ...]
    y: ir.Value

    @property
    def nodes(self) -> list[ir.Node]:
        return [*self.first.nodes, *self.between, *self.second.nodes, *self.epilogue]

    @property
    def mean(self) -> ir.Value:
        return self.first.a

    def inputs(self) -> list[ir.Value]:
        """What the pair reads, in the order of a region's inputs."""
        read = (self.mean, self.first.b, self.first.bias, self.second.b, self.second.bias)
        return list(dict.fromkeys(v for v in read if v is not None))


def is_product(node: ir.Node) -> bool:
    return node.domain == "" and node.op_type in _PRODUCTS


def product(node: ir.Node, shapes: Shapes) -> GrowingGemm | None:
    """The product of a node, its bias included, with a constant weight [results, operands] and one row a sample.

    None for other nodes.
    """
    gemm = convolution.start(node, shapes) if node.op_type == "Conv" else steps.start(node, shapes)
    if isinstance(gemm, str):
        return None
    if node.op_type != "Conv":
        steps.take_transposes(gemm, shapes, lambda _: True)
        _take_bias(gemm, shapes)
    dims, weight_dims = shapes.dims(gemm.a), shapes.dims(gemm.b)
    if dims is None or len(dims) < 2 or any(d != 1 for d in dims[1:-1]) or not is_constant(gemm.b):
        return None
    if weight_dims is None or len(weight_dims) != 2 or not all(isinstance(d, int) for d in weight_dims):
        return None
    plain = gemm.transpose_b and not gemm.transpose_a and gemm.alpha == 1.0 and gemm.residual is None
    return gemm if plain else None


def _take_bias(gemm: GrowingGemm, shapes: Shapes) -> None:
    """Absorb an Add of one vector behind the product."""
    readers = list(gemm.output.uses())
    if gemm.bias is not None or len(readers) != 1 or gemm.output.is_graph_output():
        return
    node = readers[0].node
    grown = dataclasses.replace(gemm, nodes=list(gemm.nodes))
    if node.op_type == "Add" and steps.take(grown, [node], shapes) is None and grown.bias is not None:
        gemm.nodes, gemm.output, gemm.bias = grown.nodes, grown.output, grown.bias


def find(
    second: GrowingGemm,
    by_result: dict[ir.Value, GrowingGemm],
    is_free: Callable[[ir.Node], bool],
    order: Callable[[ir.Node], int],
    shapes: Shapes,
) -> Pair | None:
    """The pair that a product ends, None where its operand is no elementwise function of another product.

    by_result: all products by what they give. is_free: whether a node may become part of the pair.
    """
    between = _between(second.a, by_result, is_free)
    if between is None:
        return None
    first, nodes = between
    if first is second or not all(shapes.same(n.outputs[0], first.output) for n in nodes):
        return None
    epilogue = _epilogue(second.output, is_free, shapes)
    y = epilogue[-1].outputs[0] if epilogue else second.output
    return Pair(first, tuple(sorted(nodes, key=order)), second, epilogue, y)


def _between(
    value: ir.Value, by_result: dict[ir.Value, GrowingGemm], is_free: Callable[[ir.Node], bool]
) -> tuple[GrowingGemm, list[ir.Node]] | None:
    """The product that a value is an elementwise function of, and the nodes of the function."""
    nodes: dict[ir.Node, None] = {}
    source: ir.Value | None = None
    pending = [value]
    while pending:
        at = pending.pop()
        producer = at.producer()
        if at in by_result:
            if source is not None and source is not at:
                return None
            source = at
        elif producer is None or len(nodes) == _MAX_NODES or not is_free(producer):
            return None
        elif producer not in nodes:
            nodes[producer] = None
            pending += _operands(producer)
    return None if source is None else (by_result[source], list(nodes))


def _epilogue(value: ir.Value, is_free: Callable[[ir.Node], bool], shapes: Shapes) -> tuple[ir.Node, ...]:
    """The longest elementwise function of a value alone whose other results nothing else reads.

    Where a Mul spreads its result over a map, the function's end is left to the kernel of that Mul: a Mul alone would
    stay with ONNX Runtime, whose kernel takes several times as long, and one sigmoid an element costs nothing there.
    """
    nodes: list[ir.Node] = []
    inside = {value}
    ends = [0]
    while len(nodes) < _MAX_NODES:
        node = next((n for v in inside for n in v.consumers() if n not in nodes and _reads_only(n, inside)), None)
        if node is None or not is_free(node) or not shapes.same(node.outputs[0], value):
            break
        nodes.append(node)
        inside.add(node.outputs[0])
        if _leaves_one(value, nodes):
            ends.append(len(nodes))
    if len(ends) > 1 and _is_spread(nodes[ends[-1] - 1].outputs[0], shapes):
        ends.pop()
    return tuple(nodes[: ends[-1]])


def _is_spread(value: ir.Value, shapes: Shapes) -> bool:
    """Whether the one reader of a value is elementwise over a larger shape."""
    readers = list(value.consumers())
    if len(readers) != 1 or value.is_graph_output() or not eligibility.is_elementwise(readers[0]):
        return False
    return not shapes.same(readers[0].outputs[0], value)


def _reads_only(node: ir.Node, inside: set[ir.Value]) -> bool:
    return eligibility.is_elementwise(node) and set(_operands(node)) <= inside


def _leaves_one(value: ir.Value, nodes: Sequence[ir.Node]) -> bool:
    """Whether nothing outside reads what the nodes compute, except for the last one's result."""
    inside = set(nodes)
    hidden = [value, *(n.outputs[0] for n in nodes[:-1])]
    return all(not v.is_graph_output() and set(v.consumers()) <= inside for v in hidden)


def _operands(node: ir.Node) -> list[ir.Value]:
    """The inputs that are no scalar constants."""
    return [v for v in node.inputs if v is not None and constant(v) is None]
