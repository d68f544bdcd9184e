"""FlashAttention: attention of many queries, whose scores stay on the multiprocessor.

The C++ side is custom_ops/program/flash_attention.h, the CUDA side cuda_kernels/flash_attention/.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

STORED = ("float16", "bfloat16")
FLOAT8 = "float8e4m3fn"  # of codes; those of integers are stored as float16
LEAST_STEP, MOST_STEP = 2.0**-40, 2.0**40  # of codes; a quotient by it is exact without a branch
MOST_CODE = 255  # minus a zero point
MOST_INPUTS = 5  # kFlashAttentionInputs of custom_ops/program/flash_attention.h
MOST_WIDTH = 256  # elements of a head
MOST_HEADS = 4096
MOST_ROW = 1 << 24  # elements of a token
MOST_WINDOW = 1 << 30  # keys before and after a query's own
LEAST_SCALE = 2.0**-64  # over which a bias of float16 is no infinity of float32
_HOPPER_STEP, _LEAST_HOPPER_WIDTH = 8, 32  # elements of a head


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
class Codes:
    """What becomes of the results y: y / step, rounded half to even, between `low` and `high`, as float16.

    8-bit floats are rounded and limited as such; low and high are None then.
    """

    step: float
    low: float | None = None
    high: float | None = None


@dataclasses.dataclass(frozen=True)
class FlashAttention:
    """The meaning of a kernel: softmax(cap(scale q k^T) + bias) v.

    inputs, outputs: storage dtype names, all the same, save the output of codes. heads: of q. groups: heads of k and v,
    each of which several neighbouring heads of q share. width: elements of a head of q and k. values: of v. cap: of
    scores x, which become cap tanh(x / cap); None without one. The last query stands at the last key, each query before
    it at one key less. before: how many keys in front of its own a query sees; None for all. after: how many behind it;
    0 is causal. codes: what the results, rounded to the inputs' dtype, become; None where they are stored as they are.

    Shapes with B sequences, S queries and T keys:
        q, k, v     as Heads says
        bias        [P, heads or 1, S or 1, T], added to the scores, the same again every P sequences
        sinks       [heads], a score beside those of the keys, whose weight goes to no value
        output      [B, S, heads * values]
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    heads: int
    groups: int
    width: int
    values: int
    scale: float
    q: Heads
    k: Heads
    v: Heads
    bias: int | None = None
    sinks: int | None = None
    cap: float | None = None
    before: int | None = None
    after: int | None = None
    codes: Codes | None = None

    @property
    def operands(self) -> tuple[tuple[Heads, int, int], ...]:
        """q, k and v, with the number of their heads and the elements of a head."""
        return (
            (self.q, self.heads, self.width), (self.k, self.groups, self.width), (self.v, self.groups, self.values),
        )  # fmt: skip

    def verify(self) -> None:
        """Raise ValueError naming the field that breaks a rule of this class."""
        read = {heads.input for heads, *_ in self.operands} | ({self.bias, self.sinks} - {None})
        if read != set(range(len(self.inputs))) or len(self.inputs) > MOST_INPUTS:
            raise ValueError(f"inputs: {sorted(map(str, read))} are read of {len(self.inputs)}")
        stored = {*self.inputs, *(self.outputs if self.codes is None else ())}
        if len(self.outputs) != 1 or len(stored) != 1 or not stored <= {*STORED}:
            raise ValueError(f"inputs: they and the one output are not of one dtype of {', '.join(STORED)}")
        if self.codes is not None:
            self._verify_codes(self.codes)
        if reason := why_not(self.heads, self.groups, self.width, self.values, self.scale):
            raise ValueError(f"heads: {reason}")
        if self.cap is not None and not (math.isfinite(self.cap) and self.cap > 0):
            raise ValueError(f"cap: {self.cap} is not a number above 0")
        if any(n is not None and not 0 <= n <= MOST_WINDOW for n in (self.before, self.after)):
            raise ValueError(f"before, after: {self.before} and {self.after} keys, not 0 to {MOST_WINDOW}")
        for name, (heads, count, width) in zip("qkv", self.operands, strict=True):
            last = heads.first + (count - 1) * heads.step + width
            if heads.row and not (width <= heads.row <= MOST_ROW and heads.first >= 0 and last <= heads.row):
                raise ValueError(f"{name}: its heads are no parts of a token of {heads.row} elements")
            if not heads.row and (heads.first or heads.step):
                raise ValueError(f"{name}: its heads are no parts of a token")
            if heads.row and count > 1 and heads.step < 1:
                raise ValueError(f"{name}: its heads lie {heads.step} elements apart")

    def _verify_codes(self, codes: Codes) -> None:
        if not (math.isfinite(codes.step) and LEAST_STEP <= codes.step <= MOST_STEP):
            raise ValueError(f"codes: the step is {codes.step}, not {LEAST_STEP} to {MOST_STEP}")
        limits = (codes.low, codes.high)
        if self.outputs == (FLOAT8,) and limits == (None, None):
            return
        if self.outputs != ("float16",) or None in limits or self.inputs[0] != "float16":
            raise ValueError(f"codes: {self.outputs[0]} with limits {codes.low} and {codes.high}")
        if not all(float(n).is_integer() and abs(n) <= MOST_CODE for n in limits if n is not None):
            raise ValueError(f"codes: limits {codes.low} and {codes.high} are no codes of 8 bits")

    def to_json(self) -> dict[str, Any]:
        """The form in kernels.json, without what there is none of."""
        row = dataclasses.asdict(self)
        if self.codes is not None:
            row["codes"] = {k: v for k, v in row["codes"].items() if v is not None}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in row.items() if v is not None}


def why_not(heads: int, groups: int, width: int, values: int, scale: float) -> str:
    """The reason why no kernel runs heads of this number, size and scale; "" where one does."""
    if groups < 1 or heads < 1 or heads % groups or heads > MOST_HEADS:
        return f"{heads} heads of queries cannot share {groups} heads of keys"
    if not 1 <= width <= MOST_WIDTH or not 1 <= values <= MOST_WIDTH:
        return f"A head has {width} elements, and {values} of values, not 1 to {MOST_WIDTH}"
    if not (math.isfinite(scale) and scale >= LEAST_SCALE):
        return f"The scale of the scores is {scale}, not a number of {LEAST_SCALE:.1e} or more"
    return ""


def seen(before: int | None = None, after: int | None = None) -> int | None:
    """How many keys a query of local attention sees at most; None where that is not limited."""
    return None if before is None or after is None else before + after + 1


def is_hopper(width: int, values: int) -> bool:
    """Whether Hopper has kernels for heads of these sizes."""
    return width % _HOPPER_STEP == 0 and width >= _LEAST_HOPPER_WIDTH and values == width
