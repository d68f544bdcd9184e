"""Entry points of GEMMs with weights of 2, 4 or 8 bits (cuda_kernels/matmul_nbits/).

Up to some rows, a kernel reads the codes as they are, on the matrix units; one row of 4 bits has a form of its own, of
fewer instructions. For more rows, one turns the weight into floats in scratch memory, and cuBLASLt multiplies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onnxopt.costs.gemm import numbers
from onnxopt.fusion.region import Kernel, Region
from onnxopt.kinds.gemm.packed import is_packed
from onnxopt.program.dtypes import DTYPES
from onnxopt.program.gemm import Gemm, PackedIntegers, PackedVariant
from onnxopt.program.hardware import ACCESS_BYTES, WARP

_COSTS = numbers()
_ONE_ROW_BITS, _MIN_GROUP_OF_ONE_ROW = 4, 32
_COLUMNS, _BYTES, _STAGES = 16, 128, 2  # chunks of 128 bytes, two of them a warp under way
_ACTIVATIONS = {"none": "kNone", "relu": "kRelu", "gelu_tanh": "kGeluTanh", "silu": "kSilu"}


def entry_points(name: str, meaning: Gemm, regions: Sequence[Region]) -> tuple[PackedVariant, ...]:
    """Those of most warps first, which the library takes where they fill no GPU, then those for many rows."""
    assert meaning.packed is not None
    columns = min((n.attributes.get_int("N", 0) or 0 for r in regions for n in r.nodes if is_packed(n)), default=0)
    shapes = _shapes(meaning)
    working = _COSTS.packed_warps * _COSTS.packed_multiprocessors
    chosen = next((w for w in shapes if -(-columns // _COLUMNS) * w <= working), min(shapes))
    few_rows = [_few_rows(name, warps, meaning) for warps in sorted({chosen, min(shapes)}, reverse=True)]
    if meaning.packed.bits == _ONE_ROW_BITS and meaning.packed.group >= _MIN_GROUP_OF_ONE_ROW:
        few_rows.insert(0, _one_row(name, columns, meaning))
    gate = () if meaning.gate is None else (_plain(name, "gate"),)
    return (*few_rows, _plain(name, "floats"), *gate)


def header(weights: Sequence[PackedIntegers]) -> str:
    """What the CUDA text of products with these weights includes."""
    return f"matmul_nbits/{'two_bits' if any(w.bits == 2 for w in weights) else 'matmul_nbits'}.cuh"


def _shapes(meaning: Gemm) -> Mapping[int, tuple[int, int]]:
    assert meaning.packed is not None
    return (_COSTS.packed_shapes if meaning.gate is None else _COSTS.gated_shapes)[meaning.packed.bits]


def _few_rows(name: str, warps: int, meaning: Gemm) -> PackedVariant:
    tiles = _shapes(meaning)[warps][0]
    chunks = warps * _STAGES * tiles * _COLUMNS * _BYTES
    columns = tiles * _COLUMNS // (1 if meaning.gate is None else 2)
    return PackedVariant(
        f"{name}_codes{warps}", "", 32, ACCESS_BYTES, _STAGES, warps * WARP, waits=True, rows=_COSTS.max_packed_rows,
        columns=columns, shared=chunks,
    )  # fmt: skip


def _one_row(name: str, columns: int, meaning: Gemm) -> PackedVariant:
    warps = next(warps for limit, warps in _COSTS.one_row_warps if limit is None or columns <= limit)
    if meaning.gate is not None and warps == max(_COSTS.one_row_shapes):
        warps = 8  # whose block has a matrix of each side
    tiles = _COSTS.one_row_shapes[warps][0]
    return PackedVariant(
        f"{name}_row", "", 32, ACCESS_BYTES, _STAGES, warps * WARP, waits=True, rows=1,
        columns=tiles * _COLUMNS // (1 if meaning.gate is None else 2),
        shared=warps * _STAGES * tiles * _COLUMNS * _BYTES,
    )  # fmt: skip


def _plain(name: str, role: str) -> PackedVariant:
    return PackedVariant(f"{name}_{role}", "", 32, ACCESS_BYTES, 1, _COSTS.dequantize_threads, waits=True, role=role)


def lines(kernel: Kernel) -> list[str]:
    """CUDA text of the entry points."""
    meaning = kernel.program
    assert isinstance(meaning, Gemm) and meaning.packed is not None
    write = {"codes": _few_rows_text, "floats": _float_text, "gate": _gate_text}
    text: list[str] = []
    for v in kernel.variants:
        assert isinstance(v, PackedVariant)
        text += write[v.role](meaning, meaning.packed, v)
    return text


def _few_rows_text(meaning: Gemm, codes: PackedIntegers, v: PackedVariant) -> list[str]:
    warps = v.threads // WARP
    tiles, blocks = (_COSTS.one_row_shapes if v.rows == 1 else _shapes(meaning))[warps]
    tile = f"NBitsTile<{codes.bits}, {codes.group}, {warps}, {tiles}, {_STAGES}>"
    gated = str(meaning.gate is not None).lower()
    call, rows = ("matmul_nbits_spread", "1, ") if v.rows == 1 else ("matmul_nbits", "")
    dtype = DTYPES[meaning.outputs[0]].cuda
    arguments = f"{dtype}, Tile, {rows}{_zeros(meaning, codes)}, {_activation(meaning)}, {gated}"
    return [
        f'extern "C" __global__ void __launch_bounds__({v.threads}, {blocks})',
        f"{v.symbol}(const __grid_constant__ MatMulNBitsParams params) {{",
        f"  using Tile = {tile};",
        f'  static_assert(Tile::kSharedBytes == {v.shared}, "as the host was told");',
        f"  {call}<{arguments}>(params);",
        "}",
        "",
    ]


def _float_text(meaning: Gemm, codes: PackedIntegers, v: PackedVariant) -> list[str]:
    arguments = f"{DTYPES[meaning.outputs[0]].cuda}, {codes.bits}, {codes.group}, {_zeros(meaning, codes)}, {v.threads}"
    return [
        f'extern "C" __global__ void __launch_bounds__({v.threads})',
        f"{v.symbol}(const __grid_constant__ DequantizeParams params) {{",
        f"  dequantize_nbits<{arguments}>(params);",
        "}",
        "",
    ]


def _gate_text(meaning: Gemm, codes: PackedIntegers, v: PackedVariant) -> list[str]:
    return [
        f'extern "C" __global__ void __launch_bounds__({v.threads})',
        f"{v.symbol}(const __grid_constant__ GateParams params) {{",
        f"  gate<{DTYPES[meaning.outputs[0]].cuda}, {_activation(meaning)}, {v.threads}>(params);",
        "}",
        "",
    ]


def _activation(meaning: Gemm) -> str:
    return f"Activation::{_ACTIVATIONS[meaning.gate or meaning.activation]}"


def _zeros(meaning: Gemm, codes: PackedIntegers) -> str:
    if codes.zeros is None:
        return "Zeros::kMiddle"
    return "Zeros::kCodes" if meaning.inputs[codes.zeros] == "uint8" else "Zeros::kFloats"
