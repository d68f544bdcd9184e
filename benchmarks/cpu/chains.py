"""Chains of elementwise operators over 16 MB tensors, ONNX Runtime's kernels against the library's one kernel.

    python -m benchmarks cpu.chains [NAME ...] [--seconds 3]

The outputs are compared before anything is timed. The original, the artifact and the original once more run in turn in
one process.
"""

from __future__ import annotations

import math
import pathlib
import tempfile
from typing import Any

import onnx
import torch

from benchmarks.cases.chains import Chain, tolerance
from benchmarks.support import cpu_timing as timing
from benchmarks.support.arguments import of_cpu
from benchmarks.support.collection import Collection
from benchmarks.support.gpu_timing import bound, disagreement, poisoned
from onnxopt.artifact.folder import write_library
from onnxopt.codegen import kernels_json

_ERF_GELU = (("Mul", 0.70710678), ("Erf",), ("Add", 1.0), ("Mul", "@1"), ("Mul", 0.5))
_EIGHT = (("Add", "a"), *_ERF_GELU, ("Mul", "a"), ("Sub", 0.25))
_SIXTEEN = (
    *(("Abs",), ("Add", 1.0), ("Sqrt",), ("Mul", "@0"), ("Sigmoid",), ("Sub", 0.5), ("Mul", 2.0), ("Tanh",)),
    *(("Mul", "a"), ("Add", "@0"), ("Max", -3.0), ("Min", 3.0), ("Mul", 0.5), ("Mul", "@4"), ("Neg",), ("Abs",)),
)
_FOUR = (("Mul", "a"), ("Add", "b"), ("Relu",), ("Mul", 0.5))
_F32, _F16 = (2048, 2048), (2048, 4096)  # 16 MB each; int32 as float32
_IMAGE, _SCORES = (4, 64, 128, 128), (4, 4, 512, 512)

CHAINS = (
    Chain("add_relu", "contiguous", "float32", _F32, (("Add", "a"), ("Relu",)), {"a": _F32}),
    Chain("four", "contiguous", "float32", _F32, _FOUR, {"a": _F32, "b": _F32}),
    Chain("gelu_gate_8", "contiguous", "float32", _F32, _EIGHT, {"a": _F32}),
    Chain("sixteen", "contiguous", "float32", _F32, _SIXTEEN, {"a": _F32}),
    Chain(
        "bias_silu_residual",
        "bias",
        "float32",
        _F32,
        (("Add", "bias"), ("Sigmoid",), ("Mul", "@1"), ("Add", "residual")),
        {"bias": (2048,), "residual": _F32},
    ),
    Chain(
        "channel_affine_4",
        "per-channel",
        "float32",
        _IMAGE,
        (("Mul", "scale"), ("Add", "shift"), ("Relu",), ("Add", "residual")),
        {"scale": (64, 1, 1), "shift": (64, 1, 1), "residual": _IMAGE},
    ),
    Chain(
        "scalar_5",
        "scalar",
        "float32",
        _F32,
        (("Mul", "scale"), ("Add", "zero"), ("Clip", -1.5, 1.5), ("Sub", "zero"), ("Mul", 0.25)),
        {"scale": (1,), "zero": ()},
    ),
    Chain(
        "masked_scores_4",
        "4-d broadcast",
        "float32",
        _SCORES,
        (("Mul", 0.125), ("Add", "position"), ("Add", "mask"), ("Max", -10.0)),
        {"position": (1, 4, 512, 512), "mask": (4, 1, 1, 512)},
    ),
    Chain("fp16_four", "contiguous", "float16", _F16, _FOUR, {"a": _F16, "b": _F16}),
    Chain("fp16_gelu_gate_8", "contiguous", "float16", _F16, _EIGHT, {"a": _F16}),
    Chain(
        "fp16_bias_4",
        "bias",
        "float16",
        _F16,
        (("Add", "bias"), ("Sigmoid",), ("Mul", "@1"), ("Add", "residual")),
        {"bias": (4096,), "residual": _F16},
    ),
    Chain(
        "int32_four",
        "contiguous",
        "int32",
        _F32,
        (("Add", "a"), ("Mul", 3), ("Max", 0), ("Sub", "a")),
        {"a": _F32},
    ),
    Chain(
        "int32_channel_8",
        "per-channel",
        "int32",
        _IMAGE,
        (
            *(("Add", "shift"), ("Mul", 3), ("Abs",), ("Sub", "@0")),
            *(("Min", 90), ("Max", -90), ("Mul", "shift"), ("Neg",)),
        ),
        {"shift": (64, 1, 1)},
    ),
)


def measure(chain: Chain, folder: pathlib.Path, seconds: float) -> dict[str, Any]:
    """Compare and time one chain."""
    folder.mkdir()
    collection = Collection()
    optimized, _ = collection.optimize(chain.model())
    onnx.save(chain.model(), folder / "before.onnx")
    onnx.save(optimized, folder / "after.onnx")
    library = write_library(folder / "lib", kernels_json.to_json(tuple(collection.kernels.values()), None), None)
    inputs = chain.inputs()
    expected = chain.function(precise=True)(*inputs.values())
    runs, errors, limit = {}, {}, tolerance(chain)
    for label, model, ops in (("before", "before", None), ("again", "before", None), ("after", "after", library)):
        outputs = {
            f"y{k}": poisoned(chain.shape, getattr(torch, d), "cpu") for k, d in enumerate(chain.output_dtypes())
        }
        runs[label] = bound(timing.session(folder / f"{model}.onnx", ops), inputs, outputs)
        runs[label]()
        errors[label] = max(disagreement(f, e, limit, limit) for f, e in zip(outputs.values(), expected, strict=True))
    if max(errors.values()) > 1:
        raise ValueError(f"{chain.name}: outputs disagree with the reference: {errors}")
    times = timing.in_turn(runs, seconds)
    return {
        "ops": len(chain.steps),
        "dtype": chain.dtype,
        "kind": chain.kind,
        "MB": math.prod(chain.shape) * (2 if chain.dtype == "float16" else 4) / 1e6,
        "nodes_after": len(optimized.graph.node),
        "before_ms": timing.p50(times["before"]),
        "after_ms": timing.p50(times["after"]),
        "speedup": timing.p50(times["before"]) / timing.p50(times["after"]),
        "band_AA": timing.ratio_band(times["before"], times["again"]),
        "runs": len(times["before"]),
        "GB_per_s_after": chain.minimal_bytes() / timing.p50(times["after"]) / 1e6,
        "error": errors,
    }


def run(seconds: float, only: list[str]) -> dict[str, Any]:
    """Measure the chains, print them as a table, write results/cpu/cpu_chains.json."""
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        for chain in CHAINS:
            if not only or chain.name in only:
                rows[chain.name] = measure(chain, pathlib.Path(folder) / chain.name, seconds)
    header = ["chain", "broadcast", "dtype", "ops", "ORT ms", "fused ms", "times faster", "A/A band", "GB/s", "runs"]
    print(timing.markdown(header, [_cells(k, v) for k, v in rows.items()]))
    if not only:
        print(timing.save("cpu_chains", rows))
    return rows


def _cells(name: str, row: dict[str, Any]) -> list[str]:
    band = "{:.2f}..{:.2f}".format(*row["band_AA"])
    times = [f"{row['before_ms']:.2f}", f"{row['after_ms']:.2f}", f"{row['speedup']:.2f}", band]
    return [name, row["kind"], row["dtype"], str(row["ops"]), *times, f"{row['GB_per_s_after']:.1f}", str(row["runs"])]


if __name__ == "__main__":
    arguments = of_cpu(__doc__, seconds=3.0)
    run(arguments.seconds, arguments.names)
