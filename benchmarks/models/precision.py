"""float32 exports that `--precision float16` lowers, beside the float16 exports of the same networks.

    python -m benchmarks.models.precision prepare DIR --arch sm_90   on any machine, without a GPU; needs .gpu/
    python -m benchmarks.models.precision run DIR                    on the GPU machine: onnxruntime, numpy, torch, onnx

The float32 export is the float16 one with its weights, constants and interface in float32, so that both have the same
weights, which are drawn again from a seed on the GPU machine. Ranges are measured with the inputs that are timed.
Outputs are compared before anything is timed; all sessions run in one process and are timed in turn.
"""

from __future__ import annotations

import collections
import gc
import json
import pathlib
import statistics
import sys
import tempfile
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from benchmarks.models import exports as models
from benchmarks.support import skeletons
from benchmarks.support.arguments import main_over_models, over_models
from benchmarks.support.gpu_timing import library, session

MODELS = ("bert", "vit", "whisperenc", "convnext")
_ROUNDS = 8
_RUNS = 30


def prepare(folder: pathlib.Path, arch: str, names: list[str]) -> None:
    """Write both optimized skeletons of every model, and one library with the kernels of all."""
    from benchmarks.support.collection import Collection, describe

    def write_one(collection: Collection, name: str) -> str:
        source = skeletons.original(name)
        row: dict[str, Any] = {"options": models.provider_options(source)}
        with tempfile.TemporaryDirectory() as scratch:
            lowered, row["quality"] = lower(source, name, pathlib.Path(scratch))
        for label, model in (("export", source), ("lowered", lowered)):
            optimized, plan = collection.optimize(model)
            row[label] = {"nodes": len(optimized.graph.node), **describe(plan)}
            skeletons.strip(optimized, source, folder / f"{name}_{label}.onnx.xz")
            del optimized
        (folder / f"{name}.plan.json").write_text(json.dumps(row, indent=1))
        counts = {label: (row[label]["nodes"], row[label]["regions"]) for label in ("export", "lowered")}
        return f"nodes and regions {counts}, {row['quality']}"

    Collection.prepare(folder, arch, names, write_one)


def lower(source: onnx.ModelProto, name: str, scratch: pathlib.Path) -> tuple[onnx.ModelProto, list[str]]:
    """The float32 form of a float16 export, lowered to float16 again, and the quality of its outputs."""
    from onnxopt.artifact.summary import quality_text
    from onnxopt.graph import normalize, read, rewrite, traits
    from onnxopt.verification.coverage import Coverage, ModelFile
    from onnxopt.verification.lowering import narrowing
    from onnxopt.verification.rounding import widening
    from onnxopt.verification.sampling.user_data import read_data
    from onnxopt.verification.verify import references

    onnx.save(source, scratch / "source.onnx")
    (scratch / "wide").mkdir()
    loaded = read.load(widening.widen(scratch / "source.onnx", scratch / "wide"))
    known = traits.of(loaded.model)
    data = read_data([_wide(models.feeds(source, name))], known.inputs)
    file = ModelFile(loaded.path, known, loaded.bytes)
    reference = references(file, Coverage(data=data), folder=scratch)[0]
    normalized = normalize.normalize(loaded.model).model
    rewrite.prepare_float32(normalized)
    found = narrowing.narrow(normalized, reference, ir.DataType.FLOAT16, scratch)
    return _named_as(source, onnx.load(found.folder / "model.onnx")), [quality_text(row) for row in found.quality]


def _named_as(source: onnx.ModelProto, lowered: onnx.ModelProto) -> onnx.ModelProto:
    """The lowered model with the weights' names in the export, by which skeletons know them."""
    known = {tensor.name for tensor in source.graph.initializer} - {t.name for t in lowered.graph.initializer}
    names = {f"{name}_float16": name for name in known}
    for tensor in lowered.graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    for node in lowered.graph.node:
        for k, name in enumerate(node.input):
            node.input[k] = names.get(name, name)
    return lowered


def _wide(given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Inputs of the float32 export."""
    return {k: v.astype(np.float32) if v.dtype == np.float16 else v for k, v in given.items()}


def measure(name: str, folder: pathlib.Path, device: str) -> dict[str, Any]:
    """Compare and time the original in ONNX Runtime, and both optimized models."""
    source = skeletons.original(name)
    given, lib = models.feeds(source, name), library(folder)
    row: dict[str, Any] = json.loads((folder / f"{name}.plan.json").read_text())
    built = {
        label: skeletons.restore(folder / f"{name}_{label}.onnx.xz", source).SerializeToString()
        for label in ("export", "lowered")
    }
    sides = {
        "before": (source.SerializeToString(), None, given),
        "export": (built["export"], lib, given),
        "lowered": (built["lowered"], lib, _wide(given)),
    }
    del source
    outputs = {k: _session(v, row, device).run(None, v[2])[0].astype(np.float32) for k, v in sides.items()}
    row["compare"] = {k: models.compare(outputs[k], outputs["before"]) for k in ("export", "lowered")}
    if device == "cpu" or not all(compared["agrees"] for compared in row["compare"].values()):
        return row
    harness = skeletons.harness()
    for method, graph in (("cuda_graph", True), ("no_graph", False)):
        bounds = {k: harness.Bound(_session(v, row, "cuda", graph), v[2]) for k, v in sides.items()}
        times = collections.defaultdict(list)
        for k in range(_ROUNDS):
            for label, run_one in bounds.items():
                times[label].append(harness.milliseconds(run_one, _RUNS, warmup=8 if k == 0 else 2, repeats=1))
        row[method] = {k: {"best": min(v), "median": statistics.median(v)} for k, v in times.items()}
        del bounds
        gc.collect()
    return row


def _session(side: tuple[bytes, str | None, Any], row: dict[str, Any], device: str, cuda_graph: bool = False) -> Any:
    model, lib, _ = side
    return session(model, lib, device, cuda_graph=cuda_graph, options=row["options"] if lib else {})


def table(rows: dict[str, Any]) -> str:
    """The rows as markdown: best milliseconds, with a CUDA graph and without."""
    lines = [
        "| model | ORT float16 | export | lowered | no graph: ORT | export | lowered | cosine export | lowered |",
        "|" + "---|" * 9,
    ]
    for name, row in rows.items():
        if "error" in row:
            lines.append(f"| {name} | {row['error'][:200]} |" + " |" * 7)
            continue
        cells = [name]
        for method in ("cuda_graph", "no_graph"):
            best = row.get(method, {})
            cells += [f"{best[k]['best']:.3f}" if k in best else "-" for k in ("before", "export", "lowered")]
        cells += [f"{row['compare'][k]['cosine']:.6f}" for k in ("export", "lowered")]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def run(folder: pathlib.Path, device: str, names: list[str], out: pathlib.Path | None) -> int:
    """Measure the models; 0 if every output agrees."""

    def disagreeing(row: dict[str, Any]) -> list[str]:
        return [k for k, compared in row["compare"].items() if not compared["agrees"]]

    return over_models(names, lambda name: measure(name, folder, device), disagreeing, table, out)


if __name__ == "__main__":
    sys.exit(main_over_models(__doc__, list(MODELS), prepare, run))
