"""Random convolutions against float64: windows, strides, groups, pads, dilations, epilogues, dtypes; transposed too.

    python -m benchmarks.checks.random_convolutions prepare DIR --count 300     on any machine, without a GPU
    python -m benchmarks.checks.random_convolutions run DIR                     on the GPU machine

Every layer is a model of one node, whose body is removed: only the library's kernel can run it. Each layer runs twice;
every fourth also in a CUDA graph of ONNX Runtime, with new inputs in the same buffers. One session runs five shapes in
a loop, several sessions run side by side, and those without TF32 have to be exact. `run --tune` has the library measure
everything, and run what it found.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import pathlib
import sys
import tarfile
import tempfile
import threading
from typing import Any

import numpy as np

from benchmarks.cases.random_convolutions import draw, draw_product
from benchmarks.support import convolution_cases
from benchmarks.support.arguments import command
from cases.convolution import Layer

_ARCHIVE = "convolutions.tar.xz"
# of the largest |value|: one rounding to storage, and TF32's of the operands
_LIMIT = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 4e-3}
_EXACT = 2e-5  # float32 without TF32
_SHAPES = ((1, 8, 8), (4, 14, 10), (2, 23, 17), (3, 1, 5), (8, 32, 32))
_DYNAMIC = (
    Layer(c=16, k=32, pads=(1, 1, 1, 1), activation="relu", dtype="float16", symbolic=("N", "H", "W")),
    Layer(
        c=32, k=32, pads=(1, 1, 1, 1), activation="relu", residual="before", dtype="float16", symbolic=("N", "H", "W")
    ),
)
_EXACT_LAYERS = (
    Layer(c=64, k=64, pads=(1, 1, 1, 1), activation="relu", dtype="float32"),
    Layer(c=32, k=64, pads=(1, 1, 1, 1), residual="before", activation="relu", dtype="float32"),
    Layer(c=64, k=64, group=4, pads=(1, 1, 1, 1), dtype="float32"),
)


def prepare(folder: pathlib.Path, count: int, products: int, seed: int) -> None:
    """Write the models without their weights, the library and kernels.json."""
    layers = [*_DYNAMIC, *_EXACT_LAYERS, *(draw(seed + k) for k in range(count))]
    layers += [draw_product(seed + k) for k in range(products)]
    kernels = convolution_cases.pack(folder / _ARCHIVE, layers, casts=True)
    size = (folder / _ARCHIVE).stat().st_size
    print(f"{len(layers)} layers, {kernels} kernels, {size / 1e6:.1f} MB")


@dataclasses.dataclass
class Case:
    layer: Layer
    model: bytes

    def session(self, library: str, **options: str) -> Any:
        import onnxruntime as ort

        settings = ort.SessionOptions()
        settings.log_severity_level = 3
        settings.register_custom_ops_library(library)
        providers = [("CUDAExecutionProvider", options), "CPUExecutionProvider"]
        opened = ort.InferenceSession(self.model, settings, providers=providers)
        if "CUDAExecutionProvider" not in opened.get_providers():
            raise ValueError("ONNX Runtime does not run on the GPU here")
        return opened


def _difference(found: np.ndarray, expected: np.ndarray, limit: float) -> float:
    """The largest difference as a multiple of what is allowed; infinite for another shape or NaN."""
    if found.shape != expected.shape or not np.isfinite(found).all():
        return float("inf")
    scale = max(1.0, float(np.abs(expected).max(initial=0.0)))
    return float(np.abs(found - expected).max(initial=0.0) / (limit * scale))


def _check(case: Case, run: Any, seeds: tuple[int, ...], limit: float) -> float:
    worst = 0.0
    for seed in seeds:
        feeds = case.layer.feeds(seed)
        worst = max(worst, _difference(run(feeds), case.layer.expected(feeds), limit))
    return worst


def _plain(session: Any) -> Any:
    return lambda feeds: session.run(None, feeds)[0]


def _captured(case: Case, session: Any) -> Any:
    """A function that runs a session with a CUDA graph, in buffers that stay the same."""
    import onnxruntime as ort

    feeds = case.layer.feeds()
    buffers = {name: ort.OrtValue.ortvalue_from_numpy(value, "cuda", 0) for name, value in feeds.items()}
    result = ort.OrtValue.ortvalue_from_numpy(np.full(case.layer.expected(feeds).shape, np.nan, np.float32), "cuda", 0)
    binding = session.io_binding()
    for name, value in buffers.items():
        binding.bind_ortvalue_input(name, value)
    binding.bind_ortvalue_output(session.get_outputs()[0].name, result)

    def run(feeds: dict[str, np.ndarray]) -> np.ndarray:
        for name, value in feeds.items():
            buffers[name].update_inplace(value)
        session.run_with_iobinding(binding)
        return result.numpy()

    return run


def _dynamic(case: Case, library: str) -> float:
    session, worst = case.session(library), 0.0
    for round_ in range(3):
        for n, h, w in _SHAPES:
            at = dataclasses.replace(case, layer=dataclasses.replace(case.layer, n=n, h=h, w=w))
            worst = max(worst, _check(at, _plain(session), (round_,), _LIMIT[case.layer.dtype]))
    return worst


def _once(case: Case, library: str) -> float:
    return _check(case, _plain(case.session(library)), (1, 2), _LIMIT[case.layer.dtype])


def _exactly(case: Case, library: str) -> float:
    return _check(case, _plain(case.session(library, use_tf32="0")), (1, 2), _EXACT)


def _in_graph(case: Case, library: str) -> float:
    session = case.session(library, "cuda", enable_cuda_graph="1")
    return _check(case, _captured(case, session), (1, 2, 3, 4), _LIMIT[case.layer.dtype])


def _side_by_side(cases: list[Case], library: str) -> float:
    found: list[float] = []

    def work(case: Case) -> None:
        found.append(_check(case, _plain(case.session(library)), tuple(range(8)), _LIMIT[case.layer.dtype]))

    threads = [threading.Thread(target=work, args=(case,)) for case in cases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return max(found) if len(found) == len(cases) else float("inf")


def run(folder: pathlib.Path, out: pathlib.Path | None) -> int:
    """Compare every layer; 0 if all agree."""
    import torch  # noqa: F401 - loads the libraries of CUDA that ONNX Runtime looks for

    findings: list[str] = []
    counts = {"layers": 0, "captured": 0}
    with tempfile.TemporaryDirectory() as name, tarfile.open(folder / _ARCHIVE) as archive:
        archive.extractall(name, filter="data")
        root, library = pathlib.Path(name), str(pathlib.Path(name) / "lib" / "libonnxopt_ops.so")
        cases = [Case(layer, model) for layer, model in convolution_cases.unpacked(root)]

        def attempt(what: str, compare: Any) -> None:
            if out is not None:  # where the process dies, this is what killed it
                out.write_text(json.dumps({**counts, "running": what, "findings": findings}, indent=1))
            try:
                worst = compare()
                if not worst <= 1:
                    findings.append(f"{what}: {worst:.3g} of the limit")
            except Exception as error:  # noqa: BLE001 - what fails is a finding, not the end
                findings.append(f"{what}: {type(error).__name__}: {str(error)[:300]}")
            if out is not None:
                out.write_text(json.dumps({**counts, "findings": findings}, indent=1))

        dynamic, exact = cases[: len(_DYNAMIC)], cases[len(_DYNAMIC) : len(_DYNAMIC) + len(_EXACT_LAYERS)]
        for case in dynamic:
            attempt(f"five shapes, {case.layer}", functools.partial(_dynamic, case, library))
        for case in exact:
            attempt(f"without TF32, {case.layer}", functools.partial(_exactly, case, library))
        for k, case in enumerate(cases):
            counts["layers"] += 1
            attempt(str(case.layer), functools.partial(_once, case, library))
            if k % 4 == 0 and not case.layer.symbolic:
                counts["captured"] += 1
                attempt(f"captured, {case.layer}", functools.partial(_in_graph, case, library))
        attempt("side by side", functools.partial(_side_by_side, exact, library))
    print(f"{counts}, {len(findings)} findings")
    print("\n".join(findings[:40]) or "all agree")
    return 1 if findings else 0


def main() -> int:
    parser, (prepared, ran) = command(__doc__)
    prepared.add_argument("--count", type=int, default=300)
    prepared.add_argument("--products", type=int, default=60, help="1x1 convolutions that become products")
    prepared.add_argument("--seed", type=int, default=0)
    ran.add_argument("--out", type=pathlib.Path, help="JSON, rewritten after every case")
    ran.add_argument("--tune", action="store_true", help="measure algorithms and plans, and run the fastest")
    args = parser.parse_args()
    if args.verb == "prepare":
        prepare(args.folder, args.count, args.products, args.seed)
        return 0
    with tempfile.TemporaryDirectory() as name:
        if args.tune:
            os.environ |= {f"ONNXOPT_{kind}_TUNE": f"{name}/{kind}.json" for kind in ("GEMM", "CONV")}
        found = run(args.folder, args.out)
        for file in sorted(pathlib.Path(name).iterdir()):
            entries = json.loads(file.read_text())["entries"]
            print(f"{file.stem}: {len(entries)} measured, {sum('cudnn' in e for e in entries)} of cuDNN")
    return found


if __name__ == "__main__":
    sys.exit(main())
