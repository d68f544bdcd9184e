"""Entry points of tokens' attention, and their CUDA text on top of cuda_kernels/attention/."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from onnxopt.fusion.kernel import Variant
from onnxopt.fusion.region import Kernel
from onnxopt.program.attention import MOST_HEADS, TokenAttention, rows_of_a_block
from onnxopt.program.dtypes import DTYPES
from onnxopt.program.hardware import ACCESS_BYTES

_HEADER, _HEADER_OF_MASKED = "attention/token_attention.cuh", "attention/masked_attention.cuh"  # has the other one
_THREADS = 256
_HEADS_AND_UNROLL = ((4, 4), (MOST_HEADS, 2))  # (the most rows of a block, keys in flight)


def header(kernels: Sequence[Kernel]) -> str:
    """The file of cuda_kernels/ that the entry points of these kernels call."""
    masked = any(cast(TokenAttention, kernel.program).mask is not None for kernel in kernels)
    return _HEADER_OF_MASKED if masked else _HEADER


def entry_points(name: str, meaning: TokenAttention) -> tuple[Variant, ...]:
    """The kernel that attends, and the kernel that joins the results of its blocks."""
    vector = ACCESS_BYTES // DTYPES[meaning.outputs[0]].size
    tokens = next(unroll for most, unroll in _HEADS_AND_UNROLL if _rows(meaning) <= most)
    return tuple(
        Variant(f"{name}_{step}", "", 32, vector, unroll, _THREADS, waits=True)
        for step, unroll in (("attend", tokens), ("join", 1))
    )


def lines(kernel: Kernel) -> list[str]:
    """CUDA text of both entry points."""
    meaning = cast(TokenAttention, kernel.program)
    form = f"{DTYPES[meaning.outputs[0]].cuda}, {meaning.width}, {_rows(meaning)}"
    attend, join = kernel.variants
    calls = ("attend", "join_attended") if meaning.mask is None else ("attend_masked", "join_masked")
    slots = "" if meaning.mask is None else f", {'true' if meaning.slots is not None else 'false'}"
    params = "TokenAttentionParams" if meaning.mask is None else "MaskedAttentionParams"
    text: list[str] = []
    for v, call in (
        (attend, f"{calls[0]}<{form}, {attend.unroll}, {attend.threads}{slots}>"),
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
