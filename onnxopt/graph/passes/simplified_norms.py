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

from onnxopt.graph.passes.contrib.building import Standard

NARROW = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
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
    x, scale = node.inputs[:2]
    assert x is not None and scale is not None
    op = Standard(node)
    new = simplified_norm(op, x, scale, node.attributes.get_float("epsilon", 1e-5), opset)
    op.place(new)
    op.replace((new,))


def simplified_norm(
    op: Standard, x: ir.Value, scale: ir.Value, epsilon: float, opset: int = _AXES_ARE_INPUTS
) -> ir.Value:
    """The norm of the last axis in standard operators; all but scaling computes in float32. opset: of the model."""
    wide = x if scale.dtype == ir.DataType.FLOAT else op("Cast", x, to=int(ir.DataType.FLOAT))
    squares = op("Pow", wide, op.constant(np.array(2, np.float32)))
    if opset >= _AXES_ARE_INPUTS:
        mean = op("ReduceMean", squares, op.constant([-1]), keepdims=1)
    else:
        mean = op("ReduceMean", squares, axes=[-1], keepdims=1)
    normal = op("Div", wide, op("Sqrt", op("Add", mean, op.constant(np.array(epsilon, np.float32)))))
    narrow = scale.dtype is not None and scale.dtype in NARROW
    return op("Mul", op("Cast", normal, to=int(scale.dtype)) if narrow else normal, scale)  # type: ignore[arg-type]
