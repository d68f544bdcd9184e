"""Convolutions in the form that the layout pass writes, with what may follow them, and their results in float64."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from cases.models import fused_model, numpy_dtype
from cases.table import Row, Table

_TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}
NHWC, NCHW, KRSC = [0, 2, 3, 1], [0, 3, 1, 2], [0, 3, 1, 2]
SLOPE = 0.125


def _hardswish(v: np.ndarray) -> np.ndarray:
    return v * np.clip(v / 6 + 0.5, 0, 1)


# Names of activations; hardswish_... are spelled out.
ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "relu": lambda v: np.maximum(v, 0),
    "silu": lambda v: v / (1 + np.exp(-v)),
    "clip": lambda v: np.clip(v, 0, 6),
    "leaky_relu": lambda v: np.where(v < 0, SLOPE * v, v),
    "hardswish": _hardswish,
    "hardswish_of_gate": _hardswish,
    "hardswish_scaled_gate": _hardswish,
    "hardswish_scaled_product": _hardswish,
}


@dataclasses.dataclass(frozen=True)
class Layer:
    """A convolution of x [n, h, w, c] to k channels.

    residual: "", "before" or "last" (behind the activation). activation: "", "prelu" or a key of ACTIVATIONS.
    transposed: a ConvTranspose. symbolic: names instead of n, h and w in the model. Outside of the model every tensor
    is float32.
    """

    n: int = 2
    h: int = 9
    w: int = 11
    c: int = 16
    k: int = 24
    kernel: tuple[int, int] = (3, 3)
    strides: tuple[int, int] = (1, 1)
    dilations: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    auto_pad: str = "NOTSET"
    group: int = 1
    dtype: str = "float32"
    bias: bool = True
    residual: str = ""
    activation: str = ""
    transposed: bool = False
    output_padding: tuple[int, int] = (0, 0)
    symbolic: tuple[str, ...] = ()
    seed: int = 0

    def placed(self) -> tuple[tuple[int, int], tuple[int, int, int, int]]:
        """The height and width of the result, and the padding: top, left, bottom, right."""
        sizes, before, after = [], [], []
        for axis, extent in enumerate((self.h, self.w)):
            stride, covered = self.strides[axis], self.dilations[axis] * (self.kernel[axis] - 1) + 1
            first, last = self.pads[axis], self.pads[axis + 2]
            if self.transposed:
                sizes.append((extent - 1) * stride + covered + self.output_padding[axis] - first - last)
                before.append(first)
                after.append(last)
                continue
            if self.auto_pad.startswith("SAME"):
                needed = max(0, (-(-extent // stride) - 1) * stride + covered - extent)
                first = needed // 2 if self.auto_pad == "SAME_UPPER" else needed - needed // 2
                last = needed - first
            sizes.append((extent + first + last - covered) // stride + 1)
            before.append(first)
            after.append(last)
        return (sizes[0], sizes[1]), (before[0], before[1], after[0], after[1])

    def weights(self) -> tuple[np.ndarray, np.ndarray]:
        """[K, R, S, C / group], scaled so that results are about 1, and the bias [K]: values that the dtype holds.

        Of a ConvTranspose [C, R, S, K / group].
        """
        rng = np.random.default_rng(self.seed)
        first, last = (self.c, self.k) if self.transposed else (self.k, self.c)
        shape = (first, *self.kernel, last // self.group)
        reached = np.prod(self.kernel) * self.c // self.group
        weight = rng.standard_normal(shape) / np.sqrt(max(1, reached))
        return rounded(weight, self.dtype), rounded(rng.standard_normal(self.k), self.dtype)

    def slopes(self) -> np.ndarray:
        """[K], of a prelu."""
        return rounded(np.random.default_rng(self.seed + 1).standard_normal(self.k), self.dtype)

    def feeds(self, seed: int = 1) -> dict[str, np.ndarray]:
        """Random inputs that the dtype holds."""
        rng = np.random.default_rng(seed)
        found = {"x": rounded(rng.standard_normal((self.n, self.h, self.w, self.c)), self.dtype)}
        if self.residual:
            (ho, wo), _ = self.placed()
            found["residual"] = rounded(rng.standard_normal((self.n, ho, wo, self.k)), self.dtype)
        return found

    def expected(self, feeds: dict[str, np.ndarray]) -> np.ndarray:
        """The result [N, Ho, Wo, K] in float64."""
        weight, bias = (v.astype(np.float64) for v in self.weights())
        x = feeds["x"].astype(np.float64)
        y = self._spread(x, weight) if self.transposed else self._convolved(x, weight)
        if self.bias:
            y = y + bias
        if self.residual == "before":
            y = y + feeds["residual"].astype(np.float64)
        if self.activation == "prelu":
            y = np.where(y < 0, self.slopes() * y, y)
        elif self.activation:
            y = ACTIVATIONS[self.activation](y)
        return y + feeds["residual"].astype(np.float64) if self.residual == "last" else y

    def _spread(self, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """A transposed convolution: every input is added to the outputs that its window covers."""
        (ho, wo), (top, left, bottom, right) = self.placed()
        groups = self.group
        x = x.reshape(*x.shape[:3], groups, -1)
        w = weight.reshape(groups, -1, *weight.shape[1:])
        whole = np.zeros((self.n, ho + top + bottom, wo + left + right, groups, self.k // groups))
        for r in range(self.kernel[0]):
            for s in range(self.kernel[1]):
                rows = r * self.dilations[0] + self.strides[0] * np.arange(self.h)
                columns = s * self.dilations[1] + self.strides[1] * np.arange(self.w)
                added = np.einsum("nhwgc,gck->nhwgk", x, w[:, :, r, s])
                whole[:, rows[:, None], columns] += added
        return whole[:, top : top + ho, left : left + wo].reshape(self.n, ho, wo, self.k)

    def _convolved(self, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        (ho, wo), pads = self.placed()
        x = np.pad(x, ((0, 0), (pads[0], pads[2]), (pads[1], pads[3]), (0, 0)))
        groups = self.group
        x = x.reshape(*x.shape[:3], groups, -1)
        w = weight.reshape(groups, -1, *weight.shape[1:])
        y = np.zeros((self.n, ho, wo, groups, self.k // groups))
        for r in range(self.kernel[0]):
            for s in range(self.kernel[1]):
                rows = r * self.dilations[0] + self.strides[0] * np.arange(ho)
                columns = s * self.dilations[1] + self.strides[1] * np.arange(wo)
                y += np.einsum("nhwgc,gkc->nhwgk", x[:, rows][:, :, columns], w[:, :, r, s])
        return y.reshape(self.n, ho, wo, self.k)

    def model(self, *, casts: bool = True) -> onnx.ModelProto:
        """x and residual to y, all float32 outside, the layer in its dtype inside. casts=False: its dtype outside too,
        and the output has the name of the last node."""
        inside = "float32" if casts else self.dtype
        names = [*self.symbolic, *(None,) * 3][:3]
        dims = [name or extent for name, extent in zip(names, (self.n, self.h, self.w), strict=True)]
        given = {"x": [*dims, self.c]}
        if self.residual:
            (ho, wo), _ = self.placed()
            given["residual"] = [dims[0], *(f"{d}_out" if n else d for d, n in zip((ho, wo), names[1:])), self.k]
            if self.strides == (1, 1) and (ho, wo) == (self.h, self.w):
                given["residual"] = [*dims, self.k]
        infos = [helper.make_tensor_value_info(name, _TYPES[inside], shape) for name, shape in given.items()]
        inner = {name: name if self.dtype == inside else f"{name}_{self.dtype}" for name in given}
        nodes = [
            helper.make_node("Cast", [name], [cast], name=cast, to=_TYPES[self.dtype])
            for name, cast in inner.items()
            if name != cast
        ]
        body, result = self.body(inner)
        nodes += body
        last = result if self.dtype == inside else "y"
        if self.dtype != inside:
            nodes.append(helper.make_node("Cast", [result], ["y"], name="y", to=TensorProto.FLOAT))
        outputs = [helper.make_tensor_value_info(last, _TYPES[inside], None)]
        graph = helper.make_graph(nodes, "g", infos, outputs, self.initializers())
        opset = 22 if self.dtype == "bfloat16" else 20  # the first that has the Conv
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)

    def body(self, inner: dict[str, str]) -> tuple[list[onnx.NodeProto], str]:
        """The nodes between the inputs, by these names, and the name of the result. Nodes are named by their output."""
        turned = [self.k, self.c // self.group, *self.kernel]
        if self.kernel == (1, 1) and self.group == 1 and not self.transposed:
            nodes = [helper.make_node("Reshape", ["w", "w_shape"], ["w_turned"], name="w_turned")]
        else:
            nodes = [helper.make_node("Transpose", ["w"], ["w_turned"], name="w_turned", perm=KRSC)]
        attributes = {"kernel_shape": turned[2:], "strides": self.strides, "dilations": self.dilations}
        attributes |= {"pads": self.pads} if self.auto_pad == "NOTSET" else {"auto_pad": self.auto_pad}
        if self.transposed:
            attributes["output_padding"] = self.output_padding
        inputs = ["x_nchw", "w_turned", *(["b"] if self.bias else [])]
        nodes += [
            helper.make_node("Transpose", [inner["x"]], ["x_nchw"], name="x_nchw", perm=NCHW),
            helper.make_node(
                "ConvTranspose" if self.transposed else "Conv",
                inputs,
                ["conv"],
                name="conv",
                group=self.group,
                **attributes,
            ),
            helper.make_node("Transpose", ["conv"], ["v"], name="v", perm=NHWC),
        ]
        at = "v"

        def add(op: str, operands: list[str], result: str, **attributes: float) -> str:
            nodes.append(helper.make_node(op, operands, [result], name=result, **attributes))
            return result

        if self.residual == "before":
            at = add("Add", [inner["residual"], at], "sum")
        at = self._activate(at, add)
        if self.residual == "last":
            at = add("Add", [at, inner["residual"]], "sum")
        return nodes, at

    def _activate(self, at: str, add: Callable[..., str]) -> str:
        """The nodes of the activation, of which the last one is `active`."""
        if self.activation in ("relu", "hardswish"):
            return add({"relu": "Relu", "hardswish": "HardSwish"}[self.activation], [at], "active")
        if self.activation == "silu":
            return add("Mul", [at, add("Sigmoid", [at], "gate")], "active")
        if self.activation == "clip":
            return add("Clip", [at, "zero", "six"], "active")
        if self.activation == "prelu":
            return add("PRelu", [at, "slopes"], "active")
        if self.activation == "leaky_relu":
            return add("LeakyRelu", [at], "active", alpha=SLOPE)
        if self.activation == "hardswish_of_gate":
            gate = add("HardSigmoid", [at], "gate", alpha=1 / 6, beta=0.5)
            return add("Mul", [at, gate], "active")
        if self.activation.startswith("hardswish_"):
            gate = add("Clip", [add("Add", [at, "three"], "shifted"), "zero", "six"], "clipped")
            if self.activation == "hardswish_scaled_gate":
                return add("Mul", [add("Div", [gate, "six"], "gate"), at], "active")
            return add("Div", [add("Mul", [at, gate], "product"), "six"], "active")
        return at

    def initializers(self) -> list[onnx.TensorProto]:
        weight, bias = self.weights()
        matrix = self.kernel == (1, 1) and self.group == 1 and not self.transposed
        found = [_tensor("w", weight.reshape(self.k, -1) if matrix else weight, self.dtype)]
        if matrix:
            found.append(numpy_helper.from_array(np.array([self.k, self.c, 1, 1], np.int64), "w_shape"))
        if self.activation == "prelu":
            found.append(_tensor("slopes", self.slopes(), self.dtype))
        if self.activation == "clip" or self.activation.startswith("hardswish_"):
            numbers = {"zero": 0.0, "three": 3.0, "six": 6.0}
            found += [_tensor(name, np.array(value), self.dtype) for name, value in numbers.items()]
        return [*found, _tensor("b", bias, self.dtype)] if self.bias else found


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """float32 values that the dtype holds exactly."""
    if dtype == "bfloat16":
        return (values.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    return values.astype(dtype).astype(np.float32)


def _tensor(name: str, values: np.ndarray, dtype: str) -> onnx.TensorProto:
    if dtype != "bfloat16":
        return numpy_helper.from_array(np.ascontiguousarray(values.astype(dtype)), name)
    words = (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return helper.make_tensor(name, TensorProto.BFLOAT16, values.shape, words.tobytes(), raw=True)


SAME = (1, 1, 1, 1)
DAMAGED = {
    "convolution": Layer(
        pads=SAME, residual="before", activation="relu", dtype="float16", symbolic=("N", "H", "W")
    ),
    "grouped": Layer(kernel=(3, 2), strides=(2, 1), auto_pad="SAME_LOWER", group=4, activation="silu"),
    "added_last": Layer(
        h=8, c=64, k=64, kernel=(2, 3), dilations=(2, 1), pads=(2, 1, 0, 1), residual="last", activation="silu",
        dtype="float16",
    ),
    "spread": Layer(
        kernel=(3, 2), strides=(2, 3), pads=(1, 0, 0, 1), output_padding=(1, 2), group=4, transposed=True,
        activation="relu", dtype="float16",
    ),
    "sloped": Layer(h=8, c=64, k=64, pads=SAME, residual="last", activation="prelu", dtype="float16"),
    "bounded": Layer(h=8, c=64, k=64, pads=SAME, activation="clip", dtype="float16"),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Bare(Layer):
    """A layer whose inputs and result have its dtype outside of the model too."""

    def model(self, *, casts: bool = False) -> onnx.ModelProto:
        return super().model(casts=casts)

    def feeds(self, seed: int = 1) -> dict[str, np.ndarray]:
        return {name: value.astype(numpy_dtype(self.dtype)) for name, value in super().feeds(seed).items()}


def error(layer: Layer, _: str, found: np.ndarray, right: np.ndarray) -> float:
    """As a multiple of the limit of the largest magnitude."""
    limit = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2}[layer.dtype] * np.abs(right).max(initial=1.0)
    wide = found.astype(np.float64)
    return np.inf if wide.shape != right.shape else float((np.abs(wide - right) / limit).max(initial=0.0))


LAYERS = (
    Layer(),
    Layer(kernel=(3, 2), strides=(2, 3), dilations=(1, 2), pads=(1, 0, 2, 1), bias=False),
    Layer(kernel=(1, 1), strides=(2, 2)),
    Layer(kernel=(1, 1), c=17, k=5, activation="relu"),
    Layer(auto_pad="SAME_UPPER", strides=(2, 2), activation="relu"),
    Layer(auto_pad="SAME_LOWER", kernel=(2, 4)),
    Layer(auto_pad="VALID", kernel=(5, 5)),
    Layer(group=4, k=32, pads=SAME, residual="before"),
    Layer(c=33, k=7, n=1, h=3, w=3, pads=(2, 2, 2, 2), residual="before", activation="relu"),
    Layer(c=64, k=64, pads=SAME, activation="silu"),
    Layer(c=64, k=64, group=2, pads=SAME, activation="silu", residual="last"),
    Layer(c=64, k=64, pads=SAME, activation="clip"),
    Layer(c=64, k=64, pads=SAME, activation="leaky_relu", residual="last"),
    Layer(c=64, k=64, pads=SAME, activation="hardswish"),
    Layer(c=64, k=64, pads=SAME, activation="prelu", residual="last"),
    Layer(kernel=(2, 2), strides=(2, 2), transposed=True, activation="relu"),
    Layer(kernel=(4, 4), strides=(2, 2), pads=SAME, transposed=True, residual="before", activation="relu"),
    Layer(kernel=(3, 2), strides=(2, 3), pads=(1, 0, 0, 1), output_padding=(1, 2), transposed=True, bias=False),
    Layer(kernel=(3, 3), dilations=(2, 1), strides=(3, 1), group=4, transposed=True),
    Layer(kernel=(1, 1), transposed=True),
    Layer(c=64, k=64, kernel=(2, 2), strides=(2, 2), transposed=True, activation="hardswish"),
)


def _bare(layer: Layer, **changed: object) -> Bare:
    return Bare(**{**dataclasses.asdict(layer), **changed})  # type: ignore[arg-type]


TABLE = Table(
    "convolution",
    tuple(
        Row(dtype, tuple(_bare(layer, dtype=dtype) for layer in LAYERS), gpu=True)
        for dtype in ("float32", "float16", "bfloat16")
    ),
    lambda layer: fused_model(layer.model()),
    error,
    emulated="",
    damaged={name: (_bare(layer),) for name, layer in DAMAGED.items()},
)
