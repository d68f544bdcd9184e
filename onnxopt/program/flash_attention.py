"""FlashAttention: attention of many queries, whose scores stay on the multiprocessor.

The C++ side is custom_ops/program/flash_attention.h, the CUDA side cuda_kernels/flash_attention/.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

STORED = ("float16", "bfloat16")
MOST_INPUTS = 4  # kFlashAttentionInputs of custom_ops/program/flash_attention.h
MOST_WIDTH = 256  # elements of a head
MOST_HEADS = 4096
MOST_ROW = 1 << 24  # elements of a token
# Keys up to which the kernel is faster than those that ONNX Runtime calls on a GPU with wgmma, measured on one H200
# (benchmarks/notes.md): where it saves copies of packed queries, keys and values, and where it saves none.
_KEYS_IF_PACKED = 384
_KEYS_IF_APART = 128
_NARROW, _KEYS_IF_NARROW = 32, 1024  # elements of a head; softmax takes most of the time then, in any kernel


@dataclasses.dataclass(frozen=True)
class Heads:
    """Where the heads of q, k or v lie: in input `input`, whose tokens are `row` elements each, [B, tokens, row].

    Head h of a token begins at element `first` + h * `step`. With row = 0, the input is [B, heads, tokens, width].
    """

    input: int
    row: int = 0
    first: int = 0
    step: int = 0


@dataclasses.dataclass(frozen=True)
class FlashAttention:
    """The meaning of a kernel: softmax(scale q k^T + bias) v.

    inputs, outputs: storage dtype names, all the same. heads: of q. groups: heads of k and v, each of which several
    neighbouring heads of q share. width: elements of a head of q and k. values: of v. causal: the last query sees every
    key, each query before it one key less.

    Shapes with B sequences, S queries and T keys:
        q, k, v     as Heads says
        bias        [P, heads or 1, S, T], added to the scores, the same again every P sequences
        output      [B, S, heads * values]
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    heads: int
    groups: int
    width: int
    values: int
    scale: float
    causal: bool
    q: Heads
    k: Heads
    v: Heads
    bias: int | None = None

    @property
    def operands(self) -> tuple[tuple[Heads, int, int], ...]:
        """q, k and v, with the number of their heads and the elements of a head."""
        return (
            (self.q, self.heads, self.width), (self.k, self.groups, self.width), (self.v, self.groups, self.values),
        )  # fmt: skip

    def verify(self) -> None:
        """Raise ValueError naming the field that breaks a rule of this class."""
        read = {heads.input for heads, *_ in self.operands} | ({self.bias} - {None})
        if read != set(range(len(self.inputs))) or len(self.inputs) > MOST_INPUTS:
            raise ValueError(f"inputs: {sorted(map(str, read))} are read of {len(self.inputs)}")
        if len(self.outputs) != 1 or self.outputs[0] not in STORED or {*self.inputs} != {*self.outputs}:
            raise ValueError(f"inputs: they and the one output are not of one dtype of {', '.join(STORED)}")
        if reason := why_not(self.heads, self.groups, self.width, self.values, self.scale):
            raise ValueError(f"heads: {reason}")
        for name, (heads, count, width) in zip("qkv", self.operands, strict=True):
            last = heads.first + (count - 1) * heads.step + width
            if heads.row and not (width <= heads.row <= MOST_ROW and heads.first >= 0 and last <= heads.row):
                raise ValueError(f"{name}: its heads are no parts of a token of {heads.row} elements")
            if not heads.row and (heads.first or heads.step):
                raise ValueError(f"{name}: its heads are no parts of a token")
            if heads.row and count > 1 and heads.step < 1:
                raise ValueError(f"{name}: its heads lie {heads.step} elements apart")

    def to_json(self) -> dict[str, Any]:
        """The form in kernels.json, without a bias where there is none."""
        row = dataclasses.asdict(self)
        return {k: list(v) if isinstance(v, tuple) else v for k, v in row.items() if v is not None}


def why_not(heads: int, groups: int, width: int, values: int, scale: float) -> str:
    """The reason why no kernel runs heads of this number, size and scale; "" where one does."""
    if groups < 1 or heads < 1 or heads % groups or heads > MOST_HEADS:
        return f"{heads} heads of queries cannot share {groups} heads of keys"
    if not 1 <= width <= MOST_WIDTH or not 1 <= values <= MOST_WIDTH:
        return f"A head has {width} elements, and {values} of values, not 1 to {MOST_WIDTH}"
    if not (math.isfinite(scale) and scale > 0):
        return f"The scale of the scores is {scale}, not a number above 0"
    return ""


def pays(keys: int | None, width: int, packed: bool) -> bool:
    """Whether the kernel is faster than ONNX Runtime's. keys: their expected number; unknown ones may be too many.

    packed: queries, keys and values would have to be copied out of one product for ONNX Runtime's operator.
    """
    most = _KEYS_IF_PACKED if packed else _KEYS_IF_APART
    return keys is not None and keys <= max(most, _KEYS_IF_NARROW if width <= _NARROW else 0)
