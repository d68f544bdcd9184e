"""Random graphs of quantized products: Q and DQ of 8 bits around MatMul and Gemm, with the nodes that go with them."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_STORAGE = {"float": (TensorProto.FLOAT, np.float32), "float16": (TensorProto.FLOAT16, np.float16)}


@dataclasses.dataclass(frozen=True)
class Layer:
    """One product of codes. columns: of each weight; several weights read one input. behind: nodes after it."""

    operator: str = "MatMul"
    activation: type = np.uint8
    zero: int = 0
    weight: type = np.int8
    per_axis: bool = False
    weight_zero: bool = False
    columns: tuple[int, ...] = (24,)
    bias: bool = False
    behind: str = ""
    residual: bool = False
    norm: bool = False
    quantized: bool = False
    dtype: str = "float"


def drawn(seed: int) -> Layer:
    """A random layer."""
    rng = np.random.default_rng(seed)
    flip = lambda: bool(rng.integers(2))  # noqa: E731
    activation, weight = (rng.choice([np.int8, np.uint8]) for _ in range(2))
    operator = str(rng.choice(["MatMul", "MatMul", "Gemm", "Gemm transB"]))
    several = operator == "MatMul" and flip()
    return Layer(
        operator, activation, int(rng.integers(-128, 128)) + (128 if activation is np.uint8 else 0), weight, flip(),
        flip(), (16, 24, 8) if several else (24,), flip(), str(rng.choice(["", "Relu", "Gelu", "Gelu tanh"])),
        flip() and not several, flip(), several or flip(), str(rng.choice(["float", "float16"])),
    )  # fmt: skip


class _Graph:
    def __init__(self, layer: Layer, seed: int) -> None:
        self.rng, self.layer = np.random.default_rng(seed), layer
        self.type, self.storage = _STORAGE[layer.dtype]
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def add(self, op: str, inputs: list[str], **attributes: object) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        return name

    def constant(self, array: np.ndarray) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def rounded(self, value: str, scale: float, codes: type, zero: int) -> str:
        """Q and DQ of an activation."""
        constants = [self.constant(self.storage(scale)), self.constant(codes(zero))]
        return self.add("DequantizeLinear", [self.add("QuantizeLinear", [value, *constants]), *constants])

    def weight(self, rows: int, columns: int) -> str:
        """DQ of constant codes, [rows, columns] or turned."""
        layer, turned = self.layer, self.layer.operator == "Gemm transB"
        info, count = np.iinfo(layer.weight), columns if layer.per_axis else 1
        codes = self.rng.integers(info.min, info.max + 1, (columns, rows) if turned else (rows, columns))
        middle = (info.min + info.max + 1) // 2
        zeros = self.rng.integers(middle - 20, middle + 20, count) if layer.weight_zero else np.full(count, middle)
        scales = self.rng.uniform(0.001, 0.01, count)
        shaped = lambda x, t: x.astype(t) if layer.per_axis else t(x[0])  # noqa: E731
        inputs = [codes.astype(layer.weight), shaped(scales, self.storage), shaped(zeros, layer.weight)]
        axis = {"axis": 0 if turned else 1} if layer.per_axis else {}
        return self.add("DequantizeLinear", [self.constant(x) for x in inputs], **axis)

    def vector(self, columns: int) -> str:
        return self.constant(self.rng.standard_normal(columns).astype(self.storage))


def model(layer: Layer, seed: int = 0, rows: int = 5, depth: int = 32) -> onnx.ModelProto:
    """A graph of one layer: x [2, rows, depth], or [rows, depth] of a Gemm, and r of the result's shape."""
    g = _Graph(layer, seed)
    batch = ["N"] if layer.operator == "MatMul" else []
    value = "x"
    if layer.norm:
        value = g.add("LayerNormalization", [value, g.vector(depth), g.vector(depth)], axis=-1)
    value = g.rounded(value, 0.02, layer.activation, layer.zero)
    outputs = []
    for columns in layer.columns:
        result = _behind(g, value, depth, columns)
        outputs.append(g.rounded(result, 0.03, np.uint8, 120) if layer.quantized else result)
    shapes = [[*batch, rows, columns] for columns in layer.columns]
    infos = [helper.make_tensor_value_info(n, g.type, s) for n, s in zip(outputs, shapes, strict=True)]
    inputs = [helper.make_tensor_value_info("x", g.type, [*batch, rows, depth])]
    if layer.residual:
        inputs.append(helper.make_tensor_value_info("r", g.type, shapes[0]))
    graph = helper.make_graph(g.nodes, "layer", inputs, infos, g.constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def _behind(g: _Graph, value: str, depth: int, columns: int) -> str:
    """The product and what stands behind it."""
    layer = g.layer
    weight = g.weight(depth, columns)
    bias = g.vector(columns) if layer.bias else None
    if layer.operator == "MatMul":
        result = g.add("MatMul", [value, weight])
        result = result if bias is None else g.add("Add", [result, bias])
    else:
        inputs = [value, weight] if bias is None else [value, weight, bias]
        result = g.add("Gemm", inputs, alpha=0.5, transB=int(layer.operator == "Gemm transB"))
    if layer.residual:
        result = g.add("Add", [result, "r"])
    if layer.behind:
        attributes = {"approximate": "tanh"} if layer.behind == "Gelu tanh" else {}
        result = g.add(layer.behind.split()[0], [result], **attributes)
    return result


def feeds(proto: onnx.ModelProto, seed: int = 1) -> dict[str, np.ndarray]:
    """Inputs of a model of `model`, with N = 2."""
    rng = np.random.default_rng(seed)
    found = {}
    for value in proto.graph.input:
        shape = [d.dim_value or 2 for d in value.type.tensor_type.shape.dim]
        storage = np.float16 if value.type.tensor_type.elem_type == TensorProto.FLOAT16 else np.float32
        found[value.name] = rng.standard_normal(shape).astype(storage)
    return found
