"""Random graphs of tests/fuzz.py on the GPU: fused kernels against the unchanged graph on the CPU provider.

    PYTHONPATH=tests python -m benchmarks.gpu_random prepare DIR --regions 2000   on any machine, without a GPU
    python -m benchmarks.gpu_random run DIR                                       on the GPU machine: nvcc too
    compute-sanitizer python -m benchmarks.gpu_random group ROOT --group kinds    ROOT: DIR/random.tar.xz, unpacked

Many graphs become one model, and models come in groups with a library of their own, each run by a process: thousands
of regions take a minute. Kernels travel as source, a tenth of their code, and are compiled by nvcc where they run.
Inputs have NaN, infinities, denormals, zeros of both signs and the extremes of integers among them; symbolic dims are
3, 1, 8, 0 and 13. The unchanged graph is the reference, with 16-bit floats widened to float32. What ONNX Runtime's CPU
kernels make of NaN is not always what ONNX says: where the two disagree, onnx's own reference evaluator decides.

`run --device cpu` makes the comparisons with the CPU kernels.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import lzma
import os
import pathlib
import pickle
import subprocess
import sys
import tarfile
import tempfile
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from benchmarks import gpu_random_graphs as graphs

KINDS = "kinds"  # the group with an entry point of every kind, for compute-sanitizer; its kernels are compiled here
_LIMITS = {"float32": 1e-4, "float16": 3e-2, "bfloat16": 1e-1}


def prepare(folder: pathlib.Path, regions: int, groups: int, seed: int) -> None:
    """Write graphs before and after with at least `regions` regions, and the source of their kernels, in groups."""
    from benchmarks.collection import Collection
    from onnxopt import compile, generate, kernels_json, package, paths

    folder.mkdir(parents=True)
    total = 0
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name) / "random"
        root.mkdir()
        package.write_library(root / "lib", "{}", None)
        (root / "include").mkdir()
        for header in paths.cuda_kernels().glob("*.*h"):
            (root / "include" / header.name).write_text(header.read_text())
        for g in range(groups):
            collection, found, count = Collection(), [], 0
            while count < regions / groups:
                drawn = graphs.draw(seed, collection)
                seed += 1
                if drawn is not None:
                    found.append(drawn)
                    count += drawn.regions
            kernels = [_narrow_indices(k) for k in collection.kernels.values()]
            (root / str(g)).mkdir()
            (root / str(g) / "kernels.cu").write_text(generate.generate(kernels))
            (root / str(g) / "kernels.json").write_text(kernels_json.to_json(kernels, None))
            (root / str(g) / "graphs.pickle").write_bytes(pickle.dumps(graphs.packed(found)))
            total += count
            print(f"group {g}: {count} regions, {len(kernels)} kernels, next seed {seed}", flush=True)
        collection = Collection()
        found = [graphs.optimized(model, dtype, collection) for model, dtype in graphs.of_every_kind()]
        fatbin = compile.compile_cuda(generate.generate(tuple(collection.kernels.values())), ["sm_90"])
        (root / KINDS).mkdir()
        (root / KINDS / "kernels.fatbin").write_bytes(fatbin)
        every = [dataclasses.replace(k, cpu=True) for k in collection.kernels.values()]
        (root / KINDS / "kernels.json").write_text(kernels_json.to_json(every, fatbin))
        (root / KINDS / "graphs.pickle").write_bytes(pickle.dumps(graphs.packed([d for d in found if d is not None])))
        print(f"{KINDS}: {len(every)} kernels")
        with tarfile.open(folder / "random.tar.xz", "w:xz", preset=9) as archive:
            archive.add(root, "random")
    size = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
    print(f"{total} regions, {size / 1e6:.2f} MB")


def _narrow_indices(kernel: Any) -> Any:
    """Without entry points for 64-bit indices, which tensors of these sizes never take; on every CPU too."""
    return dataclasses.replace(kernel, variants=tuple(v for v in kernel.variants if v.index == 32), cpu=True)


def compile_group(root: pathlib.Path, group: pathlib.Path) -> None:
    """The fatbin of a group, for the GPU of the machine at hand."""
    arch = subprocess.run(
        ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"], capture_output=True, text=True, check=True
    ).stdout.split()[0].replace(".", "")  # fmt: skip
    target = f"arch=compute_{arch},code=sm_{arch}"
    options = ["-std=c++17", "--expt-relaxed-constexpr", "-w", f"-I{root / 'include'}", "-gencode", target]
    fatbin = group / "kernels.fatbin"
    subprocess.run(["nvcc", *options, "-fatbin", "-o", str(fatbin), str(group / "kernels.cu")], check=True)
    described = json.loads((group / "kernels.json").read_text())
    data = fatbin.read_bytes()
    described["fatbin"] = {"file": fatbin.name, "sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    (group / "kernels.json").write_text(json.dumps(described))


def open_session(model: bytes, library: str | None, device: str) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    if library is None:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    else:
        options.register_custom_ops_library(library)
    providers: list[Any] = ["CUDAExecutionProvider", "CPUExecutionProvider"] if device == "cuda" else []
    return ort.InferenceSession(model, options, providers=providers or ["CPUExecutionProvider"])


def disagreement(found: np.ndarray, expected: np.ndarray, dtype: str) -> float:
    """As a multiple of the limit of the dtype that was stored; NaN and infinities must lie at the same places."""
    if found.shape != expected.shape:
        return float("inf")
    if found.dtype.kind != "f":
        return 0.0 if np.array_equal(found, expected) else float("inf")
    a, b = found.astype(np.float64), expected.astype(np.float64)
    if dtype == "float16":  # what overflows 16 bits does not overflow in the widened reference
        b = np.where(np.abs(b) > 65504 * 0.97, a, b)
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(a[finite]).all():
        return float("inf")
    return float(
        np.max(np.abs(a[finite] - b[finite]) / (_LIMITS.get(dtype, 1e-9) * (1 + np.abs(b[finite]))), initial=0.0)
    )


def compare_group(group: pathlib.Path, library: str, device: str) -> dict[str, Any]:
    """Every graph of a group at every size."""
    result: dict[str, Any] = {"regions": 0, "runs": 0, "findings": [], "second_opinions": 0}
    for packed in pickle.loads((group / "graphs.pickle").read_bytes()):
        result["regions"] += packed.regions
        reference, fused = open_session(packed.before, None, "cpu"), open_session(packed.after, library, device)
        for draw in range(len(graphs.SIZES)):
            feeds = graphs.feeds(packed, draw)
            expected = dict(zip(packed.outputs, reference.run(list(packed.outputs), feeds.reference), strict=True))
            found = dict(zip(packed.outputs, fused.run(list(packed.outputs), feeds.fused), strict=True))
            for name, dtype in packed.outputs.items():
                worst = disagreement(found[name], expected[name], dtype)
                if not worst <= 1:
                    result["second_opinions"] += 1
                    worst = _second_opinion(packed, name, feeds.reference, found[name], dtype)
                if not worst <= 1:
                    result["findings"].append(f"{name} ({dtype}), draw {draw}: {worst:.3g} of the limit")
            result["runs"] += 1
    return result


def _second_opinion(
    packed: Any, output: str, inputs: dict[str, np.ndarray], found: np.ndarray, dtype: str
) -> float:  # fmt: skip
    """The disagreement with onnx's reference evaluator, for the one graph that the output belongs to."""
    from onnx.reference import ReferenceEvaluator

    prefix = output[: output.index("_") + 1]
    whole = onnx.load_from_string(packed.before)
    keep = [n for n in whole.graph.node if n.output[0].startswith(prefix)]
    read = {i for n in keep for i in n.input}
    one = onnx.helper.make_graph(
        keep, "one", [v for v in whole.graph.input if v.name.startswith(prefix)],
        [v for v in whole.graph.output if v.name == output], [t for t in whole.graph.initializer if t.name in read],
    )  # fmt: skip
    model = onnx.helper.make_model(one, opset_imports=whole.opset_import, ir_version=whole.ir_version)
    with np.errstate(all="ignore"):
        (expected,) = ReferenceEvaluator(model).run(None, {k: v for k, v in inputs.items() if k.startswith(prefix)})
    return disagreement(found, np.asarray(expected), dtype)


def run(folder: pathlib.Path, device: str, only: list[str], out: pathlib.Path | None) -> int:
    """Compile and compare all groups side by side; 0 if all agree."""
    with tempfile.TemporaryDirectory() as name:
        with lzma.open(folder / "random.tar.xz") as stream, tarfile.open(fileobj=stream) as archive:
            archive.extractall(name, filter="data")
        root = pathlib.Path(name) / "random"
        groups = sorted(int(p.name) for p in root.iterdir() if p.name.isdigit())
        wanted = [g for g in groups if not only or str(g) in only]
        command = [sys.executable, "-m", "benchmarks.gpu_random", "group", str(root), "--device", device, "--group"]
        most, results, failed = os.cpu_count() or 1, {}, []
        for first in range(0, len(wanted), most):
            running = {g: subprocess.Popen([*command, str(g)]) for g in wanted[first : first + most]}
            for g, process in running.items():
                if process.wait():
                    failed.append(g)
                if (root / str(g) / "result.json").is_file():
                    results[g] = json.loads((root / str(g) / "result.json").read_text())
                    if out is not None:
                        out.write_text(json.dumps(results, indent=1))
    regions, runs = (sum(r[key] for r in results.values()) for key in ("regions", "runs"))
    findings = [f"group {g}: {text}" for g, r in results.items() for text in r["findings"]]
    second = sum(r["second_opinions"] for r in results.values())
    print("\n".join(findings[:40]))
    print(f"{regions} regions, {runs} runs of models on {device}, {second} times the reference evaluator was asked, "
          f"{len(findings)} findings, groups that failed: {failed or 'none'}")  # fmt: skip
    return 1 if findings or failed else 0


def run_group(root: pathlib.Path, device: str, name: str) -> int:
    """Compile and compare one group."""
    group = root / name
    library = group / "libonnxopt_ops.so"
    library.write_bytes((root / "lib" / library.name).read_bytes())
    if device == "cuda":
        import torch  # noqa: F401  (loads the CUDA libraries that ONNX Runtime needs)

        if not (group / "kernels.fatbin").is_file():
            compile_group(root, group)
    ort.set_default_logger_severity(4)
    result = compare_group(group, str(library), device)
    (group / "result.json").write_text(json.dumps(result))
    if name == KINDS:
        print(result, flush=True)
    return 1 if name == KINDS and result["findings"] else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("prepare", "run", "group"))
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--regions", type=int, default=2000)
    parser.add_argument("--groups", type=int, default=16)
    parser.add_argument("--group", nargs="*", default=[], help="which of the prepared groups")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=pathlib.Path, help="JSON with what every group found")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    args = parser.parse_args()
    if args.verb == "prepare":
        prepare(args.folder, args.regions, args.groups, args.seed)
        return 0
    if args.verb == "group":
        return run_group(args.folder, args.device, args.group[0])
    return run(args.folder, args.device, args.group, args.out)


if __name__ == "__main__":
    sys.exit(main())
