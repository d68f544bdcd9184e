"""Time and memory of onnxopt beside onnxslim, onnxsim and onnxscript's optimizer, each in its own process.

    python -m benchmarks cpu.optimizers [NAME ...]

Seconds run from reading the file to the optimized graph in memory, without imports. The rows "optimize" are the whole
job: kernels for every architecture, the artifact written and verified with and without the library. Memory is the peak
resident set of the process (VmHWM). The same less the memory after imports is given as a multiple of the model's size.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

MODELS = ("bert", "bert_dyn", "vit", "convnext", "efficientnet", "piper_vits_joe", "ppocr_det_v6")
_REPEATS = 3
_TIMEOUT = 900


def _graph(model: pathlib.Path, _cache: pathlib.Path) -> Callable[[], int]:
    from benchmarks.support.fusing import fuse, outlined
    from onnxopt.graph import normalize, read, rewrite
    from onnxopt.graph.passes.transposed_weights import TransposeWeightsPass

    def run() -> int:
        source = read.load(model)
        normalized = normalize.normalize(source.model).model
        with tempfile.TemporaryDirectory() as folder:
            rewrite.rewrite(normalized, pathlib.Path(folder))
            TransposeWeightsPass(gpu=True)(normalized)
            outlined(normalized, fuse(normalized))
        return len(normalized.graph)

    return run


def _optimize(model: pathlib.Path, cache: pathlib.Path) -> Callable[[], int]:
    import onnx

    from onnxopt.pipeline import flow

    def run() -> int:
        with tempfile.TemporaryDirectory() as folder:
            artifact = pathlib.Path(folder) / "artifact"
            flow.optimize(model, artifact, cache=cache)
            return len(onnx.load(artifact / "model.onnx", load_external_data=False).graph.node)

    return run


def _onnxslim(model: pathlib.Path, _cache: pathlib.Path) -> Callable[[], int]:
    import onnxslim

    return lambda: len(onnxslim.slim(str(model)).graph.node)


def _onnxsim(model: pathlib.Path, _cache: pathlib.Path) -> Callable[[], int]:
    import onnx
    import onnxsim

    return lambda: len(onnxsim.simplify(onnx.load(model))[0].graph.node)


def _onnxscript(model: pathlib.Path, _cache: pathlib.Path) -> Callable[[], int]:
    import onnx
    from onnxscript import optimizer

    return lambda: len(optimizer.optimize(onnx.load(model)).graph.node)


TOOLS: dict[str, Callable[[pathlib.Path, pathlib.Path], Callable[[], int]]] = {
    "onnxopt, load to outline": _graph,
    "onnxopt optimize, cold": _optimize,
    "onnxopt optimize, warm": _optimize,
    "onnxslim": _onnxslim,
    "onnxsim": _onnxsim,
    "onnxscript.optimizer": _onnxscript,
}


def child(tool: str, model: pathlib.Path, cache: pathlib.Path) -> dict[str, Any]:
    """What one process measures of one tool: seconds, peak and imported resident bytes, nodes left."""
    run = TOOLS[tool](model, cache)
    imported = _resident("VmRSS")
    start = time.perf_counter()
    nodes = run()
    return {
        "seconds": time.perf_counter() - start,
        "peak_bytes": _resident("VmHWM"),
        "imported_bytes": imported,
        "nodes": nodes,
    }


def _resident(field: str) -> int:
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.split(f"{field}:")[1].split()[0]) * 1024


def _spawn(tool: str, model: pathlib.Path, cache: pathlib.Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.cpu.optimizers", "--child", tool, str(model), str(cache)]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT)
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {_TIMEOUT} s"}
    if result.returncode:
        lines = [line for line in result.stderr.splitlines() if line.strip()]
        return {"error": lines[-1][:300] if lines else f"exit code {result.returncode}"}
    return dict(json.loads(result.stdout.splitlines()[-1]))


def measure(name: str) -> dict[str, Any]:
    """Every tool on one model: the run of median time of three, one run of the whole job cold and warm."""
    import onnx

    import models

    path = models.path(name)
    size = path.stat().st_size + (data.stat().st_size if (data := path.with_suffix(".onnx.data")).exists() else 0)
    row: dict[str, Any] = {"bytes": size, "nodes": len(onnx.load(path, load_external_data=False).graph.node)}
    path.read_bytes()  # the first tool must not be the one that reads the disk
    with tempfile.TemporaryDirectory() as cache:
        for tool in TOOLS:
            repeats = 1 if "cold" in tool else _REPEATS
            runs = [_spawn(tool, path, pathlib.Path(cache)) for _ in range(repeats)]
            done = sorted((r for r in runs if "error" not in r), key=lambda r: r["seconds"])
            best = done[len(done) // 2] if done else runs[0]
            if done:
                best["seconds"] = statistics.median(r["seconds"] for r in done)
                best["peak_of_model"] = best["peak_bytes"] / size
                best["above_imports_of_model"] = (best["peak_bytes"] - best["imported_bytes"]) / size
            row[tool] = best
    return row


def run(only: list[str]) -> dict[str, Any]:
    """Measure the models, print a table, write results/cpu/optimizers.json."""
    from benchmarks.support import cpu_timing as timing

    rows = {}
    for name in only or MODELS:
        rows[name] = measure(name)
        print(name, json.dumps(rows[name]), flush=True)
    header = ["model", "tool", "seconds", "nodes", "peak MB", "peak / model", "above imports / model"]
    lines = [_cells(name, tool, row) for name, row in rows.items() for tool in TOOLS]
    print(timing.markdown(header, lines))
    if not only:
        print(timing.save("optimizers", rows))
    return rows


def _cells(name: str, tool: str, row: dict[str, Any]) -> list[str]:
    found = row[tool]
    label = f"{name}, {row['bytes'] / 1e6:.0f} MB"
    if "error" in found:
        return [label, tool, found["error"], *["-"] * 4]
    ratios = [f"{found['peak_of_model']:.2f}", f"{found['above_imports_of_model']:.2f}"]
    nodes = f"{row['nodes']} -> {found['nodes']}"
    return [label, tool, f"{found['seconds']:.2f}", nodes, f"{found['peak_bytes'] / 1e6:.0f}", *ratios]


def main() -> None:
    """Measure the models; with --child, measure one tool on one model in this process, as `_spawn` asks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="measure only these models; the results are then not written")
    parser.add_argument("--child", nargs=3, metavar=("TOOL", "MODEL", "CACHE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is None:
        run(arguments.names)
        return
    tool, model, cache = arguments.child
    print(json.dumps(child(tool, pathlib.Path(model), pathlib.Path(cache))))


if __name__ == "__main__":
    main()
