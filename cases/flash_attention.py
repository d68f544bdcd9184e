"""Attentions of many queries as MultiHeadAttention, fused, beside their results in float64."""

from __future__ import annotations

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from cases.models import OPSET, Fused, fuse, numpy_dtype, outline
from cases.table import INF, NAN, Row, Table
from onnxopt.program.dtypes import to_ir

_EPS_OF_TF32, _EPS_OF_FLOAT32 = 2.0**-9, 2.0**-18
LAYOUTS = ("split", "slices", "interleaved", "apart", "heads")


@dataclasses.dataclass(frozen=True)
class Case:
    """One attention. layout: where q, k and v lie.

    split, slices: parts of each token of one tensor. interleaved: [B, S, heads, 3, width]. apart: three tensors. heads:
    k and v are [B, heads, keys, width]. bias: its first two dims are 1 or the batch and the heads. period: of the bias,
    which a Tile repeats along the batch; 0 without one. known: the graph
    states the batch, and the number of queries where it differs from that of keys.
    """

    batch: int
    queries: int
    keys: int
    heads: int
    width: int
    values: int = 0
    dtype: str = "float16"
    layout: str = "apart"
    bias: tuple[bool, bool] | None = None
    causal: bool = False
    scale: float = 0.0
    known: bool = True
    period: int = 0

    @property
    def stored(self) -> str:
        """The dtype of the result."""
        return self.dtype

    def sizes(self) -> tuple[int, ...]:
        """What a call states: batch, queries, keys, period of the bias, whether it has a part a head and a query."""
        by_batch, by_head = self.bias or (False, False)
        by_query = int(self.shapes()["bias"][2] != 1) if self.bias else 1
        return (
            self.batch,
            self.queries,
            self.keys,
            self.period or (self.batch if by_batch else 1),
            int(by_head),
            by_query,
        )

    @property
    def of_values(self) -> int:
        return self.values or self.width

    @property
    def widths(self) -> tuple[int, int, int]:
        return (self.width, self.width, self.of_values)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The inputs' shapes."""
        b, s, t, n = self.batch, self.queries, self.keys, self.heads
        if self.layout in ("split", "slices"):
            made: dict[str, tuple[int, ...]] = {"x": (b, s, n * sum(self.widths))}
        elif self.layout == "interleaved":
            made = {"x": (b, s, n, 3, self.width)}
        elif self.layout == "heads":
            made = {"q": (b, s, n * self.width), "k": (b, n, t, self.width), "v": (b, n, t, self.of_values)}
        else:
            made = {"q": (b, s, n * self.width), "k": (b, t, n * self.width), "v": (b, t, n * self.of_values)}
        if self.bias is not None:
            made["bias"] = (self.period or (b if self.bias[0] else 1), n if self.bias[1] else 1, s, t)
        return made

    def model(self) -> onnx.ModelProto:
        element = to_ir(self.dtype).value
        infos = [helper.make_tensor_value_info(k, element, self._stated(k, v)) for k, v in self.shapes().items()]
        y = helper.make_tensor_value_info("y", element, None)
        ends = np.cumsum([0, *(self.heads * width for width in self.widths)]).tolist()
        constants = {f"n{end}": [end] for end in ends} | {"axis": [-1], "sizes": np.diff(ends).tolist()}
        constants["repeats"] = [self.batch // max(self.period, 1), 1, 1, 1]
        nodes = []
        if self.layout == "split":
            nodes.append(helper.make_node("Split", ["x", "sizes"], ["q", "k", "v"], name="cut", axis=2))
        if self.layout == "slices":
            for name, first, end in zip("qkv", ends, ends[1:], strict=False):
                bounds = ["x", f"n{first}", f"n{end}", "axis"]
                nodes.append(helper.make_node("Slice", bounds, [name], name=f"cut_{name}"))
        given = ["x"] if self.layout == "interleaved" else ["q", "k", "v"]
        if self.bias is not None:
            given = [*given, *[""] * (5 - len(given)), "tiled" if self.period else "bias"]
        if self.period:
            nodes.append(helper.make_node("Tile", ["bias", "repeats"], ["tiled"], name="tile"))
        attributes: dict[str, Any] = {"num_heads": self.heads, "unidirectional": int(self.causal)}
        attributes |= {"scale": self.scale} if self.scale else {}
        nodes.append(
            helper.make_node("MultiHeadAttention", given, ["y"], name="mha", domain="com.microsoft", **attributes)
        )
        used = {name for node in nodes for name in node.input}
        kept = [numpy_helper.from_array(np.array(v, np.int64), k) for k, v in constants.items() if k in used]
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(helper.make_graph(nodes, "g", infos, [y], kept), opset_imports=opsets, ir_version=10)

    def prepared(self) -> ir.Model:
        """The model as it is fused."""
        return ir.serde.deserialize_model(self.model())

    def _stated(self, name: str, dims: tuple[int, ...]) -> list[Any]:
        stated: list[Any] = list(dims)
        if not self.known:
            stated[0] = 1 if name == "bias" and dims[0] == 1 else "B"
            if name == "q" and self.layout != "split":
                stated[1] = "S"
            if name == "bias":
                stated[2] = "S"
        return stated

    def feeds(self, seed: int = 0) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(seed)
        return {k: rng.standard_normal(v).astype(numpy_dtype(self.dtype)) for k, v in self.shapes().items()}

    def expected(self, feeds: dict[str, np.ndarray]) -> np.ndarray:
        """The result in float64."""
        wide = {k: v.astype(np.float64) for k, v in feeds.items()}
        b, n = self.batch, self.heads
        if self.layout == "interleaved":
            q, k, v = (wide["x"][:, :, :, part].transpose(0, 2, 1, 3) for part in range(3))
        else:
            if "x" in wide:
                ends = np.cumsum([n * width for width in self.widths])[:-1]
                wide |= dict(zip("qkv", np.split(wide["x"], ends, axis=2), strict=True))
            q, k, v = (
                x if x.ndim == 4 else x.reshape(b, x.shape[1], n, width).transpose(0, 2, 1, 3)
                for x, width in zip((wide["q"], wide["k"], wide["v"]), self.widths, strict=True)
            )
        if self.period:
            wide["bias"] = np.tile(wide["bias"], (b // self.period, 1, 1, 1))
        scores = (self.scale or self.width**-0.5) * (q @ k.transpose(0, 1, 3, 2)) + wide.get("bias", 0.0)
        if self.causal:
            hidden = np.arange(self.keys)[None] > np.arange(self.queries)[:, None] + self.keys - self.queries
            scores = np.where(hidden, -np.inf, scores)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True, initial=-np.inf))
        y = (weights / weights.sum(axis=-1, keepdims=True)) @ v
        made: np.ndarray = y.transpose(0, 2, 1, 3).reshape(b, self.queries, n * self.of_values)
        return made

    def worst(self, y: np.ndarray, expected: np.ndarray, *, exact: bool = True) -> float:
        """The largest error in units of what rounding weights and results allows; infinite where NaNs differ.

        exact: products of float32 are not rounded to TF32.
        """
        eps = float(ml_dtypes.finfo(numpy_dtype(self.dtype)).eps)
        if self.dtype == "float32":  # scores are rounded by their size, as of heads without a scale
            eps = _EPS_OF_FLOAT32 if exact else _EPS_OF_TF32
            eps *= max(1.0, self.scale * self.width**0.5)
        found = y.astype(np.float64)
        if found.shape != expected.shape or (np.isnan(found) != np.isnan(expected)).any():
            return float("inf")
        error = np.abs(found - expected) / (eps * (0.75 * np.abs(expected) + 0.75))
        return float(np.nanmax(error, initial=0.0))


def random_case(seed: int, dtype: str) -> Case:
    """Any lengths, heads and layout that a kernel is made for."""
    rng = np.random.default_rng([seed, len(dtype)])

    def pick(*values: Any) -> Any:
        return values[int(rng.integers(len(values)))]

    layout = pick(*LAYOUTS)
    width = pick(8, 16, 20, 24, 32, 40, 48, 64, 72, 80, 96, 128, int(rng.integers(1, 257)))
    other = pick(8, 16, 48, 64, 128, int(rng.integers(1, 257)))
    values = width if layout == "interleaved" or rng.random() < 0.7 else other
    packed = layout in ("split", "slices", "interleaved")
    keys = int(rng.integers(1, 150 if packed else 129))
    queries = keys if packed else int(rng.integers(1, 150))
    causal = bool(rng.random() < 0.3) and queries <= keys
    return Case(
        int(rng.integers(1, 3)), queries, keys, int(rng.integers(1, 3)), width, values, dtype, layout,
        None if rng.random() < 0.6 else (bool(rng.random() < 0.5), bool(rng.random() < 0.5)), causal,
        pick(0.0, 0.0, 0.3), bool(rng.random() < 0.6),
    )  # fmt: skip


def fused(case: Case) -> Fused:
    """The case's model, fused."""
    original = case.model()
    model = case.prepared()
    plan = fuse(model)
    kernels = outline(model, plan)
    return Fused(plan, kernels, original, ir.to_proto(model))


WINDOWS = Case(5, 49, 49, 3, 32, layout="split", bias=(False, True))


def _forms(dtype: str) -> Row:
    """Every other case of bfloat16, whose products and conversions alone are others."""
    cases = (
        WINDOWS,
        Case(3, 20, 20, 2, 20, layout="slices", bias=(True, True)),
        Case(2, 70, 77, 2, 40),
        Case(1, 140, 140, 1, 64, layout="interleaved", causal=True),
        Case(2, 33, 100, 2, 16, 24, layout="heads", bias=(True, False)),
        Case(1, 17, 128, 1, 48, layout="apart", causal=True, known=False, scale=0.3, values=8),
        Case(1, 3, 5, 2, 7, 11),
        Case(1, 20, 90, 1, 256, layout="heads"),
        Case(6, 20, 20, 2, 16, layout="split", bias=(True, True), period=3),
        Case(8, 9, 9, 1, 16, layout="split", bias=(True, False), period=4),
        Case(1, 140, 100, 1, 128, layout="heads"),
    )
    chosen = cases[::2] if dtype == "bfloat16" else cases
    return Row(f"forms {dtype}", tuple(dataclasses.replace(case, dtype=dtype) for case in chosen))


def _sees_no_key(dtype: str, without_products: bool) -> Row:
    """A causal query that sees no key is not a number."""
    case = Case(1, 9, 6, 1, 8, dtype=dtype, causal=True, known=False)
    return Row(f"no key {dtype}", (case,), without_products=without_products)


_TILES = (
    "w2k128s", "w2k128t", "w2k32t", "w2k64s", "w2k64t", "w4k112s", "w4k112t", "w4k128s",
    "w4k128t", "w4k32t", "w4k64s", "w4k64t1a2", "w4k64t1a16", "w4k64t2", "w4k80s", "w4k80t", "w8k128s", "w8k128t",
    "w8k64s", "w8k64t", "w8k80s", "w8k80t",
)  # fmt: skip
ROWS = (
    _forms("float16"),
    _forms("bfloat16"),
    _forms("float32"),
    _sees_no_key("float16", False),
    _sees_no_key("bfloat16", True),
    _sees_no_key("float32", False),
    Row(
        "every tile",
        (dataclasses.replace(WINDOWS, batch=2, queries=49), Case(1, 90, 90, 1, 24, layout="split", causal=True)),
        _TILES,
        every=True,
    ),
    Row(  # with more blocks than multiprocessors: only then do warps take two bands of queries
        "two bands", (Case(200, 20, 20, 1, 24, layout="split"),), ("w4b2k32t", "w4b2k64t"), every=True, gpu=True
    ),
    Row(  # as bfloat16 is computed on GPUs that have no products of it
        "without products",
        (
            dataclasses.replace(WINDOWS, batch=3, dtype="bfloat16"),
            Case(1, 40, 70, 2, 40, 48, "bfloat16", "heads", causal=True),
            Case(2, 3, 5, 2, 7, 11, "bfloat16", bias=(True, False)),
        ),
        without_products=True,
    ),
    Row("random", tuple(random_case(seed, dtype) for seed, dtype in enumerate(("float16", "float32", "float32")))),
    *(
        Row(f"more random {dtype}", tuple(random_case(seed, dtype) for seed in range(3, 30)), exhaustive=True)
        for dtype in ("float16", "float32")
    ),
)
_ANY = (Case(2, 20, 50, 3, 32, bias=(True, True), known=False), Case(2, 20, 50, 3, 64, known=False))
_SIZES = ((1, 1), (300, 70), (2, 50), (5, 1000))
_DAMAGED = {
    "flash_attention": Case(4, 9, 9, 2, 24, layout="split", bias=(True, True), period=2),
    "flash_attention_apart": Case(2, 5, 20, 3, 16, 8, "bfloat16", "heads", causal=True, known=False),
}
ROWS += (
    *(
        Row(f"random on a GPU {dtype} {part}", tuple(random_case(s, dtype) for s in range(part, 40, 4)), gpu=True)
        for dtype in ("float16", "bfloat16", "float32")
        for part in range(4)
    ),
    Row("one model", tuple(dataclasses.replace(c, batch=b, queries=q) for c in _ANY for b, q in _SIZES), gpu=True),
    Row(
        "hidden rows and infinite keys",
        (Case(2, 40, 70, 2, 24, bias=(True, False)),),
        changed=(*(("bias", (0, 0, 3, k), -INF) for k in range(70)), ("k", (1, 5, 7), NAN)),
        gpu=True,
    ),
)
TABLE = Table(
    "flash_attention",
    ROWS,
    fused,
    lambda case, symbol, found, expected: case.worst(found, expected, exact=symbol.endswith("x")),
    damaged={name: (case,) for name, case in _DAMAGED.items()},
)
