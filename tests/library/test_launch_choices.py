"""Launch choices: what the library measures where it runs, and when it goes by it, on a GPU that only keeps time.

That a choice is fast on a GPU is what benchmarks/models/tune.py is for; that it is safe shows here.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from onnxopt.codegen import sealed_json
from tests.support.emulation import library_programs

_MAIN = Path(__file__).parents[1] / "support" / "emulation" / "launches.cc"
H200 = {"FAKE_GPU": "NVIDIA H200"}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program of emulation/launches.cc, in a folder of its own: launches.json lies beside it."""
    return library_programs.compiled(_MAIN, tmp_path_factory.mktemp("launches") / "launches")


@pytest.fixture
def beside(program: Path) -> Path:
    """The file beside the library; there is none at first."""
    file = program.with_name("launches.json")
    file.unlink(missing_ok=True)
    return file


def run(program: Path, *arguments: object, **variables: str) -> list[str]:
    """What each of two calls launched at last, and how many launches that took."""
    done = subprocess.run(
        [program, *map(str, arguments)], capture_output=True, text=True, env={**os.environ, **H200, **variables}
    )
    return done.stdout.splitlines()


def entry(**changes: object) -> dict[str, object]:
    return {
        "gpu": "NVIDIA H200",
        "kernel": "AddGelu_3f2a9c1e",
        "size": "1000",
        "symbol": "b",
        "microseconds": 3.0,
        "rule_microseconds": 5.0,
    } | changes


def write(file: Path, *entries: dict[str, object]) -> None:
    file.write_text(sealed_json.seal({"schema": 2, "entries": list(entries)}))


def test_without_a_file_the_rule_decides(program: Path, beside: Path) -> None:
    assert run(program, 5, 3, 1, "111", 1000) == ["a 1", "a 1"]


def test_the_fastest_that_fits_is_measured_once_and_kept(program: Path, beside: Path, tmp_path: Path) -> None:
    kept = tmp_path / "launches.json"
    first, second = run(program, 5, 3, 1, "110", 1000, ONNXOPT_LAUNCH_TUNE=str(kept))
    assert first.startswith("b ") and int(first.split()[1]) > 100
    assert second == "b 1"
    (found,) = json.loads(kept.read_text())["entries"]
    assert found == entry(microseconds=pytest.approx(3.0), rule_microseconds=pytest.approx(5.0))
    # known now: nothing is measured again, and another size is added
    assert run(program, 5, 3, 1, "110", 1000, ONNXOPT_LAUNCH_TUNE=str(kept)) == ["b 1", "b 1"]
    assert run(program, 5, 3, 1, "111", 2000, ONNXOPT_LAUNCH_TUNE=str(kept))[1] == "c 1"
    assert [e["size"] for e in json.loads(kept.read_text())["entries"]] == ["1000", "2000"]
    beside.write_text(kept.read_text())
    assert run(program, 5, 3, 1, "111", 2000) == ["c 1", "c 1"]


def test_what_is_hardly_faster_is_not_taken(program: Path, beside: Path, tmp_path: Path) -> None:
    kept = tmp_path / "launches.json"
    assert run(program, 5, 4.95, 6, "111", 1000, ONNXOPT_LAUNCH_TUNE=str(kept))[1] == "a 1"
    assert json.loads(kept.read_text())["entries"][0]["symbol"] == "a"


@pytest.mark.parametrize(
    ("changes", "fitting"),
    [
        ({"gpu": "NVIDIA H100 PCIe"}, "111"),
        ({"kernel": "AddGelu_00000000"}, "111"),
        ({"size": "2000"}, "111"),
        ({"symbol": "of another artifact"}, "111"),
        ({}, "101"),  # as where a buffer is not aligned
    ],
)
def test_an_entry_that_is_not_for_this_call_changes_nothing(
    program: Path, beside: Path, changes: dict[str, object], fitting: str
) -> None:
    write(beside, entry())
    assert run(program, 5, 3, 1, "111", 1000) == ["b 1", "b 1"]
    write(beside, entry(**changes))
    assert run(program, 5, 3, 1, fitting, 1000) == ["a 1", "a 1"]


def test_nothing_is_measured_under_capture(program: Path, beside: Path, tmp_path: Path) -> None:
    kept = tmp_path / "launches.json"
    assert run(program, 5, 3, 1, "111", 1000, "capturing", ONNXOPT_LAUNCH_TUNE=str(kept)) == ["a 1", "a 1"]
    assert not kept.exists()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "not valid JSON"),
        ('{"schema": 1, "entries": []}', "schema is 1, and this library reads schema 2"),
        ('{"schema": 2, "entries": []}', "its first line is no sha256 of the others"),
        (sealed_json.seal({"schema": 2, "entries": []}).replace("[]", "[ ]"), "was changed after it was written"),
        (sealed_json.seal({"schema": 2, "entries": [{"gpu": "x"}]}), "entries[0] has no field"),
    ],
)
def test_a_damaged_file_is_an_error_that_names_it(program: Path, beside: Path, text: str, problem: str) -> None:
    beside.write_text(text)
    (said,) = run(program, 5, 3, 1, "111", 1000)
    assert said.startswith(f"error: {beside}: ") and problem in said and "remove the file" in said
