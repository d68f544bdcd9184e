"""`optimize --precision`: near float32, the same kernels as a float16 export gets, and what it refuses."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxopt
from onnxopt.artifact import manifest as manifests
from onnxopt.artifact.manifest import Manifest
from onnxopt.graph.fused_domain import holds_fused
from onnxopt.graph.precision import statistics
from onnxopt.graph.rewrite.decomposed import decomposed_layer_norms
from onnxopt.runtime import sessions
from onnxopt.verification.lowering.goals import ROUNDED, Goals
from tests.support import real_models
from tests.support.command import assert_refused, run
from tests.support.decoders import exported_decoders
from tests.support.small_models import write

MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[n, 8] x) => (float[n, 8] y)
   <float[8] w = {1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5}> {
   a = Mul(x, w)
   b = Exp(a)
   y = Tanh(b)
}
"""


def optimized(model: Path, tmp_path: Path, name: str, *options: str | Path) -> Manifest:
    result = run("optimize", model, "-o", tmp_path / name, "--arch", "none", *options)
    assert result.exit_code == 0, result.output
    return manifests.load(tmp_path / name)


def _calls(manifest: Manifest) -> Counter[str]:
    """How many calls of kernels there are, by kind."""
    return Counter(kernel.kind for kernel in manifest.kernels for _ in kernel.sites)


def _left(artifact: Path) -> Counter[str]:
    """The operators that ONNX Runtime runs itself."""
    nodes = onnx.load(artifact / "model.onnx", load_external_data=False).graph.node
    return Counter(n.op_type for n in nodes if not holds_fused(n.domain))


@pytest.mark.parametrize("name", [pytest.param("bert_tiny", marks=pytest.mark.exhaustive), "llama_tiny"])
def test_a_float32_export_gets_the_kernels_of_a_float16_export(tmp_path: Path, name: str) -> None:
    lowered = optimized(real_models.path(name), tmp_path, "low", "--precision", "float16")
    export = optimized(real_models.path(f"{name}_fp16"), tmp_path, "half")
    assert _calls(lowered) == _calls(export)
    assert _left(tmp_path / "low") == _left(tmp_path / "half")
    assert lowered.rewrites == export.rewrites
    assert lowered.verify.status == "passed"
    assert lowered.precision is not None
    assert lowered.precision.restored == ()
    assert [row.provider == ROUNDED for row in lowered.precision.quality] == [True, False, False]
    for row in lowered.precision.quality:
        assert row.invalid == 0
        assert row.sqnr_db is not None
        assert 50 <= row.sqnr_db < 90


def test_convolutions_leave_what_the_export_leaves(tmp_path: Path) -> None:
    """The Cast of the float32 image is a part of the first convolution's kernel."""
    lowered = optimized(real_models.path("convnext_tiny"), tmp_path, "low", "--precision", "float16")
    export = optimized(real_models.path("convnext_tiny_fp16"), tmp_path, "half")
    assert _calls(lowered) == _calls(export)
    assert _left(tmp_path / "low") == _left(tmp_path / "half")
    assert lowered.precision is not None
    assert Goals(min_sqnr=50).reached_by(lowered.precision.quality)


def test_what_is_said_of_a_lowered_model(tmp_path: Path) -> None:
    model, data = real_models.path("bert_tiny"), tmp_path / "data.npz"
    np.savez(data, x=np.random.default_rng(0).integers(0, 50, (2, 16)))
    result = run(
        "optimize", model, "-o", tmp_path / "a", "--arch", "none", "--precision", "float16", "--calibrate", data
    )
    assert result.exit_code == 0, result.output
    assert "ranges of data.npz" in result.stdout
    assert " dB, cosine " in result.stdout
    manifest = manifests.load(tmp_path / "a")
    assert [check.case for check in manifest.verify.checks] == ["static, data data.npz"] * 2
    assert "ranges of data.npz" in run("explain", tmp_path / "a").stdout
    assert "Lower precision" in (tmp_path / "a" / "report.html").read_text("utf-8")
    assert run("verify", tmp_path / "a").exit_code == 0
    assert "generated inputs, which say nothing about quality" in run(
        "optimize", model, "-o", tmp_path / "b", "--arch", "none", "--precision", "float16"
    ).stdout  # fmt: skip


def test_a_model_that_misses_min_sqnr_ends_with_exit_code_1(tmp_path: Path) -> None:
    model = real_models.path("bert_tiny")
    options = ("--arch", "none", "--precision", "float16", "--min-sqnr")
    result = run("optimize", model, "-o", tmp_path / "a", *options, "200")
    assert_refused(result, "output y", "dB from float32, at least 200 dB", code=1)
    assert not (tmp_path / "a").exists()
    assert run("optimize", model, "-o", tmp_path / "a", *options, "50").exit_code == 0


def test_values_that_break_the_result_stay_float32(tmp_path: Path) -> None:
    """(h + 900) - 900, where float16 has steps of a half."""
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[n, 8] x) => (float[n, 8] y, float[n, 8] z)
       <float big = {900.0}, float[8, 8] w = {%s}, float[8, 8] v = {%s}> {
       h = MatMul(x, w)
       s = Add(h, big)
       p = Tanh(h)
       d = Sub(s, big)
       z = MatMul(p, v)
       y = Tanh(d)
    }
    """
    eye = ", ".join(map(str, (0.01 * np.eye(8)).ravel()))
    model = write(tmp_path / "m.onnx", text % (eye, eye))
    manifest = optimized(model, tmp_path, "a", "--precision", "float16")
    assert manifest.precision is not None
    assert manifest.precision.restored == ("Add", "node_Add_1")  # the Sub adds -900
    assert Goals(min_sqnr=30).reached_by(manifest.precision.quality)


def test_a_model_without_a_value_to_lower_keeps_its_own_precision(tmp_path: Path) -> None:
    manifest = optimized(write(tmp_path / "m.onnx", MODEL), tmp_path, "a", "--precision", "float16", "--keep-float", "")
    assert manifest.precision is not None
    assert manifest.precision.nodes == 0
    assert [row.sqnr_db for row in manifest.precision.quality] == [None, None] or manifest.verify.status == "passed"


def test_bfloat16_takes_a_gpu_to_verify(tmp_path: Path) -> None:
    model = real_models.path("bert_tiny")
    arguments = ("optimize", model, "-o", tmp_path / "a", "--arch", "none", "--precision", "bfloat16")
    if not sessions.cuda_is_usable():
        result = run(*arguments)
        assert result.exit_code == 3
        assert (
            "for such floats on GPUs alone; verify on a machine with one; --no-verify keeps the result" in result.output
        )
    result = run(*arguments, "--no-verify")
    assert result.exit_code == 0, result.output
    precision = manifests.load(tmp_path / "a").precision
    assert precision is not None
    assert Goals(min_sqnr=35).reached_by(precision.quality)


ODD_DATA = {
    "no such input": ({"z": np.zeros((2, 8), np.float32)}, "'z' is no input of the model"),
    "another dtype": ({"x": np.zeros((2, 8))}, "'x' has dtype float64"),
    "another shape": ({"x": np.zeros((2, 7), np.float32)}, "x"),
    "nothing": ({}, "input 'x' is missing"),
}


@pytest.mark.parametrize(("arrays", "word"), ODD_DATA.values(), ids=ODD_DATA)
def test_calibration_data_that_does_not_fit(tmp_path: Path, arrays: dict[str, np.ndarray], word: str) -> None:
    np.savez(tmp_path / "odd.npz", **arrays)  # type: ignore[arg-type]
    model = write(tmp_path / "m.onnx", MODEL)
    result = run("optimize", model, "-o", tmp_path / "a", "--precision", "float16", "--calibrate", tmp_path / "odd.npz")
    assert_refused(result, "odd.npz", word)
    assert not (tmp_path / "a").exists()


def test_calibration_files_that_cannot_be_read(tmp_path: Path) -> None:
    model, good, cut = write(tmp_path / "m.onnx", MODEL), tmp_path / "good.npz", tmp_path / "cut.npz"
    np.savez(good, x=np.zeros((2, 8), np.float32))
    cut.write_bytes(good.read_bytes()[:60])
    (tmp_path / "empty.npz").write_bytes(b"")
    for path in (cut, tmp_path / "empty.npz", tmp_path / "gone.npz"):
        result = run("optimize", model, "-o", tmp_path / "a", "--precision", "float16", "--calibrate", path)
        assert_refused(result, str(path))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--min-sqnr", "40"], ["min_sqnr", "precision"]),
        (["--keep-float", "a"], ["keep_float", "precision"]),
        (["--caches"], ["caches is about a lower precision"]),
        (["--precision", "float8"], ["float8"]),
        (["--precision", "float16", "--keep-float", "("], ["keep_float '('", "regular expression"]),
        (["--precision", "float16", "--min-sqnr", "nan"], ["min_sqnr"]),
        (["--precision", "float16", "--min-sqnr", "40", "--no-verify"], ["min_sqnr", "verification"]),
    ],
)
def test_options_that_do_not_fit(tmp_path: Path, options: list[str], words: list[str]) -> None:
    model = write(tmp_path / "m.onnx", MODEL)
    assert_refused(run("optimize", model, "-o", tmp_path / "a", *options), *words)


def test_a_model_of_16_bits_already(tmp_path: Path) -> None:
    model = real_models.path("llama_tiny_fp16")
    assert_refused(run("optimize", model, "-o", tmp_path / "a", "--precision", "float16"), "is a float16 model")


def test_python_takes_arrays_and_the_manifest_is_json(tmp_path: Path) -> None:
    model = write(tmp_path / "m.onnx", MODEL)
    inputs = {"x": np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32) / 9}
    artifact = onnxopt.optimize(model, tmp_path / "a", archs=(), precision="float16", calibrate=[inputs])
    assert artifact.manifest.precision is not None
    document = json.loads((tmp_path / "a" / "manifest.json").read_text("utf-8"))
    assert document["precision"]["data"] == ["set 0"]
    plain = onnxopt.optimize(model, tmp_path / "b", archs=())
    assert "precision" not in json.loads((plain.path / "manifest.json").read_text("utf-8"))


ONLY_ORTS = f"""
<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
g (float[n, 8] x) => (float[n, 8] y)
   <float[8, 8] w = {{{", ".join(str(k % 7 / 4) for k in range(64))}}}> {{
   a = com.microsoft.Trilu(x)
   h = MatMul(a, w)
   g = com.microsoft.Trilu(h)
   y = MatMul(g, w)
}}
"""


def test_a_value_whose_dtype_onnx_runtime_alone_knows_is_cast_where_it_is_read(tmp_path: Path) -> None:
    manifest = optimized(write(tmp_path / "model.onnx", ONLY_ORTS), tmp_path, "a", "--precision", "float16")
    assert manifest.precision is not None
    assert (manifest.verify.status, manifest.precision.nodes) == ("passed", 2)
    assert [row.op_type for row in manifest.precision.kept] == ["Trilu", "Trilu"]


DECOMPOSED = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[n, 4] x) => (float[n, 4] y)
   <float two = {2}, float eps = {1e-5}, float[4] b = {1, 2, 3, 4},
    float[4, 4] w = {1, 2, 3, 4, 4, 3, 2, 1, 2, 2, 1, 1, 3, 1, 3, 1}> {
   h = Relu(x)
   m = ReduceMean <axes = [-1]> (h)
   d = Sub(h, m)
   p = Pow(d, two)
   v = ReduceMean <axes = [-1]> (p)
   s = Add(v, eps)
   r = Sqrt(s)
   n = Div(d, r)
   q = Mul(n, b)
   a = Add(q, b)
   y = MatMul(a, w)
}
"""


def test_a_converted_model_that_does_not_open_is_not_called_the_original(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write(tmp_path / "model.onnx", DECOMPOSED)
    assert optimized(model, tmp_path, "a", "--precision", "float16").verify.status == "passed"
    monkeypatch.setattr(decomposed_layer_norms, "rules_for", lambda opset: [])
    monkeypatch.setattr(statistics, "has_float_rows", lambda value, kept: False)
    result = run("optimize", model, "-o", tmp_path / "b", "--arch", "none", "--precision", "float16")
    assert_refused(result, "opens the original, but not the model that onnxopt converted it to", "LayerNormalization")
    assert not (tmp_path / "b").exists()


def test_ranges_are_measured_up_to_the_longest_input(tmp_path: Path) -> None:
    """A table of positions that is large in rows which no usual size reads."""
    table = np.ones((200, 4), np.float32)
    table[120:] = 20000
    nodes = [
        helper.make_node("Shape", ["x"], ["s"], start=1, end=2),
        helper.make_node("Squeeze", ["s"], ["n"]),
        helper.make_node("Range", ["i0", "n", "i1"], ["r"]),
        helper.make_node("Gather", ["t", "r"], ["e"]),
        helper.make_node("Add", ["x", "e"], ["h"], name="sum"),
        helper.make_node("MatMul", ["h", "w"], ["y"], name="product"),
    ]
    constants = {"t": table, "w": np.eye(4, dtype=np.float32), "i0": np.array(0), "i1": np.array(1)}
    inputs, outputs = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["B", "N", 4]) for name in "xy")
    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(helper.make_graph(nodes, "g", [inputs], [outputs], tensors), opset_imports=opsets)
    model.ir_version = 8
    onnx.save(model, tmp_path / "model.onnx")
    manifest = optimized(tmp_path / "model.onnx", tmp_path, "a", "--precision", "float16")
    assert manifest.precision is not None
    reasons = {row.node: row.reason for row in manifest.precision.kept}
    assert "reaches 2e+04, 8 times of which float16 does not hold" in reasons["product"]


LOOP = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[n, 2] x, int64 k) => (float[n, 2] y)
   <float[2, 2] w = {0.5, 0.25, 0.125, 0.75}> {
   h = MatMul(x, w)
   y = Loop(k, , h) <body = l (int64 i, bool ci, float[n, 2] s) => (bool co, float[n, 2] a)
       { co = Identity(ci) a0 = MatMul(s, w) a1 = Tanh(a0) a = MatMul(a1, w) }>
}
"""


def test_bodies_become_16_bits_and_what_grows_in_them_is_named(tmp_path: Path) -> None:
    bounded = LOOP.replace("a1 = Tanh(a0) a = MatMul(a1, w)", "a1 = MatMul(a0, w) a = Tanh(a1)")
    manifest = optimized(write(tmp_path / "model.onnx", bounded), tmp_path, "a", "--precision", "float16")
    assert manifest.precision is not None
    assert manifest.verify.status == "passed"
    assert manifest.precision.nodes == 4
    assert [row.reason for row in manifest.precision.kept] == ["Loop hands on float32"]
    grows = LOOP.replace("a1 = Tanh(a0) a = MatMul(a1, w)", "a1 = MatMul(a0, w) a = Add(a1, s)")
    manifest = optimized(write(tmp_path / "model.onnx", grows), tmp_path, "b", "--precision", "float16")
    assert manifest.precision is not None
    reasons = [row.reason for row in manifest.precision.kept]
    assert any("grows" in reason for reason in reasons)
    assert "It computes a state of a loop from the state before" in reasons
    assert manifest.precision.nodes == 1


def test_the_branches_of_an_exported_decoder_become_16_bits(tmp_path: Path) -> None:
    """optimum's merged decoder: all that it computes is in the branches of an If."""
    onnx.save(exported_decoders.load("merged_t5"), tmp_path / "model.onnx")
    manifest = optimized(tmp_path / "model.onnx", tmp_path, "a", "--precision", "float16")
    assert manifest.precision is not None
    assert manifest.verify.status == "passed"
    assert manifest.precision.nodes > 150
    (note,) = (note for note in manifest.notes if "precision" in note)
    assert "8 inputs and 8 outputs are a decoder's cache and stay float32" in note


@pytest.mark.parametrize("options", [(), ("--precision", "float16")], ids=["float32", "float16"])
def test_a_file_that_does_not_open_is_no_lack_of_inputs(options: tuple[str, ...], tmp_path: Path) -> None:
    inputs, outputs = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N"]) for name in "xy")
    nodes = [helper.make_node("Relu", ["x"], ["h"], name="n"), helper.make_node("Exp", ["h"], ["y"], name="n")]
    graph = helper.make_graph(nodes, "g", [inputs], [outputs])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    result = run("optimize", tmp_path / "m.onnx", "-o", tmp_path / "a", "--arch", "none", *options)
    assert result.exit_code == 2
    assert "ONNX Runtime does not open the original" in result.output
    assert not (tmp_path / "a").exists()
