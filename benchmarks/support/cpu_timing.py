"""Timing on the CPU: alternatives run in turn in one process, so that other load affects all alike."""

from __future__ import annotations

import json
import pathlib
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnxruntime as ort

RESULTS = pathlib.Path(__file__).parents[1] / "results" / "cpu"
THREADS = 2
_SPINNING = 0.08  # seconds for which threads of ORT wait actively after a run
_RUNS = 5  # of a round


def session(model: pathlib.Path, library: pathlib.Path | None = None, threads: int = THREADS) -> ort.InferenceSession:
    """A session on the CPU EP with so many threads, and the custom-op library if one is given."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    if library is not None:
        options.register_custom_ops_library(str(library))
    return ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


def in_turn(
    runs: Mapping[str, Callable[[], object]], seconds: float, least: int = 7, most: int = 400
) -> dict[str, list[float]]:
    """Seconds of runs of each alternative, taken in turn until `seconds` have passed; at least `least` rounds of each.

    A round is the median of a few runs after some that do not count: threads of the session before go on spinning for
    a while, and on a machine of few cores they would slow down whatever comes next. The order is reversed every other
    round.
    """
    for run in runs.values():
        run()
    times: dict[str, list[float]] = {label: [] for label in runs}
    end = time.perf_counter() + seconds
    for k in range(most):
        if k >= least and time.perf_counter() >= end:
            break
        for label, run in list(runs.items())[:: 1 if k % 2 == 0 else -1]:
            settled = time.perf_counter() + _SPINNING
            while time.perf_counter() < settled:
                run()
            times[label].append(statistics.median(_timed(run) for _ in range(_RUNS)))
    return times


def _timed(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def ratio_band(a: list[float], b: list[float], seed: int = 0) -> tuple[float, float]:
    """Median of a over median of b: the middle 95 % of it when the rounds are drawn again (paired bootstrap)."""
    rng = np.random.default_rng(seed)
    picks = rng.integers(0, len(a), (1000, len(a)))
    ratios = np.median(np.asarray(a)[picks], axis=1) / np.median(np.asarray(b)[picks], axis=1)
    low, high = np.quantile(ratios, [0.025, 0.975])
    return float(low), float(high)


def p50(times: list[float]) -> float:
    """Median in milliseconds."""
    return statistics.median(times) * 1e3


def machine() -> dict[str, Any]:
    """What the numbers were taken on."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        cpu = platform.processor()
    return {"cpu": cpu, "threads": THREADS, "onnxruntime": ort.__version__, "python": platform.python_version()}


def save(name: str, rows: Mapping[str, Any]) -> pathlib.Path:
    """Write benchmarks/results/cpu/NAME.json."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")
    return path


def markdown(header: list[str], rows: list[list[str]]) -> str:
    """A table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
