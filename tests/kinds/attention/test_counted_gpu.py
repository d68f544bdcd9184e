"""Blocks that are counted, on the GPU: runs one after the other, at once on several streams, and in a CUDA graph."""

from __future__ import annotations

import concurrent.futures
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from cases.attention import WIDTH, expected, feeds, graph
from onnxopt.pipeline import flow, making
from onnxopt.runtime import sessions
from tests.conftest import device_arch

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("library")]

_RUNS = 50
_EACH = 4  # query heads of a group


def _made(folder: Path, tokens: int, width: int = WIDTH) -> making.Artifact:
    made = graph(tokens=tokens, each=_EACH, mask=("batch", 1, tokens), slots=True, width=width)
    onnx.save(made, folder / "model.onnx")
    return flow.optimize(folder / "model.onnx", folder / "out", archs=(device_arch(),), verify=False)


def _given(batch: int, tokens: int, past: int, width: int = WIDTH) -> dict[str, np.ndarray]:
    return feeds(np.random.default_rng(past), batch, tokens, past, _EACH, (batch, 1, tokens), True, width)


def _same(session: ort.InferenceSession, given: dict[str, np.ndarray]) -> None:
    """Every run over a cache in one buffer gives the same, which is right: its second run stores the same tokens."""
    held = {name: ort.OrtValue.ortvalue_from_numpy(value, "cuda", 0) for name, value in given.items()}
    y = ort.OrtValue.ortvalue_from_shape_and_type(given["q"].shape, np.float16, "cuda", 0)
    bound = session.io_binding()
    for name, value in held.items():
        bound.bind_ortvalue_input(name, value)
    for name in ("nk", "nv"):
        bound.bind_ortvalue_output(name, held[f"p{name[1]}"])
    bound.bind_ortvalue_output("y", y)
    found = []
    for _ in range(_RUNS):
        y.update_inplace(np.full(given["q"].shape, np.nan, np.float16))
        session.run_with_iobinding(bound)
        found.append(y.numpy())
        np.testing.assert_array_equal(found[-1], found[0])
    wanted = expected(given, _EACH)
    np.testing.assert_allclose(found[0].astype(np.float64), wanted[0], atol=4e-3)
    for name, kept in zip(("pk", "pv"), wanted[1:], strict=True):
        np.testing.assert_array_equal(held[name].numpy().astype(np.float64), kept)


@pytest.mark.parametrize(
    ("tokens", "past", "width"), [(1, 600, 16), (1, 20_000, 16), (2, 9_000, 16), (1, 600, 128), (2, 20_000, 128)]
)
def test_runs_one_after_the_other(tokens: int, past: int, width: int, tmp_path: Path) -> None:
    session = _made(tmp_path, tokens, width).session(providers=[sessions.CUDA])
    for batch in (1, 3, 1):
        _same(session, _given(batch, tokens, past, width))


def test_runs_at_once(tmp_path: Path) -> None:
    """Two sessions, each of which two threads run, over caches of different sizes."""
    made = _made(tmp_path, 1)
    of_all = [made.session(providers=[sessions.CUDA]) for _ in range(2)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        runs = [pool.submit(_same, s, _given(1 + k % 2, 1, 700 + 5000 * k)) for k, s in enumerate((*of_all, *of_all))]
        for run in runs:
            run.result()


@pytest.mark.parametrize(("past", "width"), [(900, 16), (20_000, 16), (20_000, 128)])
def test_a_cuda_graph_replays(past: int, width: int, tmp_path: Path) -> None:
    _same(_made(tmp_path, 1, width).session(cuda_graph=True), _given(2, 1, past, width))
