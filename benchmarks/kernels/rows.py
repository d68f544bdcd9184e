"""Rowwise kernels: bandwidth as a fraction of a device copy, beside ONNX Runtime's own kernels and Inductor.

    python -m benchmarks.kernels.rows prepare DIR --arch sm_90       on any machine, without a GPU
    python -m benchmarks.kernels.rows run DIR                        on the GPU machine: onnxruntime, numpy, torch, onnx

`run` first compares the outputs with float64, also for rows with a large mean. `--sweep` also times other ways to share
a row among threads; kinds/rowwise/launch_shapes.py rests on these results. `run --device cpu` makes the comparisons
alone.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
import time
from typing import Any

import onnx
import torch

from benchmarks.cases.rows import RowCase, tolerance
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

_MAX_BYTES = 3 << 30  # of all buffers of one case
_FLAT = ((8192, 1024), (4096, 4096), (1024, 16384), (64, 262144), (100000, 64))
_KINDS = ("layernorm", "rmsnorm", "softmax", "masked_softmax", "residual_layernorm", "residual_rmsnorm")


def _cases() -> tuple[RowCase, ...]:
    flat = [RowCase(k, d, s) for d in ("float16", "bfloat16", "float32") for k in _KINDS for s in _FLAT]
    models = [
        RowCase("layernorm", "float16", (16, 56, 56, 96)),  # ConvNeXt
        RowCase("layernorm", "float16", (16, 28, 28, 192)),
        RowCase("layernorm", "float16", (16, 14, 14, 384)),
        RowCase("layernorm", "float16", (16, 7, 7, 768)),
        RowCase("residual_layernorm", "float16", (8, 128, 768)),  # BERT
        RowCase("residual_layernorm", "float16", (16, 197, 768)),  # ViT
        RowCase("masked_softmax", "float16", (8, 12, 128, 128), (8, 1, 128, 128)),
        RowCase("masked_softmax", "float16", (16, 12, 197, 197), (16, 1, 197, 197)),
        RowCase("masked_softmax", "float16", (1, 16, 512, 512), (1, 1, 512, 512)),  # Llama
        RowCase("residual_rmsnorm", "float16", (1, 512, 2048)),
        RowCase("softmax", "float16", (4, 8, 1024, 1024)),  # UNet
        RowCase("softmax", "float16", (4, 8, 1024, 77)),
        RowCase("softmax", "float16", (4, 8, 1500, 1500)),  # Whisper
        RowCase("groupnorm_silu", "float16", (4, 160, 32, 32)),
        RowCase("groupnorm_silu", "float16", (4, 640, 8, 8)),
        RowCase("silu_mean_hw", "float16", (32, 32, 112, 112)),  # EfficientNet
        RowCase("silu_mean_hw", "float16", (32, 96, 56, 56)),
        RowCase("silu_mean_hw", "float16", (32, 480, 14, 14)),
        RowCase("silu_mean_hw", "float16", (32, 1152, 7, 7)),
    ]
    others = [  # looped, by elements, strided
        RowCase("softmax", "float16", (4, 1048576)),
        RowCase("residual_layernorm", "float32", (3, 600001)),
        RowCase("layernorm", "bfloat16", (2048, 4099)),
        RowCase("softmax_channels", "float16", (8, 256, 64, 64)),
        RowCase("softmax_channels", "float32", (4, 100, 33, 7)),
    ]
    images = [RowCase(k, d, (32, 320, 64, 64)) for k in ("groupnorm_silu", "mean_hw") for d in ("float16", "float32")]
    return (
        *(c for c in flat if c.dtype == "float16"),
        *models,
        *images,
        *others,
        *(c for c in flat if c.dtype != "float16"),
    )


CASES = _cases()


def prepare(folder: pathlib.Path, arch: str, only: str, sweep: str) -> None:
    """Write every case's model, before and after, and one library with its kernels and those of the sweep."""
    from benchmarks.cases import row_sweep
    from benchmarks.support.collection import Collection

    folder.mkdir(parents=True)
    collection = Collection()
    for case in _chosen(only):
        model = case.model()
        optimized, _ = collection.optimize(model)
        warning = (
            "" if len(optimized.graph.node) == 1 else f"   NOT ONE KERNEL {[n.op_type for n in optimized.graph.node]}"
        )
        onnx.save(model, folder / f"{case.name}.onnx")
        onnx.save(optimized, folder / f"{case.name}.optimized.onnx")
        swept = sweep and any(part in case.name for part in sweep.split(","))
        others = row_sweep.write(collection, optimized, case, folder) if swept else []
        print(f"{case.name:44} {len(others)} others {warning}", flush=True)
    start = time.perf_counter()
    collection.write_library(folder, [arch])
    total = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
    print(f"{folder}: {len(collection.kernels)} kernels, {total / 1e3:.0f} KB, {time.perf_counter() - start:.0f} s")


class Measured:
    """One case on one device: its sets of buffers, and every way to run it over them."""

    def __init__(self, case: RowCase, folder: pathlib.Path, device: str):
        self.case, self.folder, self.device = case, folder, device
        self.bytes = case.bytes()
        most = max(2, min(24, _MAX_BYTES // (2 * self.bytes)))
        sets = rotation(self.bytes, device, most)
        self.inputs = [case.inputs(seed, device) for seed in range(sets)]
        self.outputs = [self.empty_outputs() for _ in range(sets)]
        self._reference: list[torch.Tensor] | None = None

    def empty_outputs(self) -> dict[str, torch.Tensor]:
        dtype = getattr(torch, self.case.dtype)
        return {f"y{k}": poisoned(s, dtype, self.device) for k, s in enumerate(self.case.output_shapes())}

    def session(self, suffix: str, **options: Any) -> Any:
        ops = None if suffix == "" else library(self.folder)
        return session(str(self.folder / f"{self.case.name}{suffix}.onnx"), ops, self.device, **options)

    def error(self, suffix: str) -> float:
        """The largest difference from float64 as a multiple of the tolerance."""
        return self._error_of(self.session(suffix))

    def _error_of(self, run_in: Any) -> float:
        outputs = self.empty_outputs()
        if self.device != "cpu":
            torch.cuda.synchronize()  # the session may run on a stream of its own
        bound(run_in, self.inputs[0], outputs)()
        if self._reference is None:
            self._reference = list(self.case.function(precise=True)(*self.inputs[0].values()))
        limit = tolerance(self.case)
        return max(disagreement(f, e, limit, limit) for f, e in zip(outputs.values(), self._reference, strict=True))

    def in_graph(self, suffix: str) -> float:
        """Microseconds a run, many runs in one CUDA graph."""
        return session_microseconds(lambda stream: self.session(suffix, stream=stream), self.inputs, self.outputs)

    def checked_in_graph(self, suffix: str) -> float:
        """The same, after one run of that session was compared. ValueError where it disagrees."""

        def opened(stream: torch.cuda.Stream) -> Any:
            run_in = self.session(suffix, stream=stream)
            error = self._error_of(run_in)
            if not error <= 1:
                raise ValueError(f"{error:.3g} of the tolerance away from float64")
            return run_in

        return session_microseconds(opened, self.inputs, self.outputs)

    def copy(self) -> float:
        """Microseconds of a device copy that moves the same bytes."""
        return copy_microseconds(self.bytes, len(self.inputs))

    def inductor(self) -> float:
        run = compiled(self.case.function())
        sets = [list(i.values()) for i in self.inputs]
        limit = tolerance(self.case)
        expected = self.case.function(precise=True)(*sets[0])
        if max(disagreement(f, e, limit, limit) for f, e in zip(run(*sets[0]), expected, strict=True)) > 1:
            raise ValueError("Inductor's output disagrees with the reference")
        del expected
        return inductor_microseconds(run, sets)

    def large_mean(self) -> dict[str, float]:
        """Where x has a mean of 64: the share of elements within 1 ulp of the rounded float64 result, and the error."""
        inputs = self.case.inputs(99, self.device, mean=64.0)
        precise = self.case.function(precise=True)(*inputs.values())[0]
        row = {}
        for label, suffix in (("fused", ".optimized"), ("ort", "")):
            outputs = self.empty_outputs()
            bound(self.session(suffix), inputs, outputs)()
            found = outputs["y0"]
            row[f"{label} within 1 ulp"] = float((_ulps(found, precise.to(found.dtype)) <= 1).double().mean())
            row[f"{label} max error"] = float((found.double() - precise).abs().max())
        return row


def _ulps(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """How many representable numbers lie between, element by element."""
    integer = torch.int32 if a.dtype == torch.float32 else torch.int16

    def ordered(t: torch.Tensor) -> torch.Tensor:
        bits = t.view(integer).long()
        lowest = torch.iinfo(integer).min
        return torch.where(bits < 0, lowest - bits, bits)

    return (ordered(a) - ordered(b)).abs()


def warm(names: list[str]) -> None:
    """Compile Inductor's kernels of these cases into its cache on disk."""
    for case in (c for c in CASES if c.name in names):
        try:
            compiled(case.function())(*case.inputs(0, "cuda").values())
        except Exception as error:  # noqa: BLE001 - it will fail again where it is measured
            print(f"{case.name}: {type(error).__name__}", flush=True)
        torch.cuda.empty_cache()


def measure(case: RowCase, folder: pathlib.Path, device: str, with_inductor: bool, sweep: bool) -> dict[str, Any]:
    """Everything about one case; what fails is recorded as text beside what worked."""
    measured = Measured(case, folder, device)
    row: dict[str, Any] = {"bytes": case.bytes(), "error": _attempt(lambda: measured.error(".optimized"))}
    agrees = isinstance(row["error"], float) and row["error"] <= 1
    if not agrees and not sweep:
        return row
    steps: dict[str, Any] = {"ort_error": lambda: measured.error("")}
    if case.shape == (1024, 16384) and case.kind in ("layernorm", "residual_layernorm", "rmsnorm"):
        steps["large_mean"] = measured.large_mean
    if device != "cpu":
        steps |= {
            "copy_us": measured.copy,
            "fused_us": lambda: measured.in_graph(".optimized"),
            "ort_us": lambda: measured.in_graph(""),
        }
        if with_inductor:
            steps["inductor_us"] = measured.inductor
    for label, step in steps.items():
        row[label] = _attempt(step)
    if sweep and device != "cpu":
        row["sweep"] = {}
        others = {p.name.removeprefix(case.name).removesuffix(".onnx") for p in folder.glob(f"{case.name}.*.onnx")}
        for label in sorted(others - {"", ".optimized"}):
            row["sweep"][label] = _attempt(lambda label=label: measured.checked_in_graph(label))
    return row


def _attempt(step: Any) -> Any:
    try:
        return step()
    except Exception as error:  # noqa: BLE001 - one peer or method that fails must not cost the others their numbers
        return f"failed: {type(error).__name__}: {str(error)[:200]}"


def table(rows: dict[str, Any]) -> str:
    """The rows as markdown: times a run, and bandwidth as a fraction of the copy's."""

    def number(value: Any, digits: int = 1) -> str:
        return f"{value:.{digits}f}" if isinstance(value, int | float) else "-"

    lines = [
        "| case | MB moved | copy us | fused us | fused / copy | ORT us | Inductor us | best other | error / limit |"
    ]
    lines.append("|" + "---|" * 9)
    for name, row in rows.items():
        copy, ours = row.get("copy_us"), row.get("fused_us")
        both = isinstance(copy, float) and isinstance(ours, float)
        timed = {k: v for k, v in row.get("sweep", {}).items() if isinstance(v, float)}
        best = min(timed, key=timed.__getitem__) if timed else None
        cells = [name, number(row["bytes"] / 1e6), number(copy), number(ours), number(copy / ours, 3) if both else "-"]
        cells += [number(row.get("ort_us")), number(row.get("inductor_us"))]
        cells += [f"{best} {timed[best]:.1f}" if best else "-", number(row.get("error"), 2)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def run(folder: pathlib.Path, device: str, args: argparse.Namespace) -> int:
    """Measure every case that there is time for; 0 if all agree."""
    rows: dict[str, Any] = {}
    begun = time.perf_counter()
    cases = [case for case in _chosen(args.only) if (folder / f"{case.name}.onnx").exists()]
    if args.inductor and device != "cpu":
        warm_in_processes("benchmarks.kernels.rows", folder, [case.name for case in cases], args.seconds / 2 or 600)
        print(f"warmed in {time.perf_counter() - begun:.0f} s", flush=True)
    for case in cases:
        if args.seconds and time.perf_counter() - begun > args.seconds:
            print(f"out of time before {case.name}")
            break
        start = time.perf_counter()
        row = rows[case.name] = measure(case, folder, device, args.inductor, args.sweep)
        print(f"{case.name} ({time.perf_counter() - start:.1f} s): {json.dumps(row)}"[:400], flush=True)
        if args.out is not None:
            args.out.write_text(json.dumps(rows, indent=1))
        if device != "cpu":
            torch.cuda.empty_cache()
    print(table(rows))
    bad = [name for name, row in rows.items() if not (isinstance(row["error"], float) and row["error"] <= 1)]
    print(f"FAILED: {', '.join(bad)}" if bad else "all agree")
    return 1 if bad else 0


def _chosen(only: str) -> list[RowCase]:
    return [c for c in CASES if not only or any(part in c.name for part in only.split(","))]


def main() -> int:
    parser, (prepared, ran, warmed) = command(__doc__, "warm")
    prepared.add_argument("--sweep", default="", help="make other launch shapes for cases with this in their names")
    add_device_and_out(ran)
    ran.add_argument("--inductor", action="store_true")
    ran.add_argument("--sweep", action="store_true")
    ran.add_argument("--seconds", type=float, default=0, help="start no further case after this many")
    for verb in (prepared, ran):
        verb.add_argument("--only", default="", help="comma-separated parts of names")
    warmed.add_argument("--only", nargs="+", help="names of cases")
    args = parser.parse_args()
    if args.verb == "prepare":
        prepare(args.folder, args.arch, args.only, args.sweep)
        return 0
    if args.verb == "warm":
        warm(args.only)
        return 0
    return run(args.folder, args.device, args)


if __name__ == "__main__":
    sys.exit(main())
