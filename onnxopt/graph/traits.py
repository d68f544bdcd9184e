"""What verification needs to know of a model, read from its graph: interface, index bounds, precision, randomness."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import onnx_ir as ir

from onnxopt.verification import samples
from onnxopt.verification.samples import Tensor

RANDOM_OPS = frozenset(
    {"Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)
_QUANTIZING_OPS = frozenset({"QuantizeLinear", "DynamicQuantizeLinear"})
_COARSEST_FIRST = ("quantized", "bfloat16", "float16", "float32", "float64")
_VALUES_END_HERE = frozenset({"Shape", "Size"})  # their result does not depend on what the operand holds


@dataclasses.dataclass(frozen=True)
class Traits:
    """inputs, outputs: the interface. index_bounds: see samples.index_bounds.

    precision: the coarsest float dtype that values pass through, "quantized" where the model quantizes at run time
    (a key of compare.LIMITS). float_decided: outputs whose value a float tensor reaches. random: whether it draws
    numbers.
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    index_bounds: dict[str, int]
    precision: str
    float_decided: frozenset[str]
    random: bool


def of(model: ir.Model) -> Traits:
    nodes = list(_nodes(model))
    return Traits(
        inputs=samples.inputs_of(model),
        outputs=samples.outputs_of(model),
        index_bounds=samples.index_bounds(model),
        precision=_precision(model, nodes),
        float_decided=frozenset(v.name or "" for v in model.graph.outputs if _a_float_reaches(v)),
        random=any(n.op_type in RANDOM_OPS and not _is_inert_dropout(n) for n in nodes),
    )


def with_bounds_of(model: Traits, other: Traits) -> Traits:
    """The traits of a model, with what only the other of two equivalent models shows about index bounds.

    A table may lie behind a function or a constant in the one and be plain to see in the other.
    """
    return dataclasses.replace(model, index_bounds={**other.index_bounds, **model.index_bounds})


def interface_difference(original: Traits, optimized: Traits) -> str:
    """What differs between the inputs and outputs of two models (name, dtype, dims, order), "" where nothing does."""
    for kind, before, after in (
        ("input", original.inputs, optimized.inputs),
        ("output", original.outputs, optimized.outputs),
    ):
        if len(before) != len(after):
            return f"{len(before)} {kind}s became {len(after)}"
        for a, b in zip(before, after, strict=True):
            if a != b:
                return f"{kind} {tensor_text(a)} became {tensor_text(b)}"
    return ""


def tensor_text(tensor: Tensor) -> str:
    dims = "?" if tensor.dims is None else ",".join("?" if d is None else str(d) for d in tensor.dims)
    return f"{tensor.name}: {tensor.dtype}[{dims}]"


def _nodes(model: ir.Model) -> Iterator[ir.Node]:
    yield from model.graph.all_nodes()
    for function in model.functions.values():
        yield from function.all_nodes()


def _precision(model: ir.Model, nodes: list[ir.Node]) -> str:
    found = {v.dtype for graph in model.graphs() for v in graph.initializers.values()}
    found |= {v.dtype for v in (*model.graph.inputs, *model.graph.outputs)}
    for node in nodes:
        if node.op_type in _QUANTIZING_OPS:
            return "quantized"
        if node.op_type == "Cast" and "to" in node.attributes and not node.attributes["to"].is_ref():
            found.add(ir.DataType(node.attributes["to"].as_int()))
        if node.op_type == "Constant" and "value" in node.attributes and not node.attributes["value"].is_ref():
            found.add(node.attributes["value"].as_tensor().dtype)
        found |= {v.dtype for v in node.outputs}
    names = {samples.dtype_name(d) for d in found if d is not None}
    if any(n.startswith(("float8", "float4")) for n in names):
        return "quantized"
    return next((d for d in _COARSEST_FIRST if d in names), "float32")


def _a_float_reaches(output: ir.Value) -> bool:
    seen, todo = {output}, [output]
    while todo:
        value = todo.pop()
        if value.dtype is not None and value.dtype.is_floating_point():
            return True
        node = value.producer()
        if node is None or node.op_type in _VALUES_END_HERE:
            continue
        if any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in node.attributes.values()):
            return True  # bodies see values of the graph around them; assume a float among those
        constant = node.attributes.get("value") if node.op_type == "Constant" else None
        if constant is not None and constant.as_tensor().dtype.is_floating_point():
            return True
        fresh = [v for v in node.inputs if v is not None and v not in seen]
        seen.update(fresh)
        todo.extend(fresh)
    return False


def _is_inert_dropout(node: ir.Node) -> bool:
    """Dropout draws numbers only in training mode, an optional third input."""
    return node.op_type == "Dropout" and (len(node.inputs) < 3 or node.inputs[2] is None)
