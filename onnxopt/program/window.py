"""Window: how a convolution or a pool slides over the height and width of its input, as ONNX states it."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from onnxopt.program.fields import choice, integers
from onnxopt.program.schema import Record, Rule

AUTO_PADS = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")


@dataclasses.dataclass(frozen=True)
class Window(Record):
    """kernel: (R, S). strides, dilations: (vertical, horizontal). pads: (top, left, bottom, right); zeros where
    auto_pad works the padding out from the shape (SAME_UPPER, SAME_LOWER) or there is none (VALID)."""

    RULES: ClassVar = (Rule("pads", "auto_pad == 'NOTSET' or max(pads) == 0", "are not zeros beside auto_pad"),)
    kernel: tuple[int, int] = integers(1, count=2)
    strides: tuple[int, int] = integers(1, count=2, default=(1, 1))
    dilations: tuple[int, int] = integers(1, count=2, default=(1, 1))
    pads: tuple[int, int, int, int] = integers(0, count=4, default=(0, 0, 0, 0))
    auto_pad: str = choice("AutoPad", AUTO_PADS, default="NOTSET")

    @property
    def is_pointwise(self) -> bool:
        """Whether every output element reads one position: a 1x1 window without strides and padding."""
        return self.kernel == (1, 1) and self.strides == (1, 1) and not any(self.pads)
