"""What is known of the elements of a float32 value: how large and how small they are, and what rounding costs them."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import onnx_ir as ir

HIDING = -1e4  # scores of this or less get weights of 0 in every float dtype
_LARGEST = {ir.DataType.FLOAT16: 65504.0, ir.DataType.BFLOAT16: 3.3895313892515355e38}
_UNIT = {ir.DataType.FLOAT16: 2.0**-11, ir.DataType.BFLOAT16: 2.0**-8}  # greatest rounding of a normal number
_MIN_NORMAL = {ir.DataType.FLOAT16: 2.0**-14, ir.DataType.BFLOAT16: 2.0**-126}

_IN_CACHE = 1 << 16  # elements of float32 that are looked at together
_SAMPLE = 1 << 16  # elements that losses and means are computed from


def largest(dtype: ir.DataType) -> float:
    """The largest number of a 16-bit dtype."""
    return _LARGEST[dtype]


def unit(dtype: ir.DataType) -> float:
    """The most that rounding to a 16-bit dtype changes a normal number, relative to it."""
    return _UNIT[dtype]


def min_normal(dtype: ir.DataType) -> float:
    """The least number that a 16-bit dtype holds with all its digits."""
    return _MIN_NORMAL[dtype]


@dataclasses.dataclass(frozen=True)
class Range:
    """The finite elements of a value, over all runs.

    greatest: magnitude. shown: greatest magnitude of those above HIDING. lowest: the lowest element. smallest: least
    magnitude that is not 0, infinity where all are 0. loss: error of rounding to the 16-bit dtype, as a share of the
    2-norm, of the run where it is worst. typical: mean magnitude, of the run where it is least; usual: of the run where
    it is greatest. These are of the elements above HIDING. offset: the norm of the rows by that of what is left behind
    their means, of the run where it is least; infinity where all rows are constant.
    """

    greatest: float
    shown: float
    lowest: float
    smallest: float
    loss: float
    typical: float
    usual: float = 0.0
    offset: float = math.inf

    def merged(self, other: Range) -> Range:
        """The range of both."""
        return Range(
            max(self.greatest, other.greatest),
            max(self.shown, other.shown),
            min(self.lowest, other.lowest),
            min(self.smallest, other.smallest),
            max(self.loss, other.loss),
            min(self.typical, other.typical),
            max(self.usual, other.usual),
            min(self.offset, other.offset),
        )

    def widened(self, other: Range) -> Range:
        """This range with the bounds of both: `other` is of inputs that say nothing of what rounding costs."""
        return dataclasses.replace(
            self,
            greatest=max(self.greatest, other.greatest),
            shown=max(self.shown, other.shown),
            lowest=min(self.lowest, other.lowest),
            smallest=min(self.smallest, other.smallest),
        )


NOTHING = Range(0.0, 0.0, 0.0, math.inf, 0.0, math.inf)


def range_of(array: np.ndarray[Any, Any], dtype: ir.DataType) -> Range:
    """The range of one array of float32. dtype: of 16 bits, for the loss."""
    x = array.reshape(-1)
    lowest, highest = _bounds(x)
    if not math.isfinite(highest - lowest):
        x = x[np.isfinite(x)]
        lowest, highest = _bounds(x)
    if not x.size:
        return NOTHING
    shown = x if lowest > HIDING else x[x > HIDING]
    sample = np.ascontiguousarray(shown[:: 1 + shown.size // _SAMPLE])
    typical = float(np.abs(sample).mean(dtype=np.float64)) if sample.size else math.inf
    return Range(
        greatest=max(-lowest, highest),
        shown=float(np.abs(shown).max(initial=0.0)) if shown is not x else max(-lowest, highest),
        lowest=lowest,
        smallest=lowest if lowest > 0 else -highest if highest < 0 else _smallest(x),
        loss=_loss(sample, dtype),
        typical=typical,
        usual=typical if sample.size else 0.0,
        offset=_offset(array),
    )


def _bounds(x: np.ndarray[Any, Any]) -> tuple[float, float]:
    """The lowest and the highest element; NaN where there is one, infinities where there is no element."""
    return (float(x.min()), float(x.max())) if x.size else (math.inf, -math.inf)


def _smallest(x: np.ndarray[Any, Any]) -> float:
    """The least magnitude of finite elements of float32 that is not 0, infinity where all are 0."""
    least = np.uint32(np.iinfo(np.uint32).max)
    for start in range(0, x.size, _IN_CACHE):
        bits = np.abs(x[start : start + _IN_CACHE]).view(np.uint32)  # of positive numbers in their order
        bits -= 1  # 0 becomes the greatest
        least = min(least, bits.min())
    return float((least + np.uint32(1)).view(np.float32)) if least != np.iinfo(np.uint32).max else math.inf


def rounded(array: np.ndarray[Any, Any], dtype: ir.DataType, *, lowest: float | None = None) -> np.ndarray[Any, Any]:
    """The array in a 16-bit dtype; finite elements stay finite. lowest: finite elements below it become this number."""
    largest = _LARGEST[dtype]
    lower = -largest if lowest is None else max(lowest, -largest)
    if array.size and lower <= array.min() and array.max() <= largest:
        return array.astype(dtype.numpy())
    with np.errstate(over="ignore"):
        clipped = np.where(np.isfinite(array), np.clip(array, lower, largest), array)
        result: np.ndarray[Any, Any] = clipped.astype(dtype.numpy())
    return result


def _offset(array: np.ndarray[Any, Any]) -> float:
    """How much larger the rows are than their deviations. Rows: the last axis, or the sides of an image."""
    if array.ndim < 2 or not array.size:
        return math.inf
    is_image = array.ndim > 3
    rows = array.reshape(array.shape[0] * array.shape[1], -1) if is_image else array.reshape(-1, array.shape[-1])
    rows = rows[:: 1 + array.size // _SAMPLE].astype(np.float64)
    if rows.shape[-1] < 2 or not np.isfinite(rows).all():
        return math.inf
    deviation = _norm(rows - rows.mean(axis=-1, keepdims=True))
    return _norm(rows) / deviation if deviation else math.inf


def _loss(x: np.ndarray[Any, Any], dtype: ir.DataType) -> float:
    exact = x.astype(np.float64)
    norm = _norm(exact)
    if not norm:
        return 0.0
    return _norm(rounded(x, dtype).astype(np.float64) - exact) / norm


def _norm(x: np.ndarray[Any, Any]) -> float:
    """The 2-norm, on one thread: the arrays are small."""
    return math.sqrt(float(np.square(x).sum()))
