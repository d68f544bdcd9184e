"""Weights joined along their columns: in memory, and through a file some rows at a time."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from onnxopt.graph.rewrite.weights import Joiner

DTYPES = {"FLOAT": np.float32, "FLOAT16": np.float16, "BFLOAT16": ml_dtypes.bfloat16}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("lead", "widths", "in_file"),
    [
        ((7,), (3, 5), False),
        ((), (4, 9), False),
        ((1031,), (768, 256, 129), True),  # the last rows are fewer than a chunk holds
        ((3, 211), (700, 1300), True),
        ((2,), (600_001, 2), True),  # a row is more than a chunk
    ],
)
def test_columns(tmp_path: Path, dtype: str, lead: tuple[int, ...], widths: tuple[int, ...], in_file: bool) -> None:
    random = np.random.default_rng(5)
    parts = [random.standard_normal((*lead, width)).astype(DTYPES[dtype]) for width in widths]
    joined = Joiner(tmp_path).columns([ir.tensor(part) for part in parts], "w")
    expected = np.concatenate(parts, axis=-1)
    assert isinstance(joined, ir.ExternalTensor) == in_file == bool(list(tmp_path.iterdir()))
    assert (joined.name, joined.dtype, tuple(joined.shape)) == ("w", ir.DataType[dtype], expected.shape)
    assert joined.nbytes == expected.nbytes
    found = joined.numpy()
    assert found.dtype == expected.dtype and found.tobytes() == expected.tobytes()
