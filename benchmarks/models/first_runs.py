"""What the first run of a new size costs after `onnxopt tune`: networks with dynamic dims, on the GPU machine.

    python -m benchmarks.models.first_runs [NAME...] [--budget 20s] [--out OUT.json]

Each network is optimized twice, without and with `--shape` of its usual size, and tuned at that size. A new process
loads the artifact, runs the usual size, and then runs each other size three times: the first run, less the faster of
the next two, is what the new size costs. A second process shows what is left of it. Then every size is timed in a CUDA
graph of its own, in one session. Outputs are compared with those of ONNX Runtime's CUDA provider. Exit code 1 where an
output differs. Needs what the tests marked gpu need there.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import multiprocessing
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np
import onnx

from benchmarks.models.dynamic import Captured
from benchmarks.models.exports import compare
from benchmarks.support import skeletons
from benchmarks.support.gpu_timing import session

SIZES: dict[str, list[tuple[int, ...]]] = {  # the usual one, then new ones
    "csp_detector_dyn": [(8, 3, 640, 640), (2, 3, 480, 640), (4, 3, 384, 672), (1, 3, 1280, 736), (3, 3, 544, 608)],
    "resnet50_dyn": [(32, 3, 224, 224), (8, 3, 224, 224), (5, 3, 224, 224), (1, 3, 224, 224), (48, 3, 224, 224)],
    "convnext_dyn": [(16, 3, 224, 224), (4, 3, 224, 224), (3, 3, 224, 224), (1, 3, 224, 224), (24, 3, 224, 224)],
}
_RUNS = 3
_TIMED = 30


def image(shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(1).standard_normal(shape, np.float32).astype(np.float16)}


def expected(model: pathlib.Path, name: str, out: pathlib.Path) -> None:
    """Write ONNX Runtime's outputs at every size."""
    run = session(str(model), None, "cuda")
    np.savez(out, *(run.run(None, image(shape))[0] for shape in SIZES[name]))


def first_runs(artifact: pathlib.Path, name: str, exact: pathlib.Path) -> list[dict[str, Any]]:
    """Milliseconds of the runs of every size, in their order, and whether they agree with those in `exact`."""
    import onnxopt

    run = onnxopt.load(artifact)
    rows = []
    for shape, wanted in zip(SIZES[name], np.load(exact).values(), strict=True):
        given, times = image(shape), []
        for _ in range(_RUNS):
            started = time.perf_counter()
            found = run.run(None, given)[0]
            times.append((time.perf_counter() - started) * 1e3)
        cost = times[0] - min(times[1:])
        row = {"shape": shape, "ms": times, "cost_ms": cost, "agrees": compare(found, wanted)["agrees"]}
        rows.append(row)
    return rows


def in_graphs(artifact: pathlib.Path, name: str, exact: pathlib.Path) -> list[dict[str, Any]]:
    """Milliseconds of every size in a CUDA graph, all in one session."""
    options = json.loads((artifact / "providers" / "cuda.json").read_text())["provider_options"]
    chosen = {k: v for k, v in options.items() if "conv" in k or "nhwc" in k}
    library = str(artifact / "lib" / "libonnxopt_ops.so")
    run = session(str(artifact / "model.onnx"), library, "cuda", cuda_graph=True, options=chosen)
    outputs = [np.load(exact)[f"arr_{at}"] for at in range(len(SIZES[name]))]
    runs = [
        Captured(run, image(shape), [wanted.shape], at + 1)
        for at, (shape, wanted) in enumerate(zip(SIZES[name], outputs, strict=True))
    ]
    for _ in range(3):
        for captured in runs:
            captured()
    harness = skeletons.harness()
    return [
        {
            "ms": harness.milliseconds(captured, _TIMED, warmup=3, repeats=3),
            "agrees": compare(captured.outputs[0].numpy(), wanted)["agrees"],
        }
        for captured, wanted in zip(runs, outputs, strict=True)
    ]


def in_new_process(work: Any, *arguments: Any) -> Any:
    """What `work` returns in a process of its own."""
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn) as pool:
        return pool.submit(work, *arguments).result()


def measure(name: str, folder: pathlib.Path, budget: str) -> dict[str, Any]:
    """The rows of one network, without and with its usual size."""
    model, exact = folder / f"{name}.onnx", folder / f"{name}.npz"
    onnx.save(skeletons.original(name), model)
    in_new_process(expected, model, name, exact)
    usual = "x=" + "x".join(map(str, SIZES[name][0]))
    result: dict[str, Any] = {}
    for label, shape in (("dynamic", []), ("usual", ["--shape", usual])):
        artifact = folder / f"{name}_{label}"
        _onnxopt("optimize", str(model), "-o", str(artifact), "--arch", "sm_90", "--no-verify", *shape)
        _onnxopt("tune", str(artifact), "--budget", budget, "--shape", usual)
        result[label] = [in_new_process(first_runs, artifact, name, exact) for _ in range(2)]
        for rows in result[label]:
            print(f"{name}, {label}: " + ", ".join(f"{r['cost_ms']:.0f}" for r in rows) + " ms", flush=True)
        result[label].append(in_new_process(in_graphs, artifact, name, exact))
    return result


def _onnxopt(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", "onnxopt", *arguments], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"onnxopt {' '.join(arguments)}: exit code {done.returncode}\n{done.stderr[-2000:]}")


def table(rows: dict[str, Any]) -> str:
    """The rows as markdown."""
    lines = [
        "| network | artifact | size | first process, ms | second process | in a graph | agrees |",
        "|" + "---|" * 7,
    ]
    for name, forms in rows.items():
        for label, processes in forms.items():
            for a, b, graph in zip(*processes, strict=True):
                costs = f"{a['cost_ms']:.1f} | {b['cost_ms']:.1f} | {graph['ms']:.3f}"
                agrees = a["agrees"] and b["agrees"] and graph["agrees"]
                lines.append(f"| {name} | {label} | {'x'.join(map(str, a['shape']))} | {costs} | {agrees} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(SIZES))
    parser.add_argument("--budget", default="20s")
    parser.add_argument("--out", type=pathlib.Path)
    args = parser.parse_args()
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as place:
        for name in args.names:
            rows[name] = measure(name, pathlib.Path(place), args.budget)
            if args.out is not None:
                args.out.write_text(json.dumps(rows, indent=1))
    print(table(rows))
    found = [row for forms in rows.values() for processes in forms.values() for runs in processes for row in runs]
    return 0 if all(row["agrees"] for row in found) else 1


if __name__ == "__main__":
    sys.exit(main())
