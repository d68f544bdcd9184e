"""Weights of convolutions in the order that kernels read them; values stay lazy.

[K, C, 1, 1]       as [K, C], with a Reshape back        1x1, one group: a product's matrix
[K, 1, R, S]       as [R, S, 1, K], with a Transpose     depthwise: neighbouring channels lie side by side
[K, C/group, R, S] as [K, R, S, C/group]                 others
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_ir as ir

_KRSC = (0, 2, 3, 1)
_RSK = (2, 3, 1, 0)


class Stored(NamedTuple):
    """A weight in another order. back: the perm of the Transpose to Conv's order, () where a Reshape leads there."""

    value: ir.Value
    back: tuple[int, ...]


def stored(weight: ir.Value, group: int, name: str) -> Stored:
    """The constant weight of a Conv of rank 4, as a value of this name."""
    tensor = weight.const_value
    assert tensor is not None
    k, c, r, s = tensor.shape.numpy()
    if group == 1 and r == s == 1:
        return Stored(_lazy(tensor, (), (k, c), name), ())
    order = _RSK if c == 1 and k == group > 1 else _KRSC
    dims = tuple((k, c, r, s)[axis] for axis in order)
    return Stored(_lazy(tensor, order, dims, name), tuple(order.index(axis) for axis in range(4)))


def _lazy(tensor: ir.TensorProtocol, order: tuple[int, ...], dims: tuple[int, ...], name: str) -> ir.Value:
    def evaluate() -> ir.Tensor:
        array = tensor.numpy()
        array = np.ascontiguousarray(array.transpose(order)) if order else array.reshape(dims)
        return ir.Tensor(array, dtype=tensor.dtype, name=name)

    lazy = ir.LazyTensor(evaluate, dtype=tensor.dtype, shape=ir.Shape(dims), name=name)
    return ir.Value(name=name, shape=lazy.shape, type=ir.TensorType(tensor.dtype), const_value=lazy)
