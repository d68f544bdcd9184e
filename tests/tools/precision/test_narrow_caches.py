"""`optimize --precision --caches`: the inputs and outputs that are a decoder's cache in 16 bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxopt
from tests.support.command import assert_refused, run
from tests.support.small_models import write
from tests.tools.precision.test_precision import MODEL, optimized

DECODER = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[n, 1, 8] x, float[n, m, 8] a, float[n, m, 8] b) => (float[n, 1, 8] y, float[n, l, 8] c, float[n, l, 8] d)
   <float[8, 8] w = {WEIGHT}> {
   k = MatMul(x, w)
   c = Concat <axis = 1> (a, k)
   d = Concat <axis = 1> (b, x)
   t = Transpose <perm = [0, 2, 1]> (c)
   s = MatMul(k, t)
   p = Softmax <axis = -1> (s)
   o = MatMul(p, d)
   y = MatMul(o, w)
}
""".replace("WEIGHT", ", ".join(str(k % 7 / 4 - 0.5) for k in range(64)))


def _typical(length: int, scale: float = 1.0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    shapes = {"x": (2, 1, 8), "a": (2, length, 8), "b": (2, length, 8)}
    return {name: (scale * random.standard_normal(shape)).astype(np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize("options", ["drawn", "data"])
def test_caches_become_inputs_and_outputs_of_16_bits(options: str, tmp_path: Path) -> None:
    model = write(tmp_path / "model.onnx", DECODER)
    arguments = ["--precision", "float16", "--caches"]
    if options == "data":
        np.savez(tmp_path / "mine.npz", **_typical(5))
        arguments += ["--calibrate", str(tmp_path / "mine.npz")]
    manifest = optimized(model, tmp_path, "a", *arguments)
    assert manifest.verify.status == "passed"
    assert {t.name: t.dtype for t in (*manifest.inputs, *manifest.outputs)} == {
        "x": "float32", "y": "float32", **dict.fromkeys("abcd", "float16")
    }  # fmt: skip
    assert manifest.precision is not None
    assert manifest.precision.caches == ("a", "c", "b", "d")
    assert "Cast" not in {row.op_type for row in manifest.precision.kept}
    written = onnx.load(tmp_path / "a" / "model.onnx")
    read_by_casts = {node.input[0] for node in written.graph.node if node.op_type == "Cast"}
    assert not read_by_casts & {"a", "b"}
    feeds = _typical(6)
    wide = onnxopt.load(model_as_artifact(tmp_path, model)).run(None, feeds)
    narrow = {name: feeds[name].astype(np.float16) if name in "ab" else feeds[name] for name in feeds}
    found = onnxopt.load(tmp_path / "a").run(None, narrow)
    for expected, actual in zip(wide, found, strict=True):
        assert np.linalg.norm(expected - actual.astype(np.float32)) < 3e-3 * np.linalg.norm(expected)
    assert run("verify", tmp_path / "a").exit_code == 0
    if options == "data":  # inputs of the float32 model
        assert run("verify", tmp_path / "a", "--data", tmp_path / "mine.npz").exit_code == 0


def model_as_artifact(tmp_path: Path, model: Path) -> Path:
    """The float32 model as an artifact."""
    onnxopt.optimize(model, tmp_path / "wide", archs=())
    return tmp_path / "wide"


def test_caches_are_refused_where_there_are_none_or_they_do_not_fit(tmp_path: Path) -> None:
    base = ("-o", tmp_path / "a", "--arch", "none", "--precision", "float16", "--caches")
    assert_refused(run("optimize", write(tmp_path / "none.onnx", MODEL), *base), "has no caches")
    np.savez(tmp_path / "large.npz", **_typical(5, 6000.0))
    model = write(tmp_path / "model.onnx", DECODER)
    result = run("optimize", model, *base, "--calibrate", tmp_path / "large.npz")
    assert_refused(result, "the cache c reaches", "8 times of which float16 does not hold; leave out caches")
    assert not (tmp_path / "a").exists()
