"""TokenAttention: attention of one new token per sequence to a cache of keys and values, which the kernel extends.

Under a mask there may be up to sixteen new tokens, which the mask lets read each other. Its
operands are caches and views of packed tensors, so it has neither prologue nor epilogue. The CUDA side is
cuda_kernels/attention/.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from onnxopt.program.dtypes import DTYPES
from onnxopt.program.fields import choice, flag, integer, nested, number, operand
from onnxopt.program.hardware import ACCESS_BYTES, MAX_SHARED_BYTES, WARP
from onnxopt.program.schema import WHOLE_WARPS, Meaning, Record, Rule, Variant, shared

STORED = ("float16", "bfloat16")
MAX_HEADS = 16  # query heads that share one key head, and rows of a block: those of one product on tensor cores
CODES = ("int8", "float8e4m3fn")  # that a cache may hold
SCALES = ("float32", *STORED)  # dtypes of their scales
PER = ("tensor", "head", "element", "channel")  # what has a scale of its own; a channel is an element of one head
SLOTS = "int64"
MAX_TOKENS = 16  # new ones of a sequence, under a mask
ANY_NUMBER = 0  # of tokens
_ROWS_OF_ANY = 4  # of a block


@dataclasses.dataclass(frozen=True)
class CacheCodes(Record):
    """A cache of 8-bit codes, which are multiplied by scales. New tokens become codes before anything reads them.

    k_scale, v_scale: positions in inputs, [1], [groups], [width] or [groups, width] as k_per and v_per, of PER, say.
    by_reciprocal: a new token is multiplied by 1 / scale, or by 0 where the scale is 0, as GroupQueryAttention does;
    else it is divided by the scale, as QuantizeLinear does.
    """

    k_scale: int = operand(SCALES)
    v_scale: int = operand(same_as="k_scale")
    k_per: str = choice("ScalePer", PER, default="tensor")
    v_per: str = choice("ScalePer", PER, default="tensor")
    by_reciprocal: bool = flag(default=False)


@dataclasses.dataclass(frozen=True)
class TokenAttention(Meaning):
    """The meaning of a token attention kernel.

    inputs, outputs: storage dtype names, all the same but those of a cache of codes, of its scales, and of slots.
    q, k, v, past_k, past_v: positions in inputs; k and v are None where q holds all three. heads: query heads. groups:
    key heads, and as many value heads. width: elements of a head. scale: the factor of the scores. tokens: new ones of
    each sequence, one without a mask; 0 for as many as q has in a call. mask: position of what is added to the
    scores; None where every token reads every key. slots: position of where in the cache each new token goes, where the
    cache has room for it, in place of what is there; None where the cache grows. codes: None where the cache holds what
    new tokens are. rows: heads of tokens that a block computes under a mask.

    Shapes with B sequences, S new tokens and P tokens in the cache:
        q                      [B, S, heads * width], or [B, 1, (heads + 2 * groups) * width] where q holds all three
        k, v                   [B, S, groups * width], or [B, S, groups, width]
        past_k, past_v         [B, groups, P, width]
        mask                   [B or 1, heads or 1, S, T]
        slots                  [S, 1], int64, from -P to P - 1
        outputs                [B, S, heads * width], then the new keys and values [B, groups, T, width]
    T is P + S, or P where there are slots.
    """

    KIND: ClassVar = "attention"
    INPUTS: ClassVar = (3, 9)
    OUTPUTS: ClassVar = (3, 3)
    RULES: ClassVar = (
        Rule("outputs", f"outputs[0] in {STORED}", "are no floats of 16 bits"),
        Rule(
            "outputs", "outputs[1] == inputs[past_k] and outputs[2] == inputs[past_k]", "differ from the cache in dtype"
        ),
        Rule("past_k", "codes is not None or inputs[past_k] == outputs[0]", "has another dtype than the outputs"),
        Rule("past_k", f"codes is None or inputs[past_k] in {CODES}", "is of no codes"),
        Rule("k", "(k is None) == (v is None)", "is missing beside v, or v beside k"),
        Rule("mask", "mask is None or k is not None", "is there, and q holds the keys too, which only one token may"),
        Rule("slots", "slots is None or mask is not None", "are there without a mask"),
        Rule("tokens", "tokens > 0 or (mask is not None and slots is None)", "is 0 beside slots or without a mask"),
        Rule("tokens", "tokens <= 1 or mask is not None", "is above 1 without a mask"),
        Rule("heads", "heads % groups == 0", "is no multiple of groups"),
        Rule("heads", f"heads <= {MAX_HEADS} * groups", f"are more than {MAX_HEADS} for each of the groups"),
        Rule(
            "rows", f"rows * groups <= (tokens if tokens > 0 else {MAX_TOKENS}) * heads", "are more than there can be"
        ),
        Rule("width", "width * size(outputs[0]) in (16, 32, 64, 128, 256, 512)", "is not 16 bytes times a power of 2"),
    )
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    heads: int = integer(1, 4096)
    groups: int = integer(1, 4096)
    width: int = integer(1, 512)
    scale: float = number()
    q: int = operand(same_as="outputs", default=0)
    k: int | None = operand(same_as="outputs", optional=True)
    v: int | None = operand(same_as="outputs", optional=True)
    past_k: int = operand(default=1)
    past_v: int = operand(same_as="past_k", default=2)
    tokens: int = integer(0, MAX_TOKENS, default=1, beside="mask")
    mask: int | None = operand(same_as="outputs", optional=True)
    slots: int | None = operand((SLOTS,), optional=True)
    codes: CacheCodes | None = nested(CacheCodes, optional=True)
    rows: int = integer(1, MAX_TOKENS * MAX_HEADS, default=1, beside="mask", init=False)

    def __post_init__(self) -> None:
        if self.mask is not None and self.groups > 0 and self.heads >= self.groups:
            object.__setattr__(self, "rows", rows_of_a_block(self.tokens, self.heads // self.groups))

    @property
    @shared
    def dtype(self) -> str:
        return self.outputs[0]

    @property
    @shared
    def cached(self) -> str:
        """The dtype of the caches."""
        return self.inputs[self.past_k]


def rows_of_a_block(tokens: int, heads: int) -> int:
    """How many rows a block takes under a mask. A row is one of the `heads` of a group, of one of the tokens.

    Of any number of tokens, those of one, or of some where there are few heads: the usual number of tokens is small.
    """
    if tokens == ANY_NUMBER:
        tokens = max(_ROWS_OF_ANY // heads, 1)
    rows = tokens * heads
    chunks = -(-rows // MAX_HEADS)
    return -(-rows // chunks)


def why_heads_do_not_fit(heads: int, groups: int, width: int, dtype: str) -> str:
    """The reason why the kernel cannot run heads of this number, width and storage dtype; "" where the kernel can."""
    if groups < 1 or heads % groups or not 1 <= heads // groups <= MAX_HEADS:
        return (
            f"{heads} query heads share {groups} key heads; the kernel supports up to {MAX_HEADS} query heads per key"
            " head"
        )
    lanes, rest = divmod(width * DTYPES[dtype].size, ACCESS_BYTES)
    if rest or not 1 <= lanes <= WARP or lanes.bit_count() != 1:
        return f"A head of {width} elements is not {ACCESS_BYTES} bytes times a power of 2 up to {WARP}"
    return ""


@dataclasses.dataclass(frozen=True)
class AttentionVariant(Variant):
    """stages: tiles of keys that a warp has places for in shared memory, all but one of which are being copied; 0
    without tensor cores. registers: the one place is in registers instead. shared: bytes of dynamic shared memory of a
    block. joins: the last block of those that share keys joins their results, where the launch counts them."""

    KERNEL = TokenAttention
    RULES = (
        WHOLE_WARPS,
        Rule(
            "registers",
            "not registers or (stages == 1 and kernel.mask is not None and kernel.codes is None)",
            "holds one tile, of masked attention to a cache without codes",
        ),
    )
    stages: int = integer(0, 8, default=0)
    registers: bool = flag(default=False)
    shared: int = integer(0, MAX_SHARED_BYTES, default=0)
    joins: bool = flag(default=False)
