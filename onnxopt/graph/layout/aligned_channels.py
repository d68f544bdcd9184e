"""Channels of maps that are no multiple of 16 bytes, filled up with channels that repeat the first ones.

    Conv(Relu(Conv(x, w [18, C, 3, 3])), v [K, 18, 3, 3])
        -> Conv(Relu(Conv(x, [w; w[:6]] [24, C, 3, 3])), [v[:, :6] / 2, v[:, 6:], v[:, :6] / 2] [K, 24, 3, 3])

Tensor cores load 16 bytes at a time. For other numbers of channels cuDNN copies a convolution's operands into larger
tensors first, in kernels of their own, for every convolution anew; cuBLASLt has slower algorithms for them. A channel
and its copy have the same value, also where that is NaN or infinite, and half of the weight each. Channels of zeros
would turn infinities into NaN.

Every node between the convolutions treats channels alike: elementwise operators, pools, Resize, depthwise convolutions,
norms of single channels, Concats of channels and Splits. A map that is split later is filled up part by part. Where any
other node reads a map, its convolutions stay as they are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

import numpy as np
import onnx_ir as ir

from onnxopt.costs.layout import numbers
from onnxopt.graph.match import constant, integers, is_constant, is_private, only_consumer, operand
from onnxopt.graph.passes.new_nodes import initializer
from onnxopt.graph.shapes.infer import Knowledge
from onnxopt.program.hardware import ACCESS_BYTES

_DTYPES = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.FLOAT})
_CHANNEL = 1  # the axis
_ELEMENTWISE = frozenset(
    {"Add", "Celu", "Clip", "Elu", "Erf", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Max", "Min", "Mish", "Mul"}
    | {"Neg", "PRelu", "Relu", "Selu", "Sigmoid", "Softplus", "Softsign", "Sub", "Swish", "Tanh"}
)
_POOLS = frozenset({"AveragePool", "GlobalAveragePool", "GlobalMaxPool", "MaxPool"})
_CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})
_Parts = tuple[tuple[int, int], ...]  # of a map's channels: how many, and of how many of them copies follow


@dataclasses.dataclass(frozen=True)
class _Filled:
    """A map with more channels. by: the convolutions that it is computed from, with such nodes between."""

    parts: _Parts
    by: frozenset[ir.Node]

    @property
    def channels(self) -> int:
        return sum(map(sum, self.parts))

    @property
    def sources(self) -> np.ndarray:
        """For each channel, which channel of the map before it is."""
        first = np.cumsum([0, *(count for count, _ in self.parts)])
        parts = zip(self.parts, first, strict=False)
        return np.concatenate([at + np.r_[:count, :copies] for (count, copies), at in parts])

    @property
    def shares(self) -> np.ndarray:
        """The part of a weight that each channel has: half of it where there are two of the channel."""
        return 1 / np.bincount(self.sources)[self.sources]


class _Unlike(Exception):
    """A node does not treat the channels of these maps alike."""


def align(graph: ir.Graph, inferred: Knowledge) -> int:
    """Fill up the channels of convolutions in place; of how many. Shapes of the values that change are written."""
    chosen = {node: parts for node in graph if (parts := _unaligned(node, inferred))}
    while chosen:
        filling = _Filling(graph, inferred, chosen)
        wrong = filling.run()
        if not wrong:
            filling.write()
            break
        chosen = {node: parts for node, parts in chosen.items() if node not in wrong}
    return len(chosen)


def _unaligned(node: ir.Node, inferred: Knowledge) -> _Parts:
    """What a convolution of one group becomes that has constants of its own and channels to which few are added.

    Empty for others.
    """
    weight = operand(node, 1)
    if node.op_type not in _CONVOLUTIONS or node.domain != "" or weight is None or weight.dtype not in _DTYPES:
        return ()
    of_it = [v for v in node.inputs[1:] if v is not None]
    if node.attributes.get_int("group", 1) != 1 or not all(is_constant(v) and is_private(v) for v in of_it):
        return ()
    dims = inferred.dims(node.outputs[0])
    if dims is None or not isinstance(dims[_CHANNEL], int):
        return ()
    sizes = _split_sizes(node.outputs[0], inferred) or [dims[_CHANNEL]]
    parts = tuple((size, _missing(size, weight.dtype)) for size in sizes)
    few = all(added <= numbers().max_added_channels * size for size, added in parts)
    return parts if few and any(added for _, added in parts) else ()


def _split_sizes(value: ir.Value, inferred: Knowledge) -> list[int]:
    """Channels of the parts that a map is split into, after elementwise operators of its own; empty where it is not."""
    while (node := only_consumer(value)) is not None and node.domain == "" and node.op_type in _ELEMENTWISE:
        value = node.outputs[0]
    return [] if node is None else _sizes(node, inferred)


def _sizes(split: ir.Node, inferred: Knowledge) -> list[int]:
    """Channels of the parts of a Split of channels; empty for other nodes."""
    dims = [inferred.dims(part) for part in split.outputs]
    if split.op_type != "Split" or split.domain != "" or any(d is None or len(d) <= _CHANNEL for d in dims):
        return []
    if split.attributes.get_int("axis", 0) % len(dims[0] or ()) != _CHANNEL:
        return []
    sizes = [d[_CHANNEL] for d in dims if d is not None]
    return [size for size in sizes if isinstance(size, int)] if all(isinstance(size, int) for size in sizes) else []


def _missing(channels: int, dtype: ir.DataType) -> int:
    return -channels % (ACCESS_BYTES * 8 // dtype.bitwidth)


class _Filling:
    """What the maps of a graph are with the channels of `chosen` filled up."""

    def __init__(self, graph: ir.Graph, inferred: Knowledge, chosen: Mapping[ir.Node, _Parts]) -> None:
        self._graph, self._inferred, self._chosen = graph, inferred, chosen
        self._maps: dict[ir.Value, _Filled] = {}

    def run(self) -> set[ir.Node]:
        """Follow the maps through the graph. Returns the convolutions whose maps some node does not take so."""
        wrong = set[ir.Node]()
        for node in self._graph:
            try:
                self._maps |= self._results(node)
            except _Unlike:
                wrong |= {conv for v in self._read(node) for conv in self._maps[v].by}
        for value, filled in self._maps.items():
            inside = all(use.node.graph is self._graph for use in value.uses())
            if value.is_graph_output() or not inside:
                wrong |= filled.by
        return wrong

    def _read(self, node: ir.Node) -> list[ir.Value]:
        return [v for v in node.inputs if v is not None and v in self._maps]

    def _results(self, node: ir.Node) -> dict[ir.Value, _Filled]:
        """The results of a node that are not as they were."""
        read = self._read(node)
        if node in self._chosen:
            if any(v is not node.inputs[0] for v in read):
                raise _Unlike
            return {node.outputs[0]: _Filled(self._chosen[node], frozenset({node}))}
        if not read:
            return {}
        if node.domain == "" and node.op_type == "Split":
            return self._split(node)
        if node.domain != "" or len(node.outputs) != 1 or node.op_type not in _RESULTS:
            raise _Unlike
        filled = _RESULTS[node.op_type](self, node)
        return {} if filled is None else {node.outputs[0]: filled}

    def _convolution(self, node: ir.Node) -> _Filled | None:
        weight, x = node.inputs[1], node.inputs[0]
        group = node.attributes.get_int("group", 1)
        of_it = [v for v in node.inputs[1:] if v is not None]
        if not all(is_constant(v) and is_private(v) for v in of_it) or x not in self._maps or weight is None:
            raise _Unlike
        if group == 1:
            return None
        shape = weight.const_value.shape.numpy()  # type: ignore[union-attr]
        if node.op_type != "Conv" or shape[:2] != (group, 1):
            raise _Unlike
        return self._maps[x]

    def _alike(self, node: ir.Node) -> _Filled:
        """Of an elementwise node: its maps have the same channels, its other operands one, or are constants."""
        maps = {self._maps[v].parts for v in self._read(node)}
        if len(maps) > 1:
            raise _Unlike
        beside = [v for v in node.inputs if v is not None and v not in self._maps and not is_constant(v)]
        if any(self._channels(node, v) not in (1, None) for v in beside):
            raise _Unlike
        by = frozenset(conv for v in self._read(node) for conv in self._maps[v].by)
        return _Filled(maps.pop(), by)

    def _channels(self, node: ir.Node, value: ir.Value) -> int | str | None:
        """Of an operand beside a map, which is broadcast into it: None for no such axis."""
        axis = _CHANNEL - len(self._inferred.dims(node.outputs[0]) or ())
        dims = self._inferred.dims(value)
        if dims is None:
            raise _Unlike
        return dims[axis] if len(dims) >= -axis else None

    def _first(self, node: ir.Node) -> _Filled:
        """Of a node whose first operand alone is a map."""
        x = node.inputs[0]
        if x is None or self._read(node) != [x]:
            raise _Unlike
        return self._maps[x]

    def _norm(self, node: ir.Node) -> _Filled:
        if not all(v is not None and is_constant(v) for v in node.inputs[1:]):
            raise _Unlike
        return self._first(node)

    def _resized(self, node: ir.Node) -> _Filled:
        filled = self._first(node)
        scales, sizes, axes = operand(node, 2), operand(node, 3), node.attributes.get_ints("axes", ())
        rank = len(self._inferred.dims(node.outputs[0]) or ())
        if axes and all(axis % rank > _CHANNEL for axis in axes):
            return filled
        factors = constant(scales)
        if axes or sizes is not None or factors is None or not all(f == 1 for f in factors[: _CHANNEL + 1]):
            raise _Unlike
        return filled

    def _reduced(self, node: ir.Node) -> _Filled:
        filled = self._first(node)
        rank = len(self._inferred.dims(node.inputs[0]) or ())
        axes = integers(operand(node, 1)) or list(node.attributes.get_ints("axes", ()) or ())
        if not axes or not all(axis % rank > _CHANNEL for axis in axes) or not node.attributes.get_int("keepdims", 1):
            raise _Unlike
        return filled

    def _joined(self, node: ir.Node) -> _Filled:
        rank = len(self._inferred.dims(node.outputs[0]) or ())
        parts: list[tuple[int, int]] = []
        if node.attributes.get_int("axis", 0) % max(rank, 1) != _CHANNEL:
            raise _Unlike
        for value in node.inputs:
            dims = self._inferred.dims(value)
            if value is not None and value in self._maps:
                parts += self._maps[value].parts
            elif dims is not None and isinstance(dims[_CHANNEL], int):
                parts.append((dims[_CHANNEL], 0))
            else:
                raise _Unlike
        return _Filled(tuple(parts), frozenset(conv for v in self._read(node) for conv in self._maps[v].by))

    def _split(self, node: ir.Node) -> dict[ir.Value, _Filled]:
        """Of a Split between parts of a map."""
        filled, sizes = self._first(node), _sizes(node, self._inferred)
        waiting, parts = list(filled.parts), dict[ir.Value, _Filled]()
        for value, size in zip(node.outputs, sizes, strict=False):
            own: list[tuple[int, int]] = []
            while waiting and sum(channels for channels, _ in own) < size:
                own.append(waiting.pop(0))
            if sum(channels for channels, _ in own) != size:
                raise _Unlike
            parts[value] = _Filled(tuple(own), filled.by)
        if not sizes or waiting:
            raise _Unlike
        return parts

    def write(self) -> None:
        """Change the graph: weights, biases and other constants get their copies, and values their shapes."""
        for node in [n for n in self._graph if n in self._chosen or self._read(n)]:
            for position, axis, result in self._constants(node):
                node.replace_input_with(position, self._repeated(node.inputs[position], axis, result.sources))
            x = self._maps.get(node.inputs[0])  # type: ignore[arg-type]
            if x is not None and node.op_type in _CONVOLUTIONS and node.attributes.get_int("group", 1) == 1:
                axis = 1 - int(node.op_type == "ConvTranspose")
                node.replace_input_with(1, self._repeated(node.inputs[1], axis, x.sources, x.shares))
            filled = self._maps.get(node.outputs[0])
            if node.op_type == "Split":
                self._write_sizes(node)
            if node.op_type == "Conv" and node.attributes.get_int("group", 1) != 1 and filled is not None:
                node.attributes["group"] = ir.AttrInt64("group", filled.channels)
        for value, filled in self._maps.items():
            if value.shape is not None:
                dims = list(value.shape)
                dims[_CHANNEL] = filled.channels
                value.shape = ir.Shape(dims)

    def _write_sizes(self, split: ir.Node) -> None:
        sizes = np.array([self._maps[part].channels for part in split.outputs], np.int64)
        split.attributes.pop("num_outputs", None)
        split.resize_inputs(2)
        split.replace_input_with(1, initializer(self._graph, ir.Tensor(sizes), f"{split.name}/sizes"))

    def _constants(self, node: ir.Node) -> Iterator[tuple[int, int, _Filled]]:
        """The constants of a node that count channels of its result: positions, axes, and what these become."""
        result = self._maps.get(node.outputs[0])
        if result is None:
            return
        if node.op_type in _CONVOLUTIONS:
            yield 1, int(node.op_type == "ConvTranspose"), result
            if operand(node, 2) is not None:
                yield 2, 0, result
        elif node.op_type == "InstanceNormalization":
            yield from ((position, 0, result) for position in (1, 2))
        elif node.op_type in _ELEMENTWISE:
            rank = len(self._inferred.dims(node.outputs[0]) or ())
            for position, value in enumerate(node.inputs):
                if value is not None and is_constant(value) and self._channels(node, value) not in (1, None):
                    yield position, len(self._inferred.dims(value) or ()) - rank + _CHANNEL, result

    def _repeated(
        self, value: ir.Value | None, axis: int, sources: np.ndarray, shares: np.ndarray | None = None
    ) -> ir.Value:
        """A constant with these channels along an axis, multiplied by their shares of it."""
        assert value is not None and value.const_value is not None
        tensor, name = value.const_value, f"{value.name}/aligned"
        dims = [len(sources) if k == axis else size for k, size in enumerate(tensor.shape.numpy())]

        def evaluate() -> ir.Tensor:
            array = tensor.numpy().take(sources, axis)
            if shares is not None:
                array = array * shares.astype(array.dtype).reshape([-1 if k == axis else 1 for k in range(len(dims))])
            return ir.Tensor(array, dtype=tensor.dtype, name=name)

        lazy = ir.LazyTensor(evaluate, dtype=tensor.dtype, shape=ir.Shape(dims), name=name)
        return initializer(self._graph, lazy, name)


_RESULTS = {
    **dict.fromkeys(_CONVOLUTIONS, _Filling._convolution),
    **dict.fromkeys(_ELEMENTWISE, _Filling._alike),
    **dict.fromkeys(_POOLS, _Filling._first),
    "Concat": _Filling._joined,
    "InstanceNormalization": _Filling._norm,
    "ReduceMean": _Filling._reduced,
    "Resize": _Filling._resized,
}
