"""Running totals: time beside a device copy, ONNX Runtime's CumSum and Inductor, after a comparison with float64.

    python -m benchmarks.kernels.scan prepare DIR --arch sm_90 [--sweep]      on any machine, without a GPU
    python -m benchmarks.kernels.scan warm DIR                                on the GPU machine, before run --inductor
    python -m benchmarks.kernels.scan run DIR --out FILE --inductor

`--sweep` also compiles and times other launch shapes; kinds/scan/entry_points.py rests on these results.
checks.scan_layouts compares every entry point.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import onnx
import torch

from benchmarks.cases.scans import ScanCase
from benchmarks.support.arguments import command
from benchmarks.support.gpu_timing import (
    all_of,
    bound,
    copy_microseconds,
    disagreement,
    library,
    microseconds_in_graph,
    poisoned,
    rotation,
    session,
)
from benchmarks.support.inductor import compiled, inductor_microseconds, warm_in_processes
from tests.support.wrong_bodies import with_wrong_bodies

CASES = (
    ScanCase("cumsum", "float32", (64, 32000)),
    ScanCase("cumsum", "float16", (64, 32000)),
    ScanCase("nucleus", "float32", (64, 32000)),
    ScanCase("cumsum", "float32", (1, 1000000)),
    ScanCase("cumsum", "float32", (8192, 1024)),
    ScanCase("cumsum", "float16", (8192, 1024)),
    ScanCase("cumsum", "float32", (100000, 64)),
    ScanCase("cumsum", "float16", (100000, 64)),
    ScanCase("positions", "int64", (8, 512)),
    ScanCase("positions", "int64", (16, 4096)),
    ScanCase("cumsum", "float32", (8, 1024, 768), 1),
    ScanCase("cumsum", "float16", (8, 1024, 768), 1),
    ScanCase("decay", "float32", (8, 24, 256, 256)),
    ScanCase("cumsum", "float16", (4096, 4099)),
    ScanCase("backwards", "float32", (4096, 4096)),
    ScanCase("cumsum", "float32", (2048, 16384)),
)
_SWEPT = frozenset(CASES[k].name for k in (3, 10, 11, 13))
_WARMING = 25  # seconds at most
_SLOW = 2000  # microseconds, above which a run is timed alone


def prepare(folder: pathlib.Path, arch: str, sweep: bool) -> None:
    """Write every case's model before and after, those of the checks, and one library."""
    from benchmarks.support.collection import Collection

    folder.mkdir(parents=True)
    collection = Collection()
    for case in CASES:
        optimized, plan = collection.optimize(case.model())
        onnx.save(case.model(), folder / f"{case.name}.onnx")
        optimized = with_wrong_bodies(optimized)
        onnx.save(optimized, folder / f"{case.name}.optimized.onnx")
        others = _sweep(collection, optimized, case, folder) if sweep and case.name in _SWEPT else []
        print(case.name, [n.op_type for n in optimized.graph.node], [r.reason for r in plan.refusals], others)
    collection.write_library(folder, [arch])
    print(f"{len(collection.kernels)} kernels, {(folder / 'lib.tar.xz').stat().st_size / 1e3:.0f} KB")


def calling(optimized: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """The model with another kernel for its one node."""
    model = onnx.ModelProto()
    model.CopyFrom(optimized)
    (node,) = model.graph.node
    node.op_type = model.functions[0].name = name
    return model


def _sweep(collection: Any, optimized: onnx.ModelProto, case: ScanCase, folder: pathlib.Path) -> list[str]:
    """Models of a case with other launch shapes; their labels."""
    from onnxopt.kinds.scan import entry_points

    (node,) = optimized.graph.node
    kernel = collection.kernels[node.op_type]
    modes, made = kernel.variants[0].modes, []
    for layout, vector, unroll, lanes, threads in _shapes(case):
        label = f"{layout[0]}{vector}u{unroll}l{lanes}t{threads}"
        name = f"{kernel.name}_{label}"
        launches = range(2) if layout == "split" else range(1)
        chosen = tuple(entry_points.variant(name, layout, modes, vector, unroll, lanes, threads, k) for k in launches)
        collection.kernels[name] = dataclasses.replace(kernel, name=name, variants=chosen)
        onnx.save(calling(optimized, name), folder / f"{case.name}.{label}.onnx")
        made.append(label)
    return made


def _shapes(case: ScanCase) -> Iterator[tuple[str, int, int, int, int]]:
    """layout, vector, unroll, lanes, threads."""
    widest = 16 // case.torch_dtype.itemsize
    if case.axis != -1:
        for vector, threads, unroll in itertools.product((1, 2), (256, 512, 1024), (8, 16)):
            if threads * unroll <= 8192 and vector * case.torch_dtype.itemsize <= 4:
                yield "strided", vector, unroll, threads // 32, threads
        return
    layout = "held" if case.length % widest == 0 else "ragged"
    vectors = -(-(case.length + (0 if layout == "held" else widest - 1)) // widest)
    for lanes in (4, 8, 16, 32, 64, 128, 256, 512):
        unroll = -(-vectors // lanes)
        if unroll <= 8 and lanes * unroll < 2 * vectors:
            for threads in sorted({max(n, lanes) for n in (128, 256)}):
                yield layout, widest, unroll, lanes, threads
    if vectors > 1024:
        for threads in (256, 512, 1024):
            for unroll in (2, 4, 8):
                if threads * unroll <= 4096:
                    yield "looped", widest, unroll, threads, threads
                    if math.prod(case.shape) // case.length < 264:
                        yield "split", widest, unroll, threads, threads


def _alone(run: Callable[[], object]) -> float:
    """Microseconds of one run on an idle GPU, the host's share included."""
    begun = time.perf_counter()
    run()
    torch.cuda.synchronize()
    return (time.perf_counter() - begun) * 1e6


class Measured:
    """One case on the device, and every way to run it over its buffers in rotation."""

    def __init__(self, case: ScanCase, folder: pathlib.Path):
        self.case, self.folder = case, folder
        sets = rotation(case.bytes(), "cuda", 24)
        self.inputs = [case.inputs(seed, "cuda") for seed in range(sets)]
        self.outputs = [poisoned(case.shape, case.torch_dtype, "cuda") for _ in range(sets)]
        x = self.inputs[0]
        self.expected = case.function()(x.double() if x.is_floating_point() else x)
        self.limits = case.limits(x)

    def time(self, suffix: str) -> float:
        """Microseconds a run, after one run was compared. ValueError where it disagrees. Where ONNX Runtime's own takes
        long, the best of a few runs alone."""
        stream = torch.cuda.Stream()
        ops = None if suffix == "" else library(self.folder)
        run_in = session(str(self.folder / f"{self.case.name}{suffix}.onnx"), ops, "cuda", stream=stream)
        runs = [bound(run_in, {"x": x}, {"y": y}, wait=False) for x, y in zip(self.inputs, self.outputs, strict=True)]
        self.outputs[0].copy_(poisoned(self.case.shape, self.case.torch_dtype, "cuda"))
        torch.cuda.synchronize()
        runs[0]()
        torch.cuda.synchronize()
        if suffix:
            error = self._error()
            if not error <= 1:
                raise ValueError(f"{error:.3g} of the limit away from float64")
            return microseconds_in_graph(runs, stream)
        once = min(_alone(runs[0]) for _ in range(3))
        return once if once > _SLOW else microseconds_in_graph(runs, stream)

    def _error(self) -> float:
        if not self.case.torch_dtype.is_floating_point:
            return 0.0 if torch.equal(self.outputs[0], self.expected) else float("inf")
        if self.case.kind == "nucleus":  # jumps where the sum is near 0.9
            differs = (self.outputs[0].double() - self.expected).abs() > 1e-6
            return float(differs.double().sum()) / (2 * self.case.shape[0])
        return disagreement(self.outputs[0], self.expected, *self.limits)

    def inductor(self) -> float:
        return inductor_microseconds(compiled(self.case.function()), [[x] for x in self.inputs])


def measure(case: ScanCase, folder: pathlib.Path, inductor: bool, sweep: bool) -> dict[str, Any]:
    """Everything about one case; what fails is recorded as text beside what worked."""
    measured = Measured(case, folder)
    row: dict[str, Any] = {"MB": case.bytes() / 1e6}
    steps: dict[str, Any] = {
        "copy": lambda: copy_microseconds(case.bytes(), len(measured.inputs)),
        "ours": lambda: measured.time(".optimized"),
        "ort": lambda: measured.time(""),
    }
    if inductor:
        steps["inductor"] = measured.inductor
    if sweep:
        found = sorted(p.name.removeprefix(case.name).removesuffix(".onnx") for p in folder.glob(f"{case.name}.*.onnx"))
        steps |= {s: lambda s=s: measured.time(s) for s in found if s not in ("", ".optimized")}
    return row | all_of(steps)


def run(folder: pathlib.Path, args: argparse.Namespace) -> None:
    """Measure every case that there is time for."""
    begun = time.perf_counter()
    rows: dict[str, Any] = {}
    cases = [c for c in CASES if any(part in c.name for part in args.only.split(","))]
    for case in cases:
        if args.seconds and time.perf_counter() - begun > args.seconds:
            print(f"out of time before {case.name}")
            break
        rows[case.name] = measure(case, folder, args.inductor, args.sweep)
        print(f"{time.perf_counter() - begun:.0f} s", case.name, json.dumps(rows[case.name]), flush=True)
        if args.out is not None:
            args.out.write_text(json.dumps(rows, indent=1))
        torch.cuda.empty_cache()


def main() -> None:
    parser, (prepared, ran, warmed) = command(__doc__, "warm")
    prepared.add_argument("--sweep", action="store_true")
    ran.add_argument("--out", type=pathlib.Path, help="JSON, rewritten after every case")
    ran.add_argument("--inductor", action="store_true")
    ran.add_argument("--sweep", action="store_true")
    ran.add_argument("--seconds", type=float, default=0, help="start no further case after this many")
    ran.add_argument("--only", default="", help="comma-separated parts of names")
    warmed.add_argument("--only", nargs="+", help="names of cases; default: all, in several processes")
    args = parser.parse_args()
    if args.verb == "prepare":
        prepare(args.folder, args.arch, args.sweep)
    elif args.verb == "warm" and not args.only:
        warm_in_processes("benchmarks.kernels.scan", args.folder, [c.name for c in CASES], _WARMING)
    elif args.verb == "warm":
        for case in (c for c in CASES if c.name in args.only):
            compiled(case.function())(case.inputs(0, "cuda"))
    else:
        run(args.folder, args)


if __name__ == "__main__":
    main()
