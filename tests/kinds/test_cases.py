"""The tables of cases/: CUDA kernels run on the CPU by g++, with the launches of the library, against float64.

Every entry point of each case that needs neither a cluster nor Hopper's products is run with the grid and numbers that
the library hands over (emulation/kernel_launches.cc compiles its code): what is tested is the device code, its tails
and its host.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cases.table import Row, Table
from cases.tables import TABLES
from tests.support.emulation import flash_entry, kernel_launches

_ROWS = [
    pytest.param(table, row, id=f"{table.kind} {row.name}", marks=[pytest.mark.exhaustive] if row.exhaustive else [])
    for table in TABLES
    for row in table.rows
]


@pytest.mark.parametrize(("table", "row"), _ROWS)
def test_emulated(table: Table, row: Row, tmp_path: Path) -> None:
    entry = flash_entry.without_products if row.without_products else None
    with np.errstate(all="ignore"):
        results = kernel_launches.results(tmp_path, row, table.fused, entry)
        errors = {key: table.error(key[0], key[1], *result) for key, result in results.items()}
    assert {case for case, _ in results} == set(row.cases)
    assert not {key: error for key, error in errors.items() if not error <= 1}
    names = {name for _, name in results}
    assert all(any(name.startswith(first) for name in names) for first in row.entry_points), names
    assert not row.alone or all(name.startswith(row.entry_points) for name in names), names
