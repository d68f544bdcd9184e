"""The tables of cases/ on the GPU: what the library chooses, and each entry point that a row names, alone.

Functions have wrong bodies, so that only the kernels give the results, which are compared with float64, or with what
ONNX Runtime gives for the unchanged model.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest

from cases.table import Row, Table
from cases.tables import TABLES
from onnxopt.artifact.folder import write_library
from onnxopt.codegen import generate, kernels_json, nvrtc
from onnxopt.fusion.region import Kernel
from onnxopt.runtime import sessions
from tests.conftest import device_arch
from tests.support import case_runs

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("library")]

_ROWS = [
    pytest.param(table, row, id=name)
    for name, table, row in case_runs.rows(TABLES)
    if not (row.exhaustive or row.without_products)
]


@pytest.mark.parametrize(("table", "row"), _ROWS)
def test_row(table: Table, row: Row, tmp_path: Path) -> None:
    if row.major and not device_arch().startswith(f"sm_{row.major}"):
        pytest.skip(f"for GPUs of compute capability {row.major}.x")
    runs = case_runs.of_row(table, row)
    fatbin = _compiled(runs.kernels)
    wrong, ran = _wrong(table, row, runs, runs.kernels, fatbin, tmp_path / "all", may_refuse=False)
    assert ran
    for first in row.entry_points if table.single and not row.alone else ():
        more, ran = _wrong(table, row, runs, runs.only(first), fatbin, tmp_path / first, may_refuse=True)
        assert ran, f"nothing runs {first} alone"
        wrong += more
    assert not wrong


def _compiled(kernels: Sequence[Kernel]) -> bytes | None:
    """A fatbin, where any kernel has CUDA text."""
    own = [kernel for kernel in kernels if generate.own_text(kernel)]
    return nvrtc.compile_cuda(generate.generate(own), [device_arch()]) if own else None


def _wrong(
    table: Table,
    row: Row,
    runs: case_runs.Runs,
    kernels: Sequence[Kernel],
    fatbin: bytes | None,
    folder: Path,
    *,
    may_refuse: bool,
) -> tuple[list[tuple[str, object, float]], int]:
    """The cases whose results are further than their limit from what is right, and how many ran.

    may_refuse: the library refuses calls that no entry point fits.
    """
    folder.mkdir()
    library = write_library(folder / "lib", kernels_json.to_json(kernels, fatbin), fatbin)
    wrong, ran = [], 0
    for number, (model, cases) in enumerate(runs.models):
        path = folder / f"model{number}.onnx"
        onnx.save(model, path)
        session = sessions.open_session(
            path, provider=sessions.CUDA, library=library, provider_options={"use_tf32": "0"}
        )
        for case in cases:
            feeds = row.feeds(case)
            try:
                outputs = sessions.run(session, feeds)
            except sessions.RunError as error:
                if may_refuse and "no variant fits" in str(error):
                    continue
                raise
            ran += 1
            with np.errstate(all="ignore"):
                error_of_case = table.worst(case, outputs, case.expected(feeds))
            if not error_of_case <= 1:
                wrong.append((folder.name, case, error_of_case))
    return wrong, ran
