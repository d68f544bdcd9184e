"""Exported by torch: norm and rotary embedding of queries and keys as one kernel each, shared heads in attention."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from onnxopt.pipeline import flow
from tests.support.attention import exported_attentions
from tests.support.fusing import cpu_kernels_forced


@pytest.mark.usefixtures("library")
def test_norm_rotary_and_groups(tmp_path: Path) -> None:
    onnx.save(exported_attentions.load("rotated_heads"), tmp_path / "block.onnx")
    with cpu_kernels_forced():
        manifest = flow.optimize(tmp_path / "block.onnx", tmp_path / "artifact", archs=()).manifest
    assert manifest.left_out == ()
    assert manifest.verify.status == "passed"
    rows = [set(k.ops) for k in manifest.kernels if k.kind == "rowwise"]
    assert len(rows) == 2
    assert all({"ReduceMean", "Slice", "Neg", "Concat"} <= ops for ops in rows)
    (attention,) = [k for k in manifest.kernels if k.kind == "flash_attention"]
    assert "Expand" in attention.ops, "its kernel reads the keys and values that queries share where they lie"
    assert not any("Expand" in ops for ops in rows)
