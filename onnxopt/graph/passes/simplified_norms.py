"""Norms without a mean become the nodes that ONNX Runtime fuses to them, and that older opsets have.

    SimplifiedLayerNormalization | RMSNormalization (x, scale; epsilon)
        -> Mul(Div(x, Sqrt(Add(ReduceMean(Pow(x, 2)), epsilon))), scale)

The first is ONNX Runtime's, in ONNX's domain, the second ONNX's of opset 23.
In 16 bits the nodes up to Div compute in float32, between two Casts. In the body of a function the operator ends the
process. ONNX Runtime's own optimizer makes the operator of the nodes again where no kernel takes them.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

_NARROW = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
_NORMS = frozenset({"SimplifiedLayerNormalization", "RMSNormalization"})
_AXES_ARE_INPUTS = 18  # opset of ReduceMean


class SimplifiedNormsPass(ir.passes.InPlacePass):
    """The pass, for norms of the last dim whose other outputs nobody reads. A Cast without effect may be left."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        opset = model.opset_imports.get("", 0)
        norms = [node for graph in model.graphs() for node in graph if _is_plain(node)]
        for node in norms:
            _replace(node, opset)
        return ir.passes.PassResult(model, bool(norms))


def _is_plain(node: ir.Node) -> bool:
    if node.op_type not in _NORMS or node.domain not in ("", "ai.onnx") or len(node.inputs) != 2:
        return False
    scale = node.inputs[1]
    one_dim = scale is not None and scale.shape is not None and len(scale.shape) == 1
    last = node.attributes.get_int("axis", -1) == -1
    unread = not any(v.uses() or v.is_graph_output() for v in node.outputs[1:])
    return one_dim and last and unread and node.attributes.get_int("stash_type", 1) == ir.DataType.FLOAT


def _replace(node: ir.Node, opset: int) -> None:
    x, scale, result = node.inputs[0], node.inputs[1], node.outputs[0]
    assert x is not None and scale is not None and node.graph is not None
    dtype = scale.dtype
    nodes: list[ir.Node] = []

    def op(kind: str, *inputs: ir.Value, **attributes: int | list[int]) -> ir.Value:
        nodes.append(ir.node(kind, inputs, attributes, name=f"{node.name}/{kind}"))
        return nodes[-1].outputs[0]

    def constant(array: np.ndarray) -> ir.Value:
        nodes.append(ir.node("Constant", [], {"value": ir.tensor(array)}))
        return nodes[-1].outputs[0]

    wide = op("Cast", x, to=int(ir.DataType.FLOAT))
    squares = op("Pow", wide, constant(np.array(2, np.float32)))
    if opset >= _AXES_ARE_INPUTS:
        mean = op("ReduceMean", squares, constant(np.array([-1], np.int64)), keepdims=1)
    else:
        mean = op("ReduceMean", squares, axes=[-1], keepdims=1)
    epsilon = constant(np.array(node.attributes.get_float("epsilon", 1e-5), np.float32))
    normal = op("Div", wide, op("Sqrt", op("Add", mean, epsilon)))
    if dtype is not None and dtype in _NARROW:
        normal = op("Cast", normal, to=int(dtype))
    new = op("Mul", normal, scale)
    new.name, new.type, new.shape = result.name, result.type, result.shape
    node.graph.insert_before(node, nodes)
    result.replace_all_uses_with(new, replace_graph_outputs=True)
    node.graph.remove(node, safe=True)
