"""Pools and nearest Resize in NHWC: time beside a device copy, ONNX Runtime and torch, after a comparison.

    python -m benchmarks.kernels.pools prepare DIR --arch sm_90              on any machine, without a GPU
    python -m benchmarks.kernels.pools run DIR --out FILE --sweep            on the GPU machine: onnxruntime, torch

Every case runs through the library in a session of ONNX Runtime. --sweep also launches the pools' kernels in every tile
and two block sizes; kinds/pool/entry_points.py rests on these results.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import itertools
import json
import lzma
import math
import pathlib
from collections.abc import Callable
from typing import Any

from benchmarks.kernels.products import Launches
from benchmarks.support.arguments import command


@dataclasses.dataclass(frozen=True)
class Case:
    """kind: "max", "average", "resize", "resize_nchw" or "resize_concat". shape: of x, NHWC but for resize_nchw."""

    kind: str
    shape: tuple[int, int, int, int]
    kernel: int = 1
    stride: int = 1
    pad: int = 0
    dtype: str = "float16"

    @property
    def name(self) -> str:
        window = f"_{self.kernel}x{self.kernel}_s{self.stride}" if self.is_pool else ""
        return f"{self.kind}{window}_{self.dtype}_{'x'.join(map(str, self.shape))}"

    @property
    def is_pool(self) -> bool:
        return self.kind in ("max", "average")

    @property
    def output(self) -> tuple[int, ...]:
        n, h, w, c = self.shape
        if self.is_pool:
            oh, ow = ((d + 2 * self.pad - self.kernel) // self.stride + 1 for d in (h, w))
            return n, oh, ow, c
        if self.kind == "resize_nchw":
            return n, h, 2 * w, 2 * c
        return n, 2 * h, 2 * w, 2 * c if self.kind == "resize_concat" else c

    def inputs(self) -> dict[str, tuple[int, ...]]:
        n, h, w, c = self.shape
        return {"x": self.shape} | ({"z": (n, 2 * h, 2 * w, c)} if self.kind == "resize_concat" else {})

    def bytes(self) -> int:
        """What must be read and written."""
        size = {"float16": 2, "bfloat16": 2, "float32": 4, "int8": 1}[self.dtype]
        return size * (sum(math.prod(d) for d in self.inputs().values()) + math.prod(self.output))


CASES = (
    Case("max", (32, 112, 112, 64), 3, 2, 1),
    Case("max", (8, 20, 20, 256), 5, 1, 2),
    Case("max", (64, 40, 40, 256), 5, 1, 2),
    Case("max", (32, 112, 112, 64), 2, 2),
    Case("max", (8, 20, 20, 256), 13, 1, 6),
    Case("max", (32, 112, 112, 64), 3, 2, 1, "float32"),
    Case("max", (8, 20, 20, 256), 5, 1, 2, "bfloat16"),
    Case("max", (32, 56, 56, 36), 3, 2, 1),
    Case("average", (32, 56, 56, 256), 2, 2),
    Case("average", (32, 35, 35, 256), 3, 1, 1),
    Case("average", (32, 35, 35, 256), 3, 1, 1, "float32"),
    Case("average", (64, 7, 7, 1024), 7, 7),
    Case("resize", (8, 40, 40, 256)),
    Case("resize", (8, 20, 20, 512)),
    Case("resize_nchw", (8, 256, 40, 40)),
    Case("resize_concat", (8, 40, 40, 128)),
)
TILES = tuple(itertools.product((1, 2, 4), (1, 2, 4)))
THREADS = (128, 256)
_RUNS = 100


def model(case: Case) -> Any:
    """x to y; a pool between Transposes, as the layout pass leaves it."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    kind = getattr(TensorProto, case.dtype.upper().replace("FLOAT32", "FLOAT"))
    factors = (1, 1, 2, 2) if case.kind == "resize_nchw" else (1, 2, 2, 1)
    constants = []
    if case.is_pool:
        side, pad = [case.kernel] * 2, [case.pad] * 4
        op = {"max": "MaxPool", "average": "AveragePool"}[case.kind]
        nodes = [
            helper.make_node("Transpose", ["x"], ["t"], perm=[0, 3, 1, 2]),
            helper.make_node(op, ["t"], ["p"], kernel_shape=side, strides=[case.stride] * 2, pads=pad),
            helper.make_node("Transpose", ["p"], ["y"], perm=[0, 2, 3, 1]),
        ]
    else:
        constants = [numpy_helper.from_array(np.array(factors, np.float32), "s")]
        ways = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        resized = "r" if case.kind != "resize" else "y"
        nodes = [helper.make_node("Resize", ["x", "", "s"], [resized], **ways)]
        if case.kind == "resize":  # alone it would stay with ONNX Runtime: as the layout pass leaves it
            constants = [numpy_helper.from_array(np.array((1, 1, 2, 2), np.float32), "s")]
            nodes = [
                helper.make_node("Transpose", ["x"], ["t"], perm=[0, 3, 1, 2]),
                helper.make_node("Resize", ["t", "", "s"], ["r"], **ways),
                helper.make_node("Transpose", ["r"], ["y"], perm=[0, 2, 3, 1]),
            ]
        elif case.kind == "resize_concat":
            nodes.append(helper.make_node("Concat", ["r", "z"], ["y"], axis=3))
        else:
            nodes.append(helper.make_node("Neg", ["r"], ["y"]))
    infos = [helper.make_tensor_value_info(n, kind, list(d)) for n, d in case.inputs().items()]
    output = helper.make_tensor_value_info("y", kind, list(case.output))
    graph = helper.make_graph(nodes, "case", infos, [output], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)


def prepare(folder: pathlib.Path, arch: str) -> None:
    """Every case's model before and after, one library, and a fatbin with the pools in every tile."""
    import onnx

    from benchmarks.support.collection import Collection
    from onnxopt.codegen import nvrtc
    from onnxopt.fusion.region import Kernel
    from onnxopt.kinds.pool import entry_points
    from onnxopt.kinds.pool.kind import POOL
    from onnxopt.program.pool import Pool
    from onnxopt.program.window import Window
    from tests.support.wrong_bodies import with_wrong_bodies

    folder.mkdir(parents=True)
    collection = Collection()
    written: set[str] = set()
    lines = ['#include "pool/pool.cuh"', "namespace onnxopt {"]
    for case in CASES:
        optimized, plan = collection.optimize(model(case))
        onnx.save(model(case), folder / f"{case.name}.onnx")
        onnx.save(with_wrong_bodies(optimized) if case.is_pool else optimized, folder / f"{case.name}.optimized.onnx")
        print(case.name, [n.op_type for n in optimized.graph.node], [r.reason for r in plan.refusals])
        if case.is_pool:
            window = Window((case.kernel,) * 2, (case.stride,) * 2, (1, 1), (case.pad,) * 4)
            meaning = Pool((case.dtype,), (case.dtype,), case.kind, window)
            variants = tuple(
                dataclasses.replace(v, symbol=_symbol(case, tile, threads), threads=threads)
                for tile in _tiles(case)
                for threads in THREADS
                for v in [entry_points.variant("", _vector(case), tile)]
                if _symbol(case, tile, threads) not in written
            )
            written |= {v.symbol for v in variants}
            lines += entry_points.lines(Kernel(case.name, POOL, (), meaning, variants, ()))
    collection.write_library(folder, [arch])
    compiled = nvrtc.compiled("\n".join([*lines, "}  // namespace onnxopt"]), [arch])
    (folder / "pools.fatbin.xz").write_bytes(lzma.compress(compiled.fatbin))
    for symbol, usage in compiled.usage[arch].items():
        if usage.spilled:
            print(f"{symbol} spills")
    print(f"{len(collection.kernels)} kernels, {sum(p.stat().st_size for p in folder.iterdir()) / 1e3:.0f} KB")


def _vector(case: Case) -> int:
    channels = case.shape[3]
    return min({"float16": 8, "bfloat16": 8, "float32": 4}[case.dtype], channels & -channels)


def _tiles(case: Case) -> list[tuple[int, int]]:
    """Those of which pool.cuh has code."""
    return [t for t in TILES if t[0] == 1 or case.kernel**2 <= 25]


def _symbol(case: Case, tile: tuple[int, int], threads: int) -> str:
    window = f"{case.kernel}_s{case.stride}_{case.dtype}_w{_vector(case)}"
    return f"{case.kind}_{window}_{tile[0]}_{tile[1]}_t{threads}"


class _Divisor(ctypes.Structure):
    _fields_ = (("divisor", ctypes.c_uint), ("multiplier", ctypes.c_uint), ("shift", ctypes.c_uint))


class _Params(ctypes.Structure):  # PoolParams of cuda_kernels/pool/abi.h
    _fields_ = (
        ("x", ctypes.c_void_p), ("y", ctypes.c_void_p), ("count", ctypes.c_uint),
        *((n, ctypes.c_int) for n in ("height", "width", "channels", "out_height", "out_width", "top", "left")),
        *((n, _Divisor) for n in ("groups", "across", "down")),
    )  # fmt: skip


def _by(divisor: int) -> _Divisor:
    shift = (divisor - 1).bit_length()
    return _Divisor(divisor, (1 << 32) * ((1 << shift) - divisor) // divisor + 1, shift)


def torch_function(case: Case, contiguous: bool = False) -> Callable[..., Any]:
    """What torch runs, from and to NHWC tensors without copies; in channels_last but for resize_nchw.

    contiguous: of a copy in NCHW.
    """
    import torch
    from torch.nn import functional

    def resized(x: Any) -> Any:
        return functional.interpolate(x, scale_factor=2, mode="nearest")

    def run(x: Any, z: Any = None) -> Any:
        if case.kind == "resize_nchw":
            return -resized(x)
        turned = x.permute(0, 3, 1, 2)
        turned = turned.contiguous() if contiguous else turned
        if case.kind == "max":
            y = functional.max_pool2d(turned, case.kernel, case.stride, case.pad)
        elif case.kind == "average":
            y = functional.avg_pool2d(turned, case.kernel, case.stride, case.pad, count_include_pad=False)
        else:
            y = resized(turned)
        y = y.permute(0, 2, 3, 1)
        return torch.cat([y, z], dim=3) if z is not None else y

    return run


def _by_events(runs: list[Callable[[], object]], stream: Any) -> float:
    """Microseconds of a run, many of them after each other; the host's share counts where it takes longer."""
    import torch

    rounds = -(-_RUNS // len(runs))
    for run in runs:
        run()
    stream.synchronize()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record(stream)
    for _ in range(rounds):
        for run in runs:
            run()
    end.record(stream)
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3 / (rounds * len(runs))


class Measured:
    """One case on the device, with several sets of buffers."""

    def __init__(self, case: Case, folder: pathlib.Path):
        import torch

        from benchmarks.support.gpu_timing import poisoned, rotation

        self.case, self.folder = case, folder
        self.sets = rotation(case.bytes(), "cuda", 24)
        kind = getattr(torch, case.dtype)
        self.inputs = [
            {n: torch.randn(d, device="cuda").to(kind) for n, d in case.inputs().items()} for _ in range(self.sets)
        ]
        self.outputs = [poisoned(case.output, kind, "cuda") for _ in range(self.sets)]
        # In NCHW: torch's max_pool2d of large channels_last tensors of float64 differs from ONNX Runtime's.
        first = {n: x.double() for n, x in self.inputs[0].items()}
        self.expected = torch_function(case, contiguous=case.is_pool)(**first)

    def check(self) -> None:
        """ValueError unless the first output is what torch gives in float64."""
        import torch

        from benchmarks.support.gpu_timing import disagreement

        step = {torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7, torch.float32: 2.0**-21}[self.outputs[0].dtype]
        limit = step if self.case.kind == "average" else 0.0
        error = disagreement(self.outputs[0], self.expected, limit, limit)
        self.outputs[0].fill_(float("nan"))
        if not error <= 1:
            raise ValueError(f"{error:.3g} of the limit away from float64")

    def session(self, suffix: str) -> float:
        """Microseconds a run through ONNX Runtime."""
        import torch

        from benchmarks.support.gpu_timing import bound, library, microseconds_in_graph, session

        stream = torch.cuda.Stream()
        ops = None if suffix == "" else library(self.folder)
        run_in = session(str(self.folder / f"{self.case.name}{suffix}.onnx"), ops, "cuda", stream=stream)
        runs = [bound(run_in, x, {"y": y}, wait=False) for x, y in zip(self.inputs, self.outputs, strict=True)]
        torch.cuda.synchronize()
        runs[0]()
        torch.cuda.synchronize()
        self.check()
        if suffix == "" and self.case.kind == "max":  # ONNX Runtime's MaxPool cannot be captured
            return _by_events(runs, stream)
        return microseconds_in_graph(runs, stream)

    def torch(self) -> float:
        import torch

        from benchmarks.support.gpu_timing import microseconds_in_graph

        function = torch_function(self.case)
        return microseconds_in_graph([lambda x=x: function(**x) for x in self.inputs], torch.cuda.Stream())

    def kernel(self, ours: Launches, tile: tuple[int, int], threads: int) -> float:
        """Microseconds of our kernel in one tile and block size."""
        import torch

        from benchmarks.support.gpu_timing import microseconds_in_graph

        _, h, w, c = self.case.shape
        n, oh, ow, _ = self.case.output
        groups, across, down = c // _vector(self.case), -(-ow // tile[1]), -(-oh // tile[0])
        count = n * groups * across * down
        stream = torch.cuda.Stream()

        def once(x: Any, y: Any) -> None:
            pads = (self.case.pad, self.case.pad)
            params = _Params(x.data_ptr(), y.data_ptr(), count, h, w, c, oh, ow, *pads, _by(groups), _by(across),
                             _by(down))  # fmt: skip
            symbol = _symbol(self.case, tile, threads)
            ours.launch(symbol, -(-count // threads), threads, params, stream.cuda_stream)

        runs = [lambda x=x, y=y: once(x["x"], y) for x, y in zip(self.inputs, self.outputs, strict=True)]
        torch.cuda.synchronize()
        runs[0]()
        torch.cuda.synchronize()
        self.check()
        return microseconds_in_graph(runs, stream)


def measure(case: Case, folder: pathlib.Path, ours: Launches | None) -> dict[str, Any]:
    """Everything about one case; what fails is recorded as text beside what worked."""
    from benchmarks.support.gpu_timing import all_of, copy_microseconds

    measured = Measured(case, folder)
    row: dict[str, Any] = {"MB": round(case.bytes() / 1e6, 2)}
    steps: dict[str, Callable[[], float]] = {
        "copy": lambda: copy_microseconds(case.bytes(), measured.sets),
        "ours": lambda: measured.session(".optimized"),
        "ort": lambda: measured.session(""),
        "torch": measured.torch,
    }
    if ours is not None and case.is_pool:
        for tile, threads in itertools.product(_tiles(case), THREADS):
            label = f"{tile[0]}x{tile[1]} t{threads}"
            steps[label] = lambda tile=tile, threads=threads: measured.kernel(ours, tile, threads)  # type: ignore[misc]
    return row | all_of(steps)


def run(folder: pathlib.Path, args: argparse.Namespace) -> int:
    """Measure every case; 0 if ours agreed in all of them."""
    import torch

    torch.zeros(1, device="cuda")
    ours = Launches(lzma.decompress((folder / "pools.fatbin.xz").read_bytes())) if args.sweep else None
    rows: dict[str, Any] = {}
    for case in CASES:
        if not any(part in case.name for part in args.only.split(",")):
            continue
        rows[case.name] = measure(case, folder, ours)
        print(case.name, json.dumps(rows[case.name]), flush=True)
        if args.out is not None:
            args.out.write_text(json.dumps(rows, indent=1))
        torch.cuda.empty_cache()
    print(f"{'us':48} {'copy':>8} {'ours':>8} {'of copy':>8} {'torch':>8} {'ort':>8}  best tile")
    for name, row in rows.items():
        numbers = {k: v for k, v in row.items() if isinstance(v, float) and " t" in k}
        best = min(numbers, key=numbers.__getitem__) if numbers else ""
        part = f"{row['copy'] / row['ours']:8.2f}" if isinstance(row["ours"], float) else " failed "
        cells = [f"{row[k]:8.1f}" if isinstance(row[k], float) else f"{'failed':>8}" for k in ("copy", "ours")]
        others = [f"{row[k]:8.1f}" if isinstance(row[k], float) else f"{'failed':>8}" for k in ("torch", "ort")]
        print(f"{name:48} {' '.join(cells)} {part} {' '.join(others)}  {best} {numbers.get(best, '')}")
    ours_ran = [v for row in rows.values() for k, v in row.items() if k not in ("ort", "torch")]
    return 0 if all(isinstance(v, float) for v in ours_ran) else 1


def main() -> int:
    parser, (_, ran) = command(__doc__)
    ran.add_argument("--out", type=pathlib.Path, help="JSON, rewritten after every case")
    ran.add_argument("--sweep", action="store_true")
    ran.add_argument("--only", default="", help="comma-separated parts of names")
    args = parser.parse_args()
    if args.verb == "prepare":
        prepare(args.folder, args.arch)
        return 0
    return run(args.folder, args)


if __name__ == "__main__":
    raise SystemExit(main())
