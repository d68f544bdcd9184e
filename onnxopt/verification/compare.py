"""Compare one output of two models: how far apart they are, in the figures people ask for, and whether that is allowed.

A float output passes where every element satisfies |a - b| <= limit * (rms(reference) + |reference|), NaNs and
infinities stand in the same places, and dtype and shape agree. The scale is the output's own magnitude, so a limit
means the same for logits of 40 and for probabilities of 1e-4. The limit follows the *model's* coarsest dtype: a float32
output of a float16 model carries float16's rounding. An integer or bool output that floats decide (ArgMax, a
comparison, quantization) passes where nearly all elements agree; one that no float reaches must be equal.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import ml_dtypes
import numpy as np
import pydantic

Array = np.ndarray[Any, Any]

# Rounding differs wherever operations are reordered or an intermediate keeps more bits; errors then grow with depth.
# These limits leave room for some hundred layers: 2^10 ulp for float32, 2^6 for the 16-bit dtypes held against their
# own grid.
QUANTIZED = "quantized"
LIMITS = {"float64": 1e-9, "float32": 1e-4, "float16": 2e-2, "bfloat16": 6e-2, QUANTIZED: 6e-2}
AGREEMENT = 0.99  # share of equal elements for integers that floats decide
_NotStored = Annotated[float | None, pydantic.Field(exclude=True)]  # in no manifest: schema 3 has no such fields


@dataclasses.dataclass(frozen=True)
class Limit:
    """What may differ: `relative` to the output's magnitude for floats, share of equal elements for the rest."""

    relative: float
    agreement: float = 1.0

    @classmethod
    def of(cls, precision: str, *, float_decides: bool) -> Limit:
        """The limit for a model whose coarsest dtype is `precision`, a key of LIMITS."""
        return cls(LIMITS[precision], AGREEMENT if float_decides else 1.0)


@dataclasses.dataclass(frozen=True)
class Difference:
    """One output compared with its reference.

    max_rel and mean_rel count elements of at least a thousandth of the reference's rms: below that they say nothing.
    mean_abs, mean_rel: None for what is no float, and where the difference was read from a manifest.
    ulp: greatest distance in representable values of the output's dtype, None for integers. cosine: None where a vector
    is zero or the dtype is not float. argmax: share of rows (last axis) whose greatest element is the same, None
    without rows. agreement: share of elements that are equal (NaN equals NaN).
    excess: the worst element's difference over what is allowed; None where the two cannot be compared, and `reason`
    says why. It passes up to 1.
    """

    dtype: str
    shape: tuple[int, ...]
    max_abs: float = 0.0
    max_rel: float = 0.0
    ulp: int | None = None
    cosine: float | None = None
    argmax: float | None = None
    agreement: float = 1.0
    same_nan: bool = True
    same_inf: bool = True
    excess: float | None = 0.0
    reason: str = ""
    mean_abs: _NotStored = dataclasses.field(default=None, compare=False)
    mean_rel: _NotStored = dataclasses.field(default=None, compare=False)

    @property
    def ok(self) -> bool:
        return self.excess is not None and self.excess <= 1.0


def compare(reference: Array, actual: Array, limit: Limit) -> Difference:
    """How `actual` differs from `reference`. Any dtypes and shapes: what cannot be compared is a failed Difference."""
    dtype, shape = str(reference.dtype), tuple(int(d) for d in reference.shape)
    if reference.dtype != actual.dtype:
        return Difference(dtype, shape, excess=None, reason=f"dtype is {actual.dtype}, not {dtype}")
    if reference.shape != actual.shape:
        return Difference(dtype, shape, excess=None, reason=f"shape is {list(actual.shape)}, not {list(shape)}")
    if reference.size == 0:
        return Difference(dtype, shape)
    if is_float(reference):
        return _compare_floats(reference, actual, limit)
    equal = float(np.mean(reference == actual))
    allowed = 1.0 - limit.agreement
    excess = 0.0 if equal == 1.0 else (1.0 - equal) / allowed if allowed else None
    reason = "" if excess is not None and excess <= 1.0 else f"{1 - equal:.3%} of the elements differ"
    max_abs = 0.0
    if reference.dtype.kind in "iu":
        max_abs = float(np.max(np.abs(reference.astype(np.float64) - actual.astype(np.float64))))
    return Difference(dtype, shape, max_abs=max_abs, agreement=equal, excess=excess, reason=reason)


def _compare_floats(reference: Array, actual: Array, limit: Limit) -> Difference:
    a, b = reference.astype(np.float64).ravel(), actual.astype(np.float64).ravel()
    finite = np.isfinite(a) & np.isfinite(b)
    same_nan = bool(np.array_equal(np.isnan(a), np.isnan(b)))
    a_inf, b_inf = np.isinf(a), np.isinf(b)
    same_inf = bool(np.array_equal(a_inf, b_inf) and np.array_equal(a[a_inf], b[b_inf]))
    x, y = (a, b) if finite.all() else (a[finite], b[finite])
    # Only ratios count from here on, so everything is divided by the greatest element: no square or sum can overflow.
    greatest = float(max(np.abs(x).max(initial=0.0), np.abs(y).max(initial=0.0))) or 1.0
    x, y = x / greatest, y / greatest
    difference, magnitude = np.abs(x - y), np.abs(x)
    rms = float(np.sqrt(_mean(np.square(x))))
    counted = magnitude >= max(rms * 1e-3, np.finfo(np.float64).tiny)
    relative = difference[counted] / magnitude[counted]
    # An all-zero reference has no magnitude of its own: the limit is absolute there.
    allowed = limit.relative * (magnitude + (rms or 1.0 / greatest))
    differs = difference > 0
    with np.errstate(divide="ignore"):  # a limit of 0 allows nothing
        excess: float | None = _finite((difference[differs] / allowed[differs]).max(initial=0.0))
    with np.errstate(over="ignore"):
        max_abs, rms = _finite(np.float64(difference.max(initial=0.0)) * greatest), _finite(np.float64(rms) * greatest)
    reason = "" if excess is not None and excess <= 1.0 else f"off by up to {max_abs:.3g} where the rms is {rms:.3g}"
    if not (same_nan and same_inf):
        excess, reason = None, "NaN or infinity in different places"
    return Difference(
        dtype=str(reference.dtype),
        shape=tuple(int(d) for d in reference.shape),
        max_abs=max_abs,
        max_rel=float(relative.max(initial=0.0)),
        ulp=_ulp(reference.ravel()[finite], actual.ravel()[finite]),
        cosine=_cosine(x, y),
        argmax=_argmax_agreement(reference, actual),
        agreement=float(np.mean((a == b) | (np.isnan(a) & np.isnan(b)))),
        same_nan=same_nan,
        same_inf=same_inf,
        excess=excess,
        reason=reason,
        mean_abs=_finite(_mean(difference) * greatest),
        mean_rel=_mean(relative),
    )


def _mean(x: Array) -> float:
    return float(np.mean(x)) if x.size else 0.0


def relative_to_limit(reference: Array, actual: Array, limit: Limit) -> Array:
    """How far each element is from the reference's, as a multiple of the limit, in descending order.

    Of floats of one shape; elements that are NaN or infinite are left out.
    """
    finite = np.isfinite(reference.astype(np.float64)) & np.isfinite(actual.astype(np.float64))
    return np.sort(excess_of(reference[finite], actual[finite], limit))[::-1]


def excess_of(reference: Array, actual: Array, limit: Limit) -> Array:
    """How far each element is from the reference's, as a multiple of the limit; of floats of one shape.

    Infinite where one of the two alone is finite, or both are infinite with other signs.
    """
    a, b = reference.astype(np.float64), actual.astype(np.float64)
    finite = np.isfinite(a) & np.isfinite(b)
    x, y = np.where(finite, a, 0.0), np.where(finite, b, 0.0)
    greatest = float(max(np.abs(x).max(initial=0.0), np.abs(y).max(initial=0.0))) or 1.0
    x, y = x / greatest, y / greatest
    rms = float(np.sqrt(np.sum(np.square(x)) / max(np.count_nonzero(finite), 1)))
    excess = np.abs(x - y) / (limit.relative * (np.abs(x) + (rms or 1.0 / greatest)))
    return np.where(finite | (a == b) | (np.isnan(a) & np.isnan(b)), excess, np.inf)


def flushed(array: Array) -> Array:
    """The array with 0 for what is a denormal or little more, as kernels may take it; others as they are."""
    if not is_float(array):
        return array
    tiny = 64 * float(ml_dtypes.finfo(array.dtype).smallest_normal)
    return np.where(np.abs(array) < tiny, array.dtype.type(0), array)


def _finite(value: Any) -> float:
    """JSON has no infinity; a figure that overflows float64 becomes the greatest one."""
    return float(np.nan_to_num(value))


def is_float(array: Array) -> bool:
    """Whether the dtype is a float, ml_dtypes' bfloat16 included."""
    return array.dtype.kind == "f" or str(array.dtype) == "bfloat16"


def _ulp(a: Array, b: Array) -> int:
    """Greatest distance in representable values; both finite."""
    if not a.size:
        return 0
    signed = np.dtype(f"i{a.dtype.itemsize}")

    def order(x: Array) -> Array:  # sign and magnitude to two's complement, so that neighbours differ by 1
        bits = np.ascontiguousarray(x).view(signed)
        return np.where(bits < 0, np.iinfo(signed).min - bits, bits)

    left, right = order(a), order(b)
    return int(np.max(np.maximum(left, right).astype(np.uint64) - np.minimum(left, right).astype(np.uint64)))


def _cosine(x: Array, y: Array) -> float | None:
    norms = norm(x) * norm(y)
    return max(-1.0, min(1.0, float(np.sum(x * y)) / norms)) if norms else None


def norm(x: Array) -> float:
    """The root of the sum of squares, without BLAS, whose threads wait for each other beside ONNX Runtime's."""
    return float(np.sqrt(np.sum(np.square(x))))


def _argmax_agreement(reference: Array, actual: Array) -> float | None:
    if reference.ndim == 0 or reference.shape[-1] < 2:
        return None
    return float(np.mean(np.argmax(reference, axis=-1) == np.argmax(actual, axis=-1)))
