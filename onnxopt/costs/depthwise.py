"""What depthwise kernels take, and which of their entry points is the fastest: the numbers of costs/depthwise.json."""

from __future__ import annotations

from typing import Any

from onnxopt.costs.measured import newest


def table() -> dict[str, Any]:
    """The numbers; the field `how` of the file says what they mean."""
    return newest("depthwise")
