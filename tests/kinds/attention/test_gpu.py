"""Several tokens' attention behind a cache on the GPU, in one session over many sizes, against float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from onnxopt import pipeline
from onnxopt.runtime import sessions
from tests.conftest import device_arch
from tests.support.attention.cached_attention import GROUPS, WIDTH, feeds, graph

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("library")]

_SIZES = ((2, 7), (1, 33), (3, 600), (1, 5000))  # sequences, tokens in the cache


def expected(given: dict[str, np.ndarray], each: int) -> list[np.ndarray]:
    """The attention (B, S, N H) of float64, and both caches after the step."""
    wide = {name: value.astype(np.float64) for name, value in given.items() if name != "slots"}
    batch, tokens, groups, width = wide["k"].shape
    caches = []
    for x in "kv":
        fresh = wide[x].transpose(0, 2, 1, 3)
        cache = wide[f"p{x}"].copy() if "slots" in given else np.concatenate([wide[f"p{x}"], fresh], axis=2)
        if "slots" in given:
            cache[:, :, given["slots"][:, 0]] = fresh
        caches.append(cache)
    q = wide["q"].reshape(batch, tokens, groups, each, width)
    scores = (
        0.25 * np.einsum("bsghw,bgtw->bghst", q, caches[0]).reshape(batch, groups * each, tokens, -1) + wide["mask"]
    )
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = (weights / weights.sum(axis=-1, keepdims=True)).reshape(batch, groups, each, tokens, -1)
    y = np.einsum("bghst,bgtw->bsghw", weights, caches[1])
    return [y.reshape(batch, tokens, groups * each * width), *caches]


@pytest.mark.parametrize("slots", [False, True])
@pytest.mark.parametrize(
    ("tokens", "each", "mask", "width"),
    [
        (4, 4, ("batch", 1, 4), 16), (16, 8, (1, 1, 16), 16), (1, 8, (1, 8 * GROUPS, 1), 16), (5, 1, (1, 1, 5), 16),
        (1, 1, ("batch", 1, 1), 128), (2, 3, (1, 1, 2), 128), (1, 8, (1, 8 * GROUPS, 1), 64), (7, 1, (1, 1, 7), 64),
    ],
)  # fmt: skip
def test_one_session_takes_any_cache(
    tokens: int, each: int, mask: tuple, width: int, slots: bool, tmp_path: Path
) -> None:
    onnx.save(graph(tokens=tokens, each=each, mask=mask, slots=slots, width=width), tmp_path / "model.onnx")
    made = pipeline.optimize(tmp_path / "model.onnx", tmp_path / "out", archs=(device_arch(),), verify=False)
    (kernel,) = made.manifest.kernels
    assert kernel.kind == "attention"
    session = made.session(providers=[sessions.CUDA])
    rng = np.random.default_rng(WIDTH + tokens)
    for batch, past in _SIZES:
        if slots and past < tokens:
            continue
        given = feeds(rng, batch, tokens, past, each, tuple(batch if d == "batch" else d for d in mask), slots, width)
        found, wanted = session.run(None, given), expected(given, each)
        np.testing.assert_allclose(found[0].astype(np.float64), wanted[0], atol=4e-3)
        for cache, kept in zip(found[1:], wanted[1:], strict=True):
            np.testing.assert_array_equal(cache.astype(np.float64), kept)


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
    made = pipeline.optimize(tmp_path / "model.onnx", tmp_path / "out", archs=(device_arch(),), verify=False)
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
    made = pipeline.optimize(
        tmp_path / "model.onnx", tmp_path / "out", archs=(device_arch(),), verify=False, shapes=usual
    )
    assert [kernel.kind for kernel in made.manifest.kernels] == ["attention"]
    session = made.session(providers=[sessions.CUDA])
    rng = np.random.default_rng(1)
    for batch, tokens, past in ((1, 1, 600), (2, 7, 30), (1, 200, 0), (3, 16, 5000)):
        given = feeds(rng, batch, tokens, past, each, (batch, 1, tokens), False)
        found, wanted = session.run(None, given), expected(given, each)
        np.testing.assert_allclose(found[0].astype(np.float64), wanted[0], atol=4e-3)
        np.testing.assert_array_equal(found[1].astype(np.float64), wanted[1])
