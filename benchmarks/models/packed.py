"""A decoding step with weights of 4 and 8 bits (MatMulNBits) beside ONNX Runtime's own kernels, and with float16 ones.

    python -m benchmarks.models.packed prepare DIR --arch sm_90     on any machine, without a GPU; needs .gpu/
    python -m benchmarks.models.packed run DIR                      on the GPU machine: onnxruntime, numpy, torch, onnx

One token of each sequence behind a cache of 512. DIR holds graphs without weights. Both sides draw the same codes from
a seed. The outputs are compared before anything is timed. All sessions of a row run in one process, in turn.
"""

from __future__ import annotations

import gc
import json
import pathlib
import statistics
import sys
from typing import Any

from benchmarks.models.exports import compare, launches
from benchmarks.support import packed, skeletons
from benchmarks.support.arguments import main_over_models, over_models
from benchmarks.support.gpu_timing import library, session

_GRAPHS = {1: "llama_decode", 8: "llama_decode_dyn"}  # by sequences
_BITS = (4, 8, 16)
MODELS = tuple(f"{bits} bits x {batch}" for batch in _GRAPHS for bits in _BITS)
_ROUNDS = 6
_RUNS = 30


def _parts(name: str) -> tuple[int, int]:
    bits, batch = name.split(" bits x ")
    return int(bits), int(batch)


def _file(name: str, folder: pathlib.Path) -> pathlib.Path:
    return folder / f"{name.replace(' ', '_')}.onnx.xz"


def prepare(folder: pathlib.Path, arch: str, names: list[str]) -> None:
    """Write every optimized graph, and one library with the kernels of all."""
    from benchmarks.support.collection import Collection, describe

    def write_one(collection: Collection, name: str) -> str:
        bits, batch = _parts(name)
        source = packed.graph(_GRAPHS[batch], bits)
        optimized, plan = collection.optimize(source)
        size = skeletons.strip(optimized, source, _file(name, folder))
        _file(name, folder).with_suffix(".plan.json").write_text(json.dumps(describe(plan), indent=1))
        return f"{size / 1e3:.0f} KB, {describe(plan)}"

    Collection.prepare(folder, arch, names, write_one)


def measure(name: str, folder: pathlib.Path, device: str) -> dict[str, Any]:
    """Compare, count and time one graph, by ONNX Runtime and by onnxopt."""
    bits, batch = _parts(name)
    source = packed.graph(_GRAPHS[batch], bits)
    given = skeletons.sample_inputs(source, _GRAPHS[batch], batch=batch)
    ours = skeletons.restore(_file(name, folder), source).SerializeToString()
    ways = {"ORT": (source.SerializeToString(), None), "onnxopt": (ours, library(folder)), "inlined": (ours, None)}
    del source
    row: dict[str, Any] = {"kernels": {}}
    outputs = {}
    for label, (model, ops) in ways.items():
        opened = session(model, ops, device)
        outputs[label] = opened.run(None, given)[0]
        del opened
    row["compare"] = compare(outputs["onnxopt"], outputs["ORT"])
    row["compare_inlined"] = compare(outputs["inlined"], outputs["ORT"])
    if device == "cpu" or not row["compare"]["agrees"]:
        return row
    harness = skeletons.harness()
    bounds, row["captured"] = {}, {}
    for k in ("ORT", "onnxopt"):
        row["captured"][k] = True
        try:
            bounds[k] = harness.Bound(session(*ways[k], "cuda", cuda_graph=True), given)
        except Exception:  # noqa: BLE001  (of graphs with nodes on the CPU; ORT's errors have no common class)
            bounds[k], row["captured"][k] = harness.Bound(session(*ways[k], "cuda"), given), False
    times: dict[str, list[float]] = {k: [] for k in bounds}
    for k in range(_ROUNDS):
        for label, run in bounds.items():
            times[label].append(harness.milliseconds(run, _RUNS, warmup=8 if k == 0 else 2, repeats=1))
    row["ms"] = {k: {"best": min(v), "median": statistics.median(v), "all": v} for k, v in times.items()}
    del bounds
    gc.collect()
    row["kernels"] = {label: launches(session(model, ops, device), given) for label, (model, ops) in ways.items()}
    return row


def table(rows: dict[str, Any]) -> str:
    """The rows as markdown."""
    lines = ["| weights x sequences | ORT, CUDA graph, ms | onnxopt | cosine | max abs |", "|---" * 5 + "|"]
    for name, row in rows.items():
        if "error" in row:
            lines.append(f"| {name} | {row['error'][:200]} |" + " |" * 3)
            continue
        best = [_milliseconds(row, k) for k in ("ORT", "onnxopt")]
        found = row["compare"]
        lines.append(f"| {name} | {' | '.join(best)} | {found['cosine']:.6f} | {found['max_abs']:.2e} |")
    return "\n".join(lines)


def _milliseconds(row: dict[str, Any], way: str) -> str:
    if "ms" not in row:
        return "-"
    return f"{row['ms'][way]['best']:.3f}" + ("" if row["captured"][way] else " (no graph)")


def run(folder: pathlib.Path, device: str, names: list[str], out: pathlib.Path | None) -> int:
    """Measure the graphs; 0 if every output agrees."""

    def disagreeing(row: dict[str, Any]) -> list[str]:
        return [k for k in ("compare", "compare_inlined") if not row[k]["agrees"]]

    return over_models(names, lambda name: measure(name, folder, device), disagreeing, table, out)


if __name__ == "__main__":
    sys.exit(main_over_models(__doc__, list(MODELS), prepare, run))
