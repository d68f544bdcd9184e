"""Regions: bandwidth as a fraction of a device copy, beside Inductor's kernel for the same nodes.

    python -m benchmarks.kernels.regions prepare DIR --arch sm_90    on any machine, without a GPU; needs .gpu/
    python -m benchmarks.kernels.regions run DIR                     on the GPU machine: onnxruntime, numpy, torch, onnx

The regions come from exported models (benchmarks/cases/regions.py). The outputs are compared with float64 first. `run
--device cpu` makes the comparisons alone.
"""

from __future__ import annotations

import gc
import json
import lzma
import math
import pathlib
import statistics
import sys
import time
from typing import Any

import onnx
import torch

from benchmarks.cases.chains import ONNX_DTYPES
from benchmarks.support.arguments import add_device_and_out, command
from benchmarks.support.gpu_timing import (
    bound,
    copy_microseconds,
    disagreement,
    library,
    poisoned,
    rotation,
    session,
    session_microseconds,
)
from benchmarks.support.inductor import compiled, inductor_microseconds, warm_in_processes
from benchmarks.support.torch_functions import function

_UNFUSED = 0.75  # of the time: then cases are no longer run one node at a time too


def prepare(folder: pathlib.Path, arch: str, only: list[str]) -> None:
    """Write every case's model before and after, and one library with the kernels of all."""
    from benchmarks.cases.regions import all_cases
    from benchmarks.support.collection import Collection

    folder.mkdir(parents=True)
    collection = Collection()
    cases: dict[str, Any] = {}
    for case in all_cases():
        if only and case.name not in only:
            continue
        try:
            optimized, plan = collection.optimize(case.model)
        except Exception as error:  # noqa: BLE001 - one case that fails is a line of the report
            print(f"{case.name}: {type(error).__name__}: {str(error)[:200]}")
            continue
        kernels = [n for n in optimized.graph.node if n.domain == "onnxopt"]
        moving = [n for n in optimized.graph.node if n.op_type not in ("Reshape", "Squeeze", "Unsqueeze", "Flatten")]
        if len(kernels) != 1 or len(moving) != 1:
            print(f"{case.name}: NOT ONE KERNEL: {[n.op_type for n in optimized.graph.node]}")
        traffic = plan.regions[0].traffic if plan.regions else None
        cases[case.name] = {
            "group": case.group,
            "ops": [n.op_type for n in case.model.graph.node],
            "nodes_after": len(optimized.graph.node),
            "predicted_bytes": traffic.bytes_after if traffic else None,
            "predicted_bytes_unfused": traffic.bytes_before if traffic else None,
        }
        (folder / f"{case.name}.onnx").write_bytes(lzma.compress(case.model.SerializeToString()))
        (folder / f"{case.name}.optimized.onnx").write_bytes(lzma.compress(optimized.SerializeToString()))
    (folder / "cases.json").write_text(json.dumps(cases, indent=1))
    collection.write_library(folder, [arch])
    total = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
    print(f"{len(cases)} cases, {len(collection.kernels)} kernels, {total / 1e3:.0f} KB")


def _dtype(value: onnx.ValueInfoProto) -> str:
    return next(name for name, number in ONNX_DTYPES.items() if number == value.type.tensor_type.elem_type)


def _shape(value: onnx.ValueInfoProto) -> list[int]:
    return [d.dim_value for d in value.type.tensor_type.shape.dim]


class Measured:
    """One case on one device."""

    def __init__(self, name: str, folder: pathlib.Path, device: str, path: str | None = None):
        """path: of the library, where it is not folder/lib.tar.xz."""
        self.device, self.library = device, path or library(folder)
        self.before = onnx.load_from_string(lzma.decompress((folder / f"{name}.onnx").read_bytes()))
        self.after = lzma.decompress((folder / f"{name}.optimized.onnx").read_bytes())
        rows = [*self.before.graph.input, *self.before.graph.output]
        self.bytes = sum(math.prod(_shape(v)) * getattr(torch, _dtype(v)).itemsize for v in rows)
        sets = rotation(self.bytes, device)
        self.inputs = [self._draw(seed) for seed in range(sets)]
        self.outputs = [self._empty() for _ in range(sets)]
        self.limit = (len(self.before.graph.node) + 4) * max(
            (float(torch.finfo(getattr(torch, _dtype(v))).eps) for v in rows if "float" in _dtype(v)), default=0.0
        )

    def _draw(self, seed: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator(self.device).manual_seed(seed)
        tensors = {}
        for value in self.before.graph.input:
            shape, dtype = _shape(value), _dtype(value)
            drawn = torch.rand(shape, generator=generator, device=self.device)
            if dtype == "bool":
                tensors[value.name] = drawn < 0.5
            else:
                spread = (drawn * (4 if "float" in dtype else 100) - 1.5).clamp_min(0.0 if dtype == "uint8" else -2.0)
                tensors[value.name] = spread.to(getattr(torch, dtype))
        return tensors

    def _empty(self) -> dict[str, torch.Tensor]:
        return {v.name: poisoned(_shape(v), getattr(torch, _dtype(v)), self.device) for v in self.before.graph.output}

    def compare(self) -> float:
        """The fused kernel against float64, as a multiple of the limit."""
        with torch.no_grad():
            expected = function(self.before, self.device, precise=True)(*self.inputs[0].values())
        outputs = self._empty()
        bound(session(self.after, self.library, self.device), self.inputs[0], outputs)()
        return max(
            disagreement(found, wanted, self.limit, self.limit)
            for found, wanted in zip(outputs.values(), expected, strict=True)
        )

    def fused(self) -> float:
        return session_microseconds(
            lambda stream: session(self.after, self.library, self.device, stream=stream), self.inputs, self.outputs
        )

    def copy(self) -> float:
        """Microseconds of a device copy that moves the same bytes."""
        return copy_microseconds(self.bytes, len(self.inputs))

    def unfused(self) -> float:
        """The nodes one by one, as ONNX Runtime's CUDA provider runs them."""
        model = self.before.SerializeToString()
        return session_microseconds(
            lambda stream: session(model, None, self.device, stream=stream), self.inputs, self.outputs
        )

    def inductor(self) -> float:
        with torch.no_grad():
            sets = [list(i.values()) for i in self.inputs]
            run = compiled(function(self.before, self.device))
            run(*sets[0])
            return inductor_microseconds(run, sets)


def warm(folder: pathlib.Path, names: list[str]) -> None:
    """Compile Inductor's kernels of these cases into its cache on disk."""
    for name in names:
        try:
            _compile_for_inductor(name, folder)
        except Exception as error:  # noqa: BLE001 - it will fail again where it is measured
            print(f"{name}: {type(error).__name__}", flush=True)
        torch.cuda.empty_cache()


def _compile_for_inductor(name: str, folder: pathlib.Path) -> None:
    measured = Measured(name, folder, "cuda")
    with torch.no_grad():
        compiled(function(measured.before, "cuda"))(*measured.inputs[0].values())


def measure(name: str, folder: pathlib.Path, device: str, peers: bool, unfused: bool) -> dict[str, Any]:
    measured = Measured(name, folder, device)
    row: dict[str, Any] = {"bytes": measured.bytes, "error": measured.compare(), "limit": measured.limit}
    if device == "cpu":
        return row
    steps = [("copy_us", measured.copy), ("fused_us", measured.fused)]
    steps += [("inductor_us", measured.inductor)] * peers + [("unfused_us", measured.unfused)] * unfused
    for label, step in steps:
        try:
            row[label] = step()
        except Exception as error:  # noqa: BLE001 - one peer that fails must not cost the others their numbers
            row[label] = f"failed: {type(error).__name__}: {str(error)[:200]}"
    return row


def predicted_us(row: dict[str, Any]) -> float | None:
    """The time of the predicted bytes at the rate of the copy."""
    copy, predicted = row.get("copy_us"), row["predicted_bytes"]
    return copy * predicted / row["bytes"] if isinstance(copy, float) and predicted else None


def predicted_saving(row: dict[str, Any]) -> float | None:
    """How many times as many bytes the cost model expects of the nodes one by one."""
    before, after = row["predicted_bytes_unfused"], row["predicted_bytes"]
    return before / after if before and after else None


def saving(row: dict[str, Any]) -> float | None:
    """How many times as long the nodes took one by one."""
    unfused, fused = row.get("unfused_us"), row.get("fused_us")
    return unfused / fused if isinstance(unfused, float) and isinstance(fused, float) else None


def table(rows: dict[str, Any]) -> str:
    """The rows as markdown: predicted bytes, measured time, and bandwidth as a fraction of the copy's."""

    def number(value: Any, digits: int = 1) -> str:
        return f"{value:.{digits}f}" if isinstance(value, int | float) else "-"

    lines = ["| region | group | ops | MB moved | MB predicted | copy us | predicted us | fused us | fused / copy |"]
    lines[0] += " Inductor us | Inductor / copy | fused / Inductor | predicted saving | saving | error / limit |"
    lines.append("|" + "---|" * 15)
    ratios = []
    for name, row in rows.items():
        copy, fused, peer = (row.get(k) for k in ("copy_us", "fused_us", "inductor_us"))
        cells = [name, row["group"], str(len(row["ops"])), number(row["bytes"] / 1e6, 2)]
        cells.append(number((row["predicted_bytes"] or 0) / 1e6, 2))
        cells += [number(copy), number(predicted_us(row))]
        both = isinstance(fused, float) and isinstance(copy, float)
        cells += [number(fused), number(copy / fused, 3) if both else "-"]
        peer_there = isinstance(peer, float) and isinstance(copy, float)
        cells += [number(peer), number(copy / peer, 3) if peer_there else "-"]
        if isinstance(fused, float) and isinstance(peer, float):
            ratios.append(peer / fused)
            cells.append(number(peer / fused, 3))
        else:
            cells.append("-")
        cells += [number(predicted_saving(row), 2), number(saving(row), 2), number(row.get("error"), 2)]
        lines.append("| " + " | ".join(cells) + " |")
    if ratios:
        mean = math.exp(statistics.fmean(math.log(r) for r in ratios))
        lines.append(f"\nInductor's time over ours, geometric mean of {len(ratios)}: {mean:.3f}")
    return "\n".join(lines)


def run(
    folder: pathlib.Path, device: str, only: list[str], out: pathlib.Path | None, seconds: float, peers: bool
) -> int:
    start = time.perf_counter()
    cases = {n: c for n, c in json.loads((folder / "cases.json").read_text()).items() if not only or n in only}
    if device != "cpu" and peers:
        warm_in_processes("benchmarks.kernels.regions", folder, list(cases), seconds / 2)
        print(f"warmed in {time.perf_counter() - start:.0f} s", flush=True)
    rows, bad = {}, []
    for name, case in cases.items():
        if time.perf_counter() - start > seconds:
            print(f"out of time before {name}", flush=True)
            break
        try:
            # What fusing saves comes last: it may run out of time.
            unfused = peers and time.perf_counter() - start < seconds * _UNFUSED
            rows[name] = {**case, **measure(name, folder, device, peers, unfused)}
            if not rows[name]["error"] <= 1:
                bad.append(name)
        except Exception as error:  # noqa: BLE001 - one case that fails must not cost the others their numbers
            print(f"{name}: {type(error).__name__}: {str(error)[:300]}", flush=True)
            bad.append(name)
        if out is not None:
            out.write_text(json.dumps(rows, indent=1))
        if device != "cpu":
            gc.collect()  # sessions are parts of cycles
            torch.cuda.empty_cache()
    print(table(rows))
    print(f"FAILED: {', '.join(bad)}" if bad else "all agree")
    return 1 if bad else 0


def main() -> int:
    parser, verbs = command(__doc__, "warm")
    for verb in verbs:
        verb.add_argument("--only", nargs="*", default=[])
    add_device_and_out(verbs[1])
    verbs[1].add_argument("--seconds", type=float, default=200.0, help="start no case after this long")
    verbs[1].add_argument("--alone", action="store_true", help="without Inductor and the nodes one by one")
    args = parser.parse_args()
    if args.verb == "prepare":
        prepare(args.folder, args.arch, args.only)
        return 0
    if args.verb == "warm":
        warm(args.folder, args.only)
        return 0
    return run(args.folder, args.device, args.only, args.out, args.seconds, not args.alone)


if __name__ == "__main__":
    sys.exit(main())
