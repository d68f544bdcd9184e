"""Gemm as MatMul and Add, which ONNX Runtime's quantizer of weights in blocks takes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxopt.tools.quantization.products import is_plain


def spell_out_gemms(model: ir.Model) -> None:
    """Replace every Gemm of the main graph that is a product with constant float32 weights, and a bias, in place."""
    for node in list(model.graph):
        weight = node.inputs[1] if node.op_type == "Gemm" and not node.domain else None
        if weight is None or weight.const_value is None or not is_plain(node) or weight.dtype != ir.DataType.FLOAT:
            continue
        _replace(model.graph, node, weight)


def _replace(graph: ir.Graph, node: ir.Node, weight: ir.Value) -> None:
    turned = "transB" in node.attributes and node.attributes["transB"].value
    operand = _turned(graph, weight) if turned else weight
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    product = ir.node("MatMul", [node.inputs[0], operand], name=node.name)
    result, added = product.outputs[0], [product]
    if bias is not None:
        added.append(ir.node("Add", [result, bias], name=f"{node.name}_bias"))
        result.name = f"{node.outputs[0].name}_without_bias"
        result.type = node.outputs[0].type
        result.shape = node.outputs[0].shape
        result = added[-1].outputs[0]
    ir.convenience.replace_nodes_and_values(graph, node, [node], added, node.outputs, [result])


def _turned(graph: ir.Graph, weight: ir.Value) -> ir.Value:
    """The transposed weight, made once for all its users."""
    name = f"{weight.name}_turned"
    if name in graph.initializers:
        return graph.initializers[name]
    assert weight.const_value is not None
    array = np.ascontiguousarray(weight.const_value.numpy().T)
    turned = ir.Value(name=name, const_value=ir.tensor(array, name=name), type=weight.type, shape=ir.Shape(array.shape))
    graph.register_initializer(turned)
    return turned
