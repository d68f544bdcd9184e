"""Writes a choice of stored values into a model: narrow nodes become 16 bit, with Casts between them and others."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxopt.graph.match import is_constant
from onnxopt.graph.passes.unique_names import UniqueNamesPass
from onnxopt.graph.precision import bodies, operators
from onnxopt.graph.precision.choose import Choice
from onnxopt.graph.precision.constants import Constants, in_memory
from onnxopt.graph.precision.masks import LOWEST
from onnxopt.graph.precision.values import is_float

FLOAT = ir.DataType.FLOAT


def convert(model: ir.Model, choice: Choice, constants: Constants | None = None) -> None:
    """Convert the model that the choice was made for, in place. Inputs and outputs keep names and dtypes."""
    converting = _Converting(model, choice, constants or Constants(choice.dtype))
    for node in list(bodies.nodes_of(model.graph)):
        if node in choice.narrow:
            converting.narrow(node)
    converting.read_float(model)
    converting.restore_outputs()
    _drop_unread(model.graph)
    UniqueNamesPass()(model)


class _Converting:
    """One model while it is converted. A value that becomes 16 bit keeps its object; float32 readers get a Cast."""

    def __init__(self, model: ir.Model, choice: Choice, constants: Constants) -> None:
        self._graph, self._choice, self._dtype, self._made = model.graph, choice, choice.dtype, constants
        self._outputs = [(value, value.name, value.type, value.shape) for value in model.graph.outputs]
        self._stored: dict[ir.Value, None] = {}  # computed in 16 bits
        self._narrowed: dict[ir.Value, ir.Value] = {}  # float32 -> its 16-bit form
        self._widened: dict[ir.Value, ir.Value] = {}  # 16 bit -> its float32 form
        self._constants: dict[tuple[ir.Value, float | None], ir.Value] = {}
        self._widening: set[ir.Node] = set()

    def narrow(self, node: ir.Node) -> None:
        """Let a node read and store 16 bits."""
        own = operators.float_operands(node)
        for k, value in enumerate(node.inputs):
            if value is None or not is_float(value) or k in own:
                continue
            if is_constant(value):
                node.replace_input_with(k, self._constant(value))
            elif value not in self._stored:
                node.replace_input_with(k, self._cast_down(value))
        own = operators.float_results(node)
        for k, value in enumerate(node.outputs):
            if is_float(value) and k not in own:
                value.type = ir.TensorType(self._dtype)  # types may be shared
                self._stored[value] = None
        if node.op_type == "Cast":
            node.attributes["to"] = ir.AttrInt64("to", self._dtype.value)

    def read_float(self, model: ir.Model) -> None:
        """Let all other nodes, also those of inner graphs, read float32."""
        for value in list(self._stored):
            for node, k in tuple(value.uses()):
                if node not in self._choice.narrow and node not in self._widening:
                    node.replace_input_with(k, self._cast_up(value))
        for graph in model.graphs():
            if graph is self._graph:
                continue
            for k, value in enumerate(graph.outputs):
                if value in self._stored:
                    graph.outputs[k] = self._cast_up(value)

    def restore_outputs(self) -> None:
        """Give the graph float32 outputs of the names that they had."""
        for k, (value, name, value_type, shape) in enumerate(self._outputs):
            if value not in self._stored:
                continue
            wide = self._cast_up(value)
            self._graph.outputs[k] = wide
            if value.name == name:
                value.name = f"{name}_{self._dtype.name.lower()}"
                wide.name = name
            wide.type, wide.shape = value_type, shape

    def _cast_up(self, value: ir.Value) -> ir.Value:
        if value not in self._widened:
            self._widened[value] = wide = self._downstream(value, "Cast", {"to": FLOAT.value}, FLOAT)
            self._widening.add(wide.producer())  # type: ignore[arg-type]
        return self._widened[value]

    def _cast_down(self, value: ir.Value) -> ir.Value:
        if value not in self._narrowed:
            self._narrowed[value] = self._downstream(self._shown(value), "Cast", {"to": self._dtype.value}, self._dtype)
        return self._narrowed[value]

    def _shown(self, value: ir.Value) -> ir.Value:
        """The value; where it only hides scores and may be too low for 16 bits, with a bound from below."""
        if not self._choice.hiding.ends_in_softmax(value) or self._choice.reaches(value) > LOWEST:
            return value
        name = self._new_name(f"{value.name}_lowest")
        lowest = self._new_constant(in_memory(np.array(LOWEST, np.float32), FLOAT, name), name)
        return self._downstream(value, "Max", {}, FLOAT, lowest)

    def _downstream(
        self, value: ir.Value, op_type: str, attributes: dict[str, int], dtype: ir.DataType, *others: ir.Value
    ) -> ir.Value:
        """The result of a new node that reads the value, behind the node that computes it, in its graph.

        Where the value comes from outside a body, the node runs once, and where it is an input, as the first one.
        """
        node = ir.node(op_type, inputs=[value, *others], attributes=attributes)
        result = node.outputs[0]
        result.name, result.type = f"{value.name}_{dtype.name.lower()}", ir.TensorType(dtype)
        result.shape = None if value.shape is None else value.shape.copy(frozen=False)
        producer, graph = value.producer(), value.graph
        assert graph is not None
        if producer is not None:
            graph.insert_after(producer, node)
        else:
            graph.insert_before(next(iter(graph)), node)
        return result

    def _constant(self, value: ir.Value) -> ir.Value:
        """A constant in 16 bits."""
        assert value.const_value is not None
        lowest = LOWEST if self._choice.hiding.ends_in_softmax(value) else None
        key = (value, lowest)
        if key not in self._constants:
            name = self._new_name(f"{value.name}_{self._dtype.name.lower()}")
            self._constants[key] = self._new_constant(self._made.of(value.const_value, lowest, name), name)
        return self._constants[key]

    def _new_name(self, name: str) -> str:
        while name in self._graph.initializers:
            name += "_"
        return name

    def _new_constant(self, tensor: ir.TensorProtocol, name: str) -> ir.Value:
        shape = ir.Shape(tensor.shape.numpy())
        value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=shape, const_value=tensor)
        self._graph.register_initializer(value)
        return value


def _drop_unread(graph: ir.Graph) -> None:
    for name, value in list(graph.initializers.items()):
        if not value.uses() and not value.is_graph_input() and not value.is_graph_output():
            del graph.initializers[name]
