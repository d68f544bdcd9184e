"""Attention of several tokens to a cache in one buffer on the GPU, and of any number of them, against float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from cases.attention import GROUPS, WIDTH, expected, feeds, graph
from onnxopt.pipeline import flow
from onnxopt.runtime import sessions
from tests.conftest import device_arch

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("library")]


@pytest.mark.parametrize(
    ("tokens", "each", "past", "width"),
    [
        (3, 4, 700, 16), (1, 1, 100_000, 16), (2, 1, 100_001, 16), (1, 2, 110_007, 16), (1, 4, 100_000, 16),
        (1, 1, 33, 128), (2, 4, 700, 128), (1, 8, 20_000, 128), (3, 2, 30_001, 64),
    ],
)  # fmt: skip
def test_a_cache_with_room_in_one_buffer(tokens: int, each: int, past: int, width: int, tmp_path: Path) -> None:
    """The cache is input and output of a step; its other tokens stay, and the attention is that of two buffers."""
    onnx.save(graph(tokens=tokens, each=each, slots=True, width=width), tmp_path / "model.onnx")
    made = flow.optimize(tmp_path / "model.onnx", tmp_path / "out", archs=(device_arch(),), verify=False)
    session = made.session(providers=[sessions.CUDA])
    given = feeds(np.random.default_rng(0), 2, tokens, past, each, (2, 1, tokens), True, width)
    held = {name: ort.OrtValue.ortvalue_from_numpy(value, "cuda", 0) for name, value in given.items()}
    bound = session.io_binding()
    for name, value in held.items():
        bound.bind_ortvalue_input(name, value)
    bound.bind_output("y", "cuda")
    for name in ("nk", "nv"):
        bound.bind_ortvalue_output(name, held[f"p{name[1]}"])
    session.run_with_iobinding(bound)
    found = [bound.get_outputs()[0].numpy(), held["pk"].numpy(), held["pv"].numpy()]
    wanted = expected(given, each)
    np.testing.assert_allclose(found[0].astype(np.float64), wanted[0], atol=4e-3)
    for cache, kept in zip(found[1:], wanted[1:], strict=True):
        np.testing.assert_array_equal(cache.astype(np.float64), kept)


def test_any_number_of_new_tokens(tmp_path: Path) -> None:
    each = 4
    onnx.save(graph(tokens="tokens", each=each, mask=("batch", 1, "tokens")), tmp_path / "model.onnx")
    usual = {"q": (1, 1, GROUPS * each * WIDTH)}
    made = flow.optimize(tmp_path / "model.onnx", tmp_path / "out", archs=(device_arch(),), verify=False, shapes=usual)
    assert [kernel.kind for kernel in made.manifest.kernels] == ["attention"]
    session = made.session(providers=[sessions.CUDA])
    rng = np.random.default_rng(1)
    for batch, tokens, past in ((1, 1, 600), (2, 7, 30), (1, 200, 0), (3, 16, 5000)):
        given = feeds(rng, batch, tokens, past, each, (batch, 1, tokens), False)
        found, wanted = session.run(None, given), expected(given, each)
        np.testing.assert_allclose(found[0].astype(np.float64), wanted[0], atol=4e-3)
        np.testing.assert_array_equal(found[1].astype(np.float64), wanted[1])
