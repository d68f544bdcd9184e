"""What is computed of each head by itself: elementwise work, and reductions and norms along the last of four dims."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import onnx_ir as ir

from onnxopt.graph.match import is_constant
from onnxopt.graph.passes.new_nodes import NewNodes
from onnxopt.program.operators.table import OPERATORS

RANK = 4
_REDUCTIONS = frozenset({"ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceSum", "ReduceSumSquare"})
_NORMS = frozenset({"LayerNormalization", "RMSNormalization"})
_CODING = frozenset({"QuantizeLinear", "DequantizeLinear"})
_LAST = (-1, RANK - 1)
_MAX_NODES = 24


@dataclasses.dataclass(frozen=True)
class HeadWork:
    """The nodes that compute `result` of `source`, in their order. Nothing else reads what is in between."""

    result: ir.Value
    source: ir.Value
    nodes: tuple[ir.Node, ...]

    def repeated(self, new: NewNodes, source: ir.Value, constants: Mapping[ir.Value, ir.Value]) -> ir.Value:
        """The result of another source, with other constants in place of some."""
        values = {self.source: source, **constants}
        for node in self.nodes:
            inputs = [None if v is None else values.get(v, v) for v in node.inputs]
            result = node.outputs[0]
            values[result] = new.add(node.op_type, inputs, result.dtype, list(node.attributes.values()))
        return values[self.result]

    def constants(self) -> list[ir.Value]:
        """The constant operands that broadcast against heads, with more than one element."""
        operands = (v for n in self.nodes for v in n.inputs[: _operands_with_heads(n)])
        constants = (v for v in operands if v is not None and v.const_value is not None and v.const_value.size > 1)
        return list(dict.fromkeys(constants))


def work_after(value: ir.Value, begins: Callable[[ir.Node], bool]) -> HeadWork | None:
    """The work on heads whose result a value is, from the one result of a node with `begins` on; else None."""
    nodes: dict[ir.Node, None] = {}
    sources: dict[ir.Value, None] = {}
    if not _collect(value, begins, nodes, sources) or not nodes or len(sources) != 1:
        return None
    inside = {v for node in nodes for v in node.outputs} - {value}
    if any(use.node not in nodes for v in inside for use in v.uses()) or any(v.is_graph_output() for v in inside):
        return None
    return HeadWork(value, next(iter(sources)), tuple(nodes))


def _collect(
    value: ir.Value, begins: Callable[[ir.Node], bool], nodes: dict[ir.Node, None], sources: dict[ir.Value, None]
) -> bool:
    """Add the nodes that compute a value, and the results that they begin at. False where there are other nodes."""
    node = value.producer()
    if node in nodes:
        return True
    if node is None or node.domain != "" or value.shape is None or len(value.shape) != RANK:
        return False
    if begins(node):
        sources[value] = None
        return True
    count = _operands_with_heads(node)
    if count == 0 or len(nodes) >= _MAX_NODES or len(node.outputs) != 1:
        return False
    with_heads = [v for v in node.inputs[:count] if v is not None and not is_constant(v)]
    if any(v is not None and not is_constant(v) for v in node.inputs[count:]):
        return False
    if not all(_collect(v, begins, nodes, sources) for v in with_heads):
        return False
    nodes[node] = None
    return True


def reduces(node: ir.Node) -> bool:
    """Whether a node reduces along heads, or normalizes them."""
    return node.domain == "" and node.op_type in _REDUCTIONS | _NORMS and _operands_with_heads(node) == 1


def _operands_with_heads(node: ir.Node) -> int:
    """How many operands have heads; behind them are axes, and vectors along a head. 0 for other nodes."""
    if node.op_type in _NORMS:
        return int(node.attributes.get_int("axis", -1) in _LAST)
    if node.op_type in _REDUCTIONS:
        axes = node.inputs[1] if len(node.inputs) > 1 else None
        tensor = None if axes is None else axes.const_value
        along = tensor is not None and tensor.numpy().tolist() in ([-1], [RANK - 1])
        return int(along and node.attributes.get_int("keepdims", 1) == 1)
    is_elementwise = ("", node.op_type) in OPERATORS and node.op_type not in _CODING
    return len(node.inputs) if is_elementwise else 0
