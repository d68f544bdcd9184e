"""Convolutions in the form that the layout pass writes, with what may follow them, and their results in float64."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from cases.models import fused_model, numpy_dtype, rounded, tensor
from cases.table import Row, Table
from onnxopt.graph.layout.orders import to_channels_first, to_channels_last

TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}
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
    """A convolution of x [n, h, w, c] to k channels, or of a volume [n, d, h, w, c].

    d: 0 of an image. kernel, strides, dilations, output_padding: a number for each axis; pads: for their begins, then
    for their ends. residual: "", "before" or "last" (behind the activation). activation: "", "prelu" or a key of
    ACTIVATIONS. transposed: a ConvTranspose. symbolic: names instead of n, h and w in the model. Outside of the model
    every tensor is float32.
    """

    n: int = 2
    d: int = 0
    h: int = 9
    w: int = 11
    c: int = 16
    k: int = 24
    kernel: tuple[int, ...] = (3, 3)
    strides: tuple[int, ...] = (1, 1)
    dilations: tuple[int, ...] = (1, 1)
    pads: tuple[int, ...] = (0, 0, 0, 0)
    auto_pad: str = "NOTSET"
    group: int = 1
    dtype: str = "float32"
    bias: bool = True
    residual: str = ""
    activation: str = ""
    transposed: bool = False
    output_padding: tuple[int, ...] = (0, 0)
    symbolic: tuple[str, ...] = ()
    seed: int = 0

    @property
    def sizes(self) -> tuple[int, ...]:
        """Of an image or a volume."""
        return (self.d, self.h, self.w) if self.d else (self.h, self.w)

    def placed(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The sizes of the result, and the padding: of the begins of all axes, then of their ends."""
        sizes, before, after = [], [], []
        for axis, extent in enumerate(self.sizes):
            stride, covered = self.strides[axis], self.dilations[axis] * (self.kernel[axis] - 1) + 1
            first, last = self.pads[axis], self.pads[axis + len(self.sizes)]
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
        return tuple(sizes), (*before, *after)

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
        found = {"x": rounded(rng.standard_normal((self.n, *self.sizes, self.c)), self.dtype)}
        if self.residual:
            found["residual"] = rounded(rng.standard_normal((self.n, *self.placed()[0], self.k)), self.dtype)
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
        sizes, pads = self.placed()
        groups, axes = self.group, len(sizes)
        x = x.reshape(*x.shape[:-1], groups, -1)
        w = weight.reshape(groups, -1, *weight.shape[1:])
        padded = [size + pads[axis] + pads[axis + axes] for axis, size in enumerate(sizes)]
        whole = np.zeros((self.n, *padded, groups, self.k // groups))
        for tap in itertools.product(*map(range, self.kernel)):
            added = np.einsum("n...gc,gck->n...gk", x, w[(slice(None), slice(None), *tap)])
            whole[(slice(None), *np.ix_(*self._places(tap, self.sizes)))] += added
        inside = tuple(slice(pads[axis], pads[axis] + size) for axis, size in enumerate(sizes))
        return whole[(slice(None), *inside)].reshape(self.n, *sizes, self.k)

    def _places(self, tap: tuple[int, ...], counts: tuple[int, ...]) -> list[np.ndarray]:
        """Along each axis, where a place of the window is, for so many windows."""
        return [
            at * dilation + stride * np.arange(count)
            for at, dilation, stride, count in zip(tap, self.dilations, self.strides, counts, strict=True)
        ]

    def _convolved(self, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        sizes, pads = self.placed()
        x = np.pad(x, ((0, 0), *zip(pads[: len(sizes)], pads[len(sizes) :], strict=True), (0, 0)))
        groups = self.group
        x = x.reshape(*x.shape[:-1], groups, -1)
        w = weight.reshape(groups, -1, *weight.shape[1:])
        y = np.zeros((self.n, *sizes, groups, self.k // groups))
        for tap in itertools.product(*map(range, self.kernel)):
            seen = x[(slice(None), *np.ix_(*self._places(tap, sizes)))]
            y += np.einsum("n...gc,gkc->n...gk", seen, w[(slice(None), slice(None), *tap)])
        return y.reshape(self.n, *sizes, self.k)

    def model(self, *, casts: bool = True) -> onnx.ModelProto:
        """x and residual to y, all float32 outside, the layer in its dtype inside. casts=False: its dtype outside too,
        and the output has the name of the last node."""
        inside = "float32" if casts else self.dtype
        count = 1 + len(self.sizes)
        names = [*self.symbolic, *(None,) * count][:count]
        dims = [name or extent for name, extent in zip(names, (self.n, *self.sizes), strict=True)]
        given = {"x": [*dims, self.c]}
        if self.residual:
            sizes, _ = self.placed()
            out = (f"{size}_out" if name else size for size, name in zip(sizes, names[1:], strict=True))
            given["residual"] = [dims[0], *out, self.k]
            if max(self.strides) == 1 and sizes == self.sizes:
                given["residual"] = [*dims, self.k]
        infos = [helper.make_tensor_value_info(name, TYPES[inside], shape) for name, shape in given.items()]
        inner = {name: name if self.dtype == inside else f"{name}_{self.dtype}" for name in given}
        nodes = [
            helper.make_node("Cast", [name], [cast], name=cast, to=TYPES[self.dtype])
            for name, cast in inner.items()
            if name != cast
        ]
        body, result = self.body(inner)
        nodes += body
        last = result if self.dtype == inside else "y"
        if self.dtype != inside:
            nodes.append(helper.make_node("Cast", [result], ["y"], name="y", to=TensorProto.FLOAT))
        outputs = [helper.make_tensor_value_info(last, TYPES[inside], None)]
        graph = helper.make_graph(nodes, "g", infos, outputs, self.initializers())
        opset = 22 if self.dtype == "bfloat16" else 20  # the first that has the Conv
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)

    def body(self, inner: dict[str, str]) -> tuple[list[onnx.NodeProto], str]:
        """The nodes between the inputs, by these names, and the name of the result. Nodes are named by their output."""
        rank = 2 + len(self.sizes)
        first, last = to_channels_first(rank), to_channels_last(rank)
        if self._has_matrix():
            nodes = [helper.make_node("Reshape", ["w", "w_shape"], ["w_turned"], name="w_turned")]
        else:
            nodes = [helper.make_node("Transpose", ["w"], ["w_turned"], name="w_turned", perm=first)]
        attributes = {"kernel_shape": self.kernel, "strides": self.strides, "dilations": self.dilations}
        attributes |= {"pads": self.pads} if self.auto_pad == "NOTSET" else {"auto_pad": self.auto_pad}
        if self.transposed:
            attributes["output_padding"] = self.output_padding
        inputs = ["x_nchw", "w_turned", *(["b"] if self.bias else [])]
        nodes += [
            helper.make_node("Transpose", [inner["x"]], ["x_nchw"], name="x_nchw", perm=first),
            helper.make_node(
                "ConvTranspose" if self.transposed else "Conv",
                inputs,
                ["conv"],
                name="conv",
                group=self.group,
                **attributes,
            ),
            helper.make_node("Transpose", ["conv"], ["v"], name="v", perm=last),
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

    def _has_matrix(self) -> bool:
        """Whether the weight is stored as [K, C]."""
        return max(self.kernel) == 1 and self.group == 1 and not self.transposed

    def initializers(self) -> list[onnx.TensorProto]:
        weight, bias = self.weights()
        matrix = self._has_matrix()
        found = [tensor("w", weight.reshape(self.k, -1) if matrix else weight, self.dtype)]
        if matrix:
            found.append(numpy_helper.from_array(np.array([self.k, self.c, *self.kernel], np.int64), "w_shape"))
        if self.activation == "prelu":
            found.append(tensor("slopes", self.slopes(), self.dtype))
        if self.activation == "clip" or self.activation.startswith("hardswish_"):
            numbers = {"zero": 0.0, "three": 3.0, "six": 6.0}
            found += [tensor(name, np.array(value), self.dtype) for name, value in numbers.items()]
        return [*found, tensor("b", bias, self.dtype)] if self.bias else found


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


FEW_CHANNELS = (  # that entry points of ours run; tiles with tails, several a block, and each step after the sum
    Layer(h=35, w=33, c=32, k=32, pads=SAME),
    Layer(n=1, h=7, w=5, pads=(0, 1, 2, 0), k=16, activation="relu"),
    Layer(h=40, w=33, c=48, k=48, pads=SAME, residual="before", activation="relu"),
    Layer(n=5, h=17, w=18, c=64, k=32, pads=SAME, activation="silu"),
    Layer(n=1, h=18, w=9, c=96, k=32, pads=SAME, activation="relu", residual="before"),
    Layer(n=1, h=18, w=9, c=64, k=32, pads=SAME, activation="leaky_relu", residual="last"),
    Layer(n=3, h=38, w=9, k=32, pads=SAME, strides=(2, 2), activation="prelu", bias=False),
    Layer(n=3, h=9, w=33, c=32, k=64, pads=SAME, activation="hardswish"),
    Layer(n=2, h=20, w=23, c=48, k=64, pads=SAME, activation="clip", residual="last"),
    Layer(n=2, h=17, w=16, c=128, k=16, auto_pad="SAME_UPPER", activation="silu", residual="last"),
    Layer(n=1, h=3, w=70, c=32, k=48, pads=(0, 2, 1, 3), symbolic=("N", "H", "W")),
)


def _volume(**fields: object) -> Layer:
    """A volume of five planes, with a kernel of 3x3x3 and no padding."""
    window = {"kernel": (3,) * 3, "strides": (1,) * 3, "dilations": (1,) * 3, "pads": (0,) * 6}
    return Layer(**{"d": 5, **window, "output_padding": (0,) * 3, **fields})  # type: ignore[arg-type]


VOLUMES = (
    _volume(pads=(1,) * 6, residual="before", activation="relu"),
    _volume(kernel=(2, 3, 2), strides=(2, 1, 3), dilations=(2, 1, 2), pads=(1, 0, 2, 2, 1, 0), bias=False),
    _volume(kernel=(1, 1, 1), strides=(2, 2, 2)),
    _volume(kernel=(1, 1, 1), c=17, k=5, activation="relu"),
    _volume(kernel=(3, 1, 1), strides=(2, 1, 1), pads=(1, 0, 0, 1, 0, 0), activation="relu"),
    _volume(auto_pad="SAME_UPPER", strides=(2, 2, 2), activation="relu"),
    _volume(auto_pad="SAME_LOWER", kernel=(2, 2, 4)),
    _volume(c=1, k=32, pads=(1,) * 6),
    _volume(c=3, k=8, n=1, h=3, w=3, pads=(2,) * 6, residual="before", activation="relu"),
    _volume(c=64, k=64, pads=(1,) * 6, activation="silu"),
    _volume(c=64, k=64, pads=(1,) * 6, activation="leaky_relu", residual="last"),
    _volume(c=64, k=64, pads=(1,) * 6, activation="prelu"),
    _volume(kernel=(2, 2, 2), strides=(2, 2, 2), transposed=True),
    _volume(kernel=(2, 2, 2), strides=(2, 2, 2), transposed=True, residual="before", activation="relu"),
    _volume(kernel=(3, 3, 3), strides=(2, 2, 1), pads=(1,) * 6, output_padding=(1, 1, 0), transposed=True, bias=False),
    _volume(kernel=(3, 1, 1), strides=(2, 1, 1), output_padding=(1, 0, 0), transposed=True),
)


def bare(layer: Layer, **changed: object) -> Bare:
    return Bare(**{**dataclasses.asdict(layer), **changed})  # type: ignore[arg-type]


TABLE = Table(
    "convolution",
    tuple(
        Row(f"{dtype}{of}", tuple(bare(layer, dtype=dtype) for layer in layers), gpu=True)
        for of, layers in (("", LAYERS), (" volumes", VOLUMES), (" of few channels", FEW_CHANNELS))
        for dtype in ("float32", "float16", "bfloat16")
    ),
    lambda layer: fused_model(layer.model()),
    error,
    emulated="",
    damaged={name: (bare(layer),) for name, layer in DAMAGED.items()},
)
