"""Weights of convolutions in the order that kernels read them; values stay lazy.

[K, C, 1, 1]       as [K, C], with a Reshape back        1x1, one group: a product's matrix
[K, 1, R, S]       as [R, S, 1, K], with a Transpose     depthwise: neighbouring channels lie side by side
[K, C/group, R, S] as [K, R, S, C/group]                 others

Weights of volumes have the window's depth T before R, but those whose window goes over no depth are as of images.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from onnxopt.costs.layout import numbers

_IMAGE = numbers().image_channels


class Stored(NamedTuple):
    """A weight in another order. back: the perm of the Transpose to Conv's order, () where there is none. views:
    whether a Reshape leads to Conv's dims, after the Transpose."""

    value: ir.Value
    back: tuple[int, ...]
    views: bool


def stored(weight: ir.Value, group: int, name: str, missing: int = 0, *, by_planes: bool = False) -> Stored:
    """The constant weight of a Conv, as a value of this name. missing: channels of zeros to append to C.

    group: 0 for a ConvTranspose, whose weight always lies as others do. by_planes: whether the Conv is one of a volume
    whose planes are images.
    """
    tensor = weight.const_value
    assert tensor is not None
    k, c, *window = tensor.shape.numpy()
    if group == 1 and all(side == 1 for side in window):
        return Stored(reordered(tensor, (), (k, c), name), (), views=True)
    if by_planes:
        tensor = _reshaped(tensor, (k, c, *window[1:]))
    own = tensor.shape.numpy()
    depthwise = c == 1 and k == group > 1
    order = (*range(2, len(own)), 1, 0) if depthwise else (0, *range(2, len(own)), 1)
    dims = tuple((k, c + missing, *own[2:])[axis] for axis in order)
    back = tuple(order.index(axis) for axis in range(len(own)))
    return Stored(reordered(tensor, order, dims, name), back, views=by_planes)


def missing_channels(conv: ir.Node) -> int:
    """How many channels of zeros make the convolution of an image take less time (costs/data/layout.json)."""
    weight = conv.inputs[1]
    if weight is None or weight.const_value is None or conv.attributes.get_int("group", 1) != 1:
        return 0
    dims = weight.const_value.shape.numpy()
    image = dims[1] == _IMAGE and any(side != 1 for side in dims[2:]) and weight.const_value.dtype.bitwidth == 16
    return 1 if image else 0


def _reshaped(tensor: ir.TensorProtocol, dims: tuple[int, ...]) -> ir.TensorProtocol:
    lazy = reordered(tensor, (), dims, tensor.name or "").const_value
    assert lazy is not None
    return lazy


def reordered(tensor: ir.TensorProtocol, order: tuple[int, ...], dims: tuple[int, ...], name: str) -> ir.Value:
    """The tensor in this order, () to reshape it, with zeros after its ends where dims are larger; it stays lazy."""

    def evaluate() -> ir.Tensor:
        array = tensor.numpy()
        array = array.transpose(order) if order else array.reshape(dims)
        array = np.pad(array, [(0, new - old) for new, old in zip(dims, array.shape, strict=True)])
        return ir.Tensor(np.ascontiguousarray(array), dtype=tensor.dtype, name=name)

    lazy = ir.LazyTensor(evaluate, dtype=tensor.dtype, shape=ir.Shape(dims), name=name)
    return ir.Value(name=name, shape=lazy.shape, type=ir.TensorType(tensor.dtype), const_value=lazy)
