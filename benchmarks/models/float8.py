"""Transformers with e4m3 codes around their products: onnxopt beside its own float16, checked against ONNX Runtime.

    python -m benchmarks.models.float8 prepare DIR --arch sm_90     on any machine, without a GPU; needs .gpu/
    python -m benchmarks.models.float8 run DIR                      on the GPU machine: onnxruntime, numpy, torch, onnx

DIR holds graphs without weights (a few MB). "float16" is the exported graph, "float8" the same with Q and DQ around its
products with weights. In "mostly" small products behind attention stay float16, whose codes take a kernel of their own.
NAME@SIZES, which --only takes, is the dynamic graph at those sizes, as of models.peers.
"""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any

from benchmarks.models.exports import compare, launches
from benchmarks.models.quantized import timings
from benchmarks.support import float8, skeletons
from benchmarks.support.arguments import main_over_models, over_models
from benchmarks.support.gpu_timing import library, session
from benchmarks.support.torch_peers import graph_of

MODELS = ("bert", "vit", "whisperenc", "llama", "bert@128x128", "vit@128")
FORMS = ("float16", "float8", "mostly")
_NOT_MOSTLY = ("llama",)  # which has no small product behind attention
_FOLDED = {"session.disable_quant_qdq": "1"}


def prepare(folder: pathlib.Path, arch: str, names: list[str]) -> None:
    """Write what onnxopt makes of every model in every form, and one library with the kernels of all."""
    from benchmarks.support.collection import Collection, describe

    def write_one(collection: Collection, name: str) -> str:
        ranges = float8.ranges(name)
        (folder / f"{name}.ranges.json").write_text(json.dumps(ranges))
        said = []
        original = skeletons.original(graph_of(name)[0])
        for form in _forms(name):
            source = _source(original, name, form, folder)
            optimized, plan = collection.optimize(source)
            size = skeletons.strip(optimized, source, folder / f"{name}.{form}.onnx.xz")
            (folder / f"{name}.{form}.plan.json").write_text(json.dumps(describe(plan), indent=1))
            said.append(f"{form}: {size / 1e3:.0f} KB, {len(plan.regions)} regions")
        return ", ".join(said)

    Collection.prepare(folder, arch, names, write_one)


def _forms(name: str) -> tuple[str, ...]:
    return FORMS[:2] if name in _NOT_MOSTLY else FORMS


def _source(original: Any, name: str, form: str, folder: pathlib.Path) -> Any:
    if form == "float16":
        return original
    ranges = json.loads((folder / f"{name}.ranges.json").read_text())
    return float8.quantized(original, ranges, projections=form == "float8")


def measure(name: str, folder: pathlib.Path, device: str) -> dict[str, Any]:
    """Compare, count and time one model in every form."""
    exported, sizes = graph_of(name)
    original = skeletons.original(exported)
    given = skeletons.sample_inputs(original, exported, **sizes)
    row: dict[str, Any] = {"compare": {}, "beside_float16": {}, "ort_beside_float16": {}, "kernels": {}}
    ways: dict[str, dict[str, Any]] = {}
    exact = None
    for form in _forms(name):
        source = _source(original, name, form, folder)
        optimized = skeletons.restore(folder / f"{name}.{form}.onnx.xz", source).SerializeToString()
        plain = source.SerializeToString()
        del source
        ways[form] = {"model": optimized, "library": library(folder), "entries": _FOLDED}
        expected = _open({"model": plain, "library": None, "entries": _FOLDED}, device).run(None, given)[0]
        exact = expected if exact is None else exact
        opened = _open(ways[form], device)
        found = opened.run(None, given)[0]
        row["compare"][form] = compare(found, expected)
        row["beside_float16"][form] = compare(found, exact)
        row["ort_beside_float16"][form] = compare(expected, exact)
        del opened
    del original
    if device != "cpu":
        if not disagreeing(row):
            row["ms"] = timings(ways, given)
        row["kernels"] = {form: launches(_open(way, device), given) for form, way in ways.items()}
    print(table({name: row}), flush=True)
    return row


def _open(way: dict[str, Any], device: str) -> Any:
    return session(way["model"], way["library"], device, entries=way["entries"])


def disagreeing(row: dict[str, Any]) -> list[str]:
    """The forms whose outputs have other NaNs than the graph in ONNX Runtime, or lie farther from it than codes cost.

    A rounding may fall on the other side, which moves a value by a whole step.
    """
    costs = {k: max(1 - v["cosine"], 1e-3) for k, v in row["ort_beside_float16"].items()}
    return [k for k, v in row["compare"].items() if not v["same_nan"] or 1 - v["cosine"] > costs[k]]


def table(rows: dict[str, Any]) -> str:
    """The rows as markdown."""
    heads = ["model", "form", "launches", "device us", "CUDA graph, ms", "cosine with ORT", "with float16", "ORT's"]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for name, row in rows.items():
        if "error" in row:
            lines.append(f"| {name} | {row['error'][:300]} |" + " |" * 6)
            continue
        for form, found in row["compare"].items():
            counted, timed = row["kernels"].get(form, {}), row.get("ms", {}).get(form, {})
            best = timed.get("best")
            cells = [name, form, str(counted.get("launches", "-")), str(counted.get("device_us", "-"))]
            cells.append("-" if best is None else f"{best:.3f}" + ("" if timed["captured"] else " (no graph)"))
            beside = (row[k][form]["cosine"] for k in ("beside_float16", "ort_beside_float16"))
            cells += [f"{found['cosine']:.6f}", *(f"{cosine:.6f}" for cosine in beside)]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def run(folder: pathlib.Path, device: str, names: list[str], out: pathlib.Path | None) -> int:
    """Measure the models; 0 if every output agrees."""
    return over_models(names, lambda name: measure(name, folder, device), disagreeing, table, out)


if __name__ == "__main__":
    sys.exit(main_over_models(__doc__, list(MODELS), prepare, run))
