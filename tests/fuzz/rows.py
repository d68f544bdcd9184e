"""Random rowwise graphs, for property tests on the CPU and for benchmarks/checks/random_graphs.py on the GPU.

Every value has the domain's shape, one element a row, or is an input broadcast into it. Values stay of order 1, or two
correct results could differ: what grows with a row's length or with its operands is squeezed.
"""

from __future__ import annotations

import math
import random

import onnx
from onnx import TensorProto, helper

OPSET = 21
TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}
_LENGTHS = (2, 3, 5, 8, 16, 31, 40, 49, 64, 77, 100, 128, 196, 197, 256, 333, 512, 768, 1000, 1021, 1024, 1500)
_LONG = (2048, 4096, 4099, 8192, 16384, 20000, 32768, 33001, 40960, 65536, 100003)
_COUNTS = (1, 2, 3, 5, 7, 16, 33)
_MAX = 120_000  # elements of the domain
_UNARY = ("Tanh", "Sigmoid", "Abs", "Neg", "Relu", "Erf", "Sin")
_BINARY = ("Add", "Sub", "Mul", "Max", "Min")
_REDUCE = ("ReduceMean", "ReduceMax", "ReduceMin", "ReduceLogSumExp")
_GROWING = ("ReduceSum", "ReduceL1", "ReduceL2", "ReduceSumSquare")
Dims = tuple[str | int, ...]


class Graph:
    """A random graph; equal seeds give equal graphs. At least one node of it reduces."""

    def __init__(self, seed: int):
        self.rng = random.Random(seed)
        self.float = self.rng.choice(["float32", "float32", "float16"])
        self.dims, self.first, self.last = self._draw_domain()
        self.axes = list(range(self.first, self.last))
        self.nodes: list[onnx.NodeProto] = []
        self.initializers = [helper.make_tensor("axes", TensorProto.INT64, [len(self.axes)], self.axes)]
        self.inputs: list[onnx.ValueInfoProto] = []
        self.element: list[str] = []  # of the domain's shape
        self.row: list[str] = []  # of one element a row
        self.other: list[str] = []  # what broadcasts into the domain
        self._draw_inputs()
        count = self.rng.randint(1, 12)
        for k in range(count):
            self._grow(must_reduce=k == count // 2)

    def model(self) -> onnx.ModelProto:
        read = {name for node in self.nodes for name in node.input}
        made = [name for node in self.nodes for name in node.output]
        outputs = [n for n in made if n not in read or (n in self.element + self.row and self.rng.random() < 0.15)]
        results = [
            helper.make_tensor_value_info(n, TYPES[self.float], self.dims if n in self.element else self._row_dims())
            for n in outputs
        ]
        used = [i for i in self.inputs if i.name in read]
        graph = helper.make_graph(self.nodes, "rows", used, results, self.initializers)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)

    def _draw_domain(self) -> tuple[Dims, int, int]:
        rng = self.rng
        rank = rng.choice([1, 2, 2, 2, 3, 3, 4])
        first = rng.choice([rank - 1] * 5 + list(range(rank)))
        last = rng.choice([rank, first + 1]) if rng.random() < 0.7 else rng.randint(first + 1, rank)
        length = rng.choice(_LONG if rng.random() < 0.2 else _LENGTHS)
        dims: list[int | str] = [0] * rank
        for k in range(first, last - 1):
            dims[k] = next(d for d in (7, 5, 4, 3, 2, 1) if length % d == 0)
            length //= int(dims[k])
        dims[last - 1] = length
        left = max(_MAX // math.prod(int(d) for d in dims[first:last]), 1)
        for k in [*range(first), *range(last, rank)]:
            dims[k] = rng.choice([c for c in _COUNTS if c <= left])
            left //= int(dims[k])
        symbolic = rng.random()
        if symbolic < 0.2 and first > 0:
            dims[0] = "N"
        elif symbolic < 0.28:
            dims[last - 1] = "L"
        return tuple(dims), first, last

    def _row_dims(self) -> Dims:
        return tuple(1 if self.first <= k < self.last else d for k, d in enumerate(self.dims))

    def _draw_inputs(self) -> None:
        def add(name: str, dims: Dims, dtype: int = TYPES[self.float]) -> str:
            self.inputs.append(helper.make_tensor_value_info(name, dtype, dims))
            return name

        self.element = [add("x", self.dims), add("r", self.dims)]
        self.row = [add("q", self._row_dims())]
        trailing = self.dims[self.first :]
        per_row = tuple(1 if self.rng.random() < 0.5 else d for d in self.dims[: self.first]) + trailing
        some = tuple(1 if self.rng.random() < 0.5 else d for d in self.dims)
        self.other = [add("g", trailing), add("b", trailing), add("m", per_row), add("s", some)]
        self.masks = [add("k", per_row, TensorProto.BOOL), add("l", self.dims, TensorProto.BOOL)]

    def _emit(self, op: str, operands: list[str], to: list[str], **attributes: object) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, operands, [name], name=name, **attributes))
        to.append(name)
        return name

    def _constant(self, number: float) -> str:
        name = f"c{len(self.initializers)}"
        self.initializers.append(helper.make_tensor(name, TYPES[self.float], [], [number]))
        return name

    def _any(self) -> str:
        rng = self.rng
        return rng.choice(rng.choice([self.element[-4:], self.element[-4:], self.row[-2:], self.other]))

    def _grow(self, must_reduce: bool) -> None:
        forms = [self._reduce, self._norm] if must_reduce else [self._unary, self._binary, self._binary, self._reduce]
        self.rng.choice(forms if must_reduce else [*forms, self._norm, self._where])()

    def _unary(self) -> None:
        into = self.rng.choice([self.element, self.element, self.row])
        self._emit(self.rng.choice(_UNARY), [self.rng.choice(into[-3:])], into)

    def _binary(self) -> None:
        op = self.rng.choice(_BINARY)
        into = self.rng.choice([self.element, self.element, self.row])
        other = self.rng.choice(into) if into is self.row else self._any()
        pair = [self.rng.choice(into[-3:]), other]
        self.rng.shuffle(pair)
        # What grows is not read by anything else: only squeezed.
        if op in ("Max", "Min"):
            self._emit(op, pair, into)
        else:
            self._emit("Tanh", [self._emit(op, pair, [])], into)

    def _where(self) -> None:
        fill = self._constant(self.rng.choice([0.0, -10.0, 1.0]))
        pair = [self.rng.choice(self.element[-3:]), fill]
        self.rng.shuffle(pair)
        self._emit("Where", [self.rng.choice(self.masks), *pair], self.element)

    def _reduce(self) -> None:
        x = self.rng.choice(self.element[-3:])
        if self.rng.random() < 0.6:
            self._emit(self.rng.choice(_REDUCE), [x, "axes"], self.row)
            return
        total = self._emit(self.rng.choice(_GROWING), [x, "axes"], [])
        self._emit("Tanh", [self._emit("Mul", [total, self._constant(0.01)], [])], self.row)

    def _norm(self) -> None:
        x = self.rng.choice(self.element[-3:])
        if len(self.axes) == 1 and self.rng.random() < 0.6:
            op = self.rng.choice(["Softmax", "LogSoftmax", "LpNormalization"])
            if op == "LogSoftmax":  # of order log(length)
                scaled = self._emit("Mul", [self._emit(op, [x], [], axis=self.first), self._constant(0.1)], [])
                self._emit("Tanh", [scaled], self.element)
            else:
                self._emit(op, [x], self.element, axis=self.first)
        elif self.last == len(self.dims) and self.rng.random() < 0.5:
            self._emit("LayerNormalization", [x, "g", *self.rng.choice([[], ["b"]])], self.element, axis=self.first)
        else:  # RMSNorm spelled out
            mean = self._emit("ReduceMean", [self._emit("Mul", [x, x], []), "axes"], [])
            root = self._emit("Sqrt", [self._emit("Add", [mean, self._constant(0.1)], [])], [])
            self._emit("Div", [x, root], self.element)
