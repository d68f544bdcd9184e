"""Entry points of tokens' attention, and their CUDA text on top of cuda_kernels/attention/."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from onnxopt.costs.token_attention import numbers
from onnxopt.fusion.region import Kernel
from onnxopt.program.attention import MAX_TOKENS, AttentionVariant, TokenAttention, rows_of_a_block
from onnxopt.program.dtypes import DTYPES
from onnxopt.program.hardware import WARP
from onnxopt.program.schema import Variant

_COSTS = numbers()
_VECTOR = 8  # elements of a load
# Each has the ones before it.
_HEADER, _HEADER_OF_MASKED, _HEADER_OF_CODES = (
    f"attention/{name}.cuh" for name in ("token_attention", "masked_attention", "cache_codes")
)
_NARROWEST_CODES = 16  # elements of a head in tiles: those of 16 bytes
# Bytes of shared memory of a block: what sm_90 has, what every GPU from sm_80 on has, what every GPU has.
_SHARED = (227 << 10, 99 << 10, 48 << 10)
_KEYS = 16  # of a tile
_WIDTHS_IN_REGISTERS = (64, 128)  # elements of a head whose keys and values are multiplied from registers


def header(kernels: Sequence[Kernel]) -> str:
    """The file of cuda_kernels/ that the entry points of these kernels call."""
    meanings = [cast(TokenAttention, kernel.program) for kernel in kernels]
    if any(meaning.codes is not None for meaning in meanings):
        return _HEADER_OF_CODES
    return _HEADER_OF_MASKED if any(meaning.mask is not None for meaning in meanings) else _HEADER


def entry_points(name: str, meaning: TokenAttention) -> tuple[Variant, ...]:
    """The kernels that attend, and the one that joins their results. Few rows: for long caches, and for the rest. Keys
    of a cache with room are in registers, by one entry point for all GPUs. Others are in shared memory: few rows on
    GPUs that have much, more by how much a GPU has."""
    few, coded = _rows(meaning) <= _COSTS.max_rows_of_lanes, meaning.codes is not None
    if _in_registers(meaning):
        in_registers = attending(name, meaning, *_COSTS.in_registers, registers=True)
        return (in_registers, *([attending(name, meaning, _COSTS.lanes, 0)] if few else []), joining(name))
    in_lanes = few or (coded and meaning.width < _NARROWEST_CODES)
    limits = _SHARED if not in_lanes else () if coded else _SHARED[:1]
    shapes = _COSTS.tiles_of_codes if coded else _COSTS.tiles
    fitting = [next(shape for shape in shapes if shared_bytes(meaning, *shape) <= limit) for limit in limits]
    tiles = [attending(name, meaning, *shape) for shape in dict.fromkeys(fitting)]
    lanes = [attending(name, meaning, _COSTS.lanes, 0)] if in_lanes else []
    return (*tiles, *lanes, joining(name))


def _in_registers(meaning: TokenAttention) -> bool:
    has_room = meaning.slots is not None and meaning.codes is None
    return has_room and meaning.width in _WIDTHS_IN_REGISTERS and _rows(meaning) <= _COSTS.rows_in_registers


def attending(
    name: str, meaning: TokenAttention, threads: int, stages: int, *, registers: bool = False
) -> AttentionVariant:
    shared = shared_bytes(meaning, threads, stages, registers=registers)
    symbol = f"{name}_attend_t{threads}{'r' if registers else f's{stages}'}"
    return AttentionVariant(
        symbol, "", 32, _VECTOR, 1, threads, waits=True, stages=stages, registers=registers, shared=shared, joins=True,
    )  # fmt: skip


def joining(name: str) -> AttentionVariant:
    return AttentionVariant(f"{name}_join", "", 32, _VECTOR, 1, _COSTS.joining_threads, waits=True)


def shared_bytes(meaning: TokenAttention, threads: int, stages: int, *, registers: bool = False) -> int:
    """Of a block that attends, as cuda_kernels/attention/ counts them."""
    if registers:
        new = 2 * MAX_TOKENS * meaning.width * DTYPES[meaning.outputs[0]].size
        return new + threads // WARP * _rows(meaning) * (meaning.width + 4) * DTYPES["float32"].size
    sums = (meaning.width + 2) * DTYPES["float32"].size  # of a row
    if stages == 0:
        return threads // WARP * _rows(meaning) * sums
    pitch = 8 * (meaning.width // 8 | 1) * 2  # of a row of a tile
    key = pitch if meaning.codes is None else meaning.width  # bytes in a stage
    numbers = 0 if meaning.codes is None else _KEYS * 2 * pitch  # of a tile
    masks = 0 if meaning.mask is None else -(-_rows(meaning) * (_KEYS // 2 + 1) * 4 // 16) * 16  # of a tile
    return _KEYS * pitch + threads // WARP * max(stages * (_KEYS * 2 * key + masks) + numbers, _KEYS * sums)


def lines(kernel: Kernel) -> list[str]:
    """CUDA text of both entry points."""
    meaning = cast(TokenAttention, kernel.program)
    dtype, masked = DTYPES[meaning.outputs[0]].cuda, meaning.mask is not None
    form = f"{meaning.width}, {_rows(meaning)}"
    *attending, join = cast(tuple[AttentionVariant, ...], kernel.variants)
    params = "MaskedAttentionParams" if masked else "TokenAttentionParams"
    reducer = f"{'join_masked' if masked else 'join_attended'}<{dtype}, {form}, {join.threads}>"
    text: list[str] = []
    for v, body in (*((v, _attending(meaning, v, form)) for v in attending), (join, reducer)):
        text += _entry(v, params, body)
    return text


def _entry(variant: AttentionVariant, params: str, body: str) -> list[str]:
    # In tiles, a multiprocessor has one block: registers are not to be spilled for a second one.
    bounds = f"{variant.threads}, 1" if variant.stages > 0 else str(variant.threads)
    return [
        f'extern "C" __global__ void __launch_bounds__({bounds})',
        f"{variant.symbol}(const __grid_constant__ {params} params) {{", f"  {body}(params);", "}", "",
    ]  # fmt: skip


def _attending(meaning: TokenAttention, variant: AttentionVariant, form: str) -> str:
    """The function that a variant calls, with its parameters."""
    dtype, masked = DTYPES[meaning.outputs[0]].cuda, meaning.mask is not None
    call = "attend_masked" if masked else "attend"
    slots = f", {'true' if meaning.slots is not None else 'false'}" if masked else ""
    if variant.registers:
        return f"{call}_in_registers<{dtype}, {form}, {variant.threads}{slots}>"
    if meaning.codes is None:
        return f"{call}<{dtype}, {form}, {variant.threads}, {variant.stages}{slots}>"
    names = (meaning.inputs[meaning.past_k], meaning.inputs[meaning.codes.k_scale])
    shapes = _COSTS.masked_codes_lanes if masked else _COSTS.codes_lanes
    unroll, parts = next((u, parts) for limit, u, parts in shapes if _rows(meaning) <= limit)
    read = ", ".join((dtype, *(DTYPES[name].cuda for name in names), str(parts)))
    return f"{call}_to_codes<{read}, {form}, {unroll}, {variant.threads}, {variant.stages}{slots}>"


def _rows(meaning: TokenAttention) -> int:
    """The rows of a block: heads of queries, of one token or of several."""
    heads = meaning.heads // meaning.groups
    return heads if meaning.mask is None else rows_of_a_block(meaning.tokens, heads)
