"""Norms over groups as the layout pass leaves them, fused, beside their results in float64."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import helper, numpy_helper

from cases.models import OPSET, Fused, fused_model, numpy_dtype, parse_nodes
from cases.table import INF, NAN, Row, Table
from onnxopt.graph.layout.orders import to_channels_first, to_channels_last
from onnxopt.program.dtypes import to_ir

# What stands in front and behind, as onnx text. `t` passes through in front, `v` behind; `c` and `d` have one element a
# channel, `e` one a channel of each sample, `r` the result's shape.
IN_FRONT = {
    "": "",
    "time": "x = Add(t, e)",
    "bias_time_silu": "b = Add(t, c)  h = Add(b, e)  s = Sigmoid(h)  x = Mul(h, s)",
}
BEHIND = {
    "": "",
    "affine": "m = Mul(v, c)  y = Add(m, d)",
    "affine_silu": "m = Mul(v, c)  a = Add(m, d)  s1 = Sigmoid(a)  y = Mul(a, s1)",
    "scale_shift": "m = Mul(v, e)  a = Add(m, d)  y = Relu(a)",
    "residual": "a = Add(v, r)  y = Mul(a, half)",
}
FORMS = ("spelled", "spelled_open", "group", "instance")


@dataclasses.dataclass(frozen=True)
class Case:
    """One norm. x: [N, H, W, C], or with D. form: how it is written. ones: whether scale and bias change nothing.
    known: whether the model states all but C. mean: of what is normed, in units of its deviation. part: where `e`
    begins in rows of an input `rows`, -1 where it is an input itself."""

    x: tuple[int, ...]
    groups: int
    dtype: str = "float32"
    form: str = "spelled"
    in_front: str = ""
    behind: str = ""
    ones: bool = False
    known: bool = True
    mean: float = 0.0
    epsilon: float = 1e-5
    part: int = -1

    @property
    def channels(self) -> int:
        return self.x[-1]

    @property
    def stored(self) -> str:
        """The dtype of the result."""
        return self.dtype

    def sizes(self) -> tuple[int, ...]:
        """What a call states: batch, height and width; the planes of a volume are rows."""
        return (self.x[0], math.prod(self.x[1:-2]), self.x[-2])

    def arrays(self, *, images: bool = True) -> dict[str, np.ndarray]:
        """Constants and inputs, of values that the dtype has, in float64. images: with those of the size of x."""
        rng = np.random.default_rng([self.channels, self.groups])
        c, each = self.channels, self.groups if self.form.startswith("spelled") else self.channels
        made = {name: rng.standard_normal(c) for name in ("c", "d")}
        made |= {"scale": 1 + rng.standard_normal(each) / 2, "bias": rng.standard_normal(each)}
        if self.ones:
            made |= {"scale": np.ones(each), "bias": np.zeros(each)}
        made |= {"e": rng.standard_normal((self.x[0], *self._ones, c)), "half": np.array(0.5)}
        made["rows"] = rng.standard_normal((self.x[0], self._row))
        made["rows"][:, max(self.part, 0) :][:, :c] = made["e"].reshape(self.x[0], c)
        if images:
            made |= {"t": rng.standard_normal(self.x) + self.mean, "r": rng.standard_normal(self.x)}
        return {k: v.astype(numpy_dtype(self.dtype)).astype(np.float64) for k, v in made.items()}

    def feeds(self) -> dict[str, np.ndarray]:
        arrays = self.arrays()
        return {k: arrays[k].astype(numpy_dtype(self.dtype)) for k in self.inputs()}

    def computed(self) -> dict[str, np.ndarray]:
        """What the graph computes of its inputs, and the region may read."""
        return {"e": self.arrays()["e"].astype(numpy_dtype(self.dtype))}

    def inputs(self) -> dict[str, list[Any]]:
        """The inputs of the model and their shapes."""
        names = ("N", *"DHW"[-len(self._ones) :], self.channels)
        x: list[Any] = list(self.x if self.known else names)
        n = x[0]
        shapes: dict[str, list[Any]] = {"t": x, "e": [n, *self._ones, self.channels], "r": x}
        text = IN_FRONT[self.in_front] + BEHIND[self.behind]
        read = {k: v for k, v in shapes.items() if k == "t" or f" {k})" in text}
        return {"rows" if k == "e" and self.part >= 0 else k: [n, self._row] if k == "e" and self.part >= 0 else v
                for k, v in read.items()}  # fmt: skip

    @property
    def _ones(self) -> tuple[int, ...]:
        """A 1 for each axis of an image or a volume."""
        return (1,) * (len(self.x) - 2)

    @property
    def _row(self) -> int:
        """Elements of a row of `rows`."""
        return max(self.part, 0) + self.channels + 16

    def model(self) -> onnx.ModelProto:
        element = to_ir(self.dtype).value
        nodes = self._cut() + parse_nodes(IN_FRONT[self.in_front])
        nodes += self._norm("x" if self.in_front else "t", "v" if self.behind else "y")
        nodes += parse_nodes(BEHIND[self.behind])
        made = {name for node in nodes for name in node.output}
        used = {name for node in nodes for name in node.input} - set(self.inputs()) - made
        stored = {k: v.astype(numpy_dtype(self.dtype)) for k, v in self.arrays(images=False).items()}
        stored |= {"from": np.array([self.part]), "to": np.array([self.part + self.channels]), "last": np.array([-1])}
        stored["split"] = np.array([0, self.groups, -1])
        stored["inner"] = np.arange(1, len(self.x) - 1)
        stored["back"] = np.array([self.x[0] if self.known else 0, self.channels, *self.x[1:-1]])
        constants = [numpy_helper.from_array(v, k) for k, v in stored.items() if k in used]
        inputs = [helper.make_tensor_value_info(k, element, v) for k, v in self.inputs().items()]
        infos = [helper.make_tensor_value_info("y", element, None)]
        graph = helper.make_graph(nodes, "g", inputs, infos, constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)

    def _cut(self) -> list[onnx.NodeProto]:
        if "rows" not in self.inputs():
            return []
        return [
            helper.make_node("Slice", ["rows", "from", "to", "last"], ["of_row"], name="cut"),
            helper.make_node("Unsqueeze", ["of_row", "inner"], ["e"], name="view"),
        ]

    def _norm(self, x: str, y: str) -> list[onnx.NodeProto]:
        first, last = to_channels_first(len(self.x)), to_channels_last(len(self.x))
        nodes = [helper.make_node("Transpose", [x], ["n"], name="to_nchw", perm=first)]
        if self.form.startswith("spelled"):
            if self.form == "spelled_open":
                nodes.append(helper.make_node("Shape", ["n"], ["shape"], name="shape"))
            dims = "shape" if self.form == "spelled_open" else "back"
            nodes += [
                helper.make_node("Reshape", ["n", "split"], ["g"], name="grouped"),
                helper.make_node("InstanceNormalization", ["g", "scale", "bias"], ["i"], name="norm",
                                 epsilon=self.epsilon),
                helper.make_node("Reshape", ["i", dims], ["w"], name="whole"),
            ]  # fmt: skip
        else:
            op_type = "GroupNormalization" if self.form == "group" else "InstanceNormalization"
            more = {"num_groups": self.groups} if self.form == "group" else {}
            nodes.append(helper.make_node(op_type, ["n", "scale", "bias"], ["w"], name="norm", epsilon=self.epsilon,
                                          **more))  # fmt: skip
        return [*nodes, helper.make_node("Transpose", ["w"], [y], name="to_nhwc", perm=last)]

    def expected(self, feeds: dict[str, np.ndarray]) -> np.ndarray:
        """The result in float64."""
        of = {**self.arrays(), **{k: np.asarray(v).astype(np.float64) for k, v in feeds.items()}}
        x = of["t"]
        if self.in_front == "time":
            x = x + of["e"]
        elif self.in_front:
            x = _silu(x + of["c"] + of["e"])
        grouped = x.reshape(x.shape[0], math.prod(x.shape[1:-1]), self.groups, self.channels // self.groups)
        apart = grouped - grouped.mean(axis=(1, 3), keepdims=True)
        normed = apart / np.sqrt((apart**2).mean(axis=(1, 3), keepdims=True) + self.epsilon)
        if self.form.startswith("spelled"):
            normed = normed * of["scale"][:, None] + of["bias"][:, None]
            v = normed.reshape(x.shape)
        else:
            v = normed.reshape(x.shape) * of["scale"] + of["bias"]
        return self._behind(v, of)

    def _behind(self, v: np.ndarray, of: dict[str, np.ndarray]) -> np.ndarray:
        if self.behind == "residual":
            return (v + of["r"]) * 0.5
        if self.behind == "scale_shift":
            return np.maximum(v * of["e"] + of["d"], 0)
        if self.behind:
            v = v * of["c"] + of["d"]
        return _silu(v) if self.behind == "affine_silu" else v

    def limit(self) -> tuple[float, float]:
        """Relative and absolute error that a result may have; float32 statistics and approximate sigmoids included."""
        if self.dtype == "float32":
            return 2e-5, 2e-5 * (1 + abs(self.mean))
        eps = float(ml_dtypes.finfo(numpy_dtype(self.dtype)).eps)
        return 0.75 * eps, 0.5 * eps


def _silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def fused(case: Case) -> Fused:
    """The case's model, fused."""
    return fused_model(case.model())


def worst(case: Case, found: np.ndarray, expected: np.ndarray) -> float:
    """The largest error as a multiple of the limit; NaN must lie at the same places."""
    relative, absolute = case.limit()
    wide = np.asarray(found).astype(np.float64)
    if wide.shape != expected.shape or not np.array_equal(np.isnan(wide), np.isnan(expected)):
        return np.inf
    error = np.abs(wide - expected) / (absolute + relative * np.abs(expected))
    return float(np.nan_to_num(error).max(initial=0.0))


def random_case(seed: int, dtype: str) -> Case:
    """Any size, form and neighbours."""
    rng = np.random.default_rng([seed, len(dtype)])

    def pick(*values: Any) -> Any:
        return values[int(rng.integers(len(values)))]

    form = pick(*FORMS)
    groups, each = pick(1, 2, 3, 4, 8, 32), pick(1, 2, 3, 4, 5, 8, 10, 20)
    if form == "instance":
        groups, each = groups * each, 1
    x = (pick(1, 2, 3), pick(1, 2, 5, 8, 16), pick(1, 3, 7, 8), groups * each)
    known = form == "spelled" or pick(True, False)
    return Case(x, groups, dtype, form, pick(*IN_FRONT), pick(*BEHIND), pick(True, False), known, pick(0.0, 0.0, 3.0),
                pick(1e-5, 1e-3), pick(-1, -1, 0, 8, 24, 5))  # fmt: skip


_LAYOUTS = ("held", "split0", "looped")


def _of_16_bits(dtype: str) -> Row:
    cases = (
        Case((1, 9, 11, 40), 8, dtype, in_front="time", behind="affine_silu", ones=True),
        Case((1, 6, 5, 80), 8, dtype, "group", behind="residual"),
        Case((1, 4, 4, 240), 16, dtype, "spelled_open", "bias_time_silu", "scale_shift", known=False),
        Case((1, 20, 20, 64), 64, dtype, "instance", behind="affine", known=False),
        Case((1, 3, 5, 10), 2, dtype, "group", "time"),
        Case((2, 8, 8, 160), 4, dtype, behind="affine_silu"),
        Case((3, 4, 5, 80), 8, dtype, "group", "time", "scale_shift", part=24),
    )
    return Row(dtype, cases, _LAYOUTS, alone=True)


_VOLUMES = (
    Case((1, 3, 9, 11, 40), 8, "float16", in_front="time", behind="affine_silu", ones=True),
    Case((2, 3, 4, 5, 80), 8, "float16", "group", "time", "scale_shift", part=24),
    Case((1, 8, 8, 8, 32), 32, "float16", "instance", behind="affine", known=False),
    Case((2, 2, 3, 5, 12), 4, "float32", "spelled_open", "bias_time_silu", "residual", known=False),
)


def _random(dtype: str) -> Row:
    return Row(f"random {dtype}", tuple({random_case(seed, dtype): None for seed in range(5)}))


ROWS = (
    Row("volumes", _VOLUMES),
    Row(
        "float32",
        (
            Case((2, 7, 9, 12), 4, in_front="time", behind="affine_silu"),
            Case((1, 5, 6, 6), 2, form="group", behind="residual"),
            Case((3, 1, 1, 8), 8, form="instance", behind="scale_shift"),  # a variance of nothing
            Case((1, 30, 40, 3), 1, form="spelled_open", known=False),
            Case((1, 3, 3, 33), 3, form="group", in_front="bias_time_silu", behind="affine"),
            Case((2, 4, 5, 40), 8, ones=True, behind="affine"),
            Case((1, 2, 2, 1023), 1, form="group", known=False),
            Case((1, 70, 70, 8), 2, form="group", known=False),
        ),
        _LAYOUTS,
        alone=True,
    ),
    _of_16_bits("float16"),
    _of_16_bits("bfloat16"),
    Row(  # costs no digits
        "a mean far from 0",
        (Case((1, 12, 20, 16), 4, form="group", known=False, mean=3000.0),),
        _LAYOUTS,
        alone=True,
    ),
    Row(  # spoil their groups alone
        "not a number",
        (Case((2, 6, 7, 16), 4, "float16", "group", behind="affine", known=False),),
        changed=(("t", (0, 3, 4, 5), NAN), ("t", (1, 0, 0, 0), INF)),
    ),
    _random("float32"),
    _random("float16"),
)
_DIFFUSION = (
    (4, 8, 8, 640), (4, 16, 16, 320), (4, 16, 16, 480), (4, 32, 32, 160), (2, 64, 64, 320), (1, 256, 256, 128),
)  # fmt: skip
_ANY = Case((1, 8, 8, 96), 32, "float16", "spelled_open", "time", "affine_silu", known=False, mean=2.0)
_SIZES = ((1, 8, 8), (4, 32, 32), (3, 1, 1), (2, 130, 55), (0, 8, 8), (16, 16, 16), (1, 300, 300))
_DAMAGED = {
    "group_norm": Case((2, 9, 10, 24), 4, "float16", "spelled_open", "bias_time_silu", "residual", known=False),
    "group_norm_plain": Case((1, 8, 8, 16), 16, form="instance", behind="scale_shift"),
}
ROWS += (
    *(
        Row(f"more random {dtype}", tuple(dict.fromkeys(random_case(seed, dtype) for seed in range(24))), gpu=True)
        for dtype in ("float16", "bfloat16", "float32")
    ),
    Row(  # sizes that take one block, clusters of two to eight, 512 threads, and two launches
        "diffusion networks",
        tuple(Case(x, 32, "float16", "spelled", "time", "affine_silu", ones=True) for x in _DIFFUSION),
        gpu=True,
    ),
    Row("one model", tuple(dataclasses.replace(_ANY, x=(*x, 96)) for x in _SIZES), gpu=True),
    Row(
        "not a number in a cluster",
        (Case((2, 32, 32, 160), 32, "float16", "group", behind="affine_silu"),),
        changed=(("t", (1, 31, 30, 77), NAN),),
        gpu=True,
    ),
)
TABLE = Table(
    "group_norm",
    ROWS,
    fused,
    lambda case, _, found, expected: worst(case, found, expected),
    single=False,
    damaged={name: (case,) for name, case in _DAMAGED.items()},
)
