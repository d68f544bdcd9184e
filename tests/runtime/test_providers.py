"""providers/: what the rules write for which model and GPU, and that every value has its reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
import pytest

import onnxopt
from onnxopt.artifact import manifest as manifests
from onnxopt.artifact.folder import hash_files, write_manifest
from onnxopt.codegen.architectures import ARCHS
from onnxopt.errors import ArtifactError
from onnxopt.runtime import gpus, providers
from onnxopt.runtime.providers import facts, rules, tensorrt
from tests.support.small_models import CHAIN, HEADER, NOTHING_TO_FUSE, TOKENS, write

CONVOLUTION = """
conv ({dtype}[{batch}, 3, {side}, {side}] image, {dtype}[4, 3, 3, 3] w) => ({dtype}[b, 4, h, v] y) {{
  y = Conv(image, w)
}}
"""
LOOPS = """
loops (float[n, 4] x, bool c) => (float[n, 4] y) {
  y = If (c) <then_branch = yes () => (float[n, 4] t) { t = Neg(x) }, else_branch = no () => (float[n, 4] e)
    { e = Abs(x) }>
}
"""


def model(text: str) -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(text if text.lstrip().startswith("<") else HEADER + text))


def convolution(dtype: str = "float16", batch: str = "8", side: str = "64") -> ir.Model:
    return model(CONVOLUTION.format(dtype=dtype, batch=batch, side=side))


def written(folder: Path, of: ir.Model, **options: Any) -> dict[str, dict[str, Any]]:
    providers.write(folder, of, options.pop("archs", ARCHS), **options)
    return {p.name.removesuffix(".json"): json.loads(p.read_text("utf-8")) for p in (folder / "providers").iterdir()}


def test_a_file_for_every_gpu_with_code(tmp_path: Path) -> None:
    names = set(written(tmp_path, model(CHAIN), archs=("sm_90",)))
    gpu_names = {"h100_pcie", "h100_sxm", "h200"}
    assert names == {"cpu", "cuda", *gpu_names, *(f"{n}.tensorrt" for n in gpu_names)}


def test_without_code_there_are_the_two_that_always_work(tmp_path: Path) -> None:
    assert set(written(tmp_path, model(CHAIN), archs=())) == {"cpu", "cuda"}


def test_all_architectures_are_all_gpus_but_the_refused(tmp_path: Path) -> None:
    names = set(written(tmp_path, model(CHAIN)))
    assert "v100" not in names
    assert {k for k, g in gpus.catalogue().items() if not g.refused} <= names


@pytest.mark.parametrize("of", [CHAIN, TOKENS, NOTHING_TO_FUSE, LOOPS])
def test_every_option_has_its_reason_and_is_what_ort_takes(tmp_path: Path, of: str) -> None:
    for name, data in written(tmp_path, model(of)).items():
        assert all(isinstance(v, str) for part in ("provider_options", "session_config") for v in data[part].values())
        options = {**data["provider_options"], **data["session_options"], **data["session_config"]}
        reasons = dict(data["why"])
        if name.endswith(".tensorrt"):
            assert reasons.pop("model") and reasons.pop("library")
        assert set(reasons) == set(options)
        assert all(reasons.values())
        assert providers.read(tmp_path, name) == data


def test_static_shapes_search_algorithms_exhaustively_and_dynamic_ones_do_not() -> None:
    def search(of: ir.Model) -> Any:
        return rules.cuda(facts.of(of))["provider_options"].get("cudnn_conv_algo_search")

    assert search(convolution()) == "EXHAUSTIVE"
    assert search(convolution(batch="n")) == "HEURISTIC"
    assert search(model(CHAIN)) is None  # no convolution: the option does nothing


def test_nhwc_and_fused_biases_go_together() -> None:
    def pair(of: ir.Model) -> tuple[Any, Any]:
        options = rules.cuda(facts.of(of))["provider_options"]
        return options.get("prefer_nhwc"), options.get("fuse_conv_bias")

    assert pair(convolution()) == pair(convolution("float16")) == ("1", "1")
    assert pair(convolution("bfloat16")) == (None, None)  # ONNX Runtime has no NHWC kernel
    assert pair(model(CHAIN)) == (None, None)
    transposed = "t (float[1, 3, 8, 8] x, float[3, 4, 2, 2] w{}) => (float[] y) {{ y = ConvTranspose(x, w{}) }}"
    assert pair(model(transposed.format("", ""))) == ("1", "1")
    assert pair(model(transposed.format(", float[4] b", ", b"))) == ("0", "0")


@pytest.mark.parametrize(
    ("row", "weight", "value"),
    [
        ("Conv(s, v)", "4, 3, 3", "1"),
        ("Conv<group = 3>(s, v)", "6, 1, 3", "1"),
        ("Conv<group = 2>(e, v)", "4, 2, 3", "0"),
        ("ConvTranspose(s, v)", "3, 2, 4", "0"),
    ],
)
def test_no_nhwc_where_onnxruntime_refuses_a_convolution_of_one_dim(row: str, weight: str, value: str) -> None:
    """Beside one of two dims, for which the pair would be right."""
    text = f"""c (float16[1, 3, 8, 8] x, float16[4, 3, 3, 3] w, float16[1, 3, 9] s, float16[1, 4, 9] e,
    float16[{weight}] v) => (float16[] y, float16[] z) {{ y = Conv(x, w) z = {row} }}"""
    options = rules.cuda(facts.of(model(text)))["provider_options"]
    assert (options["prefer_nhwc"], options["fuse_conv_bias"]) == (value, value)


@pytest.mark.parametrize(
    ("dtype", "group", "weight", "value"),
    [("float", 4, "4, 1, 3, 3", "0"), ("float16", 4, "4, 1, 3, 3", "1"), ("float", 2, "4, 2, 3, 3", "1")],
)
def test_no_nhwc_beside_depthwise_convolutions_of_float32(dtype: str, group: int, weight: str, value: str) -> None:
    text = f"c ({dtype}[1, 4, 8, 8] x, {dtype}[{weight}] w) => ({dtype}[] y) {{ y = Conv<group = {group}>(x, w) }}"
    options = rules.cuda(facts.of(model(text)))["provider_options"]
    assert (options["prefer_nhwc"], options["fuse_conv_bias"]) == (value, value)


def test_no_nhwc_where_shapes_are_computed_from_shapes() -> None:
    """ONNX Runtime 1.31 then computes them on the device, and refuses to capture a CUDA graph."""
    of_shape = """c (float16[n, 3, 8, 8] x, float16[4, 3, 3, 3] w, float16[1, 1] one) => (float16[] y, float16[] z)
    <int64[1] four = {4}> {
        y = Conv(x, w)
        n = Shape <end = 1> (x)
        dims = Concat <axis = 0> (n, four)
        z = Expand(one, dims)
    }"""
    of = facts.of(model(of_shape))
    options = rules.cuda(of)["provider_options"]
    assert (options["prefer_nhwc"], options["fuse_conv_bias"]) == ("0", "0")
    assert not of.blocking  # the shapes are computed on the host, which a CUDA graph allows
    assert not facts.of(convolution(batch="n")).computes_shapes


def test_tf32_by_architecture_and_only_for_float32() -> None:
    def tf32(of: ir.Model, key: str) -> Any:
        return rules.cuda(facts.of(of), gpus.catalogue()[key])["provider_options"].get("use_tf32")

    assert tf32(convolution("float"), "a100_40gb") == "1"
    assert tf32(convolution("float"), "t4") == "0"
    assert tf32(convolution("float16"), "a100_40gb") is None


def test_what_prevents_a_cuda_graph_is_named(tmp_path: Path) -> None:
    data = written(tmp_path, model(LOOPS))["h200"]
    assert data["cuda_graph"]["qualifies"] is False
    assert "If decides on the host" in data["cuda_graph"]["blocking"][0]["reason"]
    assert "provider_options" not in data["cuda_graph"]


def test_a_cuda_graph_is_never_on_by_itself(tmp_path: Path) -> None:
    for name, data in written(tmp_path, model(CHAIN)).items():
        if name not in ("cpu",) and not name.endswith(".tensorrt"):
            assert data["provider_options"]["enable_cuda_graph"] == "0"
            assert data["cuda_graph"]["provider_options"] == {"enable_cuda_graph": "1"}
            assert data["cuda_graph"]["qualifies"] is True


# --- TensorRT --------------------------------------------------------------------------------------------------------


def profiles(of: ir.Model, shapes: dict[str, tuple[int, ...]] | None = None) -> list[str]:
    options = tensorrt.tensorrt(facts.of(of), gpus.catalogue()["l4"], shapes or {})["provider_options"]
    return [options[f"trt_profile_{kind}_shapes"] for kind in ("min", "opt", "max")]


def test_profiles_cover_every_dynamic_input_and_no_static_one() -> None:
    assert profiles(model(TOKENS)) == ["ids:1x1", "ids:8x128", "ids:32x512"]
    assert profiles(model(CHAIN)) == ["x:1x8", "x:8x8", "x:32x8"]  # bias and weight are static
    assert profiles(convolution(side="s")) == ["image:8x3x64x64", "image:8x3x224x224", "image:8x3x512x512"]


def test_given_shapes_are_the_usual_ones_and_inside_the_range() -> None:
    assert profiles(model(TOKENS), {"ids": (64, 2048)}) == ["ids:1x1", "ids:64x2048", "ids:64x2048"]
    assert profiles(convolution(batch="n"), {"n": (2,)}) == ["image:1x3x64x64", "image:2x3x64x64", "image:32x3x64x64"]


def test_dims_that_are_sums_stay_consistent() -> None:
    grown = model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[batch, past] a, float[batch, new] b) => (float[batch, all] y) { y = Concat<axis = 1>(a, b) }"""
    )
    grown.graph.inputs[1].shape = ir.Shape(["batch", "past + 1"])
    assert profiles(grown) == ["a:1x1,b:1x2", "a:8x128,b:8x129", "a:32x512,b:32x513"]


def test_a_static_model_needs_no_profile() -> None:
    options = tensorrt.tensorrt(facts.of(convolution()), gpus.catalogue()["l4"], {})["provider_options"]
    assert not any(name.startswith("trt_profile") for name in options)


def test_engines_are_kept_apart_by_architecture_and_release() -> None:
    data = tensorrt.tensorrt(facts.of(model(CHAIN)), gpus.catalogue()["l4"], {})
    release = tensorrt.linked_release() or "10"
    assert data["provider_options"]["trt_engine_cache_path"] == f"tensorrt_cache/sm_89-trt{release}/engines"
    assert data["provider_options"]["trt_timing_cache_path"] == f"tensorrt_cache/sm_89-trt{release}/timing"
    assert set(data["path_options"]) <= set(data["provider_options"])


def test_tensorrt_takes_the_plain_graph_and_computes_in_its_dtype() -> None:
    data = tensorrt.tensorrt(facts.of(convolution()), gpus.catalogue()["l4"], {})
    assert data["model"] == ["model.portable.onnx", "model.onnx"]
    assert data["library"] is False
    assert data["fallback_providers"][0]["provider"] == "CUDAExecutionProvider"
    if (tensorrt.linked_release() or "10") == "10":
        assert data["provider_options"]["trt_fp16_enable"] == "1"


# What the TensorRT providers of ORT 1.21.1, 1.22.0, 1.23.2, 1.26.0 and 1.31.1 all take, of what is used here.
TENSORRT_OPTIONS = {
    "trt_engine_cache_enable", "trt_engine_cache_path", "trt_timing_cache_enable", "trt_timing_cache_path",
    "trt_cuda_graph_enable", "trt_fp16_enable", "trt_profile_min_shapes", "trt_profile_opt_shapes",
    "trt_profile_max_shapes",
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["float", "float16", "bfloat16"])
def test_every_tensorrt_option_is_one_that_ort_takes(dtype: str) -> None:
    of = convolution(dtype, batch="n", side="s")
    data = tensorrt.tensorrt(facts.of(of), gpus.catalogue()["l4"], {})
    newer = set(data["provider_options"]) - TENSORRT_OPTIONS
    assert newer <= set(tensorrt.SINCE)
    assert data.get("onnxruntime") == ("1.23" if newer else None)
    library = Path(ort.__file__).parent / "capi" / "libonnxruntime_providers_tensorrt.so"
    if library.is_file():  # GPU builds have it, and say there what they take
        known = library.read_bytes()
        assert [name for name in data["provider_options"] if name.encode() not in known] == []


def test_an_option_that_this_ort_does_not_know_yet_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: Path
) -> None:
    made = onnxopt.optimize(write(tmp_path / "m.onnx", CHAIN), tmp_path / "made", archs=["sm_89"], verify=False).path
    data = providers.read(made, "l4.tensorrt") | {"onnxruntime": "99.0"}
    (made / "providers" / "l4.tensorrt.json").write_text(providers.to_json(data))
    manifest = manifests.load(made)
    write_manifest(made, manifest.model_copy(update={"files": hash_files(made)}))
    monkeypatch.setattr("onnxopt.artifact.session.check_providers", lambda _: None)
    with pytest.raises(ArtifactError, match=r"needs ONNX Runtime 99\.0 to take l4\.tensorrt\.json"):
        onnxopt.load(made, configuration="l4.tensorrt")


def test_an_unknown_rank_is_refused_and_said(tmp_path: Path) -> None:
    unknown = model(NOTHING_TO_FUSE)
    unknown.graph.inputs[0].shape = None
    notes = providers.write(tmp_path, unknown, ("sm_90",))
    assert notes == (
        "no configuration for TensorRT: the rank of input x is not declared, so that it has no shape profile",
    )
    assert not (tmp_path / "providers" / "h200.tensorrt.json").exists()
    assert (tmp_path / "providers" / "h200.json").exists()


QUANTIZED = """
quantized (float[n, 4] x) => (float[n, 4] y) <float s = {{0.1}}, uint8 z = {{3}}, {weight}> {{
  q = QuantizeLinear(x, s, z)  a = DequantizeLinear(q, s, z)  b = DequantizeLinear{attributes}(w, {scale})
  y = MatMul(a, b)
}}
"""
_BYTES = "int8[4, 4] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}"


@pytest.mark.parametrize(
    ("weight", "scale", "attributes", "folds"),
    [
        (_BYTES, "s", "", True),
        (f"{_BYTES}, float[2, 4] t = {{1, 2, 3, 4, 5, 6, 7, 8}}", "t", "<axis = 0, block_size = 2>", False),
        (_BYTES.replace("int8", "int4"), "s", "", False),
    ],
)
def test_constants_are_dequantized_at_load_unless_they_are_packed(
    tmp_path: Path, weight: str, scale: str, attributes: str, folds: bool
) -> None:
    text = QUANTIZED.format(weight=weight, scale=scale, attributes=attributes)
    of = model(f'<ir_version: 10, opset_import: ["" : 21]>\n{text}')
    configurations = written(tmp_path, of, archs=("sm_90",))
    key = "session.disable_quant_qdq"
    for name, data in configurations.items():
        is_cuda = data["provider"] == "CUDAExecutionProvider"
        assert (data["session_config"].get(key) == "1") == (folds and is_cuda), name
        assert (key in data["why"]) == (folds and is_cuda)


def test_the_option_leaves_no_dequantize_linear_of_a_constant(tmp_path: Path) -> None:
    of = model(
        f'<ir_version: 10, opset_import: ["" : 21]>\n{QUANTIZED.format(weight=_BYTES, scale="s", attributes="")}'
    )
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "saved.onnx")
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    ort.InferenceSession(ir.to_proto(of).SerializeToString(), options, providers=["CPUExecutionProvider"])
    saved = ir.load(tmp_path / "saved.onnx")
    assert [node.op_type for node in saved.graph].count("DequantizeLinear") == 1
    assert "MatMul" in [node.op_type for node in saved.graph]
