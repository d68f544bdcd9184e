"""Measurements that differ in one size, or in the number of callers, as plots of the report."""

from __future__ import annotations

from pathlib import Path

import pydantic
import pytest

import onnxopt
from onnxopt.artifact.measurement import BenchResult
from onnxopt.artifact.report import latency_views, plots
from tests.support.artifacts import make
from tests.support.report_pages import bench_file, bench_result, read, timing


def result(**changes: object) -> BenchResult:
    return pydantic.TypeAdapter(BenchResult).validate_python(bench_result(**changes))


def names(results: list[BenchResult]) -> list[tuple[str, str, list[int]]]:
    found = latency_views.sweeps(results)
    return [(sweep.name, sweep.fixed, [value for value, _ in sweep.results]) for sweep in found]


def test_one_size_that_varies_is_a_sweep() -> None:
    results = [result(case=f"batch={size}, length=128, seed 0") for size in (4, 1, 2)]
    assert names(results) == [("batch", "length = 128", [1, 2, 4])]


def test_callers_that_vary_are_a_sweep() -> None:
    results = [result(case="batch=8, seed 0", threads=number) for number in (1, 2)]
    assert names(results) == [("threads", "batch = 8", [1, 2])]
    assert names([result(threads=number) for number in (1, 2)]) == [("threads", "", [1, 2])]


def test_a_measurement_may_be_in_two_sweeps() -> None:
    cases = ("batch=1, n=8", "batch=2, n=8", "batch=1, n=16")
    results = [result(case=f"{case}, seed 0", threads=3) for case in cases]
    assert names(results) == [("batch", "n = 8, threads = 3", [1, 2]), ("n", "batch = 1, threads = 3", [8, 16])]


def test_what_differs_in_more_is_none() -> None:
    one = {"case": "batch=1, seed 0"}
    for other in (
        {"case": "batch=2, n=3, seed 0"},
        {"case": "batch=2, seed 0", "threads": 2},
        {"case": "batch=2, seed 0", "device": "NVIDIA L4"},
        {"case": "batch=2, seed 0", "provider": "CPUExecutionProvider"},
        {"case": "batch=2, seed 0", "against": "model other.onnx"},
        one,
    ):
        assert names([result(**one), result(**other)]) == []


def test_a_plot_says_each_figure() -> None:
    line = plots.Line("before", ((1, 100.0), (64, 12_345.0)))
    drawn = str(plots.over_sizes([line], "batch", "requests a second"))
    assert "<title>before, batch 64: 1.234e+04 requests a second</title>" in drawn
    assert ">15k</text>" in drawn and ">64</text>" in drawn
    assert drawn.count("<circle") == 2


@pytest.mark.usefixtures("library")
def test_the_page_shows_sweeps_and_every_figure(artifact: Path, tmp_path: Path) -> None:
    make(artifact)
    side = {**timing(2.0), "runs_a_second": 900.0, "launches": 7, "device_bytes": 1_500_000, "open_ms": 12.0}
    results = [bench_result(case=f"batch={size}, seed 0", requests=size, artifact=side) for size in (1, 16)]
    results.append(bench_result(case="batch=16, seed 0", requests=16, threads=4, notes=["before: not captured"]))
    onnxopt.report(artifact, bench=[bench_file(tmp_path / "b.json", *results)])
    text = read(artifact).text
    assert "By batch, CUDAExecutionProvider, CUDA" in text
    assert "16 3 2 1.50 5,333.3 14,400.0" in text
    assert "By threads, CUDAExecutionProvider, CUDA, batch = 16" in text
    assert "Requests a second 333.3 900.0 Launches – 7 Peak GPU memory, MB – 1.5 Open, ms – 12.0" in text
    assert "Peak host memory" not in text
    assert "before: not captured" in text
