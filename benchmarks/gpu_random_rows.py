"""Random rowwise graphs of tests/fuzz_rows.py on the GPU: fused kernels against the unchanged graph on the CPU.

    PYTHONPATH=tests python -m benchmarks.gpu_random_rows prepare DIR --count 200     on any machine, without a GPU
    python -m benchmarks.gpu_random_rows run DIR                                      on the GPU machine

A row's length decides which entry point runs, so every graph keeps its own model, and kernels their compiled code.

`run --device cpu` makes the comparisons with the CPU kernels. Under compute-sanitizer, `run` shows reads and writes out
of bounds, races and memory that nothing wrote.
"""

from __future__ import annotations

import argparse
import collections
import lzma
import pathlib
import pickle
import sys

import numpy as np
import onnxruntime as ort
import torch  # noqa: F401  (loads the CUDA libraries that ONNX Runtime needs)

from benchmarks.gpu_random import disagreement, open_session

_SIZES = (37, 1, 1028)  # of every symbolic dim, in turn


def prepare(folder: pathlib.Path, count: int, seed: int, arch: str) -> None:
    """Write the graphs before and after, and one library with the kernels of all."""
    from fuzz_rows import Graph

    from benchmarks.collection import Collection

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
        wanted = [r for r in plan.regions if r.kind == "rowwise"] if plan is not None else []
        if optimized is not None and wanted:
            graphs.append((seed, model.SerializeToString(), optimized.SerializeToString()))
        seed += 1
    (folder / "graphs.xz").write_bytes(lzma.compress(pickle.dumps(graphs)))
    collection.write_library(folder, [arch])
    total = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
    kinds = collections.Counter(k.kind.value for k in collection.kernels.values())
    print(f"{len(graphs)} graphs, {dict(kinds)} kernels, {total / 1e6:.2f} MB, next seed {seed}")


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


def run(folder: pathlib.Path, device: str, first: int, count: int) -> int:
    """Compare every graph at three sizes; 0 if all agree."""
    from benchmarks.gpu_timing import library

    graphs = pickle.loads(lzma.decompress((folder / "graphs.xz").read_bytes()))
    ops, bad, runs = library(folder), 0, 0
    for seed, before, after in graphs[first : first + count]:
        try:
            reference, fused = open_session(before, None, "cpu"), open_session(after, ops, device)
            is_static = all(isinstance(d, int) for i in reference.get_inputs() for d in i.shape)
            for draw, size in enumerate(_SIZES[:1] if is_static else _SIZES):
                feeds = _feeds(reference, draw, size)
                expected = reference.run(None, feeds)
                worst = max(
                    disagreement(f, e, str(f.dtype)) for f, e in zip(fused.run(None, feeds), expected, strict=True)
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
    parser.add_argument("--count", type=int, default=10**9)
    parser.add_argument("--first", type=int, default=0, help="of the prepared graphs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    args = parser.parse_args()
    if args.verb == "prepare":
        prepare(args.folder, args.count, args.seed, args.arch)
        return 0
    return run(args.folder, args.device, args.first, args.count)


if __name__ == "__main__":
    sys.exit(main())
