"""Squeeze-excites as the layout pass leaves them, fused, beside their results in float64."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from unittest import mock

import ml_dtypes
import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from cases import models
from cases.models import OPSET, numpy_dtype, parse_nodes
from cases.table import Row, Table
from onnxopt.fusion.region import Kernel
from onnxopt.kinds.depthwise import expanded
from onnxopt.program.dtypes import to_ir

# What follows a product, as onnx text over names: `p` is its result.
BEHIND = {
    "": "{0} = Identity({1})",
    "relu": "{0} = Relu({1})",
    "silu": "{0}s = Sigmoid({1})  {0} = Mul({1}, {0}s)",
    "sigmoid": "{0} = Sigmoid({1})",
    "hardsigmoid": "{0} = HardSigmoid({1})",
    "hardswish": "{0} = HardSwish({1})",
    "spelled": "{0}a = Add({1}, three)  {0}c = Clip({0}a, zero, six)  {0} = Div({0}c, six)",
}


@dataclasses.dataclass(frozen=True)
class Case:
    """x: [N, H, W, C] of the depthwise convolution, or of the map where there is none. form: of the products, "conv",
    "gemm" or "matmul". known: whether the model states N, H and W. narrow: channels of the model's input where a 1x1
    convolution with a Relu computes x from it, else 0. halves: the map is the product of halves of the channels."""

    x: tuple[int, int, int, int]
    hidden: int
    dtype: str = "float32"
    kernel: int = 3
    stride: int = 1
    depthwise: bool = True
    in_front: bool = False
    activation: str = "silu"
    gate: str = "sigmoid"
    form: str = "conv"
    bias: bool = True
    known: bool = True
    narrow: int = 0
    halves: bool = False

    @property
    def channels(self) -> int:
        """Of the map."""
        return self.x[3] // 2 if self.halves else self.x[3]

    def _input(self) -> tuple[int, ...]:
        """Dims of the model's input."""
        return (*self.x[:3], self.narrow or self.x[3])

    def result_dims(self) -> tuple[int, int, int, int]:
        """Of the map."""
        if not self.depthwise:
            return self.x
        pad = self.kernel // 2
        h, w = ((size + 2 * pad - self.kernel) // self.stride + 1 for size in self.x[1:3])
        return self.x[0], h, w, self.channels

    def constants(self) -> dict[str, np.ndarray]:
        """The initializers in float64."""
        rng = np.random.default_rng([self.channels, self.hidden])
        made = {
            "w": rng.standard_normal((self.kernel, self.kernel, 1, self.x[3])) / self.kernel,
            "b": rng.standard_normal(self.x[3]),
            "w1": rng.standard_normal((self.hidden, self.channels)) * 3 / np.sqrt(self.channels),
            "b1": rng.standard_normal(self.hidden),
            "w2": rng.standard_normal((self.channels, self.hidden)) * 2 / np.sqrt(self.hidden),
            "b2": rng.standard_normal(self.channels),
            "zero": np.array(0.0), "three": np.array(3.0), "six": np.array(6.0),
        }  # fmt: skip
        if self.narrow:
            made["w0"] = rng.standard_normal((self.channels, self.narrow)) / np.sqrt(self.narrow)
            made["b0"] = rng.standard_normal(self.channels)
        return {k: v.astype(numpy_dtype(self.dtype)).astype(np.float64) for k, v in made.items()}

    def model(self, dtype: str | None = None) -> onnx.ModelProto:
        """The model in its own dtype, or in another one with the same constants. Outputs: the map v, the factors f."""
        element, stored = to_ir(dtype or self.dtype).value, numpy_dtype(dtype or self.dtype)
        nodes = [*self._map(), helper.make_node("ReduceMean", ["v", "axes"], ["mean"], name="mean", keepdims=1)]
        squeezed = "mean"
        if self.form != "conv":
            nodes.append(helper.make_node("Flatten", ["mean"], ["flat"], name="flat", axis=1))
            squeezed = "flat"
        nodes += [*self._product(squeezed, "1", "p"), *parse_nodes(BEHIND[self.activation].format("q", "p"))]
        nodes += [*self._product("q", "2", "r"), *parse_nodes(BEHIND[self.gate].format("f", "r"))]
        used = {name for node in nodes for name in node.input}
        constants = [numpy_helper.from_array(a.astype(stored), k) for k, a in self.constants().items() if k in used]
        constants.append(numpy_helper.from_array(np.array([1, 2]), "axes"))
        if self.narrow:
            constants.append(numpy_helper.from_array(np.array([self.channels, self.narrow, 1, 1]), "s0"))
        if self.form == "conv":
            sizes = {"s1": [self.hidden, self.channels, 1, 1], "s2": [self.channels, self.hidden, 1, 1]}
            constants += [numpy_helper.from_array(np.array(v), k) for k, v in sizes.items()]
        shape = list(self._input()) if self.known else ["N", "H", "W", self._input()[3]]
        inputs = [helper.make_tensor_value_info("t", element, shape)]
        outputs = [helper.make_tensor_value_info(n, element, None) for n in (["v"] if self.depthwise else []) + ["f"]]
        graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)

    def _map(self) -> list[onnx.NodeProto]:
        if not self.depthwise:
            return [helper.make_node("Identity", ["t"], ["v"], name="v")]
        pads, strides = [self.kernel // 2] * 4, [self.stride] * 2
        in_front = self.in_front or self.narrow > 0
        return [
            *(self._product("t", "0", "e") if self.narrow else []),
            *([helper.make_node("Relu", ["e" if self.narrow else "t"], ["x"], name="x")] if in_front else []),
            helper.make_node("Transpose", ["w"], ["w_krs"], name="turn_w", perm=[3, 2, 0, 1]),
            helper.make_node("Transpose", ["x" if in_front else "t"], ["x_nchw"], name="to", perm=[0, 3, 1, 2]),
            helper.make_node(
                "Conv", ["x_nchw", "w_krs", "b"], ["y_nchw"], name="depthwise", group=self.x[3], pads=pads,
                strides=strides, kernel_shape=[self.kernel] * 2,
            ),
            helper.make_node("Transpose", ["y_nchw"], ["c"], name="back", perm=[0, 2, 3, 1]),
            *(self._gate() if self.halves else parse_nodes(BEHIND["silu"].format("v", "c"))),
        ]  # fmt: skip

    def _gate(self) -> list[onnx.NodeProto]:
        split = helper.make_node("Split", ["c"], ["c1", "c2"], name="split", axis=3, num_outputs=2)
        return [split, helper.make_node("Mul", ["c1", "c2"], ["v"], name="v")]

    def _product(self, x: str, k: str, y: str) -> list[onnx.NodeProto]:
        bias = [f"b{k}"] if self.bias else []
        if self.form == "gemm":
            return [helper.make_node("Gemm", [x, f"w{k}", *bias], [y], name=y, transB=1)]
        if self.form == "matmul":
            turned = helper.make_node("Transpose", [f"w{k}"], [f"w{k}_t"], name=f"turn{k}", perm=[1, 0])
            product = helper.make_node("MatMul", [x, f"w{k}_t"], [f"{y}_0" if bias else y], name=f"{y}_0")
            added = [helper.make_node("Add", [f"{y}_0", *bias], [y], name=y)] if bias else []
            return [turned, product, *added]
        return [
            helper.make_node("Reshape", [f"w{k}", f"s{k}"], [f"w{k}_4"], name=f"w{k}_4"),
            helper.make_node("Transpose", [x], [f"{x}_nchw"], name=f"{x}_nchw", perm=[0, 3, 1, 2]),
            helper.make_node("Conv", [f"{x}_nchw", f"w{k}_4", *bias], [f"{y}_nchw"], name=f"conv{k}"),
            helper.make_node("Transpose", [f"{y}_nchw"], [y], name=y, perm=[0, 2, 3, 1]),
        ]

    def feeds(self, seed: int = 0) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(seed)
        return {"t": (rng.standard_normal(self._input()) + 0.3).astype(numpy_dtype(self.dtype))}

    def expected(self, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs in float64."""
        model = self.model("float64")
        found = ReferenceEvaluator(model).run(None, {k: v.astype(np.float64) for k, v in feeds.items()})
        return dict(zip((o.name for o in model.graph.output), map(np.asarray, found), strict=True))


def worst(case: Case, found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> float:
    """The largest error of any output as a multiple of the limit."""
    eps = 1e-5 if case.dtype == "float32" else 1.25 * float(ml_dtypes.finfo(numpy_dtype(case.dtype)).eps)
    errors = [0.0]
    for name, array in expected.items():
        wide = np.asarray(found[name]).astype(np.float64)
        if wide.shape != array.shape or not np.isfinite(wide).all():
            return np.inf
        errors.append(float((np.abs(wide - array) / (eps * (1 + np.abs(array)))).max(initial=0.0)))
    return max(errors)


class Fused(models.Fused):
    """A model after fusing and outlining."""

    @property
    def kernel(self) -> Kernel:
        """The one of this kind."""
        (found,) = (k for k in self.kernels if k.kind.name == "squeeze_excite")
        return found


def fused(case: Case) -> Fused:
    """Where a 1x1 convolution stands in front, the depthwise kernel computes it, by rule or not."""
    by_rule = nullcontext() if case.narrow == 0 else mock.patch.object(expanded, "pays", return_value=True)
    with by_rule:
        return Fused(**vars(models.fused_model(case.model())))


def at_sizes(case: Case, *sizes: tuple[int, int, int]) -> tuple[Case, ...]:
    """One model for images of these numbers, heights and widths."""
    return tuple(dataclasses.replace(case, x=(*size, case.x[3]), known=False) for size in sizes)


_MAPS = (
    at_sizes(Case((1, 1, 1, 37), 7), (2, 9, 11), (1, 1, 1), (3, 20, 5)),
    at_sizes(Case((1, 1, 1, 8), 2, "float16", in_front=True), (2, 8, 8), (5, 3, 17)),
    at_sizes(
        Case((1, 1, 1, 40), 10, "bfloat16", 5, 2, activation="relu", gate="hardsigmoid"), (2, 9, 13), (1, 5, 5)
    ),
    at_sizes(Case((1, 1, 1, 72), 24, "float16", activation="hardswish", gate="spelled", bias=False), (3, 6, 5)),
    at_sizes(Case((1, 1, 1, 600), 100, activation="relu"), (1, 3, 4)),  # more hidden channels than warps, more vectors
    at_sizes(Case((1, 1, 1, 1152), 48, "float16"), (2, 7, 7)),
    at_sizes(Case((1, 1, 1, 96), 4, "float16", 3, 2, narrow=16), (2, 17, 19), (1, 2, 3)),
    at_sizes(Case((1, 1, 1, 144), 6, "bfloat16", 5, narrow=24), (2, 9, 11), (3, 5, 7)),
    at_sizes(Case((1, 1, 1, 48), 6, "float16", halves=True), (2, 9, 11), (1, 3, 2)),
    at_sizes(Case((1, 1, 1, 74), 5, kernel=5, stride=2, halves=True), (2, 9, 12)),
)  # fmt: skip
_ON_GPUS = (
    Case((1, 1, 1, 37), 7),
    Case((1, 1, 1, 48), 12, "float16", in_front=True),
    Case((1, 1, 1, 40), 10, "bfloat16", 5, 2, activation="relu", gate="hardsigmoid"),
    Case((1, 1, 1, 1152), 48, "float16", 5),
    Case((1, 1, 1, 24), 6, "float16", 7, activation="hardswish", gate="spelled", bias=False),
)
_PLAIN = Case((1, 1, 1, 33), 9, depthwise=False, activation="relu")
ROWS = (
    Row("map and factors", tuple(case for cases in _MAPS for case in cases), ("rows1", "map_")),
    *(  # from more rows than the GPU has multiprocessors; 110 and 113 leave three and one for the last block
        Row(
            f"rows share weights {dtype}", at_sizes(Case((1, 1, 1, 12), 5, dtype), (110, 2, 3), (113, 1, 1)), ("rows4",)
        )
        for dtype in ("float32", "float16", "bfloat16")
    ),
    Row("as many rows as multiprocessors", at_sizes(Case((1, 1, 1, 12), 5), (108, 1, 1)), ("rows1",)),
    Row(  # folded before the products
        "sums of many tiles",
        at_sizes(Case((1, 1, 1, 301), 6, kernel=1), (1, 104, 28), (2, 4, 4)),
        ("fold", "rows1"),
    ),
    Row(  # the mean is a kernel of another kind; the products read its result
        "without a convolution",
        tuple(
            case
            for form in ("conv", "gemm", "matmul")
            for channels, hidden in ((33, 9), (64, 16))
            for case in at_sizes(
                dataclasses.replace(_PLAIN, x=(1, 1, 1, channels), hidden=hidden, form=form), (2, 5, 5), (120, 2, 2)
            )
        ),
        ("rows1", "rows4"),
    ),
    *(
        Row(
            f"any size {k}",
            at_sizes(case, (2, 9, 11), (1, 1, 1), (3, 56, 57), (200, 7, 7), (1, 150, 151), (2, 9, 11)),
            gpu=True,
        )
        for k, case in enumerate(_ON_GPUS)
    ),
)
TABLE = Table(
    "squeeze_excite",
    ROWS,
    fused,
    lambda case, _, found, expected: worst(case, found, expected),
    emulated="sessions",
    single=False,
    damaged={
        "squeeze_excite": (Case((2, 9, 10, 16), 4, "float16", in_front=True, known=False),),
        "squeeze_products": (Case((2, 3, 4, 12), 5, depthwise=False, form="gemm", bias=False),),
    },
)
