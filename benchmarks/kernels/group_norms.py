"""Group norms with SiLU in NHWC: time beside a device copy, our NCHW kernel and torch, after a comparison.

    python -m benchmarks.kernels.group_norms prepare DIR --arch sm_90        on any machine, without a GPU
    python -m benchmarks.kernels.group_norms run DIR --out FILE --sweep      on the GPU machine: onnxruntime, torch

Every case runs through the library in a session of ONNX Runtime, in NHWC and in NCHW. --sweep also launches the kernel
with other numbers of blocks of a cluster and of threads, for kinds/group_norm/entry_points.py to rest on. Each time is
given twice: with buffers in rotation, and with one set, which stays in the L2 cache as between kernels of a network.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
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
    """A norm as diffusion networks have it. shape: of x, NHWC. time: a sum of each sample in front."""

    shape: tuple[int, int, int, int]
    groups: int = 32
    time: bool = True
    dtype: str = "float16"

    @property
    def name(self) -> str:
        return f"{'time_' if self.time else ''}{self.dtype}_{'x'.join(map(str, self.shape))}"

    @property
    def bytes(self) -> int:
        """What must be read and written."""
        return 2 * math.prod(self.shape) * (4 if self.dtype == "float32" else 2)


CASES = (
    Case((4, 32, 32, 160)),
    Case((4, 32, 32, 320), time=False),
    Case((4, 32, 32, 480), time=False),
    Case((4, 16, 16, 160), time=False),
    Case((4, 16, 16, 320)),
    Case((4, 16, 16, 640), time=False),
    Case((4, 16, 16, 960), time=False),
    Case((4, 8, 8, 320), time=False),
    Case((4, 8, 8, 640)),
    Case((4, 8, 8, 1280), time=False),
    Case((2, 64, 64, 320)),
    Case((2, 32, 32, 1280), time=False),
    Case((1, 256, 256, 256), time=False),
    Case((2, 512, 512, 128), time=False),
    Case((4, 32, 32, 160), dtype="bfloat16"),
    Case((4, 32, 32, 160), dtype="float32"),
    Case((16, 56, 56, 64), groups=64, time=False),
)


def model(case: Case, channels_last: bool) -> Any:
    """x to y, as exporters write a group norm with SiLU; between the Transposes of the layout pass, or in NCHW."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    kind = getattr(TensorProto, case.dtype.upper().replace("FLOAT32", "FLOAT"))
    stored = helper.tensor_dtype_to_np_dtype(kind)
    n, h, w, c = case.shape
    shape, sample = ([n, h, w, c], [n, 1, 1, c]) if channels_last else ([n, c, h, w], [n, c, 1, 1])
    rng = np.random.default_rng(1)
    arrays = {
        "split": np.array([0, case.groups, -1]), "back": np.array([n, c, h, w]),
        "ones": np.ones(case.groups).astype(stored), "zeros": np.zeros(case.groups).astype(stored),
    }  # fmt: skip
    for name in ("scale", "bias"):
        arrays[name] = rng.standard_normal(shape[3:] if channels_last else [c, 1, 1]).astype(stored)
    nodes = [helper.make_node("Add", ["x", "e"], ["a"])] if case.time else []
    first = "a" if case.time else "x"
    if channels_last:
        nodes.append(helper.make_node("Transpose", [first], ["t"], perm=[0, 3, 1, 2]))
    nodes += [
        helper.make_node("Reshape", ["t" if channels_last else first, "split"], ["g"]),
        helper.make_node("InstanceNormalization", ["g", "ones", "zeros"], ["i"], epsilon=1e-5),
        helper.make_node("Reshape", ["i", "back"], ["r"]),
    ]
    if channels_last:
        nodes.append(helper.make_node("Transpose", ["r"], ["u"], perm=[0, 2, 3, 1]))
    nodes += [
        helper.make_node("Mul", ["u" if channels_last else "r", "scale"], ["m"]),
        helper.make_node("Add", ["m", "bias"], ["v"]),
        helper.make_node("Sigmoid", ["v"], ["s"]),
        helper.make_node("Mul", ["v", "s"], ["y"]),
    ]
    infos = [helper.make_tensor_value_info("x", kind, shape)]
    if case.time:
        infos.append(helper.make_tensor_value_info("e", kind, sample))
    output = helper.make_tensor_value_info("y", kind, shape)
    constants = [numpy_helper.from_array(v, k) for k, v in arrays.items()]
    graph = helper.make_graph(nodes, "case", infos, [output], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def prepare(folder: pathlib.Path, arch: str) -> None:
    """Every case's model in both layouts, one library, and a fatbin with the kernels in every launch shape."""
    import onnx

    from benchmarks.support.collection import Collection
    from onnxopt.codegen import generate, nvrtc
    from onnxopt.kinds.group_norm.entry_points import fitting
    from tests.support.wrong_bodies import with_wrong_bodies

    folder.mkdir(parents=True)
    collection, rows = Collection(), {}
    swept: dict[str, Any] = {}
    for case in CASES:
        for layout in ("nhwc", "nchw"):
            source = model(case, layout == "nhwc")
            optimized, plan = collection.optimize(source)
            onnx.save(with_wrong_bodies(optimized), folder / f"{case.name}.{layout}.onnx")
            (region,) = plan.regions
            assert region.kind.name == ("group_norm" if layout == "nhwc" else "rowwise"), region.kind.name
            if layout == "nchw":
                continue
            (kernel,) = (k for k in collection.kernels.values() if k.name == optimized.graph.node[0].op_type)
            pixels = case.shape[1] * case.shape[2]
            shapes = [v for c in (1, 2, 4, 8) for v in fitting(kernel.name, kernel.program, pixels, c)]
            launches = (*kernel.variants, *shapes)
            every = {v.symbol: v for v in launches if _fits(case, dataclasses.asdict(v))}
            if every:
                swept[kernel.name] = dataclasses.replace(kernel, variants=tuple(every.values()))
            rows[case.name] = {
                "inputs": [str(v.name) for v in region.inputs],
                "variants": [dataclasses.asdict(v) for v in every.values()],
            }  # fmt: skip
    collection.write_library(folder, [arch])
    compiled = nvrtc.compiled(generate.generate(tuple(swept.values())), [arch])
    (folder / "sweep.fatbin.xz").write_bytes(lzma.compress(compiled.fatbin))
    (folder / "sweep.json").write_text(json.dumps(rows))
    for symbol, usage in compiled.usage[arch].items():
        if usage.spilled:
            print(f"{symbol} spills")
    print(f"{len(collection.kernels)} kernels, {sum(p.stat().st_size for p in folder.iterdir()) / 1e3:.0f} KB")


class _Params(ctypes.Structure):  # GroupNormParams of cuda_kernels/group_norm/abi.h
    _fields_ = (
        ("input", ctypes.c_void_p * 16), ("y", ctypes.c_void_p), ("scratch", ctypes.c_void_p),
        *((n, ctypes.c_int) for n in ("pixels", "slabs", "parts", "part_pixels")),
    )  # fmt: skip


class Measured:
    """One case on the device, with several sets of buffers."""

    def __init__(self, case: Case, folder: pathlib.Path):
        import onnx
        import torch
        from onnx import numpy_helper

        from benchmarks.support.gpu_timing import poisoned, rotation

        self.case, self.folder = case, folder
        self.sets = rotation(case.bytes, "cuda", 24)
        kind = getattr(torch, case.dtype)
        n, _, _, c = case.shape
        self.inputs = []
        for _ in range(self.sets):
            row = {"x": torch.randn(case.shape, device="cuda").to(kind)}
            if case.time:
                row["e"] = torch.randn((n, 1, 1, c), device="cuda").to(kind)
            self.inputs.append(row)
        self.outputs = [poisoned(case.shape, kind, "cuda") for _ in range(self.sets)]
        constants = onnx.load(folder / f"{case.name}.nhwc.onnx").graph.initializer
        self.constants = {
            t.name: torch.tensor(numpy_helper.to_array(t).astype("float64"), device="cuda").to(kind)
            for t in constants if t.data_type in (1, 10, 16)
        }  # fmt: skip
        self.expected = self._reference()

    def _reference(self) -> Any:
        of = {k: v.double() for k, v in {**self.constants, **self.inputs[0]}.items()}
        n, h, w, c = self.case.shape
        x = of["x"] + of["e"] if self.case.time else of["x"]
        grouped = x.reshape(n, h * w, self.case.groups, c // self.case.groups)
        apart = grouped - grouped.mean(dim=(1, 3), keepdim=True)
        normed = apart / ((apart**2).mean(dim=(1, 3), keepdim=True) + 1e-5).sqrt()
        value = normed.reshape(x.shape) * of["scale"] + of["bias"]
        return value * value.sigmoid()

    def check(self, output: Any, roundings: int = 1) -> None:
        """ValueError unless an output [N, H, W, C] is near the one in float64. roundings: of it and what led to it."""
        import torch

        from benchmarks.support.gpu_timing import disagreement

        step = {torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7, torch.float32: 2.0**-17}[output.dtype]
        error = disagreement(output, self.expected, roundings * step, roundings * step)
        if not error <= 1:
            raise ValueError(f"{error:.3g} of the limit away from float64")

    def times(self, runs: list[Callable[[], object]], stream: Any) -> tuple[float, float]:
        """Microseconds of a run with buffers in rotation, and with one set."""
        from benchmarks.support.gpu_timing import microseconds_in_graph

        return microseconds_in_graph(runs, stream), microseconds_in_graph(runs[:1], stream)

    def session(self, layout: str) -> tuple[float, float]:
        import torch

        from benchmarks.support.gpu_timing import bound, library, session

        stream = torch.cuda.Stream()
        run_in = session(
            str(self.folder / f"{self.case.name}.{layout}.onnx"), library(self.folder), "cuda", stream=stream
        )
        turned = layout == "nchw"
        inputs = [{k: _nchw(v) if turned else v for k, v in row.items()} for row in self.inputs]
        outputs = [_nchw(y) if turned else y for y in self.outputs]
        runs = [bound(run_in, x, {"y": y}, wait=False) for x, y in zip(inputs, outputs, strict=True)]
        torch.cuda.synchronize()
        runs[0]()
        torch.cuda.synchronize()
        self.check(outputs[0].permute(0, 2, 3, 1) if turned else outputs[0])
        outputs[0].fill_(float("nan"))
        return self.times(runs, stream)

    def torch(self) -> tuple[float, float]:
        """torch's group_norm and silu of channels_last tensors."""
        import torch
        from torch.nn import functional

        def run(x: Any, e: Any = None) -> Any:
            turned = x.permute(0, 3, 1, 2)
            turned = turned if e is None else turned + e.permute(0, 3, 1, 2)
            of = self.constants
            return functional.silu(functional.group_norm(turned, self.case.groups, of["scale"], of["bias"], 1e-5))

        self.check(
            run(**self.inputs[0]).permute(0, 2, 3, 1), roundings=8
        )  # sum, norm and SiLU are kernels of their own
        return self.times([lambda row=row: run(**row) for row in self.inputs], torch.cuda.Stream())

    def kernel(self, ours: Launches, row: dict[str, Any], variant: dict[str, Any]) -> tuple[float, float]:
        """Our kernel in one launch shape."""
        import torch

        n, h, w, c = self.case.shape
        parts, slabs = variant["cluster"], c // (variant["vector"] * variant["columns"])
        stream = torch.cuda.Stream()

        def once(x: dict[str, Any], y: Any) -> None:
            operands = [{**self.constants, **x}[name].data_ptr() for name in row["inputs"]]
            inputs = (ctypes.c_void_p * 16)(*operands)
            params = _Params(inputs, y.data_ptr(), None, h * w, slabs, parts, -(-h * w // parts))
            ours.launch(variant["symbol"], n * slabs * parts, variant["threads"], params, stream.cuda_stream)

        runs = [lambda x=x, y=y: once(x, y) for x, y in zip(self.inputs, self.outputs, strict=True)]
        torch.cuda.synchronize()
        runs[0]()
        torch.cuda.synchronize()
        self.check(self.outputs[0])
        self.outputs[0].fill_(float("nan"))
        return self.times(runs, stream)


def _nchw(x: Any) -> Any:
    return x.permute(0, 3, 1, 2).contiguous()


def _fits(case: Case, variant: dict[str, Any]) -> bool:
    part = -(-case.shape[1] * case.shape[2] // variant["cluster"])
    rows = variant["threads"] // variant["columns"]
    return variant["layout"] == "held" and -(-part // rows) <= variant["held"]


def measure(case: Case, folder: pathlib.Path, ours: Launches | None, row: dict[str, Any]) -> dict[str, Any]:
    """Everything about one case; what fails is recorded as text beside what worked."""
    from benchmarks.support.gpu_timing import copy_microseconds

    measured = Measured(case, folder)
    found: dict[str, Any] = {"MB": round(case.bytes / 1e6, 2)}
    steps: dict[str, Callable[[], tuple[float, float]]] = {
        "copy": lambda: (copy_microseconds(case.bytes, measured.sets), copy_microseconds(case.bytes, 1)),
        "ours": lambda: measured.session("nhwc"),
        "nchw": lambda: measured.session("nchw"),
        "torch": measured.torch,
    }
    if ours is not None:
        for variant in row["variants"]:
            if _fits(case, variant):
                label = f"b{variant['cluster']} t{variant['threads']} h{variant['held']}"
                steps[label] = lambda variant=variant: measured.kernel(ours, row, variant)  # type: ignore[misc]
    for label, step in steps.items():
        try:
            found[label] = [round(t, 2) for t in step()]
        except Exception as error:  # noqa: BLE001 - what else there is to measure is worth having
            found[label] = f"failed: {type(error).__name__}: {str(error)[-200:]}"
    return found


def run(folder: pathlib.Path, args: argparse.Namespace) -> int:
    """Measure every case; 0 if ours agreed in all of them."""
    import torch

    torch.zeros(1, device="cuda")
    ours = Launches(lzma.decompress((folder / "sweep.fatbin.xz").read_bytes())) if args.sweep else None
    described = json.loads((folder / "sweep.json").read_text())
    rows: dict[str, Any] = {}
    for case in CASES:
        if not any(part in case.name for part in args.only.split(",")):
            continue
        rows[case.name] = measure(case, folder, ours, described[case.name])
        print(case.name, json.dumps(rows[case.name]), flush=True)
        if args.out is not None:
            args.out.write_text(json.dumps(rows, indent=1))
        torch.cuda.empty_cache()
    print(
        f"{'us, in rotation / in cache':34} {'copy':>13} {'ours':>13} {'nchw':>13} {'torch':>13}  best launch in cache"
    )
    for name, row in rows.items():
        swept = {k: v for k, v in row.items() if isinstance(v, list) and " t" in k}
        best = min(swept, key=lambda k: swept[k][1], default="")
        cells = [
            f"{row[k][0]:6.1f} {row[k][1]:6.1f}" if isinstance(row[k], list) else f"{'failed':>13}"
            for k in ("copy", "ours", "nchw", "torch")
        ]
        print(f"{name:34} {' '.join(cells)}  {best} {swept.get(best, '')}")
    ran = [v for row in rows.values() for k, v in row.items() if k not in ("MB", "nchw", "torch")]
    return 0 if all(isinstance(v, list) for v in ran) else 1


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
