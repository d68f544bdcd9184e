"""TokenAttention: one new token a sequence attends to a cache of keys and values, which grows by it, in one pass."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from onnxopt.program.dtypes import DTYPES

STORED = ("float16", "bfloat16")
_ACCESS_BYTES = 16
MOST_HEADS = 8  # of a group: their queries and sums lie in registers
_MOST_ELEMENTS = 1280  # of a group's results, of which every warp of a block has its own in 48 KB of shared memory


@dataclasses.dataclass(frozen=True)
class TokenAttention:
    """What the library is told. q, k, v, past_k, past_v: positions in inputs; k and v None where q holds all three.

    q: [B, 1, heads * width], or [B, 1, (heads + 2 * groups) * width]; k, v: [B, 1, groups * width]; past_*: [B, groups,
    P, width]. Outputs: [B, 1, heads * width], [B, groups, P + 1, width] twice.
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
        if reason := unfit(self.heads, self.groups, self.width, self.outputs[0]):
            raise ValueError(f"heads: {reason}")
        if not math.isfinite(self.scale):
            raise ValueError("scale must be finite")

    def to_json(self) -> dict[str, Any]:
        """The form kept in kernels.json; k and v are left out where q holds them."""
        row = dataclasses.asdict(self)
        return {k: list(v) if isinstance(v, tuple) else v for k, v in row.items() if v is not None}


def unfit(heads: int, groups: int, width: int, dtype: str) -> str:
    """Why no entry point runs heads of this form, or ""."""
    if groups < 1 or heads % groups or not 1 <= heads // groups <= MOST_HEADS:
        return f"{heads} heads in {groups} groups: the kernel takes up to {MOST_HEADS} a group"
    if heads // groups * width > _MOST_ELEMENTS:
        return f"{heads // groups} heads of {width} a group: what a block finds does not fit in shared memory"
    lanes = width * DTYPES[dtype].size // _ACCESS_BYTES
    if lanes * _ACCESS_BYTES != width * DTYPES[dtype].size or lanes not in (1, 2, 4, 8, 16, 32):
        return f"heads of {width} are no power of 2 of 16 bytes that a warp reads at once"
    return ""
