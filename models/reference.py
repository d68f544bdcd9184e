"""The reference outputs of a model, and the limits for others, for benchmarks and compatibility tests."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime as ort

import models
from onnxopt.verification.compare import Limit, compare

Array = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True)
class Reference:
    """The original's outputs for models.feeds(name), by the newest ONNX Runtime on the CPU.

    noise: for each output, how far ORT's own graph optimizations move it, as a multiple of the limit. A vocoder's
    samples move by more than the limit when sums are taken in another order, so nothing can be held to less.
    """

    name: str
    feeds: Mapping[str, Array]
    outputs: tuple[Array, ...]
    noise: tuple[float, ...]

    @classmethod
    def of(cls, name: str) -> Reference:
        """Run the original, with ORT's optimizations and without any."""
        feeds = models.feeds(name)
        levels = (ort.GraphOptimizationLevel.ORT_ENABLE_ALL, ort.GraphOptimizationLevel.ORT_DISABLE_ALL)
        outputs, plain = (_run(name, feeds, level) for level in levels)
        noise = tuple(_excess(name, a, b) for a, b in zip(outputs, plain, strict=True))
        return cls(name, feeds, outputs, noise)

    def worst(self, found: Sequence[Any]) -> float:
        """The largest difference of any output as a multiple of what is allowed; at most 1 agrees.

        Allowed is the limit, or twice the output's own noise where that is more.
        """
        if len(found) != len(self.outputs):
            return float("inf")
        excesses = [
            _excess(self.name, expected, array) / max(1.0, 2 * noise)
            for expected, array, noise in zip(self.outputs, arrays(found), self.noise, strict=True)
        ]
        return max(excesses, default=0.0)


def arrays(outputs: Sequence[Any]) -> tuple[Array, ...]:
    """ORT's outputs as arrays: a sequence of maps (an ai.onnx.ml classifier) becomes one row a map, by sorted key."""
    return tuple(
        np.array([[row[k] for k in sorted(row)] for row in output]) if isinstance(output, list) else output
        for output in outputs
    )


def _run(name: str, feeds: Mapping[str, Array], level: ort.GraphOptimizationLevel) -> tuple[Array, ...]:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = level
    session = ort.InferenceSession(str(models.path(name)), options, providers=["CPUExecutionProvider"])
    return arrays(session.run(None, dict(feeds)))


def _excess(name: str, expected: Array, found: Array) -> float:
    precision = "quantized" if "int8" in name or "qdq" in name else "float16" if "fp16" in name else "float32"
    excess = compare(expected, found, Limit.of(precision, float_decides=True)).excess
    return float("inf") if excess is None else excess
