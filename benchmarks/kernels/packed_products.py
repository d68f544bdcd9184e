"""Products of few rows with weights of 4, 8 and 16 bits, in many launch shapes: correctness, and time beside the bytes.

    python -m benchmarks.kernels.packed_products prepare DIR --arch sm_90     on any machine, without a GPU
    python -m benchmarks.kernels.packed_products run DIR --out OUT.json       on the GPU machine: torch; about 15 s

Every entry point is compared with float64 first. Several weights are read in rotation, so that they come from memory.
16 bits stand for float16 weights (cuda_kernels/gemm/few_rows_products.cuh), beside which torch's product is timed.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import itertools
import pathlib
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.kernels.products import Launches
from benchmarks.support.arguments import Rows, main_over_rows

# columns x depth
SIZES = (
    (2048, 2048), (4096, 2048), (2048, 5632), (11264, 2048), (4096, 8192), (4096, 14336), (22016, 4096), (28672, 4096),
    (32000, 4096),
)  # fmt: skip
ROWS = {4: (1, 2, 4, 8), 8: (1, 8), 16: (1, 2, 4)}
GROUP = 32
_ROTATED = 150e6  # bytes
_CHUNK = 2048  # bytes of 16 columns in a stage


@dataclasses.dataclass(frozen=True)
class Shape:
    """rows: of a, at most; 8 of codes stands for matmul_nbits/few_rows.cuh, fewer for spread.cuh. tiles: matrices of 16
    columns of a block. stages: chunks that a warp has under way. blocks: of a multiprocessor that registers are limited
    for.
    """

    bits: int
    rows: int
    warps: int
    tiles: int
    stages: int
    blocks: int

    @property
    def symbol(self) -> str:
        return f"b{self.bits}r{self.rows}w{self.warps}t{self.tiles}s{self.stages}m{self.blocks}"

    @property
    def shared(self) -> int:
        return self.warps * self.tiles * self.stages * _CHUNK


_ONE_ROW = (
    (16, 1, 2, 2), (16, 1, 2, 3), (12, 1, 2, 2), (8, 1, 4, 3), (8, 2, 2, 2), (8, 2, 2, 3), (8, 2, 3, 2), (8, 4, 2, 1),
    (4, 1, 2, 6), (4, 2, 2, 4), (4, 2, 3, 4), (4, 2, 4, 3), (4, 4, 2, 3), (4, 4, 2, 4), (4, 4, 3, 2), (4, 4, 1, 4),
    (4, 8, 1, 3), (2, 4, 3, 4), (2, 4, 4, 4),
)  # fmt: skip
_TWO_ROWS = ((16, 1, 2, 2), (8, 1, 4, 3), (8, 2, 2, 2), (4, 2, 2, 4), (4, 4, 2, 2))
_FOUR_ROWS = ((8, 1, 2, 4), (8, 1, 4, 2), (8, 2, 2, 1), (4, 2, 2, 3))
_PLAIN = ((16, 1, 2, 2), (8, 2, 2, 2), (8, 1, 4, 3), (4, 4, 2, 2))
SHAPES = (
    *(Shape(4, 1, *t) for t in _ONE_ROW),
    *(Shape(4, 2, *t) for t in _TWO_ROWS),
    *(Shape(4, 4, *t) for t in _FOUR_ROWS),
    *(Shape(4, 8, *t) for t in ((16, 1, 2, 1), (8, 2, 2, 1), (4, 2, 2, 3))),
    *(Shape(8, 1, *t) for t in ((16, 1, 2, 2), (8, 1, 2, 4), (8, 2, 2, 2), (4, 4, 2, 2))),
    *(Shape(8, 8, *t) for t in ((16, 1, 2, 1), (8, 1, 2, 2), (4, 1, 2, 6))),
    *(Shape(16, rows, *t) for rows in (2, 4, 8) for t in _PLAIN if t[2] == 2),
)


def prepare(folder: pathlib.Path, arch: str) -> None:
    from onnxopt.codegen import nvrtc

    folder.mkdir(parents=True)
    text = ['#include "matmul_nbits/matmul_nbits.cuh"', "namespace onnxopt {", *itertools.chain(*map(_lines, SHAPES))]
    compiled = nvrtc.compiled("\n".join([*text, "}  // namespace onnxopt"]), [arch])
    (folder / "products.fatbin").write_bytes(compiled.fatbin)
    for symbol, usage in compiled.usage[arch].items():
        print(symbol, usage)


def _lines(shape: Shape) -> list[str]:
    params, tail = "MatMulNBitsParams", ", Zeros::kMiddle, Activation::kNone, false>"
    tile = f"NBitsTile<{shape.bits}, {GROUP}, {shape.warps}, {shape.tiles}, {shape.stages}>"
    call = f"matmul_nbits<float16, {tile}{tail}"
    if shape.rows < 8:
        call = f"matmul_nbits_spread<float16, {tile}, {shape.rows}{tail}"
    if shape.bits == 16:
        params = "FewRowsParams"
        sizes = f"{shape.rows}, {shape.tiles}, {shape.warps * 32}"
        call = f"few_rows_products<float16, FloatOperands<float16>, Activation::kNone, {sizes}>"
    return [
        f'extern "C" __global__ void __launch_bounds__({shape.warps * 32}, {shape.blocks})',
        f"{shape.symbol}(const __grid_constant__ {params} params) {{",
        f"  {call}(params);",
        "}",
    ]


class _OfCodes(ctypes.Structure):  # MatMulNBitsParams of matmul_nbits/abi.h
    _fields_ = (
        *((n, ctypes.c_void_p) for n in ("a", "b", "scales", "zeros", "bias", "residual", "output")),
        *((n, ctypes.c_uint) for n in ("rows", "columns", "depth", "groups", "b_is_constant")),
        ("alpha", ctypes.c_float), ("beta", ctypes.c_float),
    )  # fmt: skip


class _OfFloats(ctypes.Structure):  # FewRowsParams of gemm/few_rows_abi.h
    _fields_ = (
        *((n, ctypes.c_void_p) for n in ("a", "b", "bias", "residual", "output")),
        *((n, ctypes.c_uint) for n in ("rows", "columns", "depth", "b_is_constant")),
        ("alpha", ctypes.c_float), ("beta", ctypes.c_float),
    )  # fmt: skip


class _Case:
    """Operands of one product: weights in rotation, and what float64 makes of the last one."""

    def __init__(self, bits: int, columns: int, depth: int, rows: int) -> None:
        import torch

        self.bits, self.columns, self.depth, self.rows = bits, columns, depth, rows
        self.bytes = columns * depth * bits // 8 + (0 if bits == 16 else 2 * columns * depth // GROUP)
        self.sets = max(2, int(_ROTATED / self.bytes) + 1)
        self.a = torch.randn(rows, depth, device="cuda").half()
        self.output = torch.empty(rows, columns, device="cuda", dtype=torch.float16)
        dims, groups = (columns, depth * bits // 8), depth // GROUP
        if bits == 16:
            self.weights = [torch.randn(columns, depth, device="cuda").half() for _ in range(self.sets)]
            self.expected = self.a.double() @ self.weights[-1].double().T
            return
        self.weights = [torch.randint(0, 256, dims, dtype=torch.uint8, device="cuda") for _ in range(self.sets)]
        self.scales = [(torch.rand(columns, groups, device="cuda") * 0.03 + 0.002).half() for _ in range(self.sets)]
        last = self.weights[-1]
        numbers = torch.stack([last & 15, last >> 4], -1).reshape(columns, depth) if bits == 4 else last
        weight = (numbers.double() - (1 << (bits - 1))) * self.scales[-1].double().repeat_interleave(GROUP, 1)
        self.expected = self.a.double() @ weight.T

    def params(self, k: int) -> ctypes.Structure:
        a, b, output = (x.data_ptr() for x in (self.a, self.weights[k], self.output))
        sizes = (self.rows, self.columns, self.depth)
        if self.bits == 16:
            return _OfFloats(a, b, None, None, output, *sizes, 1, 1.0, 0.0)
        groups = self.depth // GROUP
        return _OfCodes(a, b, self.scales[k].data_ptr(), None, None, None, output, *sizes, groups, 1, 1.0, 0.0)

    def time(self, run: Callable[[int, Any], None]) -> float:
        """Microseconds of a run of weight k on a stream. RuntimeError where the last one is wrong."""
        import torch

        from benchmarks.support.gpu_timing import microseconds_in_graph

        stream = torch.cuda.Stream()
        self.output.fill_(float("nan"))
        torch.cuda.synchronize()
        runs = [lambda k=k: run(k, stream) for k in range(self.sets)]
        found = microseconds_in_graph(runs, stream, at_least=24, replays=7)
        error = ((self.output.double() - self.expected).abs().max() / self.expected.abs().max()).item()
        if not error < 7e-4:
            raise RuntimeError(f"wrong by {error:.1e}")
        return round(found, 2)


def measure(ours: Launches, bits: int, columns: int, depth: int, rows: int) -> dict[str, Any]:
    """Microseconds of every entry point for so many rows, the fastest first, and of a copy of as many bytes."""
    import torch

    from benchmarks.support.gpu_timing import copy_microseconds

    case, times = _Case(bits, columns, depth, rows), {}
    if bits == 16:
        times["torch"] = case.time(lambda k, _: torch.mm(case.a, case.weights[k].T, out=case.output))
    for shape in SHAPES:
        if shape.bits != bits or shape.rows < rows:
            continue
        blocks = -(-columns // (16 * shape.tiles))

        def once(k: int, stream: Any, shape: Shape = shape, blocks: int = blocks) -> None:
            ours.launch(shape.symbol, blocks, shape.warps * 32, case.params(k), stream.cuda_stream, shape.shared)

        times[shape.symbol] = case.time(once)
    ordered = dict(sorted(times.items(), key=lambda x: x[1]))
    best = min(time for name, time in times.items() if name != "torch")
    copy = copy_microseconds(case.bytes, case.sets)
    row = {"MB": case.bytes / 1e6, "copy_us": round(copy, 2), "of_copy": round(copy / best, 2)}
    return {**row, **dict(list(ordered.items())[:6]), "all": ordered}


def rows(folder: pathlib.Path) -> Rows:
    import torch

    torch.zeros(1, device="cuda")
    ours = Launches((folder / "products.fatbin").read_bytes())
    for bits, (columns, depth) in itertools.product(ROWS, SIZES):
        for count in ROWS[bits]:
            name = f"{columns} x {depth}, {bits} bits, {count} rows"
            yield name, functools.partial(measure, ours, bits, columns, depth, count)


if __name__ == "__main__":
    sys.exit(main_over_rows(__doc__, prepare, rows))
