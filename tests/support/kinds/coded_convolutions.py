"""Graphs of a quantized convolution in NCHW: Q and DQ of 8 bits around a Conv, with what may follow it."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnxopt.graph.layout.orders import to_channels_first, to_channels_last

_STORAGE = {"float": (TensorProto.FLOAT, np.float32), "float16": (TensorProto.FLOAT16, np.float16)}
X_SCALE = 0.05
RESULT_SCALE = 0.04  # at which results reach both ends of int8


@dataclasses.dataclass(frozen=True)
class Layer:
    """A convolution of codes [n, c, h, w] to k channels.

    x_zero, w_zero: zero points. bias: "", "int32" or "float". rounded: the result is rounded to codes before what
    follows. residual: "", "codes" or "float". last: the residual follows the activation. activation: an operator.
    result: the dtype of its codes, "" for floats, and zero: their zero point.
    """

    n: int = 2
    h: int = 7
    w: int = 9
    c: int = 16
    k: int = 32
    kernel: tuple[int, int] = (3, 3)
    strides: tuple[int, int] = (1, 1)
    dilations: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (1, 1, 1, 1)
    group: int = 1
    per_filter: bool = True
    x_codes: type = np.int8
    x_zero: int = 0
    w_zero: int = 0
    bias: str = "int32"
    rounded: bool = False
    residual: str = ""
    last: bool = False
    activation: str = "Relu"
    result: str = "int8"
    zero: int = 0
    dtype: str = "float"
    symbolic: bool = False


def drawn(seed: int) -> Layer:
    """A random layer that a kernel takes."""
    rng = np.random.default_rng(seed)
    pick = lambda *of: of[int(rng.integers(len(of)))]  # noqa: E731
    kernel, dilations = pick((1, 1), (3, 3), (3, 3), (1, 3), (5, 2)), pick((1, 1), (1, 1), (2, 1))
    covered = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    pads = tuple(int(rng.integers(0, k)) for k in (*kernel, *kernel))
    residual, result, dtype = (
        pick("", "", "codes", "float"),
        pick("int8", "int8", "uint8", ""),
        pick("float", "float16"),
    )
    activation = pick("Relu", "Relu", "", "Clip", "LeakyRelu", "HardSwish", "Silu")
    return Layer(
        n=int(rng.integers(1, 4)), h=int(rng.integers(covered[0], 11)), w=int(rng.integers(covered[1], 12)),
        c=16 * int(rng.integers(1, 4)), k=16 * int(rng.integers(1, 4)), kernel=kernel, dilations=dilations,
        strides=pick((1, 1), (2, 2), (1, 3)), pads=pads, per_filter=pick(True, True, False),  # type: ignore[arg-type]
        bias=pick("", "float", "int32" if dtype == "float" else ""), residual=residual,
        rounded=bool(residual or activation) and pick(True, False), last=bool(residual) and pick(True, False),
        activation=activation, result=result, zero=pick(0, 0, 7) if result == "int8" else pick(0, 121), dtype=dtype,
    )  # fmt: skip


class _Graph:
    def __init__(self, layer: Layer, seed: int) -> None:
        self.rng, self.layer = np.random.default_rng(seed), layer
        self.type, self.storage = _STORAGE[layer.dtype]
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def add(self, op: str, inputs: list[str], **attributes: object) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        return name

    def constant(self, array: np.ndarray) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def rounded(self, value: str, scale: float, codes: type, zero: int) -> str:
        """Q and DQ of an activation."""
        constants = [self.constant(self.storage(scale)), self.constant(codes(zero))]
        return self.add("DequantizeLinear", [self.add("QuantizeLinear", [value, *constants]), *constants])

    def operands(self) -> list[str]:
        """DQs of the weight and of the bias."""
        layer, filters = self.layer, self.layer.k if self.layer.per_filter else 1
        shape = (layer.k, layer.c // layer.group, *layer.kernel)
        codes = self.rng.integers(-127, 128, shape).astype(np.int8)
        scales = self.rng.uniform(0.5, 2.0, filters) / (np.sqrt(np.prod(shape[1:])) * 73 * X_SCALE * 20)
        scales = scales.astype(self.storage)
        zeros = np.full(filters, layer.w_zero, np.int8)
        of_weight = [codes, scales, zeros] if layer.per_filter else [codes, scales[0], zeros[0]]
        weight = self.add("DequantizeLinear", [self.constant(v) for v in of_weight], axis=0)
        if not layer.bias:
            return [weight]
        if layer.bias == "float":
            return [weight, self.constant(self.rng.standard_normal(layer.k).astype(self.storage))]
        steps = (self.storage(X_SCALE) * scales).astype(self.storage)
        bias = [np.rint(self.rng.standard_normal(layer.k) / steps).astype(np.int32), steps, np.zeros(filters, np.int32)]
        if not layer.per_filter:
            bias = [bias[0], bias[1][0], bias[2][0]]
        return [weight, self.add("DequantizeLinear", [self.constant(v) for v in bias], axis=0)]

    def activated(self, value: str) -> str:
        name = self.layer.activation
        if name == "Clip":
            return self.add("Clip", [value, self.constant(self.storage(0)), self.constant(self.storage(3))])
        if name == "Silu":
            return self.add("Mul", [value, self.add("Sigmoid", [value])])
        return self.add(name, [value]) if name else value


def model(layer: Layer, seed: int = 0) -> onnx.ModelProto:
    """x [n, h, w, c] to y, and the residual r of y's shape: floats, in NCHW between Transposes."""
    g = _Graph(layer, seed)
    n = "N" if layer.symbolic else layer.n
    first = lambda name: g.add("Transpose", [name], perm=to_channels_first(4))  # noqa: E731
    x = g.rounded(first("x"), X_SCALE, layer.x_codes, layer.x_zero)
    value = g.add(
        "Conv", [x, *g.operands()], kernel_shape=layer.kernel, strides=layer.strides, dilations=layer.dilations,
        pads=layer.pads, group=layer.group,
    )  # fmt: skip
    if layer.last:
        value = g.activated(value)
    if layer.rounded:
        value = g.rounded(value, RESULT_SCALE * 1.5, np.int8, 0)
    if layer.residual:
        residual = first("r")
        value = g.add("Add", [value, g.rounded(residual, 0.03, np.int8, 3) if layer.residual == "codes" else residual])
    if not layer.last:
        value = g.activated(value)
    if layer.result:
        value = g.rounded(value, RESULT_SCALE, np.dtype(layer.result).type, layer.zero)
    y = g.add("Transpose", [value], perm=to_channels_last(4))
    shapes = {"x": [n, layer.h, layer.w, layer.c], "r": [n, *_sides(layer), layer.k], y: [n, *_sides(layer), layer.k]}
    infos = {name: helper.make_tensor_value_info(name, g.type, dims) for name, dims in shapes.items()}
    inputs = [infos["x"], *([infos["r"]] if layer.residual else [])]
    graph = helper.make_graph(g.nodes, "layer", inputs, [infos[y]], g.constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def _sides(layer: Layer) -> list[int]:
    return [
        (extent + layer.pads[axis] + layer.pads[axis + 2] - layer.dilations[axis] * (layer.kernel[axis] - 1) - 1)
        // layer.strides[axis] + 1
        for axis, extent in enumerate((layer.h, layer.w))
    ]  # fmt: skip


def feeds(proto: onnx.ModelProto, seed: int = 1, n: int = 2) -> dict[str, np.ndarray]:
    """Random inputs, some of them beyond both ends of the codes."""
    rng = np.random.default_rng(seed)
    types = {TensorProto.FLOAT: np.float32, TensorProto.FLOAT16: np.float16}
    made = {}
    for value in proto.graph.input:
        shape = [d.dim_value or n for d in value.type.tensor_type.shape.dim]
        made[value.name] = (3 * rng.standard_normal(shape)).astype(types[value.type.tensor_type.elem_type])
    return made
