"""TokenAttention: attention of one new token per sequence to a cache of keys and values, which the kernel extends.

Under a mask there may be up to sixteen new tokens, which the mask lets read each other. The C++ side is
custom_ops/program/attention.h, the CUDA side cuda_kernels/attention/.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from onnxopt.program.dtypes import DTYPES
from onnxopt.program.hardware import ACCESS_BYTES, WARP

STORED = ("float16", "bfloat16")
MOST_HEADS = 16  # query heads that share one key head, and rows of a block: those of one product on tensor cores
CODES = ("int8", "float8e4m3fn")  # that a cache may hold
SCALES = ("float32", *STORED)  # dtypes of their scales
PER = ("tensor", "head", "element", "channel")  # what has a scale of its own; a channel is an element of one head
SLOTS = "int64"
MOST_TOKENS = 16  # new ones of a sequence, under a mask
ANY_NUMBER = 0  # of tokens
_ROWS_OF_ANY = 4  # of a block


@dataclasses.dataclass(frozen=True)
class CacheCodes:
    """A cache of 8-bit codes, which are multiplied by scales. New tokens become codes before anything reads them.

    k_scale, v_scale: positions in inputs, [1], [groups], [width] or [groups, width] as k_per and v_per, of PER, say.
    by_reciprocal: a new token is multiplied by 1 / scale, or by 0 where the scale is 0, as GroupQueryAttention does;
    else it is divided by the scale, as QuantizeLinear does.
    """

    k_scale: int
    v_scale: int
    k_per: str = "tensor"
    v_per: str = "tensor"
    by_reciprocal: bool = False


@dataclasses.dataclass(frozen=True)
class TokenAttention:
    """The meaning of a token attention kernel.

    inputs, outputs: storage dtype names, all the same but those of a cache of codes, of its scales, and of slots.
    q, k, v, past_k, past_v: positions in inputs; k and v are None where q holds all three. heads: query heads. groups:
    key heads, and as many value heads. width: elements of a head. scale: the factor of the scores. tokens: new ones of
    each sequence, one without a mask; ANY_NUMBER for as many as q has in a call. mask: position of what is added to the
    scores; None where every token reads every key. slots: position of where in the cache each new token goes, where the
    cache has room for it, in place of what is there; None where the cache grows. codes: None where the cache holds what
    new tokens are.

    Shapes with B sequences, S new tokens and P tokens in the cache:
        q                      [B, S, heads * width], or [B, 1, (heads + 2 * groups) * width] where q holds all three
        k, v                   [B, S, groups * width], or [B, S, groups, width]
        past_k, past_v         [B, groups, P, width]
        mask                   [B or 1, heads or 1, S, T]
        slots                  [S, 1], int64, from -P to P - 1
        outputs                [B, S, heads * width], then the new keys and values [B, groups, T, width]
    T is P + S, or P where there are slots.
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
    tokens: int = 1
    mask: int | None = None
    slots: int | None = None
    codes: CacheCodes | None = None

    def verify(self) -> None:
        """Raise ValueError naming the field that breaks a rule of this class."""
        operands = [self.q, self.k, self.v, self.past_k, self.past_v, self.mask, self.slots]
        if self.codes is not None:
            operands += [self.codes.k_scale, self.codes.v_scale]
        positions = [p for p in operands if p is not None]
        if set(positions) != set(range(len(self.inputs))) or (self.k is None) != (self.v is None):
            raise ValueError(f"inputs: operands {positions} are not all of {len(self.inputs)} inputs")
        if len(self.outputs) != 3 or self.inputs[self.q] != self.outputs[0]:
            raise ValueError("outputs: not three, or the first is not of the dtype of q")
        for position, dtypes in self._dtypes().items():
            if self.inputs[position] not in dtypes:
                raise ValueError(f"inputs: {position} is {self.inputs[position]}, not {' or '.join(dtypes)}")
        if self.outputs[1:] != (self.inputs[self.past_k],) * 2 or self.inputs[self.past_v] != self.outputs[1]:
            raise ValueError("outputs: the caches differ in dtype")
        if self.slots is not None and self.mask is None:
            raise ValueError("slots: without a mask")
        if self.codes is not None and not {self.codes.k_per, self.codes.v_per} <= set(PER):
            raise ValueError(f"codes: {self.codes.k_per} and {self.codes.v_per} are not of {', '.join(PER)}")
        if self.codes is not None and self.inputs[self.codes.k_scale] != self.inputs[self.codes.v_scale]:
            raise ValueError("codes: the scales differ in dtype")
        if self.outputs[0] not in STORED:
            raise ValueError(f"outputs: {self.outputs[0]} is not one of {', '.join(STORED)}")
        if self.tokens == ANY_NUMBER and (self.mask is None or self.slots is not None):
            raise ValueError("tokens: any number takes a mask, and a cache that grows")
        if self.tokens != ANY_NUMBER and not 1 <= self.tokens <= (1 if self.mask is None else MOST_TOKENS):
            raise ValueError(
                f"tokens: {self.tokens} new ones; several take a mask, and there are {MOST_TOKENS} at most"
            )
        if self.mask is not None and self.k is None:
            raise ValueError("mask: q holds keys and values too, which only one token may")
        if reason := why_heads_do_not_fit(self.heads, self.groups, self.width, self.outputs[0]):
            raise ValueError(f"heads: {reason}")
        if not math.isfinite(self.scale):
            raise ValueError("scale must be finite")

    def _dtypes(self) -> dict[int, tuple[str, ...]]:
        """The dtypes that each input may have."""
        same: tuple[str, ...] = (self.outputs[0],)
        fresh = (k for k in (self.q, self.k, self.v, self.mask) if k is not None)
        found: dict[int, tuple[str, ...]] = dict.fromkeys(fresh, same)
        found |= dict.fromkeys((self.past_k, self.past_v), same if self.codes is None else CODES)
        if self.slots is not None:
            found[self.slots] = (SLOTS,)
        if self.codes is not None:
            found |= dict.fromkeys((self.codes.k_scale, self.codes.v_scale), SCALES)
        return found

    def to_json(self) -> dict[str, Any]:
        """The form in kernels.json: what is not there is left out, and tokens where there is no mask."""
        row = dataclasses.asdict(self)
        if self.mask is None:
            del row["tokens"]
        else:
            row["rows"] = rows_of_a_block(self.tokens, self.heads // self.groups)
        return {k: list(v) if isinstance(v, tuple) else v for k, v in row.items() if v is not None}


def rows_of_a_block(tokens: int, heads: int) -> int:
    """How many rows a block takes under a mask. A row is one of the `heads` of a group, of one of the tokens.

    Of any number of tokens, those of one, or of some where there are few heads: the usual number of tokens is small.
    """
    if tokens == ANY_NUMBER:
        tokens = max(_ROWS_OF_ANY // heads, 1)
    rows = tokens * heads
    chunks = -(-rows // MOST_HEADS)
    return -(-rows // chunks)


def why_heads_do_not_fit(heads: int, groups: int, width: int, dtype: str) -> str:
    """The reason why the kernel cannot run heads of this number, width and storage dtype; "" where the kernel can."""
    if groups < 1 or heads % groups or not 1 <= heads // groups <= MOST_HEADS:
        return (
            f"{heads} query heads share {groups} key heads; the kernel supports up to {MOST_HEADS} query heads per key"
            " head"
        )
    lanes, rest = divmod(width * DTYPES[dtype].size, ACCESS_BYTES)
    if rest or not 1 <= lanes <= WARP or lanes.bit_count() != 1:
        return f"A head of {width} elements is not {ACCESS_BYTES} bytes times a power of 2 up to {WARP}"
    return ""
