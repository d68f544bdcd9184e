"""GEMMs of the transformers: the algorithm that cuBLASLt's heuristic chooses, and the best one it offers.

    python -m benchmarks.kernels.products prepare DIR --arch sm_90     on any machine, without a GPU
    python -m benchmarks.kernels.products run DIR --out OUT.json       on the GPU machine: numpy, torch; about 50 s

Every algorithm that cuBLASLt offers within the library's workspace and rules (custom_ops/cuda/gemm/) is timed, not only
the 32 that tune tries. GEMMs of few rows are also timed with onnxopt's kernels (cuda_kernels/gemm/), in every launch
shape of `prepare`. Several sets of weights are read in rotation, so that weights come from memory as in a network. The
other operand stays in the cache, where the preceding kernel left it. Many runs are captured in one CUDA graph.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import itertools
import json
import pathlib
import time as clock
from collections.abc import Callable
from typing import Any

from benchmarks.support.arguments import command


@dataclasses.dataclass(frozen=True)
class Product:
    """rows x depth times depth x columns, float16. count: in a run of its model. turned: the weight lies transposed."""

    model: str
    name: str
    count: int
    rows: int
    depth: int
    columns: int
    bias: bool = False
    turned: bool = True


PRODUCTS = (
    Product("bert", "q, k, v", 12, 1024, 768, 2304, turned=False),  # inside ORT's Attention
    Product("bert", "out", 12, 1024, 768, 768),
    Product("bert", "up", 12, 1024, 768, 3072),
    Product("bert", "down", 12, 1024, 3072, 768),
    Product("vit", "q | k | v", 36, 3152, 768, 768, bias=True),
    Product("vit", "out", 12, 3152, 768, 768),
    Product("vit", "up", 12, 3152, 768, 3072),
    Product("vit", "down", 12, 3152, 3072, 768),
    Product("vit", "patches", 1, 3136, 768, 768),
    Product("whisper", "q | k | v", 18, 6000, 512, 512, bias=True),
    Product("whisper", "out", 6, 6000, 512, 512),
    Product("whisper", "up", 6, 6000, 512, 2048),
    Product("whisper", "down", 6, 6000, 2048, 512),
    Product("llama", "q, k, v", 8, 512, 2048, 4096),
    Product("llama", "out", 8, 512, 2048, 2048),
    Product("llama", "gate, up", 8, 512, 2048, 11264),
    Product("llama", "down", 8, 512, 5632, 2048),
    *(
        Product(f"decode {rows}", name, 8, rows, depth, columns)
        for rows in (1, 2, 4, 8)
        for name, depth, columns in (
            ("q, k, v", 2048, 4096), ("out", 2048, 2048), ("gate, up", 2048, 11264), ("down", 5632, 2048),
        )
    ),
)  # fmt: skip
# rows: columns a warp, vectors in flight, threads a block, of our kernels
SHAPES = {
    rows: [s for s in itertools.product((1, 2, 4), (2, 4, 8), (64, 128, 256)) if s[0] * s[1] * rows <= 32 or rows == 1]
    for rows in (1, 2, 4, 8)
}
_ROTATED = 150e6  # bytes of weights and results, more than the L2 cache holds
_MAX_SETS = 32
_SECONDS = 3.0  # for all algorithms of one product
_WORKSPACE = 32 << 20
_FINALISTS = 3


def prepare(folder: pathlib.Path, arch: str) -> None:
    """Our kernels in every launch shape, as one fatbin."""
    from onnxopt.codegen import nvrtc
    from onnxopt.fusion.region import Kernel
    from onnxopt.kinds.gemm import few_rows
    from onnxopt.kinds.gemm.kind import GEMM
    from onnxopt.program.gemm import Gemm

    folder.mkdir(parents=True)
    half = ("float16",)
    meaning = Gemm(half * 2, half, transpose_b=True)
    variants = tuple(
        few_rows.FewRowsVariant(_symbol(rows, s), "", 32, 8, s[1], s[2], waits=True, rows=rows, columns=s[0])
        for rows, shapes in SHAPES.items()
        for s in shapes
    )
    kernel = Kernel("few", GEMM, ("MatMul",), meaning, variants, ())
    lines = ['#include "gemm/few_rows.cuh"', "namespace onnxopt {", *few_rows.lines(kernel), "}  // namespace onnxopt"]
    compiled = nvrtc.compiled("\n".join(lines), [arch])
    (folder / "few_rows.fatbin").write_bytes(compiled.fatbin)
    for symbol, usage in compiled.usage[arch].items():
        if usage.spilled:
            print(f"{symbol} spills")
    print(f"{len(variants)} entry points, {len(compiled.fatbin)} bytes")


def _symbol(rows: int, shape: tuple[int, int, int]) -> str:
    return f"few_r{rows}c{shape[0]}u{shape[1]}t{shape[2]}"


class Algorithm(ctypes.Structure):
    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8), ("workspace", ctypes.c_size_t), ("state", ctypes.c_int),
        ("waves", ctypes.c_float), ("reserved", ctypes.c_int * 4),
    )  # fmt: skip


class Cublaslt:
    """Products through the cuBLASLt that torch has loaded, described as custom_ops/cuda/gemm/ describes them."""

    def __init__(self) -> None:
        import torch

        self._library = ctypes.CDLL(f"libcublasLt.so.{str(torch.version.cuda).split('.')[0]}")
        self._library.cublasLtGetVersion.restype = ctypes.c_size_t
        self._handle = ctypes.c_void_p()
        self._call("Create", ctypes.byref(self._handle))
        self._workspace = torch.empty(_WORKSPACE, dtype=torch.uint8, device="cuda")

    def version(self) -> int:
        return int(self._library.cublasLtGetVersion())

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, f"cublasLt{name}")(*arguments)
        if status:
            raise RuntimeError(f"cublasLt{name}: status {status}")

    def _layout(self, rows: int, columns: int) -> ctypes.c_void_p:
        layout = ctypes.c_void_p()
        self._call("MatrixLayoutCreate", ctypes.byref(layout), 2, ctypes.c_uint64(rows), ctypes.c_uint64(columns),
                   ctypes.c_int64(rows))  # fmt: skip
        return layout

    def product(self, p: Product, bias: Any) -> tuple[list[Algorithm], Callable[[Algorithm], Callable[..., None]]]:
        """Every algorithm on offer, the heuristic's choice first; and what runs one: (x, weight, y, stream)."""
        operation, preference = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("MatmulDescCreate", ctypes.byref(operation), 68, 0)  # float32 sums and scales

        def describe(attribute: int, value: Any) -> None:
            self._call("MatmulDescSetAttribute", operation, attribute, ctypes.byref(value), ctypes.sizeof(value))

        if p.turned:
            describe(3, ctypes.c_int(1))
        if p.bias:
            describe(7, ctypes.c_int(4))
            describe(8, ctypes.c_void_p(bias.data_ptr()))
        weight = self._layout(p.depth, p.columns) if p.turned else self._layout(p.columns, p.depth)
        x, y = self._layout(p.depth, p.rows), self._layout(p.columns, p.rows)
        self._call("MatmulPreferenceCreate", ctypes.byref(preference))
        for attribute, value in ((1, ctypes.c_uint64(_WORKSPACE)), (3, ctypes.c_uint32(2))):
            self._call("MatmulPreferenceSetAttribute", preference, attribute, ctypes.byref(value), ctypes.sizeof(value))
        found, most = ctypes.c_int(), 400
        offered = (Algorithm * most)()
        self._call("MatmulAlgoGetHeuristic", self._handle, operation, weight, x, y, y, preference, most, offered,
                   ctypes.byref(found))  # fmt: skip
        one, zero = ctypes.c_float(1), ctypes.c_float(0)

        def running(algorithm: Algorithm) -> Callable[..., None]:
            def run(given: Any, taken: Any, result: Any, stream: int) -> None:
                self._call(
                    "Matmul", self._handle, operation, ctypes.byref(one), ctypes.c_void_p(taken.data_ptr()), weight,
                    ctypes.c_void_p(given.data_ptr()), x, ctypes.byref(zero), ctypes.c_void_p(result.data_ptr()), y,
                    ctypes.c_void_p(result.data_ptr()), y, ctypes.byref(algorithm.algorithm),
                    ctypes.c_void_p(self._workspace.data_ptr()), ctypes.c_size_t(_WORKSPACE), ctypes.c_void_p(stream),
                )  # fmt: skip

            return run

        return [a for a in offered[: found.value] if a.state == 0], running


class _Launch(ctypes.Structure):  # CUlaunchConfig
    _fields_ = (
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p), ("attributes", ctypes.c_void_p), ("count", ctypes.c_uint),
    )  # fmt: skip


class _Params(ctypes.Structure):  # FewRowsParams of few_rows_abi.h
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("a", "b", "bias", "residual", "output")),
        *((name, ctypes.c_uint) for name in ("rows", "columns", "depth", "b_is_constant")),
        ("alpha", ctypes.c_float), ("beta", ctypes.c_float),
    )  # fmt: skip


_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


class Launches:
    """Our entry points, launched as the library launches them."""

    def __init__(self, fatbin: bytes) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._module = ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(self._module), fatbin)
        self._functions: dict[str, ctypes.c_void_p] = {}
        self._early = (ctypes.c_int * 18)(6, 0, 1)  # programmatic stream serialization

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._driver, name)(*arguments)
        if status:
            raise RuntimeError(f"{name}: error {status}")

    def launch(
        self, symbol: str, blocks: int, threads: int, params: ctypes.Structure, stream: int, shared: int = 0
    ) -> None:
        """shared: bytes of a block that the entry point does not declare; the same in every launch of it."""
        if symbol not in self._functions:
            function = self._functions[symbol] = ctypes.c_void_p()
            self._call("cuModuleGetFunction", ctypes.byref(function), self._module, symbol.encode())
            self._call("cuFuncSetAttribute", function, _MAX_DYNAMIC_SHARED, shared)
        config = _Launch(
            (ctypes.c_uint * 3)(blocks, 1, 1), (ctypes.c_uint * 3)(threads, 1, 1), shared, stream,
            ctypes.addressof(self._early), 1,
        )  # fmt: skip
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(params))
        self._call("cuLaunchKernelEx", ctypes.byref(config), self._functions[symbol], pointers, None)


def few_rows_in(ours: Launches, p: Product, rows: int, shape: tuple[int, int, int]) -> Callable[..., None]:
    """What runs a product by our kernel in a launch shape: (x, weight, y, stream)."""
    columns, _, threads = shape
    blocks = -(-p.columns // (threads // 32 * columns))

    def run(x: Any, weight: Any, y: Any, stream: int) -> None:
        operands = (x.data_ptr(), weight.data_ptr(), None, None, y.data_ptr())
        params = _Params(*operands, p.rows, p.columns, p.depth, 1, 1.0, 0.0)
        ours.launch(_symbol(rows, shape), blocks, threads, params, stream)

    return run


def measure(p: Product, blas: Cublaslt, ours: Launches) -> dict[str, Any]:
    """Microseconds of the heuristic's algorithm, of the best of all, and of ours where rows are few."""
    import torch

    from benchmarks.support.gpu_timing import microseconds_in_graph

    half: dict[str, Any] = {"device": "cuda", "dtype": torch.float16}
    rotated = 2 * (p.depth * p.columns + p.rows * p.columns)
    sets = min(_MAX_SETS, max(2, int(_ROTATED / rotated) + 1))
    shape = (p.columns, p.depth) if p.turned else (p.depth, p.columns)
    weights = [torch.randn(shape, **half) / p.depth**0.5 for _ in range(sets)]
    x, bias = torch.randn(p.rows, p.depth, **half), torch.randn(p.columns, **half) * p.bias
    results = [torch.empty(p.rows, p.columns, **half) for _ in range(sets)]
    expected = x.float() @ (weights[-1].T if p.turned else weights[-1]).float() + bias.float()
    stream = torch.cuda.Stream()

    def time(run: Callable[..., None], replays: int = 4) -> float:
        results[-1].fill_(float("nan"))
        torch.cuda.synchronize()
        pairs = zip(weights, results, strict=True)
        runs = [lambda w=w, y=y: run(x, w, y, stream.cuda_stream) for w, y in pairs]
        found = microseconds_in_graph(runs, stream, at_least=16, replays=replays)
        error = ((results[-1].float() - expected).norm() / expected.norm()).item()
        if not error < 2e-3:
            raise RuntimeError(f"wrong by {error:.1e}")
        return found

    algorithms, running = blas.product(p, bias)
    times: list[tuple[float, int]] = []
    failed: list[str] = []
    start = clock.perf_counter()
    for k, algorithm in enumerate(algorithms):
        if clock.perf_counter() - start > _SECONDS:
            break
        try:
            times.append((time(running(algorithm)), k))
        except RuntimeError as error:
            failed.append(f"{k}: {error}"[:100])
    finalists = {k for _, k in sorted(times)[:_FINALISTS]} | {0}
    again = sorted((time(running(algorithms[k]), 15), k) for k in finalists)
    row: dict[str, Any] = {
        "offered": len(algorithms), "timed": len(times), "failed": failed[:3],
        "heuristic_us": next(t for t, k in again if k == 0), "best_us": again[0][0], "best": again[0][1],
    }  # fmt: skip
    rows = next((r for r in SHAPES if r >= p.rows), None)
    if rows is not None:
        shapes = {s: time(few_rows_in(ours, p, rows, s)) for s in SHAPES[rows]}
        row["ours_by_shape"] = {_symbol(rows, s): round(t, 2) for s, t in shapes.items()}
        fastest = sorted(shapes, key=lambda s: shapes[s])[:_FINALISTS]
        again_ours = ((time(few_rows_in(ours, p, rows, s), 15), _symbol(rows, s)) for s in fastest)
        row["ours_us"], row["ours"] = min(again_ours)
    return row


def table(rows: list[tuple[Product, dict[str, Any]]]) -> str:
    """Markdown: times, and the rate of the heuristic's and of the best algorithm."""
    head = "model | product | count | rows x depth x columns | offered | heuristic us | best us | gain | TFLOP/s | best"
    lines = [f"| {head} | best GB/s | ours us | shape |", "|" + "---|" * 13]
    for p, row in rows:
        size = f"{p.rows} x {p.depth} x {p.columns}{' + bias' * p.bias}"
        if "error" in row:
            lines.append(f"| {p.model} | {p.name} | {p.count} | {size} | {row['error']} |" + " |" * 8)
            continue
        before, best = row["heuristic_us"], row["best_us"]
        work = 2e-6 * p.rows * p.depth * p.columns
        moved = 2e-3 * (p.rows * p.depth + p.depth * p.columns + p.rows * p.columns)
        cells = [p.model, p.name, p.count, size, f"{row['timed']} of {row['offered']}", f"{before:.2f}", f"{best:.2f}"]
        cells += [f"{before / best - 1:.1%}", f"{work / before:.0f}", f"{work / best:.0f}", f"{moved / best:.0f}"]
        cells += [f"{row['ours_us']:.2f}", row["ours"]] if "ours_us" in row else ["", ""]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def run(folder: pathlib.Path, out: pathlib.Path | None, models: list[str]) -> None:
    import torch

    torch.cuda.init()
    torch.zeros(1, device="cuda")
    blas, ours = Cublaslt(), Launches((folder / "few_rows.fatbin").read_bytes())
    rows: list[tuple[Product, dict[str, Any]]] = []
    for p in (p for p in PRODUCTS if p.model.split()[0] in models):
        try:
            row = measure(p, blas, ours)
        except Exception as error:  # noqa: BLE001 - the other products are worth having
            row = {"error": f"{type(error).__name__}: {error}"[:200]}
        rows.append((p, row))
        if out is not None:
            record = [{**dataclasses.asdict(p), **row} for p, row in rows]
            about = {"gpu": torch.cuda.get_device_name(), "cublaslt": blas.version(), "products": record}
            out.write_text(json.dumps(about, indent=1))
    print(f"cuBLASLt {blas.version()}\n{table(rows)}")


def main() -> None:
    parser, (_, ran) = command(__doc__)
    ran.add_argument("--out", type=pathlib.Path, default=None)
    ran.add_argument("--models", nargs="*", default=sorted({p.model.split()[0] for p in PRODUCTS}))
    args: argparse.Namespace = parser.parse_args()
    if args.verb == "prepare":
        prepare(args.folder, args.arch)
    else:
        run(args.folder, args.out, args.models)


if __name__ == "__main__":
    main()
