"""Convolutions of images: time beside a device copy, cuDNN and torch in channels_last, after a check with float64.

    python -m benchmarks.kernels.image_convolutions prepare DIR --arch sm_90 [--sweep]     on any machine, without a GPU
    python -m benchmarks.kernels.image_convolutions run DIR --out FILE [--seconds N]

All run as in a session, through the library, from an NCHW image to an activated NHWC result. cudnn: the same graph
without this kind of kernels, its Transpose, Pad and SiLU included. torch's convolution is bare and reads NHWC.
Of float32, "exact" is ours and "cudnn_exact" cuDNN without TF32. `--sweep` also compiles and times other tiles;
kinds/image_convolution/entry_points.py rests on such results.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Callable
from typing import Any
from unittest import mock

import onnx
import torch

from benchmarks.cases.image_convolutions import CASES, ImageCase
from benchmarks.kernels import depthwise
from benchmarks.kernels.scan import calling
from benchmarks.support.arguments import main_over_cases, named
from benchmarks.support.gpu_timing import (
    all_of,
    bound,
    copy_microseconds,
    disagreement,
    library,
    microseconds_in_graph,
    session,
)
from tests.support.wrong_bodies import with_wrong_bodies

_LABELS = ("ours", "cudnn", "copy", "torch")


def prepare(folder: pathlib.Path, arch: str, sweep: bool, only: str) -> None:
    """Write every case's models with their kernels' calls, and one library."""
    import onnx_ir as ir

    from benchmarks.support.collection import Collection
    from benchmarks.support.fusing import fuse, outlined
    from onnxopt.kinds.image_convolution.kind import ImageConvolutionKind

    folder.mkdir(parents=True)
    collection = Collection()
    tiles: dict[str, dict[str, str]] = {}  # by case: kernels with another tile
    for case in named(CASES, only):
        model = ir.serde.deserialize_model(case.model())
        (kernel,) = outlined(model, fuse(model))
        collection.kernels.setdefault(kernel.name, kernel)
        optimized = with_wrong_bodies(ir.to_proto(model))
        onnx.save(optimized, folder / f"{case.name}.ours.onnx")
        with mock.patch.object(ImageConvolutionKind, "find", return_value=([], [])):
            model = ir.serde.deserialize_model(case.model())
            for other in outlined(model, fuse(model)):
                collection.kernels.setdefault(other.name, other)
            onnx.save(ir.to_proto(model), folder / f"{case.name}.cudnn.onnx")
        others = list(kernel.kind.alternatives(kernel)) if sweep and case.is_swept else []
        others = [v for v in others if not v.exact]
        for variant in others:
            label = variant.symbol.rsplit("_", 1)[1]
            name = f"{kernel.name}_by_{label}"
            collection.kernels[name] = dataclasses.replace(kernel, name=name, variants=(variant,))
            tiles.setdefault(case.name, {})[label] = name
        print(case.name, *(v.symbol.rsplit("_", 1)[1] for v in (*kernel.variants, *others)))
    (folder / "tiles.json").write_text(json.dumps(tiles))
    collection.write_library(folder, [arch])
    size = sum(p.stat().st_size for p in folder.iterdir())
    print(f"{len(collection.kernels)} kernels, {size / 1e3:.0f} KB")


class Measured(depthwise.Measured):
    """One case on the device, and every way to run it over its buffers in rotation."""

    case: ImageCase  # type: ignore[assignment]

    def exact(self, suffix: str) -> float:
        """Microseconds a run where the provider allows no TF32, after one run was compared."""
        stream = torch.cuda.Stream()
        path = str(self.folder / f"{self.case.name}{suffix}.onnx")
        run_in = session(path, library(self.folder), "cuda", stream=stream, options={"use_tf32": "0"})
        runs = [bound(run_in, i, {"y": y}, wait=False) for i, y in zip(self.inputs, self.outputs, strict=True)]
        self.outputs[0].fill_(float("nan"))
        torch.cuda.synchronize()
        runs[0]()
        torch.cuda.synchronize()
        error = disagreement(self.outputs[0], self.expected, *self.case.limits(exact=True))
        if not error <= 1:
            raise ValueError(f"{error:.3g} of the limit away from float64")
        return microseconds_in_graph(runs, stream)

    def torch_bare(self) -> float:
        """torch's convolution alone, in channels_last."""
        case, last = self.case, torch.channels_last
        weight = case.weight(dtype=case.torch_dtype, device="cuda").contiguous(memory_format=last)
        images = [i["t"].contiguous(memory_format=last) for i in self.inputs]
        runs: list[Callable[[], object]] = [
            lambda x=x: torch.nn.functional.conv2d(x, weight, None, case.stride, case.pad)  # type: ignore[misc]
            for x in images
        ]
        return microseconds_in_graph(runs, torch.cuda.Stream())


def measure(case: ImageCase, folder: pathlib.Path) -> dict[str, Any]:
    """Everything about one case; what fails is recorded as text beside what worked."""
    measured = Measured(case, folder)  # type: ignore[arg-type]
    row: dict[str, Any] = {"MB": round(case.bytes() / 1e6, 2)}
    steps: dict[str, Callable[[], float]] = {
        "ours": lambda: measured.time(".ours"),
        "cudnn": lambda: measured.time(".cudnn"),
        "copy": lambda: copy_microseconds(case.bytes(), len(measured.inputs)),
        "torch": measured.torch_bare,
    }
    if case.dtype == "f32":
        steps["exact"] = lambda: measured.exact(".ours")
        steps["cudnn_exact"] = lambda: measured.exact(".cudnn")
    for label, kernel in json.loads((folder / "tiles.json").read_text()).get(case.name, {}).items():
        onnx.save(calling(onnx.load(folder / f"{case.name}.ours.onnx"), kernel), folder / f"{case.name}.{label}.onnx")
        steps[label] = lambda label=label: measured.time(f".{label}")  # type: ignore[misc]
    return row | all_of(steps)


def table(rows: dict[str, Any]) -> str:
    """The rows as text, times in us."""
    lines = [f"{'case':42} {'MB':>7} {'copy':>7} {'torch':>7} {'cudnn':>7} {'ours':>7}  others, fastest first"]
    for name, row in rows.items():
        others = {k: v for k, v in row.items() if k not in (*_LABELS, "MB") and isinstance(v, float)}
        said = ", ".join(f"{k} {v}" for k, v in sorted(others.items(), key=lambda kv: kv[1]))
        numbers = " ".join(f"{str(row[k])[:60]:>7}" for k in ("MB", "copy", "torch", "cudnn", "ours"))
        lines.append(f"{name:42} {numbers}  {said}")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main_over_cases(__doc__, CASES, prepare, measure, table))
