"""Calls that no kernel of samples runs, and what the library says of them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest

from cases.deformable_attention import Deformable
from cases.grid_sample import TABLE, Case
from tests.support.emulation import emulated_library


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    ("case", "shapes", "problem"),
    [
        (Case((2, 3, 4, 5), (2, 3)), {"x": (2, 3, 0, 5)}, "data [2, 3, 0, 5] has no pixels"),
        (Case((2, 3, 4, 5), (2, 3)), {"g": (3, 2, 3, 2)}, "grid [3, 2, 3, 2] is not [2, 2, 3, 2]"),
        (Case((2, 3, 4, 5), (2, 3), form="weighed"), {"w": (2, 3, 2, 3)}, "weights [2, 3, 2, 3] is not [2, 1, 2, 3]"),
        (Deformable(((5, 4), (3, 2)), open=True), {"loc": (3, 7, 3, 2, 4, 2)}, "grid [3, 7, 3, 2, 4, 2] is not of 2"),
    ],
)
def test_operands_that_do_not_fit(
    case: Case | Deformable, shapes: dict[str, tuple[int, ...]], problem: str, tmp_path: Path
) -> None:
    found = TABLE.fused(case)
    feeds = case.feeds()
    feeds |= {name: np.zeros(shape, feeds[name].dtype) for name, shape in shapes.items()}
    model = onnx.ModelProto.FromString(found.optimized.SerializeToString())
    for value in model.graph.input:
        value.type.tensor_type.ClearField("shape")  # which ONNX Runtime would check first
    with pytest.raises(AssertionError, match=re.escape(problem)):
        emulated_library.run_models(tmp_path / "run", [(model, [feeds])], found.kernels)
