"""Window: how a convolution or a pool slides over the height and width of its input, as ONNX states it."""

from __future__ import annotations

import dataclasses
from typing import Any

AUTO_PADS = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")


@dataclasses.dataclass(frozen=True)
class Window:
    """kernel: (R, S). strides, dilations: (vertical, horizontal). pads: (top, left, bottom, right); zeros where
    auto_pad works the padding out from the shape (SAME_UPPER, SAME_LOWER) or there is none (VALID)."""

    kernel: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    dilations: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    auto_pad: str = "NOTSET"

    def verify(self) -> None:
        """Raise ValueError naming the field that breaks a rule of this class."""
        for name in ("kernel", "strides", "dilations"):
            if min(getattr(self, name)) < 1:
                raise ValueError(f"{name}: {getattr(self, name)} has a number below 1")
        if min(self.pads) < 0:
            raise ValueError(f"pads: {self.pads} has a negative number")
        if self.auto_pad not in AUTO_PADS:
            raise ValueError(f"auto_pad: {self.auto_pad} is not one of {', '.join(AUTO_PADS)}")
        if self.auto_pad != "NOTSET" and any(self.pads):
            raise ValueError(f"pads: {self.pads} beside auto_pad = {self.auto_pad}")

    @property
    def is_pointwise(self) -> bool:
        """Whether every output element reads one position: a 1x1 window without strides and padding."""
        return self.kernel == (1, 1) and self.strides == (1, 1) and not any(self.pads)

    def to_json(self) -> dict[str, Any]:
        """The form in kernels.json."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in dataclasses.asdict(self).items()}
