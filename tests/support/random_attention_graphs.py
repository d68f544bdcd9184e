"""Random graphs of attention, in the spellings of many exporters: projections, norms and rotary embedding of heads,
scales, biases, masks and views, combined by seed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

_END = np.iinfo(np.int64).max
_POSITIONS = 40  # of a table
Dim = int | str  # "B", "T" and "K" are symbols of the inputs


@dataclasses.dataclass(frozen=True)
class Case:
    """A graph, the inputs of several runs, the forms that were drawn, and how many attentions it has."""

    model: onnx.ModelProto
    feeds: list[dict[str, np.ndarray]]
    forms: tuple[str, ...]
    layers: int


class Building:
    """A graph while its nodes are made. Tensors of floats have one dtype.

    exact: whether the graph computes float32 of the numbers that the graph of the same seed has.
    """

    def __init__(self, seed: int, exact: bool = False) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.inputs: dict[str, tuple[int, tuple[Dim, ...]]] = {}
        self.forms: list[str] = []
        self.layers = 1
        self._names = 0
        self._kept: dict[object, str] = {}
        self.dtype = np.dtype(self.form("dtype", "float16", "float16", "float32")).type
        self.stored = np.float32 if exact else self.dtype
        self.onnx_dtype = helper.np_dtype_to_tensor_dtype(np.dtype(self.stored))

    def form(self, part: str, *choices: Any) -> Any:
        """One of these, which is noted."""
        choice = choices[int(self.rng.integers(len(choices)))]
        self.forms.append(f"{part} {choice}")
        return choice

    def chance(self, part: str, share: float = 0.5) -> bool:
        taken = bool(self.rng.random() < share)
        self.forms += [part] if taken else []
        return taken

    def name(self) -> str:
        self._names += 1
        return f"v{self._names}"

    def held(self, array: np.ndarray) -> str:
        name = self.name()
        self.constants.append(numpy_helper.from_array(np.array(array, order="C"), name))
        return name

    def floats(self, array: np.ndarray | float) -> str:
        return self.held(np.array(array).astype(self.dtype).astype(self.stored))

    def weight(self, *dims: int, scale: float = 0.4) -> str:
        return self.floats(self.rng.standard_normal(dims) * scale)

    def ints(self, *values: int) -> str:
        return self.held(np.array(values, np.int64))

    def all(self, op_type: str, inputs: Sequence[str], count: int, **attributes: Any) -> list[str]:
        names = [self.name() for _ in range(count)]
        self.nodes.append(helper.make_node(op_type, list(inputs), names, name=names[0], **attributes))
        return names

    def op(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        return self.all(op_type, inputs, 1, **attributes)[0]

    def turn(self, x: str, *perm: int) -> str:
        return self.op("Transpose", x, perm=perm)

    def slice(self, x: str, begin: int, end: int, axis: int, step: int = 1) -> str:
        return self.op("Slice", x, *(self.ints(n) for n in (begin, end, axis, step)))

    def either(self, op_type: str, x: str, y: str) -> str:
        """The operands in either order."""
        return self.op(op_type, *((x, y) if self.rng.random() < 0.7 else (y, x)))

    def parts(self, x: str, count: int = 3) -> list[str]:
        """The places along the first axis."""
        way = self.form("parts", "Gather", "Split", "Slice")
        if way == "Gather":
            return [self.op("Gather", x, self.held(np.array(at, np.int64)), axis=0) for at in range(count)]
        cut = [self.slice(x, at, at + 1, 0) for at in range(count)] if way == "Slice" else []
        cut = cut or self.all("Split", [x], count, axis=0, num_outputs=count)
        return [self.op("Squeeze", part, self.ints(0)) for part in cut]

    def input(self, name: str, dims: Sequence[Dim], dtype: int | None = None) -> str:
        self.inputs[name] = (self.onnx_dtype if dtype is None else dtype, tuple(dims))
        return name

    def count(self, dim: Dim) -> str:
        """A dim as a tensor of one element."""
        if isinstance(dim, int):
            return self.ints(dim)
        if dim not in self._kept:
            name, axis = next((n, at) for n, (_, dims) in self.inputs.items() for at, d in enumerate(dims) if d == dim)
            self._kept[dim] = self.op("Shape", name, start=axis, end=axis + 1)
        return self._kept[dim]

    def reshape(self, x: str, *dims: Dim, copied: int = 0) -> str:
        """copied: how many leading dims are those of x."""
        symbols = [at for at, d in enumerate(dims) if isinstance(d, str)]
        zeros = copied and self.rng.random() < 0.5
        numbers = [0 if zeros and at < copied else -1 if isinstance(d, str) else d for at, d in enumerate(dims)]
        if len(symbols) <= 1 or numbers.count(-1) <= 1:
            return self.op("Reshape", x, self.ints(*numbers))
        return self.op("Reshape", x, self.op("Concat", *map(self.count, dims), axis=0))

    def range(self, dim: Dim) -> str:
        key = ("range", dim)
        if key not in self._kept:
            if isinstance(dim, int):
                self._kept[key] = self.held(np.arange(dim, dtype=np.int64))
            else:
                n = self.op("Squeeze", self.count(dim), self.ints(0))
                none, one = (self.held(np.array(k, np.int64)) for k in (0, 1))
                self._kept[key] = self.op("Range", none, n, one)
        return self._kept[key]

    def case(self, y: str, rank: int = 3) -> Case:
        """The graph, with inputs of three runs where dims are symbolic."""
        self.nodes.append(helper.make_node("Identity", [y], ["y"], name="y"))
        infos = [helper.make_tensor_value_info(n, dtype, dims) for n, (dtype, dims) in self.inputs.items()]
        result = helper.make_tensor_value_info("y", self.onnx_dtype, [None] * rank)
        graph = helper.make_graph(self.nodes, "g", infos, [result], self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
        symbols = {d for _, dims in self.inputs.values() for d in dims if isinstance(d, str)}
        runs = [{"B": 2, "T": 5, "K": 7}, {"B": 1, "T": 1, "K": 3}, {"B": 3, "T": 18, "K": 11}][: 3 if symbols else 1]
        return Case(model, [self._feeds(sizes) for sizes in runs], tuple(self.forms), self.layers)

    def _feeds(self, sizes: dict[str, int]) -> dict[str, np.ndarray]:
        found = {}
        for name, (dtype, dims) in self.inputs.items():
            shape = [sizes[d] if isinstance(d, str) else d for d in dims]
            if dtype in (onnx.TensorProto.BOOL, onnx.TensorProto.INT64):  # hides single keys of every second sequence
                array = (np.arange(shape[-1]) % 3 != 1) | (np.arange(shape[0]) % 2 == 1)[:, None]
            else:
                array = self.rng.standard_normal(shape).astype(self.dtype)
            found[name] = array.astype(helper.tensor_dtype_to_np_dtype(dtype))
        return found


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
        one_head = self.groups == 1 and self.heads > 1
        product = "MatMul" if one_head else product
        by_token = product == "Einsum of tokens"
        where = self.form("scale", "scores", "scores", "queries", "both", "quotient", "none")
        c = float(self.rng.choice([self.size**-0.5, 0.25]))
        if cosine and self.chance("scale of each head"):
            where = "heads"
        if where in ("queries", "both"):
            q = self.either("Mul", q, self.floats(c if where == "queries" else c**0.5))
        joined = product == "bmm"
        if joined:
            q, k, v = self._joined(q, self.t), self._joined(k, self.k), self._joined(v, self.k)
        if by_token:
            scores = self.op("Einsum", q, k, equation="bsnh,btnh->bnst")
        elif product == "Einsum":
            scores = self.op("Einsum", q, k, equation="bnsh,bnth->bnst")
        else:
            kt = self.turn(k, *((0, 2, 1) if joined else (0, 1, 3, 2)))
            kt = self.op("Mul", kt, self.floats(c**0.5)) if where == "both" else kt
            scores = self.op("MatMul", q, kt)
        scale: Callable[[str], str] = {
            "scores": lambda s: self.either("Mul", s, self.floats(c)),
            "quotient": lambda s: self.op("Div", s, self.floats(1 / c)),
            "heads": lambda s: self.op("Mul", s, self._of_heads()),
        }.get(where, lambda s: s)
        bias_first = self.chance("bias in front of the scale", 0.3)
        scores = scores if bias_first and not joined else scale(scores) if where != "heads" or not joined else scores
        if joined:
            scores = self.reshape(scores, self.b, self.heads, self.t, self.k)
            scores = scale(scores) if where == "heads" else scores
        if not bias_first and self.chance("cap", 0.1):
            cap = self.floats(5.0)
            scores = self.op("Mul", self.op("Tanh", self.op("Div", scores, cap)), cap)
        scores = self._biased(scores)
        scores = scale(scores) if bias_first and not joined else scores
        p = self._weights(self._masked(scores))
        if by_token:
            return self.op("Einsum", p, v, equation="bnst,btnh->bsnh")
        if product == "Einsum" and self.chance("Einsum of the result"):
            return self.op("Einsum", p, v, equation="bnst,bnth->bsnh")
        if joined:
            p = self._joined(p, self.t, self.k)
            o = self.reshape(self.op("MatMul", p, v), self.b, self.heads, self.t, self.size)
        else:
            o = self.op("MatMul", p, v)
        return self.turn(o, 0, 2, 1, 3)

    def _joined(self, x: str, length: Dim, width: Dim | None = None) -> str:
        width = self.size if width is None else width
        shape = self.op("Concat", self.ints(-1), self.count(length), self.count(width), axis=0)
        return self.op("Reshape", x, shape)

    def _of_heads(self) -> str:
        return self.floats(self.rng.uniform(0.5, 4, (self.heads, 1, 1)))

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
