"""Lower precision at inputs that the graph allows and no range was measured with, beside float64 of the original."""

from __future__ import annotations

import dataclasses
import functools
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from onnxopt.graph import normalize, precision, rewrite, write
from onnxopt.verification.lowering import ranges
from onnxopt.verification.rounding import in_float64, widening
from tests.support.precision.precision_graphs import GROUPS, Feeds

_GOAL = {ir.DataType.FLOAT16: 40.0, ir.DataType.BFLOAT16: 24.0}  # dB
_FLOOR = 1e-3  # of what typical inputs give: smaller results are not small by a guard
_MARGIN = 6.0  # dB: as near as float32 is

Outputs = list[np.ndarray]


@dataclasses.dataclass(frozen=True)
class _Model:
    session: ort.InferenceSession

    @classmethod
    def of(cls, path: Path) -> _Model:
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        return cls(ort.InferenceSession(path, options, providers=["CPUExecutionProvider"]))

    def run(self, feeds: Feeds) -> Outputs:
        doubles = {i.name for i in self.session.get_inputs() if i.type == "tensor(double)"}
        given = {name: array.astype(np.float64) if name in doubles else array for name, array in feeds.items()}
        return [array.astype(np.float64) for array in self.session.run(None, given)]


def _lowered(path: Path, typical: Feeds, dtype: ir.DataType, folder: Path) -> Path:
    """The model in float32, with every value that lower precision stores rounded."""
    model = normalize.normalize(ir.load(path)).model
    rewrite.prepare_float32(model)
    ranges.complete_dtypes(model, folder)
    choice = precision.choose(model, ranges.measure(model, [typical], dtype, folder), dtype)
    precision.convert(model, choice)
    assert choice.narrow
    for name in ("half", "wide"):
        (folder / name).mkdir()
    write.save(model, folder / "half")
    return widening.widen(folder / "half" / write.MODEL_FILE, folder / "wide", rounded=True)


def _decibels(exact: np.ndarray, found: np.ndarray, least: float) -> float:
    """Signal to noise; least: the root mean square that a signal counts with if it has less."""
    if np.isfinite(exact).all() and not np.isfinite(found).all():
        return -np.inf
    noise = float(np.linalg.norm(exact - found))
    signal = max(float(np.linalg.norm(exact)), least * exact.size**0.5)
    return float(20 * np.log10(max(signal, 1e-30) / max(noise, 1e-30)))


@dataclasses.dataclass(frozen=True)
class _Reference:
    """What a model gives at typical inputs and at others. goals: decibels that float32 reaches, less a margin."""

    names: tuple[str, ...]
    feeds: tuple[Feeds, ...]
    exact: tuple[Outputs, ...]
    goals: tuple[tuple[float | None, ...], ...]


@functools.lru_cache(maxsize=1)  # the dtypes of a group follow each other
def _reference(group: str) -> _Reference:
    model, names = GROUPS[group].model()
    feeds = (GROUPS[group].typical(), *GROUPS[group].others())
    with tempfile.TemporaryDirectory() as folder, np.errstate(all="ignore"):
        path = Path(folder) / "model.onnx"
        onnx.save(ir.to_proto(model), path)
        (Path(folder) / "double").mkdir()
        double = _Model.of(in_float64.double(path, Path(folder) / "double")[0])
        exact, single = (tuple(m.run(f) for f in feeds) for m in (double, _Model.of(path)))
        goals = tuple(tuple(_goal(e, s) for e, s in zip(*of, strict=True)) for of in zip(exact, single, strict=True))
    return _Reference(tuple(names), feeds, exact, goals)


def _goal(exact: np.ndarray, single: np.ndarray) -> float | None:
    if not np.isfinite(exact).all() or not np.isfinite(single).all():
        return None
    return _decibels(exact, single, 0.0) - _MARGIN


@pytest.mark.parametrize("dtype", _GOAL, ids=lambda dtype: dtype.name.lower())
@pytest.mark.parametrize("group", GROUPS)
def test_no_row_is_wrong_at_other_inputs(group: str, dtype: ir.DataType, tmp_path: Path) -> None:
    reference = _reference(group)
    path = tmp_path / "model.onnx"
    onnx.save(ir.to_proto(GROUPS[group].model()[0]), path)
    rounded = _Model.of(_lowered(path, reference.feeds[0], dtype, tmp_path))
    least, wrong = [0.0] * len(reference.names), []
    for feeds, exact, goals in zip(reference.feeds, reference.exact, reference.goals, strict=True):
        with np.errstate(all="ignore"):
            for k, (x, found, allowed) in enumerate(zip(exact, rounded.run(feeds), goals, strict=True)):
                least[k] = least[k] or _FLOOR * float(np.sqrt(np.mean(x**2)))
                if allowed is None:
                    continue
                goal = min(_GOAL[dtype], allowed)
                if (reached := _decibels(x, found, least[k])) < goal:
                    wrong.append(f"{reference.names[k]}: {reached:.0f} dB, less than {goal:.0f}")
    assert not wrong
