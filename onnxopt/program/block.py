"""Block: convolutions that read and write parts of shared tensors, one after the other. All tensors are NHWC.

    open -> Split -> one half -> convolutions ... -> Concat with what they computed

Each convolution writes its channels of the Concat's result, and reads channels of a tensor where they are stored:
neither the Concat nor the Split moves anything. What else is in the Concat is copied to its channels first. cuDNN runs
the convolutions, so no program is an epilogue.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from onnxopt.program.convolution import DTYPES, ConvolutionOperation, DenseTile
from onnxopt.program.fields import integer, integers, nested, operand, several
from onnxopt.program.hardware import MAX_SHARED_BYTES
from onnxopt.program.schema import WHOLE_WARPS, Meaning, Record, Rule, Variant, shared

MAX_INPUTS = 64
MAX_STEPS = 24
MAX_CHANNELS = 1 << 20  # of a tensor that steps write, so that a damaged file cannot ask for much memory


@dataclasses.dataclass(frozen=True)
class Part(Record):
    """Channels first to first + channels - 1 of a tensor that has `of` channels."""

    RULES: ClassVar[Sequence[Rule]] = (Rule("channels", "first + channels <= of", "reach beyond the tensor"),)
    tensor: int = integer(0, MAX_INPUTS + MAX_STEPS - 1)
    first: int = integer(0)
    channels: int = integer(1)
    of: int = integer(1)

    @property
    def end(self) -> int:
        return self.first + self.channels


@dataclasses.dataclass(frozen=True)
class BlockStep(ConvolutionOperation):
    """One convolution of a block. w, bias, slope: positions among the block's inputs."""

    JSON: ClassVar = (
        "window", "group", "residual_last", "activation", "activation_value", "transposed", "output_padding",
        "depth_padding", "x", "w", "bias", "residual", "slope", "y",
    )  # fmt: skip
    RULES: ClassVar[Sequence[Rule]] = (
        *ConvolutionOperation.RULES,
        Rule("transposed", "not transposed", "is set in a block"),
        Rule("window", "window.depth is None", "has a depth"),
        Rule("slope", "(slope is not None) == (activation == 'prelu')", "does not go with the activation"),
        Rule("residual_last", "not residual_last or residual is not None", "is set without a residual"),
        Rule("residual", "residual is None or residual.channels == y.channels", "has not the channels of y"),
    )
    x: Part = nested(Part)
    w: int = operand()
    y: Part = nested(Part)
    bias: int | None = operand(optional=True)
    residual: Part | None = nested(Part, optional=True)
    slope: int | None = operand(optional=True)


@dataclasses.dataclass(frozen=True)
class BlockCopy(Record):
    """Channels x of one of the block's inputs, which are copied to y."""

    RULES: ClassVar[Sequence[Rule]] = (Rule("x", "x.channels == y.channels", "has not the channels of y"),)
    x: Part = nested(Part)
    y: Part = nested(Part)


@dataclasses.dataclass(frozen=True)
class Block(Meaning):
    """The meaning of a block.

    inputs, outputs: storage dtypes. channels: of the tensors that steps write: the outputs, then those that stay
    inside. Tensors are numbered: the inputs, then these. The copies come before the steps. Every channel of a tensor
    after the inputs is written by one copy or step, and read by later steps alone.
    """

    KIND: ClassVar = "block"
    INPUTS: ClassVar = (1, MAX_INPUTS)
    OUTPUTS: ClassVar = (1, MAX_STEPS)
    OUTPUT_DTYPES: ClassVar = DTYPES
    RULES: ClassVar[Sequence[Rule]] = (
        Rule("inputs", "all(d == outputs[0] for d in inputs)", "differ from the output's dtype"),
        Rule("outputs", "all(d == outputs[0] for d in outputs)", "differ in dtype"),
        Rule("channels", "len(channels) >= len(outputs)", "are of fewer tensors than there are outputs"),
    )
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    channels: tuple[int, ...] = integers(1, MAX_CHANNELS, max_count=MAX_STEPS)
    steps: tuple[BlockStep, ...] = several(BlockStep, 1, MAX_STEPS)
    copies: tuple[BlockCopy, ...] = several(BlockCopy, 0, MAX_INPUTS, default=())

    @property
    @shared
    def dtype(self) -> str:
        return self.outputs[0]

    def positions(self) -> set[int]:
        parts = [part for step in self.steps for part in (step.x, step.residual) if part is not None]
        parts += [copy.x for copy in self.copies]
        return super().positions() | {part.tensor for part in parts if part.tensor < len(self.inputs)}

    def check(self) -> tuple[str, str] | None:
        written: list[set[int]] = [set() for _ in self.channels]
        for k, copy in enumerate(self.copies):
            if copy.x.tensor >= len(self.inputs):
                return f"copies[{k}].x", "is no part of an input"
            if reason := self._wrong(copy.y, written, writes=True):
                return f"copies[{k}].y", reason
        for k, step in enumerate(self.steps):
            for name, part in (("x", step.x), ("residual", step.residual), ("y", step.y)):
                reason = "" if part is None else self._wrong(part, written, name == "y")
                if reason:
                    return f"steps[{k}].{name}", reason
        short = [k for k, (of, count) in enumerate(zip(written, self.channels, strict=True)) if len(of) != count]
        return ("channels", f"have a tensor {short[0]} that no step writes to the end") if short else None

    def _wrong(self, part: Part, written: list[set[int]], writes: bool) -> str:
        """What is wrong with a part that a step reads, or writes; what it writes is added to `written`."""
        at = part.tensor - len(self.inputs)
        if at >= len(self.channels) or (at < 0 and writes):
            return "is no part of a tensor that steps write" if writes else "is no part of a tensor"
        if at < 0:
            return ""
        if part.of != self.channels[at]:
            return "is not of as many channels as the tensor has"
        of = set(range(part.first, part.end))
        if writes and of & written[at]:
            return "has channels that an earlier step wrote"
        if not writes and not of <= written[at]:
            return "has channels that no earlier step wrote"
        if writes:
            written[at] |= of
        return ""


@dataclasses.dataclass(frozen=True)
class BlockVariant(Variant):
    """An entry point of a step, as DenseConvolutionVariant has them. shared: bytes of a block of threads."""

    KERNEL = Block
    RULES = (
        Rule("tile", "kernel.dtype != 'float32'", "is of a convolution that no kernel of ours runs"),
        WHOLE_WARPS,
        Rule("threads", "threads % (32 * tile.parts) == 0", "are not the warps of whole parts"),
    )
    tile: DenseTile = nested(DenseTile)
    step: int = integer(0, MAX_STEPS - 1, default=0)
    shared: int = integer(0, MAX_SHARED_BYTES, default=0)
