"""Joins weights along their columns: small ones in memory, others in a file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

_IN_MEMORY = 1 << 20  # bytes
_CHUNK = 1 << 20  # bytes joined at a time: in cache, and never a second copy of the weight in memory


class Joiner:
    """Joins weights into new ones. Large ones go to a file in `folder`, which has to outlive the model."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def columns(self, tensors: Sequence[ir.TensorProtocol], name: str) -> ir.TensorProtocol:
        """The tensors, of one dtype and the same first dims, joined along the last axis."""
        dtype, arrays = tensors[0].dtype, [t.numpy() for t in tensors]
        size = sum(a.nbytes for a in arrays)
        if size <= _IN_MEMORY:
            return ir.Tensor(np.concatenate(arrays, axis=-1), dtype=dtype, name=name)
        shape = ir.Shape((*arrays[0].shape[:-1], sum(a.shape[-1] for a in arrays)))
        with tempfile.NamedTemporaryFile(dir=self._folder.absolute(), suffix=".weight", delete=False) as file:
            for rows in _joined_rows(arrays):
                file.write(rows)
        return ir.ExternalTensor(file.name, 0, size, dtype, shape=shape, name=name, base_dir="")


def _joined_rows(arrays: Sequence[np.ndarray]) -> Iterator[memoryview]:
    """The bytes of the arrays joined along the last axis, some rows at a time. Each yield reuses one buffer."""
    flat = [a.reshape(-1, a.shape[-1]) for a in arrays]
    width = sum(a.shape[-1] for a in flat)
    step = max(1, _CHUNK // (width * flat[0].itemsize))
    buffer = np.empty((step, width), flat[0].dtype)
    for start in range(0, len(flat[0]), step):
        rows = buffer[: len(flat[0]) - start]
        np.concatenate([a[start : start + step] for a in flat], axis=-1, out=rows)
        yield rows.view(np.uint8).data
