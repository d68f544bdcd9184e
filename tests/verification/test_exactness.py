"""Models of 16-bit floats: held against float32, by the rounding of the original."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

import models
import onnxopt
from onnxopt.codegen import kernels_json, sealed_json
from onnxopt.graph import read, traits
from onnxopt.kinds import KINDS
from onnxopt.runtime import sessions
from onnxopt.verification.check import Check
from onnxopt.verification.compare import Difference, Limit
from onnxopt.verification.rounding import widening
from onnxopt.verification.rounding.exactness import Exactness, Float32
from onnxopt.verification.sampling import edges
from onnxopt.verification.sampling.cases import Case
from tests.support.fusing import cpu_kernels_forced
from tests.support.small_models import write

# w holds 1.5, 2.5, ... 8.5, and one is 1: onnx's text has the bits of float16.
HALF = """
<ir_version: 8, opset_import: ["" : 17]>
g (float16[n, 8] x) => (float16[n, 8] y, float[n, 8] z)
   <float16[8] w = {15872, 16640, 17152, 17536, 17792, 18048, 18304, 18496}> {
   one = Constant<value = float16 {15360}>()
   a = Mul(x, w)
   b = Add(a, one)
   y = Tanh(b)
   f = Cast<to = 1>(b)
   h = Cast<to = 10>(f)
   z = Cast<to = 1>(h)
}
"""


def _limit(name: str) -> Limit:
    return Limit.of("float16", float_decides=False)


def _run(path: Path, feeds: dict[str, np.ndarray], *, optimize: bool = True) -> dict[str, np.ndarray]:
    return sessions.run(sessions.open_session(path, optimize=optimize), feeds)


def test_a_widened_model_is_float32_throughout_and_rounds_nothing(tmp_path: Path) -> None:
    path = widening.widen(write(tmp_path / "m.onnx", HALF), tmp_path)
    model = onnx.load(path)
    onnx.checker.check_model(model)
    assert "10" not in {str(t.data_type) for t in model.graph.initializer}
    x = np.random.default_rng(0).standard_normal((3, 8), np.float32)
    exact = np.tanh(x * np.float32([1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5]) + np.float32(1))
    np.testing.assert_allclose(_run(path, {"x": x})["y"], exact, rtol=1e-5, atol=1e-6)


def test_a_rounded_model_gives_what_16_bits_give_node_by_node(tmp_path: Path) -> None:
    path = widening.widen(write(tmp_path / "m.onnx", HALF), tmp_path, rounded=True)
    x = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float16)
    w = np.float16([1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5])
    found = _run(path, {"x": x.astype(np.float32)}, optimize=False)
    b = (x * w) + np.float16(1)  # numpy rounds every step
    np.testing.assert_array_equal(found["z"], b.astype(np.float32))
    expected = np.tanh(b.astype(np.float32)).astype(np.float16).astype(np.float32)
    np.testing.assert_allclose(found["y"], expected, rtol=1e-3)


@pytest.mark.models
@pytest.mark.parametrize("name", ["bert_tiny_fp16_dyn", "llama_decode_tiny_fp16_dyn", "efficientnet_tiny_fp16"])
def test_exported_models_are_near_their_widened_form(name: str, tmp_path: Path) -> None:
    path = widening.widen(models.path(name), tmp_path)
    feeds = models.feeds(name)
    exact = _run(path, {k: widening.widened(v) for k, v in feeds.items()})
    found = _run(models.path(name), feeds)
    assert exact.keys() == found.keys()
    for key in exact:
        assert exact[key].dtype == np.float32
        np.testing.assert_allclose(found[key].astype(np.float32), exact[key], atol=0.05 * exact[key].std())


def test_bfloat16_is_widened_too() -> None:
    array = np.array([1.0, 3.0], ml_dtypes.bfloat16)
    assert widening.widened(array).dtype == np.float32
    assert widening.widened(np.array([1], np.int64)).dtype == np.int64


def test_a_sequence_of_16_bit_floats_is_refused_with_the_reason(tmp_path: Path) -> None:
    text = HALF.replace("float16[n, 8] y", "seq(float16[n, 8]) y").replace("y = Tanh(b)", "y = SequenceConstruct(b)")
    with pytest.raises(widening.NotWidened, match="y is a SequenceType of 16-bit floats"):
        widening.widen(write(tmp_path / "m.onnx", text), tmp_path)


@pytest.mark.parametrize(
    ("found", "original", "ok"), [(0.05, 0.0, True), (0.2, 0.0, False), (1.5, 0.8, True), (1.8, 0.8, False)]
)
def test_twice_the_originals_distance_is_accepted(found: float, original: float, ok: bool) -> None:
    assert Exactness(found, original).ok is ok


def test_it_decides_whatever_the_difference_from_the_original() -> None:
    check = Check("p", True, "c", "y", Difference("float16", (1,), excess=1.5))
    assert not check.ok
    assert dataclasses.replace(check, exactness=Exactness(0.2, 1.4)).ok
    near = dataclasses.replace(check, difference=Difference("float16", (1,), excess=0.9))
    assert near.ok
    assert not dataclasses.replace(near, exactness=Exactness(0.9, 0.1)).ok


C = Case((), 0)


def _judge(original: float, rounded: float) -> tuple[Float32, list[int]]:
    exact = {C: {"y": np.ones(4, np.float32)}}
    runs = []

    def make() -> dict[Case, dict[str, np.ndarray]]:
        runs.append(1)
        return {C: {"y": np.full(4, 1 + rounded, np.float32)}}

    return Float32(exact, {C: {"y": np.full(4, 1 + original, np.float16)}}, make, _limit), runs


def test_the_rounded_run_is_made_only_where_it_decides() -> None:
    judge, runs = _judge(original=0.02, rounded=0.1)
    assert judge.judge(C, "y", np.full(4, 1.03, np.float16)).ok
    assert not runs
    assert judge.judge(C, "y", np.full(4, 1.15, np.float16)).ok
    assert not judge.judge(C, "y", np.full(4, 1.5, np.float16)).ok
    assert runs == [1]


def test_what_overflows_in_16_bits_is_left_to_the_original() -> None:
    judge, _ = _judge(original=np.inf, rounded=0.1)
    assert judge.judge(C, "y", np.full(4, 1.03, np.float16)) is None
    assert judge.judge(C, "other", np.full(4, 1.03, np.float16)) is None


@pytest.mark.models
@pytest.mark.usefixtures("library")
def test_kernels_that_round_less_than_the_original_says_are_kept(
    artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fused SiLUs of EfficientNet on the CPU: further than the limit from the original, and nearer to float32."""
    # By elementwise kernels alone: those of convolutions are so exact that the whole stays within the limit.
    for kind in KINDS:
        if kind.name != "pointwise":
            monkeypatch.setattr(type(kind), "find", lambda *_: ([], []))
            monkeypatch.setattr(type(kind), "find_early", lambda *_: [])
    with cpu_kernels_forced():
        manifest = onnxopt.optimize(models.path("efficientnet_tiny_fp16"), artifact, archs=()).manifest
    assert manifest.verify.status == "passed"
    assert manifest.left_out == ()
    # At large values the network enlarges every rounding, and what last places move decides.
    checks = [c for c in manifest.verify.checks if not any(kind in c.case for kind in edges.UP_TO)]
    exact = [c.exactness for c in checks if c.exactness is not None]
    assert max(e.found for e in exact) < max(e.original for e in exact)
    assert any(c.difference is not None and not c.difference.ok for c in manifest.verify.checks)


@pytest.mark.usefixtures("library")
def test_a_wrong_16_bit_kernel_is_still_found(tmp_path: Path, artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    true_json = kernels_json.to_json

    def sabotaged(*arguments: Any) -> str:
        return sealed_json.seal(json.loads(true_json(*arguments).replace('"tanh"', '"sin"')))

    monkeypatch.setattr(kernels_json, "to_json", sabotaged)
    manifest = onnxopt.optimize(write(tmp_path / "m.onnx", HALF), artifact, archs=()).manifest
    assert [row.name for row in manifest.left_out]
    assert "from float32" in manifest.left_out[0].reason


def test_what_cannot_be_had_in_float32_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> Path:
        raise widening.NotWidened("no room")

    monkeypatch.setattr(widening, "widen", refuse)
    other = HALF.replace("{15360}", "{15362}")
    first, second = write(tmp_path / "a.onnx", HALF), write(tmp_path / "b.onnx", other)
    report = onnxopt.verify(first, second, providers=[sessions.CPU])
    assert report.notes == (f"{sessions.CPU}: compared with the unchanged original, not in float32: no room",)
    assert report.status == "passed"
    assert traits.of(read.load(first).model).precision == "float16"
