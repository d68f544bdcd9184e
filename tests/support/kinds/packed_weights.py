"""Models of MatMulNBits with drawn codes, and what they compute in float64."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper

STORED = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16), "float32": np.dtype(np.float32)}
ELEMENTS = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16, "float32": TensorProto.FLOAT}


@dataclasses.dataclass(frozen=True)
class Weight:
    """Codes [columns, depth] of some bits in groups. zeros: "middle", "codes" or "floats"."""

    columns: int
    depth: int
    bits: int = 4
    group: int = 32
    zeros: str = "middle"
    dtype: str = "float16"

    @property
    def groups(self) -> int:
        return -(-self.depth // self.group)

    def draw(self, seed: int) -> tuple[list[np.ndarray], np.ndarray]:
        """The inputs of a MatMulNBits behind the first, and the weight in float64, [columns, depth]."""
        rng = np.random.default_rng(seed)
        codes = rng.integers(0, 1 << self.bits, (self.columns, self.groups * self.group), np.uint8)
        scales = rng.uniform(0.002, 0.03, (self.columns, self.groups)).astype(STORED[self.dtype])
        size = self.group * self.bits // 8
        inputs = [self.packed(codes).reshape(self.columns, self.groups, size), scales]
        zeros = np.full(scales.shape, 1 << (self.bits - 1), np.float64)
        if self.zeros == "codes":
            drawn = rng.integers(0, 1 << self.bits, scales.shape, np.uint8)
            inputs.append(self.packed(drawn))
            zeros = drawn.astype(np.float64)
        if self.zeros == "floats":
            inputs.append((rng.random(scales.shape) * (1 << self.bits)).astype(STORED[self.dtype]))
            zeros = inputs[-1].astype(np.float64)
        wide = [np.repeat(a.astype(np.float64), self.group, axis=1) for a in (zeros, scales)]
        return inputs, ((codes - wide[0]) * wide[1])[:, : self.depth]

    def packed(self, codes: np.ndarray) -> np.ndarray:
        of_byte = 8 // self.bits
        whole = np.pad(codes, ((0, 0), (0, -codes.shape[1] % of_byte)))
        parts = [whole[:, k::of_byte] << (self.bits * k) for k in range(of_byte)]
        return np.bitwise_or.reduce(parts).astype(np.uint8)

    def attributes(self) -> dict[str, int]:
        return {"K": self.depth, "N": self.columns, "bits": self.bits, "block_size": self.group}


@dataclasses.dataclass
class Products:
    """A graph of products while it is built; every product reads an input of its own depth, x16, x32, ...."""

    nodes: list[onnx.NodeProto] = dataclasses.field(default_factory=list)
    constants: list[onnx.TensorProto] = dataclasses.field(default_factory=list)
    weights: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)

    def constant(self, name: str, array: np.ndarray) -> str:
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        self.constants.append(helper.make_tensor(name, kind, array.shape, array.tobytes(), raw=True))
        return name

    def product(self, name: str, x: str, weight: Weight, more: Sequence[str] = (), **attributes: int) -> str:
        """A MatMulNBits of drawn codes; its matrix is weights[name]. more: inputs behind those of the weight."""
        inputs, self.weights[name] = weight.draw(len(self.nodes))
        names = [self.constant(f"{name}.{k}", array) for k, array in enumerate(inputs)]
        given = [x, *names, *[""] * (3 - len(names) if more else 0), *more]
        settings = {**weight.attributes(), **attributes}
        self.nodes.append(helper.make_node("MatMulNBits", given, [name], name, domain="com.microsoft", **settings))
        return name

    def node(self, op_type: str, inputs: Sequence[str], name: str, **attributes: object) -> str:
        self.nodes.append(helper.make_node(op_type, inputs, [name], name, **attributes))
        return name

    def split(self, x: str, sizes: str, names: Sequence[str]) -> None:
        """Parts of the last axis."""
        self.nodes.append(helper.make_node("Split", [x, sizes], names, f"{names[0]}.split", axis=-1))

    def model(self, inputs: dict[str, tuple[str, Sequence[int | str]]], outputs: dict[str, str]) -> onnx.ModelProto:
        """inputs: dtype and dims by name. outputs: dtypes by name."""
        graph = helper.make_graph(
            self.nodes, "products",
            [helper.make_tensor_value_info(n, ELEMENTS[d], dims) for n, (d, dims) in inputs.items()],
            [helper.make_tensor_value_info(n, ELEMENTS[d], None) for n, d in outputs.items()],
            self.constants,
        )  # fmt: skip
        opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)
