"""CPU seconds and memory of each step over graphs of n, 2n and 4n nodes, and the slopes: 1 where work is linear.

    python -m benchmarks cpu.scaling [FORM ...] [--nodes N] [--out FILE]

A slope is the exponent e of time = c * nodes^e between the smallest and the largest graph. Each graph is measured in a
process of its own. Seconds are the process's CPU time, so that other load counts little. Memory is the peak resident
set during a step, the imports' 120 MB included. "fuse to outline" has the seconds of its four steps again. NVRTC and
verification are left out: the first one's time depends on the kernels, of which these graphs have few distinct ones,
and the second one's on the tensors.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from benchmarks.cases.growing_graphs import FORMS

_NODES = 12_500
_FACTORS = (1, 2, 4)
_TIMEOUT = 1800
_FUSING = ("fuse", "lower", "outline", "entry points")
_SHORT = 0.1  # seconds; the slope of a step that takes less says nothing
_RESULTS = pathlib.Path(__file__).parents[1] / "results" / "cpu"
_CLEAR_PEAK = "5"  # what /proc/PID/clear_refs takes to set VmHWM back to VmRSS


class _Steps:
    """CPU seconds and peak bytes by step. A step that comes twice adds up."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.peaks: dict[str, int] = {}

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        pathlib.Path("/proc/self/clear_refs").write_text(_CLEAR_PEAK)
        start = time.process_time()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.process_time() - start
        self.peaks[name] = max(self.peaks.get(name, 0), _resident("VmHWM"))


def _resident(field: str) -> int:
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.split(f"{field}:")[1].split()[0]) * 1024


def measure(path: pathlib.Path) -> dict[str, Any]:
    """The steps of optimizing the model at `path`, in the order of pipeline/flow.py: seconds, bytes and counts."""
    from onnxopt.artifact.report import facts
    from onnxopt.codegen import generate, kernels_json
    from onnxopt.fusion import entry_points, fuse, outline
    from onnxopt.fusion.lower import lower
    from onnxopt.graph import normalize, read, rewrite, write
    from onnxopt.graph.passes.transposed_weights import TransposeWeightsPass
    from onnxopt.kinds import KINDS

    step = _Steps()
    with tempfile.TemporaryDirectory() as folder:
        with step("read"):
            source = read.load(path)
        with step("facts"):
            before = facts.count(source.model)
        with step("normalize"):
            model = normalize.normalize(source.model).model
        with step("rewrite"):
            model = model.clone()
            rewrite.rewrite(model, pathlib.Path(folder))
            TransposeWeightsPass(gpu=True)(model)
        with step("fuse"):
            model = model.clone()
            plan = fuse.fuse(model, KINDS)
        with step("lower"):
            plan = lower(plan, model.opset_imports)
        with step("outline"):
            functions = outline.functions(plan, model.opset_imports)
        with step("entry points"):
            kernels = entry_points.choose(functions, model.opset_imports, plan.shapes)
        with step("outline"):
            outline.replace(model, functions)
        with step("generate"):
            generate.generate(kernels)
        with step("kernels.json"):
            kernels_json.to_json(kernels, None)
        with step("write"):
            write.save(model, folder)
        with step("facts"):
            facts.gather(before, model, kernels)
    return {
        "before": before.nodes, "after": len(model.graph), "kernels": len(kernels), "regions": len(plan.regions),
        "seconds": {**step.seconds, **_sums(step.seconds, sum)},
        "bytes": {**step.peaks, **_sums(step.peaks, max)},
    }  # fmt: skip


def _sums(of_steps: dict[str, Any], total: Callable[[Iterable[Any]], Any]) -> dict[str, Any]:
    """The figures of fusing, from `fuse` to `outline`, and of all steps."""
    return {"fuse to outline": total(of_steps[name] for name in _FUSING), "all": total(of_steps.values())}


def slope(small: float, large: float, factor: float) -> float | None:
    """The exponent of the growth from `small` to `large` seconds with `factor` times the nodes; None if too short."""
    return math.log(large / small) / math.log(factor) if large >= _SHORT and small > 0 else None


def _spawn(form: str, nodes: int) -> dict[str, Any]:
    """What `measure` gives of one graph, in a process of its own."""
    import onnx

    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "growing.onnx"
        onnx.save(FORMS[form](nodes), path)
        command = [sys.executable, "-m", "benchmarks.cpu.scaling", "--child", str(path)]
        try:
            result = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT)
        except subprocess.TimeoutExpired:
            return {"error": f"not done after {_TIMEOUT} s"}
    if result.returncode:
        lines = [line for line in result.stderr.splitlines() if line.strip()]
        return {"error": lines[-1][:300] if lines else f"exit code {result.returncode}"}
    return dict(json.loads(result.stdout.splitlines()[-1]))


def run(forms: Sequence[str], nodes: int) -> dict[str, Any]:
    """Measure the forms at three sizes and print a table for each. Form -> runs and slopes."""
    results: dict[str, Any] = {}
    for form in forms:
        runs = [_spawn(form, factor * nodes) for factor in _FACTORS]
        done = [r for r in runs if "error" not in r]
        slopes = {}
        if len(done) == len(_FACTORS):
            for name, small in done[0]["seconds"].items():
                slopes[name] = slope(small, done[-1]["seconds"][name], _FACTORS[-1] / _FACTORS[0])
        results[form] = {"runs": runs, "slopes": slopes}
        print(f"\n{form}\n{_table(runs, slopes)}", flush=True)
    return results


def _table(runs: Sequence[dict[str, Any]], slopes: dict[str, float | None]) -> str:
    """The seconds and megabytes by step as Markdown, or the errors."""
    from benchmarks.support import cpu_timing

    if not slopes:
        return "\n".join(r.get("error", f"{r['before']} nodes: {r['seconds']['all']:.1f} s") for r in runs if r)
    header = ["step", *(f"{r['before']} nodes" for r in runs), "slope"]
    lines = []
    for name, exponent in slopes.items():
        cells = [f"{r['seconds'][name]:.2f} s, {r['bytes'][name] / 1e6:.0f} MB" for r in runs]
        lines.append([name, *cells, "" if exponent is None else f"{exponent:.2f}"])
    return cpu_timing.markdown(header, lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("forms", nargs="*", metavar="FORM", help=f"of {', '.join(FORMS)}; default all")
    parser.add_argument("--nodes", type=int, default=_NODES, help="of the smallest graph (default %(default)s)")
    to = "the JSON file to write; other forms in it stay"
    parser.add_argument("--out", type=pathlib.Path, default=_RESULTS / "cpu_scaling.json", help=to)
    parser.add_argument("--child", type=pathlib.Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        print(json.dumps(measure(arguments.child)))
        return
    unknown = set(arguments.forms) - set(FORMS)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; the forms are {', '.join(FORMS)}")
    results = run(arguments.forms or list(FORMS), arguments.nodes)
    known = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    arguments.out.write_text(json.dumps({**known, **results}, indent=1) + "\n")
    print(f"\n{arguments.out}")


if __name__ == "__main__":
    main()
