"""Random graphs of tests/fuzz.py or fuzz_rows.py on the GPU: fused kernels against the unchanged graph on the CPU.

    PYTHONPATH=tests python -m benchmarks.gpu_random prepare DIR --count 200     on any machine, without a GPU
    PYTHONPATH=tests python -m benchmarks.gpu_random prepare DIR --graphs fuzz_rows
    python -m benchmarks.gpu_random run DIR                                      on the GPU machine

`run --device cpu` makes the comparisons with the CPU kernels. Under compute-sanitizer, `run` shows reads and writes out
of bounds, races and memory that nothing wrote.
"""

from __future__ import annotations

import argparse
import collections
import importlib
import lzma
import pathlib
import pickle
import sys
from typing import Any

import numpy as np
import onnxruntime as ort
import torch  # noqa: F401  (loads the CUDA libraries that ONNX Runtime needs)

_SIZES = {"fuzz": (3, 1, 8), "fuzz_rows": (37, 1, 1028)}  # of every symbolic dim, in turn
_LIMITS = {np.dtype("float32"): 1e-4, np.dtype("float16"): 3e-2}


def prepare(folder: pathlib.Path, module: str, count: int, seed: int, arch: str) -> None:
    """Write the graphs before and after, and one library with the kernels of all. module: of tests/, has Graph."""
    from benchmarks.collection import Collection

    Graph = importlib.import_module(module).Graph

    folder.mkdir(parents=True)
    collection, graphs = Collection(), []
    while len(graphs) < count:
        model = Graph(seed).model()
        try:
            ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
            optimized, plan = collection.optimize(model)
        except Exception as error:  # noqa: BLE001 - ORT's CPU provider lacks kernels for some dtypes
            print(f"seed {seed}: {str(error)[:120]}", flush=True)
            optimized, plan = None, None
        wanted = [r for r in plan.regions if r.kind == "rowwise" or module == "fuzz"] if plan is not None else []
        if optimized is not None and wanted:
            graphs.append((seed, model.SerializeToString(), optimized.SerializeToString()))
        seed += 1
    (folder / "graphs.xz").write_bytes(lzma.compress(pickle.dumps((_SIZES[module], graphs))))
    collection.write_library(folder, [arch])
    total = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
    kinds = collections.Counter(k.kind.value for k in collection.kernels.values())
    print(f"{len(graphs)} graphs, {dict(kinds)} kernels, {total / 1e6:.2f} MB, next seed {seed}")


def _session(model: bytes, library: str | None, device: str) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    if library is None:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    else:
        options.register_custom_ops_library(library)
    providers: list[Any] = ["CUDAExecutionProvider", "CPUExecutionProvider"] if device == "cuda" else []
    return ort.InferenceSession(model, options, providers=providers or ["CPUExecutionProvider"])


def _feeds(session: ort.InferenceSession, draw: int, size: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(draw)
    feeds = {}
    for value in session.get_inputs():
        dims = [d if isinstance(d, int) else size for d in value.shape]
        name = value.type.removeprefix("tensor(").removesuffix(")")
        if name == "bool":
            feeds[value.name] = rng.random(dims) < 0.5
        elif name.startswith("int"):
            feeds[value.name] = rng.integers(-9, 10, dims).astype(name)
        else:
            feeds[value.name] = rng.uniform(-3, 3, dims).astype({"float": "float32"}.get(name, name))
    return feeds


def disagreement(found: np.ndarray, expected: np.ndarray) -> float:
    """As a multiple of the limit of the dtype; NaN and infinities must lie at the same places."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return float("inf")
    if found.dtype.kind != "f":
        return 0.0 if np.array_equal(found, expected) else float("inf")
    a, b = found.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(a[finite]).all():
        return float("inf")
    limit = _LIMITS.get(found.dtype, 1e-9)
    return float(np.max(np.abs(a - b)[finite] / (limit * (1 + np.abs(b[finite]))), initial=0.0))


def run(folder: pathlib.Path, device: str, first: int, count: int) -> int:
    """Compare every graph at three sizes; 0 if all agree."""
    from benchmarks.gpu_timing import library

    sizes, graphs = pickle.loads(lzma.decompress((folder / "graphs.xz").read_bytes()))
    ops, bad, runs = library(folder), 0, 0
    for seed, before, after in graphs[first : first + count]:
        try:
            reference, fused = _session(before, None, "cpu"), _session(after, ops, device)
            is_static = all(isinstance(d, int) for i in reference.get_inputs() for d in i.shape)
            for draw, size in enumerate(sizes[:1] if is_static else sizes):
                feeds = _feeds(reference, draw, size)
                expected = reference.run(None, feeds)
                worst = max(
                    disagreement(f, e) for f, e in zip(fused.run(None, feeds), expected, strict=True)
                )  # fmt: skip
                runs += 1
                if not worst <= 1:
                    bad += 1
                    print(f"seed {seed}, draw {draw}: {worst:.3g} of the limit", flush=True)
        except Exception as error:  # noqa: BLE001 - a graph that fails is a finding, not the end
            bad += 1
            print(f"seed {seed}: {type(error).__name__}: {str(error)[:300]}", flush=True)
    print(f"{len(graphs[first : first + count])} graphs, {runs} runs on {device}, {bad} findings")
    return 1 if bad else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("prepare", "run"))
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--graphs", default="fuzz", choices=sorted(_SIZES), help="module of tests/ that draws them")
    parser.add_argument("--count", type=int, default=10**9)
    parser.add_argument("--first", type=int, default=0, help="of the prepared graphs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    args = parser.parse_args()
    if args.verb == "prepare":
        prepare(args.folder, args.graphs, args.count, args.seed, args.arch)
        return 0
    return run(args.folder, args.device, args.first, args.count)


if __name__ == "__main__":
    sys.exit(main())
