"""Random graphs of attention, in the spellings of many exporters: projections, norms and rotary embedding of heads,
scales, biases, masks and views, combined by seed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx

from tests.support.attention.attention_building import Building, Case, Dim

_END = np.iinfo(np.int64).max
_POSITIONS = 40  # of a table


class Attention(Building):
    """Attention of x [B, T, C] to itself or to z [B, K, C]."""

    def __init__(self, seed: int, exact: bool = False) -> None:
        super().__init__(seed, exact)
        self.b: Dim = self.form("batch", "B", 2)
        self.t: Dim = self.form("tokens", "T", "T", 6, 34)
        self.heads, self.size = self.form("heads", 1, 2, 4), self.form("size", 8, 8, 16, 4, 20)
        self.width = self.heads * self.size
        self.masks: dict[str, str] = {}

    def made(self) -> Case:
        x = self.input("x", (self.b, self.t, self.width))
        crosses = self.chance("cross", 0.2)
        self.k: Dim = self.t if not crosses else ("K" if isinstance(self.t, str) else 9)
        source = self.input("z", (self.b, self.k, self.width)) if crosses else x
        grouped = self.heads > 1 and self.chance("grouped", 0.25)
        self.groups = int(self.rng.choice([n for n in (1, 2) if n < self.heads])) if grouped else self.heads
        self.layers = self.form("layers", 1, 1, 2)
        start = len(self.forms)
        state, last = self.rng.bit_generator.state, x
        for _ in range(self.layers):
            self.rng.bit_generator.state = state  # all layers have the same form
            del self.forms[start:]
            last = self._layer(last, source if crosses else last)
        return self.case(last)

    def _layer(self, x: str, source: str) -> str:
        q, k, v = self._projections(x, source)
        norm = self.form("norm", "none", "none", "rms", "rms of float32", "layer", "l2")
        turn = self.form("rotary", "none", "none", "halves", "parts", "pairs") if self.k == self.t else "none"
        rotated = self.size // 2 if self.size % 4 == 0 and turn != "none" and self.chance("partial") else self.size
        in_front = self.chance("in front of the Transpose")
        prepare: Callable[[str, bool], str] = lambda h, tokens: self._rotated(  # noqa: E731
            self._normed(h, norm), turn, rotated, tokens
        )
        if in_front:
            q, k = prepare(q, True), prepare(k, True)
        product = self.form("product", "MatMul", "MatMul", "Einsum", "Einsum of tokens", "bmm")
        if not in_front or self.groups != self.heads or product != "Einsum of tokens":
            product = "Einsum" if product == "Einsum of tokens" else product
            q, k, v = (self.turn(h, 0, 2, 1, 3) for h in (q, k, v))
            if not in_front:
                q, k = prepare(q, False), prepare(k, False)
            if self.groups not in (1, self.heads) or (
                self.groups != self.heads and not self.chance("one head for all")
            ):
                k, v = self._repeated(k), self._repeated(v)
        o = self._attended(q, k, v, product, norm == "l2")
        flat = self.reshape(o, self.b, self.t, self.width, copied=2)
        y = self.op("MatMul", flat, self.weight(self.width, self.width))
        y = self.op("Add", y, self.weight(self.width)) if self.chance("bias of the output") else y
        return self.op("Add", y, x) if self.chance("residual") else y

    # Projections, as [B, S, N, H].

    def _linear(self, x: str, width: int, bias: bool) -> str:
        y = self.op("MatMul", x, self.weight(self.width, width))
        return self.either("Add", y, self.weight(width)) if bias else y

    def _projections(self, x: str, source: str) -> list[str]:
        bias, n, h = self.chance("biases"), self.heads, self.size
        ways = ["three"]
        if source == x:
            ways += ["unequal Split"] if self.groups != n else ["Split", "five dims", "parts of heads", "columns"]
        way = self.form("projections", *ways)
        lengths = [(x, self.t, n), (source, self.k, self.groups), (source, self.k, self.groups)]
        if way == "three":
            return [
                self.reshape(self._linear(of, heads * h, bias), self.b, dim, heads, h, copied=2)
                for of, dim, heads in lengths
            ]
        whole = self._linear(x, (n + 2 * self.groups) * h, bias)
        if way in ("Split", "unequal Split"):
            sizes = self.ints(n * h, self.groups * h, self.groups * h)
            parts = self.all("Split", [whole, sizes], 3, axis=-1)
            return [
                self.reshape(part, self.b, self.t, heads, h, copied=2)
                for part, (_, _, heads) in zip(parts, lengths, strict=True)
            ]
        if way == "five dims":
            five = self.turn(self.reshape(whole, self.b, self.t, 3, n, h, copied=2), 2, 0, 1, 3, 4)
            return self.parts(five)
        if way == "parts of heads":
            four = self.reshape(whole, self.b, self.t, n, 3 * h, copied=2)
            return self.all("Split", [four], 3, axis=-1, num_outputs=3)
        groups = 2 if n % 2 == 0 else 1
        four = self.reshape(whole, self.b, self.t, groups, 3 * n * h // groups, copied=2)
        q, v, k = self.all("Split", [four], 3, axis=-1, num_outputs=3)
        return [self.reshape(part, self.b, self.t, n, h, copied=2) for part in (q, k, v)]

    # Norms and rotary embedding of queries and keys.

    def _normed(self, x: str, norm: str) -> str:
        last = self.ints(-1)
        if norm == "none":
            return x
        if norm == "layer":
            return self.all("LayerNormalization", [x, self.weight(self.size), self.weight(self.size)], 1, axis=-1)[0]
        if norm == "l2":
            length = self.op("ReduceL2", x, last, keepdims=1)
            return self.op("Div", x, self.op("Max", length, self.floats(1e-3)))
        wide = norm == "rms of float32" and self.dtype == np.float16
        value = self.op("Cast", x, to=onnx.TensorProto.FLOAT) if wide else x
        least, two = (self.held(np.array(n, np.float32)) if wide else self.floats(n) for n in (1e-3, 2))
        mean = self.op("ReduceMean", self.op("Pow", value, two), last, keepdims=1)
        value = self.op("Div", value, self.op("Sqrt", self.op("Add", mean, least)))
        value = self.op("Cast", value, to=self.onnx_dtype) if wide else value
        return self.either("Mul", value, self.weight(self.size, scale=1.0))

    def _rotated(self, x: str, turn: str, width: int, tokens: bool) -> str:
        """tokens: whether x is [B, S, N, H], else [B, N, S, H]."""
        if turn == "none":
            return x
        whole = width == self.size
        part = x if whole else self.slice(x, 0, width, 3)
        cos, sin = self._tables(turn, width, tokens)
        if turn == "parts":
            a, b = self.all("Split", [part], 2, axis=-1, num_outputs=2)
            left = self.op("Sub", self.op("Mul", a, cos), self.op("Mul", b, sin))
            right = self.op("Add", self.op("Mul", b, cos), self.op("Mul", a, sin))
            rotated = self.op("Concat", left, right, axis=-1)
        else:
            if turn == "halves":
                second = self.op("Neg", self.slice(part, width // 2, _END, 3))
                turned = self.op("Concat", second, self.slice(part, 0, width // 2, 3), axis=-1)
            else:
                odd, even = (self.slice(part, at, _END, 3, 2) for at in (1, 0))
                pairs = [self.op("Unsqueeze", p, self.ints(-1)) for p in (self.op("Neg", odd), even)]
                stack = self.op("Concat", *pairs, axis=-1)
                turned = self.op("Reshape", stack, self.op("Shape", part))
            rotated = self.op("Add", self.either("Mul", part, cos), self.either("Mul", turned, sin))
        return rotated if whole else self.op("Concat", rotated, self.slice(x, width, _END, 3), axis=-1)

    def _tables(self, turn: str, width: int, tokens: bool) -> list[str]:
        key = ("tables", turn, tokens)
        if key in self._kept:
            return self._kept[key].split()
        angles = np.outer(np.arange(_POSITIONS), 0.5 ** np.arange(width // 2))
        repeat = {"halves": lambda a: np.tile(a, 2), "pairs": lambda a: np.repeat(a, 2, -1), "parts": lambda a: a}[turn]
        found = []
        for function in (np.cos, np.sin):
            array = repeat(function(angles))
            if isinstance(self.t, int):
                rows = self.floats(array[: self.t])
            else:
                rows = self.op("Slice", self.floats(array), self.ints(0), self.count(self.t), self.ints(0))
            found.append(self.op("Unsqueeze", rows, self.ints(0, 2 if tokens else 1)))
        self._kept[key] = " ".join(found)
        return found

    def _repeated(self, x: str) -> str:
        """[B, M, S, H] with every head for its group."""
        five = self.op("Unsqueeze", x, self.ints(2))
        times = self.heads // self.groups
        shape = self.op("Concat", *map(self.count, (self.b, self.groups, times, self.k, self.size)), axis=0)
        return self.reshape(self.op("Expand", five, shape), self.b, self.heads, self.k, self.size)

    # From queries, keys and values to [B, S, N, H].

    def _attended(self, q: str, k: str, v: str, product: str, cosine: bool) -> str:
        product = "MatMul" if self.groups == 1 and self.heads > 1 else product
        if product == "bmm":
            q, k, v = self._joined(q, self.t), self._joined(k, self.k), self._joined(v, self.k)
        p = self._weights(self._masked(self._scores(q, k, product, cosine)))
        if product == "Einsum of tokens":
            return self.op("Einsum", p, v, equation="bnst,btnh->bsnh")
        if product == "Einsum" and self.chance("Einsum of the result"):
            return self.op("Einsum", p, v, equation="bnst,bnth->bsnh")
        if product == "bmm":
            o = self.op("MatMul", self._joined(p, self.t, self.k), v)
            return self.turn(self.reshape(o, self.b, self.heads, self.t, self.size), 0, 2, 1, 3)
        return self.turn(self.op("MatMul", p, v), 0, 2, 1, 3)

    def _scores(self, q: str, k: str, product: str, cosine: bool) -> str:
        """[B, N, S, T], with a scale, a cap and a bias."""
        where = self.form("scale", "scores", "scores", "queries", "both", "quotient", "none")
        where = "heads" if cosine and self.chance("scale of each head") else where
        c = float(self.rng.choice([self.size**-0.5, 0.25]))
        if where in ("queries", "both"):
            q = self.either("Mul", q, self.floats(c if where == "queries" else c**0.5))
        if product == "Einsum of tokens":
            scores = self.op("Einsum", q, k, equation="bsnh,btnh->bnst")
        elif product == "Einsum":
            scores = self.op("Einsum", q, k, equation="bnsh,bnth->bnst")
        else:
            kt = self.turn(k, *((0, 2, 1) if product == "bmm" else (0, 1, 3, 2)))
            scores = self.op("MatMul", q, self.op("Mul", kt, self.floats(c**0.5)) if where == "both" else kt)
        scale: Callable[[str], str] = {
            "scores": lambda s: self.either("Mul", s, self.floats(c)),
            "quotient": lambda s: self.op("Div", s, self.floats(1 / c)),
            "heads": lambda s: self.op("Mul", s, self.floats(self.rng.uniform(0.5, 4, (self.heads, 1, 1)))),
        }.get(where, lambda s: s)
        if product == "bmm":
            scores = scores if where == "heads" else scale(scores)
            scores = self.reshape(scores, self.b, self.heads, self.t, self.k)
            return self._biased(scale(scores) if where == "heads" else scores)
        if where != "heads" and self.chance("bias in front of the scale", 0.3):
            return scale(self._biased(scores))
        scores = scale(scores)
        if self.chance("cap", 0.1):
            cap = self.floats(5.0)
            scores = self.op("Mul", self.op("Tanh", self.op("Div", scores, cap)), cap)
        return self._biased(scores)

    def _joined(self, x: str, length: Dim, width: Dim | None = None) -> str:
        width = self.size if width is None else width
        shape = self.op("Concat", self.ints(-1), self.count(length), self.count(width), axis=0)
        return self.op("Reshape", x, shape)

    def _biased(self, scores: str) -> str:
        kinds = ["none", "none", "of positions"] + ["constant"] * (isinstance(self.t, int) and isinstance(self.k, int))
        kind = self.form("bias", *kinds)
        if kind == "none":
            return scores
        if kind == "constant":
            return self.either("Add", scores, self.weight(1, self.heads, int(self.t), int(self.k), scale=1.0))
        places = self.op("Cast", self.range(self.k), to=self.onnx_dtype)
        slopes = self.floats(-(0.5 ** np.arange(1, self.heads + 1)).reshape(self.heads, 1, 1))
        return self.op("Add", scores, self.op("Mul", slopes, places))

    def _masked(self, scores: str) -> str:
        ways = ["none", "padding", "padding", "causal", "window", "causal and padding", "window and padding"]
        what = self.form("mask", *ways) if self.k == self.t else self.form("mask", "none", "padding")
        if what == "none":
            return scores
        how = self.form("masked by", "Where shown", "Where hidden", "sum", "product")
        low = self.form("low", -1e4, -float("inf"), "least") if how != "product" else -1e4
        number = float(np.finfo(self.dtype).min) if low == "least" else low
        key = f"{what} {how} {number}"
        if key not in self.masks:
            self.masks[key] = self._mask(what, how, number)
        if how in ("sum", "product"):
            return self.either("Add", scores, self.masks[key])
        operands = (scores, self.floats(number))
        return self.op("Where", self.masks[key], *(operands if how == "Where shown" else operands[::-1]))

    def _mask(self, what: str, how: str, low: float) -> str:
        shown: list[str] = []
        if "padding" in what:
            m = self.input("m", (self.b, self.k), onnx.TensorProto.BOOL)
            shown.append(self.op("Unsqueeze", m, self.ints(1, 2)))
        if what.startswith(("causal", "window")):
            rows, columns = self.op("Unsqueeze", self.range(self.t), self.ints(1)), self.range(self.k)
            limits = [self.op("LessOrEqual", columns, rows)]
            if "window" in what:
                reach = int(self.rng.integers(1, 4))
                apart = self.op("Sub", rows, columns)
                before = self.op("LessOrEqual", apart, self.held(np.array(reach, np.int64)))
                behind = self.op("GreaterOrEqual", apart, self.held(np.array(-reach, np.int64)))
                limits = [before, limits[0] if self.chance("of the past") else behind]
            shown.append(limits[0] if len(limits) == 1 else self.op("And", *limits))
        both = shown[0] if len(shown) == 1 else self.either("And", *shown)
        if how == "Where shown":
            return both
        if how == "Where hidden":
            return self.op("Not", both)
        if how == "sum":
            return self.op("Where", both, self.floats(0.0), self.floats(low))
        hidden = self.op("Sub", self.floats(1.0), self.op("Cast", both, to=self.onnx_dtype))
        return self.op("Mul", hidden, self.floats(low))

    def _weights(self, scores: str) -> str:
        if self.dtype == np.float16 and self.chance("Softmax of float32", 0.3):
            wide = self.op("Cast", scores, to=onnx.TensorProto.FLOAT)
            return self.op("Cast", self.op("Softmax", wide, axis=-1), to=self.onnx_dtype)
        p = self.op("Softmax", scores, axis=int(self.rng.choice([-1, 3])))
        if self.chance("guard", 0.15):
            return self.op("Where", self.op("IsNaN", p), self.floats(0.0), p)
        return p
