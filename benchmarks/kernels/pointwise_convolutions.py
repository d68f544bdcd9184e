"""1x1 convolutions as products: cuBLASLt's heuristic, its fastest algorithm, and cuDNN's plans beside these.

    python -m benchmarks.kernels.pointwise_convolutions prepare DIR             on any machine, without a GPU
    python -m benchmarks.kernels.pointwise_convolutions run DIR --out OUT.json  on the GPU: onnxruntime, torch, onnx

The layers are those of benchmarks/cases/pointwise_convolutions.py. Every layer is compared with float64 in every way
before it is timed. `first run` is what the library chooses by itself at a first run. `fastest` is what it measured with
ONNXOPT_GEMM_TUNE in a process of its own; `algorithms` is the same file without the plans of cuDNN. `cuDNN` and
`cuDNN, first run` are the same layers as the kind convolution runs them: the first plan, and the best of six. Behind
come products of torch that read or write channels of a wider tensor, beside copies of these channels. Runs lie in one
CUDA graph, over buffers in rotation.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from typing import Any
from unittest import mock

import onnx
import torch

from benchmarks.cases.pointwise_convolutions import CHANNELS, LAYERS, Channels
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

_ARCHIVE, _CONVOLUTIONS = "layers.tar.xz", "convolutions.tar.xz"
_FILE = "gemm_algos.json"
_MEMORY, _TENSOR_CORES = 4230e9, 774e12  # bytes and float16 operations a second of an H200
_BOUNDS = {"float16": (2e-3, 4e-3), "bfloat16": (1.6e-2, 3.2e-2), "float32": (2e-3, 4e-3)}  # float32 rounds to TF32
_TYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


def prepare(folder: pathlib.Path) -> None:
    from onnxopt.kinds.convolution.steps import GrowingConvolution

    kernels = convolution_cases.pack(folder / _ARCHIVE, LAYERS, casts=False)
    print(f"{len(LAYERS)} layers, {kernels} kernels, {(folder / _ARCHIVE).stat().st_size / 1e6:.1f} MB")
    with mock.patch.object(GrowingConvolution, "is_product", return_value=False):
        convolution_cases.pack(folder / _CONVOLUTIONS, LAYERS, casts=False)


def _buffers(layer: Layer, name: str, sets: int) -> tuple[list[Tensors], list[Tensors]]:
    dtype, pixels = _TYPES[layer.dtype], (layer.n, layer.h, layer.w)
    given = {"x": layer.c} | ({"residual": layer.k} if layer.residual else {})
    inputs = [{k: torch.randn(*pixels, c, device="cuda", dtype=dtype) for k, c in given.items()} for _ in range(sets)]
    return inputs, [{name: poisoned((*pixels, layer.k), dtype, "cuda")} for _ in range(sets)]


def _reference(layer: Layer, inputs: Tensors) -> torch.Tensor:
    """y [N, H, W, K] in float64."""
    weight, bias = (torch.from_numpy(v).cuda().double() for v in layer.weights())
    y = inputs["x"].double() @ weight.reshape(layer.k, layer.c).T + bias
    if layer.residual:
        y += inputs["residual"].double()
    return y.relu_() if layer.activation else y


@dataclasses.dataclass(frozen=True)
class _Way:
    """measures: whether first runs do."""

    library: pathlib.Path
    of_convolution: bool = False
    measures: bool = False


def _measure(layer: Layer, product: bytes, convolution: bytes, ways: dict[str, _Way]) -> dict[str, Any]:
    size = torch.empty(0, dtype=_TYPES[layer.dtype]).element_size()
    rows = layer.n * layer.h * layer.w
    moved = size * (rows * (layer.c + layer.k * (2 if layer.residual else 1)) + layer.c * layer.k)
    row: dict[str, Any] = {"roofline": 1e6 * max(moved / _MEMORY, 2 * rows * layer.c * layer.k / _TENSOR_CORES)}
    sets = rotation(moved, "cuda")
    (name,) = (output.name for output in onnx.load_from_string(product).graph.output)
    inputs, outputs = _buffers(layer, name, sets)
    expected = _reference(layer, inputs[0])
    row["worst"] = 0.0
    for label, way in ways.items():
        os.environ["ONNXOPT_MEASURE"] = "1" if way.measures else "0"
        model = convolution if way.of_convolution else product
        open_in = functools.partial(session, model, str(way.library), "cuda")
        outputs[0][name].fill_(float("nan"))
        torch.cuda.synchronize()
        bound(open_in(stream=torch.cuda.Stream()), inputs[0], outputs[0])()
        row["worst"] = max(row["worst"], disagreement(outputs[0][name], expected, *_BOUNDS[layer.dtype]))
        row[label] = session_microseconds(lambda s, open_in=open_in: open_in(stream=s), inputs, outputs)
    row["copy"] = copy_microseconds(moved, sets)
    return row


def measure_ways(root: pathlib.Path) -> int:
    """Run every layer once, in a process with ONNXOPT_GEMM_TUNE: the library measures algorithms and plans."""
    for layer, model in convolution_cases.unpacked(root):
        stream = torch.cuda.Stream()  # the default stream cannot be captured, which measuring does
        ready = session(model, str(root / convolution_cases.LIBRARY), "cuda", stream=stream)
        inputs, outputs = _buffers(layer, ready.get_outputs()[0].name, 1)
        torch.cuda.synchronize()
        bound(ready, inputs[0], outputs[0])()
    return 0


def _ways(root: pathlib.Path, of_cudnn: pathlib.Path) -> tuple[dict[str, _Way], list[dict[str, Any]]]:
    """What to time, and what the library measured. of_cudnn: the folder of the same layers as convolutions."""
    from onnxopt.codegen import sealed_json

    written = root / _FILE
    verb = [sys.executable, "-m", "benchmarks.kernels.pointwise_convolutions", "measure", str(root)]
    done = subprocess.run(verb, env={**os.environ, "ONNXOPT_GEMM_TUNE": str(written)}, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"measuring ended with exit code {done.returncode}")
    entries = sealed_json.unseal(written.read_text())["entries"]
    alone = [{k: v for k, v in entry.items() if k != "cudnn"} for entry in entries]
    library = convolution_cases.LIBRARY

    def copy(of: pathlib.Path, name: str, measured: list[dict[str, Any]]) -> pathlib.Path:
        """A library that knows these entries alone, and what it measures itself."""
        shutil.copytree(of / library.parent, of / name)
        if measured:
            (of / name / _FILE).write_text(sealed_json.seal({"schema": 2, "entries": measured}))
        return of / name / library.name

    ways = {
        "heuristic": _Way(root / library),
        "first run": _Way(copy(root, "first", []), measures=True),
        "algorithms": _Way(copy(root, "alone", alone)),
        "fastest": _Way(copy(root, "all", entries)),
        "cuDNN": _Way(of_cudnn / library, of_convolution=True),
        "cuDNN, first run": _Way(copy(of_cudnn, "first", []), of_convolution=True, measures=True),
    }
    return ways, entries


def _product(layer: Layer) -> str:
    """As the library describes it in the file of what was measured."""
    parts = [layer.dtype, f"m{layer.n * layer.h * layer.w}", f"n{layer.k}", f"k{layer.c}", "b^T", "bias"]
    parts += ["residual"] * bool(layer.residual) + ["relu"] * bool(layer.activation)
    return " ".join(parts + ["tf32"] * (layer.dtype == "float32"))


def _measure_channels(case: Channels) -> dict[str, Any]:
    """Microseconds of x @ w over tensors of their own, over channels of a wider one, and of copies of these channels.

    Every result is compared with float64 first.
    """
    wide_bytes = 2 * case.rows * (case.x_of + case.y_of)
    sets = rotation(wide_bytes, "cuda")
    wide_x = [torch.randn(case.rows, case.x_of, device="cuda", dtype=torch.float16) for _ in range(sets)]
    wide_y = [torch.zeros(case.rows, case.y_of, device="cuda", dtype=torch.float16) for _ in range(sets)]
    weight = torch.randn(case.c, case.k, device="cuda", dtype=torch.float16) / case.c**0.5
    from_wide, to_wide = ([v[:, -n:] for v in wide] for wide, n in ((wide_x, case.c), (wide_y, case.k)))
    own_x = [v.contiguous() for v in from_wide]
    own_y = [v.contiguous() for v in to_wide]
    ways = {"both apart": (own_x, own_y), "x in place": (from_wide, own_y), "y in place": (own_x, to_wide)}
    expected = own_x[0].double() @ weight.double()
    row: dict[str, Any] = {"layer": case.name, "worst": 0.0}
    for way, (given, written) in ways.items():
        written[0].fill_(float("nan"))
        torch.mm(given[0], weight, out=written[0])
        row["worst"] = max(row["worst"], disagreement(written[0], expected, *_BOUNDS["float16"]))
        runs = [lambda x=x, y=y: torch.mm(x, weight, out=y) for x, y in zip(given, written, strict=True)]
        row[way] = microseconds_in_graph(runs, torch.cuda.Stream())
    for way, given, written in (("copy of x", from_wide, own_x), ("copy of y", own_y, to_wide)):
        copies = [lambda a=a, b=b: b.copy_(a) for a, b in zip(given, written, strict=True)]
        row[way] = microseconds_in_graph(copies, torch.cuda.Stream())
    return row


def run(folder: pathlib.Path, out: pathlib.Path | None) -> int:
    """Measure the layers; 0 if all agree with float64."""
    rows: list[dict[str, Any]] = []
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        root, of_cudnn = pathlib.Path(name, "products"), pathlib.Path(name, "convolutions")
        for path, packed in ((root, _ARCHIVE), (of_cudnn, _CONVOLUTIONS)):
            with tarfile.open(folder / packed) as archive:
                archive.extractall(path, filter="data")
        os.environ["XDG_CACHE_HOME"] = str(pathlib.Path(name, "cache"))
        ways, entries = _ways(root, of_cudnn)
        print(f"measured in {time.perf_counter() - begun:.0f} s", flush=True)
        known = {entry["product"]: entry for entry in entries}
        convolutions = (model for _, model in convolution_cases.unpacked(of_cudnn))
        for (layer, product), convolution in zip(convolution_cases.unpacked(root), convolutions, strict=True):
            row: dict[str, Any] = {"layer": f"{layer.n}x{layer.h}x{layer.w} {_product(layer)}"}
            try:
                row |= {"measured": known[_product(layer)]} | _measure(layer, product, convolution, ways)
            except Exception as error:  # noqa: BLE001 - the other layers' numbers are worth having
                row["error"] = f"{type(error).__name__}: {error}"[:300]
            rows.append(row)
            if out is not None:
                out.write_text(json.dumps(rows, indent=1))
            torch.cuda.empty_cache()
    parts = [_measure_channels(case) for case in CHANNELS]
    if out is not None:
        out.write_text(json.dumps(rows + parts, indent=1))
    return _report(rows, parts)


_TIMES = ("roofline", "copy", "heuristic", "first run", "algorithms", "fastest", "cuDNN", "cuDNN, first run")
_OF_CHANNELS = ("both apart", "x in place", "y in place", "copy of x", "copy of y")


def _report(rows: list[dict[str, Any]], parts: list[dict[str, Any]]) -> int:
    print("| layer | " + " | ".join(_TIMES) + " | cuDNN, in the file | error |\n|" + "---|" * (len(_TIMES) + 3))
    for row in rows:
        times = [f"{row[t]:.1f}" if row.get(t) is not None else "-" for t in _TIMES]
        of_cudnn = row.get("measured", {}).get("cudnn")
        gain = f"{of_cudnn['algorithm_microseconds'] / row['measured']['microseconds']:.2f}" if of_cudnn else ""
        print(f"| {row['layer']} | {' | '.join(times)} | {gain} | {row.get('error') or format(row['worst'], '.2f')} |")
    print("\n| channels | " + " | ".join(_OF_CHANNELS) + " |\n|" + "---|" * (len(_OF_CHANNELS) + 1))
    for row in parts:
        print(f"| {row['layer']} | " + " | ".join(f"{row[t]:.1f}" for t in _OF_CHANNELS) + " |")
    bad = [row["layer"] for row in rows + parts if "error" in row or not row["worst"] <= 1]
    print(f"FAILED: {'; '.join(bad)}" if bad else "all agree")
    return 1 if bad else 0


def main() -> int:
    parser, (_, ran, _) = command(__doc__, "measure")
    ran.add_argument("--out", type=pathlib.Path, help="JSON, rewritten after every layer")
    args = parser.parse_args()
    if args.verb == "prepare":
        prepare(args.folder)
        return 0
    return measure_ways(args.folder) if args.verb == "measure" else run(args.folder, args.out)


if __name__ == "__main__":
    sys.exit(main())
