"""Random graphs of attention while their nodes are made: which forms were drawn, and inputs to run them with."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

Dim = int | str  # "B", "T" and "K" are symbols of the inputs


@dataclasses.dataclass(frozen=True)
class Case:
    """A graph, the inputs of several runs, the forms that were drawn, and how many attentions it has."""

    model: onnx.ModelProto
    feeds: list[dict[str, np.ndarray]]
    forms: tuple[str, ...]
    layers: int


class Building:
    """A graph while its nodes are made. Tensors of floats have one dtype.

    exact: whether the graph computes float32 of the numbers that the graph of the same seed has.
    """

    def __init__(self, seed: int, exact: bool = False) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.inputs: dict[str, tuple[int, tuple[Dim, ...]]] = {}
        self.forms: list[str] = []
        self.layers = 1
        self._names = 0
        self._kept: dict[object, str] = {}
        self.dtype = np.dtype(self.form("dtype", "float16", "float16", "float32")).type
        self.stored = np.float32 if exact else self.dtype
        self.onnx_dtype = helper.np_dtype_to_tensor_dtype(np.dtype(self.stored))

    def form(self, part: str, *choices: Any) -> Any:
        """One of these, which is noted."""
        choice = choices[int(self.rng.integers(len(choices)))]
        self.forms.append(f"{part} {choice}")
        return choice

    def chance(self, part: str, share: float = 0.5) -> bool:
        taken = bool(self.rng.random() < share)
        self.forms += [part] if taken else []
        return taken

    def name(self) -> str:
        self._names += 1
        return f"v{self._names}"

    def held(self, array: np.ndarray) -> str:
        name = self.name()
        self.constants.append(numpy_helper.from_array(np.array(array, order="C"), name))
        return name

    def floats(self, array: np.ndarray | float) -> str:
        return self.held(np.array(array).astype(self.dtype).astype(self.stored))

    def weight(self, *dims: int, scale: float = 0.4) -> str:
        return self.floats(self.rng.standard_normal(dims) * scale)

    def ints(self, *values: int) -> str:
        return self.held(np.array(values, np.int64))

    def all(self, op_type: str, inputs: Sequence[str], count: int, **attributes: Any) -> list[str]:
        names = [self.name() for _ in range(count)]
        self.nodes.append(helper.make_node(op_type, list(inputs), names, name=names[0], **attributes))
        return names

    def op(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        return self.all(op_type, inputs, 1, **attributes)[0]

    def turn(self, x: str, *perm: int) -> str:
        return self.op("Transpose", x, perm=perm)

    def slice(self, x: str, begin: int, end: int, axis: int, step: int = 1) -> str:
        return self.op("Slice", x, *(self.ints(n) for n in (begin, end, axis, step)))

    def either(self, op_type: str, x: str, y: str) -> str:
        """The operands in either order."""
        return self.op(op_type, *((x, y) if self.rng.random() < 0.7 else (y, x)))

    def parts(self, x: str, count: int = 3) -> list[str]:
        """The places along the first axis."""
        way = self.form("parts", "Gather", "Split", "Slice")
        if way == "Gather":
            return [self.op("Gather", x, self.held(np.array(at, np.int64)), axis=0) for at in range(count)]
        cut = [self.slice(x, at, at + 1, 0) for at in range(count)] if way == "Slice" else []
        cut = cut or self.all("Split", [x], count, axis=0, num_outputs=count)
        return [self.op("Squeeze", part, self.ints(0)) for part in cut]

    def input(self, name: str, dims: Sequence[Dim], dtype: int | None = None) -> str:
        self.inputs[name] = (self.onnx_dtype if dtype is None else dtype, tuple(dims))
        return name

    def count(self, dim: Dim) -> str:
        """A dim as a tensor of one element."""
        if isinstance(dim, int):
            return self.ints(dim)
        if dim not in self._kept:
            name, axis = next((n, at) for n, (_, dims) in self.inputs.items() for at, d in enumerate(dims) if d == dim)
            self._kept[dim] = self.op("Shape", name, start=axis, end=axis + 1)
        return self._kept[dim]

    def reshape(self, x: str, *dims: Dim, copied: int = 0) -> str:
        """copied: how many leading dims are those of x."""
        symbols = [at for at, d in enumerate(dims) if isinstance(d, str)]
        zeros = copied and self.rng.random() < 0.5
        numbers = [0 if zeros and at < copied else -1 if isinstance(d, str) else d for at, d in enumerate(dims)]
        if len(symbols) <= 1 or numbers.count(-1) <= 1:
            return self.op("Reshape", x, self.ints(*numbers))
        return self.op("Reshape", x, self.op("Concat", *map(self.count, dims), axis=0))

    def range(self, dim: Dim) -> str:
        key = ("range", dim)
        if key not in self._kept:
            if isinstance(dim, int):
                self._kept[key] = self.held(np.arange(dim, dtype=np.int64))
            else:
                n = self.op("Squeeze", self.count(dim), self.ints(0))
                none, one = (self.held(np.array(k, np.int64)) for k in (0, 1))
                self._kept[key] = self.op("Range", none, n, one)
        return self._kept[key]

    def case(self, y: str, rank: int = 3) -> Case:
        """The graph, with inputs of three runs where dims are symbolic."""
        self.nodes.append(helper.make_node("Identity", [y], ["y"], name="y"))
        infos = [helper.make_tensor_value_info(n, dtype, dims) for n, (dtype, dims) in self.inputs.items()]
        result = helper.make_tensor_value_info("y", self.onnx_dtype, [None] * rank)
        graph = helper.make_graph(self.nodes, "g", infos, [result], self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
        symbols = {d for _, dims in self.inputs.values() for d in dims if isinstance(d, str)}
        runs = [{"B": 2, "T": 5, "K": 7}, {"B": 1, "T": 1, "K": 3}, {"B": 3, "T": 18, "K": 11}][: 3 if symbols else 1]
        return Case(model, [self._feeds(sizes) for sizes in runs], tuple(self.forms), self.layers)

    def _feeds(self, sizes: dict[str, int]) -> dict[str, np.ndarray]:
        found = {}
        for name, (dtype, dims) in self.inputs.items():
            shape = [sizes[d] if isinstance(d, str) else d for d in dims]
            if dtype in (onnx.TensorProto.BOOL, onnx.TensorProto.INT64):  # hides single keys of every second sequence
                array = (np.arange(shape[-1]) % 3 != 1) | (np.arange(shape[0]) % 2 == 1)[:, None]
            else:
                array = self.rng.standard_normal(shape).astype(self.dtype)
            found[name] = array.astype(helper.tensor_dtype_to_np_dtype(dtype))
        return found
