"""Outline: each region becomes a function whose body is the region's original nodes.

The function's name lists its operators and ends with a hash of its meaning, so equal regions share one function. Where
the custom-op library is registered, ONNX Runtime runs the function as one kernel. Elsewhere ONNX Runtime inlines the
body.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import InlinePass, TopologicalSortPass

from onnxopt.fusion.index_ops import dims_of, is_shape_of_dims
from onnxopt.fusion.kernel import Meaning, Site
from onnxopt.fusion.multiples import with_multiples
from onnxopt.fusion.region import FusionPlan, Region
from onnxopt.graph import fused_domain
from onnxopt.graph.fused_domain import holds_fused
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.program.extents import Extent

_OPSET = 1  # of the functions' domain
_NAMED_OPS = 4
_HASH_DIGITS = 8
_WIDE = 256  # inputs of a node; onnx_ir replaces one input in time proportional to their number


@dataclasses.dataclass(frozen=True)
class Function:
    """A fused function: its body, and the regions that it replaces, each with its place in the model."""

    body: ir.Function
    meaning: Meaning
    regions: tuple[Region, ...]
    sites: tuple[Site, ...]

    @property
    def name(self) -> str:
        return self.body.name


def functions(plan: FusionPlan, opsets: Mapping[str, int]) -> tuple[Function, ...]:
    """The functions of a plan whose regions are lowered, in the order of their first use. Changes no model."""
    bodies: dict[str, ir.Function] = {}
    uses: dict[str, list[tuple[Region, Meaning, Site]]] = collections.defaultdict(list)
    hashes: dict[str, str] = {}
    for region in plan.regions:
        if region.meaning is None:
            raise ValueError(f"The region of `{region.nodes[0].name}` has no meaning; lower the plan first")
        body = _function(region, region.meaning, opsets, plan.shapes, hashes)
        bodies.setdefault(body.name, body)
        site = _site(region, f"{body.name}_{len(uses[body.name])}", plan.shapes)
        uses[body.name].append((region, region.meaning, site))
    return tuple(
        Function(body, uses[name][0][1], tuple(r for r, _, _ in uses[name]), tuple(s for _, _, s in uses[name]))
        for name, body in bodies.items()
    )


def replace(model: ir.Model, functions: Sequence[Function]) -> None:
    """Replace every region by a call of its function, in place. The functions must be of a plan of this same model."""
    moved: dict[ir.Value, ir.Value] = {}
    replaced: dict[ir.Graph | ir.Function, list[ir.Node]] = collections.defaultdict(list)
    wide: dict[ir.Node, None] = {}
    fused = {node for function in functions for region in function.regions for node in region.nodes}
    for function in functions:
        model.functions[function.body.identifier()] = function.body
        for region, site in zip(function.regions, function.sites, strict=True):
            replaced[_insert_call(region, function.name, site, moved, wide)] += region.nodes
    for node in (n for n in wide if n not in fused):
        replaced[_renew(node, moved)].append(node)
    for graph, nodes in replaced.items():
        for k, value in enumerate(graph.outputs):
            if value in moved:
                graph.outputs[k] = moved[value]
        for node in nodes:
            _detach(node, moved)
        graph.remove(nodes)  # at once, because each call goes through all outputs of the graph
    if functions:
        model.opset_imports[fused_domain.BARE] = _OPSET
        TopologicalSortPass()(model)
        _drop_unread_initializers(model)


def inline(model: ir.Model, names: Collection[str]) -> None:
    """Replace every call of a function of one of these names by the original nodes, in place."""
    inlined = set(names)
    InlinePass(criteria=lambda function: holds_fused(function.domain) and function.name in inlined)(model)
    if not any(holds_fused(domain) for domain, _, _ in model.functions):
        for domain in [domain for domain in model.opset_imports if holds_fused(domain)]:
            del model.opset_imports[domain]


def move(model: ir.Model, domain: str) -> None:
    """Put the fused functions and their calls into `domain`, in place. No function calls another one."""
    fused = [function for function in model.functions.values() if holds_fused(function.domain)]
    for function in fused:
        del model.functions[function.identifier()]
        function.domain = domain
        model.functions[function.identifier()] = function
    for node in model.graph.all_nodes():
        if holds_fused(node.domain):
            node.domain = domain
    for old in [old for old in model.opset_imports if holds_fused(old)]:
        del model.opset_imports[old]
        model.opset_imports[domain] = _OPSET


def _drop_unread_initializers(model: ir.Model) -> None:
    """Remove the initializers that only regions read; the functions' bodies hold them as constants."""
    for graph in model.graphs():
        for name, value in list(graph.initializers.items()):
            if not value.uses() and not value.is_graph_input() and not value.is_graph_output():
                del graph.initializers[name]


def _function(
    region: Region, meaning: Meaning, opsets: Mapping[str, int], shapes: Shapes, hashes: dict[str, str]
) -> ir.Function:
    """The region's nodes, copied into a function with values named x0.. (inputs), v0.. and y0.. (outputs).

    hashes: name -> hash, of the functions named so far.
    """
    names = {v: f"x{k}" for k, v in enumerate(region.inputs)}
    names |= {v: f"y{k}" for k, v in enumerate(region.outputs)}
    inside = {v: ir.Value(name=names[v]) for v in region.inputs}
    nodes: list[ir.Node] = []
    for node in region.nodes:
        operands, attributes = list(node.inputs), list(node.attributes.values())
        computes_shape = is_shape_of_dims(node) and node.inputs[1] not in inside
        if computes_shape:
            operands[1:] = []
            attributes = [ir.AttrInt64("allowzero", 1)] if node.op_type == "Reshape" else []
        for value in operands:
            if value is not None and value not in inside:
                inside[value] = _constant_node(nodes, value, f"c{len(nodes)}")
        read = [None if v is None else inside[v] for v in operands]
        if computes_shape:
            read.append(_shape_of(node.outputs[0], region, inside, nodes, shapes))
        copy = ir.Node(
            node.domain, node.op_type, read, attributes, num_outputs=len(node.outputs),
            name=f"{node.op_type}_{len(nodes)}",
        )  # fmt: skip
        for k, (value, copied) in enumerate(zip(node.outputs, copy.outputs, strict=True)):
            copied.name = names.get(value, f"v{len(nodes)}" + (f"_{k}" if k else "")) if value.name else ""
            inside[value] = copied
        nodes.append(copy)
    imports = {domain: opsets[domain] for domain in dict.fromkeys(("", *(n.domain for n in nodes)))}
    graph = ir.Graph(
        [inside[v] for v in region.inputs], [inside[v] for v in region.outputs], nodes=nodes, opset_imports=imports
    )  # fmt: skip
    dtypes = [str(shapes.dtype(v)) for v in (*region.inputs, *region.outputs)]
    named = region.kind.named_nodes(region)
    name = "".join(_camel(n.op_type) for n in named[:_NAMED_OPS])
    if len(named) > _NAMED_OPS:
        name += f"And{len(named) - _NAMED_OPS}More"
    name = _distinct(name, _hash(graph, dtypes, region.kind.identity(meaning)), hashes)
    return ir.Function(fused_domain.BARE, name, graph=graph, attributes=[])


def _shape_of(
    value: ir.Value, region: Region, inside: Mapping[ir.Value, ir.Value], nodes: list[ir.Node], shapes: Shapes
) -> ir.Value:
    """The shape of a value of a region, computed by nodes that are added from the dims of the function's inputs.

    Reshape(x0 [n, 4*h, c], s) -> [n, h, 4, c], s computed outside
        -> Reshape(x0, Concat(Shape(x0)[0:1], Shape(x0)[1:2] / 4, [4], Shape(x0)[2:3]))

    inside: value of the region -> value of the body. NotAffine where a dim is unknown.
    """
    counted = with_multiples(region.nodes, region.inputs, shapes)
    body = _ShapeNodes(nodes, {inside[v]: dims_of(v, counted) for v in region.inputs})
    return body.node("Concat", [body.dim(d) for d in dims_of(value, counted)], [ir.AttrInt64("axis", 0)])


class _ShapeNodes:
    """Nodes of a body that compute dims. inputs: the function's inputs, each with its dims."""

    def __init__(self, nodes: list[ir.Node], inputs: Mapping[ir.Value, Sequence[Extent]]):
        self._nodes, self._inputs = nodes, inputs

    def node(self, op_type: str, operands: Sequence[ir.Value], attributes: Sequence[ir.Attr] = ()) -> ir.Value:
        node = ir.Node("", op_type, operands, attributes, num_outputs=1, name=f"{op_type}_{len(self._nodes)}")
        node.outputs[0].name = f"s{len(self._nodes)}"
        self._nodes.append(node)
        return node.outputs[0]

    def dim(self, dim: Extent) -> ir.Value:
        """A dim as a tensor of one element."""
        factors = [self._symbol(symbol) for symbol in dim.symbols]
        if dim.factor != 1 or not factors:
            factors.append(self._number(dim.factor))
        return functools.reduce(lambda a, b: self.node("Mul", [a, b]), factors)

    def _symbol(self, symbol: str) -> ir.Value:
        places = [
            (dim.factor, value, axis)
            for value, dims in self._inputs.items()
            for axis, dim in enumerate(dims)
            if dim.symbols == (symbol,)
        ]
        factor, value, axis = min(places, key=lambda place: place[0])
        part = [ir.AttrInt64("start", axis), ir.AttrInt64("end", axis + 1)]
        size = self.node("Shape", [value], part)
        return size if factor == 1 else self.node("Div", [size, self._number(factor)])

    def _number(self, number: int) -> ir.Value:
        tensor = ir.tensor(np.array([number], np.int64))
        return self.node("Constant", [], [ir.AttrTensor("value", tensor)])


def _distinct(operators: str, content: str, hashes: dict[str, str]) -> str:
    """The operators and the start of the hash `content`, as a name that no function of another hash has.

    Adds the name to `hashes`.
    """
    lengths = range(_HASH_DIGITS, len(content) + 1)
    return next(n for k in lengths if hashes.setdefault(n := f"{operators}_{content[:k]}", content) == content)


def _constant_node(nodes: list[ir.Node], value: ir.Value, name: str) -> ir.Value:
    tensor = None if value.is_graph_input() else value.const_value
    if tensor is None:
        raise ValueError(f"`{value.name}` is neither an input of the region nor a constant")
    copy = ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=name)
    node = ir.Node("", "Constant", [], [ir.AttrTensor("value", copy)], num_outputs=1, name=f"Constant_{name}")
    node.outputs[0].name = name
    nodes.append(node)
    return node.outputs[0]


def _hash(graph: ir.Graph, dtypes: Sequence[str], identity: Sequence[Any]) -> str:
    """The hash of everything that the kernel depends on. identity: what the kind adds to the nodes and dtypes."""
    body = []
    for node in graph:
        attributes = sorted((name, _attribute_text(a)) for name, a in node.attributes.items())
        operands = ["" if v is None else str(v.name) for v in node.inputs]
        body.append([node.domain, node.op_type, operands, [str(v.name) for v in node.outputs], attributes])
    text = json.dumps([body, dtypes, sorted(graph.opset_imports.items()), *identity])
    return hashlib.sha256(text.encode()).hexdigest()


def _attribute_text(attribute: ir.Attr) -> str:
    if attribute.type == ir.AttributeType.TENSOR:
        tensor = attribute.as_tensor()
        return f"{tensor.dtype}{tuple(tensor.shape)}{tensor.tobytes().hex()}"
    return f"{attribute.type}{attribute.value}"


def _camel(op_type: str) -> str:
    return op_type[:1].upper() + op_type[1:]


def _site(region: Region, node: str, shapes: Shapes) -> Site:
    described = tuple(_describe(v, shapes) for v in (*region.inputs, *region.outputs))
    return Site(node, tuple(str(n.name) for n in region.nodes), described, region.traffic)


def _describe(value: ir.Value, shapes: Shapes) -> str:
    dtype, dims = shapes.dtype(value), shapes.dims(value)
    inner = "?" if dims is None else ",".join("?" if d is None else str(d) for d in dims)
    return f"{dtype.name if dtype else '?'}[{inner}]"


def _insert_call(
    region: Region, name: str, site: Site, moved: dict[ir.Value, ir.Value], wide: dict[ir.Node, None]
) -> ir.Graph | ir.Function:
    """Insert a call in place of a region, and let other nodes read the call's results. Returns the region's graph.

    The region's nodes and the graph's outputs stay. moved: output of a region -> output of the call in its place, which
    is added to. wide: readers of many values, which are added to and read what they did before.
    """
    graph = region.nodes[-1].graph
    if graph is None:
        raise ValueError(f"`{region.nodes[-1].name}` is in no graph; the plan may be of another model")
    inputs = [moved.get(v, v) for v in region.inputs]
    call = ir.Node(fused_domain.BARE, name, inputs, num_outputs=len(region.outputs), name=site.node)
    for value, result in zip(region.outputs, call.outputs, strict=True):
        _describe_as(result, value)
        for reader, position in value.uses():
            if _is_wide(reader):
                wide[reader] = None
            else:
                reader.replace_input_with(position, result)
        moved[value] = result
    graph.insert_after(region.nodes[-1], call)
    return graph


def _is_wide(node: ir.Node) -> bool:
    """Whether the node reads so many values that a new node takes less time than replacing them one by one."""
    bodies = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
    return len(node.inputs) > _WIDE and not any(a.type in bodies for a in node.attributes.values())


def _renew(node: ir.Node, moved: dict[ir.Value, ir.Value]) -> ir.Graph | ir.Function:
    """Insert an equal node that reads the values in `moved` from their new places. Returns the graph.

    The old node stays. Its results are added to `moved`.
    """
    graph = node.graph
    assert graph is not None
    inputs = [v if v is None else moved.get(v, v) for v in node.inputs]
    copy = ir.Node(
        node.domain, node.op_type, inputs, list(node.attributes.values()), overload=node.overload,
        num_outputs=len(node.outputs), name=node.name, doc_string=node.doc_string, metadata_props=node.metadata_props,
    )  # fmt: skip
    for value, result in zip(node.outputs, copy.outputs, strict=True):
        _describe_as(result, value)
        for reader, position in value.uses():
            reader.replace_input_with(position, result)
        moved[value] = result
    graph.insert_after(node, copy)
    return graph


def _detach(node: ir.Node, moved: Mapping[ir.Value, ir.Value]) -> None:
    """Take the node off the readers of the values that stay. Those in `moved` go with the node that computes them."""
    for position, value in enumerate(node.inputs):
        if value is not None and value not in moved:
            node.replace_input_with(position, None)


def _describe_as(result: ir.Value, value: ir.Value) -> None:
    """Give a value the name, type, shape, constant and notes of another one."""
    result.name, result.type, result.shape = value.name, value.type, value.shape
    result.const_value = value.const_value
    result.meta.update(value.meta)
