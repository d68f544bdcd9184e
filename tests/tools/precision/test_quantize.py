"""`quantize`: what it writes, how near that is to float32, what stays float32, and what it refuses."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxopt
from onnxopt.artifact import manifest as manifests
from onnxopt.tools.quantization.by_library import Quantizer
from onnxopt.tools.quantization.flow import MARK
from onnxopt.verification.lowering.goals import Goals
from tests.support import real_models
from tests.support.command import assert_refused, run
from tests.support.precision import quantizable
from tests.support.precision.quantizable import WIDTH


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return quantizable.write(tmp_path_factory.mktemp("network"))


def _calibration(network: Path) -> list[str | Path]:
    return ["--calibrate", network.with_name("calibrate0.npz"), "--calibrate", network.with_name("calibrate1.npz")]


def _operators(path: Path) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(path).graph.node)


def _noise_db(original: Path, quantized: Path, inputs: Path, form: str) -> float:
    """As `quantize` measures it: with ONNX Runtime's integer kernels, which there are none of for 8-bit floats."""
    with np.load(inputs) as file:
        feeds = dict(file)
    options = ort.SessionOptions()
    if form == "fp8":
        options.add_session_config_entry("session.disable_quant_qdq", "1")
    sessions = [ort.InferenceSession(str(p), options) for p in (original, quantized)]
    a, b = (session.run(None, feeds)[0].astype(np.float64) for session in sessions)
    return float(10 * np.log10(np.square(a).sum() / np.square(a - b).sum()))


@pytest.mark.parametrize(
    ("form", "products", "operators", "least", "share"),
    [
        ("int8", ["up", "down"], {"QuantizeLinear": 2, "DequantizeLinear": 4}, 40.0, 0.5),
        ("fp8", ["up", "down"], {"QuantizeLinear": 2, "DequantizeLinear": 4}, 30.0, 0.5),
        ("int4", ["up", "down", "head"], {"MatMulNBits": 3}, 18.0, 0.25),
        ("int8-weights", ["up", "down", "head"], {"MatMulNBits": 3}, 40.0, 0.4),
    ],
)
def test_a_format(
    network: Path, tmp_path: Path, form: str, products: list[str], operators: dict[str, int], least: float, share: float
) -> None:
    """The result is a standard model that `optimize` takes, as near to float32 as the report says."""
    output = tmp_path / "quantized.onnx"
    result = run("quantize", network, "-o", output, "--format", form, *_calibration(network), "--json")
    assert result.exit_code == 0, result.output
    said = json.loads(result.output)
    assert [row["node"] for row in said["products"]] == products
    found = _operators(output)
    assert {name: found[name] for name in operators} == operators
    assert said["bytes_after"] == output.stat().st_size < share * network.stat().st_size
    (quality,) = said["quality"]
    measured = min(_noise_db(network, output, network.with_name(f"calibrate{k}.npz"), form) for k in range(2))
    assert least < quality["sqnr_db"] == pytest.approx(measured, abs=0.1)
    assert said["data"] == ["calibrate0.npz", "calibrate1.npz"]
    (record,) = [p.value for p in onnx.load(output).metadata_props if p.key == MARK]
    assert json.loads(record)["format"] == form and json.loads(record)["sqnr_db"] == quality["sqnr_db"]
    artifact = onnxopt.optimize(output, tmp_path / "artifact", archs=())
    assert manifests.load(artifact.path).verify.status == "passed"


def test_weights_of_int8_have_a_scale_a_column_and_largest_codes_stand_for_largest_values(
    network: Path, tmp_path: Path
) -> None:
    onnxopt.quantize(network, tmp_path / "q.onnx", format="int8", calibrate=[network.with_name("calibrate0.npz")])
    graph = onnx.load(tmp_path / "q.onnx").graph
    constants = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    original = {t.name: numpy_helper.to_array(t) for t in onnx.load(network).graph.initializer}
    weights = [n for n in graph.node if n.op_type == "DequantizeLinear" and n.input[0] in constants]
    for node, weight in zip(weights, (original["w1"], original["w2"]), strict=True):
        codes, scales, zeros = (constants[name] for name in node.input)
        assert codes.dtype == np.int8 and not zeros.any() and scales.shape == (weight.shape[1],)
        assert np.abs(codes).max(axis=0).min() >= 127 - 1
        assert np.abs(codes * scales - weight).max() <= 0.5001 * scales.max()


def test_scales_of_fp8_reach_the_largest_values(network: Path, tmp_path: Path) -> None:
    """As powers of two, by which kernels divide for less. ONNX Runtime's own cut off what is beyond 4.5 deviations."""
    onnxopt.quantize(network, tmp_path / "q.onnx", format="fp8", calibrate=[network.with_name("calibrate0.npz")])
    graph = onnx.load(tmp_path / "q.onnx").graph
    constants = {t.name: t for t in graph.initializer}
    (quantize,) = [n for n in graph.node if n.op_type == "QuantizeLinear" and n.input[0] == "x"]
    with np.load(network.with_name("calibrate0.npz")) as file:
        largest = np.abs(file["x"]).max()
    scale = float(numpy_helper.to_array(constants[quantize.input[1]]))
    assert 224 < largest / scale <= 448 and np.frexp(scale)[0] == 0.5
    assert constants[quantize.input[2]].data_type == TensorProto.FLOAT8E4M3FN


def test_nodes_stay_float32_for_min_sqnr_and_for_keep_float(network: Path, tmp_path: Path) -> None:
    """Leaving out the node at fault reaches the goal, and leaves the others quantized."""
    plain = onnxopt.quantize(network, tmp_path / "plain.onnx", format="int4")
    assert plain.data == ()  # generated inputs
    (quality,) = plain.quality
    assert quality.sqnr_db is not None
    goal = quality.sqnr_db + 3.0
    better = onnxopt.quantize(network, tmp_path / "better.onnx", format="int4", min_sqnr=goal)
    assert Goals(min_sqnr=goal).reached_by(better.quality)
    assert better.restored and {row.node for row in better.left} == set(better.restored)
    assert {p.node for p in better.products} == {"up", "down", "head"} - set(better.restored) != set()
    assert _operators(better.path)["MatMulNBits"] == len(better.products)
    without = onnxopt.quantize(network, tmp_path / "without.onnx", format="int4", keep_float="^(up|head)$")
    assert [p.node for p in without.products] == ["down"]


def test_below_min_sqnr_the_exit_code_is_1_and_nothing_is_written(network: Path, tmp_path: Path) -> None:
    output = tmp_path / "q.onnx"
    result = run("quantize", network, "-o", output, "--format", "int4", "--min-sqnr", "90")
    assert result.exit_code == 1 and "at least 90 dB were asked for" in result.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("form", ["int8", "int4"])
def test_weights_that_do_not_fit_the_model_file_lie_beside_it(
    network: Path, tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = [network.with_name("calibrate0.npz")]
    whole = onnxopt.quantize(network, tmp_path / "whole.onnx", format=form, calibrate=data)
    monkeypatch.setattr("onnxopt.graph.write.EMBED_LIMIT", 100_000)
    found = onnxopt.quantize(network, tmp_path / "apart.onnx", format=form, calibrate=data)
    beside = tmp_path / "apart.onnx.data"
    assert found.path.stat().st_size < 10_000 and found.bytes_after == found.path.stat().st_size + beside.stat().st_size
    assert found.quality == whole.quality == onnxopt.quality(network, found.path, data=data)
    beside.rename(tmp_path / "new.onnx.data")
    with pytest.raises(onnxopt.UsageError, match=r"new.onnx.data: exists already"):
        onnxopt.quantize(network, tmp_path / "new.onnx", format=form, calibrate=data)


def test_calibration_runs_once_for_all_trials(network: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []
    own = Quantizer._measured
    monkeypatch.setattr(Quantizer, "_measured", lambda self: measured.append(1) or own(self))
    with pytest.raises(onnxopt.OnnxoptError, match="at least 80 dB"):
        onnxopt.quantize(
            network, tmp_path / "q.onnx", format="fp8", min_sqnr=80.0, calibrate=[network.with_name("calibrate0.npz")]
        )
    assert measured == [1]


def test_a_transformer_keeps_its_attention_float32(tmp_path: Path) -> None:
    """Only products with constant weights are quantized; their results are not rounded."""
    model = real_models.path("bert_tiny")
    np.savez(tmp_path / "ids.npz", x=np.random.default_rng(0).integers(0, 100, (2, 16)))
    found = onnxopt.quantize(model, tmp_path / "q.onnx", format="int8", calibrate=[tmp_path / "ids.npz"])
    assert len(found.products) == 12
    graph = onnx.load(found.path).graph
    assert _operators(found.path)["Softmax"] == 2
    quantized = {n.input[0] for n in graph.node if n.op_type == "QuantizeLinear"}
    assert not quantized & {o for n in graph.node if n.op_type == "Softmax" for o in n.output}


@pytest.mark.parametrize("form", ["fp8", "int4"])
def test_one_command_from_float32_to_the_products_of_16_bits(network: Path, tmp_path: Path, form: str) -> None:
    """The same products as those of a float16 model, and the interface of the float32 one."""
    plain = onnxopt.quantize(
        network, tmp_path / "plain.onnx", format=form, calibrate=[network.with_name("calibrate0.npz")]
    )
    output = tmp_path / "q.onnx"
    call = ("quantize", network, "-o", output, "--format", form, "--precision", "float16", *_calibration(network)[:2])
    goal = plain.quality[0].sqnr_db - 0.5
    result = run(*call, "--min-sqnr", str(goal), "--json")
    assert result.exit_code == 0, result.output
    said = json.loads(result.output)
    assert [row["node"] for row in said["products"]] == [p.node for p in plain.products]
    assert said["quality"][0]["sqnr_db"] >= goal and said["bytes_after"] < 0.9 * plain.bytes_after
    (record,) = [p.value for p in onnx.load(output).metadata_props if p.key == MARK]
    assert json.loads(record)["precision"] == "float16"
    assert {t.type.tensor_type.elem_type for t in onnx.load(output).graph.output} == {TensorProto.FLOAT}
    artifact = onnxopt.optimize(
        output, tmp_path / "artifact", archs=["sm_90"], data=[network.with_name("calibrate0.npz")]
    )
    operands = {"fp8": ("float8e4m3fn", "float8e4m3fn"), "int4": ("float16", "uint8")}[form]
    products = [k for k in artifact.manifest.kernels if k.kind == "gemm" and k.inputs[:2] == operands]
    assert sum(len(k.sites) for k in products) == len(plain.products)
    assert all(k.outputs == ("float16",) for k in products)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--format", "fp8"], "give inputs of the model with --calibrate"),
        (["--format", "int4", "--block-size", "48"], "block size 48 is not one of 16, 32, 64, 128, 256"),
        (["--format", "int4", "--algorithm", "entropy"], "not one of those for int4: rtn, hqq, k_quant"),
        (["--format", "int4", "--algorithm", "k_quant", "--zero-points"], "by the algorithm rtn alone"),
        (["--format", "int4", "--keep-float", "("], "no regular expression"),
        (["--format", "int4", "--exclude", "."], "nothing to quantize: its name matches --keep-float"),
        (["--format", "int4", "--min-sqnr", "nan"], "not a finite number of dB"),
        (
            ["--format", "int8", "--precision", "float16", "--calibrate", "calibrate0.npz"],
            "precision is for fp8, int4 and int8-weights",
        ),
        (["--format", "int8", "--calibrate", "other.npz"], "'z' is no input of the model"),
        (["--format", "int8", "--calibrate", "wide.npz"], "x"),
        (["--format", "int8", "--calibrate", "empty.npz"], "cannot be read as an .npz file"),
        (["--format", "int8", "--calibrate", "nowhere.npz"], "no such file"),
        (["--format", "int8", "--calibrate", "cut.npz"], "cannot be read as an .npz file"),
        *(
            (["--format", form, "--calibrate", f"{name}.npz"], f"{name}.npz: {reason}")
            for form in ("int8", "fp8", "int4")
            for name, reason in (
                ("nan", "output y of the float32 model is NaN in 320 of 1280 elements"),
                ("infinite", "output y of the float32 model is NaN in 320 of 1280 elements"),
                ("none", "every output of the float32 model is empty"),
            )
        ),
        (["--format", "int8", "--block-size", "32", "--calibrate", "calibrate0.npz"], "has no blocks of weights"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(
    network: Path, tmp_path: Path, options: list[str], message: str
) -> None:
    np.savez(tmp_path / "other.npz", z=np.zeros((4, 8, WIDTH), np.float32))
    np.savez(tmp_path / "wide.npz", x=np.zeros((4, 8, WIDTH + 1), np.float32))
    (tmp_path / "empty.npz").write_bytes(b"")
    (tmp_path / "cut.npz").write_bytes(network.with_name("calibrate0.npz").read_bytes()[:-40])
    x = np.ones((4, 8, WIDTH), np.float32)
    np.savez(tmp_path / "none.npz", x=x[:0])
    for name, number in (("nan", np.nan), ("infinite", np.inf)):
        x[2, 5, 7] = number
        np.savez(tmp_path / f"{name}.npz", x=x)
    files = {p.name: p for p in (*tmp_path.iterdir(), *network.parent.iterdir())}
    before = set(tmp_path.iterdir())
    result = run("quantize", network, "-o", tmp_path / "q.onnx", *[files.get(o, o) for o in options])
    assert_refused(result, message)
    assert set(tmp_path.iterdir()) == before


def test_what_is_quantized_or_optimized_already_is_refused(network: Path, tmp_path: Path) -> None:
    quantized = onnxopt.quantize(network, tmp_path / "q.onnx", format="int4").path
    assert_refused(run("quantize", quantized, "-o", tmp_path / "r.onnx", "--format", "int4"), "is quantized already")
    made = onnxopt.optimize(network, tmp_path / "artifact", archs=(), verify=False).path
    assert_refused(
        run("quantize", made / "model.onnx", "-o", tmp_path / "r.onnx", "--format", "int4"),
        "optimized by onnxopt already",
    )
    assert_refused(run("quantize", network, "-o", quantized, "--format", "int4"), "exists already")


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_fp8_of_weights_that_share_an_activation(dtype: str, tmp_path: Path) -> None:
    """One scale for both, so that a GPU multiplies them as one; models of float16 are taken too."""
    draw, storage = np.random.default_rng(0), np.dtype(dtype)
    graph = onnx.parser.parse_graph(
        """
        pair (T[batch, 24, 256] x, T[256] g) => (T[batch, 24, 256] y) {
          n = LayerNormalization(x, g, g)
          [gate] a = MatMul(n, w1)
          [up] b = MatMul(n, w2)
          s = Sigmoid(a)
          m = Mul(s, b)
          y = Add(m, x)
        }
    """.replace("T[", f"{'float' if dtype == 'float32' else dtype}[")
    )
    for k, size in enumerate((0.02, 0.08)):
        graph.initializer.append(
            numpy_helper.from_array((draw.standard_normal((256, 256)) * size).astype(storage), f"w{k + 1}")
        )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), tmp_path / "m.onnx")
    given = {"x": draw.standard_normal((2, 24, 256)).astype(storage), "g": draw.uniform(0.5, 1, 256).astype(storage)}
    found = onnxopt.quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", format="fp8", calibrate=[given])
    assert [p.node for p in found.products] == ["gate", "up"] and found.quality[0].sqnr_db > 28
    weights = {t.name: numpy_helper.to_array(t) for t in onnx.load(found.path).graph.initializer}
    scales = [weights[f"w{k}_scale"] for k in (1, 2)]
    assert scales[0] == scales[1] and scales[0].dtype == storage
    artifact = onnxopt.optimize(found.path, tmp_path / "artifact", archs=["sm_90"], data=[given])
    (product,) = [k for k in artifact.manifest.kernels if k.kind == "gemm"]
    assert product.inputs == ("float8e4m3fn", "float8e4m3fn") and product.outputs == (dtype,)
    (site,) = product.sites
    assert site.shapes[1] == "float8e4m3fn[512,256]"
    (norm,) = [k for k in artifact.manifest.kernels if k.kind == "rowwise"]
    assert norm.outputs == ("float8e4m3fn",)


def test_small_products_behind_attention_stay_as_they_are(tmp_path: Path) -> None:
    """Storing codes for them takes a kernel of its own, longer than they save."""
    graph = onnx.parser.parse_graph("""
        attention (float[1, 24, 256] x, float[256] g) => (float[1, 24, 256] y) {
          [values] v = MatMul(x, w1)
          t = Transpose<perm = [0, 2, 1]>(x)
          s = MatMul(x, t)
          p = Softmax(s)
          a = MatMul(p, v)
          [projection] o = MatMul(a, w2)
          [last] y = LayerNormalization(o, g)
        }
    """)
    draw = np.random.default_rng(0).standard_normal
    for name in ("w1", "w2"):
        graph.initializer.append(numpy_helper.from_array((draw((256, 256)) * 0.05).astype(np.float32), name))
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), tmp_path / "m.onnx")
    given = {"x": draw((1, 24, 256)).astype(np.float32), "g": np.ones(256, np.float32)}
    found = onnxopt.quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", format="fp8", calibrate=[given])
    assert [p.node for p in found.products] == ["values"]
    assert {r.node: r.reason.split(" of ")[0] for r in found.left} == {"projection": "storing codes"}
    whole = onnxopt.quantize(tmp_path / "m.onnx", tmp_path / "i.onnx", format="int8", calibrate=[given])
    assert [p.node for p in whole.products] == ["values", "projection"]
