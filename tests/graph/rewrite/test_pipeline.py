"""Rewriting inside optimize: left out where verification finds it wrong, written in a portable form on request."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxopt
from onnxopt.artifact import manifest as manifests
from onnxopt.graph.rewrite import FAMILIES, schedule
from onnxopt.graph.rewrite.attention import sdpa
from onnxopt.graph.rewrite.table import ALIGNED_CHANNELS, FLOAT32_KERNELS, GATED_WEIGHTS
from onnxopt.runtime import releases
from tests.support import graphs
from tests.support.attention.attention_graphs import Attention


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "attention.onnx"
    model = Attention().model()
    model.ir_version = 9
    ir.save(model, path)
    return path


def _ops(path: Path) -> list[tuple[str, str]]:
    return [(n.domain, n.op_type) for n in onnx.load(path, load_external_data=False).graph.node]


@pytest.mark.usefixtures("library")
def test_the_manifest_says_what_was_rewritten(source: Path, artifact: Path) -> None:
    manifest = onnxopt.optimize(source, artifact, archs=()).manifest
    assert _ops(artifact / "model.onnx") == [("com.microsoft", "Attention")]
    assert manifest.verify.status == "passed"
    assert [*manifest.rewrites] == [
        name for name in FAMILIES if name not in (ALIGNED_CHANNELS, GATED_WEIGHTS, FLOAT32_KERNELS)
    ]  # for GPUs
    assert {name: count for name, count in manifest.rewrites.items() if count} == {"attention": 1, "merge": 1}
    assert manifest.ort_min == "1.21"
    assert "1 x attention into one operator" in onnxopt.explain(artifact)
    assert manifests.load(artifact).rewrites == manifest.rewrites


@pytest.mark.usefixtures("library")
def test_a_family_that_is_wrong_is_left_out(source: Path, artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdpa, "scale_of", lambda q, found: 5.0)
    manifest = onnxopt.optimize(source, artifact, archs=()).manifest
    assert manifest.verify.status == "passed"
    assert [row.name for row in manifest.left_out] == ["rewrite:attention"]
    assert "times the limit" in manifest.left_out[0].reason
    assert "com.microsoft" not in {domain for domain, _ in _ops(artifact / "model.onnx")}
    assert "left out by verification: rewrite:attention" in onnxopt.explain(artifact)


@pytest.mark.usefixtures("library")
def test_the_attention_that_stays_is_explained(tmp_path: Path, artifact: Path) -> None:
    model = Attention(weights="p0 = Softmax<axis = -1>(masked) p = Mul(p0, half)").model()
    ir.save(model, tmp_path / "odd.onnx")
    manifest = onnxopt.optimize(tmp_path / "odd.onnx", artifact, archs=()).manifest
    assert "not recognised as attention" in manifest.refusals[0].reason
    assert "is between Softmax and the product with v" in onnxopt.explain(artifact)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("external", [False, True])
def test_the_portable_form(source: Path, artifact: Path, external: bool) -> None:
    manifest = onnxopt.optimize(source, artifact, archs=(), portable=True, external_data=external).manifest
    portable = artifact / "model.portable.onnx"
    assert {domain for domain, _ in _ops(portable)} == {""}
    assert "model.portable.onnx" in manifest.files
    assert onnxopt.verify(source, portable).status == "passed"
    assert (artifact / "model.onnx.data").exists() is external
    if external:
        tensors = {t.name: t for t in onnx.load(portable, load_external_data=False).graph.initializer}
        outside = [t for t in tensors.values() if t.data_location == onnx.TensorProto.EXTERNAL]
        assert all(entry.value == "model.onnx.data" for t in outside for entry in t.external_data[:1])


def test_a_release_to_run_on_is_checked(source: Path, artifact: Path) -> None:
    assert [releases.release(text) for text in ("1.25", "1.25.1", None)] == ["1.25", "1.25", "1.21"]
    for text in ("1", "new", "1.20", "1.9"):
        with pytest.raises(onnxopt.UsageError, match="--ort-min"):
            onnxopt.optimize(source, artifact, archs=(), ort_min=text)


def test_a_release_that_cannot_open_the_model_is_refused(tmp_path: Path, artifact: Path) -> None:
    source = tmp_path / "new.onnx"
    ir.save(graphs.graph("float[N] x", "float[N] y", "a = Swish(x) y = Neg(a)", opset=24), source)
    with pytest.raises(onnxopt.UsageError, match=r"--ort-min 1\.23: the model needs ONNX Runtime 1\.24 .*opset 24"):
        onnxopt.optimize(source, artifact, archs=(), ort_min="1.23")
    assert not artifact.exists()
    for asked, noted in (("1.24.2", "1.24"), (None, "1.21")):
        manifest = onnxopt.optimize(source, tmp_path / noted, archs=(), verify=False, ort_min=asked).manifest
        assert (manifest.ort_min, manifest.requires.onnxruntime) == (noted, "1.24")


@pytest.mark.usefixtures("library")
def test_an_output_declared_wrong_stays_as_it_is_declared(source: Path, artifact: Path, tmp_path: Path) -> None:
    """As piper's: a dim is another than the model says. Callers go by what is declared."""
    model = ir.load(source)
    declared = [*(model.graph.outputs[0].shape or ())]
    model.graph.outputs[0].shape = ir.Shape(["anything", *declared[1:]])
    ir.save(model, tmp_path / "wrong.onnx")
    manifest = onnxopt.optimize(tmp_path / "wrong.onnx", artifact, archs=()).manifest
    assert manifest.rewrites["attention"] == 1
    assert manifest.outputs[0].dims == ("anything", *declared[1:])


def test_identities_go_but_for_outputs_that_nothing_in_their_graph_computes() -> None:
    body = (
        "t = Tanh(x) a = Identity(t) s = Sin(a) y = Identity(s) z = Identity(y) u = Identity(x) "
        "v = If(c) <then_branch = i () => (float[N] k) {k = Identity(t)}, "
        "else_branch = e () => (float[N] l) {m = Identity(s) l = Neg(m)}>"
    )
    outputs = "float[N] y, float[N] z, float[N] u, float[N] v"
    model = graphs.graph("float[N] x, bool c", outputs, body)
    feeds = {"x": np.arange(3, dtype=np.float32), "c": np.array(True)}
    before = graphs.run(model, feeds)
    schedule.remove_identities(model)
    onnx.checker.check_model(ir.to_proto(model))
    assert [n.op_type for n in model.graph.all_nodes()].count("Identity") == 3  # of k, z and u
    for one, other in zip(graphs.run(model, feeds), before, strict=True):
        np.testing.assert_array_equal(one, other)
