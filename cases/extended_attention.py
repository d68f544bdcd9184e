"""Attentions with grouped heads, a cap, sinks and windows, as exporters write them, beside their results in float64."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from cases import flash_attention
from cases.flash_attention import Case, fused
from cases.models import OPSET, numpy_dtype
from cases.table import Row, Table
from onnxopt.graph.rewrite import rewrite
from onnxopt.program.dtypes import to_ir

LOW = {"float16": -65504.0, "bfloat16": -3.38e38, "float32": -3.4e38}


@dataclasses.dataclass(frozen=True)
class Extended(Case):
    """q [B, S, N H], k [B, T, M H] and v [B, T, M V] are inputs. groups: M, or 0 for as many as there are heads.

    before, after: keys that a query sees around its own, -1 for all; the mask is made of Range and comparisons. sunk:
    with a sink for each head. by_query: whether the bias differs from query to query. padded: keys at the end of the
    first sequence that the bias hides. joint: whether one mask is made of bias and window, not the sum of two. Queries
    that see no key weigh all keys alike. summed: the bias is known to do nothing but hide keys, so that queries that
    see no key weigh alike those keys that are hidden "once", by bias or window, or, where the window's mask is added
    twice, those of their "window".
    """

    groups: int = 0
    before: int = -1
    after: int = -1
    cap: float = 0.0
    sunk: bool = False
    by_query: bool = True
    padded: int = 0
    joint: bool = False
    summed: str = ""

    @property
    def of_keys(self) -> int:
        return self.groups or self.heads

    def shapes(self) -> dict[str, tuple[int, ...]]:
        b, s, t, n, m = self.batch, self.queries, self.keys, self.heads, self.of_keys
        made: dict[str, tuple[int, ...]] = {
            "q": (b, s, n * self.width), "k": (b, t, m * self.width), "v": (b, t, m * self.of_values)
        }  # fmt: skip
        if self.bias is not None:
            made["bias"] = (b if self.bias[0] else 1, n if self.bias[1] else 1, s if self.by_query else 1, t)
        return made

    def feeds(self, seed: int = 0) -> dict[str, np.ndarray]:
        made = super().feeds(seed)
        if self.summed:
            made["bias"][:] = 0
        if self.padded:
            made["bias"][0, ..., -self.padded :] = LOW[self.dtype]
        return made

    def sinks(self) -> np.ndarray:
        return np.linspace(-1.0, 3.0, self.heads).astype(numpy_dtype(self.dtype))

    def model(self) -> onnx.ModelProto:
        element = to_ir(self.dtype).value
        infos = [helper.make_tensor_value_info(k, element, self._stated(k, v)) for k, v in self.shapes().items()]
        joined = [None if not self.known else self.batch, None, self.heads * self.of_values]
        y = helper.make_tensor_value_info("y", element, joined)
        built = _Builder(self.dtype)
        q, k, v = (
            built.heads(name, heads, width, self.heads // heads)
            for name, heads, width in zip("qkv", (self.heads, self.of_keys, self.of_keys), self.widths, strict=True)
        )
        scores = built.node("MatMul", q, built.node("Transpose", k, perm=[0, 1, 3, 2]))
        scores = built.node("Mul", scores, built.number(self.scale or self.width**-0.5))
        if self.cap:
            scores = built.node("Mul", built.node("Tanh", built.node("Div", scores, built.number(self.cap))),
                                built.number(self.cap))  # fmt: skip
        if self.summed:
            shown = built.node("GreaterOrEqual", "bias", built.number(-1e4))
            mask = built.node("Where", shown, built.number(0.0), built.number(LOW[self.dtype]))
            scores = built.node("Add", scores, mask)
        elif self.bias is not None and not self.joint:
            scores = built.node("Add", scores, "bias")
        if self.before >= 0 or self.after >= 0:
            shown = "bias" if self.joint else built.number(0.0)
            window = built.window(self.before, self.after, shown)
            scores = built.node("Add", scores, built.node("Add", window, window) if self.summed == "window" else window)
        weights = built.weights(scores, self.sinks() if self.sunk else None)
        product = built.node("MatMul", weights, v)
        turned = built.node("Transpose", product, perm=[0, 2, 1, 3])
        built.node("Reshape", turned, built.ints([0, 0, self.heads * self.of_values]), output="y")
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)]
        graph = helper.make_graph(built.nodes, "g", infos, [y], built.constants)
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def prepared(self) -> ir.Model:
        model = ir.serde.deserialize_model(self.model())
        with tempfile.TemporaryDirectory() as folder:
            rewrite(model, Path(folder), gpu=True)
        if self.summed:
            _read_mask(model.graph)
        return model

    def _stated(self, name: str, dims: tuple[int, ...]) -> list[Any]:
        if self.known:
            return list(dims)
        batch = 1 if name == "bias" and dims[0] == 1 else "B"
        tokens = {"q": "S", "k": self._other, "v": self._other}
        if name in tokens:
            return [batch, tokens[name], dims[2]]
        return [batch, dims[1], "S" if dims[2] != 1 else 1, self._other]

    @property
    def _other(self) -> str:
        return "S" if self.queries == self.keys else "T"

    def expected(self, feeds: dict[str, np.ndarray]) -> np.ndarray:
        wide = {k: v.astype(np.float64) for k, v in feeds.items()}
        b, n = self.batch, self.heads
        q, k, v = (
            np.repeat(wide[name].reshape(b, -1, heads, width).transpose(0, 2, 1, 3), n // heads, axis=1)
            for name, heads, width in zip("qkv", (n, self.of_keys, self.of_keys), self.widths, strict=True)
        )
        scores = (self.scale or self.width**-0.5) * (q @ k.transpose(0, 1, 3, 2))
        if self.cap:
            scores = self.cap * np.tanh(scores / self.cap)
        scores = scores + wide.get("bias", 0.0)
        apart = np.arange(self.keys - self.queries, self.keys)[:, None] - np.arange(self.keys)
        hidden = (apart > self.before) if self.before >= 0 else np.zeros(apart.shape, np.bool_)
        hidden = hidden | ((-apart > self.after) if self.after >= 0 else False)
        scores = np.where(hidden, -np.inf, scores)
        if self.padded and not self.sunk:
            padding = wide["bias"] <= -1e4
            blind = (hidden | padding).all(axis=-1, keepdims=True)
            counted = {"": True, "once": hidden != padding, "window": ~hidden}[self.summed]
            scores = np.where(blind, np.where(counted, 0.0, -np.inf), scores)
        if self.sunk:
            column = np.broadcast_to(self.sinks().astype(np.float64)[:, None, None], (b, n, self.queries, 1))
            scores = np.concatenate([scores, column], axis=-1)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights = (weights / weights.sum(axis=-1, keepdims=True))[..., : self.keys]
        made: np.ndarray = (weights @ v).transpose(0, 2, 1, 3).reshape(b, self.queries, n * self.of_values)
        return made


def _read_mask(graph: ir.Graph) -> None:
    """Let an attention read the input `bias` in place of the mask that is computed of it."""
    bias = next(value for value in graph.inputs if value.name == "bias")
    (shown,) = bias.consumers()
    (where,) = shown.outputs[0].consumers()
    where.outputs[0].replace_all_uses_with(bias)
    for node in (where, shown):
        graph.remove(node, safe=True)


class _Builder:
    """Nodes and constants of a graph, named by their number."""

    def __init__(self, dtype: str) -> None:
        self.dtype, self.nodes, self.constants = dtype, list[onnx.NodeProto](), list[TensorProto]()
        self._known: dict[tuple[Any, ...], str] = {}

    def node(self, op_type: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        output = output or f"{op_type}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, list(inputs), [output], name=f"n_{output}", **attributes))
        return output

    def number(self, value: float) -> str:
        return self.constant(np.array(value).astype(numpy_dtype(self.dtype)))

    def ints(self, values: Any) -> str:
        return self.constant(np.array(values, np.int64))

    def constant(self, array: np.ndarray) -> str:
        """The one initializer of these elements."""
        key = (str(array.dtype), array.shape, array.tobytes())
        if key in self._known:
            return self._known[key]
        name = self._known[key] = f"c{len(self.constants)}"
        if array.dtype == np.int64:
            self.constants.append(numpy_helper.from_array(array, name))
        else:
            data = array.tobytes()
            self.constants.append(helper.make_tensor(name, to_ir(self.dtype).value, array.shape, data, raw=True))
        return name

    def heads(self, name: str, heads: int, width: int, repeats: int) -> str:
        """[B, heads * repeats, T, width] of an input."""
        split = self.node("Reshape", name, self.ints([0, 0, heads, width]))
        turned = self.node("Transpose", split, perm=[0, 2, 1, 3])
        if repeats == 1:
            return turned
        shape = self.node("Shape", turned)
        parts = [self.node("Slice", shape, self.ints([k]), self.ints([k + 1]), self.ints([0])) for k in range(4)]
        wide = self.node("Concat", *parts[:2], self.ints([repeats]), *parts[2:], axis=0)
        expanded = self.node("Expand", self.node("Unsqueeze", turned, self.ints([2])), wide)
        return self.node("Reshape", expanded, self.ints([0, heads * repeats, -1, width]))

    def window(self, before: int, after: int, inside: str) -> str:
        """`inside` for the keys of the window, the least number for others."""
        counts = [self.node("Squeeze", self.node("Shape", name, start=1, end=2)) for name in "qk"]
        columns = self.node("Range", self.ints(0), counts[1], self.ints(1))
        rows = self.node("Range", self.node("Sub", counts[1], counts[0]), counts[1], self.ints(1))
        rows = self.node("Unsqueeze", rows, self.ints([1]))
        shown = []
        if after >= 0:
            limit = self.node("Add", rows, self.ints(after))
            shown.append(self.node("LessOrEqual", columns, limit))
        if before >= 0:
            shown.append(self.node("GreaterOrEqual", columns, self.node("Sub", rows, self.ints(before))))
        seen = shown[0] if len(shown) == 1 else self.node("And", *shown)
        return self.node("Where", seen, inside, self.number(LOW[self.dtype]))

    def weights(self, scores: str, sinks: np.ndarray | None) -> str:
        if sinks is None:
            return self.node("Softmax", scores, axis=-1)
        shape = self.node("Concat", self.node("Shape", scores, start=0, end=3), self.ints([1]), axis=0)
        column = self.node("Expand", self.constant(sinks.reshape(1, -1, 1, 1)), shape)
        joined = self.node("Concat", scores, column, axis=-1)
        shifted = self.node("Sub", joined, self.node("ReduceMax", joined, self.ints([-1]), keepdims=1))
        return self.node("Slice", self.node("Softmax", shifted, axis=-1), self.ints([0]), self.ints([-1]),
                         self.ints([3]), self.ints([1]))  # fmt: skip


def random_extended(seed: int, dtype: str) -> Extended:
    """Any lengths, heads and extensions, of which there is at least one that takes the kernel."""
    rng = np.random.default_rng([seed, len(dtype), 1])

    def pick(*values: Any) -> Any:
        return values[int(rng.integers(len(values)))]

    groups, repeats = int(rng.integers(1, 3)), int(rng.integers(1, 4))
    tokens = int(rng.integers(16, 170))
    before, after = pick((-1, -1), (-1, 0), (int(rng.integers(0, 90)), 0), (int(rng.integers(0, 40)),) * 2)
    cap, sunk = pick((0.0, True), (2.0, False), (5.0, True)) if rng.random() < 0.7 or before < 0 else (0.0, False)
    width = pick(8, 16, 20, 24, 36, 64, 80, 100, 128)
    many = bool(cap) and sunk and (before, after) != (-1, -1)  # which no rule recognises beside a bias
    return Extended(
        int(rng.integers(1, 3)), tokens, tokens, groups * repeats, width, pick(0, 8, 64), dtype,
        bias=None if rng.random() < 0.6 or many else (rng.random() < 0.5, rng.random() < 0.5),
        known=bool(rng.random() < 0.5), scale=pick(0.0, 0.3), groups=groups, before=before, after=after, cap=cap,
        sunk=sunk, by_query=bool(rng.random() < 0.5),
    )  # fmt: skip


def _random(dtype: str) -> Row:
    return Row(f"random extended {dtype}", tuple(random_extended(seed, dtype) for seed in range(4)))


_HIDDEN = (
    Extended(2, 100, 100, 2, 16, bias=(True, False), by_query=False, before=8, after=8, padded=40),
    Extended(2, 40, 40, 2, 24, bias=(True, False), by_query=False, before=8, after=8, padded=20),
    Extended(1, 70, 70, 2, 32, bias=(True, True), before=3, after=0, padded=30),
    Extended(1, 90, 90, 2, 8, 16, bias=(True, False), by_query=False, before=3, after=3, padded=30),
    Extended(2, 80, 80, 2, 16, bias=(True, False), by_query=False, before=8, after=0, padded=30, sunk=True),
    Extended(2, 70, 70, 2, 32, bias=(True, False), by_query=False, before=69, after=0, padded=70),
    Extended(2, 50, 50, 2, 32, bias=(True, False), by_query=False, padded=50),
    Extended(2, 50, 60, 2, 8, 16, bias=(True, True), padded=60),
    Extended(2, 70, 70, 2, 32, bias=(True, False), by_query=False, after=0, padded=70, summed="once"),
    Extended(2, 100, 100, 2, 16, bias=(True, False), by_query=False, before=8, after=8, padded=60, summed="once"),
    Extended(1, 90, 90, 2, 8, 16, bias=(True, True), by_query=False, before=20, after=0, padded=80, summed="once"),
    Extended(1, 90, 90, 2, 8, 16, bias=(True, True), before=20, after=0, padded=80, summed="window"),
    Extended(2, 70, 70, 2, 32, bias=(True, False), by_query=False, after=0, padded=70, summed="window"),
)
_PADDED = Extended(2, 40, 40, 2, 16, dtype="bfloat16", bias=(True, False), by_query=False, padded=40)
ROWS = (
    _random("float16"),
    _random("bfloat16"),
    _random("float32"),
    Row(  # lanes load runs of keys, pairs or single ones, as their number allows
        "biases that are the same for all queries",
        (
            Extended(2, 100, 100, 2, 16, bias=(True, False), cap=5.0, by_query=False),
            Extended(2, 20, 20, 2, 24, bias=(True, True), cap=5.0, by_query=False),
            Extended(1, 33, 33, 2, 40, bias=(False, True), cap=5.0, by_query=False),
            Extended(2, 100, 100, 2, 16, bias=(True, False), by_query=False, before=20, after=20),
            Extended(1, 70, 70, 4, 24, groups=2, bias=(False, True), by_query=False, after=0),
            Extended(1, 80, 80, 2, 24, bias=(True, True), before=20, after=0),
        ),
        ("w4k64t1a16",),  # 100 keys: several tiles are faster, if no bias is by query
    ),
    Row(  # all keys weigh alike, though bfloat16's least number over the scale is none of float32
        "sequences of padding alone",
        (_PADDED, dataclasses.replace(_PADDED, bias=(True, True), by_query=True)),
    ),
    Row("hidden rows", _HIDDEN),
    Row("hidden rows float32", tuple(dataclasses.replace(case, dtype="float32") for case in _HIDDEN)),
    Row(
        "hidden rows without products",
        tuple(dataclasses.replace(case, dtype="bfloat16") for case in _HIDDEN),
        without_products=True,
    ),
    Row(
        "extended without products",
        (
            Extended(1, 40, 40, 4, 16, dtype="bfloat16", groups=2, before=9, after=0, sunk=True),
            Extended(1, 20, 20, 2, 16, 24, dtype="bfloat16", before=3, after=3, cap=2.0, bias=None),
            Extended(2, 17, 17, 2, 8, dtype="bfloat16", cap=2.0, bias=(True, False), by_query=False),
        ),
        without_products=True,
    ),
)
# Every tile for Hopper, whole and in part.
_HOPPER: tuple[Case, ...] = (
    Case(2, 197, 197, 12, 64, layout="split"),
    Case(3, 150, 150, 2, 64),
    Case(2, 20, 208, 3, 64, layout="heads"),
    Case(2, 130, 130, 4, 64, layout="interleaved"),
    Case(4, 1500, 1500, 8, 64, layout="split"),
    Case(1, 1000, 1000, 12, 64, layout="split"),
    Case(4, 1024, 1024, 12, 64, layout="split"),
    Case(1, 60, 190, 2, 64, causal=True, known=False),
    Case(2, 512, 512, 16, 128, layout="split"),
    Case(2, 100, 333, 2, 128, layout="heads"),
    Extended(2, 300, 300, 8, 64, groups=2, after=0),
    Extended(1, 900, 900, 2, 64, before=600, after=0),
    Extended(1, 700, 700, 4, 128, groups=2, after=0, sunk=True),
    Extended(8, 128, 128, 16, 128, groups=8, after=0),
    Extended(2, 512, 512, 16, 128, groups=8, after=0),
    Extended(1, 2000, 2000, 4, 128, after=0),
    Extended(2, 190, 190, 2, 64, after=0, sunk=True),
    Case(2, 197, 197, 3, 64, layout="split", bias=(False, True)),
    Case(3, 128, 128, 2, 64, layout="heads", bias=(True, False)),
    Case(1, 60, 190, 2, 64, bias=(True, True), causal=True, known=False),
    Case(1, 500, 500, 3, 128, layout="split", bias=(False, True)),
    Case(4, 100, 100, 2, 64, layout="split", bias=(True, True), period=2),
    Extended(3, 128, 128, 3, 64, bias=(True, False), by_query=False),
    Extended(2, 333, 333, 2, 64, bias=(True, False), by_query=False),
    Extended(2, 250, 250, 2, 128, bias=(True, True), by_query=False),
    Extended(2, 200, 200, 2, 128, bias=(False, True), sunk=True),
    Extended(2, 300, 300, 3, 64, bias=(True, False), by_query=False, after=0),
    Extended(2, 500, 500, 4, 128, groups=2, bias=(True, False), by_query=False, after=0),
    Extended(2, 130, 130, 4, 128, bias=(False, True), by_query=False, after=0),
    Extended(1, 900, 900, 2, 64, bias=(True, True), before=600, after=0),
    Extended(1, 700, 700, 2, 64, bias=(True, False), by_query=False, before=300, after=300),
    Extended(2, 900, 900, 2, 64, bias=(True, False), by_query=False, before=300, after=300, padded=700),
    Extended(2, 500, 500, 2, 128, bias=(True, False), by_query=False, before=300, after=300, padded=450),
    Extended(2, 700, 700, 2, 128, bias=(True, True), before=550, after=0, padded=690),
    Extended(2, 600, 600, 2, 64, bias=(True, False), by_query=False, after=0, padded=600),
    Extended(1, 900, 900, 2, 64, bias=(True, False), by_query=False, before=600, after=0, padded=880, joint=True),
    Extended(2, 400, 400, 2, 64, bias=(True, False), by_query=False, after=0, padded=400, joint=True),
    Extended(2, 130, 130, 2, 64, bias=(True, False), by_query=False, padded=130),
    Extended(2, 600, 600, 2, 64, bias=(True, False), by_query=False, after=0, padded=600, summed="once"),
    Extended(2, 500, 500, 2, 128, bias=(True, True), by_query=False, before=300, after=300, padded=480, summed="once"),
    Extended(2, 100, 100, 2, 64, bias=(True, False), by_query=False, after=0, padded=100, summed="once"),
    Extended(2, 700, 700, 2, 128, bias=(True, True), before=550, after=0, padded=690, summed="window"),
    Extended(2, 100, 100, 2, 64, bias=(True, False), by_query=False, after=0, padded=100, summed="window"),
    Case(4, 300, 300, 4, 32, layout="split"),
    Case(2, 200, 200, 3, 40),
    Case(8, 500, 500, 16, 56, layout="split"),
    Extended(2, 333, 333, 4, 72, groups=2, after=0),
    Case(2, 130, 130, 2, 72, bias=(True, True)),
    Case(1, 260, 260, 20, 80, layout="interleaved"),
    Case(4, 512, 512, 16, 88),
    Extended(3, 250, 250, 4, 96, groups=1, after=0, sunk=True),
    Extended(8, 190, 190, 8, 96, bias=(True, False), by_query=False, padded=60),
    Case(2, 70, 300, 3, 104, layout="heads"),
    Case(2, 500, 500, 12, 120, layout="split"),
    Extended(2, 260, 260, 3, 136, before=600, after=0),
    Case(3, 333, 333, 2, 160, layout="split", bias=(False, True)),
    Extended(4, 500, 500, 8, 192, after=0),
    Extended(2, 100, 100, 2, 200, bias=(True, False), by_query=False, after=0),
    Case(2, 150, 150, 2, 248),
    Extended(8, 512, 512, 4, 256, groups=1, after=0),
    Extended(1, 600, 600, 8, 256, groups=4, after=0, cap=5.0),
    Extended(2, 300, 300, 2, 64, after=0, cap=2.0),
    Case(2, 200, 200, 2, 256, bias=(True, True)),
)


def _on_gpus(dtype: str) -> tuple[Row, ...]:
    hopper = tuple(dataclasses.replace(case, dtype=dtype) for case in _HOPPER)
    more = (
        *(random_extended(seed, dtype) for seed in range(20)),
        Extended(2, 1024, 1024, 12, 64, dtype=dtype, bias=(True, False), by_query=False, before=64, after=64),
        Extended(2, 300, 300, 2, 80, dtype=dtype, bias=(True, True), before=30, after=0),
        Extended(2, 600, 600, 3, 64, dtype=dtype, bias=(True, False), by_query=False, before=64, after=64, padded=300),
        Extended(3, 50, 50, 3, 40, dtype=dtype, bias=(True, False), by_query=False, before=8, after=8, padded=30),
    )
    rows = [Row(f"more extended {dtype} {part}", more[part::4], gpu=True) for part in range(4)]
    for part in range(4) if dtype != "float32" else ():
        rows.append(Row(f"Hopper {dtype} {part}", hopper[part::4], ("h",), alone=True, gpu=True, major=9))
    return tuple(rows)


ROWS += tuple(row for dtype in ("float16", "bfloat16", "float32") for row in _on_gpus(dtype))
TABLE = Table("flash_attention", ROWS, fused, flash_attention.TABLE.error)
