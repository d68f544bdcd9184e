"""Products of few rows with weights of 4 and 8 bits, in every launch shape: correctness, and time beside the bytes.

    python -m benchmarks.gpu.packed_products prepare DIR --arch sm_90     on any machine, without a GPU
    python -m benchmarks.gpu.packed_products run DIR --out OUT.json       on the GPU machine: torch; about 40 s

Every entry point is compared with float64 first. Several weights are read in rotation, so that they come from memory.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import json
import pathlib
from typing import Any

from benchmarks.gpu.products import Launches
from benchmarks.support.arguments import command

# N x K
SIZES = (
    (2048, 2048), (4096, 2048), (2048, 5632), (11264, 2048), (4096, 8192), (4096, 11008), (4096, 14336),
    (22016, 4096), (28672, 4096), (32000, 4096),
)  # fmt: skip
GROUP = 32
_ROTATED = 150e6  # bytes
_COPY = 4.2e3  # bytes a nanosecond that a copy on an H200 moves


@dataclasses.dataclass(frozen=True)
class Shape:
    """rows: of a that the form is for; 8 for matmul_nbits/few_rows.cuh. tiles: matrices of 16 columns of a block.

    blocks: of a multiprocessor that registers are limited for. form: of the codes, see ONNXOPT_FORM.
    """

    bits: int
    rows: int
    warps: int
    tiles: int
    stages: int
    blocks: int
    form: int = 7

    @property
    def symbol(self) -> str:
        return f"b{'e4m3' if self.bits < 0 else self.bits}r{self.rows}w{self.warps}t{self.tiles}s{self.stages}m{self.blocks}f{self.form}"

    @property
    def shared(self) -> int:
        return self.warps * self.tiles * (self.stages * 2048 + 8 * 20 * 4)


_TILES_OF_4 = (
    (16, 1, 2, 1), (16, 1, 3, 1), (16, 2, 2, 1), (8, 1, 2, 2), (8, 1, 3, 2), (8, 1, 4, 2), (8, 2, 2, 1), (8, 2, 2, 2),
    (8, 2, 3, 1), (4, 1, 2, 4), (4, 1, 4, 4), (4, 2, 2, 3), (4, 2, 2, 4), (4, 2, 3, 2), (4, 2, 4, 2), (4, 4, 2, 2),
    (2, 2, 4, 4), (2, 4, 3, 4),
)  # fmt: skip
_FEW = ((16, 1, 2, 1), (8, 1, 2, 2), (8, 2, 2, 1), (4, 2, 2, 3), (4, 1, 2, 4))
_OF_8 = ((16, 1, 2, 1), (8, 1, 2, 2), (4, 1, 2, 6), (8, 2, 2, 1), (4, 2, 2, 3))
_OF_16 = (
    (16, 1, 2, 1),
    (16, 1, 4, 1),
    (8, 1, 2, 2),
    (8, 1, 4, 2),
    (8, 2, 2, 1),
    (8, 2, 4, 1),
    (4, 1, 4, 4),
    (4, 2, 4, 2),
    (4, 4, 2, 2),
)
SHAPES = (
    *(Shape(4, 1, *t) for t in _TILES_OF_4),
    *(Shape(4, 1, *t, form=f) for t in _FEW for f in (5, 9)),
    *(Shape(4, r, *t) for t in _FEW for r in (2, 4)),
    *(Shape(4, 8, *t) for t in ((16, 1, 2, 1), (8, 2, 2, 1), (4, 2, 2, 3))),
    *(Shape(8, 1, *t, form=f) for t in _OF_8 for f in (5, 7)),
    *(Shape(8, 8, *t) for t in ((16, 1, 2, 1), (8, 1, 2, 2), (4, 1, 2, 6))),
    *(Shape(16, r, *t, form=1) for t in _OF_16 for r in (2, 4, 8)),
    *(Shape(-8, r, *t, form=1) for t in _OF_16 for r in (1, 8)),
)


def prepare(folder: pathlib.Path, arch: str) -> None:
    from onnxopt.codegen import nvrtc

    folder.mkdir(parents=True)
    for form in sorted({shape.form for shape in SHAPES}):
        shapes = [shape for shape in SHAPES if shape.form == form]
        text = [
            f"#define ONNXOPT_FORM {form}",
            '#include "matmul_nbits/spread.cuh"',
            '#include "matmul_nbits/floats.cuh"',
        ]
        text.append("namespace onnxopt {")
        text += [line for shape in shapes for line in _lines(shape)]
        compiled = nvrtc.compiled("\n".join([*text, "}  // namespace onnxopt"]), [arch])
        (folder / f"form{form}.fatbin").write_bytes(compiled.fatbin)
        for symbol, usage in compiled.usage[arch].items():
            print(symbol, usage)


def _lines(shape: Shape) -> list[str]:
    tile = f"NBitsTile<{shape.bits if shape.form > 1 else 8}, {GROUP if shape.form > 1 else 16}, {shape.warps}, {shape.tiles}, {shape.stages}>"
    call = "matmul_nbits<float16, Tile" if shape.rows == 8 else f"matmul_nbits_spread<float16, Tile, {shape.rows}"
    rest = "Zeros::kMiddle, Activation::kNone, false"
    if shape.form == 1:
        call = f"few_rows_of_floats<float16, {'float16' if shape.bits == 16 else 'float8e4m3fn'}, Tile, {shape.rows}"
        rest = "Activation::kNone"
    return [
        f'extern "C" __global__ void __launch_bounds__({shape.warps * 32}, {shape.blocks})',
        f"{shape.symbol}(const __grid_constant__ MatMulNBitsParams params) {{",
        f"  using Tile = {tile};",
        f'  static_assert(Tile::kSharedBytes == {shape.shared}, "as the host was told");',
        f"  {call}, {rest}>(params);",
        "}",
    ]


class _Params(ctypes.Structure):  # MatMulNBitsParams of abi.h
    _fields_ = (
        *((n, ctypes.c_void_p) for n in ("a", "b", "scales", "zeros", "bias", "residual", "output")),
        *((n, ctypes.c_uint) for n in ("rows", "columns", "depth", "groups", "b_is_constant")),
        ("alpha", ctypes.c_float), ("beta", ctypes.c_float),
    )  # fmt: skip


def measure(ours: dict[int, Launches], bits: int, columns: int, depth: int, rows: int) -> dict[str, float | str]:
    """Microseconds of every entry point for so many rows, all of which agree with float64."""
    import torch

    from benchmarks.support.gpu_timing import microseconds_in_graph

    groups, size = depth // GROUP, columns * depth * abs(bits) // 8 + 2 * columns * depth // GROUP
    sets = max(2, int(_ROTATED / size) + 1)
    if bits in (16, -8):
        groups = depth * abs(bits) // 8 // 16
    if bits == 16:
        codes = [torch.randn(columns, depth, device="cuda").half() for _ in range(sets)]
    elif bits == -8:
        codes = [torch.randn(columns, depth, device="cuda").to(torch.float8_e4m3fn) for _ in range(sets)]
    else:
        drawn = (columns, depth * bits // 8)
        codes = [torch.randint(0, 256, drawn, dtype=torch.uint8, device="cuda") for _ in range(sets)]
    scales = [(torch.rand(columns, groups, device="cuda") * 0.03 + 0.002).half() for _ in range(sets)]
    a = torch.randn(rows, depth, device="cuda").half()
    output = torch.empty(rows, columns, device="cuda", dtype=torch.float16)
    whole = codes[-1]
    numbers = torch.stack([whole & 15, whole >> 4], -1).reshape(columns, depth) if bits == 4 else whole
    if bits in (4, 8):
        weight = (numbers.double() - (1 << (bits - 1))) * scales[-1].double().repeat_interleave(GROUP, 1)
    else:
        weight = numbers.half().double()
    expected = a.double() @ weight.T
    del weight, numbers
    stream, times = torch.cuda.Stream(), {}
    if bits == 16:
        weights, results = codes, output
        times["cublas_r8"] = round(
            microseconds_in_graph(
                [lambda k=k: torch.mm(a, weights[k].T, out=results) for k in range(sets)],
                stream,
                at_least=24,
                replays=7,
            ),
            2,
        )
    for shape in SHAPES:
        if shape.bits != bits or shape.rows < rows:
            continue
        launches, blocks = ours[shape.form], -(-columns // (16 * shape.tiles))

        def once(k: int, shape: Shape = shape, launches: Launches = launches, blocks: int = blocks) -> None:
            params = _Params(
                a.data_ptr(), codes[k].data_ptr(), scales[k].data_ptr(), None, None, None, output.data_ptr(),
                rows, columns, depth, groups, 1, 1.0, 0.0,
            )  # fmt: skip
            launches.launch(shape.symbol, blocks, shape.warps * 32, params, stream.cuda_stream, shape.shared)

        output.fill_(float("nan"))
        torch.cuda.synchronize()
        runs = [lambda k=k, f=once: f(k) for k in range(sets)]
        times[shape.symbol] = round(microseconds_in_graph(runs, stream, at_least=24, replays=7), 2)
        error = ((output.double() - expected).abs().max() / expected.abs().max()).item()
        if not error < 7e-4:
            raise RuntimeError(f"{shape.symbol}: wrong by {error:.1e}")
    return dict(sorted(times.items(), key=lambda x: x[1]))


def run(folder: pathlib.Path, out: pathlib.Path | None) -> None:
    import torch

    torch.zeros(1, device="cuda")
    ours = {int(f.stem[4:]): Launches(f.read_bytes()) for f in folder.glob("form*.fatbin")}
    found: dict[str, Any] = {}
    for bits in (4, 8, 16, -8):
        for columns, depth in SIZES if bits in (4, 8) else SIZES[:6]:
            for rows in (1, 2, 4) if bits in (4, 16) else (1,):
                label = f"{columns} x {depth}, {bits} bits, {rows} rows"
                size = columns * depth * (abs(bits) / 8 + (2 / GROUP if bits in (4, 8) else 0))
                try:
                    times = measure(ours, bits, columns, depth, rows)
                except Exception as error:  # noqa: BLE001 - the other sizes are worth having
                    print(label, f"{type(error).__name__}: {error}"[:300], flush=True)
                    continue
                found[label] = times
                before = min(t for n, t in times.items() if "r8" in n)
                best = [f"{n} {t}" for n, t in list(times.items())[:4]]
                rate = size / next(iter(times.values())) / _COPY / 1e3 * 1e3
                print(
                    f"{label}: {size / 1e6:.1f} MB, before {before}, rate {rate / 1e3:.2f}, {', '.join(best)}",
                    flush=True,
                )
                if out is not None:
                    out.write_text(json.dumps(found, indent=1))


def main() -> None:
    parser, (_, ran) = command(__doc__)
    ran.add_argument("--out", type=pathlib.Path, default=None)
    args: argparse.Namespace = parser.parse_args()
    if args.verb == "prepare":
        prepare(args.folder, args.arch)
    else:
        run(args.folder, args.out)


if __name__ == "__main__":
    main()
