"""Dense convolution layers of the open networks: ours, cuDNN alone, cuBLASLt alone, torch in channels_last, a copy.

    python -m benchmarks.kernels.convolutions prepare DIR               on any machine, without a GPU
    python -m benchmarks.kernels.convolutions run DIR --out OUT.json    on the GPU machine: onnxruntime, torch, onnx

The layers are those of benchmarks/results/convolutions/conv_layers_h200.json, float16, NHWC. `run` compares every layer
with float64 first. It times what the library chooses by itself, and with --tune what it measured to be the fastest
(ONNXOPT_CONV_TUNE and ONNXOPT_GEMM_TUNE, in a process of its own). cuDNN and cuBLASLt run the bare convolution, through
torch; torch's column has the epilogue. One CUDA graph has all runs, over buffers in rotation.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.support import convolution_cases
from benchmarks.support.arguments import command
from benchmarks.support.gpu_timing import (
    Tensors,
    bound,
    copy_microseconds,
    disagreement,
    microseconds_in_graph,
    poisoned,
    rotation,
    session,
    session_microseconds,
)
from cases.convolution import Layer

_LAYERS = pathlib.Path(__file__).parents[1] / "results" / "convolutions" / "conv_layers_h200.json"
_ARCHIVE = "layers.tar.xz"
_EPILOGUES = {"relu": ("", "relu"), "silu": ("", "silu"), "add_relu": ("before", "relu"), "add": ("before", "")}
_IMAGE_CHANNELS = 4  # up to which another kind has kernels: kernels.image_convolutions
_SILU_CHANNELS = (32, 64)  # of x and y; below, the kind leaves SiLU to a kernel behind
_MEMORY, _TENSOR_CORES = 4230e9, 774e12  # bytes and float16 operations a second of an H200
_RELATIVE, _ABSOLUTE = 2e-3, 4e-3


def _of_networks() -> list[tuple[Layer, dict[str, Any]]]:
    """The dense layers, and the row of each: its networks, and the epilogue that follows it there."""
    found = []
    for row in json.loads(_LAYERS.read_text()):
        if row["groups"] != 1 or row["w"][1] <= _IMAGE_CHANNELS:
            continue
        (n, c, h, w), (k, _, r, s) = row["x"], row["w"]
        residual, activation = _EPILOGUES.get(row["epilogue"], ("", ""))
        if activation == "silu" and (c < _SILU_CHANNELS[0] or k < _SILU_CHANNELS[1]):
            activation = ""
        layer = Layer(
            n=n, h=h, w=w, c=c, k=k, kernel=(r, s), strides=(row["stride"],) * 2, pads=tuple(row["pads"]),
            dtype="float16", residual=residual, activation=activation, seed=len(found),
        )  # fmt: skip
        found.append((layer, row))
    return found


def prepare(folder: pathlib.Path) -> None:
    layers = [layer for layer, _ in _of_networks()]
    kernels = convolution_cases.pack(folder / _ARCHIVE, layers, casts=False)
    print(f"{len(layers)} layers, {kernels} kernels, {(folder / _ARCHIVE).stat().st_size / 1e6:.1f} MB")


def _buffers(layer: Layer, names: list[str], sets: int) -> tuple[list[Tensors], list[Tensors]]:
    (ho, wo), _ = layer.placed()
    shapes = {"x": (layer.n, layer.h, layer.w, layer.c), "residual": (layer.n, ho, wo, layer.k)}
    inputs = [
        {k: torch.randn(v, device="cuda", dtype=torch.float16) for k, v in shapes.items() if k == "x" or layer.residual}
        for _ in range(sets)
    ]
    outputs = [{name: poisoned(shapes["residual"], torch.float16, "cuda") for name in names} for _ in range(sets)]
    return inputs, outputs


def _weights(layer: Layer) -> tuple[torch.Tensor, torch.Tensor]:
    """[K, C, R, S] in channels_last, and [K]."""
    weight, bias = (torch.from_numpy(v).cuda().half() for v in layer.weights())
    return weight.permute(0, 3, 1, 2), bias


def _reference(layer: Layer, inputs: Tensors) -> torch.Tensor:
    """y [N, Ho, Wo, K] in float64."""
    weight, bias = _weights(layer)
    _, (top, left, bottom, right) = layer.placed()
    x = F.pad(inputs["x"].double().permute(0, 3, 1, 2), (left, right, top, bottom))
    y = F.conv2d(x, weight.double(), bias.double(), layer.strides, 0, layer.dilations, layer.group)
    y = y.permute(0, 2, 3, 1)
    if layer.residual:
        y = y + inputs["residual"].double()
    return {"": lambda v: v, "relu": F.relu, "silu": F.silu}[layer.activation](y)


def _torch_runs(layer: Layer, inputs: list[Tensors], epilogue: bool) -> list[Callable[[], object]] | None:
    """F.conv2d in channels_last, which is cuDNN; with what follows it in eager mode. None where pads differ by side."""
    weight, bias = _weights(layer)
    _, (top, left, bottom, right) = layer.placed()
    if (top, left) != (bottom, right):
        return None
    activation = {"": lambda v: v, "relu": F.relu_, "silu": lambda v: F.silu(v, inplace=True)}[layer.activation]

    def run(given: Tensors) -> torch.Tensor:
        x = given["x"].permute(0, 3, 1, 2)
        y = F.conv2d(x, weight, bias if epilogue else None, layer.strides, (top, left), layer.dilations, layer.group)
        if not epilogue:
            return y
        return activation(y.add_(given["residual"].permute(0, 3, 1, 2)) if layer.residual else y)

    return [lambda given=given: run(given) for given in inputs]  # type: ignore[misc]


def _measure(layer: Layer, model: bytes, library: pathlib.Path, tuned: pathlib.Path | None) -> dict[str, Any]:
    (ho, wo), _ = layer.placed()
    weights = layer.k * layer.kernel[0] * layer.kernel[1] * layer.c // layer.group
    results = layer.n * ho * wo * layer.k
    moved = 2 * (layer.n * layer.h * layer.w * layer.c + results * (2 if layer.residual else 1) + weights)
    operations = 2 * results * weights / layer.k
    sets = rotation(moved, "cuda")
    plain = session(model, str(library), "cuda")
    names = [o.name for o in plain.get_outputs()]
    inputs, outputs = _buffers(layer, names, sets)
    torch.cuda.synchronize()
    bound(plain, inputs[0], outputs[0])()
    worst = disagreement(outputs[0][names[0]], _reference(layer, inputs[0]), _RELATIVE, _ABSOLUTE)
    row: dict[str, Any] = {"worst": worst, "mb": moved / 1e6, "gflop": operations / 1e9}
    row["roofline"] = 1e6 * max(moved / _MEMORY, operations / _TENSOR_CORES)

    def timed(path: pathlib.Path) -> float:
        return session_microseconds(lambda s: session(model, str(path), "cuda", stream=s), inputs, outputs)

    row["ours"] = timed(library)
    if tuned is not None:
        row["ours_tuned"] = timed(tuned)
    for name, epilogue in (("cudnn_alone", False), ("torch", True)):
        runs = _torch_runs(layer, inputs, epilogue)
        row[name] = None if runs is None else microseconds_in_graph(runs, torch.cuda.Stream())
    row["cublaslt_alone"] = _product_microseconds(layer, inputs)
    row["copy"] = copy_microseconds(moved, sets)
    return row


def _product_microseconds(layer: Layer, inputs: list[Tensors]) -> float | None:
    """Of the bare product of the pixels and the weight; None where the convolution is none."""
    if layer.kernel != (1, 1) or layer.strides != (1, 1) or any(layer.pads):
        return None
    weight = _weights(layer)[0].reshape(layer.k, layer.c).T
    given = [i["x"].reshape(-1, layer.c) for i in inputs]
    results = [torch.empty(len(x), layer.k, device="cuda", dtype=x.dtype) for x in given]
    runs = [lambda x=x, y=y: torch.mm(x, weight, out=y) for x, y in zip(given, results, strict=True)]
    return microseconds_in_graph(runs, torch.cuda.Stream())


def measure_plans(root: pathlib.Path) -> int:
    """Run every layer once, in a process with ONNXOPT_CONV_TUNE: the library measures its plans."""
    for layer, model in convolution_cases.unpacked(root):
        stream = torch.cuda.Stream()  # the default stream cannot be captured, which measuring does
        ready = session(model, str(root / convolution_cases.LIBRARY), "cuda", stream=stream)
        inputs, outputs = _buffers(layer, [o.name for o in ready.get_outputs()], 1)
        torch.cuda.synchronize()
        bound(ready, inputs[0], outputs[0])()
    return 0


def _tuned(root: pathlib.Path) -> pathlib.Path:
    """A copy of the library with what was measured beside it."""
    folder = root / "tuned"
    shutil.copytree(root / convolution_cases.LIBRARY.parent, folder)
    files = {"ONNXOPT_CONV_TUNE": "conv_plans.json", "ONNXOPT_GEMM_TUNE": "gemm_algos.json"}  # 1x1 layers may be GEMMs
    environment = {**os.environ, **{variable: str(folder / file) for variable, file in files.items()}}
    verb = [sys.executable, "-m", "benchmarks.kernels.convolutions", "measure", str(root)]
    done = subprocess.run(verb, env=environment, check=False)
    print(f"plans measured, exit code {done.returncode}", flush=True)
    return folder / convolution_cases.LIBRARY.name


def _text(layer: Layer) -> str:
    epilogue = " ".join(word for word in (layer.residual and "residual", "bias", layer.activation) if word)
    kernel = f"{layer.kernel[0]}x{layer.kernel[1]} s{layer.strides[0]}"
    return f"{layer.n}x{layer.h}x{layer.w}x{layer.c} -> {layer.k} {kernel} {epilogue}"


def run(folder: pathlib.Path, out: pathlib.Path | None, tune: bool, only: list[str]) -> int:
    """Measure the layers; 0 if all agree with float64."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name, tarfile.open(folder / _ARCHIVE) as archive:
        archive.extractall(name, filter="data")
        root = pathlib.Path(name)
        tuned = _tuned(root) if tune else None
        if tuned is not None and out is not None and (plans := tuned.with_name("conv_plans.json")).exists():
            shutil.copy(plans, out.with_name("conv_plans.json"))
        for (layer, model), (_, of) in zip(convolution_cases.unpacked(root), _of_networks(), strict=True):
            if only and not set(only) & set(of["models"]):
                continue
            row: dict[str, Any] = {"layer": _text(layer), "models": of["models"], "followed_by": of["epilogue"]}
            try:
                row |= _measure(layer, model, root / convolution_cases.LIBRARY, tuned)
            except Exception as error:  # noqa: BLE001 - the other layers' numbers are worth having
                row["error"] = f"{type(error).__name__}: {error}"[:300]
            rows.append(row)
            if out is not None:
                out.write_text(json.dumps(rows, indent=1))
            torch.cuda.empty_cache()
    return _report(rows)


_TIMES = ("roofline", "copy", "cudnn_alone", "cublaslt_alone", "torch", "ours", "ours_tuned")


def _report(rows: list[dict[str, Any]]) -> int:
    print("| layer | " + " | ".join(_TIMES) + " | error |\n|" + "---|" * (len(_TIMES) + 2))
    sums: dict[str, dict[str, float]] = {}
    for row in rows:
        times = [f"{row[t]:.1f}" if row.get(t) is not None else "-" for t in _TIMES]
        print(f"| {row['layer']} | {' | '.join(times)} | {row.get('error') or format(row['worst'], '.2f')} |")
        for model, count in row["models"].items():
            sums.setdefault(model, dict.fromkeys(_TIMES, 0.0))
            for t in _TIMES:
                sums[model][t] += count * (row.get(t) or 0.0)
    for model, total in sums.items():
        print(f"{model}: " + ", ".join(f"{t} {total[t]:.0f}" for t in _TIMES))
    bad = [row["layer"] for row in rows if "error" in row or not row["worst"] <= 1]
    print(f"FAILED: {'; '.join(bad)}" if bad else "all agree")
    return 1 if bad else 0


def main() -> int:
    parser, (_, ran, _) = command(__doc__, "measure")
    ran.add_argument("--out", type=pathlib.Path, help="JSON, rewritten after every layer")
    ran.add_argument("--tune", action="store_true", help="measure cuDNN's plans first, and time the best ones too")
    ran.add_argument("--only", nargs="*", default=[], help="networks")
    args = parser.parse_args()
    if args.verb == "prepare":
        prepare(args.folder)
        return 0
    if args.verb == "measure":
        return measure_plans(args.folder)
    return run(args.folder, args.out, args.tune, args.only)


if __name__ == "__main__":
    sys.exit(main())
