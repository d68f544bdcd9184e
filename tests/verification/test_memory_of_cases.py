"""Edge cases that the memory does not hold are left out, and the report says so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir

from onnxopt.graph import traits
from onnxopt.runtime.sessions import CPU
from onnxopt.verification.coverage import Coverage, ModelFile
from onnxopt.verification.reference import Reference
from onnxopt.verification.sampling import edges
from tests.support.graphs import graph, hold

_LARGEST = 256 << 20


def test_many_elements_fit_the_memory(tmp_path: Path) -> None:
    """Small inputs with wide outputs: at the sizes that make the inputs large, a run took 22 GB."""
    model = graph(
        "float[B, S, 4] x, float[4, 50000] w", "float[B, S, 50000] y", "p = MatMul(x, w) y = Softmax<axis = -1>(p)"
    )
    hold(model, {"w": np.full((4, 50000), 0.1)}, "f4")
    ir.save(model, tmp_path / "m.onnx")
    file, coverage = ModelFile(tmp_path / "m.onnx", traits.of(model)), Coverage(seconds=0.5, edge_cases=True)
    reference = Reference(file, CPU, coverage, folder=tmp_path)
    written = [sum(a.nbytes for a in outputs.values()) for outputs in reference.outputs.values()]
    assert max(written) <= _LARGEST
    assert edges.MANY in reference.budget.left_out
