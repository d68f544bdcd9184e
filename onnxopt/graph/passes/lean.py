"""Models without weights as ModelProtos, for onnx's C++ passes, which copy a model several times."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from onnxopt.graph.shapes.multiples import hand_on_multiples

_RETAINED = 1024  # bytes; constants up to this size stay, since axes and shapes are among them


def lean_proto(model: ir.Model) -> onnx.ModelProto:
    """A ModelProto of `model` whose large initializers are inputs, after the model's own.

    Large tensors elsewhere (subgraphs, attributes) must have been made initializers of the main graph before.
    """
    proto = ir.to_proto(model)
    large: list[onnx.TensorProto] = []
    small: list[onnx.TensorProto] = []
    for tensor in proto.graph.initializer:
        external = tensor.data_location == onnx.TensorProto.EXTERNAL
        (large if external or len(tensor.raw_data) > _RETAINED else small).append(tensor)
    inputs = {value.name for value in proto.graph.input}
    for tensor in large:
        if tensor.name not in inputs:
            proto.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(small)
    return proto


def adopt(model: ir.Model, proto: onnx.ModelProto) -> None:
    """Replace the graph and functions of `model` by those of `proto`, and put the weights back.

    proto: what a C++ pass returned for lean_proto(model).
    """
    inputs = len(model.graph.inputs)
    weights = {name: v.const_value for name, v in model.graph.initializers.items()}
    adopted = ir.from_proto(proto)
    graph = adopted.graph
    for value in graph.inputs[inputs:]:
        if value.name is not None and not value.is_initializer():
            value.const_value = weights[value.name]
            graph.register_initializer(value)
    own_inputs = list(graph.inputs[:inputs])
    graph.inputs.clear()
    graph.inputs.extend(own_inputs)
    hand_on_multiples(model.graph, graph)
    model.graph = graph
    model.functions.clear()
    model.functions.update(adopted.functions)
