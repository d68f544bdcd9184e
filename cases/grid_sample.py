"""Samples of maps, with views, weights and sums around them, beside their results in float64."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from cases.models import fused_model, graph, numpy_dtype, text_dtype
from cases.table import INF, NAN, Row, Table
from onnxopt.program.dtypes import to_ir

ALPHA = -0.75  # of cubic convolution
BEFORE = {  # of the grid, as onnx text: s is a scalar, k has one element a coordinate
    "": "",
    "scale": "g1 = Mul (g, s) g2 = Add (g1, k)",
}
AFTER = {  # c has one element a channel, r is of the result's shape, m a scalar
    "": "",
    "relu": "y = Relu (z)",
    "affine": "z1 = Mul (z, c) z2 = Add (z1, r) y = Tanh (z2)",
}


@dataclasses.dataclass(frozen=True)
class Case:
    """data: [N, C, *S]. size: So. grid_dtype: "" for that of the data. form: "plain"; "last" (data and result with
    channels last), "data last" or "result last"; "cast" (float32 between Casts), "widened" (float32 after Casts);
    "sum" and "weighed" (over the last of So), with "kept" dims. open: whether the model states no sizes. spread: of
    coordinates from 0."""

    data: tuple[int, ...]
    size: tuple[int, ...]
    mode: str = "linear"
    padding: str = "zeros"
    align: bool = False
    dtype: str = "float32"
    grid_dtype: str = ""
    form: str = "plain"
    before: str = ""
    after: str = ""
    open: bool = True
    spread: float = 1.5

    @property
    def stored(self) -> str:
        """The dtype of the result."""
        return "float32" if self.form == "widened" else self.dtype

    @property
    def dims(self) -> int:
        return len(self.size)

    @property
    def largest(self) -> int:
        """The greatest side of a map."""
        return max(self.data[2:])

    @property
    def samples(self) -> tuple[int, ...]:
        return (*self.data[:2], *self.size)

    @property
    def is_last(self) -> bool:
        return self.form in ("last", "result last")

    @property
    def result(self) -> tuple[int, ...]:
        shape = self.samples
        if self.form in ("sum", "weighed"):
            shape = shape[:-1]
        elif self.form.startswith("kept"):
            shape = (*shape[:-1], 1)
        return (shape[0], *shape[2:], shape[1]) if self.is_last else shape

    def inputs(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """dtype and shape of each that the model reads."""
        grid = self.grid_dtype or self.dtype
        n, c, *s = self.data
        every = {
            "x": (self.dtype, (n, *s, c) if self.form in ("last", "data last") else self.data),
            "g": (grid, (n, *self.size, self.dims)),
            "w": (self.dtype, (n, 1, *self.size)),
            "s": (grid, ()),
            "k": (grid, (self.dims,)),
            "c": (self.stored, (c,) if self.is_last else (c, *[1] * (len(self.result) - 2))),
            "r": (self.stored, self.result),
        }
        return {name: info for name, info in every.items() if name in ("x", "g") or self._reads(name)}

    def _reads(self, name: str) -> bool:
        return f", {name})" in self.body()

    def body(self) -> str:
        grid, back = ("g2" if self.before else "g"), f"{(0, *range(2, self.dims + 2), 1)}"
        data, text = "x", BEFORE[self.before]
        if self.form in ("last", "data last"):
            order = [0, self.dims + 1, *range(1, self.dims + 1)]
            text, data = f"{text} t = Transpose <perm = {order}> (x)", "t"
        if self.form in ("cast", "widened"):
            text = f"{text} xw = Cast <to = 1> (x) gw = Cast <to = 1> ({grid})"
            data, grid = "xw", "gw"
        named = f'mode = "{self.mode}", padding_mode = "{self.padding}", align_corners = {int(self.align)}'
        text += f" v0 = GridSample <{named}> ({data}, {grid})"
        last = "v0"
        if self.form == "cast":
            text, last = f"{text} v1 = Cast <to = {to_ir(self.dtype).value}> (v0)", "v1"
        if self.form in ("weighed", "kept weighed"):
            text, last = f"{text} v1 = Mul (v0, w)", "v1"
        if "weighed" in self.form or "sum" in self.form:
            text, last = f"{text} v2 = ReduceSum <keepdims = {int('kept' in self.form)}> ({last}, last)", "v2"
        if self.is_last:
            text, last = f"{text} v3 = Transpose <perm = {back.replace('(', '[').replace(')', ']')}> ({last})", "v3"
        name = "z" if self.after else "y"
        head, found, tail = text.rpartition(f" {last} = ")
        return f"{head} {name} = {tail} {AFTER[self.after]}" if found else text

    def model(self) -> onnx.ModelProto:
        inputs = []
        for name, (dtype, shape) in self.inputs().items():
            sizes = [f"{name}{k}" if self.open and name in "xgwr" else d for k, d in enumerate(shape)]
            if name in "gwr":
                sizes[:1] = ["x0"] if self.open else sizes[:1]
            if name == "g":
                sizes[-1] = self.dims
            if self.open and name == "w":  # weights are broadcast along their second dim alone
                sizes = ["x0", 1, *(f"g{k + 1}" for k in range(self.dims))]
            if self.open and name == "x" and self.after == "affine":
                sizes[-1 if self.form in ("last", "data last") else 1] = self.data[1]
            if self.open and name == "r":
                of = ["x0", self.data[1], *(f"g{k + 1}" for k in range(len(self.result) - 2))]
                sizes = [of[0], *of[2:], of[1]] if self.is_last else of
            stated = f"[{', '.join(map(str, sizes))}]" if sizes else ""
            inputs.append(f"{text_dtype(dtype)}{stated} {name}")
        constants = "int64[1] last = {-1}"
        return ir.to_proto(
            graph(", ".join(inputs), f"{text_dtype(self.stored)}[] y", self.body(), constants=constants, opset=22)
        )

    def feeds(self, seed: int = 0) -> dict[str, np.ndarray]:
        rng = np.random.default_rng([seed, *self.data, *self.size])
        drawn = {}
        for name, (dtype, shape) in self.inputs().items():
            values = rng.uniform(-self.spread, self.spread, shape) if name == "g" else rng.standard_normal(shape)
            if name in "sk":
                values = values / 8 + (name == "s")
            drawn[name] = np.asarray(values).astype(numpy_dtype(dtype))
        return drawn

    def expected(self, feeds: dict[str, np.ndarray]) -> np.ndarray:
        of = {name: np.asarray(array).astype(np.float64) for name, array in feeds.items()}
        x, grid = of["x"], of["g"]
        if self.form in ("last", "data last"):
            x = np.moveaxis(x, -1, 1)
        if self.before:
            grid = grid * of["s"] + of["k"]
        y = sampled(x, grid, self.mode, self.padding, self.align)
        y = y * of["w"] if "weighed" in self.form else y
        if "weighed" in self.form or "sum" in self.form:
            y = y.sum(-1, keepdims="kept" in self.form)
        if self.is_last:
            y = np.moveaxis(y, 1, -1)
        if self.after == "relu":
            y = np.where(y > 0, y, y * 0)
        elif self.after == "affine":
            y = np.tanh(y * of["c"] + of["r"])
        return y


def sampled(x: np.ndarray, grid: np.ndarray, mode: str, padding: str, align: bool) -> np.ndarray:
    """ONNX's GridSample in float64; nearest pixels are those of float32.

    Coordinates that are infinite or not a number are the first edge of a map.
    """
    n, c, *extents = x.shape
    size = grid.shape[1:-1]
    axes = [_taps(grid[..., k], extents[len(extents) - 1 - k], mode, padding, align) for k in range(len(extents))]
    y = np.zeros((n, c, *size))
    if 0 in x.shape:
        return y
    batch = np.arange(n).reshape(n, *[1] * len(size))
    for taps in itertools.product(*(range(len(axis)) for axis in axes)):
        chosen = [axis[k] for axis, k in zip(axes, taps, strict=True)]
        weight = np.prod([w for _, w, _ in chosen], axis=0)
        inside = np.all([i for _, _, i in chosen], axis=0)
        at = tuple(index for index, _, _ in reversed(chosen))
        values = np.moveaxis(x[(batch, slice(None), *at)], -1, 1)
        y += weight[:, None] * np.where(inside[:, None], values, 0)
    return y


def _taps(
    grid: np.ndarray, extent: int, mode: str, padding: str, align: bool
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Indices, weights, and which are inside, of each pixel of an axis that coordinates take."""
    if mode == "nearest":
        grid = grid.astype(np.float32)
    one, half = grid.dtype.type(1), grid.dtype.type(0.5)
    pixel = (grid + one) * half * grid.dtype.type(extent - 1)
    if not align:
        pixel = ((grid + one) * grid.dtype.type(extent) - one) * half
    low, high = (0.0, extent - 1.0) if align else (-0.5, extent - 0.5)
    pixel = np.where(np.abs(pixel) <= 2.0**62, pixel.astype(np.float64), low)
    first = np.rint(pixel) if mode == "nearest" else np.floor(pixel)
    t = pixel - first
    if mode == "nearest":
        weights = [np.ones_like(pixel)]
    elif mode == "linear":
        weights = [1 - t, t]
    else:
        weights, first = [_cubic(d) for d in (t + 1, t, 1 - t, 2 - t)], first - 1
    found = []
    for k, weight in enumerate(weights):
        at = first + k
        if padding == "reflection":
            beyond = np.where(at < low, low - at, at - high)
            times = np.trunc(beyond / (high - low)) if high > low else np.full_like(at, NAN)
            rest, odd = beyond - times * (high - low), times % 2 != 0
            turned = np.where((at < low) != odd, low + rest, high - rest)
            at = np.where((at < low) | (at > high), turned, at)
        inside = (at >= 0) & (at < extent)
        index = np.where(inside, at, np.where(at >= extent, extent - 1, 0)).astype(np.int64)
        if padding == "zeros":
            weight = np.where(inside, weight, 0)
        found.append((index, weight, inside if padding == "zeros" else np.ones_like(inside)))
    return found


def _cubic(d: np.ndarray) -> np.ndarray:
    near = ((ALPHA + 2) * d - (ALPHA + 3)) * d * d + 1
    far = ((ALPHA * d - 5 * ALPHA) * d + 8 * ALPHA) * d - 4 * ALPHA
    return np.where(d <= 1, near, far)


def error(case: Any, _: str, found: np.ndarray, right: np.ndarray) -> float:
    """The largest error as a multiple of the limit."""
    wide = found.astype(np.float64)
    if wide.shape != right.shape or not np.array_equal(np.isnan(wide), np.isnan(right)):
        return INF
    # A coordinate's rounding is a part of a pixel that grows with the map.
    limit = {"float16": 2.0**-10, "bfloat16": 2.0**-7}.get(case.stored, 2.0**-16 * max(1.0, case.largest / 32))
    finite = np.isfinite(right)
    if not np.array_equal(wide[~finite], right[~finite], equal_nan=True):
        return INF
    off = np.abs(wide - right)[finite] / (limit * (1 + np.abs(right[finite])))
    return float(off.max(initial=0.0))


_PAIRS = [(padding, align) for padding in ("zeros", "border", "reflection") for align in (False, True)]
_TWO = tuple(
    Case((2, 5, 6, 7), (4, 9), mode, padding, align, spread=2.5)
    for mode in ("linear", "nearest", "cubic")
    for padding, align in _PAIRS
)
_THREE = tuple(
    Case((2, 3, 4, 5, 6), (3, 2, 5), mode, padding, align)
    for mode in ("linear", "nearest")
    for padding, align in _PAIRS
)
_DTYPES = (
    Case((2, 16, 5, 9), (3, 7), dtype="float16"),
    Case((2, 16, 5, 9), (3, 7), "cubic", "border", dtype="bfloat16"),
    Case((1, 3, 9, 2), (5, 1), dtype="float16", grid_dtype="float32"),
    Case((2, 1, 4, 4), (5, 6), "nearest", "reflection", dtype="float16"),
    Case((2, 2, 4, 4), (5, 6), dtype="float32", grid_dtype="float16"),
    Case((2, 8, 4, 4), (5, 6), dtype="bfloat16", grid_dtype="float32", padding="border"),
    Case((2, 6, 4, 3), (5, 6), dtype="float16", form="cast"),
    Case((2, 6, 4, 3), (5, 6), "nearest", dtype="float16", form="cast"),
    Case((2, 6, 4, 3), (5, 6), dtype="float16", form="widened", after="affine"),
)
_LAYOUTS = tuple(
    Case(data, size, dtype=dtype, form=form, after=after, open=is_open)
    for form in ("last", "data last", "result last")
    for data, size, dtype, after, is_open in (
        ((2, 8, 5, 4), (3, 6), "float16", "", True),
        ((1, 12, 3, 4), (7, 2), "float32", "affine", False),
        ((2, 7, 3, 4), (5, 4), "bfloat16", "relu", True),
        ((1, 4, 2, 3, 4), (2, 3, 2), "float32", "", True),
    )
)
_SUMS = tuple(
    Case((2, 6, 5, 4), (5, 3), form=form, dtype=dtype, open=is_open, after=after)
    for form in ("sum", "weighed", "kept sum", "kept weighed")
    for dtype, is_open, after in (("float32", True, ""), ("float16", False, "relu"))
)
_AROUND = (
    Case((2, 5, 6, 7), (4, 9), before="scale", after="affine"),
    Case((2, 5, 6, 7), (4, 9), before="scale", after="relu", dtype="float16"),
    Case((2, 5, 6, 7), (4, 9), "nearest", before="scale", dtype="float32"),
    Case((2, 4, 3, 4, 5), (2, 3, 4), before="scale", after="affine", dtype="bfloat16"),
)
_EDGES = (
    Case((1, 2, 1, 1), (2, 3), padding="reflection", align=True, spread=4.0),
    Case((1, 2, 1, 1), (2, 3), padding="reflection", spread=4.0),
    Case((1, 2, 1, 5), (2, 3), "cubic", "border", True),
    Case((0, 2, 3, 5), (2, 3)),
    Case((2, 0, 3, 5), (2, 3)),
    Case((2, 3, 3, 5), (0, 3)),
    Case((2, 3, 3, 5), (3, 0), form="sum"),
    Case((2, 3, 4, 5), (2, 3), padding="reflection", spread=50.0),
)
_FAR = tuple(
    Case((1, 2, 3, 4), (3, 3), mode, padding, align)
    for mode in ("linear", "nearest", "cubic")
    for padding, align in _PAIRS
)
FAR = tuple(  # what coordinates of a case of this size become
    ("g", (0, *divmod(k, 3), k % 2), value) for k, value in enumerate((NAN, INF, -INF, 1e20, -1e20, 3e38, 1e5, -3e4))
)


def _random_cases() -> Iterator[Case]:
    """Always the same ones."""
    rng = np.random.default_rng(3)

    def one(*of: Any) -> Any:
        return of[int(rng.integers(len(of)))]

    for _ in range(80):
        dims = one(2, 2, 3)
        data = (int(rng.integers(1, 4)), one(1, 2, 3, 4, 7, 8, 12, 16), *map(int, rng.integers(1, 8, dims)))
        mode = one("linear", "linear", "nearest", *["cubic"] * (dims == 2))
        form = one("plain", "last", "data last", "result last", "cast", "widened", "sum", "weighed", "kept weighed")
        dtype, after = one("float32", "float16", "bfloat16"), one("", "relu", "affine")
        # Not where rounded coordinates would give another pixel, or show in float32.
        before = one("", "scale") if mode != "nearest" and form != "widened" else ""
        size = tuple(map(int, rng.integers(1, 7, dims)))
        yield Case(
            data, size, mode, one("zeros", "border", "reflection"), bool(rng.integers(2)), dtype, "", form, before,
            after, bool(rng.integers(2)), float(rng.uniform(0.8, 3)),
        )  # fmt: skip


_RANDOM = tuple(_random_cases())
DAMAGED = {
    "grid_sample": (Case((2, 4, 6, 7), (4, 9), "cubic", "border", before="scale", after="affine"),),
    "sampled_volume": (Case((2, 4, 3, 4, 5), (2, 3, 4), dtype="float16", form="last"),),
    "kept_sum_of_samples": (Case((2, 4, 6, 7), (4, 9), "nearest", "reflection", True, form="kept weighed"),),
    "turned_samples": (Case((2, 8, 5, 4), (3, 6), form="data last", open=False),),
}
TABLE = Table(
    "grid_sample",
    (
        Row("two dims", _TWO, ("w4",)),
        Row("three dims", _THREE, ("w4",)),
        Row("dtypes", _DTYPES, ("w4",)),
        Row("layouts", _LAYOUTS, ("w8", "w4", "w1")),
        Row("sums", _SUMS),
        Row("around it", _AROUND),
        Row("edges", _EDGES),
        Row("far outside", _FAR, changed=FAR),
        # Each with as many kernels as one process can load.
        *(Row(f"random {k}", _RANDOM[k::2], exhaustive=True) for k in range(2)),
        Row(
            "large",
            (
                Case((8, 64, 128, 128), (128, 128), dtype="float16", padding="border"),
                Case((3, 33, 65, 47), (129, 63), "cubic", "reflection", True),
            ),
            gpu=True,
        ),
    ),
    lambda case: fused_model(case.model()),
    error,
    emulated="sessions",
    damaged=DAMAGED,
)
