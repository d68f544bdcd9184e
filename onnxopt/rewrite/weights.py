"""Weights joined along their columns, in memory where they are small and in a file where they are not."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

_IN_MEMORY = 1 << 20  # bytes


class Joiner:
    """Joins weights into new ones, whose bytes go to a file in `folder`, which has to outlive the model."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def columns(self, tensors: Sequence[ir.TensorProtocol], name: str) -> ir.TensorProtocol:
        """The tensors, of one dtype and the same first dims, beside each other along the last axis."""
        dtype = tensors[0].dtype
        joined = np.concatenate([t.numpy() for t in tensors], axis=-1)
        if joined.nbytes <= _IN_MEMORY:
            return ir.Tensor(joined, dtype=dtype, name=name)
        with tempfile.NamedTemporaryFile(dir=self._folder.absolute(), suffix=".weight", delete=False) as file:
            file.write(np.ascontiguousarray(joined).tobytes())
        shape = ir.Shape(joined.shape)
        return ir.ExternalTensor(file.name, 0, joined.nbytes, dtype, shape=shape, name=name, base_dir="")
