"""Exported models before and after onnxopt: ONNX Runtime with IO binding, with and without a CUDA graph.

    python -m benchmarks.models.exports prepare DIR --arch sm_90     on any machine, without a GPU; needs .gpu/
    python -m benchmarks.models.exports run DIR                      on the GPU machine: onnxruntime, numpy, torch, onnx

DIR holds graphs without weights (a few MB). Both sides draw the same weights from a seed. The outputs are compared
before anything is timed. Both sessions run in one process and are timed in turn.
"""

from __future__ import annotations

import collections
import gc
import json
import pathlib
import statistics
import sys
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from benchmarks.support import skeletons
from benchmarks.support.arguments import main_over_models, over_models
from benchmarks.support.gpu_timing import library, session

MODELS = ("bert", "vit", "llama", "whisperenc", "convnext", "efficientnet", "unet", "llama_decode")
_ROUNDS = 8
_RUNS = 30


def prepare(folder: pathlib.Path, arch: str, names: list[str]) -> None:
    """Write every model's optimized skeleton, and one library with the kernels of all."""
    from benchmarks.support.collection import Collection, describe

    def write_one(collection: Collection, name: str) -> str:
        source = skeletons.original(name)
        nodes = len(source.graph.node)
        optimized, plan = collection.optimize(source)
        after, options = len(optimized.graph.node), provider_options(optimized)
        size = skeletons.strip(optimized, source, folder / f"{name}.onnx.xz")
        note = {"nodes_before": nodes, "nodes_after": after, "options": options, **describe(plan)}
        (folder / f"{name}.plan.json").write_text(json.dumps(note, indent=1))
        return f"{size / 1e3:.0f} KB, {note}"

    Collection.prepare(folder, arch, names, write_one)


def provider_options(model: onnx.ModelProto) -> dict[str, str]:
    """Options of the CUDA EP for the convolutions of a model, which an artifact of it has too."""
    from onnxopt.runtime.providers import facts, rules

    options = rules.cuda(facts.of(ir.serde.deserialize_model(model)))["provider_options"]
    return {name: value for name, value in options.items() if "conv" in name or "nhwc" in name}


def compare(found: np.ndarray, expected: np.ndarray) -> dict[str, Any]:
    """Differences of two outputs, and whether they agree.

    They agree with the same NaNs, a cosine above 0.999 and no error above 2 % of the range: two orders of float16
    operations differ by this much over 12 layers, a wrong kernel by far more.
    """
    a, b = found.astype(np.float64), expected.astype(np.float64)
    same_nan = bool((np.isnan(a) == np.isnan(b)).all() and (np.isinf(a) == np.isinf(b)).all())
    finite = np.isfinite(a) & np.isfinite(b)
    a, b = a[finite], b[finite]
    error = np.abs(a - b)
    norm = np.linalg.norm(a) * np.linalg.norm(b)
    cosine = float(a @ b / norm) if norm else 1.0
    spread = float(np.abs(b).max(initial=0.0))
    return {
        "max_abs": float(error.max(initial=0.0)),
        "max_rel": float((error / np.maximum(np.abs(b), 1e-3 * spread + 1e-30)).max(initial=0.0)),
        "cosine": cosine,
        "std": float(b.std()) if b.size else 0.0,
        "same_nan": same_nan,
        "agrees": same_nan and cosine > 0.999 and float(error.max(initial=0.0)) <= 0.02 * spread,
    }


def feeds(model: Any, name: str) -> dict[str, np.ndarray]:
    """Seeded inputs of the exported graph."""
    return skeletons.sample_inputs(model, name)


def launches(run_in: Any, given: dict[str, np.ndarray]) -> dict[str, Any]:
    """Launches a run, microseconds on the device, and the kernels that take most of them."""
    harness = skeletons.harness()
    rows = harness.kernels(harness.Bound(run_in, given))
    ours = [row for row in rows if "pointwise" in row[0] or _is_ours(row[0])]
    return {
        "launches": round(sum(n for _, n, _ in rows)),
        "device_us": round(sum(us for *_, us in rows), 1),
        "ours_launches": round(sum(n for _, n, _ in ours)),
        "ours_us": round(sum(us for *_, us in ours), 1),
        "top": [[k[:90], round(n), round(us, 1)] for k, n, us in rows[:25]],
    }


def _is_ours(kernel: str) -> bool:
    """Entry points are named FUNCTION_HASH_VARIANT, with eight hex digits."""
    parts = kernel.split("_")
    return len(parts) >= 3 and any(len(p) == 8 and set(p) <= set("0123456789abcdef") for p in parts)


def measure(name: str, folder: pathlib.Path, device: str) -> dict[str, Any]:
    """Compare, count and time one model before and after."""
    source = skeletons.original(name)
    given = feeds(source, name)
    models = {
        "before": (source.SerializeToString(), None),
        "after": (skeletons.restore(folder / f"{name}.onnx.xz", source).SerializeToString(), library(folder)),
    }
    del source
    row: dict[str, Any] = json.loads((folder / f"{name}.plan.json").read_text())

    def opened(label: str, model: bytes, ops: str | None) -> Any:
        return session(model, ops, device, options=row["options"] if label != "before" else {})

    outputs = {}
    for label, (model, ops) in [*models.items(), ("inlined", (models["after"][0], None))]:
        outputs[label] = opened(label, model, ops).run(None, given)[0]
    row["compare"] = compare(outputs["after"], outputs["before"])
    row["compare_inlined"] = compare(outputs["inlined"], outputs["before"])
    row["kernels"] = {}
    if device == "cpu":
        return row
    if row["compare"]["agrees"]:
        row.update(timings(models, given, row["options"]))
    row["kernels"] = {label: launches(opened(label, *of), given) for label, of in models.items()}
    return row


def timings(
    models: dict[str, tuple[bytes, str | None]], given: dict[str, np.ndarray], options: dict[str, str]
) -> dict[str, Any]:
    """Milliseconds a run with a CUDA graph and without, both sessions in turn: best and median of the rounds.

    options: of the CUDA EP, for models with a library.
    """
    harness = skeletons.harness()
    result: dict[str, Any] = {}
    for method, graph in (("cuda_graph", True), ("no_graph", False)):
        sessions = {
            k: session(m, lib, "cuda", cuda_graph=graph, options=options if lib else {})
            for k, (m, lib) in models.items()
        }
        bounds = {k: harness.Bound(opened, given) for k, opened in sessions.items()}
        del sessions
        times = collections.defaultdict(list)
        for k in range(_ROUNDS):
            for label, run in bounds.items():
                times[label].append(harness.milliseconds(run, _RUNS, warmup=8 if k == 0 else 2, repeats=1))
        for label, values in times.items():
            result[f"{method}_{label}_ms"] = {"best": min(values), "median": statistics.median(values), "all": values}
        del bounds
        gc.collect()
    return result


def table(rows: dict[str, Any]) -> str:
    """The rows as markdown."""
    lines = ["| model | nodes | launches | ORT + CUDA graph before, ms | after, ms | ratio | no graph before | after |"]
    lines[0] += " cosine | max abs |"
    lines.append("|" + "---|" * 10)
    for name, row in rows.items():
        if "error" in row:
            lines.append(f"| {name} | {row['error'][:200]} |" + " |" * 8)
            continue
        counts = [str(row["kernels"].get(k, {}).get("launches", "-")) for k in ("before", "after")]
        cells = [name, f"{row['nodes_before']} -> {row['nodes_after']}", " -> ".join(counts)]
        best = {k: v["best"] for k, v in row.items() if k.endswith("_ms")}
        if best:
            before, after = best["cuda_graph_before_ms"], best["cuda_graph_after_ms"]
            cells += [f"{before:.3f}", f"{after:.3f}", f"{before / after:.2f}"]
            cells += [f"{best['no_graph_before_ms']:.3f}", f"{best['no_graph_after_ms']:.3f}"]
        else:
            cells += ["-"] * 5
        cells += [f"{row['compare']['cosine']:.6f}", f"{row['compare']['max_abs']:.2e}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def run(folder: pathlib.Path, device: str, names: list[str], out: pathlib.Path | None) -> int:
    """Measure the models; 0 if every output agrees."""

    def disagreeing(row: dict[str, Any]) -> list[str]:
        return [k for k in ("compare", "compare_inlined") if not row[k]["agrees"]]

    return over_models(names, lambda name: measure(name, folder, device), disagreeing, table, out)


if __name__ == "__main__":
    sys.exit(main_over_models(__doc__, list(MODELS), prepare, run))
