"""Depthwise convolutions as the layout pass leaves them, fused, beside their results in float64."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from cases.models import OPSET, Fused, fuse, numpy_dtype, outline, parse_nodes
from cases.table import INF, NAN, Row, Table
from onnxopt.fusion.region import Kernel
from onnxopt.kinds.depthwise import expanded
from onnxopt.kinds.depthwise.kind import DepthwiseKind
from onnxopt.program.dtypes import to_ir

# What stands in front and behind, as onnx text over names: `t` is what passes through, `c` has one element a channel,
# `r` has the result's shape. `v1` and `v2` are the halves of the channels, of which `half` has one element for each.
IN_FRONT = {
    "": "",
    "bias_silu": "b = Add(t, c)  s = Sigmoid(b)  x = Mul(b, s)",
    "relu6": "x = Clip(t, zero, six)",
    "scale": "x = Mul(t, c)",
}
BEHIND = {
    "": "",
    "relu": "y = Relu(v)",
    "silu": "s1 = Sigmoid(v)  y = Mul(v, s1)",
    "residual": "y = Add(v, r)",
    "gelu_residual_scale": "h = Gelu(v)  m = Mul(h, d)  y = Add(m, r)",
    "gate": "y = Mul(v1, v2)",
    "gelu_gate": "h = Gelu(v1)  m = Mul(h, v2)  y = Mul(m, half)",
    "gate_residual": "s1 = Sigmoid(v2)  m = Mul(v1, s1)  y = Add(m, r)",
    "hardswish": "a1 = Add(v, three)  a2 = Clip(a1, zero, six)  a3 = Mul(v, a2)  y = Div(a3, six)",
}


@dataclasses.dataclass(frozen=True)
class Case:
    """One convolution. x: [N, H, W, C]; kernel: (R, S). auto_pad: where not NOTSET, pads are left out. skip: the
    residual is x itself. known: whether the model states N, H and W."""

    x: tuple[int, int, int, int]
    kernel: tuple[int, int] = (3, 3)
    strides: tuple[int, int] = (1, 1)
    dilations: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    auto_pad: str = "NOTSET"
    dtype: str = "float32"
    bias: bool = True
    in_front: str = ""
    behind: str = ""
    skip: bool = False
    known: bool = True

    @property
    def channels(self) -> int:
        return self.x[3]

    @property
    def is_gated(self) -> bool:
        """Whether what follows reads halves of the channels."""
        return "v1" in BEHIND[self.behind]

    @property
    def stored(self) -> str:
        """The dtype of the result."""
        return self.dtype

    def sizes(self) -> tuple[int, ...]:
        """What a call states: batch, height and width."""
        return self.x[:3]

    def window(self) -> dict[str, object]:
        found: dict[str, object] = {"strides": self.strides, "dilations": self.dilations, "kernel_shape": self.kernel}
        return found | ({"pads": self.pads} if self.auto_pad == "NOTSET" else {"auto_pad": self.auto_pad})

    def constants(self) -> dict[str, np.ndarray]:
        """The initializers in float64."""
        rng = np.random.default_rng([self.channels, *self.kernel])
        made = {"w": rng.standard_normal((*self.kernel, 1, self.channels)) / np.sqrt(self.kernel[0] * self.kernel[1])}
        for name in ("bias", "c", "d"):
            made[name] = rng.standard_normal(self.channels)
        made["half"] = made["d"][: self.channels // 2]
        made |= {"zero": np.array(0.0), "six": np.array(6.0), "three": np.array(3.0)}
        return {k: v.astype(numpy_dtype(self.dtype)).astype(np.float64) for k, v in made.items()}

    def model(self, dtype: str | None = None) -> onnx.ModelProto:
        """The model in its own dtype, or in another one with the same constants."""
        element = to_ir(dtype or self.dtype).value
        stored = numpy_dtype(dtype or self.dtype)
        front, back = IN_FRONT[self.in_front], BEHIND[self.behind]
        names = ["N", "H", "W", self.channels]
        shape = list(self.x) if self.known else names
        behind = names if self.result_dims() == list(self.x) else ["N", "Ho", "Wo", self.result_dims()[3]]
        result = self.result_dims() if self.known else behind
        inputs = [helper.make_tensor_value_info("t", element, shape)]
        if "r)" in back and not self.skip:
            inputs.append(helper.make_tensor_value_info("r", element, result))
        nodes = [*parse_nodes(front), *self._convolution("x" if front else "t", "v" if back else "y")]
        if self.is_gated:
            nodes.append(helper.make_node("Split", ["v"], ["v1", "v2"], name="split", axis=3, num_outputs=2))
        nodes += parse_nodes(back.replace("r)", "t)") if self.skip else back)
        used = {name for node in nodes for name in node.input}
        constants = [numpy_helper.from_array(a.astype(stored), k) for k, a in self.constants().items() if k in used]
        infos = [helper.make_tensor_value_info("y", element, None)]
        graph = helper.make_graph(nodes, "g", inputs, infos, constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)

    def _convolution(self, x: str, y: str) -> list[onnx.NodeProto]:
        operands = ["x_nchw", "w_krs", *(["bias"] if self.bias else [])]
        return [
            helper.make_node("Transpose", ["w"], ["w_krs"], name="turn_w", perm=[3, 2, 0, 1]),
            helper.make_node("Transpose", [x], ["x_nchw"], name="to_nchw", perm=[0, 3, 1, 2]),
            helper.make_node("Conv", operands, ["y_nchw"], name="conv", group=self.channels, **self.window()),
            helper.make_node("Transpose", ["y_nchw"], [y], name="to_nhwc", perm=[0, 2, 3, 1]),
        ]

    def result_dims(self) -> list[int]:
        """[N, Ho, Wo, C]; as ONNX defines them."""
        out = []
        for axis in range(2):
            size, stride = self.x[1 + axis], self.strides[axis]
            reach = (self.kernel[axis] - 1) * self.dilations[axis] + 1
            if self.auto_pad.startswith("SAME"):
                out.append(-(-size // stride))
            else:
                out.append((size + self.pads[axis] + self.pads[2 + axis] - reach) // stride + 1)
        return [self.x[0], *out, self.channels // 2 if self.is_gated else self.channels]

    def feeds(self, seed: int = 0) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(seed)
        stored = numpy_dtype(self.dtype)
        found = {"t": rng.standard_normal(self.x).astype(stored)}
        if "r)" in BEHIND[self.behind] and not self.skip:
            found["r"] = rng.standard_normal(self.result_dims()).astype(stored)
        return found

    def expected(self, feeds: dict[str, np.ndarray]) -> np.ndarray:
        """The result in float64; what is padded is rounded as the graph stores it."""
        wide = {k: v.astype(np.float64) for k, v in feeds.items()}
        if self.in_front and self.dtype != "float32":
            front = ReferenceEvaluator(self._front_model()).run(None, {"t": wide["t"]})[0]
            wide["t0"], wide["t"] = wide["t"], front.astype(numpy_dtype(self.dtype)).astype(np.float64)
            if self.skip:
                wide["r"] = wide["t0"]
            model = dataclasses.replace(self, in_front="", skip=False).model("float64")
        else:
            model = self.model("float64")
        (y,) = ReferenceEvaluator(model).run(None, {i.name: wide[i.name] for i in model.graph.input})
        return np.asarray(y)

    def _front_model(self) -> onnx.ModelProto:
        nodes = parse_nodes(IN_FRONT[self.in_front])
        used = {name for node in nodes for name in node.input}
        constants = [numpy_helper.from_array(a, k) for k, a in self.constants().items() if k in used]
        double = to_ir("float64").value
        infos = [helper.make_tensor_value_info(n, double, None) for n in ("t", "x")]
        graph = helper.make_graph(nodes, "front", infos[:1], infos[1:], constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)

    def limit(self) -> tuple[float, float]:
        """Relative and absolute error that a result may have."""
        if self.dtype == "float32":
            return 2e-5, 1e-5
        eps = float(ml_dtypes.finfo(numpy_dtype(self.dtype)).eps)
        rounds = self.in_front or "r)" in BEHIND[self.behind]  # a sum may be rounded before the program behind reads it
        return (1.25 * eps, 3 * eps) if rounds else (0.75 * eps, 0.5 * eps)


def random_case(seed: int, dtype: str) -> Case:
    """Any window, size and neighbours that have a result."""
    rng = np.random.default_rng([seed, len(dtype)])

    def pick(*values: Any) -> Any:
        return values[int(rng.integers(len(values)))]

    side = (1, 2, 3, 3, 3, 5, 5, 7, 7, 9, 11)
    kernel = (pick(*side), pick(*side)) if rng.random() < 0.4 else (pick(*side),) * 2
    strides = pick((1, 1), (1, 1), (2, 2), (1, 2), (3, 3), (3, 1))
    dilations = pick((1, 1), (1, 1), (1, 1), (2, 2), (1, 3), (4, 1))
    auto_pad = pick("NOTSET", "NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")
    if auto_pad.startswith("SAME"):
        dilations = (1, 1)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    pads = tuple(int(rng.integers(0, r)) for r in (*reach, *reach)) if auto_pad == "NOTSET" else (0, 0, 0, 0)
    room = [r - pads[k] - pads[2 + k] if not auto_pad.startswith("SAME") else 1 for k, r in enumerate(reach)]
    sizes = [max(1, room[k]) + int(rng.integers(0, 40)) for k in range(2)]
    behind = pick(*BEHIND)
    channels = pick(1, 3, 8, 16, 24, 37, 40, 72, 104) * (1 + ("gate" in behind))
    case = Case(
        (int(rng.integers(1, 4)), *sizes, channels), kernel, strides, dilations, pads,
        auto_pad, dtype, bias=bool(rng.random() < 0.7), in_front=pick(*IN_FRONT), behind=behind,
        known=bool(rng.random() < 0.6),
    )  # fmt: skip
    keeps = case.result_dims() == list(case.x)
    case = dataclasses.replace(case, skip=keeps and bool(rng.random() < 0.7))
    if case.is_gated:  # kernels of halves compute no prologue
        case = dataclasses.replace(case, in_front="")
    # A residual of another tensor is fused only where its shape is known to be the result's.
    return dataclasses.replace(case, known=case.known or ("r)" in BEHIND[behind] and not keeps))


def fused(case: Case, by_rule: bool = False) -> Fused:
    """The case's model, fused. by_rule: nodes in front become part of a kernel only where that is predicted to pay."""
    original = case.model()
    model = ir.serde.deserialize_model(original)
    with contextlib.ExitStack() as always:
        for rule in () if by_rule else ((DepthwiseKind, "prologue_pays"), (expanded, "pays")):
            always.enter_context(mock.patch.object(*rule, return_value=True))
        plan = fuse(model)
    kernels = outline(model, plan)
    return Fused(plan, kernels, original, ir.to_proto(model))


def worst(case: Case, found: np.ndarray, expected: np.ndarray) -> float:
    """The largest error as a multiple of the limit; NaN and infinities must lie at the same places."""
    relative, absolute = case.limit()
    wide = np.asarray(found).astype(np.float64)
    limit = 65519.0 if case.dtype == "float16" else np.inf
    expected = np.where(np.abs(expected) > limit, np.copysign(np.inf, expected), expected)
    if wide.shape != expected.shape or not np.array_equal(np.isnan(wide), np.isnan(expected)):
        return np.inf
    special = ~np.isfinite(expected)
    if not np.array_equal(wide[special], expected[special], equal_nan=True):
        return np.inf
    error = np.abs(wide - expected)[~special] / (absolute + relative * np.abs(expected[~special]))
    return float(error.max(initial=0.0))


def ops(regions: Sequence[Kernel]) -> list[str]:
    """The operators of every kernel."""
    return [" ".join(k.ops) for k in regions]


_SAME = {3: (1, 1, 1, 1), 5: (2, 2, 2, 2), 7: (3, 3, 3, 3)}


def _of_16_bits(dtype: str) -> Row:
    """Every other case of bfloat16, whose conversions alone are others."""
    cases = (
        Case((1, 9, 11, 37), (3, 3), pads=_SAME[3], dtype=dtype, behind="silu"),
        Case((1, 9, 11, 10), (3, 3), (2, 2), pads=(1, 0, 1, 1), dtype=dtype, behind="relu", in_front="scale"),
        Case((1, 6, 9, 8), (5, 5), (2, 1), pads=_SAME[5], dtype=dtype, behind="residual"),
        Case((2, 1, 1, 24), (3, 5), pads=(1, 2, 1, 2), dtype=dtype, behind="silu", known=False),
        Case((1, 3, 5, 6), (11, 11), pads=(5, 5, 5, 5), dtype=dtype, behind="hardswish"),
        Case((2, 9, 3, 8), (3, 3), pads=_SAME[3], dtype=dtype, behind="silu", known=False),  # narrower than tiles
        Case((1, 8, 13, 6), (3, 3), pads=_SAME[3], dtype=dtype, skip=True, behind="residual", known=False),
        Case((1, 5, 6, 4), (3, 3), pads=(3, 4, 5, 3), dtype=dtype, behind="relu", known=False),  # more than the reach
    )
    return Row(dtype, cases if dtype == "float16" else cases[::2])


def _banded(dtype: str) -> Row:
    first = Case((1, 18, 19, 40), (5, 5), pads=_SAME[5], dtype=dtype, behind="silu")
    cases = (
        first,
        dataclasses.replace(first, x=(3, 5, 7, 24), in_front="bias_silu"),  # two images a tile, of three
        dataclasses.replace(first, x=(1, 9, 17, 8), in_front="relu6", behind="gelu_residual_scale"),
        Case((2, 7, 6, 16), (7, 7), pads=_SAME[7], dtype=dtype, bias=False),
        Case((1, 12, 14, 8), (3, 5), (1, 1), (2, 1), pads=(2, 1, 1, 3), dtype=dtype, behind="residual"),
        Case((1, 8, 35, 8), (7, 7), pads=(3, 2, 4, 3), dtype=dtype, behind="relu"),
        Case((1, 4, 12, 8), (9, 11), pads=(4, 5, 4, 5), dtype=dtype),
    )
    tiles = ("a1d1c2w8i2p6", "a2d2c4w8i1p9", "a8d7c2w8i1p9", "a2d2c2w8i1p6")
    return Row(f"banded {dtype}", cases, tuple(f"banded_{tile}" for tile in tiles))


_FINITE = Case((1, 18, 35, 8), (5, 5), pads=_SAME[5], dtype="float16", behind="relu")
ROWS = (
    Row(
        "windows",
        (
            Case((2, 7, 9, 6), (3, 3), pads=_SAME[3]),
            Case((1, 5, 6, 3), (1, 1), behind="silu"),
            Case((1, 9, 8, 4), (5, 5), (2, 2), pads=(1, 2, 2, 1), in_front="bias_silu", behind="relu"),
            Case((1, 10, 12, 1), (7, 7), pads=_SAME[7], in_front="relu6"),
            Case((2, 6, 13, 5), (3, 5), (1, 2), pads=(0, 1, 2, 3), behind="hardswish"),
            Case((1, 12, 9, 2), (3, 3), (3, 1), (2, 4), pads=(2, 4, 1, 4), bias=False),
            Case((1, 2, 3, 16), (5, 5), pads=(2, 3, 3, 2), behind="residual"),  # a map smaller than the kernel
            Case((1, 6, 5, 4), (3, 3), (2, 2), auto_pad="SAME_UPPER", behind="gelu_residual_scale"),
            Case((1, 6, 5, 4), (2, 4), (2, 3), auto_pad="SAME_LOWER"),
            Case((1, 6, 7, 4), (3, 3), auto_pad="VALID", in_front="scale", behind="residual"),
            Case((1, 0, 0, 3), (3, 3), pads=(2, 2, 2, 2), behind="relu"),  # nothing but padding
        ),
        ("held",),
    ),
    Row(
        "large windows",
        (
            Case((1, 11, 12, 4), (9, 9), pads=(4, 4, 4, 4), behind="silu"),
            Case((1, 6, 9, 2), (11, 11), (2, 1), pads=(5, 6, 5, 4), in_front="bias_silu"),
            Case((1, 9, 12, 2), (8, 19), (1, 2), (1, 2), pads=(4, 18, 4, 18), behind="residual"),  # parts of 16 taps
            Case((1, 4, 40, 1), (2, 33), pads=(1, 16, 0, 16)),
        ),
        ("walking",),
        alone=True,
    ),
    Row(  # all outputs of a tile lie side by side
        "rows",
        (
            Case((2, 1, 50, 16), (1, 3), pads=(0, 1, 0, 1), dtype="float16", behind="silu"),
            Case((1, 1, 61, 8), (1, 31), pads=(0, 15, 0, 15), dtype="float16", in_front="bias_silu", behind="relu"),
            Case((2, 1, 75, 6), (1, 3), (1, 1), (1, 16), (0, 16, 0, 16), dtype="float16", behind="residual"),
            Case((1, 1, 33, 5), (1, 7), (1, 2), pads=(0, 3, 0, 2), dtype="float16"),
            Case((1, 1, 40, 4), (1, 5), pads=(0, 4, 0, 0), behind="gelu_residual_scale"),
        ),
        ("held_v2d1a14", "held_v1d1a14"),
    ),
    Row(  # halves of the channels
        "gated",
        (
            Case((2, 7, 9, 12), (3, 3), pads=_SAME[3], dtype="float16", behind="gate"),
            Case((1, 9, 11, 74), (3, 3), pads=_SAME[3], dtype="float16", behind="gelu_gate", known=False),
            Case((1, 9, 10, 4), (3, 3), (2, 2), pads=(1, 0, 1, 1), dtype="bfloat16", bias=False, behind="gate"),
            Case((1, 6, 9, 8), (5, 5), pads=_SAME[5], behind="gate_residual"),
            Case((1, 8, 7, 6), (7, 7), pads=_SAME[7], dtype="float16", behind="gelu_gate"),
            Case((1, 4, 6, 2), (3, 5), (1, 1), (2, 1), pads=(2, 2, 2, 2), behind="gate", known=False),
            Case((2, 1, 21, 8), (1, 3), pads=(0, 1, 0, 1), dtype="float16", behind="gelu_gate"),
        ),
        ("held",),
    ),
    _of_16_bits("float16"),
    _of_16_bits("bfloat16"),
    _banded("float16"),
    _banded("bfloat16"),
    Row(  # 0 * infinity is NaN: a tile of products with one is computed again, others stay
        "infinities",
        (_FINITE, dataclasses.replace(_FINITE, in_front="bias_silu"), dataclasses.replace(_FINITE, behind="residual")),
        ("banded",),
        changed=(("t", (0, 3, 7, 5), INF), ("t", (0, 17, 34, 0), -INF), ("t", (0, 0, 17, 2), NAN)),
    ),
)
_ANY = Case((2, 9, 12, 24), (3, 5), pads=(1, 2, 1, 2), dtype="float16", behind="silu", known=False)
_SIZES = ((1, 1, 1), (2, 9, 12), (5, 100, 7), (1, 3, 200), (0, 4, 4), (66_000, 1, 1))
_WIDE = Case((2, 19, 40, 16), (5, 5), pads=_SAME[5], behind="relu")
_SPOILED = (("t", (0, 3, 7, 5), INF), ("t", (1, 18, 39, 0), -INF), ("t", (1, 0, 17, 9), NAN))


def _on_gpus(dtype: str) -> tuple[Row, ...]:
    wide = dataclasses.replace(_WIDE, dtype=dtype)
    infinities = (
        wide, dataclasses.replace(wide, in_front="bias_silu"), dataclasses.replace(wide, behind="residual"),
    )  # fmt: skip
    return (
        *(
            Row(f"random {dtype} {part}", tuple(random_case(seed, dtype) for seed in range(part, 40, 4)), gpu=True)
            for part in range(4)
        ),
        Row(f"wide infinities {dtype}", infinities, changed=_SPOILED, gpu=True),
    )


DAMAGED = {
    "depthwise": Case(
        (2, 9, 10, 16), pads=_SAME[3], dtype="float16", in_front="bias_silu", behind="gelu_residual_scale", skip=True,
        known=False,
    ),
    "depthwise_strided": Case(
        (2, 9, 10, 8), (5, 5), (2, 2), auto_pad="SAME_UPPER", in_front="relu6", behind="residual"
    ),
    "depthwise_walking": Case(
        (1, 8, 19, 4), (7, 9), (1, 2), (1, 2), (3, 8, 2, 7), in_front="scale", behind="silu", known=False
    ),
}  # fmt: skip
ROWS += (
    *(row for dtype in ("float32", "float16", "bfloat16") for row in _on_gpus(dtype)),
    Row("one model", tuple(dataclasses.replace(_ANY, x=(*x, 24)) for x in _SIZES), gpu=True),
)
TABLE = Table(
    "depthwise",
    ROWS,
    fused,
    lambda case, _, found, expected: worst(case, found, expected),
    damaged={name: (case,) for name, case in DAMAGED.items()},
)
