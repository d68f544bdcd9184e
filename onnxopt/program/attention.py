"""TokenAttention: attention of one new token per sequence to a cache of keys and values, which the kernel extends.

The C++ side is custom_ops/program/attention.h, the CUDA side cuda_kernels/attention/token_attention.cuh.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from onnxopt.program.dtypes import DTYPES
from onnxopt.program.hardware import ACCESS_BYTES, WARP

STORED = ("float16", "bfloat16")
MOST_HEADS = 8  # query heads that share one key head; their queries and sums stay in registers
# Elements of the results of all query heads that share a key head. STATIC_SHARED_BYTES hold the results of every warp.
_MOST_ELEMENTS = 1280


@dataclasses.dataclass(frozen=True)
class TokenAttention:
    """The meaning of a token attention kernel.

    inputs, outputs: storage dtype names, all the same. q, k, v, past_k, past_v: positions in inputs; k and v are None
    where q holds all three. heads: query heads. groups: key heads, and as many value heads. width: elements of a head.
    scale: the factor of the scores.

    Shapes with B sequences and P tokens in the cache:
        q                      [B, 1, heads * width], or [B, 1, (heads + 2 * groups) * width] where q holds all three
        k, v                   [B, 1, groups * width]
        past_k, past_v         [B, groups, P, width]
        outputs                [B, 1, heads * width], then the new keys and values [B, groups, P + 1, width]
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    heads: int
    groups: int
    width: int
    scale: float
    q: int = 0
    k: int | None = None
    v: int | None = None
    past_k: int = 1
    past_v: int = 2

    def verify(self) -> None:
        """Raise ValueError naming the field that breaks a rule of this class."""
        positions = [p for p in (self.q, self.k, self.v, self.past_k, self.past_v) if p is not None]
        if set(positions) != set(range(len(self.inputs))) or (self.k is None) != (self.v is None):
            raise ValueError(f"inputs: operands {positions} are not all of {len(self.inputs)} inputs")
        if len(self.outputs) != 3 or {*self.inputs, *self.outputs} - {self.outputs[0]}:
            raise ValueError("outputs: not three of the inputs' dtype")
        if self.outputs[0] not in STORED:
            raise ValueError(f"outputs: {self.outputs[0]} is not one of {', '.join(STORED)}")
        if reason := why_heads_do_not_fit(self.heads, self.groups, self.width, self.outputs[0]):
            raise ValueError(f"heads: {reason}")
        if not math.isfinite(self.scale):
            raise ValueError("scale must be finite")

    def to_json(self) -> dict[str, Any]:
        """The form in kernels.json, without k and v where q holds them."""
        row = dataclasses.asdict(self)
        return {k: list(v) if isinstance(v, tuple) else v for k, v in row.items() if v is not None}


def why_heads_do_not_fit(heads: int, groups: int, width: int, dtype: str) -> str:
    """The reason why the kernel cannot run heads of this number, width and storage dtype; "" where the kernel can."""
    if groups < 1 or heads % groups or not 1 <= heads // groups <= MOST_HEADS:
        return (
            f"{heads} query heads share {groups} key heads; the kernel supports up to {MOST_HEADS} query heads per key"
            " head"
        )
    if heads // groups * width > _MOST_ELEMENTS:
        return f"{heads // groups} query heads of size {width} per key head need more shared memory than a block has"
    lanes, rest = divmod(width * DTYPES[dtype].size, ACCESS_BYTES)
    if rest or not 1 <= lanes <= WARP or lanes.bit_count() != 1:
        return f"A head of {width} elements is not {ACCESS_BYTES} bytes times a power of 2 up to {WARP}"
    return ""
