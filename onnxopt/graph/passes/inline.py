"""Inlines all model-local functions, also those written for another opset than the model's."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass, RemoveUnusedFunctionsPass

from onnxopt.graph.passes.same_operators import same_operator
from onnxopt.graph.passes.unique_names import UniqueNamesPass


def inline_functions(model: ir.Model) -> str | None:
    """Inline every function, in place, with unique names. Returns None, or why all functions stay as they are."""
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
        _InlinePass()(model)
    except Exception as error:  # noqa: BLE001 - of onnx_ir, whose errors share no class
        model.graph = before.graph
        model.functions.clear()
        model.functions.update(before.functions)
        return str(error.__cause__ or error)
    UniqueNamesPass()(model)
    return None


class _InlinePass(InlinePass):
    """onnx_ir's pass, whose nodes and values share names afterwards.

    It counts from 1 for each name that is taken, so many calls of one function take time as their square.
    """

    def _reset(self, model: ir.Model) -> None:
        super()._reset(model)
        self._used_value_names, self._used_node_names = _AnyName(), _AnyName()


class _AnyName(set[str]):
    """Names of which none counts as taken."""

    def __contains__(self, name: object) -> bool:
        return False


def _different_operators(function: ir.Function, domain: str, version: int, imported: int) -> str | None:
    """An operator of a function that is not the same in both opsets, None where all of them are."""
    for node in function.all_nodes():
        if node.domain == domain and not same_operator(node.op_type, domain, version, imported):
            return node.op_type
    return None
