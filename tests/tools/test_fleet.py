"""Fleet arithmetic: the numbers by hand, and what bench prints and records."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import onnxopt
from onnxopt.artifact import fleet, minisign, signing
from onnxopt.artifact import manifest as manifests
from onnxopt.errors import UsageError
from onnxopt.tools import fleets
from tests.support.artifacts import make
from tests.support.command import assert_refused, run

positive = st.floats(1e-3, 1e6)


def test_by_hand() -> None:
    # 8 requests in 4 ms are 2000 requests/s a GPU; 8 in 3 ms are 2666.7. 10000 requests/s at 50 % of each:
    found = fleet.fleet_of(4.0, 3.0, load=10_000, requests=8, utilization=0.5)
    assert (found.before_exact, found.after_exact) == (10.0, 7.5)
    assert (found.before, found.after) == (10, 8)
    assert found.text() == (
        "fleet: 10,000 requests/s need 10 GPUs before and 8 with the artifact "
        "(25% less GPU time; 8 requests a run, GPUs busy 50% of the time)"
    )


def test_from_a_number_of_gpus() -> None:
    found = fleet.fleet_of(1.62, 1.40, gpus=100)
    assert (found.before, found.after) == (100, math.ceil(100 * 1.40 / 1.62))
    assert found.load == pytest.approx(100 / 1.62e-3)


def test_slower_is_said_too() -> None:
    found = fleet.fleet_of(1.0, 1.25, gpus=8)
    assert (found.before, found.after) == (8, 10)
    assert "25% more GPU time" in found.text()


@given(before=positive, after=positive, load=positive, requests=st.integers(1, 512))
def test_the_gpus_carry_the_load(before: float, after: float, load: float, requests: int) -> None:
    found = fleet.fleet_of(before, after, load=load, requests=requests)
    for gpus, exact, milliseconds in (
        (found.before, found.before_exact, before),
        (found.after, found.after_exact, after),
    ):
        assert gpus >= 1
        assert gpus * requests * 1e3 / milliseconds >= load * (1 - 1e-8)
        assert gpus - exact < 1 or gpus == 1
    assert found.before_exact / found.after_exact == pytest.approx(before / after)


@given(gpus=st.integers(1, 100_000), before=positive)
def test_whole_gpus_stay_whole(gpus: int, before: float) -> None:
    assert fleet.fleet_of(before, before, gpus=gpus).before == gpus


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"load": 1, "gpus": 1},
        {"load": 0},
        {"gpus": -1},
        {"load": math.nan},
        {"load": math.inf},
        {"load": 1, "requests": 0},
        {"load": 1, "utilization": 0},
        {"load": 1, "utilization": 1.5},
    ],
)
def test_bad_numbers(options: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        fleet.fleet_of(2.0, 1.0, **options)  # type: ignore[arg-type]


# --- bench -----------------------------------------------------------------------------------------------------------

BENCH = ("--iterations", "5", "--shape", "batch=16")


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is timed counts as a GPU's time."""
    monkeypatch.setattr(fleets, "times_a_gpu", lambda provider: True)


@pytest.mark.usefixtures("library", "as_on_a_gpu", "without_footprints")
def test_bench_says_what_it_means_in_gpus(artifact: Path) -> None:
    make(artifact)
    result = run("bench", artifact, *BENCH, "--load", "100000")
    assert result.exit_code == 0, result.output
    last = result.stdout.splitlines()[-1]
    assert last.startswith("fleet: 100,000 requests/s need ")
    assert "16 requests a run" in last
    document = json.loads(run("bench", artifact, *BENCH, "--gpus", "40", "--requests-per-run", "2", "--json").stdout)
    assert document["fleet"]["before"] == 40
    assert document["fleet"]["requests"] == 2
    assert document["fleet"]["after"] == math.ceil(40 / document["baseline"]["p50"] * document["artifact"]["p50"])


@pytest.mark.usefixtures("library", "as_on_a_gpu", "without_footprints")
def test_bench_keeps_what_it_measured(artifact: Path) -> None:
    make(artifact)
    for number in (1, 2):
        result = run("bench", artifact, *BENCH, "--gpus", "40", "--record")
        assert result.exit_code == 0, result.output
        measurements = manifests.load(artifact).measurements
        assert len(measurements) == number
    assert measurements[0].case == "batch=16, seed 0"
    assert measurements[0].fleet is not None and measurements[0].fleet.before == 40
    assert measurements[0].ratio == pytest.approx(measurements[0].before_ms / measurements[0].after_ms, rel=1e-3)
    onnxopt.load(artifact)


@pytest.mark.usefixtures("library", "as_on_a_gpu", "without_footprints")
def test_concurrent_runs_count_by_their_rate(artifact: Path) -> None:
    make(artifact)
    document = json.loads(run("bench", artifact, *BENCH, "--gpus", "40", "--threads", "3", "--json").stdout)
    before, after = (document[side]["runs_a_second"] for side in ("baseline", "artifact"))
    assert document["fleet"]["after_exact"] == pytest.approx(40 * before / after, rel=1e-3)
    assert document["fleet"]["load"] == pytest.approx(40 * 16 * before, rel=1e-3)


@pytest.mark.usefixtures("library", "without_footprints")
def test_a_cpu_says_nothing_of_gpus(artifact: Path) -> None:
    make(artifact)
    for option in ("--load", "--gpus"):
        refused = run("bench", artifact, *BENCH, option, "40", "--provider", "CPUExecutionProvider")
        assert_refused(refused, "a CPU would be timed here")


@pytest.mark.usefixtures("library", "as_on_a_gpu", "without_footprints")
def test_bad_input_to_bench(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(artifact)
    with monkeypatch.context() as no_permission:
        no_permission.setattr(os, "access", lambda *_: False)
        assert_refused(run("bench", artifact, *BENCH, "--record"), "there is no permission to")
    assert_refused(run("bench", artifact, *BENCH, "--load", "1", "--gpus", "2"), "one of the two")
    assert_refused(run("bench", artifact, *BENCH, "--load", "-1"), "must be a positive number")
    assert_refused(run("bench", artifact, *BENCH, "--load", "1", "--utilization", "2"), "utilization")
    signing.sign(artifact, minisign.generate_key())
    before = (artifact / "manifest.json").read_bytes()
    assert_refused(run("bench", artifact, *BENCH, "--record"), "is signed")
    assert (artifact / "manifest.json").read_bytes() == before
