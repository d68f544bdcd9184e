"""Window: how a convolution or a pool slides over its input, as ONNX states it."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from onnxopt.program.fields import choice, integer, integers, nested
from onnxopt.program.schema import Record, Rule

AUTO_PADS = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")


@dataclasses.dataclass(frozen=True)
class Depth(Record):
    """How a window slides over the depth of a volume. front, back: planes of padding."""

    kernel: int = integer(1)
    stride: int = integer(1, default=1)
    dilation: int = integer(1, default=1)
    front: int = integer(0, default=0)
    back: int = integer(0, default=0)

    @property
    def is_pointwise(self) -> bool:
        """Whether every plane of the output reads one plane, its own."""
        return (self.kernel, self.stride, self.front, self.back) == (1, 1, 0, 0)


@dataclasses.dataclass(frozen=True)
class Window(Record):
    """kernel: (R, S). strides, dilations: (vertical, horizontal). pads: (top, left, bottom, right); zeros where
    auto_pad works the padding out from the shape (SAME_UPPER, SAME_LOWER) or there is none (VALID). depth: of a volume
    [N, D, H, W, C]; None for images, and where each plane of a volume is an image of its own."""

    RULES: ClassVar = (
        Rule("pads", "auto_pad == 'NOTSET' or max(pads) == 0", "are not zeros beside auto_pad"),
        Rule(
            "depth",
            "depth is None or auto_pad == 'NOTSET' or (depth.front == 0 and depth.back == 0)",
            "has padding beside auto_pad",
        ),
    )
    kernel: tuple[int, int] = integers(1, count=2)
    strides: tuple[int, int] = integers(1, count=2, default=(1, 1))
    dilations: tuple[int, int] = integers(1, count=2, default=(1, 1))
    pads: tuple[int, int, int, int] = integers(0, count=4, default=(0, 0, 0, 0))
    auto_pad: str = choice("AutoPad", AUTO_PADS, default="NOTSET")
    depth: Depth | None = nested(Depth, optional=True)

    @property
    def is_pointwise(self) -> bool:
        """Whether every output element reads one position: a 1x1 window without strides and padding."""
        plane = self.kernel == (1, 1) and self.strides == (1, 1) and not any(self.pads)
        return plane and self.depth is None
