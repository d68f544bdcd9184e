"""Lower precision inside bodies of Loop and Scan: what becomes 16 bit, and that no step's rounding adds up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from onnxopt.graph import normalize, precision, rewrite, write
from onnxopt.verification.lowering import ranges
from onnxopt.verification.rounding import in_float64, widening
from tests.graph.precision.test_precision import FLOAT, HALF, dtypes
from tests.support.graphs import run
from tests.support.precision.loop_graphs import LOOPS, Feeds, feeds, model, scan, scanned

_GOAL = 40.0  # dB
_FLOOR = 1e-3  # of the start: 16 bits have nothing below
_MARGIN = 6.0  # dB: as near as float32 is
_LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL")


def _session(path: Path, level: str = "ORT_DISABLE_ALL") -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    options.log_severity_level = 4
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _run(session: ort.InferenceSession, given: Feeds) -> list[np.ndarray]:
    doubles = {i.name for i in session.get_inputs() if i.type == "tensor(double)"}
    fed = {name: array.astype(np.float64) if name in doubles else array for name, array in given.items()}
    return [array.astype(np.float64) for array in session.run(None, fed)]


def _lowered(original: ir.Model, typical: Feeds, folder: Path) -> ir.Model:
    half = normalize.normalize(original).model
    rewrite.prepare_float32(half)
    choice = precision.choose(half, ranges.measure(half, [typical], HALF, folder), HALF)
    precision.convert(half, choice)
    return half


def _decibels(exact: np.ndarray, found: np.ndarray, least: float = 0.0) -> float:
    """Signal to noise; least: the root mean square that a signal counts with if it has less."""
    assert exact.shape == found.shape
    if np.isfinite(exact).all() and not np.isfinite(found).all():
        return -np.inf
    noise = float(np.linalg.norm(exact - found))
    return float(20 * np.log10(max(float(np.linalg.norm(exact)), least * exact.size**0.5, 1e-30) / max(noise, 1e-30)))


def _check(original: ir.Model, typical: Feeds, others: Sequence[Feeds], folder: Path) -> ir.Model:
    """The lowered model, which opens at every level and is near float64 at all these inputs."""
    onnx.save(ir.to_proto(original), folder / "model.onnx")
    half = _lowered(original.clone(), typical, folder)
    for name in ("half", "wide", "double"):
        (folder / name).mkdir()
    write.save(half, folder / "half")
    for level in _LEVELS:
        _session(folder / "half" / write.MODEL_FILE, level)
    rounded = _session(widening.widen(folder / "half" / write.MODEL_FILE, folder / "wide", rounded=True))
    single = _session(folder / "model.onnx")
    double = _session(in_float64.double(folder / "model.onnx", folder / "double")[0])
    for given in others:
        for exact, plain, found in zip(*(_run(s, given) for s in (double, single, rounded)), strict=True):
            if np.isfinite(plain).all() and exact.size:
                assert _decibels(exact, found, _FLOOR) > min(_GOAL, _decibels(exact, plain) - _MARGIN), given
    return half


@pytest.mark.parametrize("name", LOOPS)
def test_loops(name: str, tmp_path: Path) -> None:
    row = LOOPS[name]
    half = _check(model(row), feeds(4), [feeds(steps) for steps in (0, 1, 4, row.long)], tmp_path)
    for expected, names in ((HALF, row.half), (FLOAT, row.single)):
        assert {n: dtypes(half, n) for n in names.split()} == {n: {expected} for n in names.split()}


@pytest.mark.parametrize("direction", [0, 1])
def test_scans(direction: int, tmp_path: Path) -> None:
    half = _check(scan(direction), scanned(5), [scanned(steps) for steps in (1, 5, 300)], tmp_path)
    assert dtypes(half, "p", "q", "r") == {HALF}
    assert dtypes(half, "k", "f", "g1", "l", "m", "d", "c") == {FLOAT}


@pytest.mark.parametrize("direction", [0, 1])
def test_the_ranges_of_steps_are_those_of_the_scan(direction: int, tmp_path: Path) -> None:
    made = normalize.normalize(scan(direction)).model
    given = scanned(7)
    measured = ranges.measure(made, [given], HALF, tmp_path)
    stacked = run(made, given)[2]
    assert measured["r"].greatest == pytest.approx(float(np.abs(stacked).max()), rel=1e-5)
    assert measured["r"].lowest == pytest.approx(float(stacked.min()), rel=1e-5)
