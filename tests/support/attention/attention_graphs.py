"""Attention in onnx's text syntax, with its parts to vary, for the tests of rewriting."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx_ir as ir

from onnxopt.graph.rewrite import Rewritten, rewrite
from tests.support import graphs

WIDTH, HEADS, SIZE = 16, 2, 8


@dataclasses.dataclass(frozen=True)
class Attention:
    """Self-attention of x (batch, length, 16) with 2 heads of 8, and the lines that tests replace.

    scores: from q (B, N, S, H) and kt (B, N, H, T) to `masked`. weights: from `masked` to `p`.
    """

    dims: str = "batch, length"
    inputs: str = ""
    constants: str = ""
    scores: str = "s = MatMul(q, kt)  masked = Mul(s, half)"
    weights: str = "p = Softmax<axis = -1>(masked)"
    bias: bool = True
    keys_from: str = "x"
    size: int = SIZE

    def model(self) -> ir.Model:
        """Names: wq wk wv wo and bq bk bv; values q k v kt masked p a y."""
        rng, width = np.random.default_rng(0), HEADS * self.size
        constants = [f"float half = {{{0.5}}}", "float zero = {0}", f"int64[4] heads = {{0, -1, {HEADS}, {self.size}}}"]
        constants += [f"int64[3] flat = {{0, -1, {width}}}", self.constants]
        lines = []
        for name in "qkv":
            weight = ", ".join(f"{w:.4f}" for w in rng.standard_normal(width * width) * 0.5)
            constants.append(f"float[{width}, {width}] w{name} = {{{weight}}}")
            constants.append(f"float[{width}] b{name} = {{{', '.join(['0.1', '-0.2'] * (width // 2))}}}")
            source = "x" if name == "q" else self.keys_from
            lines.append(f"{name}m = MatMul({source}, w{name})")
            lines.append(f"{name}l = Add({name}m, b{name})" if self.bias else f"{name}l = Identity({name}m)")
            lines.append(f"{name}r = Reshape({name}l, heads) {name} = Transpose<perm = [0, 2, 1, 3]>({name}r)")
        lines += ["kt = Transpose<perm = [0, 1, 3, 2]>(k)", self.scores, self.weights, "a = MatMul(p, v)"]
        lines.append("at = Transpose<perm = [0, 2, 1, 3]>(a)  y = Reshape(at, flat)")
        inputs = f"float[{self.dims}, {width}] x{self.inputs}"
        declared = ", ".join(c for c in constants if c)
        return graphs.graph(inputs, f"float[{self.dims}, {width}] y", "\n".join(lines), constants=declared)


def rewritten(model: ir.Model, folder: Path, **options: object) -> tuple[ir.Model, Rewritten]:
    """A rewritten copy, and what was done."""
    copy = model.clone()
    return copy, rewrite(copy, folder, **options)  # type: ignore[arg-type]


def ops(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def agree(model: ir.Model, other: ir.Model, feeds: dict[str, np.ndarray], tolerance: float = 1e-5) -> None:
    """Both give the same outputs in ONNX Runtime, the first without any optimization."""
    for expected, actual in zip(graphs.run(model, feeds), graphs.run(other, feeds), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


def tokens(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((*shape, WIDTH)).astype(np.float32)
