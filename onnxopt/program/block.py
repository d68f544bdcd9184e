"""Block: convolutions that read and write parts of shared tensors, one after the other. All tensors are NHWC.

    open -> Split -> one half -> convolutions ... -> Concat with what they computed

Each convolution writes its channels of the Concat's result, and reads channels of a tensor where they lie: neither the
Concat nor the Split moves anything. The C++ side is custom_ops/program/block.h.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from onnxopt.program.convolution import Convolution

MOST_INPUTS = 64
MOST_STEPS = 24
MOST_CHANNELS = 1 << 20


@dataclasses.dataclass(frozen=True)
class Part:
    """Channels first to first + channels - 1 of a tensor that has `of` channels."""

    tensor: int
    first: int
    channels: int
    of: int

    @property
    def end(self) -> int:
        return self.first + self.channels


@dataclasses.dataclass(frozen=True)
class Step:
    """One convolution of a block.

    convolution: its window, group, activation and residual_last; its operands are x, w, bias and residual in this
    order. w, bias: positions among the block's inputs.
    """

    convolution: Convolution
    x: Part
    w: int
    y: Part
    bias: int | None = None
    residual: Part | None = None

    def to_json(self) -> dict[str, Any]:
        operands = ("inputs", "outputs", "x", "w", "bias", "residual")
        row = {name: value for name, value in self.convolution.to_json().items() if name not in operands}
        row |= {"x": dataclasses.asdict(self.x), "w": self.w}
        if self.bias is not None:
            row["bias"] = self.bias
        if self.residual is not None:
            row["residual"] = dataclasses.asdict(self.residual)
        return row | {"y": dataclasses.asdict(self.y)}


@dataclasses.dataclass(frozen=True)
class Block:
    """The meaning of a block.

    inputs, outputs: storage dtypes. channels: of the tensors that steps write: the outputs, then those that stay
    inside. Tensors are numbered: the inputs, then these. Every channel of a tensor behind the inputs is written by one
    step, and read by later ones alone.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    channels: tuple[int, ...]
    steps: tuple[Step, ...]

    def verify(self) -> None:
        """Raise ValueError naming the field that breaks a rule of this class."""
        if not 1 <= len(self.inputs) <= MOST_INPUTS:
            raise ValueError(f"inputs: {len(self.inputs)}, not 1 to {MOST_INPUTS}")
        if not 1 <= len(self.steps) <= MOST_STEPS:
            raise ValueError(f"steps: {len(self.steps)}, not 1 to {MOST_STEPS}")
        if not 1 <= len(self.outputs) <= len(self.channels) <= MOST_STEPS:
            raise ValueError(f"channels: {len(self.channels)} tensors for {len(self.outputs)} outputs")
        if not all(1 <= c <= MOST_CHANNELS for c in self.channels):
            raise ValueError(f"channels: {self.channels} are not all from 1 to {MOST_CHANNELS}")
        written: list[set[int]] = [set() for _ in self.channels]
        read: set[int] = set()
        for k, step in enumerate(self.steps):
            self._verify_step(step, f"steps[{k}]", written, read)
        if read != set(range(len(self.inputs))):
            raise ValueError(f"inputs: {len(self.inputs)}, of which {len(read)} are read")
        if any(len(of) != count for of, count in zip(written, self.channels, strict=True)):
            raise ValueError("steps: they do not write every channel")

    def _verify_step(self, step: Step, where: str, written: list[set[int]], read: set[int]) -> None:
        step.convolution.verify()
        if {*step.convolution.inputs, *step.convolution.outputs} != {*self.inputs, *self.outputs}:
            raise ValueError(f"{where}: its dtype is not that of all inputs and outputs")
        if step.convolution.transposed or step.convolution.slope is not None:
            raise ValueError(f"{where}: it is transposed or has slopes")
        for at in (step.w, step.bias):
            if at is not None and not 0 <= at < len(self.inputs):
                raise ValueError(f"{where}: w or bias {at} is no input")
        read.update(at for at in (step.w, step.bias) if at is not None)
        for part in (step.x, step.residual):
            if part is None:
                continue
            tensors = len(self.inputs) + len(self.channels)
            if part.first < 0 or part.channels < 1 or part.end > part.of or not 0 <= part.tensor < tensors:
                raise ValueError(f"{where}: {part} is no part of a tensor")
            if part.tensor < len(self.inputs):
                read.add(part.tensor)
            elif part.of != self.channels[part.tensor - len(self.inputs)]:
                raise ValueError(f"{where}: {part} is no part of a tensor")
            elif not set(range(part.first, part.end)) <= written[part.tensor - len(self.inputs)]:
                raise ValueError(f"{where}: {part} is read before it is written")
        self._verify_result(step, where, written)

    def _verify_result(self, step: Step, where: str, written: list[set[int]]) -> None:
        at = step.y.tensor - len(self.inputs)
        if not 0 <= at < len(self.channels) or step.y.first < 0 or not step.y.end <= step.y.of == self.channels[at]:
            raise ValueError(f"{where}: {step.y} is no part of a tensor that steps write")
        if step.residual is not None and step.residual.channels != step.y.channels:
            raise ValueError(f"{where}: the residual has not the channels of y")
        wanted = set(range(step.y.first, step.y.end))
        if not wanted or wanted & written[at]:
            raise ValueError(f"{where}: {step.y} is written twice, or empty")
        written[at] |= wanted

    def to_json(self) -> dict[str, Any]:
        """The form in kernels.json."""
        return {
            "inputs": list(self.inputs),
            "outputs": list(self.outputs),
            "channels": list(self.channels),
            "steps": [step.to_json() for step in self.steps],
        }
