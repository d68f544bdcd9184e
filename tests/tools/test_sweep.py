"""bench --sweep: a row for each size, JSON that the report takes, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import onnxopt
from tests.support.artifacts import make
from tests.support.command import assert_refused, run

pytestmark = pytest.mark.usefixtures("library", "without_footprints")  # which a sweep does not measure


def test_a_row_for_each_size(artifact: Path) -> None:
    make(artifact)
    result = run("bench", artifact, "--iterations", "3", "--sweep", "batch=1,4,16,4", "-q")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[1].split()[:3] == ["batch", "before", "p50"]
    assert [line.split()[0] for line in lines[2:5]] == ["1", "4", "16"]
    assert "note:" not in result.stdout  # no process of its own was asked, as tables of several rows show times alone


def test_its_json_becomes_a_report(artifact: Path, tmp_path: Path) -> None:
    make(artifact)
    result = run("bench", artifact, "--iterations", "3", "--sweep", "batch=2,8", "--json", "-q")
    rows = json.loads(result.stdout)["sweep"]
    assert [row["case"] for row in rows] == ["batch=2, seed 0", "batch=8, seed 0"]
    assert [row["requests"] for row in rows] == [2, 8]
    (tmp_path / "sweep.json").write_text(result.stdout)
    page = onnxopt.report(artifact, bench=[tmp_path / "sweep.json"], output=tmp_path / "page.html")
    text = Path(page).read_text("utf-8")
    assert "batch=2" in text and "batch=8" in text


@pytest.mark.parametrize("text", ["batch", "batch=", "=1,2", "batch=1,,2", "batch=1x2"])
def test_what_is_no_sweep(text: str, artifact: Path) -> None:
    make(artifact)
    assert_refused(run("bench", artifact, "--sweep", text), f"--sweep {text}: expected NAME=SIZE,SIZE")


def test_a_sweep_against_other_options(artifact: Path, tmp_path: Path) -> None:
    make(artifact)
    both = run("bench", artifact, "--sweep", "batch=1,2", "--shape", "batch=4")
    assert_refused(both, "--shape gives this dim a size too")
    assert_refused(run("bench", artifact, "--sweep", "batch=1,2", "--data", tmp_path / "x.npz"), "leave out one")
    assert_refused(run("bench", artifact, "--sweep", "nothing=1,2", "-q"), "nothing", "no such input or dim")


def test_several_numbers_of_callers(artifact: Path) -> None:
    make(artifact)
    result = run("bench", artifact, "--iterations", "6", "--threads", "1,2", "--shape", "batch=4", "-q")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith("CPUExecutionProvider, batch=4, seed 0; outputs agree")
    assert lines[1].split()[0] == "threads"
    assert [line.split()[0] for line in lines[2:4]] == ["1", "2"]
    rows = json.loads(run("bench", artifact, "--iterations", "6", "--threads", "1,2", "--json", "-q").stdout)["sweep"]
    assert [row["threads"] for row in rows] == [1, 2]


def test_one_number_of_callers_over_sizes(artifact: Path) -> None:
    make(artifact)
    result = run("bench", artifact, "--iterations", "6", "--threads", "2", "--sweep", "batch=1,4", "-q")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("CPUExecutionProvider, every size, 2 threads; outputs agree")
    one = run("bench", artifact, "--iterations", "6", "--threads", "2", "--shape", "batch=4", "-q")
    assert one.stdout.startswith("CPUExecutionProvider, batch=4, seed 0, 2 threads; outputs agree")


@pytest.mark.parametrize("text", ["0", "", "-1", "2,", "two", "1,0"])
def test_what_is_no_number_of_callers(text: str, artifact: Path) -> None:
    make(artifact)
    assert_refused(run("bench", artifact, f"--threads={text}"), f"--threads {text}: expected one number or several")


def test_two_sweeps(artifact: Path) -> None:
    make(artifact)
    both = run("bench", artifact, "--sweep", "batch=1,2", "--threads", "1,2")
    assert_refused(both, "--sweep and several --threads: one of the two may vary")
