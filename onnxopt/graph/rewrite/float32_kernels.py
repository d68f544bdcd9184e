"""Operators compute in float32, where ONNX Runtime has a CUDA kernel for them in float32 and none in 16 bits.

    GridSample(x, grid) -> Cast(GridSample(Cast(x), Cast(grid)))

Without the Casts the node runs on the CPU: in every run its operands are copied to the host and its results back, and
no CUDA graph can be captured. With them the operator moves twice the bytes. A Cast is a launch at worst; most are in
the kernels that compute the operands and read the results.

The results are rounded once, as those of ONNX Runtime's CPU provider, which computes such nodes in float32 between
Casts of its own. A kernel that computes an operand gives it more digits than 16 bits have, but where results jump, as
those of the nearest element: there a Cast to 16 bits comes first, which rounds.

Which operators these are is data (graph/placement/provider_kernels.json).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import onnx
import onnx_ir as ir

from onnxopt.graph.match import is_private
from onnxopt.graph.passes.contrib.anchors import ANCHORS
from onnxopt.graph.passes.new_nodes import NewNodes
from onnxopt.graph.passes.no_op_rules import LosslessCast
from onnxopt.graph.passes.rooted import Rooted
from onnxopt.graph.placement import provider_kernels
from onnxopt.graph.placement.place import HOST_INPUTS, declared_dtype, folded_by_ort, has_no_kernel, place
from onnxopt.graph.rewrite.rule_sets import Pass, RuleSet

_NARROW = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
_WIDE = ir.DataType.FLOAT
_VIEWS = frozenset({("", "Reshape"), ("", "Squeeze"), ("", "Unsqueeze")})
_Typed = tuple[ir.Value, str, Iterable[str]]  # a value, its type variable, and the dtypes that this allows
_Wide = dict[tuple[ir.Value, bool], ir.Value]  # of a value that is rounded or not: its float32 form


def may_apply(graph: ir.Graph) -> bool:
    """Whether some operator of the main graph has no kernel in 16 bits, in whatever version."""
    operators = provider_kernels.without_kernel_of(_NARROW)
    return any(node.op_type in operators for node in graph)


def compute_in_float32(graph: ir.Graph) -> int:
    """Put Casts around each such node of the main graph whose operands are on the device. Returns of how many.

    Nodes must be in topological order, and dtypes must have been inferred. New nodes need names.
    """
    folded, wide = folded_by_ort(graph), _Wide()
    host = place(graph, folded=folded).host_values
    count = 0
    for node in [n for n in graph if n not in folded and _has_kernel_in_float32_alone(n)]:
        if not any(value in host for value in _read_on_device(node)):  # results of nodes that were replaced are not
            _widen(graph, node, wide)
            count += 1
    return count


def _read_on_device(node: ir.Node) -> Iterator[ir.Value]:
    on_host = HOST_INPUTS.get(node.op_type, ())
    return (value for k, value in enumerate(node.inputs) if value is not None and k not in on_host)


def _has_kernel_in_float32_alone(node: ir.Node) -> bool:
    if node.domain != "" or not has_no_kernel(node, declared_dtype) or has_no_kernel(node, _dtype_in_float32):
        return False
    return _computes_the_same(node)


def _dtype_in_float32(value: ir.Value) -> ir.DataType | None:
    return _WIDE if value.dtype in _NARROW else value.dtype


def _computes_the_same(node: ir.Node) -> bool:
    """Whether 16-bit tensors may be float32, and those among the results are so because operands are."""
    assert node.graph is not None
    schema = onnx.defs.get_schema(node.op_type, node.graph.opset_imports[""], "")
    operands, results = _narrow(schema.inputs, node.inputs), _narrow(schema.outputs, node.outputs)
    variables = {variable for _, variable, _ in operands}
    return (
        all(isinstance(v.type, ir.TensorType) and "tensor(float)" in dtypes for v, _, dtypes in (*operands, *results))
        and all(variable in variables for _, variable, _ in results)
    )  # fmt: skip


def _narrow(formals: Sequence[onnx.defs.OpSchema.FormalParameter], values: Iterable[ir.Value | None]) -> list[_Typed]:
    typed: list[_Typed] = []
    for k, value in enumerate(values):
        if value is not None and value.dtype in _NARROW:
            formal = formals[min(k, len(formals) - 1)]
            typed.append((value, formal.type_str, formal.types))
    return typed


def _widen(graph: ir.Graph, node: ir.Node, wide: _Wide) -> None:
    """Replace a node by one of float32 between Casts. wide: the float32 form of values, for their other readers."""
    rounded = _jumps(node)
    inputs = [v if v is None or v.dtype not in _NARROW else _widened(graph, v, rounded, wide) for v in node.inputs]
    computed = ir.Node(
        node.domain, node.op_type, inputs, node.attributes.values(), overload=node.overload,
        num_outputs=len(node.outputs), name=node.name, doc_string=node.doc_string, metadata_props=node.metadata_props,
    )  # fmt: skip
    graph.insert_before(node, computed)
    for old, result in zip(node.outputs, computed.outputs, strict=True):
        result.name, result.type, result.shape = old.name, old.type, old.shape
        if old.dtype in _NARROW and old.name:  # else it is an optional output that is left out
            result.name, result.type = f"{old.name}_float32", ir.TensorType(_WIDE)
            result = _cast(NewNodes(graph, node), result, old.dtype, old.name)
        old.replace_all_uses_with(result, replace_graph_outputs=True)
    graph.remove(node, safe=True)


def _jumps(node: ir.Node) -> bool:
    """Whether the last digits of operands decide over results: which element is the nearest, or a position."""
    nearest = node.attributes.get_string("mode", "") == "nearest"
    return nearest or any(v.name and v.dtype is not None and not v.dtype.is_floating_point() for v in node.outputs)


def _widened(graph: ir.Graph, value: ir.Value, rounded: bool, wide: _Wide) -> ir.Value:
    """A value in float32. The Cast goes before views, where a kernel that computes their operand may contain it.

    After views of unknown sizes no kernel could. A value keeps its dtype where an operator of ONNX Runtime's optimizers
    may be put back that computes it. rounded: such a kernel stores no more digits than the value has.
    """
    producer = value.producer()
    viewed = producer.inputs[0] if producer is not None and (producer.domain, producer.op_type) in _VIEWS else None
    if producer is not None and viewed is not None and is_private(value) and ANCHORS not in value.meta:
        producer.replace_input_with(0, _widened(graph, viewed, rounded, wide))
        value.type = ir.TensorType(_WIDE)
        return value
    if (value, rounded) not in wide:
        new = NewNodes(graph, graph[0], after=producer)  # where every reader comes later
        is_rounded = producer is None or producer.op_type == "Cast"
        narrow = value
        if rounded and not is_rounded and value.dtype is not None:
            narrow = _cast(new, value, value.dtype, f"{value.name}_rounded")
        wide[value, rounded] = _cast(new, narrow, _WIDE, f"{value.name}_float32")
    return wide[value, rounded]


def _cast(new: NewNodes, value: ir.Value, dtype: ir.DataType, name: str) -> ir.Value:
    result = new.add("Cast", [value], dtype, [ir.AttrInt64("to", int(dtype))])
    result.name, result.shape = name, value.shape
    return result


RULES = (
    Pass(lambda model, _: compute_in_float32(model.graph)),
    RuleSet(lambda _: [Rooted("Cast", LosslessCast.rule())], counted=False),  # of a bool that was cast to 16 bits
)
