"""Outputs whose length values decide: a right kernel that gives another one is kept and said, a wrong one left out."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import onnxopt
from onnxopt.artifact.manifest import Manifest
from onnxopt.program.operators import table as operators
from onnxopt.verification.evidence import _is_between
from tests.support.fusing import cpu_kernels_forced

# A speech model in small: durations of tokens are rounded up, tokens repeated as long, and frames computed of them.
TEXT = """
<ir_version: 10, opset_import: ["" : 20]>
g (float[1, t, 16] x) => (float[1, frames, 8] audio, float[1, t, 16] h)
   <float three = {3}, float one = {1}, float steep = {STEEP}, int64[1] last = {-1}, int64[1] first = {0},
    int64[1] middle = {1}, int64 zero = {0}, int64 unit = {1}> {
   e = MatMul(x, w) f = Add(e, b) h = Tanh(f)
   hq, hs, hz = DynamicQuantizeLinear(h) hd = DequantizeLinear(hq, hs, hz)
   d = MatMul(hd, v) g = Mul(d, steep) a = Exp(d) r = Add(a, one) s = Sin(g) m = Mul(r, s) c = Ceil(m) n = Max(c, one)
   durations = Squeeze(n, last) total = ReduceSum<keepdims = 0>(durations) count = Cast<to = 7>(total)
   frame = Range(zero, count, unit) whole = Cast<to = 7>(durations) end = CumSum(whole, unit)
   ends = Unsqueeze(end, last) places = Unsqueeze(frame, first) over = LessOrEqual(ends, places)
   steps = Cast<to = 7>(over) index = ReduceSum<keepdims = 0>(steps, middle) size = Shape<start = 1, end = 2>(x)
   most = Sub(size, unit) token = Min(index, most) of = Squeeze(token) spread = Gather<axis = 1>(h, of)
   p = MatMul(spread, u) q = Mul(p, three) audio = Tanh(q)
}
"""


def _optimized(folder: Path, artifact: Path, steep: float, length: int | None = None) -> Manifest:
    model = onnx.parser.parse_model(TEXT.replace("STEEP", f"{steep:g}"))
    rng = np.random.default_rng(0)
    shapes = {"w": (16, 16), "v": (16, 1), "u": (16, 8), "b": (16,)}
    weights = {name: rng.standard_normal(shape) / 4 for name, shape in shapes.items()}
    model.graph.initializer.extend(numpy_helper.from_array(a.astype(np.float32), n) for n, a in weights.items())
    onnx.save(model, folder / "m.onnx")
    with cpu_kernels_forced():
        return onnxopt.optimize(
            folder / "m.onnx", artifact, archs=(), shapes={} if length is None else {"t": (length,)}
        ).manifest


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(("steep", "length"), [(3e4, 2049), (1e6, None)])
def test_a_right_kernel_is_kept_and_the_original_called_unstable(
    steep: float, length: int | None, tmp_path: Path, artifact: Path
) -> None:
    """Of little steepness at a length that a busy machine has no time to try by itself."""
    manifest = _optimized(tmp_path, artifact, steep, length)
    assert manifest.left_out == () and len(manifest.kernels) > 3
    assert manifest.verify.status == "passed"
    (note,) = [note for note in manifest.verify.notes if "the original is unstable at" in note]
    assert "last places give audio the shape [1, " in note and " instead of [1, " in note
    assert any(check.unstable for check in manifest.verify.checks)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("operator", ["Tanh", pytest.param("Exp", marks=pytest.mark.exhaustive)])
def test_a_wrong_kernel_is_left_out(
    operator: str, tmp_path: Path, artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = operators.OPERATORS["", operator]
    wrong = dataclasses.replace(row, meaning=lambda c: row.meaning(c) * 1.5)
    monkeypatch.setitem(operators.OPERATORS, ("", operator), wrong)  # type: ignore[index]
    manifest = _optimized(tmp_path, artifact, 1e6, length=3)
    assert [operator for left in manifest.left_out if operator in left.ops]
    assert not any(operator in kernel.name for kernel in manifest.kernels)


@pytest.mark.parametrize(
    ("shape", "changed", "between"),
    [((1, 22), (1, 21), True), ((1, 25), (1, 21), False), ((1, 20), (1, 20), True), ((2, 20), (1, 21), False),
     ((20,), (1, 21), False)],
)  # fmt: skip
def test_a_length_may_differ_by_a_few_times_what_last_places_move_it(
    shape: tuple[int, ...], changed: tuple[int, ...], between: bool
) -> None:
    assert _is_between(shape, (1, 20), changed) is between
