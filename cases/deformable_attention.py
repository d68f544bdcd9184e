"""Deformable attention: samples of each level's map, weighed and summed, beside its results in float64."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from cases.grid_sample import error, sampled
from cases.models import fused_model, graph, numpy_dtype, text_dtype
from cases.table import Row, Table
from onnxopt.program.dtypes import to_ir


@dataclasses.dataclass(frozen=True)
class Deformable:
    """Deformable attention: value [B, T, heads * channels], locations [B, Q, heads, levels, P, 2], weights [B, Q,
    heads, levels * P]. maps: height and width of each level. form: "stack" of levels and Slices, "concat" of points and
    Splits. tokens: whether the result is [B, Q, heads * channels]. cast: GridSamples in float32 between Casts."""

    maps: tuple[tuple[int, int], ...]
    batch: int = 2
    queries: int = 7
    heads: int = 3
    channels: int = 8
    points: int = 4
    dtype: str = "float32"
    form: str = "stack"
    tokens: bool = True
    cast: bool = False
    before: bool = False
    open: bool = False

    @property
    def stored(self) -> str:
        """The dtype of the result."""
        return self.dtype

    @property
    def largest(self) -> int:
        """The greatest side of a map."""
        return max(max(sides) for sides in self.maps)

    @property
    def ends(self) -> list[int]:
        """Of each map, its first token and the one after its last."""
        return list(itertools.accumulate((h * w for h, w in self.maps), initial=0))

    def inputs(self) -> dict[str, tuple[int, ...]]:
        b, q, m, levels, p = self.batch, self.queries, self.heads, len(self.maps), self.points
        return {
            "value": (b, self.ends[-1], m * self.channels),
            "loc": (b, q, m, levels, p, 2),
            "attention": (b, q, m, levels * p),
        }

    def body(self) -> Iterator[str]:
        to, levels = to_ir(self.dtype).value, len(self.maps)
        yield "value4 = Reshape (value, split_heads)"
        at = "loc"
        if self.before:
            yield "loc1 = Mul (loc, two) loc2 = Sub (loc1, one)"
            at = "loc2"
        if self.form == "concat":
            yield f"{', '.join(f'part{k}' for k in range(levels))} = Split <axis = 1> (value4, lengths)"
            yield f"turned_grid = Transpose <perm = [0, 2, 1, 3, 4, 5]> ({at})"
            yield "all_grids = Reshape (turned_grid, samples)"
        for k in range(levels):
            if self.form == "stack":
                yield f"part{k} = Slice (value4, begin{k}, end{k}, axis1)"
                yield f"of{k} = Gather <axis = 3> ({at}, number{k})"
                yield f"turned{k} = Transpose <perm = [0, 2, 1, 3, 4]> (of{k})"
                yield f"grid{k} = Reshape (turned{k}, grid_shape)"
            else:
                yield f"grid{k} = Slice (all_grids, point{k}, point{k + 1}, axis2)"
            yield f"flat{k} = Reshape (part{k}, flat) planes{k} = Transpose <perm = [0, 2, 1]> (flat{k})"
            data, grid = f"planes{k}", f"grid{k}"
            if self.cast:
                yield f"wide{k} = Cast <to = 1> (planes{k}) wide_grid{k} = Cast <to = 1> (grid{k})"
                data, grid = f"wide{k}", f"wide_grid{k}"
            yield f"map{k} = Reshape ({data}, map_shape{k})"
            result = f"sampled{k}" if self.cast else f"sample{k}"
            yield f"{result} = GridSample (map{k}, {grid})"
            if self.cast:
                yield f"sample{k} = Cast <to = {to}> (sampled{k})"
            if self.form == "stack":
                yield f"stacked{k} = Unsqueeze (sample{k}, minus2)"
        if self.form == "stack":
            yield f"levels = Concat <axis = -2> ({', '.join(f'stacked{k}' for k in range(levels))})"
            yield "samples_ = Reshape (levels, joined)"
        else:
            yield f"samples_ = Concat <axis = -1> ({', '.join(f'sample{k}' for k in range(levels))})"
        yield "turned_weights = Transpose <perm = [0, 2, 1, 3]> (attention)"
        yield "weights = Reshape (turned_weights, weight_shape)"
        yield "weighed = Mul (samples_, weights) summed = ReduceSum <keepdims = 0> (weighed, minus1)"
        if self.tokens:
            yield "by_head = Reshape (summed, head_shape) y = Transpose <perm = [0, 2, 1]> (by_head)"
        else:
            yield "y = Relu (summed)"

    def constants(self) -> str:
        b, q, m, c, p = (-1 if self.open else self.batch), self.queries, self.heads, self.channels, self.points
        n, levels, number = (-1 if self.open else b * m), len(self.maps), text_dtype(self.dtype)
        lists: dict[str, Sequence[int]] = {
            "split_heads": [b, self.ends[-1], m, c], "flat": [0, 0, m * c], "joined": [n, c, q, levels * p],
            "samples": [n, q, levels * p, 2], "grid_shape": [n, q, p, 2], "weight_shape": [n, 1, q, levels * p],
            "head_shape": [b, m * c, q], "lengths": [h * w for h, w in self.maps], "axis1": [1], "axis2": [2],
            "minus1": [-1], "minus2": [-2],
        }  # fmt: skip
        for k, (h, w) in enumerate(self.maps):
            lists |= {f"begin{k}": [self.ends[k]], f"end{k}": [self.ends[k + 1]], f"map_shape{k}": [n, c, h, w]}
        lists |= {f"point{k}": [k * p] for k in range(levels + 1)}
        text = [f"int64[{len(v)}] {name} = {{{', '.join(map(str, v))}}}" for name, v in lists.items()]
        text += [f"int64 number{k} = {{{k}}}" for k in range(levels)]
        for name, value in (("one", 1.0), ("two", 2.0)):
            stored = np.array(value, numpy_dtype(self.dtype))  # onnx's text has the bits of 16-bit floats
            text.append(f"{number} {name} = {{{value if number == 'float' else stored.view(np.uint16)}}}")
        return ", ".join(text)

    def model(self) -> onnx.ModelProto:
        inputs = []
        for name, shape in self.inputs().items():
            dims = ["B" if self.open else shape[0], *shape[1:]]
            inputs.append(f"{text_dtype(self.dtype)}[{', '.join(map(str, dims))}] {name}")
        return ir.to_proto(
            graph(", ".join(inputs), f"{text_dtype(self.dtype)}[] y", " ".join(self.body()),
                  constants=self.constants(), opset=22)
        )  # fmt: skip

    def feeds(self, seed: int = 0) -> dict[str, np.ndarray]:
        rng = np.random.default_rng([seed, self.batch, self.queries, *self.ends])
        of = {name: rng.standard_normal(shape) for name, shape in self.inputs().items()}
        of["loc"] = rng.uniform(-0.1, 1.1, of["loc"].shape) if self.before else rng.uniform(-1.2, 1.2, of["loc"].shape)
        return {name: array.astype(numpy_dtype(self.dtype)) for name, array in of.items()}

    def expected(self, feeds: dict[str, np.ndarray]) -> np.ndarray:
        of = {name: np.asarray(array).astype(np.float64) for name, array in feeds.items()}
        m, c, p = self.heads, self.channels, self.points
        batch, queries = of["loc"].shape[:2]
        value = of["value"].reshape(batch, -1, m, c)
        loc = of["loc"] * 2 - 1 if self.before else of["loc"]
        y = np.zeros((batch, m, c, queries))
        for k, (h, w) in enumerate(self.maps):
            part = value[:, self.ends[k] : self.ends[k + 1]]
            data = part.transpose(0, 2, 3, 1).reshape(batch * m, c, h, w)
            grid = loc[:, :, :, k].transpose(0, 2, 1, 3, 4).reshape(batch * m, queries, p, 2)
            sample = sampled(data, grid, "linear", "zeros", False).reshape(batch, m, c, queries, p)
            weights = of["attention"][..., k * p : (k + 1) * p].transpose(0, 2, 1, 3)
            y += (sample * weights[:, :, None]).sum(-1)
        if self.tokens:
            return y.reshape(batch, m * c, queries).transpose(0, 2, 1)
        return np.maximum(y.reshape(batch * m, c, queries), 0)


_LEVELS = ((5, 4), (3, 2), (1, 2))
_DEFORMABLE = (
    Deformable(_LEVELS),
    Deformable(_LEVELS, dtype="float16", channels=16, cast=True, before=True),
    Deformable(_LEVELS, form="concat", channels=5),
    Deformable(_LEVELS, form="concat", dtype="bfloat16", batch=1, heads=1),
    Deformable(_LEVELS[:1], dtype="float16", heads=2, channels=32),
    Deformable(_LEVELS, tokens=False, channels=3),
    Deformable(_LEVELS, open=True, batch=3, points=1),
    Deformable(_LEVELS, open=True, dtype="float16", cast=True, before=True, form="concat"),
)


def _random_cases() -> Iterator[Deformable]:
    """Always the same ones."""
    rng = np.random.default_rng(4)

    def one(*of: Any) -> Any:
        return of[int(rng.integers(len(of)))]

    for _ in range(40):
        maps = tuple((int(h), int(w)) for h, w in rng.integers(1, 8, (int(rng.integers(1, 5)), 2)))
        yield Deformable(
            maps, int(rng.integers(1, 4)), int(rng.integers(1, 9)), int(rng.integers(1, 5)), one(1, 3, 4, 8, 24),
            int(rng.integers(1, 5)), one("float32", "float16", "bfloat16"), one("stack", "concat"),
            bool(rng.integers(2)), bool(rng.integers(2)), bool(rng.integers(2)), bool(rng.integers(2)),
        )  # fmt: skip


TABLE = Table(
    "grid_sample",
    (
        Row("deformable attention", _DEFORMABLE, ("w8", "w4", "w1")),
        Row("random deformable attention", tuple(_random_cases()), exhaustive=True),
        Row(
            "large deformable attention",
            (
                Deformable(((80, 80), (40, 40), (20, 20)), 8, 300, 8, 32, dtype="float16", cast=True, before=True),
                Deformable(((33, 47), (17, 23)), 3, 101, 5, 24, dtype="float32"),
            ),
            gpu=True,
        ),
    ),
    lambda case: fused_model(case.model()),
    error,
    emulated="sessions",
    damaged={"deformable_attention": (Deformable(_LEVELS, dtype="float16", before=True),)},
)
