"""Activations in a convolution's kernel, and transposed convolutions: one kernel, two kernels, ONNX Runtime and torch.

    python -m benchmarks.kernels.epilogues prepare DIR               on any machine, without a GPU
    python -m benchmarks.kernels.epilogues run DIR --out OUT.json    on the GPU machine: onnxruntime, torch, onnx

Layers are float16 and NHWC (benchmarks/cases/epilogues.py). Every way is compared with float64 first.

fused     the activation in cuDNN's kernel, also where the kind leaves it to another one
apart     the convolution by cuDNN, the activation by a kernel of ours behind it
dynamic   with a symbolic batch: cuDNN compiles nothing
ort       ONNX Runtime with prefer_nhwc, and with fuse_conv_bias where it takes the graph
torch     F.conv2d in channels_last and what follows, in eager mode

`first` and `again` are the milliseconds in which a session opens and runs once: with an empty cache of plans, and in
another process with a full one.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import onnx
from onnx import numpy_helper

from benchmarks.cases.epilogues import CASES
from benchmarks.support.arguments import command
from cases.convolution import Layer
from tests.support.wrong_bodies import with_wrong_bodies

_ARCHIVE = "models.tar.xz"
_KEPT_BYTES = 32  # larger initializers of 16 bits are weights, which are filled in on the other machine
_RELATIVE, _ABSOLUTE = 4e-3, 4e-3  # storage is rounded behind every kernel
_WAYS = ("fused", "apart", "dynamic", "ort")
_PAIR = {"prefer_nhwc": "1", "fuse_conv_bias": "1"}


def _behind(*_: object) -> str:
    return "A kernel behind the convolution is measured"


def _source(layer: Layer, way: str) -> Layer:
    return dataclasses.replace(layer, symbolic=("N",)) if way == "dynamic" else layer


def prepare(folder: pathlib.Path, arch: str) -> None:
    """Write the models of all layers in all ways without their weights, and one library."""
    from benchmarks.support.collection import Collection
    from onnxopt.kinds.convolution import steps

    collection, models = Collection(), {}
    for k, layer in enumerate(CASES.values()):
        for way in _WAYS:
            model = _source(layer, way).model(casts=False)
            if way != "ort":
                patches = {"fused": ("_why_not_compiled", None), "apart": ("_take_activation", _behind())}
                name, result = patches.get(way, ("_TITLES", None))
                changed = mock.patch.object(steps, name, return_value=result) if way in patches else mock.MagicMock()
                with changed:
                    model = _optimized(model, collection)
                model = with_wrong_bodies(model)
            models[f"{k}.{way}.onnx"] = _without_weights(model)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name, tarfile.open(folder / _ARCHIVE, "w:xz") as archive:
        for file, model in models.items():
            (pathlib.Path(name) / file).write_bytes(model.SerializeToString())
        archive.add(name, ".")
    collection.write_library(folder, [arch])
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{len(CASES)} layers, {len(collection.kernels)} kernels, {size / 1e6:.1f} MB")


def _optimized(model: onnx.ModelProto, collection: Any) -> onnx.ModelProto:
    """A layer that ends with its convolution is in the normal form already; the pipeline would turn its output."""
    if model.graph.node[-1].op_type != "Transpose":
        return collection.optimize(model)[0]
    import onnx_ir as ir

    from benchmarks.support.fusing import fuse, outlined

    changed = ir.from_proto(model)
    for kernel in outlined(changed, fuse(changed)):
        collection.kernels.setdefault(kernel.name, kernel)
    return ir.to_proto(changed)


def _without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT16 and len(tensor.raw_data) > _KEPT_BYTES:
            tensor.ClearField("raw_data")
    return model


def _with_weights(path: pathlib.Path, layer: Layer) -> bytes:
    """Kernels read weights in the order of Layer.weights."""
    model = onnx.load(path)
    weight, bias = layer.weights()
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT16 and not tensor.raw_data:
            values = weight if len(tensor.dims) > 1 else layer.slopes() if "slopes" in tensor.name else bias
            tensor.CopyFrom(numpy_helper.from_array(values.reshape(tensor.dims).astype(np.float16), tensor.name))
    return model.SerializeToString()


def _measure(k: int, layer: Layer, root: pathlib.Path, library: str) -> dict[str, Any]:
    import torch

    from benchmarks.support import gpu_timing as timing

    (ho, wo), _ = layer.placed()
    shapes = {"x": (layer.n, layer.h, layer.w, layer.c), "residual": (layer.n, ho, wo, layer.k)}
    names = ["x", *(["residual"] if layer.residual else [])]
    moved = 2 * sum(int(np.prod(shapes[name])) for name in [*names, "residual"])
    sets = timing.rotation(moved, "cuda")
    inputs = [{n: torch.randn(shapes[n], device="cuda").half() for n in names} for _ in range(sets)]
    expected = _reference(layer, inputs[0])
    row: dict[str, Any] = {"copy": timing.copy_microseconds(moved, sets), "worst": {}}
    for way in _WAYS:
        model = _with_weights(root / f"{k}.{way}.onnx", layer)
        options = {} if way != "ort" else _accepted(model)

        def opened(stream: Any, model: bytes = model, way: str = way, options: dict[str, str] = options) -> Any:
            used = None if way == "ort" else library
            return timing.session(model, used, "cuda", stream=stream, options=options)

        try:
            plain = opened(None)
            name = plain.get_outputs()[0].name
            outputs = [{name: timing.poisoned(shapes["residual"], torch.float16, "cuda")} for _ in range(sets)]
            torch.cuda.synchronize()
            timing.bound(plain, inputs[0], outputs[0])()
            row["worst"][way] = timing.disagreement(outputs[0][name], expected, _RELATIVE, _ABSOLUTE)
            row[way] = timing.session_microseconds(opened, inputs, outputs)
        except Exception as error:  # noqa: BLE001 - the other ways' numbers are worth having
            row["worst"][way], row[way] = f"{type(error).__name__}: {error}"[:200], None
    runs = _torch_runs(layer, inputs)
    row["torch"] = timing.microseconds_in_graph(runs, torch.cuda.Stream())
    return row


def _accepted(model: bytes) -> dict[str, str]:
    """The pair of options, or prefer_nhwc alone: releases refuse a ConvTranspose with a bias under the pair."""
    from benchmarks.support import gpu_timing as timing

    try:
        timing.session(model, None, "cuda", options=_PAIR)
    except Exception:  # noqa: BLE001 - whatever it says, it does not take the graph
        return {"prefer_nhwc": "1"}
    return _PAIR


def _torch_layer(layer: Layer, wide: bool) -> Callable[..., Any]:
    """y [N, Ho, Wo, K] of x and the residual, in float64 or float16."""
    import torch
    import torch.nn.functional as F

    dtype = torch.float64 if wide else torch.float16
    weight, bias = (torch.from_numpy(v).cuda().to(dtype) for v in layer.weights())
    weight = weight.permute(0, 3, 1, 2)
    slopes = torch.from_numpy(layer.slopes()).cuda().to(dtype)
    top, left, _, _ = layer.pads  # the same at the other side
    activations = {
        "": lambda v: v, "relu": F.relu, "silu": F.silu, "clip": F.relu6, "hardswish": F.hardswish,
        "leaky_relu": lambda v: F.leaky_relu(v, 0.125), "prelu": lambda v: F.prelu(v, slopes),
    }  # fmt: skip

    def run(given: dict[str, Any]) -> Any:
        x = given["x"].to(dtype).permute(0, 3, 1, 2)
        if layer.transposed:
            y = F.conv_transpose2d(x, weight, bias, layer.strides, (top, left), layer.output_padding)
        else:
            y = F.conv2d(x, weight, bias, layer.strides, (top, left))
        y = activations[layer.activation](y).permute(0, 2, 3, 1)
        return y + given["residual"] if layer.residual else y

    return run


def _reference(layer: Layer, given: dict[str, Any]) -> Any:
    return _torch_layer(layer, wide=True)(given)


def _torch_runs(layer: Layer, inputs: list[dict[str, Any]]) -> list[Callable[[], object]]:
    run = _torch_layer(layer, wide=False)
    return [lambda given=given: run(given) for given in inputs]  # type: ignore[misc]


def opens(root: pathlib.Path, library: str, only: list[str]) -> float:
    """Milliseconds until every layer's fused session has run once."""
    import torch

    from benchmarks.support import gpu_timing as timing

    torch.zeros(1, device="cuda")
    total = 0.0
    for k, (name, layer) in enumerate(CASES.items()):
        if only and not any(part in name for part in only):
            continue
        model = _with_weights(root / f"{k}.fused.onnx", layer)
        given = {n: v.astype(np.float16) for n, v in layer.feeds().items()}
        begin = time.perf_counter()
        timing.session(model, library, "cuda").run(None, given)
        total += time.perf_counter() - begin
    return 1e3 * total


def run(folder: pathlib.Path, out: pathlib.Path | None, only: list[str]) -> int:
    """Measure the layers; 0 if all ways agree with float64."""
    import torch  # noqa: F401 - loads the libraries of CUDA that ONNX Runtime looks for

    from benchmarks.support import gpu_timing as timing

    library, rows = timing.library(folder), {}
    with tempfile.TemporaryDirectory() as name, tarfile.open(folder / _ARCHIVE) as archive:
        root = pathlib.Path(name)
        archive.extractall(root, filter="data")
        environment = {**os.environ, "XDG_CACHE_HOME": str(root / "cache")}
        verb = [sys.executable, "-m", "benchmarks.kernels.epilogues", "open", str(root), "--library", library]
        for when in ("first", "again"):
            done = subprocess.run(
                [*verb, "--only", *only], env=environment, capture_output=True, text=True, check=False
            )
            print(f"{when}: {done.stdout.strip()} ms {done.stderr.strip()[-300:]}", flush=True)
        os.environ["XDG_CACHE_HOME"] = environment["XDG_CACHE_HOME"]
        for k, (case, layer) in enumerate(CASES.items()):
            if only and not any(part in case for part in only):
                continue
            rows[case] = _measure(k, layer, root, library)
            if out is not None:
                out.write_text(json.dumps(rows, indent=1))
    return _report(rows)


def _report(rows: dict[str, dict[str, Any]]) -> int:
    columns = ("copy", *_WAYS, "torch")
    print("| layer, us | " + " | ".join(columns) + " | worst |\n|" + "---|" * (len(columns) + 2))
    bad = []
    for name, row in rows.items():
        times = [f"{row[c]:.1f}" if row.get(c) is not None else "-" for c in columns]
        failed = {way: worst for way, worst in row["worst"].items() if not (isinstance(worst, float) and worst <= 1)}
        bad += [f"{name}, {way}: {worst}" for way, worst in failed.items() if way != "ort"]
        worst = max((w for w in row["worst"].values() if isinstance(w, float)), default=float("nan"))
        print(f"| {name} | {' | '.join(times)} | {worst:.2f} |")
    print("\n".join(["FAILED:", *bad]) if bad else "all agree")
    return 1 if bad else 0


def main() -> int:
    parser, (_, ran, opened) = command(__doc__, "open")
    ran.add_argument("--out", type=pathlib.Path, help="JSON, rewritten after every layer")
    opened.add_argument("--library")
    for verb in (ran, opened):
        verb.add_argument("--only", nargs="*", default=[], help="parts of names")
    args = parser.parse_args()
    if args.verb == "prepare":
        prepare(args.folder, args.arch)
        return 0
    if args.verb == "open":
        print(f"{opens(args.folder, args.library, args.only):.0f}")
        return 0
    return run(args.folder, args.out, args.only)


if __name__ == "__main__":
    sys.exit(main())
