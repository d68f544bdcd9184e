"""Scans on the CPU kernel: every dtype, way of summing up and shape, against sums in float64 or the integers' own."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from onnxopt.runtime import sessions
from tests.support.kinds import rowwise_models, scan_models

pytestmark = pytest.mark.usefixtures("library")

_FLAGS = tuple(itertools.product((0, 1), (0, 1)))
_SHAPES = (
    ((3, 67), 1), ((3, 67), 0), ((2, 9001), -1), ((4, 5, 6), 1), ((7, 9, 3), 0), ((101,), 0), ((2, 3, 4, 5), -2),
    ((1, 140_003), 1), ((3, 30_000, 2), 1), ((5000, 40), 1),
)  # fmt: skip


def _agrees(case: scan_models.Scan, folder: Path, threads: int = 2) -> dict[str, np.ndarray]:
    found = sessions.run(rowwise_models.with_library(case.fused, folder, threads), case.feeds)
    for name, expected in case.expected().items():
        scan_models.check(found[name], expected, case.limit(name))
    return found


@pytest.mark.parametrize("flags", _FLAGS, ids=["plain", "reverse", "exclusive", "both"])
@pytest.mark.parametrize(("dims", "axis"), _SHAPES, ids=str)
def test_shapes(tmp_path: Path, dims: tuple[int, ...], axis: int, flags: tuple[int, int]) -> None:
    _agrees(scan_models.scan(dims, axis, "float32", *flags), tmp_path)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int32", "int64", "uint32", "uint64"])
@pytest.mark.parametrize(("dims", "axis", "flags"), [((3, 250), 1, (0, 0)), ((2, 33, 5), 1, (1, 1))], ids=str)
def test_dtypes(tmp_path: Path, dims: tuple[int, ...], axis: int, flags: tuple[int, int], dtype: str) -> None:
    _agrees(scan_models.scan(dims, axis, dtype, *flags), tmp_path)


@pytest.mark.parametrize("flags", [(0, 0), (1, 1)], ids=str)
def test_one_session_takes_any_shape(tmp_path: Path, flags: tuple[int, int]) -> None:
    """Also none, and rows of no or one element."""
    case = scan_models.scan((2, 3, 4), 1, "float32", *flags, known=False)
    session = rowwise_models.with_library(case.fused, tmp_path)
    for dims in ((2, 3, 4), (1, 1, 1), (0, 3, 4), (2, 0, 4), (2, 3, 0), (1, 70_000, 1), (1, 9, 8000), (17, 1, 3)):
        other = scan_models.scan(dims, 1, "float32", *flags, known=False)
        found = sessions.run(session, other.feeds)
        for name, expected in other.expected().items():
            scan_models.check(found[name], expected, other.limit(name))


@pytest.mark.parametrize("flags", _FLAGS, ids=str)
def test_infinities_and_nan_spread_only_forwards(tmp_path: Path, flags: tuple[int, int]) -> None:
    case = scan_models.scan((4, 300), 1, "float32", *flags)
    case.feeds["x"][0, 100] = np.inf
    case.feeds["x"][1, [50, 200]] = np.inf, -np.inf
    case.feeds["x"][2, 299] = np.nan
    case.feeds["x"][3, 0] = -np.inf
    case.feeds["g"][:] = np.abs(case.feeds["g"]) + 0.1
    with np.errstate(invalid="ignore"):
        _agrees(case, tmp_path)


def test_threads_change_nothing(tmp_path: Path) -> None:
    for k, dims in enumerate(((1, 300_001), (2, 70_000, 3), (900, 400))):
        found = []
        for threads in (1, 3):
            (folder := tmp_path / f"{k}{threads}").mkdir()
            found.append(_agrees(scan_models.scan(dims, 1, "float32", 0, 1), folder, threads)["y"])
        np.testing.assert_array_equal(*found)


_DTYPES = {"float32": "float", "int64": "int64"}


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_is_the_operator(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """A CumSum alone gives what ONNX Runtime's own and onnx's reference evaluator give."""
    dims = (*data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=4)), data.draw(st.integers(32, 90)))
    axis = data.draw(st.integers(-len(dims), len(dims) - 1).filter(lambda a: dims[a] > 1))
    flags = data.draw(st.sampled_from(_FLAGS))
    dtype = data.draw(st.sampled_from(sorted(_DTYPES)))
    text = f"{_DTYPES[dtype]}[{','.join(map(str, dims))}]"
    found = rowwise_models.fused(
        f"{text} x", f"{text} y", f"y = CumSum<exclusive = {flags[0]}, reverse = {flags[1]}>(x, axis)",
        constants=f"int32 axis = {{{axis}}}",
    )  # fmt: skip
    assert [r.kind.name for r in found.plan.regions] == ["scan"]
    x = np.random.default_rng(sum(dims)).integers(-50, 50, dims).astype(dtype)  # sums of integers are exact
    session = rowwise_models.with_library(found, tmp_path_factory.mktemp("scan"))
    (y,) = session.run(None, {"x": x})
    (plain,) = ort.InferenceSession(found.original, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    (reference,) = ReferenceEvaluator(onnx.load_from_string(found.original)).run(None, {"x": x})
    np.testing.assert_array_equal(y, plain)
    np.testing.assert_array_equal(y, reference)
