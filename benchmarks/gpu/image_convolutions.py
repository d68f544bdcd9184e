"""Convolutions of images: time beside a device copy, cuDNN and torch in channels_last, after a check with float64.

    python -m benchmarks.gpu.image_convolutions prepare DIR --arch sm_90 [--sweep]      on any machine, without a GPU
    python -m benchmarks.gpu.image_convolutions run DIR --out FILE [--seconds N]

All run as in a session, through the library, from an NCHW image to an activated NHWC result. cudnn: the same graph
without this kind of kernels, its Transpose, Pad and SiLU included. torch's convolution is bare and reads NHWC.
`--sweep` also compiles and times other tiles; kinds/image_convolution/entry_points.py rests on such results.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import onnx
import torch

from benchmarks.cases.image_convolutions import CASES, ImageCase
from benchmarks.gpu import depthwise
from benchmarks.gpu.scan import bodiless, calling
from benchmarks.support.arguments import command
from benchmarks.support.gpu_timing import copy_microseconds, microseconds_in_graph

_LABELS = ("ours", "cudnn", "copy", "torch")


def _named(parts: str) -> list[ImageCase]:
    """The cases whose name has one of these parts, which commas separate."""
    return [c for c in CASES if any(part in c.name for part in parts.split(","))]


def prepare(folder: pathlib.Path, arch: str, sweep: bool, only: str) -> None:
    """Write every case's models with their kernels' calls, and one library."""
    import onnx_ir as ir

    from benchmarks.support.collection import Collection
    from benchmarks.support.fusing import fuse, outlined
    from onnxopt.kinds.image_convolution.kind import ImageConvolutionKind

    folder.mkdir(parents=True)
    collection = Collection()
    tiles: dict[str, dict[str, str]] = {}  # by case: kernels with another tile
    for case in _named(only):
        model = ir.serde.deserialize_model(case.model())
        (kernel,) = outlined(model, fuse(model))
        collection.kernels.setdefault(kernel.name, kernel)
        optimized = bodiless(ir.to_proto(model))
        onnx.save(optimized, folder / f"{case.name}.ours.onnx")
        with mock.patch.object(ImageConvolutionKind, "find", return_value=([], [])):
            model = ir.serde.deserialize_model(case.model())
            for other in outlined(model, fuse(model)):
                collection.kernels.setdefault(other.name, other)
            onnx.save(ir.to_proto(model), folder / f"{case.name}.cudnn.onnx")
        others = list(kernel.kind.alternatives(kernel)) if sweep and case.is_swept else []
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
    for label, kernel in json.loads((folder / "tiles.json").read_text()).get(case.name, {}).items():
        onnx.save(calling(onnx.load(folder / f"{case.name}.ours.onnx"), kernel), folder / f"{case.name}.{label}.onnx")
        steps[label] = lambda label=label: measured.time(f".{label}")  # type: ignore[misc]
    for label, step in steps.items():
        try:
            row[label] = round(step(), 2)
        except Exception as error:  # noqa: BLE001 - what else there is to measure is worth having
            row[label] = f"failed: {type(error).__name__}: {str(error)[-200:]}"
    return row


def table(rows: dict[str, Any]) -> str:
    """The rows as text, times in us."""
    lines = [f"{'case':42} {'MB':>7} {'copy':>7} {'torch':>7} {'cudnn':>7} {'ours':>7}  others, fastest first"]
    for name, row in rows.items():
        others = {k: v for k, v in row.items() if k not in (*_LABELS, "MB") and isinstance(v, float)}
        said = ", ".join(f"{k} {v}" for k, v in sorted(others.items(), key=lambda kv: kv[1]))
        numbers = " ".join(f"{str(row[k])[:60]:>7}" for k in ("MB", "copy", "torch", "cudnn", "ours"))
        lines.append(f"{name:42} {numbers}  {said}")
    return "\n".join(lines)


def run(folder: pathlib.Path, args: argparse.Namespace) -> int:
    """Measure every case that there is time for; 1 where one of ours failed."""
    begun = time.perf_counter()
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    rows: dict[str, Any] = {}
    for case in _named(args.only):
        if args.seconds and time.perf_counter() - begun > args.seconds:
            print(f"out of time before {case.name}")
            break
        rows[case.name] = measure(case, folder)
        if args.out is not None:
            args.out.write_text(json.dumps(rows, indent=1))
        torch.cuda.empty_cache()
    print(table(rows))
    bad = [f"{name} {k}: {v}" for name, row in rows.items() for k, v in row.items() if isinstance(v, str)]
    print("\n".join(bad))
    print(f"{time.perf_counter() - begun:.0f} s;", "FAILED" if bad else "all agree with float64")
    return 1 if bad else 0


def main() -> int:
    parser, (prepared, ran) = command(__doc__)
    prepared.add_argument("--sweep", action="store_true")
    ran.add_argument("--out", type=pathlib.Path, help="JSON, rewritten after every case")
    ran.add_argument("--seconds", type=float, default=0, help="start no further case after this many")
    for verb in (prepared, ran):
        verb.add_argument("--only", default="", help="comma-separated parts of names")
    args = parser.parse_args()
    if args.verb == "prepare":
        prepare(args.folder, args.arch, args.sweep, args.only)
        return 0
    return run(args.folder, args)


if __name__ == "__main__":
    raise SystemExit(main())
