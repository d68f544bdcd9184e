"""Squeeze-excite blocks: time with and without kernels of this kind, after a comparison with float64.

    python -m benchmarks.kernels.squeeze_excite prepare DIR --arch sm_90      on any machine, without a GPU
    python -m benchmarks.kernels.squeeze_excite run DIR --out FILE            on the GPU machine: onnxruntime, torch

Every block of EfficientNet-B0, from the depthwise convolution to the 1x1 convolution of the scaled map, and some more
blocks at other batches. The mean, the products and the rest run in one session, in a CUDA graph. "before": without the
kind, so that the mean is a kernel that reads the map, and the two products are calls of cuDNN and cuBLASLt. "map": the
factors scale the map. "weights": they scale the weights of the 1x1 convolution, whether or not the rule chooses that.
"""

from __future__ import annotations

import argparse
import json
import pathlib
from typing import Any
from unittest import mock

import numpy as np
import onnx
import torch

from benchmarks.cases.squeeze_excite import BLOCKS, Block
from benchmarks.support.arguments import command, named
from benchmarks.support.gpu_timing import (
    bound,
    copy_microseconds,
    disagreement,
    library,
    microseconds_in_graph,
    poisoned,
    rotation,
    session,
)

_WAYS = ("before", "map", "weights")
_LIMITS = 4e-3, 1.2e-2  # relative, absolute: of sums over the scaled map, which is rounded to float16


def prepare(folder: pathlib.Path, arch: str, only: str) -> None:
    """Write every block's model with its kernels' calls, in both ways and without weights, and one library."""
    import onnx_ir as ir
    from onnx_ir.passes.common import RemoveUnusedNodesPass

    from benchmarks.support.collection import Collection, renamed
    from benchmarks.support.fusing import fuse, outlined
    from onnxopt.graph.layout import gated_weights
    from onnxopt.graph.passes.unique_names import UniqueNamesPass
    from onnxopt.graph.shapes.infer import infer
    from onnxopt.kinds.squeeze_excite import match

    folder.mkdir(parents=True)
    collection = Collection()
    for block in named(BLOCKS, only):
        for way in _WAYS:
            model = ir.serde.deserialize_model(block.model())
            if way == "weights":
                with mock.patch.object(gated_weights, "_pays", lambda _, pixels: pixels > 1):
                    gated_weights.scale(model.graph, gated_weights.candidates(model.graph), infer(model))
                RemoveUnusedNodesPass()(model)
                UniqueNamesPass()(model)
            with mock.patch.object(match, "find", match.find if way != "before" else lambda *_: ([], [])):
                plan = fuse(model)
            names = {kernel.name: collection.add(kernel) for kernel in outlined(model, plan)}
            optimized = renamed(ir.to_proto(model), names)
            for tensor in optimized.graph.initializer:
                if tensor.name in block.constants():
                    tensor.ClearField("raw_data")
            onnx.save(optimized, folder / f"{block.name}.{way}.onnx")
            print(block.name, way, [region.kind.name for region in plan.regions])
    collection.write_library(folder, [arch])
    print(f"{len(collection.kernels)} kernels, {(folder / 'lib.tar.xz').stat().st_size / 1e3:.0f} KB")


def _filled(block: Block, path: pathlib.Path) -> bytes:
    """The model with its weights."""
    model = onnx.load(path)
    constants = block.constants()
    for tensor in model.graph.initializer:
        if tensor.name in constants:
            tensor.raw_data = np.ascontiguousarray(constants[tensor.name]).tobytes()
    return bytes(model.SerializeToString())


def measure(block: Block, folder: pathlib.Path) -> dict[str, Any]:
    """Everything about one block; what fails is recorded as text beside what worked."""
    torch.manual_seed(0)
    sets = rotation(block.bytes(), "cuda", 24)
    inputs = [{"t": torch.randn(block.x_shape, device="cuda").half()} for _ in range(sets)]
    outputs = [{"y": poisoned(block.y_shape, torch.float16, "cuda")} for _ in range(sets)]
    expected = block.expected(inputs[0]["t"])
    row: dict[str, Any] = {"MB": round(block.bytes() / 1e6, 2), "count": block.count}
    row["copy"] = round(copy_microseconds(block.bytes(), sets), 2)
    for way in _WAYS:
        try:
            stream = torch.cuda.Stream()
            model = _filled(block, folder / f"{block.name}.{way}.onnx")
            run_in = session(model, library(folder), "cuda", stream=stream)
            runs = [bound(run_in, i, o, wait=False) for i, o in zip(inputs, outputs, strict=True)]
            outputs[0]["y"].copy_(poisoned(block.y_shape, torch.float16, "cuda"))
            torch.cuda.synchronize()
            for _ in range(2):  # again over the first run's sums
                runs[0]()
            torch.cuda.synchronize()
            error = disagreement(outputs[0]["y"], expected, *_LIMITS)
            row[f"{way} error"] = round(error, 3)
            if not error <= 1:
                raise ValueError(f"{error:.3g} of the limit away from float64")
            row[way] = round(microseconds_in_graph(runs, stream), 2)
        except Exception as error:  # noqa: BLE001 - what else there is to measure is worth having
            row[way] = f"failed: {type(error).__name__}: {str(error)[-200:]}"
    return row


def table(rows: dict[str, Any]) -> str:
    """The rows as text, times in us, and the sum over EfficientNet-B0."""
    lines = [f"{'block':40} {'MB':>7} {'copy':>7}" + "".join(f" {way:>8}" for way in _WAYS)]
    total = dict.fromkeys(_WAYS, 0.0)
    for name, row in rows.items():
        lines.append(f"{name:40} {row['MB']:7} {row['copy']:7}" + "".join(f" {row[way]!s:>8.60}" for way in _WAYS))
        for way in _WAYS:
            total[way] += row["count"] * row[way] if isinstance(row[way], float) else 0.0
    return "\n".join([*lines, f"{'EfficientNet-B0, all sixteen':56}" + "".join(f" {total[way]:8.1f}" for way in _WAYS)])


def run(folder: pathlib.Path, args: argparse.Namespace) -> int:
    """Measure every block; 1 where one failed."""
    rows: dict[str, Any] = {}
    for block in named(BLOCKS, args.only):
        rows[block.name] = measure(block, folder)
        if args.out is not None:
            args.out.write_text(json.dumps(rows, indent=1))
        torch.cuda.empty_cache()
    print(table(rows))
    bad = [f"{name} {way}" for name, row in rows.items() for way in _WAYS if isinstance(row[way], str)]
    print(f"FAILED: {', '.join(bad)}" if bad else "all agree with float64")
    return 1 if bad else 0


def main() -> int:
    parser, (prepared, ran) = command(__doc__)
    ran.add_argument("--out", type=pathlib.Path, help="JSON, rewritten after every block")
    for verb in (prepared, ran):
        verb.add_argument("--only", default="", help="comma-separated parts of names")
    args = parser.parse_args()
    if args.verb == "prepare":
        prepare(args.folder, args.arch, args.only)
        return 0
    return run(args.folder, args)


if __name__ == "__main__":
    raise SystemExit(main())
