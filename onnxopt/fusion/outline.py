"""Outline: each region becomes a function of the domain `onnxopt` whose body is the region's original nodes.

The function's name says what it does and carries a hash of what it means, so equal regions share one function. A
runtime with the custom-op library runs one kernel for it; one without inlines the body.
"""

from __future__ import annotations

import collections
import hashlib
import json
from collections.abc import Collection, Mapping, Sequence

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass, TopologicalSortPass

from onnxopt.fusion.provider_preference import kernel_wins_on_cpu
from onnxopt.fusion.regions import FusionPlan, Kernel, Kind, Meaning, Region, Site
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds import registry

DOMAIN = "onnxopt"
_NAMED_OPS = 4
_HASH_DIGITS = 8


def outline(model: ir.Model, plan: FusionPlan) -> tuple[Kernel, ...]:
    """Replace every region of the plan by a call of its function, in place, and return the kernels of the functions.

    The plan must be of this very model. Kernels come in the order of their first use.
    """
    shapes = plan.shapes
    found: dict[str, list[tuple[Region, Meaning, Site]]] = collections.defaultdict(list)
    hashes: dict[str, str] = {}
    for region in plan.regions:
        program = registry.lower(region, model.opset_imports, shapes)
        function = _function(region, program, model.opset_imports, shapes, hashes)
        key = (DOMAIN, function.name, "")
        model.functions.setdefault(key, function)
        site = _site(region, f"{function.name}_{len(found[function.name])}", shapes)
        found[function.name].append((region, program, site))
    kernels = tuple(_kernel(name, uses, model.opset_imports, shapes) for name, uses in found.items())
    moved: dict[ir.Value, ir.Value] = {}
    for name, uses in found.items():
        for region, _, site in uses:
            _replace(region, name, site, moved)
    if kernels:
        model.opset_imports[DOMAIN] = 1
        TopologicalSortPass()(model)
        _drop_constants_taken_in(model)
    return kernels


def inline(model: ir.Model, names: Collection[str]) -> None:
    """Put the original nodes back wherever a function of one of these names is called, in place."""
    wanted = set(names)
    InlinePass(criteria=lambda function: function.domain == DOMAIN and function.name in wanted)(model)
    if not any(domain == DOMAIN for domain, _, _ in model.functions):
        model.opset_imports.pop(DOMAIN, None)


def _drop_constants_taken_in(model: ir.Model) -> None:
    """Remove initializers that only regions read; they are constants of the functions' bodies now."""
    for graph in model.graphs():
        for name, value in list(graph.initializers.items()):
            if not value.uses() and not value.is_graph_input() and not value.is_graph_output():
                del graph.initializers[name]


def _kernel(
    name: str, uses: Sequence[tuple[Region, Meaning, Site]], opsets: Mapping[str, int], shapes: Shapes
) -> Kernel:
    region, program, _ = uses[0]
    return Kernel(
        name=name,
        kind=region.kind,
        ops=tuple(node.op_type for node in region.nodes),
        program=program,
        variants=registry.entry_points(name, program, [r for r, _, _ in uses], opsets, shapes),
        sites=tuple(site for _, _, site in uses),
        cpu=all(kernel_wins_on_cpu(r) for r, _, _ in uses),
    )


def _function(
    region: Region, meaning: Meaning, opsets: Mapping[str, int], shapes: Shapes, hashes: dict[str, str]
) -> ir.Function:
    """The region's nodes, copied into a function with values named x0.. (inputs), v0.. and y0.. (outputs).

    hashes: of the functions named so far.
    """
    names = {v: f"x{k}" for k, v in enumerate(region.inputs)}
    names |= {v: f"y{k}" for k, v in enumerate(region.outputs)}
    inside = {v: ir.Value(name=names[v]) for v in region.inputs}
    nodes: list[ir.Node] = []
    for node in region.nodes:
        for value in node.inputs:
            if value is not None and value not in inside:
                inside[value] = _constant_node(nodes, value, f"c{len(nodes)}")
        copy = ir.Node(
            node.domain, node.op_type, [None if v is None else inside[v] for v in node.inputs],
            list(node.attributes.values()), num_outputs=len(node.outputs), name=f"{node.op_type}_{len(nodes)}",
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
    does = region.nodes[-1:] if region.kind is Kind.ATTENTION else region.nodes  # the others tell it lengths
    name = "".join(_camel(n.op_type) for n in does[:_NAMED_OPS])
    if len(does) > _NAMED_OPS:
        name += f"And{len(does) - _NAMED_OPS}More"
    name = _distinct(name, _hash(graph, dtypes, region.kind, meaning), hashes)
    return ir.Function(DOMAIN, name, graph=graph, attributes=[])


def _distinct(does: str, content: str, hashes: dict[str, str]) -> str:
    """What a function does, then the start of its hash: as much as no function of another meaning has, and notes it."""
    lengths = range(_HASH_DIGITS, len(content) + 1)
    return next(n for k in lengths if hashes.setdefault(n := f"{does}_{content[:k]}", content) == content)


def _constant_node(nodes: list[ir.Node], value: ir.Value, name: str) -> ir.Value:
    tensor = None if value.is_graph_input() else value.const_value
    if tensor is None:
        raise ValueError(f"{value.name} is neither an input of the region nor a constant")
    copy = ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=name)
    node = ir.Node("", "Constant", [], [ir.AttrTensor("value", copy)], num_outputs=1, name=f"Constant_{name}")
    node.outputs[0].name = name
    nodes.append(node)
    return node.outputs[0]


def _hash(graph: ir.Graph, dtypes: Sequence[str], kind: Kind, meaning: Meaning) -> str:
    """Of all that the kernel depends on: beyond its nodes that is, for some kinds, what the shapes told."""
    body = []
    for node in graph:
        attributes = sorted((name, _attribute_text(a)) for name, a in node.attributes.items())
        operands = ["" if v is None else str(v.name) for v in node.inputs]
        body.append([node.domain, node.op_type, operands, [str(v.name) for v in node.outputs], attributes])
    described = meaning.to_json()
    told = [described["index"]] if "index" in described else []
    if kind is not Kind.POINTWISE:
        told = [kind, described]
    text = json.dumps([body, dtypes, sorted(graph.opset_imports.items()), *told])
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


def _replace(region: Region, name: str, site: Site, moved: dict[ir.Value, ir.Value]) -> None:
    """Put a call where the region was. `moved` maps outputs of regions replaced before to what stands for them now."""
    graph = region.nodes[-1].graph
    if graph is None:
        raise ValueError(f"{region.nodes[-1].name} is in no graph: was the plan made of another model?")
    inputs = [moved.get(v, v) for v in region.inputs]
    call = ir.Node(DOMAIN, name, inputs, num_outputs=len(region.outputs), name=site.node)
    ir.convenience.replace_nodes_and_values(
        graph, region.nodes[-1], region.nodes, [call], region.outputs, call.outputs
    )  # fmt: skip
    moved.update(zip(region.outputs, call.outputs, strict=True))
