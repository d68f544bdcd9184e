"""Entry points of token attention, and their CUDA text on top of cuda_kernels/attention/."""

from __future__ import annotations

from typing import cast

from onnxopt.fusion.kernel import Variant
from onnxopt.fusion.region import Kernel
from onnxopt.program.attention import MOST_HEADS, TokenAttention
from onnxopt.program.dtypes import DTYPES
from onnxopt.program.hardware import ACCESS_BYTES

HEADER = "attention/token_attention.cuh"
_THREADS = 256
_HEADS_AND_UNROLL = ((4, 4), (MOST_HEADS, 2))  # (the most query heads per key head, tokens in flight)


def entry_points(name: str, meaning: TokenAttention) -> tuple[Variant, ...]:
    """The kernel that attends, and the kernel that joins the results of its blocks."""
    vector = ACCESS_BYTES // DTYPES[meaning.outputs[0]].size
    tokens = next(unroll for most, unroll in _HEADS_AND_UNROLL if meaning.heads // meaning.groups <= most)
    return tuple(
        Variant(f"{name}_{step}", "", 32, vector, unroll, _THREADS, waits=True)
        for step, unroll in (("attend", tokens), ("join", 1))
    )


def lines(kernel: Kernel) -> list[str]:
    """CUDA text of both entry points."""
    meaning = cast(TokenAttention, kernel.program)
    form = f"{DTYPES[meaning.outputs[0]].cuda}, {meaning.width}, {meaning.heads // meaning.groups}"
    attend, join = kernel.variants
    text: list[str] = []
    for v, call in (
        (attend, f"attend<{form}, {attend.unroll}, {attend.threads}>"),
        (join, f"join_attended<{form}, {join.threads}>"),
    ):
        text += [
            f'extern "C" __global__ void __launch_bounds__({v.threads})',
            f"{v.symbol}(const __grid_constant__ TokenAttentionParams params) {{",
            f"  {call}(params);",
            "}",
            "",
        ]
    return text
