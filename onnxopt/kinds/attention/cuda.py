"""Entry points of tokens' attention, and their CUDA text on top of cuda_kernels/attention/."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import cast

from onnxopt.fusion.kernel import Variant
from onnxopt.fusion.region import Kernel
from onnxopt.program.attention import MOST_HEADS, TokenAttention, rows_of_a_block
from onnxopt.program.dtypes import DTYPES
from onnxopt.program.hardware import ACCESS_BYTES, WARP

_HEADER, _HEADER_OF_MASKED = "attention/token_attention.cuh", "attention/masked_attention.cuh"  # has the other one
_THREADS = 256
_HEADS_AND_UNROLL = ((4, 4), (MOST_HEADS, 2))  # (the most rows of a block, keys that a lane takes at once)
_STAGES = 2


@dataclasses.dataclass(frozen=True)
class AttentionVariant(Variant):
    """One entry point. stages: places of a thread in shared memory, of `unroll` keys and values each; all but one are
    on their way. shared: bytes of dynamic shared memory of a block."""

    stages: int = 1
    shared: int = 0


def header(kernels: Sequence[Kernel]) -> str:
    """The file of cuda_kernels/ that the entry points of these kernels call."""
    masked = any(cast(TokenAttention, kernel.program).mask is not None for kernel in kernels)
    return _HEADER_OF_MASKED if masked else _HEADER


def entry_points(name: str, meaning: TokenAttention) -> tuple[Variant, ...]:
    """The kernel that attends, and the kernel that joins the results of its blocks."""
    unroll = next(unroll for most, unroll in _HEADS_AND_UNROLL if _rows(meaning) <= most)
    return variants(name, meaning, unroll, _THREADS, _STAGES)


def variants(name: str, meaning: TokenAttention, unroll: int, threads: int, stages: int) -> tuple[Variant, ...]:
    """Both kernels in one launch shape."""
    vector = ACCESS_BYTES // DTYPES[meaning.outputs[0]].size
    places = stages * unroll * 2 * threads * ACCESS_BYTES
    found = threads // WARP * _rows(meaning) * (meaning.width + 2) * DTYPES["float32"].size
    shared = max(places, found)
    return (
        AttentionVariant(
            f"{name}_attend", "", 32, vector, unroll, threads, waits=True, stages=stages, shared=shared
        ),
        AttentionVariant(f"{name}_join", "", 32, vector, 1, threads, waits=True),
    )  # fmt: skip


def lines(kernel: Kernel) -> list[str]:
    """CUDA text of both entry points."""
    meaning = cast(TokenAttention, kernel.program)
    form = f"{DTYPES[meaning.outputs[0]].cuda}, {meaning.width}, {_rows(meaning)}"
    attend, join = cast(tuple[AttentionVariant, ...], kernel.variants)
    calls = ("attend", "join_attended") if meaning.mask is None else ("attend_masked", "join_masked")
    slots = "" if meaning.mask is None else f", {'true' if meaning.slots is not None else 'false'}"
    params = "TokenAttentionParams" if meaning.mask is None else "MaskedAttentionParams"
    text: list[str] = []
    for v, call in (
        (attend, f"{calls[0]}<{form}, {attend.unroll}, {attend.threads}, {attend.stages}{slots}>"),
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
    return heads if meaning.mask is None else rows_of_a_block(meaning.tokens, heads, meaning.width)
