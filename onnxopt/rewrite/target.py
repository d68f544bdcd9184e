"""What the runtime that an artifact is made for can do, and which operators attention becomes there."""

from __future__ import annotations

import dataclasses
import re

from onnxopt.errors import UsageError

OLDEST = (1, 21)
_ATTENTION_SINCE = (1, 25)  # ORT's CUDA provider has standard Attention (opset 23) from here on


@dataclasses.dataclass(frozen=True)
class Target:
    """The oldest ONNX Runtime that an artifact has to run on, as (major, minor)."""

    ort_min: tuple[int, int] = OLDEST

    @property
    def standard_attention(self) -> bool:
        return self.ort_min >= _ATTENTION_SINCE

    @classmethod
    def parse(cls, text: str | None) -> Target:
        """The target for "1.25"; the oldest supported one for None. UsageError where it is no release or too old."""
        if text is None:
            return cls()
        match = re.fullmatch(r"(\d+)\.(\d+)(\.\d+)?", text)
        if match is None:
            raise UsageError(f"--ort-min {text}: expected a release of ONNX Runtime, such as 1.25")
        version = (int(match[1]), int(match[2]))
        if version < OLDEST:
            raise UsageError(f"--ort-min {text}: {OLDEST[0]}.{OLDEST[1]} is the oldest that artifacts run on")
        return cls(version)

    def __str__(self) -> str:
        return f"{self.ort_min[0]}.{self.ort_min[1]}"
