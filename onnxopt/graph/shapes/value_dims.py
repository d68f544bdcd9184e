"""Dims as shape inference has written them on values (onnx_ir.Shape), for pattern rules."""

from __future__ import annotations

import onnx_ir as ir

from onnxopt.graph.shapes.dims import Dim, parse_dim


def dims_of(value: ir.Value) -> tuple[int | ir.SymbolicDim, ...]:
    """The dims of a value whose rank the caller has checked."""
    assert value.shape is not None
    return value.shape.dims


def same(a: object, b: object) -> bool:
    """Whether two dims are known to be equal at every run: equal numbers, or symbols of the same name."""
    if isinstance(a, int) or isinstance(b, int):
        return a == b
    return isinstance(a, ir.SymbolicDim) and a.value is not None and a == b


def parsed(dim: int | ir.SymbolicDim) -> Dim:
    """A dim as an expression of symbols."""
    return dim if isinstance(dim, int) else parse_dim(str(dim.value))
