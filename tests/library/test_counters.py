"""Counters that outlive calls: which streams share them, and when there are none."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.emulation import library_programs

_MAIN = Path(__file__).parents[1] / "support" / "emulation" / "counters.cc"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return library_programs.compiled(_MAIN, tmp_path_factory.mktemp("counters") / "counters")


@pytest.mark.parametrize(
    ("steps", "printed"),
    [
        (("16:8", "24:8", "16:8", "0:8", "16:64"), "1 2 1 3 1 cleared 3"),  # each stream has its own
        (("16:8", "16:65", "16:8"), "1 2 2 cleared 2"),  # more than there are
        (("16:8:captured", "16:8", "16:8:captured", "16:65:captured"), "0 1 1 0 cleared 1"),
        (("2:8",), "0 cleared 0"),  # one handle for the streams of all threads
        (("16:8:full", "16:8"), "0 1 cleared 1"),
    ],
)  # fmt: skip
def test_counters_of_streams(program: Path, steps: tuple[str, ...], printed: str) -> None:
    """They are 0, and given back, also on a thread without a CUDA context."""
    done = subprocess.run([program, *steps], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{printed} left 0"
