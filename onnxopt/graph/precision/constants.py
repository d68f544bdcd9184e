"""The constants of a float32 model in 16 bits."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxopt.graph.passes.new_nodes import Keep
from onnxopt.graph.precision import ranges
from onnxopt.graph.precision.ranges import Range


def in_memory(array: np.ndarray, dtype: ir.DataType, name: str) -> ir.TensorProtocol:
    return ir.Tensor(array, dtype=dtype, name=name)


class Constants:
    """Constants in 16 bits, and their ranges: each is made once for all conversions of a model and of its clones."""

    def __init__(self, dtype: ir.DataType, keep: Keep = in_memory) -> None:
        self._dtype, self._keep = dtype, keep
        self._made: dict[tuple[int, float | None], tuple[ir.TensorProtocol, ir.TensorProtocol]] = {}
        self._ranges: dict[int, tuple[ir.TensorProtocol, Range]] = {}

    def range_of(self, constant: ir.TensorProtocol) -> Range:
        """The range of a constant of float32."""
        if id(constant) not in self._ranges:
            self._ranges[id(constant)] = (constant, ranges.range_of(constant.numpy(), self._dtype))
        return self._ranges[id(constant)][1]

    def of(self, constant: ir.TensorProtocol, lowest: float | None, name: str) -> ir.TensorProtocol:
        """A constant of float32, rounded, by another name. lowest: as for `ranges.rounded`."""
        key = (id(constant), lowest)
        if key not in self._made:
            array = ranges.rounded(constant.numpy(), self._dtype, lowest=lowest)
            self._made[key] = (constant, self._keep(array, self._dtype, name))
        made = self._made[key][1]
        made.name = name
        return made
