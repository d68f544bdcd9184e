"""Attention to caches of 8-bit codes on the GPU: loops of tokens, against what the same graph is on the CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto

from onnxopt.pipeline import flow
from onnxopt.runtime import sessions
from tests.conftest import device_arch
from tests.support.attention.coded_caches import GROUPS, STORED, WIDTH, Cache, drawn, operator, run, spelled_out

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("library")]

_STEPS = 4


def _sessions(model: onnx.ModelProto, folder: Path) -> tuple[ort.InferenceSession, ort.InferenceSession]:
    """The original on the CPU, and the artifact on the GPU."""
    onnx.save(model, folder / "model.onnx")
    made = flow.optimize(folder / "model.onnx", folder / "out", archs=(device_arch(),), verify=False)
    assert [kernel.kind for kernel in made.manifest.kernels] == ["attention"]
    cpu = ort.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    return cpu, made.session(providers=[sessions.CUDA])


@pytest.mark.parametrize(
    "cache",
    [
        Cache(), Cache(heads=16, per="head"), Cache(per="element", tokens=3, mask=True),
        Cache("float8e4m3fn", wide=True, numbers=True),
        Cache("float8e4m3fn", wide=True, numbers=True, per="head", heads=8),
    ],
    ids=repr,
)  # fmt: skip
@pytest.mark.parametrize("past", [0, 7, 1500])
def test_loops_of_tokens(cache: Cache, past: int, tmp_path: Path) -> None:
    theirs, ours = _sessions(spelled_out(cache), tmp_path)
    rng, batch = np.random.default_rng(past), 2
    drawn_codes = rng.standard_normal((2, batch, GROUPS, past, WIDTH)) * (30 if cache.codes == "int8" else 5)
    caches = list(drawn_codes.astype(STORED[cache.codes]))
    for step in range(_STEPS):
        given = drawn(rng, cache, batch) | dict(zip(("pk", "pv"), caches, strict=True))
        keys = past + cache.tokens * (step + 1)
        if cache.mask:
            seen = np.arange(keys) <= np.arange(keys - cache.tokens, keys)[:, None]
            given["mask"] = np.broadcast_to(np.where(seen, 0, -1e4), (batch, 1, cache.tokens, keys)).astype(np.float16)
        expected, found = (run(session, given, cache.codes) for session in (theirs, ours))
        for one, other in zip(found[1:], expected[1:], strict=True):
            assert np.array_equal(one.view(np.uint8), other.view(np.uint8))
        np.testing.assert_allclose(found[0].astype(np.float32), expected[0].astype(np.float32), atol=8e-3)
        caches = [x.view(STORED[cache.codes]) for x in found[1:]]


@pytest.mark.parametrize("codes", ["int8", "float8e4m3fn"])
def test_loops_of_the_operator(codes: str, tmp_path: Path) -> None:
    """Against float64, as ONNX Runtime's CPU provider has the operator for int8 only."""
    onnx.save(operator(codes=codes), tmp_path / "model.onnx")
    made = flow.optimize(tmp_path / "model.onnx", tmp_path / "out", archs=(device_arch(),), verify=False)
    session = made.session(providers=[sessions.CUDA])
    rng, batch = np.random.default_rng(6), 3
    scales = [rng.uniform(0.02, 0.04, (1, GROUPS, 1, WIDTH)).astype(np.float32) for _ in "kv"]
    drawn_codes = rng.standard_normal((2, batch, GROUPS, 40, WIDTH)) * (30 if codes == "int8" else 5)
    caches = list(drawn_codes.astype(STORED[codes]))
    for _ in range(_STEPS):
        given = drawn(rng, Cache(dtype=TensorProto.FLOAT16), batch)
        found = run(session, given | dict(zip(("pk", "pv", "sk", "sv"), (*caches, *scales), strict=True)), codes)
        longer = [x.view(STORED[codes]) for x in found[1:]]
        for x, old, new, scale in zip("kv", caches, longer, scales, strict=True):
            assert np.array_equal(new[:, :, :-1].view(np.uint8), old.view(np.uint8))
            fresh = given[x].astype(np.float32).reshape(batch, GROUPS, WIDTH) * (1 / scale[:, :, 0])
            coded = np.clip(np.rint(fresh), -128, 127) if codes == "int8" else np.clip(fresh, -448, 448)
            assert np.array_equal(new[:, :, -1].astype(np.float32), coded.astype(STORED[codes]).astype(np.float32))
        keys, values = (x.astype(np.float64) * s for x, s in zip(longer, scales, strict=True))
        q = given["q"].astype(np.float64).reshape(batch, GROUPS, -1, WIDTH)
        scores = 0.25 * np.einsum("bghw,bgtw->bght", q, keys)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        y = np.einsum("bght,bgtw->bghw", weights / weights.sum(axis=-1, keepdims=True), values)
        np.testing.assert_allclose(found[0].reshape(y.shape).astype(np.float64), y, atol=4e-3)
        caches = longer
