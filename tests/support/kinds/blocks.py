"""What a block of convolutions computes by its meaning, in float64."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from cases.convolution import ACTIVATIONS
from onnxopt.program.block import Block, BlockStep, Part


def evaluated(block: Block, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The outputs [N, H, W, C]. Channels that nothing has written are NaN."""
    tensors = [np.asarray(v, np.float64) for v in inputs] + [np.empty(0)] * len(block.channels)

    def read(part: Part) -> np.ndarray:
        assert tensors[part.tensor].shape[-1] == part.of
        return tensors[part.tensor][..., part.first : part.end]

    def write(part: Part, values: np.ndarray) -> None:
        if not tensors[part.tensor].size:
            tensors[part.tensor] = np.full((*values.shape[:-1], part.of), np.nan)
        read(part)[...] = values

    for copy in block.copies:
        write(copy.y, read(copy.x))
    for step in block.steps:
        y = _convolved(step, read(step.x), tensors[step.w])
        y = y if step.bias is None else y + tensors[step.bias]
        residual = 0 if step.residual is None else read(step.residual)
        y = y if step.residual_last else y + residual
        y = _activated(step, y, None if step.slope is None else tensors[step.slope])
        write(step.y, y + residual if step.residual_last else y)
    first = len(block.inputs)
    return tensors[first : first + len(block.outputs)]


def _activated(step: BlockStep, y: np.ndarray, slopes: np.ndarray | None) -> np.ndarray:
    if step.activation in ("prelu", "leaky_relu"):
        return np.where(y < 0, (step.activation_value if slopes is None else slopes) * y, y)
    return y if step.activation == "none" else ACTIVATIONS[step.activation](y)


def _convolved(step: BlockStep, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Of one group, with pads that are stated."""
    window = step.window
    assert step.group == 1 and window.auto_pad == "NOTSET"
    w = w if w.ndim == 4 else w[:, None, None]
    top, left, bottom, right = window.pads
    x = np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)))
    spans = [(kernel - 1) * dilation for kernel, dilation in zip(window.kernel, window.dilations, strict=True)]
    h, width = (x.shape[1 + k] - spans[k] for k in range(2))
    total = 0
    for r, s in itertools.product(*map(range, window.kernel)):
        at, left = r * window.dilations[0], s * window.dilations[1]
        taken = x[:, at : at + h : window.strides[0], left : left + width : window.strides[1]]
        total = total + taken @ w[:, r, s].T
    return np.asarray(total)
