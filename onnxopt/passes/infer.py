"""Infers dtypes and shapes inside a model from its inputs and constants."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from onnxopt.external_data import graphs_of
from onnxopt.passes.attention_schemas import known_to_onnx
from onnxopt.passes.lean import lean_proto


class InferShapesPass(ir.passes.InPlacePass):
    """onnx's shape inference with data propagation; what it cannot infer, or does not know, stays unknown.

    Weights are not copied. Names must be unique over the whole model.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        with known_to_onnx():
            inferred = onnx.shape_inference.infer_shapes(lean_proto(model), data_prop=True)
        types = {
            value.name: value.type
            for graph in graphs_of(inferred)
            for value in (*graph.value_info, *graph.output)
            if value.type.WhichOneof("value") in ("tensor_type", "sparse_tensor_type")
        }
        modified = False
        for node in model.graph.all_nodes():
            for value in node.outputs:
                found = types.get(value.name or "")
                if found is None:
                    continue
                shape = ir.serde.deserialize_type_proto_for_shape(found)
                if shape is not None and shape != value.shape:
                    value.shape = shape
                    modified = True
                if value.type is None:
                    value.type = ir.serde.deserialize_type_proto_for_type(found)
                    modified = True
        return ir.passes.PassResult(model, modified)
