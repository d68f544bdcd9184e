"""Models of lower precision open at the optimization levels of ONNX Runtime that fuse, wherever these meet a Cast.

tests/compat/test_lowered_models.py opens them at every level, with other releases too.
"""

from __future__ import annotations

from pathlib import Path

import onnxruntime as ort
import pytest

from tests.support.precision import lowered_models

_LEVELS = (ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED, ort.GraphOptimizationLevel.ORT_ENABLE_ALL)


def _assert_opens(model: bytes, what: str) -> None:
    for level in _LEVELS:
        options = ort.SessionOptions()
        options.graph_optimization_level, options.log_severity_level = level, 4
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        assert session.get_outputs()[0].type == "tensor(float)", f"{level} with {what} in float32"


@pytest.mark.parametrize(("fusion", "columns"), lowered_models.cases())
def test_a_cast_at_any_edge_of_a_fusion_leaves_a_model_that_opens(fusion: str, columns: str, tmp_path: Path) -> None:
    models = lowered_models.converted(fusion, columns, tmp_path)
    assert len(models) > 1
    for model, kept in models.items():
        _assert_opens(model, str(kept))
