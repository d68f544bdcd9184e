"""Random graphs of attention in the layouts of some networks: windows of images, rows and columns of tokens, tokens in
front of the batch. random_attention_graphs.py has the others.
"""

from __future__ import annotations

import numpy as np

from tests.support.attention.attention_building import Building, Case, Dim
from tests.support.attention.random_attention_graphs import Attention


class SequenceFirst(Building):
    """torch's nn.MultiheadAttention, which computes [T, B, C] inside."""

    def made(self) -> Case:
        b: Dim = self.form("batch", "B", 2)
        t: Dim = self.form("tokens", "T", "T", 6)
        n, h = self.form("heads", 2, 4), self.form("size", 8, 16, 20)
        c = n * h
        x = self.input("x", (b, t, c))
        k: Dim = t
        z = x
        if self.chance("cross", 0.3):
            k = "K" if isinstance(t, str) else 9
            z = self.input("z", (b, k, c))
        first = self.turn(x, 1, 0, 2)
        if z == x:
            q, key, v = self._parts(self._linear(first, c, 3 * c), t, b, c, 3)
        else:
            q = self._linear(first, c, c)
            key, v = self._parts(self._linear(self.turn(z, 1, 0, 2), c, 2 * c), k, b, c, 2)
        heads = [self._in_heads(value, d, b, n, h) for value, d in ((q, t), (key, k), (v, k))]
        four = self.chance("four dims")
        if four:
            heads = [self._reshaped(value, b, n, d, h) for value, d in zip(heads, (t, k, k), strict=True)]
        q, key, v = heads
        scaled = self.form("scale", "scores", "queries")
        scale = self.floats(h**-0.5)
        q = self.op("Mul", q, scale) if scaled == "queries" else q
        scores = self.op("MatMul", q, self.turn(key, *((0, 1, 3, 2) if four else (0, 2, 1))))
        scores = self.op("Mul", scores, scale) if scaled == "scores" else scores
        if self.chance("mask"):
            m = self.input("m", (1, k), 9)
            m = self.op("Where", m, self.floats(0.0), self.floats(-float("inf")))
            scores = self.op("Add", scores, m)
        o = self.op("MatMul", self.op("Softmax", scores, axis=-1), v)
        o = self.turn(o, *((2, 0, 1, 3) if four else (1, 0, 2)))
        rows = self.op("Reshape", o, self.ints(-1, c))
        y = self.op("Gemm", rows, self.weight(c, c), self.weight(c), transB=1)
        y = self.turn(self._reshaped(y, t, b, c), 1, 0, 2)
        return self.case(self.op("Add", y, x) if self.chance("residual") else y)

    def _reshaped(self, x: str, *dims: Dim) -> str:
        return self.op("Reshape", x, self.op("Concat", *map(self.count, dims), axis=0))

    def _linear(self, x: str, c: int, width: int) -> str:
        return self.op("Add", self.op("MatMul", x, self.weight(c, width)), self.weight(width))

    def _parts(self, x: str, t: Dim, b: Dim, c: int, count: int) -> list[str]:
        apart = self.op("Unsqueeze", self.reshape(x, t, b, count, c, copied=2), self.ints(0))
        turned = self.op("Squeeze", self.turn(apart, 3, 1, 2, 0, 4), self.ints(-2))
        return self.parts(turned, count)

    def _in_heads(self, x: str, t: Dim, b: Dim, n: int, h: int) -> str:
        joined = self.op("Reshape", x, self.op("Concat", self.count(t), self.ints(-1, h), axis=0))
        return self.turn(joined, 1, 0, 2)


class TokensFirst(Building):
    """XLNet: Einsum of [T, B, C] throughout, with a bias of scores that may come from products of positions."""

    def made(self) -> Case:
        b: Dim = self.form("batch", "B", 2)
        t: Dim = self.form("tokens", "T", 6)
        n, h = self.form("heads", 2, 4), self.form("size", 8, 16)
        c = n * h
        x = self.input("x", (t, b, c))
        q, k, v = (self.op("Einsum", x, self.weight(c, n, h), equation="ibh,hnd->ibnd") for _ in range(3))
        q = self.op("Add", q, self.weight(n, h)) if self.chance("bias of queries") else q
        scores = self.op("Einsum", q, k, equation="ibnd,jbnd->bnij")
        if self.chance("positions", 0.4) and isinstance(t, int):
            of = self.weight(t, n, h)
            scores = self.op("Add", scores, self.op("Einsum", q, of, equation="ibnd,jnd->bnij"))
        scores = self.op("Mul", scores, self.floats(h**-0.5))
        if self.chance("mask"):
            m = self.op("Unsqueeze", self.input("m", (b, t), 9), self.ints(1, 2))
            hidden = self.op("Cast", self.op("Not", m), to=self.onnx_dtype)
            scores = self.op("Sub", scores, self.op("Mul", hidden, self.floats(6e4)))
        o = self.op("Einsum", self.op("Softmax", scores, axis=3), v, equation="bnij,jbnd->ibnd")
        return self.case(self.op("Einsum", o, self.weight(c, n, h), equation="ibnd,hnd->ibh"))


class Windows(Building):
    """Attention within windows of images [I, R, C, W], which are cut out of them and put back.

    With biases of relative positions, as one table or of rows and columns, and masks of shifted windows.
    """

    def made(self) -> Case:
        images: Dim = self.form("batch", "B", 2)
        n, h = self.form("heads", 1, 2, 3), self.form("size", 8, 16, 20)
        rows, columns = self.form("window", (2, 3), (3, 3))
        down, right = self.form("windows", (2, 2), (1, 2))
        w, s = n * h, rows * columns
        x = self.input("x", (images, down * rows, right * columns, w))
        six = self.turn(self.reshape(x, images, down, rows, right, columns, w), 0, 1, 3, 2, 4, 5)
        tokens = self.op("Reshape", six, self.ints(-1, s, w))
        p = self.op("Add", self.op("MatMul", tokens, self.weight(w, 3 * w)), self.weight(3 * w))
        five = self.turn(self.op("Reshape", p, self.ints(-1, s, 3, n, h)), 2, 0, 3, 1, 4)
        kind = self.form("scores", "Swin", "Swin", "ViTDet", "SAM")
        joined = kind in ("ViTDet", "SAM")
        parts = self.op("Reshape", five, self.ints(3, -1, s, h)) if joined else five
        q, k, v = self.parts(parts)
        if joined:
            o = self._rows_and_columns(q, k, v, kind == "SAM", n, h, rows, columns)
            five = self.op("Reshape", o, self.ints(-1, n, rows, columns, h))
            o = self.op("Reshape", self.turn(five, 0, 2, 3, 1, 4), self.ints(-1, rows, columns, w))
        else:
            o = self.turn(self._shifted(q, k, v, n, h, s, down * right), 0, 2, 1, 3)
            o = self.op("Reshape", o, self.ints(-1, s, w))
        y = self.op("MatMul", o, self.weight(w, w))
        y = self.reshape(y, images, down, right, rows, columns, w)
        y = self.turn(y, 0, 1, 3, 2, 4, 5)
        return self.case(self.op("Add", self.reshape(y, images, down * rows, right * columns, w), x), 4)

    def _rows_and_columns(self, q: str, k: str, v: str, sam: bool, n: int, h: int, rows: int, columns: int) -> str:
        s, scale = rows * columns, self.floats(h**-0.5)
        image = self.op("Reshape", q, self.ints(-1, rows, columns, h))
        u = self.op("Einsum", image, self.weight(rows, rows, h), equation="bhwc,hkc->bhwk")
        w = self.op("Einsum", image, self.weight(columns, columns, h), equation="bhwc,wkc->bhwk")
        u, w = self.op("Unsqueeze", u, self.ints(-1)), self.op("Unsqueeze", w, self.ints(3))
        if sam:
            bias = self.op("Reshape", self.op("Add", u, w), self.ints(-1, n, s, s))
            q, k, v = (self.op("Reshape", value, self.ints(-1, n, s, h)) for value in (q, k, v))
            scores = self.op("Mul", self.op("MatMul", q, self.turn(k, 0, 1, 3, 2)), scale)
            return self.op("MatMul", self.op("Softmax", self.op("Add", scores, bias), axis=-1), v)
        scores = self.op("MatMul", self.op("Mul", q, scale), self.turn(k, 0, 2, 1))
        apart = self.op("Reshape", scores, self.ints(-1, rows, columns, rows, columns))
        apart = self.op("Add", self.op("Add", apart, u), w)
        return self.op("MatMul", self.op("Softmax", self.op("Reshape", apart, self.ints(-1, s, s)), axis=-1), v)

    def _shifted(self, q: str, k: str, v: str, n: int, h: int, s: int, windows: int) -> str:
        cosine = self.chance("cosine")
        if cosine:
            q, k = (self._unit(value) for value in (q, k))
        elif self.chance("scale of queries"):
            q = self.op("Mul", q, self.floats(h**-0.5))
        scores = self.op("MatMul", q, self.turn(k, 0, 1, 3, 2))
        scores = self.op("Mul", scores, self.floats(self.rng.uniform(1, 9, (n, 1, 1)))) if cosine else scores
        scores = self.op("Add", scores, self.weight(1, n, s, s, scale=1.0)) if self.chance("bias", 0.8) else scores
        for _ in range(self.form("masks", 0, 1, 1, 2) and 1):
            mask = self.floats(np.where(self.rng.random((1, windows, 1, s, s)) < 0.3, -100.0, 0.0))
            apart = self.op("Reshape", scores, self.ints(-1, windows, n, s, s))
            apart = self.either("Add", apart, mask)
            apart = self.op("Add", apart, mask) if "masks 2" in self.forms else apart
            scores = self.op("Reshape", apart, self.ints(-1, n, s, s))
        return self.op("MatMul", self.op("Softmax", scores, axis=-1), v)

    def _unit(self, x: str) -> str:
        length = self.op("ReduceL2", x, self.ints(-1), keepdims=1)
        return self.op("Div", x, self.op("Max", length, self.floats(1e-3)))


class WindowsApart(Building):
    """Hiera: windows are a dim of their own beside the heads. Queries may be pooled."""

    def made(self) -> Case:
        b: Dim = self.form("batch", "B", 2)
        n, h, windows, s = self.form("heads", 1, 2), self.form("size", 8, 16), self.form("windows", 1, 3), 8
        w = n * h
        x = self.input("x", (b, windows * s, w))
        p = self.op("Add", self.op("MatMul", x, self.weight(w, 3 * w)), self.weight(3 * w))
        six = self.turn(self.op("Reshape", p, self.ints(-1, s, windows, 3, n, h)), 3, 0, 4, 2, 1, 5)
        q, k, v = self.parts(six)
        if self.chance("pooled queries"):
            q = self.op("Reshape", q, self.ints(-1, n, windows, 2, s // 2, h))
            q = self.op("ReduceMax", q, self.ints(3), keepdims=0)
            s //= 2
        way = self.form("scale", "queries", "scores")
        scale = self.floats(h**-0.5)
        q = self.op("Mul", q, scale) if way == "queries" else q
        scores = self.op("MatMul", q, self.turn(k, 0, 1, 2, 4, 3))
        scores = self.op("Mul", scores, scale) if way == "scores" else scores
        o = self.op("MatMul", self.op("Softmax", scores, axis=-1), v)
        o = self.op("Reshape", self.turn(o, 0, 3, 2, 1, 4), self.ints(-1, windows * s, w))
        return self.case(self.op("MatMul", o, self.weight(w, w)))


FORMS = (Attention, Attention, Attention, SequenceFirst, TokensFirst, Windows, WindowsApart)


def drawn(seed: int, exact: bool = False) -> Case:
    """The graph of a seed. exact: in float32."""
    return FORMS[seed % len(FORMS)](seed, exact).made()
