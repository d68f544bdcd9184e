"""`--reference`: how near a quantized model's artifact is to the float32 model, and what it has to keep."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from onnx import helper

import onnxopt
from onnxopt.artifact import manifest as manifests
from tests.support import real_models
from tests.support.command import assert_refused, run
from tests.support.precision import quantizable


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return quantizable.write(tmp_path_factory.mktemp("network"))


def test_an_artifact_is_held_against_the_float32_model(network: Path, tmp_path: Path) -> None:
    """`verify --reference`: the figures of the quantized model, and exit code 1 below what was asked for."""
    data = network.with_name("calibrate0.npz")
    quantized = onnxopt.quantize(network, tmp_path / "q.onnx", format="int8", calibrate=[data])
    artifact = onnxopt.optimize(quantized.path, tmp_path / "artifact", archs=()).path
    call = ("verify", artifact, "--reference", network, "--data", data)
    told = run(
        *call,
        "--min-sqnr",
        "35",
        "--min-top1",
        "0.5",
        "--min-top5",
        "1",
        "--min-cosine",
        "0.99",
        "--max-kl",
        "1e-3",
        "--json",
    )
    assert told.exit_code == 0, told.output
    rows = json.loads(told.output)["quality"]
    assert [row["library"] for row in rows] == [True, False]
    (expected,) = quantized.quality
    for row in rows:
        assert (
            row["sqnr_db"] == pytest.approx(expected.sqnr_db, abs=0.5) and 0 < row["kl"] < 1e-4 and row["top5"] == 1.0
        )
    for limit in (("--min-sqnr", "90"), ("--min-cosine", "1"), ("--max-kl", "1e-12")):
        missed = run(*call, *limit)
        assert missed.exit_code == 1 and "MISSED: y, CPU" in missed.output
    assert_refused(
        run("verify", artifact, "--min-sqnr", "90"), "min_sqnr is against a --reference, which was not given"
    )
    other = real_models.path("bert_tiny")
    assert_refused(run("verify", artifact, "--reference", other), "is no form of")


def test_optimize_says_how_near_the_artifact_is_to_the_float32_model(network: Path, tmp_path: Path) -> None:
    """In manifest, report and explain; below what was asked for the exit code is 1 and nothing is written."""
    data = network.with_name("calibrate0.npz")
    quantized = onnxopt.quantize(network, tmp_path / "q.onnx", format="int8", calibrate=[data])
    artifact = tmp_path / "artifact"
    call = ("optimize", quantized.path, "-o", artifact, "--arch", "none", "--reference", network, "--data", data)
    for goal in (("--min-sqnr", "90"), ("--min-cosine", "1"), ("--max-kl", "1e-12")):
        assert_refused(run(*call, *goal), "output y (CPU with", "asked for", code=1)
        assert not artifact.exists()
    told = run(*call, "--min-sqnr", "35", "--min-top1", "0.5")
    assert told.exit_code == 0, told.output
    line = "quality against network.onnx, with calibrate0.npz:\n    y, CPU with the library: "
    assert line in told.stdout and line in run("explain", artifact).stdout
    found = manifests.load(artifact).reference
    assert found is not None and (found.min_sqnr, found.min_top1, found.max_kl) == (35.0, 0.5, None)
    assert [row.sqnr_db for row in found.quality] == [pytest.approx(quantized.quality[0].sqnr_db, abs=0.5)] * 2
    report = (artifact / "report.html").read_text("utf-8")
    assert "Against the float32 model" in report and f"{found.quality[0].sqnr_db:.1f}" in report
    assert run("verify", artifact, "--reference", network, "--on", "cpu").exit_code == 0  # with drawn inputs
    assert manifests.load(artifact).reference.data == ()
    assert "generated inputs, which say nothing about quality on real ones" in run("explain", artifact).stdout


def test_of_weights_in_blocks_that_become_16_bit_too(network: Path, tmp_path: Path) -> None:
    """Goals are against the reference then; lower precision has figures of its own, against the quantized model."""
    data = network.with_name("calibrate0.npz")
    quantized = onnxopt.quantize(network, tmp_path / "q.onnx", format="int4")
    common = {"archs": (), "precision": "float16", "calibrate": [data], "reference": network}
    made = onnxopt.optimize(quantized.path, tmp_path / "artifact", min_sqnr=20.0, **common).manifest
    assert made.precision is not None and made.precision.min_sqnr is None and made.reference is not None
    assert made.reference.data == ("calibrate0.npz",) and made.reference.min_sqnr == 20.0
    least = min(row.sqnr_db or 0 for row in made.reference.quality)
    assert 20.0 < least < 30.0 < min(row.sqnr_db or 0 for row in made.precision.quality)
    with pytest.raises(onnxopt.VerificationError, match="at least 30 dB were asked for"):
        onnxopt.optimize(quantized.path, tmp_path / "missed", min_sqnr=30.0, **common)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--min-cosine", "0.9"], "min_cosine is against a float32 model: give reference, or a lower precision"),
        (["--reference", "network.onnx", "--no-verify"], "reference is a part of verification"),
        (["--reference", "network.onnx", "--min-top1", "2"], "min_top1 2.0 is not a share, from 0 to 1"),
        (["--reference", "network.onnx", "--max-kl", "-1"], "max_kl -1.0 is not a divergence in nats"),
        (["--reference", "nowhere.onnx"], "nowhere.onnx"),
        (["--reference", "empty.npz"], "empty.npz"),
        (["--reference", "other.onnx"], "is no form of"),
    ],
)
def test_a_reference_that_cannot_be_used(network: Path, tmp_path: Path, options: list[str], message: str) -> None:
    (tmp_path / "empty.npz").write_bytes(b"")
    graph = onnx.parser.parse_graph("g (float[2] z) => (float[2] y) { y = Relu(z) }")
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]), tmp_path / "other.onnx")
    files = {p.name: p for p in (*tmp_path.iterdir(), *network.parent.iterdir())}
    before = set(tmp_path.iterdir())
    call = ("optimize", network, "-o", tmp_path / "artifact", "--arch", "none")
    assert_refused(run(*call, *[files.get(o, o) for o in options]), message)
    assert set(tmp_path.iterdir()) == before


def test_a_model_that_onnx_runtime_does_not_open_is_code_2_wherever_it_is_run(network: Path, tmp_path: Path) -> None:
    """Other inputs cannot help there, which code 3 would say."""
    model = onnx.load(network)
    for node in model.graph.node:
        node.name = "same"
    wrong = tmp_path / "wrong.onnx"
    onnx.save(model, wrong)
    data = network.with_name("calibrate0.npz")
    for call in (
        ("optimize", wrong, "-o", tmp_path / "a", "--arch", "none"),
        ("optimize", wrong, "-o", tmp_path / "a", "--arch", "none", "--precision", "float16"),
        ("optimize", network, "-o", tmp_path / "a", "--arch", "none", "--reference", wrong),
        ("quantize", wrong, "-o", tmp_path / "q.onnx", "--format", "int8", "--calibrate", data),
        ("verify", wrong, network),
        ("verify", network, network, "--reference", wrong),
    ):
        result = run(*call)
        assert result.exit_code == 2, result.output
        assert "wrong.onnx: ONNX Runtime does not open the original: " in result.output
        assert "two nodes with same node name (same)" in result.output
        assert ".." not in result.output.replace("...", "") and ".;" not in result.output
