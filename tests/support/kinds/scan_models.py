"""Scans with elementwise work before and after, fused, beside their exact results."""

from __future__ import annotations

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np

from cases.models import numpy_dtype, text_dtype
from tests.support.kinds import rowwise_models
from tests.support.kinds.rowwise_models import Fused

_EPS32 = 2.0**-24


def is_float(dtype: str) -> bool:
    return "float" in dtype


def cumsum(x: np.ndarray, axis: int, exclusive: int, reverse: int) -> np.ndarray:
    """Running totals in x's dtype, as ONNX's CumSum defines them; integers wrap."""
    x = np.flip(x, axis) if reverse else x
    total = np.cumsum(x, axis, dtype=x.dtype)
    if exclusive:
        zero = np.zeros_like(np.take(total, [0], axis)) if x.shape[axis] else np.take(total, [], axis)
        total = np.concatenate([zero, np.take(total, range(max(x.shape[axis] - 1, 0)), axis)], axis)
    return np.flip(total, axis) if reverse else total


@dataclasses.dataclass(frozen=True)
class Scan:
    """y = CumSum(z) + g and z = x * g + q, where g is the same for every row and q has one element a row."""

    dims: tuple[int, ...]
    axis: int
    dtype: str
    flags: tuple[int, int]
    fused: Fused
    feeds: dict[str, np.ndarray]

    def expected(self) -> dict[str, np.ndarray]:
        """In float64, or in the integers' own dtype."""
        wide = {k: v.astype(np.float64) if is_float(self.dtype) else v for k, v in self.feeds.items()}
        z = wide["x"] * wide["g"] + wide["q"]
        return {"y": cumsum(z, self.axis, *self.flags) + wide["g"], "z": z}

    def limit(self, name: str) -> float:
        """What a result may be off by: some roundings of the sum of all magnitudes, and one to 16 bits."""
        if not is_float(self.dtype):
            return 0.0
        with np.errstate(all="ignore"):
            z = np.nan_to_num(np.abs(self.expected()["z"]), posinf=0.0)
            largest = (z.sum(self.axis) if name == "y" else z).max(initial=1.0) + 1
        eps = float(ml_dtypes.finfo(numpy_dtype(self.dtype)).eps)
        return float(largest * (16 * _EPS32 if eps < 1e-6 else 16 * _EPS32 + eps))


def scan(
    dims: tuple[int, ...], axis: int, dtype: str, exclusive: int = 0, reverse: int = 0, known: bool = True
) -> Scan:
    """known: whether the model says the dims."""
    text = text_dtype(dtype)
    names = [str(d) if known else f"N{k}" for k, d in enumerate(dims)]
    at = axis % len(dims)
    along = [n if k == at else "1" for k, n in enumerate(names)]
    beside = ["1" if k == at else n for k, n in enumerate(names)]
    whole = f"{text}[{','.join(names)}]"
    fused = rowwise_models.fused(
        f"{whole} x, {text}[{','.join(along)}] g, {text}[{','.join(beside)}] q", f"{whole} y, {whole} z",
        f"a = Mul(x, g)  z = Add(a, q)  c = CumSum<exclusive = {exclusive}, reverse = {reverse}>(z, axis)"
        "  y = Add(c, g)",
        constants=f"int64 axis = {{{axis}}}",
    )  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {"x": dims}
    shapes["g"] = tuple(d if k == at else 1 for k, d in enumerate(dims))
    shapes["q"] = tuple(1 if k == at else d for k, d in enumerate(dims))
    rng = np.random.default_rng(sum(dims) + len(dims))
    return Scan(dims, at, dtype, (exclusive, reverse), fused, {k: _draw(rng, dtype, s) for k, s in shapes.items()})


def _draw(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    if is_float(dtype):
        return rng.normal(0, 1, shape).astype(numpy_dtype(dtype))
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, shape, dtype=dtype)


def check(found: np.ndarray, expected: np.ndarray, limit: float) -> None:
    """Infinities and NaN lie at the same places, the rest is as near as `limit`."""
    assert found.shape == expected.shape
    if found.dtype.kind in "iu":
        np.testing.assert_array_equal(found, expected)
        return
    a: Any = found.astype(np.float64)
    np.testing.assert_allclose(a, expected, rtol=0, atol=limit)
