"""Entry points of tokens' attention, and their CUDA text on top of cuda_kernels/attention/."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import cast

from onnxopt.fusion.kernel import Variant
from onnxopt.fusion.region import Kernel
from onnxopt.program.attention import TokenAttention, rows_of_a_block
from onnxopt.program.dtypes import DTYPES
from onnxopt.program.hardware import WARP

_VECTOR, _JOINING = 8, 256  # elements of a load, threads of a block that joins
_HEADER, _HEADER_OF_MASKED = "attention/token_attention.cuh", "attention/masked_attention.cuh"  # has the other one
_LANES = 256  # threads of a block without tensor cores
_ROWS_OF_LANES = 4  # up to which these take less time
_TILES = ((128, 3), (128, 2), (64, 3), (128, 1), (64, 1))  # (threads, stages) with tensor cores, the best one first
_KEYS = 16  # of a tile
_SHARED_OF_TWO, _SHARED_OF_ALL = 113 << 10, 48 << 10  # bytes, where two blocks are to fit, and that every GPU has


@dataclasses.dataclass(frozen=True)
class AttentionVariant(Variant):
    """One entry point. stages: tiles of keys that a warp has places for in shared memory, all but one of which are on
    their way; 0 without tensor cores. shared: bytes of dynamic shared memory of a block."""

    stages: int = 0
    shared: int = 0


def header(kernels: Sequence[Kernel]) -> str:
    """The file of cuda_kernels/ that the entry points of these kernels call."""
    masked = any(cast(TokenAttention, kernel.program).mask is not None for kernel in kernels)
    return _HEADER_OF_MASKED if masked else _HEADER


def entry_points(name: str, meaning: TokenAttention) -> tuple[Variant, ...]:
    """The kernel that attends, on GPUs with much shared memory and on others, and the one that joins its results."""
    if _rows(meaning) <= _ROWS_OF_LANES:
        return attending(name, meaning, _LANES, 0), joining(name)
    fitting = [
        next(shape for shape in _TILES if shared_bytes(meaning, *shape) <= most)
        for most in (_SHARED_OF_TWO, _SHARED_OF_ALL)
    ]
    return (*(attending(name, meaning, *shape) for shape in dict.fromkeys(fitting)), joining(name))


def attending(name: str, meaning: TokenAttention, threads: int, stages: int) -> AttentionVariant:
    shared = shared_bytes(meaning, threads, stages)
    return AttentionVariant(
        f"{name}_attend_t{threads}s{stages}", "", 32, _VECTOR, 1, threads, waits=True, stages=stages, shared=shared
    )  # fmt: skip


def joining(name: str) -> AttentionVariant:
    return AttentionVariant(f"{name}_join", "", 32, _VECTOR, 1, _JOINING, waits=True)


def shared_bytes(meaning: TokenAttention, threads: int, stages: int) -> int:
    """Of a block that attends, as cuda_kernels/attention/ counts them."""
    found = (meaning.width + 2) * DTYPES["float32"].size  # of a row
    if stages == 0:
        return threads // WARP * _rows(meaning) * found
    pitch = 8 * (meaning.width // 8 | 1) * 2  # of a row of a tile
    return _KEYS * pitch + threads // WARP * max(stages * _KEYS * 2 * pitch, _KEYS * found)


def lines(kernel: Kernel) -> list[str]:
    """CUDA text of both entry points."""
    meaning = cast(TokenAttention, kernel.program)
    form = f"{DTYPES[meaning.outputs[0]].cuda}, {meaning.width}, {_rows(meaning)}"
    *attending, join = cast(tuple[AttentionVariant, ...], kernel.variants)
    calls = ("attend", "join_attended") if meaning.mask is None else ("attend_masked", "join_masked")
    slots = "" if meaning.mask is None else f", {'true' if meaning.slots is not None else 'false'}"
    params = "TokenAttentionParams" if meaning.mask is None else "MaskedAttentionParams"
    text: list[str] = []
    for v, call in (
        *((v, f"{calls[0]}<{form}, {v.threads}, {v.stages}{slots}>") for v in attending),
        (join, f"{calls[1]}<{form}, {join.threads}>"),
    ):
        text += [
            f'extern "C" __global__ void __launch_bounds__({v.threads})',
            f"{v.symbol}(const __grid_constant__ {params} params) {{",
            f"  {call}(params);",
            "}",
            "",
        ]
    return text


def _rows(meaning: TokenAttention) -> int:
    """The rows of a block: heads of queries, of one token or of several."""
    heads = meaning.heads // meaning.groups
    return heads if meaning.mask is None else rows_of_a_block(meaning.tokens, heads)
