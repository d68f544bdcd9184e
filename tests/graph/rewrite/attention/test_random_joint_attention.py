"""Random joint attention of two or three streams computes the same once it is rewritten and fused.

`pytest -m exhaustive` runs many more than the others do.
"""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from cases.models import fuse, outline
from onnxopt.fusion import entry_points
from onnxopt.graph.normalize import normalize
from onnxopt.graph.rewrite import rewrite
from onnxopt.kinds.pointwise.kind import POINTWISE
from onnxopt.kinds.rowwise.kind import ROWWISE
from tests.support.graphs import graph, hold, run
from tests.support.kinds.rowwise_models import Fused, session, with_library

SEEDS, MANY, STEP = 24, 600, 50
LIMITS = {"float16": 3e-2, "float": 2e-4}  # of the largest element
LAYER = "{y} = LayerNormalization <axis = -1, epsilon = {epsilon}> ({x}, {w})"
ROOT = (
    "{y}m = Mul ({x}, {x}) {y}r = ReduceMean <keepdims = 1> ({y}m, last) {y}e = Add ({y}r, least) "
    "{y}s = Sqrt ({y}e) {y}d = Div ({x}, {y}s) {y} = Mul ({y}d, {w})"
)
ROTARY = (
    "{y}f = Slice ({x}, n0, half, last) {y}g = Slice ({x}, half, whole, last) {y}n = Neg ({y}g) "
    "{y}c = Concat <axis = -1> ({y}n, {y}f) {y}a = Mul ({x}, {c}) {y}b = Mul ({y}c, {s}) {y} = Add ({y}a, {y}b)"
)


class Joint:
    """One random graph; equal seeds give equal graphs. form: how q, k and v of a stream come from its tokens."""

    def __init__(self, seed: int) -> None:
        self.rng, self.random = random.Random(seed), np.random.default_rng(seed)
        pick = self.rng.choice
        self.dtype = pick(["float16", "float16", "float"])
        self.batch, self.heads, self.size = pick([1, 2, 3]), pick([1, 2, 3]), pick([16, 32, 64])
        self.width = self.heads * self.size
        self.tokens = {x: pick([1, 3, 5, 8, 16]) for x in pick(["ab", "ab", "abd"])}
        self.norm, self.rotary = pick(["", "layer", "root", "root", "either"]), pick(["", "before", "after"])
        self.form, self.cut = pick(["Split", "Slice", "apart"]), pick(["Split", "Slice"])
        self.order = sorted(self.tokens, key=lambda _: self.rng.random())
        self.lines: list[str] = []
        self.arrays: dict[str, np.ndarray] = {"least": np.array(1e-3), "scale": np.array(self.size**-0.5)}
        self.integers = {"heads": [0, 0, self.heads, self.size], "flat": [0, 0, self.width], "last": [-1], "axis": [1]}
        self.integers |= {"n0": [0], "half": [self.size // 2], "whole": [self.size]}
        self.integers |= {f"c{k}": [k * self.width] for k in range(4)}

    def model(self) -> ir.Model:
        angles = np.tile(self.random.standard_normal((sum(self.tokens.values()), self.size // 2)), 2)
        self._tables("", angles)
        ends = np.cumsum([self.tokens[x] for x in self.order])
        heads = {}
        for x, part in zip(self.order, np.split(angles, ends[:-1]), strict=True):
            self._tables(x, part)
            self._projections(x)
            heads |= {(n, x): self._heads(n, x) for n in "qkv"}
        for n in "qkv":
            self.lines.append(f"j{n} = Concat <axis = 2> ({', '.join(heads[n, x] for x in self.order)})")
            rotated = self.rotary == "after" and n != "v"
            self.lines.append(_rotated(f"j{n}", f"t{n}", "") if rotated else f"t{n} = Identity (j{n})")
        self.lines.append("turned = Transpose <perm = [0, 1, 3, 2]> (tk) m = MatMul (tq, turned) s = Mul (m, scale)")
        self.lines.append("p = Softmax <axis = -1> (s) o = MatMul (p, tv) r = Transpose <perm = [0, 2, 1, 3]> (o)")
        self.lines.append("rows = Reshape (r, flat)")
        self._results(ends.tolist())
        return self._graph()

    def feeds(self) -> dict[str, np.ndarray]:
        sizes = {x: (self.batch, n, self.width) for x, n in self.tokens.items()}
        return {x: self.random.standard_normal(size).astype(_numpy(self.dtype)) for x, size in sizes.items()}

    def _tables(self, x: str, angles: np.ndarray) -> None:
        self.arrays |= {f"cos{x}": np.cos(angles), f"sin{x}": np.sin(angles)}

    def _projections(self, x: str) -> None:
        for n in "qkv" if self.form == "apart" else "m":
            columns = self.width * (1 if self.form == "apart" else 3)
            self.arrays |= {f"w{n}{x}": 0.3 * self.random.standard_normal((self.width, columns))}
            self.arrays |= {f"b{n}{x}": self.random.standard_normal(columns)}
            self.lines.append(f"l{n}{x} = MatMul ({x}, w{n}{x}) {n}{x} = Add (l{n}{x}, b{n}{x})")
        if self.form == "Split":
            self.lines.append(f"q{x}, k{x}, v{x} = Split <axis = 2, num_outputs = 3> (m{x})")
        if self.form == "Slice":
            self.lines += [f"{n}{x} = Slice (m{x}, c{k}, c{k + 1}, last)" for k, n in enumerate("qkv")]

    def _heads(self, n: str, x: str) -> str:
        """The name of the heads of a stream, normalized and rotated."""
        name = f"h{n}{x}"
        self.lines.append(f"s{n}{x} = Reshape ({n}{x}, heads) {name} = Transpose <perm = [0, 2, 1, 3]> (s{n}{x})")
        if n == "v":
            return name
        norm = self.rng.choice(["layer", "root"]) if self.norm == "either" else self.norm
        if norm:
            self.arrays[f"g{n}{x}"] = self.random.uniform(0.5, 1.5, self.size)
            text = {"layer": LAYER, "root": ROOT}[norm]
            epsilon = self.rng.choice(["0.00001", "0.001"])
            self.lines.append(text.format(x=name, y=f"n{name}", w=f"g{n}{x}", epsilon=epsilon))
            name = f"n{name}"
        if self.rotary == "before":
            self.lines.append(_rotated(name, f"r{name}", x))
            name = f"r{name}"
        return name

    def _results(self, ends: list[int]) -> None:
        """A product of the rows of each stream."""
        if self.cut == "Split":
            self.integers["sizes"] = [self.tokens[x] for x in self.order]
            self.lines.append(", ".join(f"y{x}" for x in self.order) + " = Split <axis = 1> (rows, sizes)")
        for x, begin, end in zip(self.order, [0, *ends], ends, strict=False):
            if self.cut == "Slice":
                self.integers |= {f"from{x}": [begin], f"to{x}": [end]}
                self.lines.append(f"y{x} = Slice (rows, from{x}, to{x}, axis)")
            self.arrays[f"wo{x}"] = 0.3 * self.random.standard_normal((self.width, self.width))
            self.lines.append(f"out{x} = MatMul (y{x}, wo{x})")

    def _graph(self) -> ir.Model:
        batch = self.rng.choice(["N", str(self.batch)])
        inputs = [f"{self.dtype}[{batch}, {n}, {self.width}] {x}" for x, n in self.tokens.items()]
        inputs += [f"{self.dtype}{list(a.shape) or ''} {name}" for name, a in self.arrays.items()]
        constants = [f"int64[{len(v)}] {name} = {{{', '.join(map(str, v))}}}" for name, v in self.integers.items()]
        outputs = ", ".join(f"{self.dtype}[] out{x}" for x in self.tokens)
        model = graph(", ".join(inputs), outputs, "\n".join(self.lines), constants=", ".join(constants), opset=20)
        hold(model, self.arrays, _numpy(self.dtype))
        return model


def _numpy(dtype: str) -> type:
    return np.float16 if dtype == "float16" else np.float32


def _rotated(x: str, y: str, stream: str) -> str:
    return ROTARY.format(x=x, y=y, c=f"cos{stream}", s=f"sin{stream}")


def _check(seed: int, folder: Path) -> None:
    joint = Joint(seed)
    source, feeds = joint.model(), joint.feeds()
    expected = run(source, feeds)
    folder.mkdir()
    found = normalize(source).model
    rewrite(found, folder, gpu=True)
    plan = fuse(found)
    kernels = (dataclasses.replace(k, cpu=k.kind in (ROWWISE, POINTWISE)) for k in outline(found, plan))
    fused = Fused(plan, entry_points.shared(kernels), b"", ir.to_proto(found).SerializeToString())
    for one in (with_library(fused, folder), session(fused.optimized)):
        for y, exact in zip(one.run(None, feeds), expected, strict=True):
            assert y.shape == exact.shape
            distance = np.abs(y.astype(np.float32) - exact.astype(np.float32)).max()
            assert distance <= LIMITS[joint.dtype] * np.abs(exact.astype(np.float32)).max(), seed


@pytest.mark.usefixtures("library")
def test_random_joint_attention(tmp_path: Path) -> None:
    for seed in range(SEEDS):
        _check(seed, tmp_path / str(seed))


@pytest.mark.exhaustive
@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("first", range(SEEDS, MANY, STEP))
def test_many_more(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + STEP):
        _check(seed, tmp_path / str(seed))
