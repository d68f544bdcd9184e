"""The mark of values that the pass made: they lie as [N, H, W, C]. Clones of a model keep it, files do not."""

from __future__ import annotations

import onnx_ir as ir

_MARK = "onnxopt.channels_last"


def mark(value: ir.Value) -> None:
    value.meta[_MARK] = True


def is_channels_last(value: ir.Value | None) -> bool:
    """Whether the layout pass made this value, in channels last."""
    return value is not None and _MARK in value.meta
