"""`quantize --gpu` and `--measured`: products that gain no time on a GPU stay floats, and the report says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import onnxopt
from onnxopt.runtime.gpus import catalogue
from onnxopt.tools.quantization import times, timing
from onnxopt.tools.quantization.products import Product
from onnxopt.tools.quantization.timing import Timing
from tests.support.command import assert_refused, run
from tests.support.precision import quantizable


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return quantizable.write(tmp_path_factory.mktemp("network"))


def _measured(path: Path, *rows: tuple[str, float], gpu: str = "NVIDIA H200") -> Path:
    entries = [{"gpu": gpu, "product": text, "microseconds": us, "cublaslt": 1, "algorithm": []} for text, us in rows]
    path.write_text(json.dumps({"entries": entries}))
    return path


def test_products_that_gain_nothing_stay(network: Path, tmp_path: Path) -> None:
    """The calibration inputs have 32 rows. `up` was measured to be slower in fp8; `down` was not measured in both."""
    file = _measured(
        tmp_path / "products.gemm_algos.json", ("float16 m32 n512 k256 b^T bias", 3.0),
        ("float16 m32 n512 k256 b^T", 3.5), ("float8e4m3fn to float16 m32 n512 k256 b^T", 3.2),
        ("float16 m32 n256 k512 b^T", 1.0), ("float16 m32 n512 k256 batch4 strides 1,2,3", 0.1),
    )  # fmt: skip
    given = ["--calibrate", network.with_name("calibrate0.npz"), "--format", "fp8", "--measured", file]
    result = run("quantize", network, "-o", tmp_path / "q.onnx", *given)
    assert result.exit_code == 0, result.output
    assert "stays float32: 1 x quantizing it gains no time on h200" in result.output
    assert "time of the quantized products alone on h200, predicted:" in result.output
    said = json.loads(run("quantize", network, "-o", tmp_path / "r.onnx", *given, "--json").output)
    assert [row["node"] for row in said["products"]] == ["down"]
    assert said["times"]["gpu"] == "h200" and said["times"]["quantized_ms"] < said["times"]["sixteen_bits_ms"]


def test_without_the_option_all_are_quantized(network: Path, tmp_path: Path) -> None:
    found = onnxopt.quantize(
        network, tmp_path / "q.onnx", format="fp8", calibrate=[network.with_name("calibrate0.npz")]
    )
    assert [p.node for p in found.products] == ["up", "down"] and found.times is None


_LARGE = Product("p", "MatMul", 4096, 4096, 0.0)


@pytest.mark.parametrize(
    ("gpu", "rows", "bits", "gains"),
    [
        ("h200", 1024, 0, True), ("h200", 16, 0, False), ("h200", 1, 0, True), ("a100_80gb", 1024, 0, False),
        ("rtx4090", 1024, 0, True), ("h200", 1, 4, True), ("h200", 40, 8, True), ("h200", 512, 4, False),
        ("t4", 41, 8, False),
    ],
)  # fmt: skip
def test_what_is_predicted_to_gain(gpu: str, rows: int, bits: int, gains: bool) -> None:
    before, after, measured = times._seconds(_LARGE, rows, bits, Timing(catalogue()[gpu]))
    assert (after < before) is gains and not measured
    assert after <= before or bits  # codes of 8-bit floats are never predicted to cost time


def test_measured_times_decide() -> None:
    known = Timing(catalogue()["h200"], {("float16", 64, 4096, 4096): 9.0, ("float8e4m3fn", 64, 4096, 4096): 9.5})
    before, after, measured = times._seconds(_LARGE, 64, 0, known)
    assert (before, after) == pytest.approx((9e-6, 9.5e-6)) and measured
    assert not times._seconds(_LARGE, 65, 0, known)[2]


def test_the_gpu_of_a_file_is_found(tmp_path: Path) -> None:
    file = _measured(tmp_path / "a.json", ("float16 m1 n2 k3", 1.0))
    found = timing.timing(None, [file])
    assert found is not None and found.gpu.key == "h200" and found.measured == {("float16", 1, 2, 3): 1.0}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--gpu", "h2"], "gpu 'h2' is not one of"),
        (["--measured", "{}/missing.json"], "missing.json: is no file of measured products"),
        (["--measured", "{}/bad.json"], "bad.json: is no file of measured products"),
        (["--measured", "{}/other.json"], "measured on NVIDIA Unknown: say with gpu"),
        (["--measured", "{}/other.json", "--gpu", "h200"], "no product was measured on h200"),
    ],
)
def test_what_is_refused(network: Path, tmp_path: Path, given: list[str], said: str) -> None:
    (tmp_path / "bad.json").write_text('{"entries": [{"product": 3}]}')
    _measured(tmp_path / "other.json", ("float16 m1 n2 k3", 1.0), gpu="NVIDIA Unknown")
    command = ["quantize", network, "-o", tmp_path / "q.onnx", "--format", "int4"]
    result = run(*command, *[text.format(tmp_path) for text in given])
    assert_refused(result, said)
    assert not (tmp_path / "q.onnx").exists()


def test_int8_has_no_time_to_gain(network: Path, tmp_path: Path) -> None:
    given = ["--format", "int8", "--calibrate", network.with_name("calibrate0.npz"), "--gpu", "h200"]
    assert_refused(run("quantize", network, "-o", tmp_path / "q.onnx", *given), "int8 gains no time on GPUs")
