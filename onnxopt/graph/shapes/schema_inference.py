"""onnx's own shape inference, one node at a time, for the operators that have no rule in shapes/rules.py."""

from __future__ import annotations

import contextlib

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper

from onnxopt.graph.shapes.contents import Contents
from onnxopt.graph.shapes.contrib_schemas import DOMAINS as SCHEMA_DOMAINS
from onnxopt.graph.shapes.contrib_schemas import registered_in_onnx
from onnxopt.graph.shapes.dims import Dims, dim_text

# Operators whose result's shape follows from their operands' shapes and attributes alone.
_BY_SHAPES_ALONE = frozenset(
    {"Conv", "ConvInteger", "ConvTranspose", "QLinearConv", "MaxPool", "AveragePool", "LpPool", "Einsum",
     "DepthToSpace", "SpaceToDepth", "Flatten", "Gemm", "STFT", "GlobalAveragePool", "GlobalMaxPool"}
)  # fmt: skip

_REFUSALS = (
    onnx.defs.SchemaError, onnx.shape_inference.InferenceError, onnx.checker.ValidationError, RuntimeError, ValueError,
    TypeError,
)  # fmt: skip
# The type of an output, and a key: nodes with the same key, unless it is "", have results of the same shape.
Inferred = tuple[onnx.TypeProto, str]


class SchemaInference:
    """onnx's inference of single nodes. Results are cached, since models repeat their layers."""

    def __init__(self, opsets: dict[str, int], ir_version: int) -> None:
        self._opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in opsets.items()]
        self._versions, self._ir_version = opsets, ir_version
        self._types: dict[tuple[bytes, ...], tuple[str, list[onnx.TypeProto | None]]] = {}

    def outputs(
        self, node: ir.Node, types: list[onnx.TypeProto | None], held: list[onnx.TensorProto | None]
    ) -> list[Inferred | None]:
        """Types of a node's outputs, None where onnx does not know.

        types: of its inputs, None where one is left out. held: the inputs' contents, None where not known.
        """
        unknown: list[Inferred | None] = [None] * len(node.outputs)
        domain = "" if node.domain == "ai.onnx" else node.domain
        if domain not in self._versions or any(a.is_ref() for a in node.attributes.values()):
            return unknown
        proto = onnx.NodeProto(op_type=node.op_type, domain=domain)
        proto.input.extend("" if t is None else f"i{k}" for k, t in enumerate(types))
        proto.output.extend(f"o{k}" for k in range(len(node.outputs)))
        proto.attribute.extend(ir.serde.serialize_attribute(a) for a in node.attributes.values())
        present = {f"i{k}": t for k, t in enumerate(types) if t is not None}
        data = {f"i{k}": t for k, t in enumerate(held) if t is not None}
        parts = (proto, *present.values(), *data.values())
        key = tuple(part.SerializeToString() for part in parts)  # type: ignore[attr-defined]
        if key not in self._types:
            shared = str(len(self._types)) if node.op_type in _BY_SHAPES_ALONE else ""
            self._types[key] = shared, self._infer(proto, present, data)
        shared, outputs = self._types[key]
        return [None if t is None else (t, shared) for t in outputs]

    def _infer(
        self, node: onnx.NodeProto, types: dict[str, onnx.TypeProto], held: dict[str, onnx.TensorProto]
    ) -> list[onnx.TypeProto | None]:
        try:
            with registered_in_onnx() if node.domain in SCHEMA_DOMAINS else contextlib.nullcontext():
                schema = onnx.defs.get_schema(node.op_type, self._versions[node.domain], node.domain)
                outputs = onnx.shape_inference.infer_node_outputs(
                    schema, node, types, held, None, self._opsets, self._ir_version
                )
        except _REFUSALS:
            return [None] * len(node.output)  # no operator of onnx, or invalid operands, which a runtime reports
        return [outputs.get(name) for name in node.output]


def tensor_type(dtype: ir.DataType | None, dims: Dims | None) -> onnx.TypeProto:
    """The type of a tensor; expressions become the names of dims.

    Sizes below 0, as damaged models have them, are unknown: onnx ends the process at a Slice of them.
    """
    shape = None if dims is None else [None if isinstance(d, int) and d < 0 else dim_text(d) for d in dims]
    return onnx.helper.make_tensor_type_proto(0 if dtype is None else dtype.value, shape)


def ir_type(kind: onnx.TypeProto) -> ir.TypeProtocol | None:
    """The type in onnx_ir's form; None where it has no such form (maps)."""
    try:
        return ir.serde.deserialize_type_proto_for_type(kind)
    except ir.serde.SerdeError:
        return None


def tensor(held: Contents, dtype: ir.DataType | None) -> onnx.TensorProto | None:
    """Contents as a tensor, where all of them are numbers."""
    if dtype is None or not all(isinstance(v, int) for v in held.flat):
        return None
    return numpy_helper.from_array(np.asarray(held.astype(np.int64), dtype.numpy()))
