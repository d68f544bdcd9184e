"""Random elementwise graphs: fused kernels on the GPU against the unchanged graph on the CPU provider.

    python -m benchmarks.checks.random_graphs prepare DIR --regions 2000     on any machine, without a GPU
    python -m benchmarks.checks.random_graphs run DIR                        on the GPU machine: nvcc too
    compute-sanitizer python -m benchmarks.checks.random_graphs group ROOT --group kinds

ROOT is DIR/random.tar.xz, unpacked. tests/fuzz/graphs.py draws the graphs. Many graphs become one model. Models come in
groups; each group has its own library and its own process. So thousands of regions take a minute.

The inputs contain NaN, infinities, denormals, zeros of both signs and the extremes of integers. Symbolic dims are 3, 1,
8, 0 and 13. The unchanged graph is the reference, with 16-bit floats widened to float32. ONNX Runtime's CPU kernels do
not always treat NaN as ONNX says; where the two disagree, onnx's own reference evaluator decides.

`run --device cpu` makes the comparisons with the CPU kernels.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import sys
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from benchmarks.cases import random_graphs as graphs
from benchmarks.support import random_groups
from tests.support.fusing import has_cpu_kernels

KINDS = "kinds"  # the group with an entry point of every kind, for compute-sanitizer; its kernels are compiled here
_ARCHIVE = "random.tar.xz"
_LIMITS = {"float32": 1e-4, "float16": 3e-2, "bfloat16": 1e-1}


def prepare(folder: pathlib.Path, regions: int, groups: int, seed: int) -> None:
    """Write graphs before and after with at least `regions` regions, and the source of their kernels, in groups."""
    from benchmarks.support.collection import Collection

    total = 0
    with random_groups.packing(folder / _ARCHIVE) as root:
        for g in range(groups):
            collection, found, count = Collection(), [], 0
            while count < regions / groups:
                drawn = graphs.draw(seed, collection)
                seed += 1
                if drawn is not None:
                    found.append(drawn)
                    count += drawn.regions
            kernels = [narrow_indices(k) for k in collection.kernels.values()]
            random_groups.add(root / str(g), kernels, graphs.packed(found))
            total += count
            print(f"group {g}: {count} regions, {len(kernels)} kernels, next seed {seed}", flush=True)
        collection = Collection()
        every = [graphs.optimized(model, dtype, collection) for model, dtype in graphs.of_every_kind()]
        kernels = [dataclasses.replace(k, cpu=has_cpu_kernels(k.kind)) for k in collection.kernels.values()]
        random_groups.add(root / KINDS, kernels, graphs.packed([d for d in every if d is not None]), archs=["sm_90"])
        print(f"{KINDS}: {len(kernels)} kernels")
    print(f"{total} regions")


def narrow_indices(kernel: Any) -> Any:
    """Without entry points for 64-bit indices, which tensors of these sizes never take; on the CPU where it can."""
    variants = tuple(v for v in kernel.variants if v.index == 32)
    return dataclasses.replace(kernel, variants=variants, cpu=has_cpu_kernels(kernel.kind))


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


def compare_group(drawn: list[Any], library: str, device: str) -> dict[str, Any]:
    """Every graph of a group at every size."""
    result: dict[str, Any] = {"regions": 0, "runs": 0, "findings": [], "second_opinions": 0}
    for packed in drawn:
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


def _summary(results: list[dict[str, Any]]) -> str:
    regions, runs, second = (sum(r[key] for r in results) for key in ("regions", "runs", "second_opinions"))
    return f"{regions} regions, {runs} runs of models, {second} times the reference evaluator was asked,"


def run_group(root: pathlib.Path, device: str, name: str) -> int:
    """Compile and compare one group."""
    if device == "cuda":
        import torch  # noqa: F401  (loads the CUDA libraries that ONNX Runtime needs)
    group, library, drawn = random_groups.opened(root, name, device)
    ort.set_default_logger_severity(4)
    result = compare_group(drawn, library, device)
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
    archive = args.folder / _ARCHIVE
    return random_groups.run(archive, "benchmarks.checks.random_graphs", args.device, args.group, args.out, _summary)


if __name__ == "__main__":
    sys.exit(main())
