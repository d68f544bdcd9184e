"""Dims as shape inference has written them on values (onnx_ir.Shape), and numbers of values, for pattern rules."""

from __future__ import annotations

import onnx_ir as ir

from onnxopt.graph.shapes.dims import Dim, parse_dim

_SPREAD = frozenset({"Expand", "Unsqueeze", "Squeeze", "Reshape", "Identity"})
_READ = 1024  # elements; larger tensors are data


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


def reshape_to(x: ir.Value, wanted: ir.Shape) -> list[int] | str:
    """Reshape's constant that gives x these dims, or why there is none.

    Numbers stand for themselves, 0 for x's own dim at the same place, and -1 for the one dim that is left. Where only
    one dim is not a number it is -1, so that x need not have a known shape.
    """
    if 0 in wanted.dims:
        return "a dim of 0 cannot stand beside -1"
    own = () if x.shape is None else x.shape.dims
    few = sum(not isinstance(dim, int) for dim in wanted) <= 1
    dims = [
        dim if isinstance(dim, int) else 0 if not few and k < len(own) and same(dim, own[k]) else -1
        for k, dim in enumerate(wanted.dims)
    ]
    return dims if dims.count(-1) <= 1 else "several dims of the result are not known"


def uniform(value: ir.Value | None) -> float | None:
    """The number that every element of a tensor is; None where the elements differ or are not known."""
    while value is not None:
        tensor, node = value.const_value, value.producer()
        if tensor is not None:
            numeric = 1 <= tensor.size <= _READ and tensor.dtype not in (ir.DataType.BOOL, ir.DataType.STRING)
            elements = tensor.numpy().ravel() if numeric else None
            equal = elements is not None and elements.tobytes() == elements[:1].tobytes() * len(elements)
            return float(elements[0]) if elements is not None and equal else None
        if node is not None and node.op_type == "ConstantOfShape" and node.domain == "":
            fill = node.attributes.get_tensor("value")
            return float(fill.numpy().item()) if fill is not None else 0.0
        if node is None or node.domain != "" or node.op_type not in _SPREAD:
            return None
        value = node.inputs[0]
    return None
