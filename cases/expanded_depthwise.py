"""Depthwise convolutions behind a 1x1 convolution, as the layout pass leaves them, beside their results in float64."""

from __future__ import annotations

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from cases.depthwise import BEHIND, IN_FRONT, Case, fused, worst
from cases.models import OPSET, numpy_dtype, parse_nodes
from cases.table import INF, NAN, Row, Table
from onnxopt.program.dtypes import to_ir

BETWEEN = {
    **IN_FRONT,
    "silu": "s = Sigmoid(t)  x = Mul(t, s)",
    "relu": "x = Relu(t)",
    "hardswish": "q = Add(t, three)  r6 = Clip(q, zero, six)  m6 = Mul(t, r6)  x = Div(m6, six)",
}
_MAX_FLIPPED = 3  # multiples of eps by which a wide element that rounds the other way may move a sum


@dataclasses.dataclass(frozen=True)
class ExpandedCase(Case):
    """As a Case; x: [N, H, W, narrow]. wide: channels of the 1x1 convolution's result, and of the result. in_front: of
    BETWEEN. wide_bias: whether the 1x1 convolution has a bias."""

    dtype: str = "float16"
    wide: int = 16
    wide_bias: bool = True
    in_front: str = "silu"

    @property
    def channels(self) -> int:
        return self.wide

    def constants(self) -> dict[str, np.ndarray]:
        rng = np.random.default_rng([self.wide, self.x[3]])
        made = {"w1": rng.standard_normal((self.wide, self.x[3])) / np.sqrt(self.x[3])}
        made["b1"] = rng.standard_normal(self.wide)
        stored = {k: v.astype(numpy_dtype(self.dtype)).astype(np.float64) for k, v in made.items()}
        return super().constants() | stored

    def model(self, dtype: str | None = None) -> onnx.ModelProto:
        return self._model(dtype or self.dtype, self._every_node())

    def _every_node(self) -> list[onnx.NodeProto]:
        between, back = BETWEEN[self.in_front], BEHIND[self.behind]
        last = self._convolution("x" if between else "e", "v" if back else "y")
        return [*self._expansion(), *_of_e(between), *last, *parse_nodes(back)]

    def _expansion(self) -> list[onnx.NodeProto]:
        operands = ["t_nchw", "w1_4", *(["b1"] if self.wide_bias else [])]
        return [
            helper.make_node("Reshape", ["w1", "w1_dims"], ["w1_4"], name="shape_w1"),
            helper.make_node("Transpose", ["t"], ["t_nchw"], name="t_to_nchw", perm=[0, 3, 1, 2]),
            helper.make_node("Conv", operands, ["e_nchw"], name="expand"),
            helper.make_node("Transpose", ["e_nchw"], ["e"], name="e_to_nhwc", perm=[0, 2, 3, 1]),
        ]

    def _model(self, dtype: str, nodes: list[onnx.NodeProto], x: str = "t", y: str = "y") -> onnx.ModelProto:
        element = to_ir(dtype).value
        narrow = list(self.x) if self.known else ["N", "H", "W", self.x[3]]
        inputs = [helper.make_tensor_value_info(x, element, narrow if x == "t" else None)]
        if any("r" in node.input for node in nodes):
            inputs.append(helper.make_tensor_value_info("r", element, self.result_dims()))
        used = {name for node in nodes for name in node.input}
        stored = numpy_dtype(dtype)
        constants = [numpy_helper.from_array(a.astype(stored), k) for k, a in self.constants().items() if k in used]
        constants.append(numpy_helper.from_array(np.array([self.wide, self.x[3], 1, 1]), "w1_dims"))
        infos = [helper.make_tensor_value_info(y, element, None)]
        graph = helper.make_graph(nodes, "g", inputs, infos, constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)

    def expected(self, feeds: dict[str, np.ndarray]) -> np.ndarray:
        """The result in float64; the wide tensor is rounded as the graph stores it, behind both operators."""
        between, back = BETWEEN[self.in_front], BEHIND[self.behind]
        wide = self._rounded(self._model("float64", self._expansion(), "t", "e"), feeds["t"], "t")
        if between:
            wide = self._rounded(self._model("float64", _of_e(between), "e", "x"), wide, "e")
        nodes = [*self._convolution("x", "v" if back else "y"), *parse_nodes(back)]
        others = {k: v.astype(np.float64) for k, v in feeds.items() if k == "r"}
        (y,) = ReferenceEvaluator(self._model("float64", nodes, "x")).run(None, {"x": wide, **others})
        return np.asarray(y)

    def _rounded(self, model: onnx.ModelProto, value: np.ndarray, name: str) -> np.ndarray:
        (found,) = ReferenceEvaluator(model).run(None, {name: value.astype(np.float64)})
        return np.asarray(found).astype(numpy_dtype(self.dtype)).astype(np.float64)

    def limit(self) -> tuple[float, float]:
        eps = float(ml_dtypes.finfo(numpy_dtype(self.dtype)).eps)
        return 1.25 * eps, _MAX_FLIPPED * eps


def random_expanded(seed: int, dtype: str) -> ExpandedCase:
    """Any window, size and neighbours that a kernel takes."""
    rng = np.random.default_rng([seed, len(dtype), 5])

    def pick(*values: Any) -> Any:
        return values[int(rng.integers(len(values)))]

    kernel = pick((3, 3), (5, 5), (7, 7), (1, 1), (3, 5), (2, 4))
    pads = tuple(int(rng.integers(0, k)) for k in (*kernel, *kernel))
    auto_pad = pick("NOTSET", "NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")
    sizes = [k + int(rng.integers(0, 24)) for k in kernel]
    x = (int(rng.integers(1, 3)), *sizes, pick(8, 16, 24, 40, 48, 64))
    pads = pads if auto_pad == "NOTSET" else (0, 0, 0, 0)
    return ExpandedCase(
        x=x, kernel=kernel, strides=pick((1, 1), (2, 2), (1, 2), (2, 1)), pads=pads, auto_pad=auto_pad, dtype=dtype,
        bias=bool(rng.random() < 0.7), wide=pick(8, 16, 24, 40, 48, 72, 96), wide_bias=bool(rng.random() < 0.7),
        in_front=pick(*BETWEEN), behind=pick("", "silu", "relu", "hardswish"), known=bool(rng.random() < 0.6),
    )  # fmt: skip


def _of_e(between: str) -> list[onnx.NodeProto]:
    """The nodes between the convolutions, of the tensor `e`."""
    nodes = parse_nodes(between)
    for node in nodes:
        node.input[:] = ["e" if name == "t" else name for name in node.input]
    return nodes


_SAME = {3: (1, 1, 1, 1), 5: (2, 2, 2, 2)}


def _of_dtype(dtype: str) -> Row:
    first = ExpandedCase((2, 19, 17, 16), (3, 3), (2, 2), pads=_SAME[3], dtype=dtype, wide=96, behind="silu")
    cases = (
        first,
        dataclasses.replace(first, x=(1, 14, 14, 24), strides=(1, 1), wide=144, in_front="relu6", behind="relu"),
        dataclasses.replace(first, x=(1, 12, 9, 40), kernel=(5, 5), pads=_SAME[5], wide=240, strides=(1, 1)),
        dataclasses.replace(first, x=(1, 13, 16, 24), kernel=(5, 5), pads=_SAME[5], wide=72, in_front="hardswish"),
        dataclasses.replace(first, x=(3, 5, 7, 8), in_front="", wide=8, wide_bias=False, bias=False),
        dataclasses.replace(first, x=(1, 9, 10, 48), in_front="bias_silu", wide=56, behind="hardswish", known=False),
        dataclasses.replace(first, x=(1, 9, 10, 80), in_front="scale", wide=40, behind="", strides=(1, 2)),
        dataclasses.replace(first, x=(1, 8, 9, 64), kernel=(7, 7), pads=(3, 2, 4, 3), wide=24, strides=(2, 1)),
        dataclasses.replace(first, x=(2, 8, 9, 16), kernel=(2, 3), pads=(0, 0, 1, 2), wide=16),
        dataclasses.replace(first, x=(1, 1, 1, 96), wide=32, behind=""),
        dataclasses.replace(first, x=(1, 6, 7, 8), pads=(0, 0, 0, 0), auto_pad="SAME_LOWER", wide=48),
    )
    return Row(f"expanded {dtype}", cases, ("expanded",), alone=True)


def _random(dtype: str) -> Row:
    cases = tuple(dict.fromkeys(random_expanded(seed, dtype) for seed in range(12)))
    return Row(f"random expanded {dtype}", cases, ("expanded",), alone=True)


_ANYWHERE = ExpandedCase((2, 9, 7, 24), pads=_SAME[3], wide=40, behind="relu")
ROWS = (
    _of_dtype("float16"),
    _of_dtype("bfloat16"),
    Row(  # a caller's tensors may begin at any element
        "any address",
        (_ANYWHERE, dataclasses.replace(_ANYWHERE, kernel=(5, 5), pads=_SAME[5], strides=(2, 2))),
        ("expanded",),
        aligned=2,
    ),
    Row(  # a product's rows are pixels, and none of its columns is padded
        "infinities of x",
        (ExpandedCase((1, 18, 19, 8), pads=_SAME[3], wide=24, in_front="relu", behind="relu"),),
        ("expanded",),
        changed=(("t", (0, 3, 7, 5), INF), ("t", (0, 17, 18, 0), -INF), ("t", (0, 0, 17, 2), NAN)),
    ),
    _random("float16"),
    _random("bfloat16"),
)
_ANY = ExpandedCase((2, 9, 12, 24), (5, 5), (2, 2), pads=_SAME[5], wide=72, behind="silu", known=False)
_SIZES = ((1, 1, 1), (2, 9, 12), (3, 40, 7), (1, 3, 100), (0, 4, 4))
_DAMAGED = ExpandedCase(
    (2, 9, 10, 24), strides=(2, 2), pads=_SAME[3], wide=40, in_front="bias_silu", behind="silu", known=False
)
ROWS += (
    *(
        Row(
            f"more random expanded {dtype} {part}",
            tuple(random_expanded(s, dtype) for s in range(part, 40, 4)),
            gpu=True,
        )
        for dtype in ("float16", "bfloat16")
        for part in range(4)
    ),
    Row(
        "one expanded model",
        (
            *(dataclasses.replace(_ANY, x=(*x, 24)) for x in _SIZES),
            *(
                ExpandedCase((2, 113, 111, 16), strides=(2, 2), pads=_SAME[3], dtype=dtype, wide=96)
                for dtype in ("float16", "bfloat16")
            ),
        ),
        gpu=True,
    ),
)
TABLE = Table(
    "depthwise",
    ROWS,
    fused,
    lambda case, _, found, expected: worst(case, found, expected),
    damaged={"depthwise_expanded": (_DAMAGED,)},
)
