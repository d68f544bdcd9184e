"""Mixtures of experts as the exporter of transformers writes them, fused, beside their results in float64."""

from __future__ import annotations

import dataclasses
import math

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from cases.models import Fused, fused_model, numpy_dtype
from cases.table import Row, Table
from onnxopt.fusion.region import Kernel
from onnxopt.program.dtypes import to_ir
from onnxopt.program.experts import ExpertsVariant

OPSET = 20
# From g, and u where there is a gate, to h.
ACTIVATIONS = {
    "silu": ["s = Sigmoid(g)", "a = Mul(g, s)", "h = Mul(a, u)"],
    "gelu": ["a = Gelu(g)", "h = Mul(a, u)"],
    "relu": ["h = Relu(g)"],
    "squared": ["a = Relu(g)", "h = Mul(a, a)"],
    "clamped": [
        "c = Clip(u, low_end, high_end)",
        "m = Min(g, high_end)",
        "s = Sigmoid(m)",
        "a = Mul(m, s)",
        "h = Mul(a, c)",
    ],
}


@dataclasses.dataclass(frozen=True)
class Case:
    """biased: both products have a bias of each expert. interleaved: a gate's factors are the even and the odd columns
    of the first product. tokens: of the feeds; the model states them where `known`. wide: factors are float32, else as
    x. plain: the rows' tokens are order / chosen, and experts are counted as they are; else as the exporter spells
    both. crowded: all tokens choose the same experts."""

    tokens: int
    experts: int = 4
    chosen: int = 2
    columns: int = 64
    hidden: int = 32
    dtype: str = "float32"
    activation: str = "silu"
    wide: bool = True
    known: bool = False
    plain: bool = False
    biased: bool = False
    interleaved: bool = False
    crowded: bool = False

    @property
    def gated(self) -> bool:
        return _is_gated(self.activation)

    def biases(self) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(6)
        widths = (self.hidden * (2 if self.gated else 1), self.columns)
        first, second = (rng.standard_normal((self.experts, n), np.float32) * self.biased for n in widths)
        return first.astype(numpy_dtype(self.dtype)), second.astype(numpy_dtype(self.dtype))

    def weights(self) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(5)
        wide = self.hidden * (2 if self.gated else 1)
        first = rng.standard_normal((self.experts, self.columns, wide), np.float32) / self.columns**0.5
        second = rng.standard_normal((self.experts, self.hidden, self.columns), np.float32) / self.hidden**0.5
        return first.astype(numpy_dtype(self.dtype)), second.astype(numpy_dtype(self.dtype))

    def feeds(self, seed: int = 0) -> dict[str, np.ndarray]:
        """Tokens, scores of the experts, of which the highest are chosen, and factors of the chosen."""
        rng = np.random.default_rng([seed, self.tokens])
        stored = numpy_dtype(self.dtype)
        ahead = 100.0 * (np.arange(self.experts) < self.chosen) * self.crowded
        return {
            "x": rng.standard_normal((self.tokens, self.columns), np.float32).astype(stored),
            "scores": (rng.standard_normal((self.tokens, self.experts)) + ahead).astype(np.float32),
            "factors": rng.random((self.tokens, self.chosen), np.float32).astype(np.float32 if self.wide else stored),
        }

    def expected(self, feeds: dict[str, np.ndarray]) -> np.ndarray:
        """The result in float64."""
        first, second, a, b = (w.astype(np.float64) for w in (*self.weights(), *self.biases()))
        x, factors = (feeds[name].astype(np.float64) for name in ("x", "factors"))
        ids = np.argsort(-feeds["scores"], axis=1, kind="stable")[:, : self.chosen]
        y = np.zeros_like(x)
        for c in range(self.chosen):
            sums = np.einsum("tk,tkn->tn", x, first[ids[:, c]]) + a[ids[:, c]]
            if self.interleaved:
                sums = np.concatenate([sums[:, ::2], sums[:, 1::2]], axis=1)
            h = _activated(self.activation, sums)
            y += factors[:, c : c + 1] * (np.einsum("tk,tkn->tn", h, second[ids[:, c]]) + b[ids[:, c]])
        return y

    def worst(self, y: np.ndarray, expected: np.ndarray) -> float:
        """The largest error in units of what rounding results, and what lies between the products, allows."""
        eps = 4e-6 if self.dtype == "float32" else float(ml_dtypes.finfo(numpy_dtype(self.dtype)).eps)
        found = y.astype(np.float64)
        if found.shape != expected.shape or not np.isfinite(found).all():
            return float("inf")
        return float((np.abs(found - expected) / (eps * (2 + np.abs(expected)))).max(initial=0.0))

    def model(self) -> onnx.ModelProto:
        element = to_ir(self.dtype).value
        tokens = self.tokens if self.known else "T"
        factors = TensorProto.FLOAT if self.wide else element
        infos = [
            helper.make_tensor_value_info("x", element, [tokens, self.columns]),
            helper.make_tensor_value_info("scores", TensorProto.FLOAT, [tokens, self.experts]),
            helper.make_tensor_value_info("factors", factors, [tokens, self.chosen]),
        ]
        first, second = self.weights()
        first_bias, second_bias = self.biases()
        held = {
            "first_bias": first_bias, "second_bias": second_bias, "evens": [0], "odds": [1], "behind": [2**63 - 1],
            "two": [2], "low_end": np.array(-1, first.dtype), "high_end": np.array(1, first.dtype),
            "first": first, "second": second, "k": [self.chosen], "flat": [-1], "last": [-1], "axis0": [0],
            "axis1": [1], "zero": 0, "one": 1, "chosen": self.chosen, "top": self.experts - 1,
            "apart": [-1, self.chosen, self.columns], "yes": np.array(True),
            "width": np.float32((self.experts - 1) / self.experts), "one_f": np.float32(1),
            "zeros": np.zeros(self.experts, np.float32),
        }  # fmt: skip
        nodes = [*self._sorted(), *self._tokens(), *self._ends(), *self._products("rows", "first", "sums")]
        if self.interleaved:
            nodes += [_node(f"{n} = Slice(sums, {k}s, behind, axis1, two)") for n, k in (("g", "even"), ("u", "odd"))]
        elif self.gated:
            nodes.append(_node("g, u = Split(sums)", axis=1, num_outputs=2))
        nodes += [_node(line if self.gated else line.replace("(g", "(sums")) for line in ACTIVATIONS[self.activation]]
        nodes += [*self._products("h", "second", "parts"), *self._added(element)]
        used = {name for n in nodes for name in n.input}
        kept = [numpy_helper.from_array(_array(v), name) for name, v in held.items() if name in used]
        y = helper.make_tensor_value_info("y", element, [tokens, self.columns])
        graph = helper.make_graph(nodes, "g", infos, [y], kept)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)

    def _sorted(self) -> list[onnx.NodeProto]:
        return [
            _node("best, ids = TopK(scores, k)"), _node("flat_ids = Reshape(ids, flat)"),
            _node("all = Shape(flat_ids)"), _node("sorted, order = TopK(flat_ids, all)", largest=0),
            _node("column = Unsqueeze(order, last)"),
        ]  # fmt: skip

    def _tokens(self) -> list[onnx.NodeProto]:
        exact = [
            _node("below = Less(order, zero)"), _node("is_below = Equal(below, yes)"),
            _node("rest = Mod(order, chosen)"), _node("has_rest = Cast(rest)", to=TensorProto.BOOL),
            _node("both = And(is_below, has_rest)"),
            _node("less = Cast(both)", to=TensorProto.INT64), _node("quotient = Div(order, chosen)"),
            _node("token = Sub(quotient, less)"),
        ]  # fmt: skip
        made = [_node("token = Div(order, chosen)")] if self.plain else exact
        return [*made, _node("at = Unsqueeze(token, last)"), _node("rows = GatherND(x, at)")]

    def _ends(self) -> list[onnx.NodeProto]:
        binned = [
            _node("sorted_f = Cast(sorted)", to=TensorProto.FLOAT), _node("quotients = Div(sorted_f, width)"),
            _node("whole = Cast(quotients)", to=TensorProto.INT64), _node("bins = Clip(whole, zero, top)"),
        ]  # fmt: skip
        begins = ["zero", *(f"until{e}" for e in range(self.experts - 1))]
        bins = "sorted" if self.plain else "bins"
        return [
            *([] if self.plain else binned), _node(f"long = Shape({bins})"), _node("ones = Expand(one_f, long)"),
            _node(f"counts = ScatterElements(zeros, {bins}, ones)", reduction="add"),
            _node("counted = Cast(counts)", to=TensorProto.INT32), _node("totals = CumSum(counted, zero)"),
            _node("ends = Cast(totals)", to=TensorProto.INT64),
            _node(f"{', '.join(f'end{e}' for e in range(self.experts))} = Split(ends)", num_outputs=self.experts),
            *(_node(f"until{e} = Squeeze(end{e}, axis0)") for e in range(self.experts)),
            *(_node(f"range{e} = Range({begin}, until{e}, one)") for e, begin in enumerate(begins)),
        ]  # fmt: skip

    def _products(self, rows: str, weight: str, result: str) -> list[onnx.NodeProto]:
        parts = [f"{weight}{e}" for e in range(self.experts)]
        made = [_node(f"{', '.join(parts)} = Split({weight})", num_outputs=self.experts)]
        for e, part in enumerate(parts):
            made += [
                _node(f"{result}_rows{e} = Gather({rows}, range{e})"), _node(f"{part}s = Squeeze({part}, axis0)"),
                _node(f"{result}{e} = MatMul({result}_rows{e}, {part}s)"),
            ]  # fmt: skip
        joined = ", ".join(f"{result}{e}" for e in range(self.experts))
        if not self.biased:
            return [*made, _node(f"{result} = Concat({joined})", axis=0)]
        return [
            *made, _node(f"{result}_plain = Concat({joined})", axis=0), _node(f"of_{weight} = Unsqueeze(sorted, last)"),
            _node(f"biased_{weight} = GatherND({weight}_bias, of_{weight})"),
            _node(f"{result} = Add({result}_plain, biased_{weight})"),
        ]  # fmt: skip

    def _added(self, element: int) -> list[onnx.NodeProto]:
        sixteen = self.dtype != "float32"
        cast, summed = self.wide and sixteen, "of_tokens" if self.wide or not sixteen else "of_tokens_f"
        return [
            _node("flat_factors = Reshape(factors, flat)"), _node("f = GatherND(flat_factors, column)"),
            _node("f_column = Unsqueeze(f, last)"),
            *([_node("parts_f = Cast(parts)", to=TensorProto.FLOAT)] if cast else []),
            _node(f"scaled = Mul({'parts_f' if cast else 'parts'}, f_column)"), _node("count = Shape(order)"),
            _node("nothing = Expand(zero, count)"), _node("number = Squeeze(count)"),
            _node("numbers = Range(zero, number, one)"), _node("back = ScatterND(nothing, column, numbers)"),
            _node("back_column = Unsqueeze(back, last)"), _node("in_place = GatherND(scaled, back_column)"),
            _node("of_tokens = Reshape(in_place, apart)"),
            *([] if summed == "of_tokens" else [_node(f"{summed} = Cast(of_tokens)", to=TensorProto.FLOAT)]),
            _node(f"{'total' if sixteen else 'y'} = ReduceSum({summed}, axis1)", keepdims=0),
            *([_node("y = Cast(total)", to=element)] if sixteen else []),
        ]  # fmt: skip


def _array(value: object) -> np.ndarray:
    return (
        value
        if isinstance(value, np.ndarray)
        else np.asarray(value, None if isinstance(value, np.generic) else np.int64)
    )


def _node(text: str, **attributes: object) -> onnx.NodeProto:
    results, call = text.split(" = ")
    op, operands = call.rstrip(")").split("(")
    return helper.make_node(op, operands.split(", "), results.split(", "), name=results.split(", ")[0], **attributes)


def _is_gated(activation: str) -> bool:
    return "u" in {
        operand for line in ACTIVATIONS[activation] for operand in line.rstrip(")").split("(")[1].split(", ")
    }


def _activated(name: str, sums: np.ndarray) -> np.ndarray:
    g, u = np.split(sums, 2, axis=1) if _is_gated(name) else (sums, sums)
    if name == "clamped":
        g = np.minimum(g, 1)
        return g / (1 + np.exp(-g)) * np.clip(u, -1, 1)
    if name == "silu":
        return g / (1 + np.exp(-g)) * u
    if name == "gelu":
        erf = np.vectorize(math.erf, otypes=[np.float64])
        return 0.5 * g * (1 + erf(g / 2**0.5)) * u
    return np.maximum(g, 0) ** (2 if name == "squared" else 1)


def fused(case: Case) -> Fused:
    """The case's model, normalized by hand and fused."""
    return fused_model(case.model())


def multiplied_by_cublaslt(kernel: Kernel, least_rows: int) -> Kernel:
    """The kernel with another least number of rows of an expert from which cuBLASLt multiplies."""
    variants = tuple(
        dataclasses.replace(v, least_rows=least_rows)
        if isinstance(v, ExpertsVariant) and v.symbol == f"{kernel.name}_sort"
        else v
        for v in kernel.variants
    )
    assert variants != kernel.variants
    return dataclasses.replace(kernel, variants=variants)


def at_tokens(case: Case, *tokens: int) -> tuple[Case, ...]:
    """The same model for other numbers of tokens, in order."""
    return tuple(dataclasses.replace(case, tokens=n) for n in tokens)


def _crowded(case: Case) -> Case:
    return dataclasses.replace(case, crowded=True)


GPU_TOKENS = (1, 3, 16, 17, 128, 700)
GPU_CASES = (
    Case(1, 8, 2, 256, 520, "float16"), Case(1, 60, 4, 264, 96, "bfloat16", wide=False),
    Case(1, 5, 3, 100, 68, "float32"), Case(1, 128, 8, 128, 64, "float16", "gelu"),
    Case(1, 16, 1, 64, 200, "float16", "squared", plain=True),
    Case(1, 32, 4, 2880, 96, "bfloat16", "clamped", wide=False, biased=True, interleaved=True),
)  # fmt: skip
FEW = ("first16", "second16", "join")
SEVERAL = ("first32", "second32", "join")
SOME = ("route64", "first64", "second64", "join")
MANY = ("route128", "first128", "second128", "join")
_SHORT, _TALL = Case(1, 4, 2, 72, 40, "float32", "silu"), Case(17, 3, 2, 40, 24, "float16")
ROWS = (
    *(
        Row(f"few tokens {case.dtype}", (*at_tokens(case, 1, 2), _crowded(at_tokens(case, 16)[0])), FEW, alone=True)
        for case in (_SHORT, dataclasses.replace(_SHORT, dtype="float16", activation="gelu"))
    ),
    Row(  # 17 tokens: an expert with more rows than 16. 40 and 150: more rows than a tile has, and experts with few
        "more tokens take larger tiles",
        tuple(map(_crowded, at_tokens(_TALL, 17, 40, 150))),
        (*SEVERAL, *SOME, *MANY),
        alone=True,
    ),
    Row("one expert a token", at_tokens(Case(3, 4, 1, 24, 16, "float16", "gelu", biased=True), 3, 70), (*FEW, *SOME)),
    Row("as many rows as tiles of all experts", tuple(map(_crowded, at_tokens(_TALL, 96))), SOME, alone=True),
    Row("as many tokens as a tile", at_tokens(_TALL, 32), SEVERAL, alone=True),
    Row(  # columns and rows give few blocks; the last of a depth's parts is shorter
        "blocks share a depth",
        (Case(2, 4, 2, 1096, 8, "float16"),),
        (*FEW, "activate"),
        alone=True,
    ),
    Row("blocks share a hidden depth", (Case(2, 4, 2, 8, 1032, "float32", "squared"),), FEW, alone=True),
    Row(
        "biases and interleaved gates",
        at_tokens(Case(2, 3, 2, 40, 72, "bfloat16", "clamped", wide=False, biased=True, interleaved=True), 2, 40),
        (*FEW, *SOME),
        alone=True,
    ),
    Row(
        "biases where the depth is split",
        at_tokens(Case(2, 3, 2, 1096, 8, "float32", "clamped", biased=True, interleaved=True), 2, 40),
        (*FEW, *SOME, "activate"),
        alone=True,
    ),
    *(
        Row(f"any tokens {k}", (*(of := at_tokens(case, *GPU_TOKENS)), *map(_crowded, of)), gpu=True)
        for k, case in enumerate(GPU_CASES)
    ),
)
TABLE = Table(
    "experts",
    ROWS,
    fused,
    lambda case, _, found, expected: case.worst(found, expected),
    emulated="sessions",
    single=False,
    damaged={"experts": at_tokens(Case(3, 4, 2, 64, 32, "float16"), 3, 40)},
)
