"""A graph's interface, saved before passes run and restored exactly after them."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from onnxopt.graph.shapes.checked_sizes import unchecked_shapes

ORT_CONSTANT_IR_VERSION = 4  # below it every initializer is a constant, also where it is listed among the inputs


@dataclasses.dataclass(frozen=True)
class _Declared:
    """A value's name, type, shape and description as the model declares them."""

    name: str | None
    type: ir.TypeProtocol | None
    shape: ir.Shape | None
    doc_string: str | None

    @classmethod
    def of(cls, value: ir.Value) -> _Declared:
        shape = None if value.shape is None else value.shape.copy(frozen=False)
        return cls(value.name, value.type, shape, value.doc_string)

    def put_back(self, value: ir.Value) -> None:
        value.name, value.type, value.doc_string = self.name, self.type, self.doc_string
        value.shape = None if self.shape is None else self.shape.copy(frozen=False)


class Interface:
    """What callers of a model see: inputs, their default values, and outputs.

    The constructor also changes the model: default values of inputs, which callers may override, stop being constants,
    declared output shapes, which may be wrong, are removed, and what the graph checks to be 1 is 1 in all inputs.
    `restore` puts names, dtypes, dims and defaults back in the same order. An output that no node of its own computes
    any more gets an Identity.
    """

    def __init__(self, model: ir.Model) -> None:
        graph = model.graph
        if model.ir_version < ORT_CONSTANT_IR_VERSION:
            variable = [value for value in graph.inputs if not value.is_initializer()]
            graph.inputs.clear()
            graph.inputs.extend(variable)
        self._inputs = [_Declared.of(value) for value in graph.inputs]
        self._outputs = [_Declared.of(value) for value in graph.outputs]
        self._defaults: dict[int, ir.TensorProtocol] = {}
        for i, value in enumerate(graph.inputs):
            if value.is_initializer() and value.const_value is not None and value.name is not None:
                self._defaults[i] = value.const_value
                del graph.initializers[value.name]
                value.const_value = None
        for value in graph.outputs:
            if not value.is_graph_input() and not value.is_initializer():
                value.shape = None
        for value, shape in unchecked_shapes(graph).items():
            value.shape = shape

    def restore(self, model: ir.Model) -> None:
        """Restore the interface on `model`, whose graph may be another object than at construction."""
        graph = model.graph
        self._free_names(graph)
        for value, declared in zip(graph.inputs, self._inputs, strict=True):
            declared.put_back(value)
        for i, tensor in self._defaults.items():
            value = graph.inputs[i]
            value.const_value = tensor
            graph.register_initializer(value)
        named = {value: value.name for value in graph.inputs}
        for i, declared in enumerate(self._outputs):
            value = graph.outputs[i]
            needs_own_name = value in named or value.is_initializer()
            if needs_own_name and named.get(value, value.name) != declared.name:
                node = ir.node("Identity", inputs=[value])
                graph.append(node)
                graph.outputs[i] = value = node.outputs[0]
            elif value.is_graph_input():
                continue
            declared.put_back(value)
            named[value] = declared.name

    def _free_names(self, graph: ir.Graph) -> None:
        """Rename every other value that has the name of an input or output."""
        reserved = {declared.name for declared in (*self._inputs, *self._outputs)}
        interface = set(graph.inputs) | set(graph.outputs)
        others = [*graph.initializers.values(), *(v for node in graph for v in node.outputs)]
        present = {value.name for value in others} | reserved
        for value in others:
            if value.name in reserved and value not in interface:
                number = 1
                while (name := f"{value.name}_inner_{number}") in present:
                    number += 1
                present.add(name)
                value.name = name
        # Outputs that swapped names would otherwise collide while they are put back one by one.
        for i, value in enumerate(graph.outputs):
            if not value.is_graph_input() and not value.is_initializer():
                value.name = f"onnxopt_output_{i}"
