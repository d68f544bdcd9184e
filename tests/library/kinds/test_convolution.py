"""Convolutions on the GPU against float64, and what calls refuse."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state as errors

from cases.convolution import SAME, SLOPE, Layer
from cases.models import fuse, outline
from onnxopt.program.convolution import Convolution, DenseConvolutionVariant, DenseTile
from onnxopt.program.window import Window
from tests.support.custom_ops import custom_ops_artifact as artifact
from tests.support.fakes import idle_gpu
from tests.support.wrong_bodies import with_wrong_bodies

pytestmark = pytest.mark.usefixtures("library")
ON_GPU = {"float32": 4e-3, "float16": 2e-3, "bfloat16": 1.6e-2}  # of the largest |value|; float32 as TF32


def meaning(layer: Layer) -> Convolution:
    before = 2 + layer.bias + bool(layer.residual)
    count = before + (layer.activation == "prelu")
    return Convolution(
        (layer.dtype,) * count, (layer.dtype,),
        window=Window(layer.kernel, layer.strides, layer.dilations, layer.pads, layer.auto_pad), group=layer.group,
        bias=2 if layer.bias else None, residual=before - 1 if layer.residual else None,
        residual_last=layer.residual == "last", activation=layer.activation or "none",
        activation_value={"clip": 6.0, "leaky_relu": SLOPE}.get(layer.activation, 0.0), transposed=layer.transposed,
        output_padding=layer.output_padding, slope=before if layer.activation == "prelu" else None,
    )  # fmt: skip


def row(convolution: Convolution, **fields: Any) -> dict[str, Any]:
    convolution.verify()
    return {
        "name": artifact.NAME,
        "kind": "convolution",
        **convolution.to_json(),
        "cpu": False,
        "variants": [],
        **fields,
    }


@dataclasses.dataclass(frozen=True)
class Call:
    """dims: of the inputs, as the graph states them."""

    convolution: Convolution
    dims: list[list[Any]]
    arrays: list[np.ndarray]


def outcomes(folder: Path, calls: list[Call]) -> list[dict[str, tuple[int, ...]] | str]:
    """The shape of the output of each call, or the text of the error."""
    rows, jobs = [], []
    for k, call in enumerate(calls):
        rows.append(row(call.convolution, name=f"Fused_{k:08x}"))
        inputs, outputs = list(zip(call.convolution.inputs, call.dims, strict=True)), call.convolution.outputs
        body = artifact.wrong_body(*outputs)
        model = artifact.model(body, inputs, [(outputs[0], None)], name=rows[-1]["name"])
        jobs.append((model, [{f"x{n}": array for n, array in enumerate(call.arrays)}]))
    found = idle_gpu.run(folder / "run", idle_gpu.document_of(*rows), jobs)
    return [one if isinstance(one, str) else {name: y.shape for name, y in one.items()} for (one,) in found]


def arrays(layer: Layer) -> list[np.ndarray]:
    weight, bias = layer.weights()
    feeds = layer.feeds()
    matrix = layer.kernel == (1, 1) and layer.group == 1 and not layer.transposed
    given = [feeds["x"], weight.reshape(layer.k, -1) if matrix else weight]
    given += [bias] if layer.bias else []
    given += [feeds["residual"]] if layer.residual else []
    given += [layer.slopes()] if layer.activation == "prelu" else []
    outside = "float32" if layer.dtype == "bfloat16" else layer.dtype
    return [a.astype(outside) for a in given]


MISFITS = [
    ([(1, 2, 9, 16), (24, 3, 3, 16), (24,)], "Invalid input shape, the kernel is larger than the padded input"),
    ([(1, 9, 9, 15), (24, 3, 3, 16), (24,)], "the weight does not fit the input"),
    ([(1, 9, 9, 16), (24, 3, 4, 16), (24,)], "the weight does not fit the input"),
    ([(1, 9, 9, 16), (24, 3, 3, 16), (23,)], "the bias has not one number a channel"),
    ([(9, 9, 16), (24, 3, 3, 16), (24,)], "not [N, H, W, C]"),
]


def test_shapes_that_do_not_fit(tmp_path: Path) -> None:
    calls = []
    for shapes, _ in MISFITS:
        names = [[f"d{k}{i}" for i in range(len(s))] for k, s in enumerate(shapes)]
        calls.append(Call(meaning(Layer()), names, [np.zeros(s, np.float32) for s in shapes]))
    for k, (said, (_, problem)) in enumerate(zip(outcomes(tmp_path, calls), MISFITS, strict=True)):
        assert isinstance(said, str) and problem in said and "x [" in said and f"Fused_{k:08x}" in said


_TRANSPOSED = Layer(transposed=True)
EDGES = (  # and n, h and w of the input
    (Layer(pads=(2, 2, 2, 2)), (2, 0, 5)),  # no rows, and a result of the padding
    (Layer(), (2, 0, 5)),
    (Layer(), (0, 5, 5)),
    (Layer(), (0, 2, 5)),  # refused, although there is nothing to compute
    (Layer(), (1, 2, 5)),
    (Layer(pads=SAME, dilations=(2, 2)), (1, 2, 5)),
    (Layer(auto_pad="SAME_UPPER"), (1, 0, 5)),
    (Layer(auto_pad="SAME_LOWER", strides=(2, 3)), (1, 1, 1)),
    (Layer(auto_pad="VALID"), (1, 2, 2)),
    (Layer(kernel=(1, 1)), (1, 0, 5)),
    (Layer(kernel=(1, 7), pads=(0, 6, 0, 0), strides=(1, 5)), (1, 3, 1)),
    (Layer(group=4, strides=(4, 4)), (1, 3, 9)),
    (_TRANSPOSED, (0, 3, 3)),
    (_TRANSPOSED, (1, 0, 3)),
    (dataclasses.replace(_TRANSPOSED, strides=(2, 2)), (1, 0, 3)),
    (dataclasses.replace(_TRANSPOSED, strides=(3, 3)), (1, 0, 3)),
    (dataclasses.replace(_TRANSPOSED, pads=(3, 3, 3, 3)), (1, 3, 3)),
    (dataclasses.replace(_TRANSPOSED, pads=(2, 0, 2, 0)), (1, 1, 3)),
    (dataclasses.replace(_TRANSPOSED, kernel=(1, 2), strides=(3, 4), pads=(0, 1, 0, 0)), (1, 1, 1)),
    (dataclasses.replace(_TRANSPOSED, kernel=(1, 1), pads=SAME), (1, 1, 1)),
)


def test_edges_are_those_of_onnx_runtime(tmp_path: Path) -> None:
    """The same shape of the result, or a refusal of both."""
    layers = [dataclasses.replace(layer, symbolic=("N", "H", "W")) for layer, _ in EDGES]
    calls = []
    for layer, (_, (n, h, w)) in zip(layers, EDGES, strict=True):
        _, weight, bias = arrays(layer)
        x = np.random.default_rng(1).standard_normal((n, h, w, layer.c)).astype(np.float32)
        dims = [["N", "H", "W", layer.c], list(weight.shape), [layer.k]]
        calls.append(Call(meaning(layer), dims, [x, weight, bias]))
    settings = ort.SessionOptions()
    settings.log_severity_level = 4
    for layer, call, ours in zip(layers, calls, outcomes(tmp_path, calls), strict=True):
        theirs = ort.InferenceSession(layer.model().SerializeToString(), settings, providers=["CPUExecutionProvider"])
        try:
            (expected,) = theirs.run(None, {"x": call.arrays[0]})
        except (errors.InvalidArgument, errors.Fail):
            assert re.search("kernel is larger than|takes away the whole result", str(ours)), call
        else:
            assert ours == {"y0": expected.shape}, call


def test_entry_points_are_refused(tmp_path: Path) -> None:
    entry = DenseConvolutionVariant("s", "", 32, 8, 1, 128, tile=DenseTile(32, 32, 2, 16, 1)).to_json()
    described = idle_gpu.document_of(row(meaning(Layer()), variants=[entry]))
    idle_gpu.assert_refused(tmp_path, described, "is of a convolution that no kernel of ours runs")


def gpu_session(folder: Path, layer: Layer, **options: str) -> ort.InferenceSession:
    """Of the layer as onnxopt outlines it, without the function's body: only the library can run it."""
    model = ir.from_proto(layer.model())
    made = [k for k in outline(model, fuse(model)) if k.kind.name in ("convolution", "gemm")]  # gemm: some of 1x1
    rows = [{"name": k.name, "kind": k.kind.name, **k.program.to_json(), "cpu": False, "variants": []} for k in made]
    proto = ir.to_proto(model)
    proto = with_wrong_bodies(proto, [made[0].name])
    settings = ort.SessionOptions()
    settings.register_custom_ops_library(str(artifact.write(folder, rows)))
    providers = [("CUDAExecutionProvider", options), "CPUExecutionProvider"]
    return ort.InferenceSession(proto.SerializeToString(), settings, providers=providers)


def assert_close(found: np.ndarray, layer: Layer, feeds: dict[str, np.ndarray], tolerance: float) -> None:
    expected = layer.expected(feeds)
    scale = np.abs(expected).max(initial=1.0)
    np.testing.assert_allclose(found.astype(np.float64), expected, atol=tolerance * scale, rtol=0)


@pytest.mark.gpu
def test_without_tf32_on_the_gpu(tmp_path: Path) -> None:
    layer = Layer(c=64, k=64, pads=SAME, residual="before", activation="relu")
    assert_close(gpu_session(tmp_path, layer, use_tf32="0").run(None, layer.feeds())[0], layer, layer.feeds(), 1e-5)


def handmade(folder: Path, layer: Layer, shapes: list[list[Any]], **options: str) -> ort.InferenceSession:
    """Of a meaning that the kind may leave to other kernels, with shapes that may be names."""
    settings = ort.SessionOptions()
    settings.register_custom_ops_library(str(artifact.write(folder, [row(meaning(layer))])))
    providers = [("CUDAExecutionProvider", options), "CPUExecutionProvider"]
    return ort.InferenceSession(handmade_model(layer, shapes), settings, providers=providers)


def handmade_model(layer: Layer, shapes: list[list[Any]]) -> bytes:
    convolution = meaning(layer)
    inputs = list(zip(convolution.inputs, shapes, strict=True))
    body = artifact.wrong_body(*convolution.outputs)
    return bytes(artifact.model(body, inputs, [(convolution.outputs[0], None)]).SerializeToString())


@pytest.mark.gpu
@pytest.mark.parametrize("residual", ["", "before", "last"])
@pytest.mark.parametrize("activation", ["silu", "clip", "leaky_relu", "hardswish", "prelu"])
def test_an_epilogue_that_cudnn_has_no_exact_engine_for_on_the_gpu(
    tmp_path: Path, residual: str, activation: str
) -> None:
    """Its kernels with these need tensor cores: without TF32 the epilogue runs behind the convolution."""
    layer = Layer(c=64, k=64, pads=SAME, residual=residual, activation=activation)
    given = arrays(layer)
    ready = handmade(tmp_path, layer, [list(a.shape) for a in given], use_tf32="0")
    assert_close(artifact.run(ready, given)[0], layer, layer.feeds(), 1e-5)


@pytest.mark.gpu
def test_no_samples_and_no_rows_on_the_gpu(tmp_path: Path) -> None:
    layer = Layer(pads=(2, 2, 2, 2), activation="relu")
    ready = handmade(tmp_path, layer, [["N", "H", 11, 16], [24, 3, 3, 16], [24]])
    x, weight, bias = arrays(layer)
    assert artifact.run(ready, [x[:0], weight, bias])[0].shape == (0, 11, 13, 24)
    (found,) = artifact.run(ready, [x[:, :0], weight, bias])
    np.testing.assert_array_equal(found, np.broadcast_to(np.maximum(bias, 0), (2, 2, 13, 24)))
    with pytest.raises(Exception, match="the kernel is larger than the padded input"):
        artifact.run(
            handmade(tmp_path / "bare", Layer(), [["N", "H", 11, 16], [24, 3, 3, 16], [24]]),
            [
                x[:, :2],
                weight,
                bias,
            ],
        )


@pytest.mark.gpu
def test_shapes_in_a_loop_on_the_gpu(tmp_path: Path) -> None:
    layer = Layer(pads=SAME, dtype="float16", residual="before", activation="relu", symbolic=("N", "H", "W"))
    ready = gpu_session(tmp_path, layer)
    for k in range(15):
        n, h, w = ((1, 8, 8), (4, 14, 10), (2, 23, 17), (3, 1, 5), (8, 32, 32))[k % 5]
        at = dataclasses.replace(layer, n=n, h=h, w=w)
        assert_close(ready.run(None, at.feeds(k))[0], at, at.feeds(k), ON_GPU["float16"])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("activation", ["", "relu", "clip", "leaky_relu", "hardswish", "prelu"])
@pytest.mark.parametrize("transposed", [False, True])
def test_epilogues_of_shapes_that_come_and_go_on_the_gpu(
    tmp_path: Path, dtype: str, activation: str, transposed: bool
) -> None:
    """Where cuDNN would compile, the epilogue runs behind the convolution."""
    layer = Layer(c=64, k=64, pads=SAME, dtype=dtype, activation=activation, transposed=transposed, n=3, h=5)
    given = arrays(layer)
    ready = handmade(tmp_path, layer, [["N", "H", "W", 64], *(list(a.shape) for a in given[1:])])
    assert_close(artifact.run(ready, given)[0], layer, layer.feeds(), ON_GPU[dtype])


@pytest.mark.gpu
def test_a_kept_plan_gives_the_same_bits_on_the_gpu(tmp_path: Path) -> None:
    """The first process compiles and keeps the plan, the second one reads it."""
    layer = Layer(c=64, k=64, pads=SAME, dtype="float16", activation="hardswish")
    given = arrays(layer)
    np.savez(tmp_path / "given.npz", *given)
    handmade(tmp_path, layer, [list(a.shape) for a in given])  # writes the library
    model = handmade_model(layer, [list(a.shape) for a in given])
    (tmp_path / "model.onnx").write_bytes(model)
    script = (
        "import sys, numpy as np, onnxruntime as ort\n"
        "ort.preload_dlls()\n"
        "folder, result = sys.argv[1:]\n"
        "options = ort.SessionOptions()\n"
        "options.register_custom_ops_library(folder + '/libonnxopt_ops.so')\n"
        "given = list(np.load(folder + '/given.npz').values())\n"
        "session = ort.InferenceSession(folder + '/model.onnx', options, providers=['CUDAExecutionProvider'])\n"
        "names = [i.name for i in session.get_inputs()]\n"
        "np.save(result, session.run(None, dict(zip(names, given)))[0])\n"
    )
    found = []
    for k in range(2):
        path = tmp_path / f"{k}.npy"
        environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
        subprocess.run([sys.executable, "-c", script, str(tmp_path), str(path)], check=True, env=environment)
        found.append(np.load(path))
    assert len(list((tmp_path / "cache" / "onnxopt" / "plans").iterdir())) == 1
    np.testing.assert_array_equal(*found)
    assert_close(found[0], layer, layer.feeds(), ON_GPU["float16"])


@pytest.mark.gpu
def test_a_measured_plan_is_kept_on_the_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first session measures and writes the file, which a library beside it then goes by."""
    layer, written = Layer(c=64, k=64, pads=SAME, dtype="float16", activation="relu"), tmp_path / "conv_plans.json"
    monkeypatch.setenv("ONNXOPT_CONV_TUNE", str(written))
    measuring = gpu_session(tmp_path / "measuring", layer)
    assert_close(measuring.run(None, layer.feeds())[0], layer, layer.feeds(), ON_GPU["float16"])
    (entry,) = json.loads(written.read_text())["entries"]
    assert entry["convolution"] == "float16 x 2x9x11x64 w 64x3x3x64 y 9x11 pads 1x1x1x1 bias relu"
    assert 0 < entry["microseconds"] <= entry["heuristic_microseconds"]
    monkeypatch.delenv("ONNXOPT_CONV_TUNE")
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "conv_plans.json").write_text(written.read_text())
    found = gpu_session(tmp_path / "beside", layer).run(None, layer.feeds())[0]
    assert_close(found, layer, layer.feeds(), ON_GPU["float16"])
