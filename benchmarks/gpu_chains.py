"""Fused chains on the GPU: bandwidth as a fraction of a device copy, beside ONNX Runtime's own kernels and Inductor.

    python -m benchmarks.gpu_chains prepare DIR --arch sm_90     on any machine, without a GPU
    python -m benchmarks.gpu_chains run DIR                      on the GPU machine: onnxruntime, numpy, torch, onnx

`run` compares first: outputs with the library against a float64 reference and against ONNX Runtime without the library,
exactly one kernel a chain. `run --device cpu` makes the comparisons alone, on a machine without a GPU.
"""

from __future__ import annotations

import json
import pathlib
import sys
import time
from typing import Any

import onnx
import torch

from benchmarks import skeletons
from benchmarks.chains import Chain, tolerance
from benchmarks.gpu_arguments import add_device_and_out, command
from benchmarks.gpu_timing import (
    bound,
    copy_microseconds,
    disagreement,
    library,
    microseconds_in_graph,
    poisoned,
    rotation,
    session,
    session_microseconds,
)

_LARGE, _WIDE, _HUGE = (8192, 4096), (16384, 3072), (16384, 8192)
_IMAGE, _SCORES = (32, 256, 64, 64), (16, 12, 512, 512)
_ODD = (8191, 4099)
_ERF_GELU = (("Mul", 0.70710678), ("Erf",), ("Add", 1.0), ("Mul", "@1"), ("Mul", 0.5))

CHAINS = (
    Chain("add_relu", "contiguous", "float16", _LARGE, (("Add", "a"), ("Relu",)), {"a": _LARGE}),
    Chain(
        "fma_tanh_scale",
        "contiguous",
        "float32",
        (4096, 4096),
        (("Mul", "a"), ("Add", "b"), ("Tanh",), ("Mul", 0.5)),
        {"a": (4096, 4096), "b": (4096, 4096)},
    ),
    Chain(
        "swiglu_residual",
        "contiguous",
        "bfloat16",
        _LARGE,
        (("Sigmoid",), ("Mul", "@0"), ("Mul", "up"), ("Mul", 0.5), ("Add", "residual")),
        {"up": _LARGE, "residual": _LARGE},
    ),
    Chain(
        "gelu_gate_11",
        "contiguous",
        "float16",
        _HUGE,
        (("Add", "a"), *_ERF_GELU, ("Mul", "b"), ("Tanh",), ("Add", "a"), ("Mul", 1.5), ("Sub", 0.25)),
        {"a": _HUGE, "b": _HUGE},
    ),
    Chain(
        "sixteen",
        "contiguous",
        "float16",
        _HUGE,
        (
            *(("Abs",), ("Add", 1.0), ("Sqrt",), ("Mul", "@0"), ("Sigmoid",), ("Sub", 0.5), ("Mul", 2.0), ("Tanh",)),
            *(("Mul", "a"), ("Add", "@0"), ("Max", -3.0), ("Min", 3.0), ("Sin",), ("Mul", "@4"), ("Neg",), ("Abs",)),
        ),
        {"a": _HUGE},
    ),
    Chain(
        "bias_gelu_residual",
        "bias",
        "float16",
        _WIDE,
        (("Add", "bias"), ("Gelu",), ("Add", "residual")),
        {"bias": (3072,), "residual": _WIDE},
    ),
    Chain(
        "bias_silu_mul",
        "bias",
        "bfloat16",
        _WIDE,
        (("Add", "bias"), ("Sigmoid",), ("Mul", "@1"), ("Mul", "up")),
        {"bias": (3072,), "up": _WIDE},
    ),
    Chain(
        "affine_relu_residual",
        "bias",
        "float32",
        (8192, 3072),
        (("Mul", "gamma"), ("Add", "beta"), ("Relu",), ("Add", "residual")),
        {"gamma": (3072,), "beta": (3072,), "residual": (8192, 3072)},
    ),
    Chain(
        "channel_affine_hardswish",
        "per-channel",
        "float16",
        _IMAGE,
        (("Mul", "scale"), ("Add", "shift"), ("HardSwish",)),
        {"scale": (256, 1, 1), "shift": (256, 1, 1)},
    ),
    Chain(
        "squeeze_excite",
        "per-channel",
        "float32",
        (16, 256, 64, 64),
        (("Add", "shift"), ("Relu",), ("Mul", "gate"), ("Add", "residual"), ("LeakyRelu",)),
        {"shift": (1, 256, 1, 1), "gate": (16, 256, 1, 1), "residual": (16, 256, 64, 64)},
    ),
    Chain(
        "quantize_like",
        "scalar",
        "float16",
        _LARGE,
        (("Mul", "scale"), ("Add", "zero"), ("Clip", -1.5, 1.5), ("Sub", "zero"), ("Mul", 0.25), ("Softplus",)),
        {"scale": (1,), "zero": ()},
    ),
    Chain(
        "masked_scores",
        "4-d broadcast",
        "float16",
        _SCORES,
        (("Mul", 0.125), ("Add", "position"), ("Add", "mask")),
        {"position": (1, 12, 512, 512), "mask": (16, 1, 1, 512)},
    ),
    Chain(
        "masked_where",
        "4-d broadcast",
        "bfloat16",
        _SCORES,
        (("Mul", 0.125), ("Where", "keep", ".", -30000.0), ("Mul", "head")),
        {"keep": ((16, 1, 512, 512), "bool"), "head": (1, 12, 1, 1)},
    ),
    Chain(
        "odd_size",
        "contiguous, odd",
        "float16",
        _ODD,
        (("Add", "a"), ("Tanh",), ("Mul", "@1"), ("Add", 1.0)),
        {"a": _ODD},
    ),
    Chain(
        "odd_bias",
        "bias, odd",
        "float16",
        _ODD,
        (("Add", "bias"), ("Gelu",), ("Mul", "a")),
        {"bias": (_ODD[1],), "a": _ODD},
    ),
    Chain(
        "cast_up_and_down",
        "contiguous",
        "float16",
        _LARGE,
        (("Cast", "float32"), ("Mul", 0.1), ("Exp",), ("Sub", 1.0), ("Cast", "float16"), ("Mul", "a")),
        {"a": _LARGE},
    ),
    Chain(
        "two_outputs",
        "contiguous",
        "float16",
        _LARGE,
        (("Add", "residual"), ("Mul", 0.5), ("Sigmoid",), ("Mul", "@1")),
        {"residual": _LARGE},
        outputs=("@1",),
    ),
    Chain(
        "bias_gelu_16MB",
        "bias",
        "float16",
        (2048, 4096),
        (("Add", "bias"), ("Gelu",), ("Add", "residual")),
        {"bias": (4096,), "residual": (2048, 4096)},
    ),
    Chain(
        "residual_1MB",
        "contiguous",
        "float16",
        (128, 4096),
        (("Add", "a"), ("Relu",), ("Mul", 0.5), ("Add", "@0")),
        {"a": (128, 4096)},
    ),
)


def prepare(folder: pathlib.Path, arch: str, only: list[str]) -> None:
    """Write every chain's model, before and after, and one library with its kernels for all of them."""
    from benchmarks.collection import Collection, describe

    folder.mkdir(parents=True)
    collection = Collection()
    for chain in (c for c in CHAINS if not only or c.name in only):
        model = chain.model()
        optimized, plan = collection.optimize(model)
        onnx.save(model, folder / f"{chain.name}.onnx")
        onnx.save(optimized, folder / f"{chain.name}.optimized.onnx")
        found = describe(plan)
        warning = "" if found["regions"] == 1 and len(optimized.graph.node) == 1 else "   NOT ONE KERNEL"
        print(f"{chain.name:28}{len(chain.steps):3} ops -> {len(optimized.graph.node)} node{warning}  {found}")
    collection.write_library(folder, [arch])
    total = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
    print(f"{folder}: {len(collection.kernels)} kernels, {total / 1e3:.0f} KB")


class Measured:
    """One chain on one device: its sets of buffers, and every way to run it over them."""

    def __init__(self, chain: Chain, folder: pathlib.Path, device: str):
        self.chain, self.folder, self.device = chain, folder, device
        self.library = library(folder)
        self.bytes = chain.minimal_bytes()
        sets = rotation(self.bytes, device)
        self.inputs = [chain.inputs(seed, device) for seed in range(sets)]
        self.outputs = [self.empty_outputs() for _ in range(sets)]

    def empty_outputs(self) -> dict[str, torch.Tensor]:
        dtypes = self.chain.output_dtypes()
        return {f"y{k}": poisoned(self.chain.shape, getattr(torch, d), self.device) for k, d in enumerate(dtypes)}

    def session(self, optimized: bool, **options: Any) -> Any:
        suffix = ".optimized.onnx" if optimized else ".onnx"
        ops = self.library if optimized else None
        return session(str(self.folder / (self.chain.name + suffix)), ops, self.device, **options)

    def compare(self) -> dict[str, Any]:
        """Outputs of the fused kernel, of its function without the library, and of ORT's own kernels; limit 1."""
        limit = tolerance(self.chain)
        expected = self.chain.function(precise=True)(*self.inputs[0].values())
        row: dict[str, Any] = {"limit": limit}
        variants = {"fused": (True, self.library), "inlined": (True, None), "ort": (False, None)}
        results = {}
        for label, (optimized, ops) in variants.items():
            suffix = ".optimized.onnx" if optimized else ".onnx"
            try:
                run_in = session(str(self.folder / (self.chain.name + suffix)), ops, self.device)
            except Exception as error:  # noqa: BLE001 - ORT has no bfloat16 kernels for some ops: a result, not a crash
                row[label] = f"ORT cannot: {str(error).splitlines()[0][:160]}"
                continue
            outputs = self.empty_outputs()
            bound(run_in, self.inputs[0], outputs)()
            results[label] = list(outputs.values())
            row[label] = max(
                disagreement(found, reference, limit, limit)
                for found, reference in zip(outputs.values(), expected, strict=True)
            )
        if "ort" in results and "fused" in results:
            row["fused against ort"] = max(
                disagreement(a, b, 2 * limit, 2 * limit) for a, b in zip(results["fused"], results["ort"], strict=True)
            )
        row["agrees"] = isinstance(row["fused"], float) and all(
            v <= 1.0 for k, v in row.items() if k != "limit" and isinstance(v, float)
        )
        return row

    def kernel_names(self) -> list[list[Any]]:
        """[name, launches a run, microseconds] of everything the device ran, from the torch profiler."""
        harness = skeletons.harness()
        return [list(r) for r in harness.kernels(bound(self.session(True), self.inputs[0], self.outputs[0]))]

    def in_graph(self, optimized: bool) -> float:
        """Microseconds a run, many runs in one CUDA graph."""
        return session_microseconds(lambda stream: self.session(optimized, stream=stream), self.inputs, self.outputs)

    def ort_cuda_graph(self, optimized: bool) -> float:
        """Microseconds a call of ORT with its own CUDA graph, host work of the call included."""
        harness = skeletons.harness()
        run = bound(self.session(optimized, cuda_graph=True), self.inputs[0], self.outputs[0])
        return harness.milliseconds(run) * 1e3

    def copy(self) -> float:
        """Microseconds of a device copy that moves the same bytes."""
        return copy_microseconds(self.bytes, len(self.inputs))

    def inductor(self) -> float:
        torch._dynamo.reset()
        compiled = torch.compile(self.chain.function(), dynamic=False)
        sets = [list(i.values()) for i in self.inputs]
        found = compiled(*sets[0])
        expected = self.chain.function(precise=True)(*sets[0])
        limit = tolerance(self.chain)
        if max(disagreement(f, e, limit, limit) for f, e in zip(found, expected, strict=True)) > 1:
            raise ValueError("Inductor's output disagrees with the reference")
        del found, expected
        return microseconds_in_graph([lambda s=s: compiled(*s) for s in sets], torch.cuda.Stream())


def measure(chain: Chain, folder: pathlib.Path, device: str, with_inductor: bool) -> dict[str, Any]:
    """Everything about one chain; what fails is recorded as text beside what worked."""
    measured = Measured(chain, folder, device)
    row: dict[str, Any] = {"ops": len(chain.steps), "dtype": chain.dtype, "kind": chain.kind, "bytes": measured.bytes}
    row["compare"] = measured.compare()
    if device == "cpu" or not row["compare"]["agrees"]:
        return row
    steps: dict[str, Any] = {
        "kernels": measured.kernel_names,
        "copy_us": measured.copy,
        "fused_us": lambda: measured.in_graph(True),
        "ort_us": lambda: measured.in_graph(False),
        "fused_call_us": lambda: measured.ort_cuda_graph(True),
        "ort_call_us": lambda: measured.ort_cuda_graph(False),
    }
    if with_inductor:
        steps["inductor_us"] = measured.inductor
    for label, step in steps.items():
        try:
            row[label] = step()
        except Exception as error:  # noqa: BLE001 - one peer or method that fails must not cost the others their numbers
            row[label] = f"failed: {type(error).__name__}: {str(error)[:300]}"
    launched = row["kernels"]
    row["one_kernel"] = isinstance(launched, list) and len(launched) == 1 and launched[0][1] == 1
    if isinstance(row["fused_us"], str) and isinstance(launched, list):
        row["fused_us"] = sum(us for _, _, us in launched)  # the profiler's time, where the graph could not be captured
        row["fused_us_from"] = "profiler"
    return row


def table(rows: dict[str, Any]) -> str:
    """The rows as markdown: times a run, and bandwidth as a fraction of the copy's."""

    def number(value: Any, digits: int = 1) -> str:
        return f"{value:.{digits}f}" if isinstance(value, int | float) else "-"

    lines = ["| chain | broadcast | dtype | ops | MB moved | copy us | fused us | fused / copy | Inductor us |"]
    lines[0] += " Inductor / copy | ORT us | ORT call, before -> after us | kernels | error / limit |"
    lines.append("|" + "---|" * 14)
    for name, row in rows.items():
        copy = row.get("copy_us")
        cells = [name, row["kind"], row["dtype"], str(row["ops"]), number(row["bytes"] / 1e6), number(copy)]
        for label in ("fused_us", "inductor_us"):
            value = row.get(label)
            both = isinstance(value, float) and isinstance(copy, float)
            cells += [number(value), number(copy / value, 3) if both else "-"]
        cells += [number(row.get("ort_us")), f"{number(row.get('ort_call_us'))} -> {number(row.get('fused_call_us'))}"]
        launched = row.get("kernels")
        cells.append(str(sum(round(n) for _, n, _ in launched)) if isinstance(launched, list) else "-")
        cells.append(number(row["compare"]["fused"], 2))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def run(folder: pathlib.Path, device: str, only: list[str], with_inductor: bool, out: pathlib.Path | None) -> int:
    """Measure every chain; 0 if all agree and, on a GPU, each ran as exactly one kernel."""
    rows, bad = {}, []
    for chain in CHAINS:
        if only and chain.name not in only:
            continue
        start = time.perf_counter()
        row = rows[chain.name] = measure(chain, folder, device, with_inductor)
        if not row["compare"]["agrees"] or not row.get("one_kernel", device == "cpu"):
            bad.append(chain.name)
        print(f"{chain.name} ({time.perf_counter() - start:.0f} s): {json.dumps(row)}", flush=True)
        if out is not None:
            out.write_text(json.dumps(rows, indent=1))
        if device != "cpu":
            torch.cuda.empty_cache()
    print(table(rows))
    print(f"FAILED: {', '.join(bad)}" if bad else "all agree" + (", one kernel each" if device != "cpu" else ""))
    return 1 if bad else 0


def main() -> int:
    parser, (prepared, ran) = command(__doc__)
    add_device_and_out(ran)
    for verb in (prepared, ran):
        verb.add_argument("--only", nargs="*", default=[])
    ran.add_argument("--no-inductor", action="store_true")
    args = parser.parse_args()
    if args.verb == "prepare":
        prepare(args.folder, args.arch, args.only)
        return 0
    return run(args.folder, args.device, args.only, not args.no_inductor, args.out)


if __name__ == "__main__":
    sys.exit(main())
