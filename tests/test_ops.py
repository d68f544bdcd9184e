"""Every row of the operator table against onnx's reference evaluator, through the library's CPU and CUDA kernels."""

from __future__ import annotations

from pathlib import Path

import operator_models
import pytest
from conftest import device_arch

from onnxopt import execution, ops
from onnxopt.dtypes import DTYPES


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_row_agrees_with_the_reference_evaluator(dtype: str, tmp_path: Path, library: Path) -> None:
    assert not operator_models.disagreements(dtype, tmp_path, execution.CPU, archs=())


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_row_agrees_on_cuda(dtype: str, tmp_path: Path, library: Path) -> None:
    assert not operator_models.disagreements(dtype, tmp_path, execution.CUDA, archs=[device_arch()])


def test_every_row_is_tried() -> None:
    tried = {(u.row.domain, u.row.name) for dtype in DTYPES for u in operator_models.uses(dtype)}
    assert tried == set(ops.OPERATORS)
