"""Which dtypes ONNX Runtime's CUDA provider has no kernel for, by operator and version.

provider_kernels.json is what `python -m benchmarks.checks.placements` found on a GPU with the release that it names.
Only operators of ONNX's own domain are there, and only dtypes that keep a node on the CPU.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable
from importlib import resources
from typing import Any

import onnx
import onnx_ir as ir

from onnxopt.graph.signature import dtype_name

Dtypes = Callable[[ir.Value], ir.DataType | None]
_SAME = ("SAME_UPPER", "SAME_LOWER")


def missing(node: ir.Node, dtype: Dtypes) -> str | None:
    """What of a node has no CUDA kernel, for a message, such as "of float16 (version 20)". None where it has one.

    node: of ONNX's domain, in a graph or function that imports it; nodes in bodies of control flow get None.
    """
    return _attribute(node) or _dtype(node, dtype)


def _attribute(node: ir.Node) -> str | None:
    """An attribute whose value the operator's CUDA kernel does not take."""
    of = node.attributes
    if node.op_type in ("ArgMax", "ArgMin") and of.get_int("select_last_index", 0) == 1:
        return "with select_last_index"
    if node.op_type == "ConvTranspose" and of.get_string("auto_pad", "NOTSET") in _SAME:
        return "with auto_pad"
    return None


def _dtype(node: ir.Node, dtype: Dtypes) -> str | None:
    versions = _table().get(node.op_type)
    opset = node.graph.opset_imports.get("") if versions and node.graph is not None else None
    if versions is None or opset is None:
        return None
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, "")
    except onnx.defs.SchemaError:
        return None
    without = versions.get(str(schema.since_version), {})
    for formals, values in ((schema.inputs, node.inputs), (schema.outputs, node.outputs)):
        for k, value in enumerate(values):
            value_dtype = None if value is None else dtype(value)
            if value_dtype is not None and value_dtype.name.lower() in without.get(
                formals[min(k, len(formals) - 1)].type_str, ()
            ):
                return f"of {dtype_name(value_dtype)} (version {schema.since_version})"
    return None


def without_kernel() -> frozenset[str]:
    """The operators that the CUDA provider has no kernel for in any version and dtype."""
    return frozenset(_file()["without_kernel"])


def without_kernel_of(dtypes: Iterable[ir.DataType]) -> frozenset[str]:
    """The operators of which the CUDA provider has no kernel for one of these dtypes in some version."""
    names = {dtype.name.lower() for dtype in dtypes}
    return frozenset(
        operator
        for operator, versions in _table().items()
        if any(not names.isdisjoint(missing) for variables in versions.values() for missing in variables.values())
    )


def _table() -> dict[str, dict[str, dict[str, list[str]]]]:
    """By operator, since version and type variable: dtypes without a kernel."""
    table: dict[str, dict[str, dict[str, list[str]]]] = _file()["without_kernel_of"]
    return table


@functools.cache
def _file() -> dict[str, Any]:
    text = resources.files("onnxopt.graph.placement").joinpath("provider_kernels.json").read_text()
    document: dict[str, Any] = json.loads(text)
    return document
