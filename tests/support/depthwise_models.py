"""Depthwise convolutions as the layout pass leaves them, fused, beside their results in float64."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from onnxopt.fusion.region import FusionPlan, Kernel
from onnxopt.program.dtypes import to_ir
from tests.support.fusing import fuse, outline

OPSET = 20
# What stands in front and behind, as onnx text over names: `t` is what passes through, `c` has one element a channel,
# `r` has the result's shape.
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
    "hardswish": "a1 = Add(v, three)  a2 = Clip(a1, zero, six)  a3 = Mul(v, a2)  y = Div(a3, six)",
}


def numpy_dtype(dtype: str) -> np.dtype:
    return np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)


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

    def window(self) -> dict[str, object]:
        found: dict[str, object] = {"strides": self.strides, "dilations": self.dilations, "kernel_shape": self.kernel}
        return found | ({"pads": self.pads} if self.auto_pad == "NOTSET" else {"auto_pad": self.auto_pad})

    def constants(self) -> dict[str, np.ndarray]:
        """The initializers in float64."""
        rng = np.random.default_rng(sum(self.x) + sum(self.kernel))
        made = {"w": rng.standard_normal((*self.kernel, 1, self.channels)) / np.sqrt(self.kernel[0] * self.kernel[1])}
        for name in ("bias", "c", "d"):
            made[name] = rng.standard_normal(self.channels)
        made |= {"zero": np.array(0.0), "six": np.array(6.0), "three": np.array(3.0)}
        return {k: v.astype(numpy_dtype(self.dtype)).astype(np.float64) for k, v in made.items()}

    def model(self, dtype: str | None = None) -> onnx.ModelProto:
        """The model in its own dtype, or in another one with the same constants."""
        element = to_ir(dtype or self.dtype).value
        stored = numpy_dtype(dtype or self.dtype)
        front, back = IN_FRONT[self.in_front], BEHIND[self.behind]
        names = ["N", "H", "W", self.channels]
        shape = list(self.x) if self.known else names
        result = self.result_dims() if self.known else ["N", "Ho", "Wo", self.channels]
        inputs = [helper.make_tensor_value_info("t", element, shape)]
        if "r)" in back and not self.skip:
            inputs.append(helper.make_tensor_value_info("r", element, result))
        text = " ".join((front, "w_ = X()", "v_ = X()", back))
        nodes = [*_nodes(front), *self._convolution("x" if front else "t", "v" if back else "y")]
        nodes += _nodes(back.replace("r)", "t)") if self.skip else back)
        used = {name for node in nodes for name in node.input}
        constants = [numpy_helper.from_array(a.astype(stored), k) for k, a in self.constants().items() if k in used]
        graph = helper.make_graph(
            nodes, "g", inputs, [helper.make_tensor_value_info("y", element, None)], constants
        )  # fmt: skip
        assert text
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)

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
        return [self.x[0], *out, self.channels]

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
            plain = dataclasses.replace(self, in_front="")
            if self.skip:
                plain = dataclasses.replace(plain, skip=False)
                wide["r"] = wide["t0"]
            wide.pop("t0")
            model = plain._wide_model(self.constants())
        else:
            model = self.model("float64")
        (y,) = ReferenceEvaluator(model).run(None, {i.name: wide[i.name] for i in model.graph.input})
        return np.asarray(y)

    def _wide_model(self, constants: dict[str, np.ndarray]) -> onnx.ModelProto:
        del constants
        return self.model("float64")

    def _front_model(self) -> onnx.ModelProto:
        nodes = _nodes(IN_FRONT[self.in_front])
        used = {name for node in nodes for name in node.input}
        constants = [numpy_helper.from_array(a, k) for k, a in self.constants().items() if k in used]
        double = to_ir("float64").value
        infos = [helper.make_tensor_value_info(n, double, None) for n in ("t", "x")]
        graph = helper.make_graph(nodes, "front", infos[:1], infos[1:], constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)

    def limit(self) -> tuple[float, float]:
        """Relative and absolute error that a result may have."""
        if self.dtype == "float32":
            return 2e-5, 1e-5
        eps = float(ml_dtypes.finfo(numpy_dtype(self.dtype)).eps)
        return 1.5 * eps, 3 * eps  # the sum may be rounded before the program behind reads it


def _nodes(text: str) -> list[onnx.NodeProto]:
    """The nodes of `y = Op(a, b)  z = ...`."""
    made = []
    for line in (part for part in text.split("  ") if part):
        result, call = line.split(" = ")
        op, operands = call.rstrip(")").split("(")
        made.append(helper.make_node(op, operands.split(", "), [result], name=result))
    return made


@dataclasses.dataclass(frozen=True)
class Fused:
    """A model after fusing and outlining. original: before."""

    plan: FusionPlan
    kernels: tuple[Kernel, ...]
    original: onnx.ModelProto
    optimized: onnx.ModelProto


def fused(case: Case, change: Callable[[onnx.ModelProto], None] | None = None) -> Fused:
    """The case's model, fused, after `change` in place."""
    original = case.model()
    if change is not None:
        change(original)
    model = ir.serde.deserialize_model(original)
    plan = fuse(model)
    kernels = outline(model, plan)
    return Fused(plan, kernels, original, ir.to_proto(model))


def ops(regions: Sequence[Kernel]) -> list[str]:
    """The operators of every kernel."""
    return [" ".join(k.ops) for k in regions]
