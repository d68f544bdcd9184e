"""FlashAttention: attention of many queries, whose scores stay on the multiprocessor.

Its operands are views of packed tensors, so it has neither prologue nor epilogue. float32 products use TF32 where ONNX
Runtime's own products do (provider option use_tf32, on by default). The CUDA side is cuda_kernels/flash_attention/.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

from onnxopt.program.dtypes import DTYPES
from onnxopt.program.fields import choice, flag, integer, nested, number, operand
from onnxopt.program.schema import WHOLE_WARPS, Meaning, Record, Rule, Variant, shared

STORED = ("float16", "bfloat16", "float32")
FLOAT8 = "float8e4m3fn"  # of codes; those of integers are stored as float16
HIDDEN_WEIGHTS = ("scores", "all", "once", "window")  # of queries that a bias shows no key
MAX_CODE = 255  # minus a zero point
MAX_WIDTH = 256  # elements of a head
MAX_HEADS = 4096
MAX_ROW = 1 << 24  # elements of a token
MAX_WINDOW = 1 << 30  # keys before and after a query's own
MIN_SCALE = 2.0**-64  # over which a bias of float16 is no infinity of float32
_HOPPER_STEP, _MIN_HOPPER_WIDTH = 8, 32  # elements of a head


@dataclasses.dataclass(frozen=True)
class Heads(Record):
    """Where the heads of q, k or v are stored: in input `input`, whose tokens have `row` elements, [B, tokens, row].

    Head h of a token begins at element `first` + h * `step`. With row = 0, the input is [B, heads, tokens, width].
    """

    RULES: ClassVar = (
        Rule("row", "row > 0 or (first == 0 and step == 0)", "is 0, which goes with no parts of a token"),
    )
    input: int = operand()
    row: int = integer(0, MAX_ROW, default=0)
    first: int = integer(0, MAX_ROW, default=0)
    step: int = integer(0, MAX_ROW, default=0)


@dataclasses.dataclass(frozen=True)
class AttentionCodes(Record):
    """The codes that results y become: y / step, rounded half to even, between `low` and `high`, as float16.

    8-bit floats are rounded and limited as such; low and high are None then.
    """

    RULES: ClassVar = (
        Rule("low", "(low is None) == (high is None)", "is missing beside high, or high beside low"),
        Rule("low", "low is None or low <= high", "is above high"),
    )
    step: float = number(2.0**-40, 2.0**40)  # a quotient by it is exact without a branch
    low: float | None = number(-MAX_CODE, MAX_CODE, whole=True, optional=True)
    high: float | None = number(-MAX_CODE, MAX_CODE, whole=True, optional=True)


@dataclasses.dataclass(frozen=True)
class FlashAttention(Meaning):
    """The meaning of a kernel: softmax(cap(scale q k^T) + bias) v.

    inputs, outputs: storage dtype names, all the same, save the output of codes. heads: of q. groups: heads of k and v,
    each of which several neighbouring heads of q share. width: elements of a head of q and k. values: of v. cap: of
    scores x, which become cap tanh(x / cap); None without one. The last query is at the position of the last key, each
    query before it at one key less. before: how many keys before its own a query sees; None for all. after: how many
    after it; 0 is causal. hidden: what a query weighs that the bias shows no key: keys by their "scores", "all" keys
    alike, alike those that are hidden "once", either by the bias or by being outside of the window, or alike those of
    its "window". codes: those that the results, rounded to the inputs' dtype, become.

    Shapes with B sequences, S queries and T keys:
        q, k, v     as Heads says
        bias        [P, heads or 1, S or 1, T], added to the scores, the same again every P sequences; with hidden
                    "once" [P, heads or 1, 1, T]
        sinks       [heads], a score beside those of the keys, whose weight goes to no value
        output      [B, S, heads * values]
    """

    KIND: ClassVar = "flash_attention"
    INPUTS: ClassVar = (1, 5)
    INPUT_DTYPES: ClassVar = STORED
    OUTPUT_DTYPES: ClassVar = (*STORED, FLOAT8)
    RULES: ClassVar = (
        Rule("inputs", "all(d == inputs[0] for d in inputs)", "differ in dtype"),
        Rule("outputs", "codes is not None or outputs[0] == inputs[0]", "are not of the inputs' dtype, without codes"),
        Rule("codes", f"codes is None or codes.low is not None or outputs[0] == '{FLOAT8}'", "have no limits"),
        Rule(
            "codes",
            "codes is None or codes.low is None or (outputs[0] == 'float16' and inputs[0] == 'float16')",
            "with limits are not float16 of float16",
        ),
        Rule("heads", "heads % groups == 0", "is no multiple of groups"),
        Rule("hidden", "bias is not None or hidden == 'scores'", "goes with a bias"),
        Rule(
            "hidden",
            "hidden == 'scores' or hidden == 'all' or before is not None or after is not None",
            "goes with a window",
        ),
        *(
            rule
            for name, count, width in (("q", "heads", "width"), ("k", "groups", "width"), ("v", "groups", "values"))
            for rule in (
                Rule(f"{name}.step", f"{name}.row == 0 or {count} == 1 or {name}.step > 0", "is 0"),
                Rule(
                    f"{name}.row",
                    f"{name}.row == 0 or {name}.first + ({count} - 1) * {name}.step + {width} <= {name}.row",
                    "does not hold all heads",
                ),
            )
        ),
        Rule("q.row", "q.row > 0", "is 0"),
    )
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    heads: int = integer(1, 4096)
    groups: int = integer(1, 4096)
    width: int = integer(1, 256)
    values: int = integer(1, 256)
    scale: float = number(MIN_SCALE)
    q: Heads = nested(Heads)
    k: Heads = nested(Heads)
    v: Heads = nested(Heads)
    bias: int | None = operand(optional=True)
    sinks: int | None = operand(optional=True)
    cap: float | None = number(0, above=True, optional=True)
    before: int | None = integer(0, MAX_WINDOW, optional=True)
    after: int | None = integer(0, MAX_WINDOW, optional=True)
    hidden: str = choice("HiddenWeights", HIDDEN_WEIGHTS, default="scores")
    codes: AttentionCodes | None = nested(AttentionCodes, optional=True)

    @property
    @shared
    def dtype(self) -> str:
        """Of the inputs."""
        return self.inputs[0]

    @property
    def element_bytes(self) -> int:
        """Of the inputs."""
        return DTYPES[self.dtype].size

    @property
    @shared
    def output(self) -> str:
        return self.outputs[0]

    @property
    def operands(self) -> tuple[tuple[Heads, int, int], ...]:
        """q, k and v, with the number of their heads and the elements of a head."""
        return (
            (self.q, self.heads, self.width), (self.k, self.groups, self.width), (self.v, self.groups, self.values),
        )  # fmt: skip


def why_not(heads: int, groups: int, width: int, values: int, scale: float) -> str:
    """The reason why no kernel runs heads of this number, size and scale; "" where one does."""
    if groups < 1 or heads < 1 or heads % groups or heads > MAX_HEADS:
        return f"{heads} heads of queries cannot share {groups} heads of keys"
    if not 1 <= width <= MAX_WIDTH or not 1 <= values <= MAX_WIDTH:
        return f"A head has {width} elements, and {values} of values, not 1 to {MAX_WIDTH}"
    if not (math.isfinite(scale) and scale >= MIN_SCALE):
        return f"The scale of the scores is {scale}, not a number of {MIN_SCALE:.1e} or more"
    return ""


def seen(before: int | None = None, after: int | None = None) -> int | None:
    """How many keys a query of local attention sees at most; None where that is not limited."""
    return None if before is None or after is None else before + after + 1


def is_hopper(width: int, values: int) -> bool:
    """Whether Hopper has kernels for heads of these sizes."""
    return width % _HOPPER_STEP == 0 and width >= _MIN_HOPPER_WIDTH and values == width


@dataclasses.dataclass(frozen=True)
class FlashWarpgroups(Record):
    """How an entry point for Hopper multiplies: by warpgroups of 64 queries each.

    count: of the warpgroups. copier: one more brings keys and values. in_turn: they ask for products one after the
    other. blocks: that a multiprocessor holds. wave, scores: microseconds that the blocks of a multiprocessor take
    whatever there is to do, and for a million scores; by them the library chooses between entry points.
    """

    count: int = integer(1, 4)
    copier: bool = flag()
    in_turn: bool = flag()
    blocks: int = integer(1, 16)
    wave: float = number(0, above=True)
    scores: float = number(0, above=True)


@dataclasses.dataclass(frozen=True)
class FlashAttentionVariant(Variant):
    """threads / 32 warps of `bands` times 16 queries each, `keys` keys at a time in `stages` places.

    short_rows: takes at most `keys` keys, and one sequence after the other. access: bytes that rows of all tensors are
    aligned to. shared: bytes of shared memory of a block. exact: of float32, whether products keep what TF32 rounds
    off. warpgroups: of an entry point that runs on Hopper alone.
    """

    KERNEL = FlashAttention
    RULES = (
        WHOLE_WARPS,
        Rule("access", "access in (2, 4, 8, 16)", "is no power of 2"),
        Rule("stages", "stages <= 2 or warpgroups is not None", "is above 2"),
        Rule("access", "access == 16 or warpgroups is None", "is not 16"),
        Rule(
            "warpgroups",
            "warpgroups is None or threads == 128 * (warpgroups.count + (1 if warpgroups.copier else 0))",
            "are not those of the block's threads",
        ),
        Rule(
            "warpgroups",
            "warpgroups is None or (kernel.width == kernel.values and kernel.width % 8 == 0)",
            "go with values as wide as keys, a multiple of 8 elements",
        ),
        Rule(
            "warpgroups",
            "warpgroups is None or kernel.cap is None or kernel.bias is None",
            "go with no cap of biased scores",
        ),
        Rule("warpgroups", "warpgroups is None or kernel.dtype != 'float32'", "multiply no float32"),
        Rule("exact", "not exact or kernel.dtype == 'float32'", "goes with float32"),
        *(
            Rule("access", f"kernel.{width} * size(kernel.dtype) % access == 0", "does not divide a head")
            for width in ("width", "values")
        ),
        *(
            Rule("access", f"kernel.{heads}.{field} * size(kernel.dtype) % access == 0", "does not divide a row")
            for heads in "qkv"
            for field in ("row", "first", "step")
        ),
    )
    keys: int = integer(16, 1024, 16, default=64)
    stages: int = integer(1, 4, default=1)
    bands: int = integer(1, 2, default=1)
    short_rows: bool = flag(key="short", default=False)
    access: int = integer(2, 16, default=16)
    shared: int = integer(0, 256 << 10, default=0)
    exact: bool = flag(default=False)
    warpgroups: FlashWarpgroups | None = nested(FlashWarpgroups, optional=True)
