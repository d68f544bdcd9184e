"""In-place reuse: whether ONNX Runtime gives a fused kernel one buffer to read and to write, and the results.

    python -m benchmarks.gpu.in_place prepare DIR --arch sm_90     on any machine, without a GPU
    python -m benchmarks.gpu.in_place run DIR                      on the GPU machine: onnxruntime, numpy, torch, onnx

A fused region stands between two CumSums. The axis of the CumSums is an input, so they join no region. The input and
the output of the region are buffers of ONNX Runtime's arena. The first run takes one such buffer from the GPU's memory
if the kernel writes in place, and two if its input is read again behind the region.
"""

from __future__ import annotations

import json
import lzma
import pathlib
import sys

import onnx
import onnxruntime as ort
import torch

from benchmarks.support.arguments import add_device_and_out, command
from benchmarks.support.gpu_timing import bound, library

_ROWS = 4096
_REGIONS = {  # columns, the region from c to m with another operand z, the same in torch
    "contiguous": (16384, "[4096, 16384]", "s = Sigmoid(c)  p = Mul(c, s)  m = Add(p, z)"),
    "bias": (16384, "[16384]", "s = Sigmoid(c)  p = Mul(c, s)  m = Add(p, z)"),
    "bias_odd": (16379, "[16379]", "s = Sigmoid(c)  p = Mul(c, s)  m = Add(p, z)"),
    "rows": (16379, "[4096, 1]", "s = Sigmoid(c)  p = Mul(c, s)  m = Add(p, z)"),
}
_AGAIN = ("", "  l = Min(c, y)  w = CumSum(l, axis)")  # whether c is read behind the region


def _model(region: str, again: str) -> onnx.ModelProto:
    columns, other, body = _REGIONS[region]
    dims = f"float[{_ROWS}, {columns}]"
    outputs = f"{dims} y" + (f", {dims} w" if again else "")
    text = (
        f'<ir_version: 9, opset_import: ["" : 20]> g ({dims} x, float{other} z, int64[1] axis) => ({outputs}) '
        f"{{ c = CumSum(x, axis)  {body}  y = CumSum(m, axis){again} }}"
    )
    return onnx.parser.parse_model(text)


def prepare(folder: pathlib.Path, arch: str) -> None:
    """Write the optimized models and one library with their kernels."""
    from benchmarks.support.collection import Collection

    folder.mkdir(parents=True)
    collection = Collection()
    for region in _REGIONS:
        for again in _AGAIN:
            optimized, plan = collection.optimize(_model(region, again))
            assert len(plan.regions) == 1, [n.op_type for n in optimized.graph.node]
            data = lzma.compress(optimized.SerializeToString())
            (folder / f"{region}{'_again' if again else ''}.optimized.onnx").write_bytes(data)
    collection.write_library(folder, [arch])


def _session(model: bytes, path: str, device: str) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.register_custom_ops_library(path)
    cuda = ("CUDAExecutionProvider", {"arena_extend_strategy": "kSameAsRequested"})
    providers = ["CPUExecutionProvider"] if device == "cpu" else [cuda, "CPUExecutionProvider"]
    return ort.InferenceSession(model, options, providers=providers)


def measure(region: str, again: str, folder: pathlib.Path, device: str) -> dict[str, float]:
    """buffers: that the first run took, in tensors of the region's size. error: largest relative difference."""
    columns, other, _ = _REGIONS[region]
    generator = torch.Generator(device).manual_seed(len(region))

    def drawn(dims: list[int]) -> torch.Tensor:
        return torch.rand(dims, generator=generator, device=device) * 2e-3

    inputs = {"x": drawn([_ROWS, columns]), "z": drawn([int(n) for n in other.strip("[]").split(", ")])}
    inputs["axis"] = torch.ones(1, dtype=torch.int64)
    outputs = {name: torch.full_like(inputs["x"], float("nan")) for name in ("y", "w")[: 2 if again else 1]}
    name = f"{region}{'_again' if again else ''}.optimized.onnx"
    run = bound(_session(lzma.decompress((folder / name).read_bytes()), library(folder), device), inputs, outputs)
    row = {}
    before = torch.cuda.mem_get_info()[0] if device != "cpu" else 0
    run()
    if device != "cpu":
        taken = before - torch.cuda.mem_get_info()[0]
        row["buffers"] = taken / (inputs["x"].numel() * 4)
        run()  # once more, in buffers that have been used
    c = inputs["x"].double().cumsum(1)
    y = (c * c.sigmoid() + inputs["z"].double()).cumsum(1)
    expected = {"y": y, "w": torch.minimum(c, y).cumsum(1)}
    row["error"] = max(float(((t - expected[n]).abs() / expected[n].abs()).max()) for n, t in outputs.items())
    return row


def main() -> int:
    parser, verbs = command(__doc__)
    add_device_and_out(verbs[1])
    args = parser.parse_args()
    if args.verb == "prepare":
        prepare(args.folder, args.arch)
        return 0
    rows, bad = {}, []
    for region in _REGIONS:
        for again in _AGAIN:
            label = f"{region}{', read again' if again else ''}"
            rows[label] = row = measure(region, again, args.folder, args.device)
            expected = 2 if again else 1
            if not row["error"] < 1e-4 or round(row.get("buffers", expected)) != expected:
                bad.append(label)
            print(label, {k: float(f"{v:.3g}") for k, v in row.items()}, flush=True)
            if args.device != "cpu":
                torch.cuda.empty_cache()
    if args.out is not None:
        args.out.write_text(json.dumps(rows, indent=1))
    print(f"FAILED: {', '.join(bad)}" if bad else "in place where the input is not read again, and all agree")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
