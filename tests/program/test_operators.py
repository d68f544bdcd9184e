"""Every row of the operator table against onnx's reference evaluator, through the library's CPU and CUDA kernels.

`python -m tests.program.test_operators DIR sm_90` builds the artifacts of the CUDA half for a machine that has a GPU
but no NVRTC. There, ONNXOPT_PREPARED=DIR makes the tests take them.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from onnxopt.program.dtypes import DTYPES
from onnxopt.program.operators import table as operators
from onnxopt.runtime import sessions
from tests.conftest import device_arch
from tests.support.custom_ops import operator_models


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_row_agrees_with_the_reference_evaluator(dtype: str, tmp_path: Path, library: Path) -> None:
    chosen = list(operator_models.uses(dtype))
    operator_models.build(chosen, tmp_path, archs=())
    assert not operator_models.disagreements(chosen, tmp_path, sessions.CPU)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_row_agrees_on_cuda(dtype: str, tmp_path: Path, library: Path) -> None:
    chosen = list(operator_models.uses(dtype))
    folder = Path(os.environ["ONNXOPT_PREPARED"]) / dtype if "ONNXOPT_PREPARED" in os.environ else tmp_path
    if folder == tmp_path:
        operator_models.build(chosen, folder, archs=[device_arch()])
    assert not operator_models.disagreements(chosen, folder, sessions.CUDA)


def test_every_row_is_tried() -> None:
    tried = {(u.row.domain, u.row.name) for dtype in DTYPES for u in operator_models.uses(dtype)}
    assert tried == set(operators.OPERATORS)


if __name__ == "__main__":
    for name in DTYPES:
        target = Path(sys.argv[1]) / name
        target.mkdir(parents=True)
        operator_models.build(list(operator_models.uses(name)), target, archs=sys.argv[2:])
