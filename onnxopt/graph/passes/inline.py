"""Inlines all model-local functions, also those written for another opset than the model's."""

from __future__ import annotations

import onnx
import onnx_ir as ir
from onnx_ir.passes.common import InlinePass, RemoveUnusedFunctionsPass

# Softmax and its kin flattened before opset 13, BatchNormalization's momentum and GroupNormalization's scale changed.
_CHANGED_MEANING = frozenset({"BatchNormalization", "GroupNormalization", "Hardmax", "LogSoftmax", "Resize", "Softmax"})


def inline_functions(model: ir.Model) -> str | None:
    """Inline every function, in place. Returns None, or why all functions stay as they are."""
    RemoveUnusedFunctionsPass()(model)
    if not model.functions:
        return None
    for function in model.functions.values():
        for domain, version in function.opset_imports.items():
            imported = model.opset_imports.get(domain)
            if imported is None or imported == version:
                continue
            different = _different_operators(function, domain, version, imported)
            if different:
                name = f"{function.domain}.{function.name}"
                return f"{name} has opset {version}, the model {imported}; {different} differs between the two"
            function.opset_imports[domain] = imported
    before = model.clone()
    try:
        InlinePass()(model)
    except Exception as error:  # noqa: BLE001 - of onnx_ir, whose errors share no class
        model.graph = before.graph
        model.functions.clear()
        model.functions.update(before.functions)
        return str(error.__cause__ or error)
    return None


def _different_operators(function: ir.Function, domain: str, version: int, imported: int) -> str | None:
    """An operator of a function that is not the same in both opsets, None where all of them are."""
    for node in function.all_nodes():
        if node.domain == domain and not same_operator(node.op_type, domain, version, imported, types_may_differ=True):
            return node.op_type
    return None


def same_operator(op_type: str, domain: str, a: int, b: int, *, types_may_differ: bool = False) -> bool:
    """Whether an operator is the same in opsets a and b of a domain.

    types_may_differ: the lists of allowed types may differ. An operator that changed its meaning under the same
    signature (_CHANGED_MEANING) is not the same.
    """
    try:
        first, second = onnx.defs.get_schema(op_type, a, domain), onnx.defs.get_schema(op_type, b, domain)
    except onnx.defs.SchemaError:
        return False
    if first.since_version == second.since_version:
        return True
    return types_may_differ and op_type not in _CHANGED_MEANING and _signature(first) == _signature(second)


def _signature(schema: onnx.defs.OpSchema) -> tuple[object, ...]:
    formals = [(f.name, f.option, f.is_homogeneous) for f in (*schema.inputs, *schema.outputs)]
    attributes = [(a.name, a.type, a.required, str(a.default_value)) for a in schema.attributes.values()]
    return (formals, sorted(attributes, key=lambda a: a[0]))
