"""A quantized model as it would compute if it did not round what it quantizes at run time, nor cut it off.

QuantizeLinear becomes Div and Add, DequantizeLinear of its result Sub and Mul, in floats; what only moves codes stays,
and integer products of codes become float products. Constants that were quantized stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import TopologicalSortPass

from onnxopt.errors import OnnxoptError
from onnxopt.graph import codes, match, read, write
from onnxopt.graph.passes.new_nodes import NewNodes
from onnxopt.graph.passes.unique_names import UniqueNamesPass
from onnxopt.graph.shapes.infer import InferShapesPass

_MOVES = frozenset({"Concat", "Expand", "Flatten", "Gather", "Identity", "MaxPool", "Reshape", "Slice", "Split",
                    "Squeeze", "Transpose", "Unsqueeze"})  # fmt: skip
_PRODUCTS = {"MatMulInteger": "MatMul", "ConvInteger": "Conv"}
_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE})


class NotUnrounded(OnnxoptError):
    """A quantized model cannot be written without rounding; the message says why."""


def unround(model: Path, folder: Path) -> Path:
    """Write the model file without rounding to codes into the empty `folder`; returns its path.

    NotUnrounded where codes reach an operator that works on integers, or where they are made in a subgraph.
    """
    source = read.load(model).model
    TopologicalSortPass()(source)
    InferShapesPass()(source)
    _unround(source)
    UniqueNamesPass()(source)
    try:
        write.save(source, folder)
    except (OSError, ValueError, TypeError) as error:
        raise NotUnrounded(read.first_line(error)) from error
    return folder / write.MODEL_FILE


def _unround(model: ir.Model) -> None:
    graph = model.graph
    inside = [n for n in graph.all_nodes() if n.graph is not graph]
    inside += [n for function in model.functions.values() for n in function.all_nodes()]
    if any(_rounds(node) for node in inside):
        raise NotUnrounded("it quantizes in a subgraph or a function")
    floats = _Floats(graph)
    for node in list(graph):
        floats.replace(node)
    if not floats.written:
        raise NotUnrounded("it rounds in no QuantizeLinear or DynamicQuantizeLinear")
    for value in (*graph.outputs, *(v for node in inside for v in node.inputs if v is not None)):
        if value in floats.written:
            raise NotUnrounded(f"the codes {value.name} are an output, or used in a subgraph")


def _rounds(node: ir.Node) -> bool:
    return codes.is_quantize(node) or (node.op_type == "DynamicQuantizeLinear" and not node.domain)


class _Floats:
    """The values of a graph that were codes and are floats now. written: all of them."""

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self.written: set[ir.Value] = set()

    def replace(self, node: ir.Node) -> None:
        """Rewrite one node; those in front of it were rewritten before."""
        if codes.is_quantize(node):
            self._quantize(node)
        elif _rounds(node):
            self._quantize_dynamically(node)
        elif not self.written.isdisjoint(v for v in node.inputs if v is not None):
            self._use(node)

    def _quantize(self, node: ir.Node) -> None:
        x, scale = node.inputs[0], node.inputs[1]
        assert x is not None and scale is not None
        dtype = codes.dtype_of(x)
        if dtype not in _FLOATS:
            raise NotUnrounded(f"the dtype of what {node.name or node.op_type} quantizes is not known")
        add = _Writer(self._graph, node)
        divided = add("Div", x, add.cast(self._along(add, node, scale), dtype))
        self._take_over(node.outputs[0], self._shifted(add, node, divided, "Add", dtype))
        self._graph.remove(node)

    def _quantize_dynamically(self, node: ir.Node) -> None:
        x, (result, scale, zero) = node.inputs[0], node.outputs
        add = _Writer(self._graph, node, downstream=True)
        self._take_over(result, add("Add", add("Div", x, scale), add.cast(zero, ir.DataType.FLOAT)))

    def _use(self, node: ir.Node) -> None:
        operands = [v for v in node.inputs if v is not None]
        if codes.is_dequantize(node) and node.inputs[0] in self.written:
            self._dequantize(node)
        elif node.op_type in _PRODUCTS and not node.domain:
            self._multiply(node)
        elif node.op_type == "Cast" and ir.DataType(node.attributes["to"].as_int()) in _FLOATS:
            return
        elif node.op_type in _MOVES and not node.domain and operands[0] in self.written:
            if node.op_type == "Concat" and not self.written.issuperset(operands):
                raise NotUnrounded(f"{node.name or 'a Concat'} concatenates codes of the graph with others")
            for value in node.outputs[:1] if node.op_type == "MaxPool" else node.outputs:
                self._mark(value)
        else:
            raise NotUnrounded(f"{node.name or 'a node'} ({node.op_type}) works on codes as integers")

    def _dequantize(self, node: ir.Node) -> None:
        scale = node.inputs[1]
        assert scale is not None
        dtype = codes.dtype_of(scale)
        if dtype not in _FLOATS:
            raise NotUnrounded(f"the dtype of the scale of {node.name or node.op_type} is not known")
        add = _Writer(self._graph, node)
        shifted = self._shifted(add, node, add.cast(node.inputs[0], dtype), "Sub", dtype)
        self._take_over(node.outputs[0], add("Mul", shifted, self._along(add, node, scale)), codes=False)
        self._graph.remove(node)

    def _multiply(self, node: ir.Node) -> None:
        """Products of codes less their zero points. A zero point for each row or channel is refused."""
        add = _Writer(self._graph, node)
        operands = []
        for k in range(2):
            operand, zero = node.inputs[k], node.inputs[k + 2] if len(node.inputs) > k + 2 else None
            number = add.cast(operand, ir.DataType.FLOAT)
            if zero is not None:
                rank = None if zero.shape is None else len(zero.shape)
                if rank is None or (rank > 0 and (node.op_type == "ConvInteger" or k == 0)):
                    raise NotUnrounded(f"{node.name or node.op_type} has a zero point for each row or channel")
                number = add("Sub", number, add.cast(zero, ir.DataType.FLOAT))
            operands.append(number)
        attributes = list(node.attributes.values())
        self._take_over(node.outputs[0], add(_PRODUCTS[node.op_type], *operands, attributes=attributes))
        self._graph.remove(node)

    def _shifted(self, add: _Writer, node: ir.Node, number: ir.Value, operator: str, dtype: ir.DataType) -> ir.Value:
        """The number with the zero point of a Q or DQ added or subtracted."""
        zero = node.inputs[2] if len(node.inputs) > 2 else None
        constant = match.constant(zero)
        if zero is None or (constant is not None and not np.any(constant.astype(np.float32))):
            return number
        return add(operator, number, add.cast(self._along(add, node, zero), dtype))

    def _along(self, add: _Writer, node: ir.Node, value: ir.Value) -> ir.Value:
        """A scale or zero point in a shape that broadcasts along the axis of its node."""
        blocks = node.attributes.get_int("block_size", 0)
        if value.shape is None or blocks:
            raise NotUnrounded(f"{node.name or node.op_type} has blocks, or a scale of unknown rank")
        if len(value.shape) == 0:
            return value
        x = node.inputs[0]
        if x is None or x.shape is None or len(value.shape) != 1:
            raise NotUnrounded(f"the rank of what {node.name or node.op_type} takes is not known")
        if value.shape[0] == 1:
            return value  # along any axis
        rank = len(x.shape)
        axis = node.attributes.get_int("axis", 1) % rank
        return add.column(value, rank - 1 - axis)

    def _take_over(self, old: ir.Value, new: ir.Value, *, codes: bool = True) -> None:
        """Let `new` be what `old` was. codes: whether it still stands for codes; else it has the old dtype."""
        new.shape, new.type, name = old.shape, old.type, old.name
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        old.name, new.name = f"{name}_rounded", name
        if codes:
            self._mark(new)

    def _mark(self, value: ir.Value) -> None:
        value.type = None  # ONNX Runtime infers it
        self.written.add(value)


class _Writer:
    """Puts nodes in front of a node of the main graph, or behind it, in order."""

    def __init__(self, graph: ir.Graph, place: ir.Node, *, downstream: bool = False) -> None:
        self._nodes = NewNodes(graph, place, place if downstream else None)

    def __call__(self, op_type: str, *operands: ir.Value | None, attributes: Sequence[ir.Attr] = ()) -> ir.Value:
        return self._nodes.add(op_type, operands, None, attributes)

    def cast(self, value: ir.Value | None, dtype: ir.DataType) -> ir.Value:
        if value is not None and codes.dtype_of(value) == dtype:
            return value
        return self._nodes.add("Cast", [value], dtype, [ir.AttrInt64("to", dtype.value)])

    def column(self, value: ir.Value, dims_behind: int) -> ir.Value:
        """A vector along an axis with so many dims behind it."""
        return self("Reshape", value, self._nodes.constant(np.array([-1] + [1] * dims_behind, np.int64)))
