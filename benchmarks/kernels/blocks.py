"""Blocks of convolutions whose parts lie in one tensor: in place, with copies by our kernels, with copies by ORT.

    python -m benchmarks.kernels.blocks prepare DIR --arch sm_90        on any machine, without a GPU
    python -m benchmarks.kernels.blocks run DIR --out OUT.json --tune   on the GPU machine: onnxruntime, torch, onnx

The shapes are csp_detector's, float16, NHWC. Every case is a 1x1 convolution, a Split, 3x3 convolutions on one half and
a Concat, all convolutions by cuDNN; or a Concat alone. `run` compares every way with float64 first, and random blocks.
--tune measures cuDNN's plans in a process of its own, and times the ways with the best plans too. Runs lie in one CUDA
graph, over buffers in rotation.
"""

from __future__ import annotations

import json
import lzma
import math
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from typing import Any

import onnx
import torch
import torch.nn.functional as F

from benchmarks.support.arguments import command
from benchmarks.support.gpu_timing import (
    Tensors,
    bound,
    copy_microseconds,
    disagreement,
    library,
    poisoned,
    rotation,
    session,
    session_microseconds,
)
from cases.block import Halves, draw

BLOCKS = {  # by the name of the Concat in csp_detector
    "cat": Halves(n=8, h=160, w=160, c=64, half=32, depth=1),  # without SiLU in cuDNN: nothing is in place
    "cat_1": Halves(n=8, h=80, w=80, c=128, half=64, depth=2),
    "cat_2": Halves(n=8, h=40, w=40, c=256, half=128, depth=2),
    "cat_3": Halves(n=8, h=20, w=20, c=512, half=256, depth=1),
    "cat_6": Halves(n=8, h=40, w=40, c=768, half=128, depth=1, shortcut=False),
    "cat_8": Halves(n=8, h=80, w=80, c=384, half=64, depth=1, shortcut=False),
    "cat_10": Halves(n=8, h=40, w=40, c=384, half=128, depth=1, shortcut=False),
    "cat_12": Halves(n=8, h=20, w=20, c=768, half=256, depth=1, shortcut=False),
}
CONCATS = {  # shapes of the operands, NHWC
    "cat_4": [(8, 20, 20, 256)] * 4,
    "cat_9": [(8, 40, 40, 128), (8, 40, 40, 256)],
    "cat_11": [(8, 20, 20, 256), (8, 20, 20, 512)],
}
RANDOM = {f"random_{seed}": draw(seed) for seed in range(40)}
WAYS = ("in place", "copies", "ort")
_KEEP_BELOW = 4096  # bytes; larger weights are drawn again
_RELATIVE, _ABSOLUTE = 4e-3, 2e-2  # up to five convolutions, each rounded to float16


def _file(folder: pathlib.Path, name: str, way: str) -> pathlib.Path:
    return folder / f"{name}.{way.replace(' ', '_')}.onnx.xz"


def _concat(shapes: list[tuple[int, ...]]) -> onnx.ModelProto:
    from onnx import TensorProto, helper

    names = [f"x{k}" for k in range(len(shapes))]
    inputs = [
        helper.make_tensor_value_info(x, TensorProto.FLOAT16, shape) for x, shape in zip(names, shapes, strict=True)
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT16, None)
    graph = helper.make_graph([helper.make_node("Concat", names, ["y"], axis=3)], "g", inputs, [output])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def _optimized(source: onnx.ModelProto, way: str, kernels: dict[str, Any]) -> tuple[onnx.ModelProto, list[str]]:
    """The model of one way, whose kernels are added, and its operators."""
    import dataclasses

    import onnx_ir as ir

    from cases.models import laid_out, outline
    from onnxopt.fusion import fuse as fusing
    from onnxopt.fusion.lower import lower
    from onnxopt.graph.layout.mark import mark
    from onnxopt.kinds import KINDS

    model = laid_out(source)
    if len(model.graph) == 1:
        mark(model.graph.outputs[0])  # as the layout pass does
    plan = fusing.fuse(model, [k for k in KINDS if way == "in place" or k.name != "block"])
    moves = {"Slice", "Split", "Concat"}
    if way == "ort":
        plan = dataclasses.replace(
            plan, regions=tuple(r for r in plan.regions if not {n.op_type for n in r.nodes} <= moves)
        )
    for kernel in outline(model, lower(plan, model.opset_imports)):
        kernels[kernel.name] = kernel
    proto = ir.to_proto(model)
    for tensor in proto.graph.initializer:
        if len(tensor.raw_data) >= _KEEP_BELOW:
            tensor.ClearField("raw_data")
    return proto, [n.op_type for n in proto.graph.node]


def prepare(folder: pathlib.Path, arch: str) -> None:
    """Write the models without their weights, and one library."""
    from benchmarks.support.collection import Collection

    folder.mkdir(parents=True, exist_ok=True)
    collection = Collection()
    sources = {name: halves.model() for name, halves in BLOCKS.items()}
    sources |= {name: _concat(shapes) for name, shapes in CONCATS.items()}
    for name, source in sources.items():
        for way in WAYS:
            proto, operators = _optimized(source, way, collection.kernels)
            print(name, way, " ".join(operators))
            _file(folder, name, way).write_bytes(lzma.compress(proto.SerializeToString()))
    for name, halves in RANDOM.items():
        proto, operators = _optimized(halves.model(), WAYS[0], collection.kernels)
        if not any(o.startswith("ConvSlice") for o in operators):
            raise ValueError(f"{halves} became no block: {' '.join(operators)}")
        _file(folder, name, WAYS[0]).write_bytes(lzma.compress(proto.SerializeToString()))
    collection.write_library(folder, [arch])
    print(f"{sum(p.stat().st_size for p in folder.iterdir()) / 1e6:.2f} MB")


def _filled(folder: pathlib.Path, name: str, way: str) -> bytes:
    """The model of one way with its weights."""
    from onnx import numpy_helper

    model = onnx.load_from_string(lzma.decompress(_file(folder, name, way).read_bytes()))
    weights = {} if name in CONCATS else {of: w for of, w, _ in (BLOCKS | RANDOM)[name].weights()}
    for tensor in model.graph.initializer:
        if not tensor.raw_data and math.prod(tensor.dims) > 0:
            weight = weights[tensor.name.split("_w")[0]]
            stored = weight.transpose(0, 2, 3, 1).reshape(tuple(tensor.dims))
            if tensor.data_type == onnx.TensorProto.BFLOAT16:
                tensor.raw_data = (stored.copy().view("uint32") >> 16).astype("uint16").tobytes()
            else:
                tensor.CopyFrom(numpy_helper.from_array(stored.astype("float16"), tensor.name))
    return model.SerializeToString()


def _drawn(name: str) -> Tensors:
    if name in CONCATS:
        return {f"x{k}": torch.randn(s, device="cuda").half() for k, s in enumerate(CONCATS[name])}
    return {"x": torch.from_numpy((BLOCKS | RANDOM)[name].feeds()["x"]).cuda()}


def _reference(name: str, inputs: Tensors) -> torch.Tensor:
    """y [N, H, W, channels] in float64."""
    if name in CONCATS:
        return torch.cat(list(inputs.values()), dim=3).double()
    of = (BLOCKS | RANDOM)[name]
    weights = {
        n: (torch.from_numpy(w).cuda().double(), torch.from_numpy(b).cuda().double()) for n, w, b in of.weights()
    }

    def convolved(layer: str, x: torch.Tensor) -> torch.Tensor:
        weight, bias = weights[layer]
        return F.silu(F.conv2d(x, weight, bias, padding=weight.shape[2] // 2))

    whole = convolved("open", inputs["x"].double().permute(0, 3, 1, 2))
    parts = list(whole.split(of.half, dim=1))
    for k in range(of.depth):
        result = convolved(f"b{k}", convolved(f"a{k}", parts[-1]))
        parts.append(parts[-1] + result if of.shortcut else result)
    return torch.cat(parts, dim=1).permute(0, 2, 3, 1)


def _compare_random(folder: pathlib.Path) -> list[str]:
    """The random blocks that do not agree with float64, each run twice."""
    bad = []
    for name, halves in RANDOM.items():
        inputs = _drawn(name)
        expected = _reference(name, inputs)
        outputs = {"y": poisoned(expected.shape, inputs["x"].dtype, "cuda")}
        rounds = 8 if halves.dtype == "bfloat16" else 1  # as many roundings of float16 make one
        try:
            run_once = bound(session(_filled(folder, name, WAYS[0]), library(folder), "cuda"), inputs, outputs)
            for _ in range(2):
                outputs["y"].fill_(float("nan"))
                run_once()
                worst = disagreement(outputs["y"], expected, rounds * _RELATIVE, rounds * _ABSOLUTE)
                if not worst <= 1:
                    bad.append(f"{halves}: {worst:.3g} of the limit")
        except Exception as error:  # noqa: BLE001 - what fails is a finding, not the end
            bad.append(f"{halves}: {type(error).__name__}: {str(error)[:200]}")
    return bad


def _moved(name: str) -> int:
    """Bytes that a Split and a Concat move where they copy."""
    if name in CONCATS:
        return 4 * sum(math.prod(s) for s in CONCATS[name])
    of = BLOCKS[name]
    return 4 * of.n * of.h * of.w * of.half * (2 + of.depth + 1)  # a Slice of one half, and the Concat


def _measure(folder: pathlib.Path, name: str, tuned: pathlib.Path | None) -> dict[str, Any]:
    row: dict[str, Any] = {"mb": _moved(name) / 1e6}
    sets = rotation(_moved(name), "cuda")
    inputs = [_drawn(name) for _ in range(sets)]
    expected = _reference(name, inputs[0])
    outputs = [{"y": poisoned(expected.shape, torch.float16, "cuda")} for _ in range(sets)]
    models = {way: _filled(folder, name, way) for way in WAYS}
    libraries = {"": pathlib.Path(library(folder))} | ({"tuned ": tuned} if tuned is not None else {})
    for word, path in libraries.items():
        for way, model in models.items():
            try:
                outputs[0]["y"].fill_(float("nan"))
                bound(session(model, str(path), "cuda"), inputs[0], outputs[0])()
                worst = disagreement(outputs[0]["y"], expected, _RELATIVE, _ABSOLUTE)
                row["worst"] = max(worst, row.get("worst", 0.0))
                row[word + way] = session_microseconds(
                    lambda s, m=model, p=path: session(m, str(p), "cuda", stream=s), inputs, outputs
                )
            except Exception as error:  # noqa: BLE001 - the other ways' numbers are worth having
                row["error"] = f"{word}{way}: {type(error).__name__}: {error}"[:300]
    row["copy"] = copy_microseconds(_moved(name), sets)
    return row


def measure_plans(folder: pathlib.Path) -> int:
    """Run every case once, in a process with ONNXOPT_CONV_TUNE: the library measures its plans."""
    for name in BLOCKS:
        for way in WAYS[:2]:
            stream = torch.cuda.Stream()  # the default stream cannot be captured, which measuring does
            ready = session(_filled(folder, name, way), library(folder), "cuda", stream=stream)
            inputs = _drawn(name)
            y = poisoned(_reference(name, inputs).shape, torch.float16, "cuda")
            torch.cuda.synchronize()
            bound(ready, inputs, {"y": y})()
    return 0


def _tuned(folder: pathlib.Path, root: pathlib.Path) -> pathlib.Path:
    """A copy of the library with what was measured beside it."""
    known = pathlib.Path(library(folder))
    shutil.copytree(known.parent, root / "tuned")
    environment = {**os.environ, "ONNXOPT_CONV_TUNE": str(root / "tuned" / "conv_plans.json")}
    verb = [sys.executable, "-m", "benchmarks.kernels.blocks", "measure", str(folder)]
    done = subprocess.run(verb, env=environment, check=False)
    print(f"plans measured, exit code {done.returncode}", flush=True)
    return root / "tuned" / known.name


def run(folder: pathlib.Path, out: pathlib.Path | None, tune: bool) -> int:
    """Measure the cases; 0 if all agree with float64."""
    rows: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as root:
        tuned = _tuned(folder, pathlib.Path(root)) if tune else None
        for name in [*BLOCKS, *CONCATS]:
            rows[name] = _measure(folder, name, tuned)
            print(name, rows[name], flush=True)
            if out is not None:
                out.write_text(json.dumps(rows, indent=1))
            torch.cuda.empty_cache()
    times = ["copy", *WAYS, *(f"tuned {way}" for way in WAYS if tune)]
    print("| case | MB copied | " + " | ".join(times) + " | error |\n|" + "---|" * (len(times) + 3))
    for name, row in rows.items():
        figures = " | ".join(f"{row[t]:.1f}" if t in row else "-" for t in times)
        worst = row.get("error") or format(row["worst"], ".2f")
        print(f"| {name} | {row['mb']:.1f} | {figures} | {worst} |")
    print("sums: " + ", ".join(f"{t} {sum(row.get(t, 0.0) for row in rows.values()):.0f}" for t in times))
    bad = [name for name, row in rows.items() if "error" in row or not row["worst"] <= 1]
    bad += (wrong := _compare_random(folder))
    print(f"{len(RANDOM)} random blocks, {len(wrong)} do not agree")
    print(f"FAILED: {'; '.join(bad)}" if bad else "all agree")
    return 1 if bad else 0


def main() -> int:
    parser, (_, ran, _) = command(__doc__, "measure")
    ran.add_argument("--out", type=pathlib.Path, help="JSON, rewritten after every case")
    ran.add_argument("--tune", action="store_true", help="measure cuDNN's plans first, and time the best ones too")
    args = parser.parse_args()
    if args.verb == "prepare":
        prepare(args.folder, args.arch)
        return 0
    if args.verb == "measure":
        return measure_plans(args.folder)
    return run(args.folder, args.out, args.tune)


if __name__ == "__main__":
    sys.exit(main())
