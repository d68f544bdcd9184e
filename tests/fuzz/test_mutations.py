"""A fixed handful of the damaged files of tests/fuzz/mutations.py; `make fuzz` opens many more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.fuzz import mutations

ROOT = Path(__file__).resolve().parents[2]


def test_damaged_files_end_in_one_line() -> None:
    """In a process of its own: the files are opened in forks of it, which threads of other tests would not survive."""
    command = [sys.executable, "-m", "tests.fuzz.mutations", "--count", "16", "--seconds", "1000"]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.splitlines()[-1] == "seeds 0 to 15: 0 findings"


def test_equal_seeds_give_equal_files() -> None:
    assert [mutations.mutated(seed) for seed in range(20)] == [mutations.mutated(seed) for seed in range(20)]
