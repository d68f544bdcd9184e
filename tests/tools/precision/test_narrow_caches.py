"""`optimize --precision --caches`: the inputs and outputs that are a decoder's cache in 16 bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxopt
from onnxopt.errors import UsageError
from tests.support.command import assert_refused, run
from tests.support.small_models import write
from tests.tools.precision.test_precision import MODEL, optimized

_HALF = ("--precision", "float16")
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
    assert manifest.precision.caches == ("a", "b", "c", "d")
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
    assert_refused(result, "the cache a reaches", "8 times of which float16 does not hold; leave out caches")
    assert not (tmp_path / "a").exists()


def test_models_of_a_folder_without_caches_keep_their_inputs_and_outputs(tmp_path: Path) -> None:
    folder = tmp_path / "exported"
    folder.mkdir()
    write(folder / "decoder_model.onnx", DECODER)
    write(folder / "encoder_model.onnx", MODEL)
    made = onnxopt.optimize_folder(folder, tmp_path / "a", archs=(), precision="float16", caches=True)
    manifests = {model.path: model.manifest for model in made.models}
    caches = {path: m is not None and m.precision is not None and m.precision.caches for path, m in manifests.items()}
    assert caches == {"decoder_model.onnx": ("a", "b", "c", "d"), "encoder_model.onnx": ()}
    write(folder / "decoder_model.onnx", MODEL)
    with pytest.raises(UsageError, match="no model that was optimized has caches"):
        onnxopt.optimize_folder(folder, tmp_path / "b", archs=(), precision="float16", caches=True)


def test_what_caches_of_float32_cost_is_said(tmp_path: Path) -> None:
    model = write(tmp_path / "model.onnx", DECODER)
    said = "precision: 2 inputs and 2 outputs are a decoder's cache and stay float32, with a Cast each in every step"
    assert any(note.startswith(said) for note in optimized(model, tmp_path, "a", *_HALF).notes)
    assert not any("cache" in note for note in optimized(model, tmp_path, "b", *_HALF, "--caches").notes)


_BRANCHES = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[n, 1, 8] x, float[n, m, 8] a, bool now) => (float[n, 1, 8] y, float[n, l, 8] c) <float[8, 8] w = {WEIGHT}> {
   y, c = If (now) <
      then_branch = step () => (float[n, 1, 8] z, float[n, k, 8] d) {
         e = MatMul(x, w) d = Concat <axis = 1> (a, e) t = Transpose <perm = [0, 2, 1]> (d)
         s = MatMul(e, t) p = Softmax <axis = -1> (s) z = MatMul(p, d)
      },
      else_branch = first () => (float[n, 1, 8] o, float[n, 1, 8] f) { f = MatMul(x, w) o = Relu(f) }
   >
}
""".replace("WEIGHT", ", ".join(str(k % 7 / 4 - 0.5) for k in range(64)))


def test_both_branches_of_a_merged_decoder_read_and_return_16_bits(tmp_path: Path) -> None:
    """As optimum merges the steps with a cache and without: no Cast is beside the If, nor between it and the cache."""
    manifest = optimized(write(tmp_path / "model.onnx", _BRANCHES), tmp_path, "a", *_HALF, "--caches")
    assert manifest.verify.status == "passed" and not any("branch" in note for note in manifest.verify.notes)
    assert manifest.precision is not None and manifest.precision.caches == ("a", "c")
    written = onnx.load(tmp_path / "a" / "model.onnx")
    assert [node.op_type for node in written.graph.node if "a" in node.input or "c" in node.output] == ["If"]
    (branching,) = (node for node in written.graph.node if node.op_type == "If")
    for branch in (attribute.g for attribute in branching.attribute):
        results = {v.name: v.type.tensor_type.elem_type for v in branch.output}
        assert list(results.values())[1] == onnx.TensorProto.FLOAT16
    feeds = {key: value for key, value in _typical(5).items() if key in "xa"}
    for now in (True, False):
        inputs = {**feeds, "now": np.array(now)}
        wide = onnxopt.load(model_as_artifact(tmp_path / str(now), tmp_path / "model.onnx")).run(None, inputs)
        narrow = onnxopt.load(tmp_path / "a").run(None, {**inputs, "a": feeds["a"].astype(np.float16)})
        for expected, actual in zip(wide, narrow, strict=True):
            assert np.linalg.norm(expected - actual.astype(np.float32)) < 3e-3 * np.linalg.norm(expected)


def test_a_branch_that_no_input_takes_is_named(tmp_path: Path) -> None:
    model = write(tmp_path / "model.onnx", _BRANCHES)
    np.savez(tmp_path / "first.npz", **{k: v for k, v in _typical(5).items() if k in "xa"}, now=np.array(False))
    notes = optimized(model, tmp_path, "a", *_HALF, "--calibrate", str(tmp_path / "first.npz")).notes
    (note,) = (note for note in notes if "because no input took it" in note)
    assert "nodes of the then_branch of `If` stay float32" in note
