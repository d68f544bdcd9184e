"""BERT-base 8x128 in int8 QDQ: ONNX Runtime's CUDA provider and onnxopt, beside onnxopt's float16 model.

    python -m benchmarks.models.quantized prepare DIR --arch sm_90   on any machine, without a GPU; needs .gpu/
    python -m benchmarks.models.quantized run DIR                    on the GPU machine: onnxruntime, numpy, torch, onnx

DIR holds graphs without weights (a few MB). "default" is the quantized graph in ONNX Runtime, "folded" the same with
session.disable_quant_qdq=1, which dequantizes constants once. Every output is compared with the quantized graph without
TF32 before anything is timed. All sessions of a graph run in one process and are timed in turn.
"""

from __future__ import annotations

import collections
import json
import pathlib
import statistics
import sys
from typing import Any

from benchmarks.models.exports import compare, launches
from benchmarks.support import quantized, skeletons
from benchmarks.support.arguments import main_over_models, over_models
from benchmarks.support.gpu_timing import library, session

FLOAT16 = "float16"
MODELS = (*quantized.SCHEMES, FLOAT16)
_FOLDED = {"session.disable_quant_qdq": "1"}
_COSINE = 0.99  # a rounding may fall on the other side; each then moves a value by a whole step
_ROUNDS = 8
_RUNS = 30


def prepare(folder: pathlib.Path, arch: str, names: list[str]) -> None:
    """Write every quantized graph, what onnxopt makes of it, and one library with the kernels of all."""
    from benchmarks.support.collection import Collection, describe

    def write_one(collection: Collection, name: str) -> str:
        if name != FLOAT16:
            quantized.pack(quantized.quantized(name), folder / f"{name}.source.onnx.xz")
        source = _source(name, folder)
        optimized, plan = collection.optimize(source)
        size = skeletons.strip(optimized, source, folder / f"{name}.onnx.xz")
        (folder / f"{name}.plan.json").write_text(json.dumps(describe(plan), indent=1))
        return f"{size / 1e3:.0f} KB, {len(plan.regions)} regions"

    Collection.prepare(folder, arch, names, write_one)


def _source(name: str, folder: pathlib.Path) -> Any:
    return skeletons.original("bert") if name == FLOAT16 else quantized.unpack(folder / f"{name}.source.onnx.xz")


def measure(name: str, folder: pathlib.Path, device: str) -> dict[str, Any]:
    """Compare, count and time one graph in every way."""
    source = _source(name, folder)
    given = skeletons.sample_inputs(skeletons.original("bert"), "bert")
    given = {source.graph.input[0].name: next(iter(given.values()))}
    optimized = skeletons.restore(folder / f"{name}.onnx.xz", source).SerializeToString()
    plain = source.SerializeToString()
    del source
    ways: dict[str, dict[str, Any]] = {"default": {"model": plain, "library": None}}
    if name != FLOAT16:
        ways["folded"] = {"model": plain, "library": None, "entries": _FOLDED}
    ways["onnxopt"] = {"model": optimized, "library": library(folder), "entries": _FOLDED}
    ways["inlined"] = {"model": optimized, "library": None, "entries": _FOLDED}
    exact = _open({"model": plain, "library": None}, device, options={"use_tf32": "0"} if device != "cpu" else {})
    expected = exact.run(None, given)[0]
    del exact
    row: dict[str, Any] = json.loads((folder / f"{name}.plan.json").read_text())
    row["compare"], row["kernels"] = {}, {}
    for label, way in ways.items():
        opened = _open(way, device)
        row["compare"][label] = compare(opened.run(None, given)[0], expected)
        del opened
    if device == "cpu":
        return row
    if not disagreeing(row):
        row["ms"] = timings({k: way for k, way in ways.items() if k != "inlined"}, given)
    row["kernels"] = {label: launches(_open(way, device), given) for label, way in ways.items()}
    return row


def _open(way: dict[str, Any], device: str, **more: Any) -> Any:
    return session(way["model"], way["library"], device, entries=way.get("entries", {}), **more)


def timings(ways: dict[str, dict[str, Any]], given: dict[str, Any]) -> dict[str, Any]:
    """Milliseconds a run, the sessions in turn: best and median of the rounds.

    In a CUDA graph, where ONNX Runtime takes one: not for a graph with nodes on the CPU.
    """
    harness = skeletons.harness()
    bounds, captured = {}, {}
    for label, way in ways.items():
        try:
            bounds[label], captured[label] = harness.Bound(_open(way, "cuda", cuda_graph=True), given), True
        except Exception:  # noqa: BLE001  (ORT's errors have no common class)
            bounds[label], captured[label] = harness.Bound(_open(way, "cuda"), given), False
    times = collections.defaultdict(list)
    for k in range(_ROUNDS):
        for label, run in bounds.items():
            times[label].append(harness.milliseconds(run, _RUNS, warmup=8 if k == 0 else 2, repeats=1))
    return {
        label: {"best": min(v), "median": statistics.median(v), "all": v, "captured": captured[label]}
        for label, v in times.items()
    }


def disagreeing(row: dict[str, Any]) -> list[str]:
    """The ways whose outputs have other NaNs than the quantized graph, or point elsewhere."""
    return [k for k, v in row["compare"].items() if not v["same_nan"] or v["cosine"] < _COSINE]


def table(rows: dict[str, Any]) -> str:
    """The rows as markdown."""
    lines = ["| graph | way | launches | device us | CUDA graph, ms | cosine | max abs |", "|---" * 7 + "|"]
    for name, row in rows.items():
        if "error" in row:
            lines.append(f"| {name} | {row['error'][:200]} |" + " |" * 5)
            continue
        for label, found in row["compare"].items():
            counted = row["kernels"].get(label, {})
            timed = row.get("ms", {}).get(label, {})
            best = timed.get("best")
            cells = [name, label, str(counted.get("launches", "-")), str(counted.get("device_us", "-"))]
            cells += [
                "-" if best is None else f"{best:.3f}" + ("" if timed["captured"] else " (no graph)"),
                f"{found['cosine']:.6f}",
                f"{found['max_abs']:.2e}",
            ]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def run(folder: pathlib.Path, device: str, names: list[str], out: pathlib.Path | None) -> int:
    """Measure the graphs; 0 if every output agrees."""
    return over_models(names, lambda name: measure(name, folder, device), disagreeing, table, out)


if __name__ == "__main__":
    sys.exit(main_over_models(__doc__, list(MODELS), prepare, run))
