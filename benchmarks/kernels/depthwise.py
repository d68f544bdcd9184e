"""Depthwise convolutions: time beside a device copy and torch in channels_last, after a comparison with float64.

    python -m benchmarks.kernels.depthwise prepare DIR --arch sm_90 [--sweep]      on any machine, without a GPU
    python -m benchmarks.kernels.depthwise run DIR --out FILE [--seconds N]

The kernels run as they do in a session, through the library. torch's convolution is bare, without what stands in front
and behind. A program in front is measured although a kernel of its own may be predicted to be faster. `--sweep` also
compiles and times other tiles; costs/data/depthwise.json rests on such results.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any
from unittest import mock

import onnx
import torch

from benchmarks.cases.depthwise import CASES, DepthwiseCase
from benchmarks.kernels.scan import calling
from benchmarks.support.arguments import main_over_cases, named
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
from tests.support.wrong_bodies import with_wrong_bodies


def prepare(folder: pathlib.Path, arch: str, sweep: bool, only: str) -> None:
    """Write every case's model with its kernel's call, and one library."""
    import onnx_ir as ir

    from benchmarks.support.collection import Collection
    from benchmarks.support.fusing import fuse, outlined
    from onnxopt.kinds.depthwise.kind import DepthwiseKind

    folder.mkdir(parents=True)
    collection = Collection()
    for case in named(CASES, only):
        model = ir.serde.deserialize_model(case.model())
        with mock.patch.object(DepthwiseKind, "prologue_pays", return_value=True):
            plan = fuse(model)
        (kernel,) = outlined(model, plan)
        collection.kernels.setdefault(kernel.name, kernel)
        optimized = with_wrong_bodies(ir.to_proto(model))
        onnx.save(optimized, folder / f"{case.name}.optimized.onnx")
        others = _sweep(collection, optimized, kernel, case, folder) if sweep else []
        print(case.name, [v.symbol.removeprefix(kernel.name) for v in kernel.variants], others)
    collection.write_library(folder, [arch])
    print(f"{len(collection.kernels)} kernels, {(folder / 'lib.tar.xz').stat().st_size / 1e3:.0f} KB")


def _sweep(
    collection: Any, optimized: onnx.ModelProto, kernel: Any, case: DepthwiseCase, folder: pathlib.Path
) -> list[str]:
    """Models of a case with other tiles; their labels."""
    made = []
    if case.front or case.behind != "silu":
        return made
    for variant in kernel.kind.alternatives(kernel):
        label = variant.symbol.removeprefix(f"{kernel.name}_")
        name = f"{kernel.name}_{label}"
        collection.kernels[name] = dataclasses.replace(kernel, name=name, variants=(variant,))
        onnx.save(calling(optimized, name), folder / f"{case.name}.{label}.onnx")
        made.append(label)
    return made


class Measured:
    """One case on the device, and every way to run it over its buffers in rotation."""

    def __init__(self, case: DepthwiseCase, folder: pathlib.Path):
        self.case, self.folder = case, folder
        sets = rotation(case.bytes(), "cuda", 24)
        torch.manual_seed(0)
        self.inputs = [self._feeds() for _ in range(sets)]
        self.outputs = [poisoned(case.y_shape, case.torch_dtype, "cuda") for _ in range(sets)]
        first = self.inputs[0]
        self.expected = case.expected(first["t"], first.get("r"))

    def _feeds(self) -> dict[str, torch.Tensor]:
        case = self.case
        made = {"t": torch.randn(case.x_shape, device="cuda").to(case.torch_dtype)}
        if case.behind == "silu_residual":
            made["r"] = torch.randn(case.y_shape, device="cuda").to(case.torch_dtype)
        return made

    def time(self, suffix: str) -> float:
        """Microseconds a run, after one run was compared. ValueError where it disagrees."""
        stream = torch.cuda.Stream()
        path = str(self.folder / f"{self.case.name}{suffix}.onnx")
        run_in = session(path, library(self.folder), "cuda", stream=stream)
        runs = [bound(run_in, i, {"y": y}, wait=False) for i, y in zip(self.inputs, self.outputs, strict=True)]
        self.outputs[0].copy_(poisoned(self.case.y_shape, self.case.torch_dtype, "cuda"))
        torch.cuda.synchronize()
        runs[0]()
        torch.cuda.synchronize()
        error = disagreement(self.outputs[0], self.expected, *self.case.limits())
        if not error <= 1:
            raise ValueError(f"{error:.3g} of the limit away from float64")
        return microseconds_in_graph(runs, stream)

    def torch_bare(self) -> float:
        """torch's convolution alone, in channels_last."""
        case = self.case
        weight = torch.from_numpy(case.constants()["w"]).to(case.torch_dtype).cuda().permute(3, 2, 0, 1)
        weight = weight.contiguous(memory_format=torch.channels_last)
        seen = [i["t"].permute(0, 3, 1, 2) for i in self.inputs]
        runs: list[Callable[[], object]] = [
            lambda x=x: torch.nn.functional.conv2d(  # type: ignore[misc]
                x, weight, None, case.stride, case.pad, case.dilation, case.channels
            )
            for x in seen
        ]
        return microseconds_in_graph(runs, torch.cuda.Stream())


def measure(case: DepthwiseCase, folder: pathlib.Path) -> dict[str, Any]:
    """Everything about one case; what fails is recorded as text beside what worked."""
    measured = Measured(case, folder)
    row: dict[str, Any] = {"MB": round(case.bytes() / 1e6, 2)}
    steps: dict[str, Callable[[], float]] = {
        "ours": lambda: measured.time(".optimized"),
        "copy": lambda: copy_microseconds(case.bytes(), len(measured.inputs)),
        "torch": measured.torch_bare,
    }
    found = sorted(p.name.removeprefix(case.name).removesuffix(".onnx") for p in folder.glob(f"{case.name}.*.onnx"))
    steps |= {s: lambda s=s: measured.time(s) for s in found if s != ".optimized"}  # type: ignore[misc]
    return row | all_of(steps)


def table(rows: dict[str, Any]) -> str:
    """The rows as text, times in us."""
    lines = [f"{'case':44} {'MB':>7} {'copy':>7} {'torch':>7} {'ours':>7} {'of copy':>7}  best other"]
    for name, row in rows.items():
        ours, copy = row["ours"], row["copy"]
        share = copy / ours if isinstance(ours, float) and isinstance(copy, float) else 0.0
        others = {k: v for k, v in row.items() if k.startswith(".") and isinstance(v, float)}
        best = min(others.items(), key=lambda kv: kv[1], default=("", 0.0))
        said = f"{best[0]} {best[1]}" if others else ""
        numbers = " ".join(f"{str(row[k])[:60]:>7}" for k in ("MB", "copy", "torch", "ours"))
        lines.append(f"{name:44} {numbers} {share:7.2f}  {said}")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main_over_cases(__doc__, CASES, prepare, measure, table))
