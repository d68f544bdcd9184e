"""Which operators of ONNX mean the same in two opsets."""

from __future__ import annotations

from collections.abc import Container

import onnx
import onnx_ir as ir

from onnxopt.graph.placement.provider_kernels import Dtypes

# Softmax and its kin flattened before opset 13, BatchNormalization's momentum and GroupNormalization's scale changed.
_CHANGED_MEANING = frozenset({"BatchNormalization", "GroupNormalization", "Hardmax", "LogSoftmax", "Resize", "Softmax"})
_NEW_ATTRIBUTES = frozenset({"round_mode"})  # Cast's, of float8e8m0


def same_operator(op_type: str, domain: str, a: int, b: int) -> bool:
    """Whether an operator is the same in opsets a and b of a domain, but for the lists of allowed dtypes."""
    try:
        first, second = onnx.defs.get_schema(op_type, a, domain), onnx.defs.get_schema(op_type, b, domain)
    except onnx.defs.SchemaError:
        return False
    if first.since_version == second.since_version:
        return True
    return op_type not in _CHANGED_MEANING and _signature(first) == _signature(second)


def same_node(node: ir.Node, older: int, newer: int) -> bool:
    """Whether a node of ONNX's domain means the same in an older opset, but for the lists of allowed dtypes.

    The older operator may lack attributes that the node leaves at a default of nothing.
    """
    try:
        first, second = (onnx.defs.get_schema(node.op_type, version, "") for version in (older, newer))
    except onnx.defs.SchemaError:
        return False
    if first.since_version == second.since_version:
        return True
    added = {name for name in second.attributes if name not in first.attributes}
    if any(name in node.attributes for name in added) or not all(_is_nothing(second.attributes[n]) for n in added):
        return False
    return node.op_type not in _CHANGED_MEANING and _signature(first) == _signature(second, without=added)


def missing_dtypes(node: ir.Node, older: int, newer: int, dtype: Dtypes) -> list[str]:
    """The dtypes of a node's values that its operator does not have in an older opset."""
    first, second = (onnx.defs.get_schema(node.op_type, version, "") for version in (older, newer))
    if first.since_version == second.since_version:
        return []
    missing = set()
    for formals, values in ((first.inputs, node.inputs), (first.outputs, node.outputs)):
        for k, value in enumerate(values):
            value_dtype = None if value is None else dtype(value)
            if value is None or (
                value_dtype is not None
                and f"tensor({value_dtype.name.lower()})" in formals[min(k, len(formals) - 1)].types
            ):
                continue
            missing.add("a dtype that is not known" if value_dtype is None else value_dtype.name.lower())
    return sorted(missing)


def _is_nothing(attribute: onnx.defs.OpSchema.Attribute) -> bool:
    """Whether an attribute that is not set changes nothing: it is optional, with a default of 0 or none."""
    default = attribute.default_value
    integer = default.type == onnx.AttributeProto.INT and default.i == 0
    none = default.type == onnx.AttributeProto.UNDEFINED
    return not attribute.required and (integer or none or attribute.name in _NEW_ATTRIBUTES)


def _signature(schema: onnx.defs.OpSchema, without: Container[str] = ()) -> tuple[object, ...]:
    formals = [(f.name, f.option, f.is_homogeneous) for f in (*schema.inputs, *schema.outputs)]
    attributes = [
        (a.name, a.type, a.required, str(a.default_value)) for a in schema.attributes.values() if a.name not in without
    ]
    return (formals, sorted(attributes, key=lambda a: a[0]))
