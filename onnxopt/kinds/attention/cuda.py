"""Entry points of tokens' attention, and their CUDA text on top of cuda_kernels/attention/."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from onnxopt.fusion.kernel import Variant
from onnxopt.fusion.region import Kernel
from onnxopt.program.attention import MOST_HEADS, TokenAttention, rows_of_a_block
from onnxopt.program.dtypes import DTYPES
from onnxopt.program.hardware import ACCESS_BYTES

# Each has the ones before it.
_HEADER, _HEADER_OF_MASKED, _HEADER_OF_CODES = (
    f"attention/{name}.cuh" for name in ("token_attention", "masked_attention", "cache_codes")
)
_THREADS = 256
_HEADS_AND_UNROLL = ((4, 4), (MOST_HEADS, 2))  # (the most rows of a block, keys in flight)
# Of codes, and by how many times more are in flight: as many as registers hold, under a mask too.
_OF_CODES = {False: ((4, 4, 2), (MOST_HEADS, 1, 4)), True: ((4, 4, 2), (6, 1, 2), (MOST_HEADS, 1, 1))}


def header(kernels: Sequence[Kernel]) -> str:
    """The file of cuda_kernels/ that the entry points of these kernels call."""
    meanings = [cast(TokenAttention, kernel.program) for kernel in kernels]
    if any(meaning.codes is not None for meaning in meanings):
        return _HEADER_OF_CODES
    return _HEADER_OF_MASKED if any(meaning.mask is not None for meaning in meanings) else _HEADER


def entry_points(name: str, meaning: TokenAttention) -> tuple[Variant, ...]:
    """The kernel that attends, and the kernel that joins the results of its blocks."""
    vector = ACCESS_BYTES // DTYPES[meaning.outputs[0]].size
    tokens, _ = _in_flight(meaning)
    return tuple(
        Variant(f"{name}_{step}", "", 32, vector, unroll, _THREADS, waits=True)
        for step, unroll in (("attend", tokens), ("join", 1))
    )


def lines(kernel: Kernel) -> list[str]:
    """CUDA text of both entry points."""
    meaning = cast(TokenAttention, kernel.program)
    dtype, masked = DTYPES[meaning.outputs[0]].cuda, meaning.mask is not None
    form = f"{meaning.width}, {_rows(meaning)}"
    attend, join = kernel.variants
    params = "MaskedAttentionParams" if masked else "TokenAttentionParams"
    of_attend, call = params, "attend_masked" if masked else "attend"
    read = dtype
    if meaning.codes is not None:
        of_attend, call = params.replace("Params", "OfCodesParams"), f"{call}_to_codes"
        names = (meaning.inputs[meaning.past_k], meaning.inputs[meaning.codes.k_scale])
        read = ", ".join((dtype, *(DTYPES[name].cuda for name in names), str(_in_flight(meaning)[1])))
    slots = f", {'true' if meaning.slots is not None else 'false'}" if masked else ""
    text: list[str] = []
    joined = f"{'join_masked' if masked else 'join_attended'}<{dtype}, {form}, {join.threads}>"
    for v, of, body in (
        (attend, of_attend, f"{call}<{read}, {form}, {attend.unroll}, {attend.threads}{slots}>"),
        (join, params, joined),
    ):
        text += [
            f'extern "C" __global__ void __launch_bounds__({v.threads})',
            f"{v.symbol}(const __grid_constant__ {of} params) {{",
            f"  {body}(params);",
            "}",
            "",
        ]
    return text


def _in_flight(meaning: TokenAttention) -> tuple[int, int]:
    """Keys that a lane attends to at once, and how many times as many it loads at once."""
    if meaning.codes is None:
        return next((unroll, 1) for most, unroll in _HEADS_AND_UNROLL if _rows(meaning) <= most)
    shapes = _OF_CODES[meaning.mask is not None]
    return next((unroll, parts) for most, unroll, parts in shapes if _rows(meaning) <= most)


def _rows(meaning: TokenAttention) -> int:
    """The rows of a block: heads of queries, of one token or of several."""
    heads = meaning.heads // meaning.groups
    return heads if meaning.mask is None else rows_of_a_block(meaning.tokens, heads, meaning.width)
