"""Random graphs of rowwise operators with index operations between them, for property tests and the GPU.

Every operator of the table is drawn, on whatever axes of whatever value. Values stay of order 1, or two correct results
could differ; what jumps (ArgMax) reads the graph's own inputs, moved at most.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import onnx
import onnx.numpy_helper
from onnx import TensorProto, helper

from onnxopt.program.operators.row_operators import ROW_OPERATORS
from tests.fuzz import index as fuzz_index
from tests.fuzz.index import Dims, Value, fits

OPSET = 21
TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "int64": TensorProto.INT64}
_EXTENTS = (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 49, 64, 96)
_MAX = 12_000  # elements of a value
_UNARY = ("Tanh", "Sigmoid", "Abs", "Neg", "Relu", "Erf")
_BINARY = ("Add", "Sub", "Mul", "Max", "Min")
_OPERATORS = sorted({name for domain, name in ROW_OPERATORS if not domain} - {"RMSNormalization"})  # of later opsets
_GROWING = frozenset({"ReduceSum", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceProd", "ReduceLogSum"})


class Graph:
    """A random graph; equal seeds give equal graphs. It is drawn in float32, whatever dtype the model has."""

    float = "float32"

    def __init__(self, seed: int):
        self.rng = random.Random(seed)
        self.dtype = self.rng.choice(["float32", "float32", "float16"])
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        rank = self.rng.choice([2, 3, 3, 3, 4, 4])
        dims: list[str | int] = []
        left = _MAX
        for _ in range(rank):
            dims.append(self.rng.choice([d for d in _EXTENTS if d <= left]))
            left //= dims[-1]  # type: ignore[operator]
        self.rng.shuffle(dims)
        if self.rng.random() < 0.25:
            dims[0] = "N"
        whole = tuple(dims)
        part = tuple(1 if self.rng.random() < 0.5 else d for d in dims)
        self.inputs: list[Value] = [("x", self.float, whole), ("r", self.float, whole), ("b", self.float, part)]
        self.values = list(self.inputs)
        self.moved = {"x", "r", "b"}  # names of what holds elements of the inputs as they are
        count = self.rng.randint(2, 9)
        for k in range(count):
            self._grow(must_reduce=k == count // 2)

    def model(self, dtype: str | None = None) -> onnx.ModelProto:
        """The graph in its own dtype, or in another one: then its outputs are the same, and it may be the reference."""
        to = dtype or self.dtype
        outputs = random.Random(len(self.nodes))
        read = {name for node in self.nodes for name in node.input}
        results = [v for v in self.values if v not in self.inputs]
        stored = [v for v in results if v[0] not in read or outputs.random() < 0.08]
        info = [
            [helper.make_tensor_value_info(n, TYPES[to if t == self.float else t], d) for n, t, d in values]
            for values in ([v for v in self.inputs if v[0] in read], stored)
        ]
        constants = [self._stored(t, to) for t in self.initializers]
        graph = helper.make_graph(self.nodes, "index_rows", info[0], info[1], constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)

    def _stored(self, tensor: onnx.TensorProto, dtype: str) -> onnx.TensorProto:
        if tensor.data_type != TYPES[self.float]:
            return tensor
        return helper.make_tensor(
            tensor.name, TYPES[dtype], tensor.dims, onnx.numpy_helper.to_array(tensor).reshape(-1)
        )

    def _floats(self) -> list[Value]:
        return [v for v in self.values if v[1] == self.float]

    def _grow(self, must_reduce: bool) -> None:
        if must_reduce:
            before = len(self.nodes)
            for _ in range(20):
                self._row()
                if len(self.nodes) > before:
                    return
            return
        self.rng.choice([self._index, self._index, self._index, self._unary, self._binary, self._row])()

    def _index(self) -> None:
        known = len(self.values)
        first = len(self.nodes)
        fuzz_index.grow(self)
        if len(self.nodes) > first and all(n in self.moved for n in self.nodes[-1].input[:1]):
            concat = self.nodes[-1].op_type == "Concat"
            if not concat or all(n in self.moved for n in self.nodes[-1].input):
                self.moved |= {v[0] for v in self.values[known:]}

    def _emit(self, op: str, operands: list[str], dims: Dims, dtype: str | None = None, **attributes: object) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, operands, [name], name=name, **attributes))
        self.values.append((name, dtype or self.float, dims))
        return name

    def _constant(self, numbers: list[float], dims: list[int]) -> str:
        name = f"c{len(self.initializers)}"
        self.initializers.append(helper.make_tensor(name, TYPES[self.float], dims, numbers))
        return name

    def _unary(self) -> None:
        value = self.rng.choice(self._floats()[-2:])
        self._emit(self.rng.choice(_UNARY), [value[0]], value[2])

    def _binary(self) -> None:
        value = self.rng.choice(self._floats()[-2:])
        others = [v for v in self._floats() if fits([v[2], value[2]]) and len(v[2]) <= len(value[2])]
        padded = [((1,) * (len(value[2]) - len(v[2])) + v[2], v) for v in others]
        others = [v for dims, v in padded if all(d in (1, w) for d, w in zip(dims, value[2], strict=True))]
        pair = [value[0], self.rng.choice(others)[0]]
        self.rng.shuffle(pair)
        name = self._emit(self.rng.choice(_BINARY), pair, value[2])
        self.values.pop()
        self._emit("Tanh", [name], value[2])

    def _row(self) -> None:
        name = self.rng.choice(_OPERATORS)
        value = self.rng.choice(self._floats()[-2:])
        if not value[2]:
            return
        if name.startswith("Arg"):
            value = self.rng.choice([v for v in self._floats() if v[0] in self.moved and v[2]] or [self.inputs[0]])
        form = _FORMS.get(name)
        if form is not None:
            form(self, name, value)
        elif name.startswith("Reduce"):
            self._reduce(name, value)

    def _reduce(self, name: str, value: Value) -> None:
        rank = len(value[2])
        first = self.rng.randrange(rank)
        axes = list(range(first, self.rng.choice([first + 1, first + 1, rank])))
        if name == "ReduceProd" and any(not isinstance(value[2][a], int) or value[2][a] > 6 for a in axes):
            return  # it would be 0 in 16 bits
        kept = self.rng.random() < 0.6
        dims = tuple(1 if k in axes else d for k, d in enumerate(value[2]) if kept or k not in axes)
        told = f"c{len(self.initializers)}"
        self.initializers.append(helper.make_tensor(told, TensorProto.INT64, [len(axes)], axes))
        operand = value[0]
        if name in _GROWING:
            operand = self._emit("Sigmoid", [operand], value[2])
        result = self._emit(name, [operand, told], dims, keepdims=int(kept))
        if name in _GROWING:
            self.values.pop()
            scaled = self._emit("Mul", [result, self._constant([0.02], [])], dims)
            self.values.pop()
            self._emit("Tanh", [scaled], dims)

    def _axis_norm(self, name: str, value: Value) -> None:
        axis = self.rng.randrange(len(value[2]))
        if name == "LpNormalization":
            self._emit(name, [value[0]], value[2], axis=axis, p=self.rng.choice([1, 2]))
            return
        result = self._emit(name, [value[0]], value[2], axis=axis)
        if name == "LogSoftmax":
            self.values.pop()
            self._emit("Tanh", [result], value[2])

    def _arg(self, name: str, value: Value) -> None:
        axis, kept = self.rng.randrange(len(value[2])), self.rng.randint(0, 1)
        dims = tuple(1 if k == axis else d for k, d in enumerate(value[2]) if kept or k != axis)
        last = self.rng.randint(0, 1)
        self._emit(name, [value[0]], dims, "int64", axis=axis, keepdims=kept, select_last_index=last)

    def _mean_variance(self, name: str, value: Value) -> None:
        # Its epsilon is too small for rows of equal elements: only of the inputs, whose rows have none.
        whole = self.inputs[0]
        axis = self.rng.randrange(len(whole[2]))
        size = whole[2][axis]
        if isinstance(size, int) and size > 4:
            self._emit(name, [whole[0]], whole[2], axes=[axis])

    def _layer_norm(self, name: str, value: Value) -> None:
        size = value[2][-1]
        if isinstance(size, int) and size <= 128:
            weights = [self._constant([0.5 + 0.1 * (k % 7) for k in range(size)], [size]) for _ in range(2)]
            weights = weights[: self.rng.randint(1, 2)]
            self._emit(name, [value[0], *weights], value[2], axis=-1, epsilon=0.1)

    def _spatial(self, name: str, value: Value) -> None:
        channels = value[2][1] if len(value[2]) > 2 else None
        if not isinstance(channels, int) or all(d == 1 for d in value[2][2:]):
            return
        if name.startswith("Global"):
            dims = (*value[2][:2], *(1 for _ in value[2][2:]))
            self._emit(name, [value[0]], dims)
            return
        more = {"num_groups": next(g for g in (4, 3, 2, 1) if channels % g == 0)} if name.startswith("Group") else {}
        weights = [self._constant([0.5 + 0.1 * (k % 5) for k in range(channels)], [channels]) for _ in range(2)]
        self._emit(name, [value[0], *weights], value[2], epsilon=0.1, **more)


_FORMS: dict[str, Callable[[Graph, str, Value], None]] = {
    **dict.fromkeys(("Softmax", "LogSoftmax", "LpNormalization"), Graph._axis_norm),
    **dict.fromkeys(("ArgMax", "ArgMin"), Graph._arg),
    "MeanVarianceNormalization": Graph._mean_variance,
    "LayerNormalization": Graph._layer_norm,
    **dict.fromkeys(
        ("InstanceNormalization", "GroupNormalization", "GlobalAveragePool", "GlobalMaxPool"), Graph._spatial
    ),
}
