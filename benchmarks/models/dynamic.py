"""Graphs with dynamic dims before and after onnxopt: one session, several shapes, a CUDA graph for each.

    python -m benchmarks.models.dynamic prepare DIR --arch sm_90     on any machine, without a GPU; needs .gpu/
    python -m benchmarks.models.dynamic run DIR                      on the GPU machine: onnxruntime, numpy, torch, onnx

DIR is as models.exports writes it. A graph that ONNX Runtime cannot capture runs without a CUDA graph. At every shape,
the outputs of both sessions are compared before anything is timed, through the captured graphs too. Both are timed in
turn. models.peers times torch.compile for the same shapes.
"""

from __future__ import annotations

import collections
import pathlib
import statistics
import sys
from typing import Any

import numpy as np

from benchmarks.models.exports import compare, prepare
from benchmarks.support import skeletons
from benchmarks.support.arguments import main_over_models, over_models
from benchmarks.support.gpu_timing import library, session

SIZES: dict[str, list[dict[str, int]]] = {
    "bert_dyn": [{"batch": 8, "seq": 128}, {"batch": 1, "seq": 37}, {"batch": 4, "seq": 384}],
    "vit_dyn": [{"batch": 16}, {"batch": 1}, {"batch": 5}],
    "llama_dyn": [{"batch": 1, "seq": 512}, {"batch": 2, "seq": 100}, {"batch": 1, "seq": 1024}],
    "llama_decode_dyn": [{"past": 512}, {"past": 4096}, {"batch": 4, "past": 1024}],
}
_ROUNDS = 6
_RUNS = 30


class Captured:
    """One shape of a session with enable_cuda_graph: inputs and outputs at fixed places, and a graph of its own."""

    def __init__(self, run_in: Any, given: dict[str, np.ndarray], shapes: list[tuple[int, ...]], graph: int):
        import onnxruntime as ort

        self.session, self.binding = run_in, run_in.io_binding()
        self.inputs = {k: ort.OrtValue.ortvalue_from_numpy(v, "cuda", 0) for k, v in given.items()}
        for name, value in self.inputs.items():
            self.binding.bind_ortvalue_input(name, value)
        self.outputs = []
        for output, shape in zip(run_in.get_outputs(), shapes, strict=True):
            dtype = np.float16 if "float16" in output.type else np.float32
            self.outputs.append(ort.OrtValue.ortvalue_from_shape_and_type(list(shape), dtype, "cuda", 0))
            self.binding.bind_ortvalue_output(output.name, self.outputs[-1])
        self.options = ort.RunOptions()
        self.options.add_run_config_entry("gpu_graph_id", str(graph))

    def __call__(self) -> None:
        self.session.run_with_iobinding(self.binding, self.options)


Runs = dict[str, list[tuple["Captured", list[np.ndarray]]]]


def measure(name: str, folder: pathlib.Path, device: str) -> dict[str, Any]:
    """Every shape of one model: compared plainly and through CUDA graphs, then milliseconds of both."""
    row, runs = compared(name, folder, device)
    if device != "cpu":
        time_in_turn(name, row, runs)
    return row


def compared(name: str, folder: pathlib.Path, device: str) -> tuple[dict[str, Any], Runs]:
    """Every shape of one model before and after, and their captured runs."""
    source = skeletons.original(name)
    givens = [skeletons.sample_inputs(source, name, **sizes) for sizes in SIZES[name]]
    models = {
        "before": (source.SerializeToString(), None),
        "after": (skeletons.restore(folder / f"{name}.onnx.xz", source).SerializeToString(), library(folder)),
    }
    del source
    row: dict[str, Any] = {label(sizes): {} for sizes in SIZES[name]}
    expected = []
    for which, (model, ops) in models.items():
        plain = session(model, ops, device)
        for cell, given, at in zip(row.values(), givens, range(len(givens)), strict=True):
            found = plain.run(None, given)
            if which == "before":
                expected.append(found)
            else:
                cell["compare"] = worst(found, expected[at])
        del plain
    if device == "cpu":
        return row, {}
    runs = captured(models, givens, expected)
    for at, cell in enumerate(row.values()):
        cell["compare_graph"] = {which: worst(runs[which][at][1], expected[at]) for which in models}
    return row, runs


def time_in_turn(name: str, row: dict[str, Any], runs: Runs) -> None:
    """Milliseconds of both at every shape, into the row."""
    times: dict[tuple[str, int], list[float]] = collections.defaultdict(list)
    harness = skeletons.harness()
    for _ in range(_ROUNDS):
        for which in runs:
            for at in range(len(runs[which])):
                times[which, at].append(harness.milliseconds(runs[which][at][0], _RUNS, warmup=3, repeats=1))
    for (which, at), values in times.items():
        result = {"best": min(values), "median": statistics.median(values), "all": values}
        row[label(SIZES[name][at])][f"{which}_ms"] = result


def captured(
    models: dict[str, tuple[bytes, str | None]], givens: list[dict[str, np.ndarray]], expected: list[list[np.ndarray]]
) -> Runs:
    """Each model's graphs, one a shape, and what each of them gives once all are captured."""
    graphs: dict[str, list[Captured]] = {}
    for which, (model, ops) in models.items():
        try:
            run_in = session(model, ops, "cuda", cuda_graph=True)
        except Exception as error:  # noqa: BLE001 - ONNX Runtime does not capture every exported graph
            print(f"{which}: without a CUDA graph: {str(error)[:200]}", flush=True)
            run_in = session(model, ops, "cuda")
        graphs[which] = [
            Captured(run_in, given, [o.shape for o in outputs], at + 1)
            for at, (given, outputs) in enumerate(zip(givens, expected, strict=True))
        ]
        for _ in range(3):
            for run in graphs[which]:
                run()
    return {which: [(run, [o.numpy() for o in run.outputs]) for run in runs] for which, runs in graphs.items()}


def worst(found: list[np.ndarray], expected: list[np.ndarray]) -> dict[str, Any]:
    """The comparison of the output that agrees least."""
    rows = [compare(a, b) for a, b in zip(found, expected, strict=True)]
    return min(rows, key=lambda r: (r["agrees"], r["cosine"]))


def label(sizes: dict[str, int]) -> str:
    return " ".join(f"{name} {size}" for name, size in sizes.items())


def run(folder: pathlib.Path, device: str, names: list[str], out: pathlib.Path | None) -> int:
    """Measure the models; 0 if every output agrees."""

    def disagreeing(row: dict[str, Any]) -> list[str]:
        checks = {k: [cell["compare"], *cell.get("compare_graph", {}).values()] for k, cell in row.items()}
        return [shape for shape, found in checks.items() if not all(check["agrees"] for check in found)]

    return over_models(names, lambda name: measure(name, folder, device), disagreeing, table, out)


def table(rows: dict[str, Any]) -> str:
    """The rows as markdown."""
    lines = ["| model | shape | ORT + CUDA graph before, ms | after, ms | ratio | cosine |", "|" + "---|" * 6]
    for name, row in rows.items():
        if "error" in row:
            lines.append(f"| {name} | {row['error'][:300]} |" + " |" * 4)
            continue
        for shape, cell in row.items():
            times = [cell[f"{which}_ms"]["best"] if f"{which}_ms" in cell else None for which in ("before", "after")]
            texts = ["-" if t is None else f"{t:.3f}" for t in times]
            ratio = f"{times[0] / times[1]:.2f}" if None not in times else "-"
            lines.append(f"| {name} | {shape} | {' | '.join(texts)} | {ratio} | {cell['compare']['cosine']:.6f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main_over_models(__doc__, list(SIZES), prepare, run))
