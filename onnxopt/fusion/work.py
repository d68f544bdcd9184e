"""The work of a whole graph: its nodes and launches, and of each kernel the bytes that it moves and what it multiplies.

Before fusing, each node is a kernel; afterwards each region is one, and each node that no region has. Not counted is
what runs on the host, views, and the arithmetic of operators that are not products, convolutions or attention.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

import onnx_ir as ir

from onnxopt.fusion import cost, eligibility, index_ops
from onnxopt.fusion.operands import constant
from onnxopt.fusion.region import Region
from onnxopt.graph import signature
from onnxopt.graph.fused_domain import holds_fused
from onnxopt.graph.match import is_constant
from onnxopt.graph.shapes import shapes as shape_inference
from onnxopt.graph.shapes.shapes import Shapes

_PAST_KEYS = {"Attention": 4, "MultiHeadAttention": 6, "GroupQueryAttention": 3}  # operator -> position of the input
_RANKS = (3, 4)  # of keys and queries
_WITH_BODIES = frozenset({"Scan", "Loop", "If"})
_RECURRENT = _WITH_BODIES | {"LSTM", "GRU", "RNN"}  # whose steps and branches are no single kernel

OTHER = "other"
GROUPS = ("attention", "products", "convolutions", "norms and softmax", "elementwise", "layout changes", OTHER)
_NORMS = frozenset({"Softmax", "LogSoftmax"})
_BETWEEN = 6  # nodes between the products of attention: a scale, a mask, the softmax, a cast


@dataclasses.dataclass(frozen=True)
class Work:
    """One kernel. flops: of products, a multiplication and an addition each. dtype: of what they multiply, "" without.

    written: elements of the largest result, which is how far the work of products can be spread. group: one of GROUPS.
    node: the name of a node that no region has, else "".
    """

    bytes: int
    flops: int = 0
    dtype: str = ""
    written: int = 0
    launches: int = 1
    group: str = dataclasses.field(default=OTHER, compare=False)
    node: str = dataclasses.field(default="", compare=False)


def model_work(model: ir.Model, sizes: Mapping[str, int], regions: Sequence[Region] = ()) -> tuple[Work, ...] | None:
    """The kernels of a model whose `regions` are fused; None where sizes depend on values or on control flow.

    sizes: of dynamic dims, by symbol (graph/signature.py).
    """
    graph, shapes = model.graph, shapes_at(model, sizes)
    host = eligibility.host_values([graph], shapes)
    inside = {node for region in regions for node in region.nodes}
    attention = _attention_nodes(graph)
    kernels = [_grouped(_region_work(region, shapes), region.nodes, attention) for region in regions]
    for node in graph:
        if node.op_type in _RECURRENT:
            return None
        if node not in inside and not _is_free(node, host):
            kernels.append(_grouped(_node_work(node, shapes), (node,), attention, node.name or ""))
    works = tuple(work for work in kernels if work is not None)
    return works if len(works) == len(kernels) else None


def nodes(model: ir.Model) -> list[ir.Node]:
    """What a node is for everyone who counts them: one of a model's graph, its subgraphs or its functions, each once.

    Not those in the bodies of fused functions: a call of one is a node, as its kernel runs it.
    """
    bodies = [body for (domain, _, _), body in model.functions.items() if not holds_fused(domain)]
    return [*model.graph.all_nodes(), *(node for body in bodies for node in body.all_nodes())]


def operators(counted: Iterable[ir.Node]) -> dict[str, int]:
    """How often each operator occurs, most frequent first, "domain::Op" outside ONNX's own."""
    ops = collections.Counter(n.op_type if n.domain in ("", "ai.onnx") else f"{n.domain}::{n.op_type}" for n in counted)
    return dict(sorted(ops.items(), key=lambda item: (-item[1], item[0])))


def launches(model: ir.Model, regions: Sequence[Region], shapes: Shapes) -> int:
    """How many kernels a run of the main graph launches whose `regions` are fused, predicted.

    This is what a launch is for everyone who predicts one: a node launches one kernel, or none if it is a view or runs
    on the host, as shapes do; a region launches those that it says. A node with a body (If, Loop, Scan) counts as one.
    """
    graph = model.graph
    host = eligibility.host_values([graph], shapes)
    inside = {node for region in regions for node in region.nodes}
    calls = sum(region.traffic.launches_after for region in regions if region.nodes[0].graph is graph)
    return calls + sum(1 for node in graph if node not in inside and not _is_free(node, host))


def has_bodies(model: ir.Model) -> bool:
    """Whether the values decide what a run of the main graph launches."""
    return any(node.op_type in _WITH_BODIES for node in model.graph)


def moved(works: Sequence[Work] | None) -> int | None:
    """The bytes that kernels move together; None where they are not known."""
    return None if works is None else sum(work.bytes for work in works)


def shapes_at(model: ir.Model, sizes: Mapping[str, int]) -> Shapes:
    """The shapes of a model's values at these sizes of its dynamic dims, by symbol. The model stays as it is."""
    tensors = {tensor.name: tensor for tensor in signature.inputs_of(model)}
    declared = [(value, value.shape) for value in model.graph.inputs if value.name in tensors]
    try:
        for value, _ in declared:
            tensor = tensors[value.name or ""]
            if tensor.dims is not None:
                value.shape = ir.Shape(signature.resolve(tensor, dict(sizes)))
        return shape_inference.infer(model)
    finally:
        for value, shape in declared:
            value.shape = shape


def _grouped(work: Work | None, run: Sequence[ir.Node], attention: set[ir.Node], name: str = "") -> Work | None:
    """The work of nodes with their group, the first of GROUPS that one of them has."""
    if work is None:
        return None
    groups = {"attention" if node in attention else _group(node) for node in run}
    return dataclasses.replace(work, group=min(groups, key=GROUPS.index), node=name)


def _group(node: ir.Node) -> str:
    """The group of an operator, whatever it computes with."""
    op = node.op_type
    if op.endswith("Attention"):
        return "attention"
    if "MatMul" in op or "Gemm" in op or op == "Einsum":
        return "products"
    if "Conv" in op:
        return "convolutions"
    if "Norm" in op or op.startswith("Reduce") or op in _NORMS:
        return "norms and softmax"
    if index_ops.is_index(node):
        return "layout changes"
    return "elementwise" if eligibility.is_elementwise(node) or op in ("Gelu", "FastGelu", "BiasGelu") else OTHER


def _attention_nodes(graph: ir.Graph) -> set[ir.Node]:
    """The nodes of attention that is a product, a softmax and a product, with few nodes between."""
    nodes: set[ir.Node] = set()
    for softmax in graph:
        if softmax.op_type != "Softmax":
            continue
        above = _path_to_product(softmax, lambda node: [v.producer() for v in node.inputs if v is not None])
        below = _path_to_product(softmax, lambda node: [use.node for v in node.outputs for use in v.uses()])
        if above and below:
            nodes.update(above, below)
    return nodes


def _path_to_product(start: ir.Node, step: Callable[[ir.Node], Iterable[ir.Node | None]]) -> tuple[ir.Node, ...]:
    """The shortest path to a product of two results, with both ends; () where none is near."""
    paths: list[tuple[ir.Node, ...]] = [(start,)]
    seen = {start}
    for path in paths:
        if path[1:] and _group(path[-1]) == "products":
            if not any(v is None or is_constant(v) for v in path[-1].inputs[:2]):
                return path
        elif len(path) <= _BETWEEN:
            following = [node for node in step(path[-1]) if node is not None and node not in seen]
            seen.update(following)
            paths += [(*path, node) for node in following]
    return ()


def _is_free(node: ir.Node, host: set[ir.Value]) -> bool:
    return index_ops.is_view(node) or cost.is_free(node) or all(v in host for v in node.outputs)


def _region_work(region: Region, shapes: Shapes) -> Work | None:
    moved = region.traffic.bytes_after
    if moved is None:
        moved = cost.total((*region.inputs, *_written(region.nodes, region.outputs, shapes)), shapes)
    return _work(region.nodes, moved, region.traffic.launches_after, shapes)


def _node_work(node: ir.Node, shapes: Shapes) -> Work | None:
    written = [v for v in node.outputs if v.uses() or v.is_graph_output()]
    read = written if index_ops.is_index(node) else {v for v in node.inputs if v is not None and constant(v) is None}
    return _work((node,), cost.total((*read, *_written((node,), written, shapes)), shapes), 1, shapes)


def _written(nodes: Sequence[ir.Node], outputs: Sequence[ir.Value], shapes: Shapes) -> Sequence[ir.Value]:
    """The outputs that count: attention to a cache writes keys and values of new tokens into it, and no others."""
    if not any(node.op_type in _PAST_KEYS for node in nodes):
        return outputs
    return [value for value in outputs if shapes.bytes(value) is not None]


def _work(nodes: Sequence[ir.Node], moved: int | None, launches: int, shapes: Shapes) -> Work | None:
    flops: dict[ir.Node, int | None] = {node: _flops(node, shapes) for node in nodes}
    if moved is None or None in flops.values():
        return None
    multiplying = [node for node, count in flops.items() if count]
    operands = [value for node in multiplying[:1] for value in node.inputs[:2] if value is not None]
    dtypes = [dtype.name for value in operands if (dtype := shapes.dtype(value)) is not None]
    results = [shapes.elements(node.outputs[0]) or 0 for node in multiplying]
    return Work(moved, sum(n or 0 for n in flops.values()), next(iter(dtypes), ""), max(results, default=0), launches)


def _flops(node: ir.Node, shapes: Shapes) -> int | None:
    return _attention_work(node, shapes) if node.op_type in _PAST_KEYS else cost.flops(node, shapes)


def _attention_work(node: ir.Node, shapes: Shapes) -> int | None:
    """Two products for each element of the result and each key."""
    past = _PAST_KEYS[node.op_type]
    present, cached = (_keys(values, shapes) for values in (node.outputs[1:2], node.inputs[past : past + 1]))
    new = _keys(node.inputs[1:2], shapes) or _keys(node.inputs[:1], shapes)
    keys, written = present or ((cached or 0) + new if new else None), shapes.elements(node.outputs[0])
    return None if keys is None or written is None else 4 * written * keys


def _keys(values: Sequence[ir.Value | None], shapes: Shapes) -> int | None:
    """Tokens of [batch, heads, tokens, width] or [batch, tokens, width]; None where that is not known."""
    dims = shapes.dims(values[0]) if values and values[0] is not None else None
    tokens = dims[-2] if dims is not None and len(dims) in _RANKS else None
    return tokens if isinstance(tokens, int) else None
