"""The tables of cases/: CUDA kernels run on the CPU by g++, with the launches of the library, against float64.

Every entry point of each case that needs neither a cluster nor Hopper's products is run with the grid and numbers that
the library hands over (emulation/kernel_launches.cc compiles its code): what is tested is the device code, its tails
and its host. Kinds of several launches are run as the library chooses and launches them, in sessions.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cases.table import Row, Table
from cases.tables import TABLES
from tests.support import case_runs
from tests.support.emulation import emulated_library, flash_entry, kernel_launches


def _rows(way: str) -> list[object]:
    """Those that are run this way without a GPU."""
    return [
        pytest.param(table, row, id=name, marks=[pytest.mark.exhaustive] if row.exhaustive else [])
        for name, table, row in case_runs.rows(TABLES)
        if table.emulated == way and not row.gpu
    ]


@pytest.mark.parametrize(("table", "row"), _rows("launches"))
def test_launches(table: Table, row: Row, tmp_path: Path) -> None:
    entry = flash_entry.without_products if row.without_products else None
    with np.errstate(all="ignore"):
        results = kernel_launches.results(tmp_path, row, table.fused, entry)
        errors = {key: table.error(key[0], key[1], *result) for key, result in results.items()}
    assert {case for case, _ in results} == set(row.cases)
    assert not {key: error for key, error in errors.items() if not error <= 1}
    _check_names(row, {name for _, name in results})


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(("table", "row"), _rows("sessions"))
def test_sessions(table: Table, row: Row, tmp_path: Path) -> None:
    runs = case_runs.of_row(table, row)
    models = [(model, [row.feeds(case) for case in cases]) for model, cases in runs.models]
    results, symbols = emulated_library.run_models(tmp_path / "run", models, runs.kernels)
    for (_, cases), (_, feeds), of_model in zip(runs.models, models, results, strict=True):
        for case, given, outputs in zip(cases, feeds, of_model, strict=True):
            with np.errstate(all="ignore"):
                assert (error := table.worst(case, outputs, case.expected(given))) <= 1, (case, error)
    names = [f"{kernel.name}_" for kernel in runs.kernels if kernel.kind.name == table.kind]
    _check_names(row, {s.removeprefix(name) for s in symbols for name in names if s.startswith(name)})


def _check_names(row: Row, names: set[str]) -> None:
    assert all(any(name.startswith(first) for name in names) for first in row.entry_points), names
    assert not row.alone or all(name.startswith(row.entry_points) for name in names), names
