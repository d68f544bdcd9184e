"""Predicted times of models on one GPU beside those that were measured there.

    python -m benchmarks cpu.predicted [--out benchmarks/results/models/predicted_h200.json]

The graphs are the skeletons that models.peers measures, in float16; their weights are drawn here (.gpu/). Measured, in
a CUDA graph: ONNX Runtime on the exported graph (before), and onnxopt (after). The shares of the peaks in
onnxopt/runtime/predicted.py were chosen by these models, all but the held-out one, which checks them.
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import tempfile
from collections.abc import Sequence

import onnx_ir as ir

from benchmarks.support import fusing, skeletons
from onnxopt.fusion import work
from onnxopt.fusion.work import Work
from onnxopt.graph import normalize, rewrite, signature
from onnxopt.graph.passes.transposed_weights import TransposeWeightsPass
from onnxopt.runtime import predicted
from onnxopt.runtime.gpus import catalogue

RESULTS = pathlib.Path(__file__).parents[1] / "results" / "models"
GPU = "h200"
MEASURED = ("gpu_peers_h200.json", "gpu_convolution_peers_h200.json")
BEFORE, AFTER = "ORT + CUDA graph", "onnxopt"
HELD_OUT = frozenset({"llama_decode"})


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each model, and write all of them."""
    parser = argparse.ArgumentParser(prog="cpu.predicted", description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS / f"predicted_{GPU}.json")
    parser.add_argument("names", nargs="*", help="models; default all that were measured")
    options = parser.parse_args(arguments)
    measured = measurements()
    models = {name: row_of(name, *measured[name]) for name in options.names or measured}
    document = {"gpu": GPU, "measured_in": list(MEASURED), "models": models, "summary": summary(models)}
    options.out.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document["summary"], indent=1))


def measurements() -> dict[str, tuple[float, float]]:
    """Milliseconds before and after, by model."""
    rows = {}
    for name in MEASURED:
        for model, row in json.loads((RESULTS / name).read_text()).items():
            if isinstance(row, dict) and {BEFORE, AFTER} <= row.keys():
                rows[model] = (row[BEFORE], row[AFTER])
    return rows


def row_of(name: str, before_ms: float, after_ms: float) -> dict[str, float]:
    """Predicted and measured milliseconds of a model."""
    gpu = catalogue()[GPU]
    before, after = kernels(ir.serde.deserialize_model(skeletons.original(name)))
    row = {
        "predicted_before": round(1e3 * predicted.seconds(before, gpu), 4),
        "measured_before": before_ms,
        "predicted_after": round(1e3 * predicted.seconds(after, gpu), 4),
        "measured_after": after_ms,
    }
    print(f"{name:16}" + "".join(f"{key} {value:8.3f}   " for key, value in row.items()), flush=True)
    return row


def kernels(model: ir.Model) -> tuple[tuple[Work, ...], tuple[Work, ...]]:
    """The work of a model's kernels before and after optimizing, as the pipeline counts it."""
    normalized = normalize.normalize(model).model
    inputs = signature.inputs_of(normalized)
    sizes = signature.typical(inputs, {})
    before = work.model_work(normalized, sizes)
    rewritten = normalized.clone()
    with tempfile.TemporaryDirectory() as scratch:
        rewrite.rewrite(rewritten, pathlib.Path(scratch))
        TransposeWeightsPass(gpu=True)(rewritten)
        after = work.model_work(rewritten, sizes, fusing.fuse(rewritten).regions)
    assert before is not None and after is not None
    return before, after


def summary(models: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Measured over predicted time: the least, the geometric mean and the greatest, of the models of each group."""
    groups = {
        f"{side}{of}": [
            row[f"measured_{side}"] / row[f"predicted_{side}"]
            for name, row in models.items()
            if held is (name in HELD_OUT)
        ]
        for side in ("before", "after")
        for of, held in (("", False), (", held out", True))
    }
    return {
        name: {
            "least": round(min(ratios), 2),
            "mean": round(math.exp(sum(map(math.log, ratios)) / len(ratios)), 2),
            "greatest": round(max(ratios), 2),
        }
        for name, ratios in groups.items()
        if ratios
    }


if __name__ == "__main__":
    main()
