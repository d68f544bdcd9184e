"""Models of MatMulNBits with drawn codes, and what they compute in float64."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper

from cases.models import fused_model
from cases.table import Row, Table

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


@dataclasses.dataclass(frozen=True)
class Case:
    """A product of packed codes. epilogue: "", "relu", "bias_residual", or with halves of the result "silu" and "gelu",
    the activation of one that the other is multiplied by."""

    weight: Weight
    rows: int
    epilogue: str = ""

    @property
    def bias(self) -> np.ndarray:
        return np.random.default_rng(9).standard_normal(self.weight.columns).astype(STORED[self.weight.dtype])

    def _built(self) -> Products:
        products, columns = Products(), self.weight.columns
        gated = self.epilogue in ("silu", "gelu")
        if self.epilogue == "bias_residual":
            products.constant("bias", self.bias)
        name = "p" if self.epilogue else "y"
        products.product(name, "x", self.weight, ["", "bias"] if self.epilogue == "bias_residual" else [])
        if self.epilogue == "relu":
            products.node("Relu", ["p"], "y")
        if self.epilogue == "bias_residual":
            products.node("Add", ["p", "r"], "y")
        if gated:
            products.constant("sizes", np.array([columns // 2] * 2))
            products.split("p", "sizes", ["g", "u"])
            if self.epilogue == "gelu":
                products.node("Gelu", ["g"], "a", approximate="tanh")
            else:
                products.node("Mul", ["g", products.node("Sigmoid", ["g"], "s")], "a")
            products.node("Mul", ["a", "u"], "y")
        return products

    def model(self) -> onnx.ModelProto:
        dtype = self.weight.dtype
        inputs: dict[str, tuple[str, Sequence[int | str]]] = {"x": (dtype, ["N", self.weight.depth])}
        if self.epilogue == "bias_residual":
            inputs["r"] = (dtype, ["N", self.weight.columns])
        return self._built().model(inputs, {"y": dtype})

    def feeds(self, seed: int = 0) -> dict[str, np.ndarray]:
        rng = np.random.default_rng([seed, self.rows])
        widths = {"x": self.weight.depth} | ({"r": self.weight.columns} if self.epilogue == "bias_residual" else {})
        return {k: rng.standard_normal((self.rows, n)).astype(STORED[self.weight.dtype]) for k, n in widths.items()}

    def expected(self, feeds: dict[str, np.ndarray]) -> np.ndarray:
        """In float64."""
        (matrix,) = self._built().weights.values()
        y = feeds["x"].astype(np.float64) @ matrix.T
        if self.epilogue == "bias_residual":
            return y + self.bias.astype(np.float64) + feeds["r"].astype(np.float64)
        if self.epilogue in ("silu", "gelu"):
            g, u = np.split(y, 2, axis=-1)
            inner = 2 * np.sqrt(2 / np.pi) * (g + 0.044715 * g**3)
            return g / (1 + np.exp(-(g if self.epilogue == "silu" else inner))) * u
        return np.maximum(y, 0) if self.epilogue == "relu" else y


def error(case: Case, _: str, found: np.ndarray, right: np.ndarray) -> float:
    """Of the largest result: half an ulp of the storage dtype and what float32 sums lose; two roundings with a gate."""
    limit = {"float16": 7e-4, "bfloat16": 5.5e-3}[case.weight.dtype]
    # With a bias and a residual the nodes themselves store two sums, and are up to 6.8e-3 away in bfloat16.
    limit *= {"silu": 2.14, "gelu": 2.14, "bias_residual": 1.25}.get(case.epilogue, 1)
    wide = found.astype(np.float64)
    if wide.shape != right.shape or not np.isfinite(wide).all():
        return np.inf
    return float(np.abs(wide - right).max(initial=0.0) / (limit * max(np.abs(right).max(initial=0.0), 1e-3)))


def random_case(seed: int, dtype: str) -> Case:
    """Of one row."""
    rng = np.random.default_rng([seed, len(dtype)])
    bits, group = int(rng.choice([4, 8])), int(rng.choice([16, 32, 64, 128, 256]))
    depth = int(rng.integers(1, 200)) * 16
    if group == 16 and bits == 4:
        depth += depth % 32  # rows of whole 16 bytes
    columns = int(rng.choice([rng.integers(1, 300), rng.integers(300, 9000)]))
    weight = Weight(columns, depth, bits, group, str(rng.choice(["middle", "codes", "floats"])), dtype)
    return Case(weight, 1, ("", "relu", "bias_residual")[seed % 3])


def at_rows(case: Case, *rows: int) -> tuple[Case, ...]:
    return tuple(dataclasses.replace(case, rows=n) for n in rows)


_ROWS = (1, 2, 5, 8, 9, 17, 40, 41, 100)
_GATED = tuple(
    Case(Weight(columns, 544, bits, zeros="codes"), 1, "silu") for bits in (4, 8) for columns in (1202, 9004)
)
TABLE = Table(
    "gemm",
    (
        *(
            Row(
                f"packed {dtype} {k}",
                tuple(c for n in range(k, k + 6) for c in at_rows(random_case(n, dtype), *_ROWS)),
                gpu=True,
            )
            for dtype in ("float16", "bfloat16")
            for k in (0, 6, 12, 18)
        ),
        Row("packed gates", tuple(c for case in _GATED for c in at_rows(case, *_ROWS)), gpu=True),
    ),
    lambda case: fused_model(case.model()),
    error,
    emulated="",
    damaged={
        "packed": at_rows(Case(Weight(40, 80, zeros="codes"), 3, "bias_residual"), 3, 70),
        "packed_bytes": at_rows(Case(Weight(24, 64, bits=8, group=16, zeros="floats"), 9, "bias_residual"), 9),
        "packed_gate": at_rows(Case(Weight(40, 96), 2, "gelu"), 2, 70),
    },
)  # fmt: skip
