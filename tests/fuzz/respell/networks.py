"""Small networks in their usual spelling: that of torch's exporter, at opset 20.

Each is one function, which adds its nodes and returns the outputs. `options` draws what differs between models of one
network: dtype, activation, norm, mask, number of heads.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from tests.fuzz.respell.building import Builder

OPSET = 20
_WIDTH, _HIDDEN, _CHANNELS, _CACHED = 64, 96, 32, "p"
Dim = int | str


@dataclasses.dataclass(frozen=True)
class Options:
    """What differs between models of one network. Not every network has all of it."""

    dtype: ir.DataType
    batch: Dim
    heads: int
    activation: str
    norm: str
    mask: bool
    bias: bool
    tables: str  # of rotary embedding: "inputs", "constants", or "computed" of positions


def options(rng: random.Random) -> Options:
    return Options(
        dtype=rng.choice([ir.DataType.FLOAT16, ir.DataType.FLOAT16, ir.DataType.FLOAT]),
        batch=rng.choice(["b", 2]),
        heads=rng.choice([4, 2]),
        activation=rng.choice(["gelu", "gelu_tanh", "silu", "relu"]),
        norm=rng.choice(["layer", "rms"]),
        mask=rng.random() < 0.5,
        bias=rng.random() < 0.7,
        tables=rng.choice(["inputs", "constants", "computed", "computed"]),
    )


class _Net:
    """One network while it is built."""

    def __init__(self, options: Options) -> None:
        self.o = options
        self.graph = ir.Graph([], [], nodes=[], opset_imports={"": OPSET}, name="network")
        self.b = Builder(self.graph, random.Random(0))

    def input(self, name: str, *dims: Dim, dtype: ir.DataType | None = None) -> ir.Value:
        value = ir.Value(name=name, shape=ir.Shape(dims), type=ir.TensorType(dtype or self.o.dtype))
        self.graph.inputs.append(value)
        return value

    def weight(self, name: str, *shape: int, size: float = 0.2, shift: float = 0.0) -> ir.Value:
        return self.b.weight(name, *shape, dtype=self.o.dtype, size=size, shift=shift)

    def number(self, number: float) -> ir.Value:
        return self.b.constant(np.array(number), self.o.dtype)

    def linear(self, x: ir.Value, name: str, columns: int, rows: int = _WIDTH) -> ir.Value:
        product = self.b.op("MatMul", x, self.weight(f"{name}.weight", rows, columns))
        return self.b.op("Add", product, self.weight(f"{name}.bias", columns)) if self.o.bias else product

    def activation(self, x: ir.Value) -> ir.Value:
        if self.o.activation == "silu":
            return self.b.op("Mul", x, self.b.op("Sigmoid", x))
        if self.o.activation == "relu":
            return self.b.op("Relu", x)
        return self.b.op("Gelu", x, approximate="tanh" if self.o.activation == "gelu_tanh" else "none")

    def norm(self, x: ir.Value, name: str) -> ir.Value:
        scale = self.weight(f"{name}.scale", _WIDTH, shift=1.0)
        if self.o.norm == "layer":
            return self.b.op("LayerNormalization", x, scale, self.weight(f"{name}.shift", _WIDTH), epsilon=1e-5)
        narrow, float32 = self.o.dtype != ir.DataType.FLOAT, int(ir.DataType.FLOAT)
        wide = self.b.op("Cast", x, to=float32) if narrow else x
        squares = self.b.op("Pow", wide, self.b.constant(np.array(2.0), ir.DataType.FLOAT))
        mean = self.b.op("ReduceMean", squares, self.b.constant([-1]), keepdims=1)
        shifted = self.b.op("Add", mean, self.b.constant(np.array(1e-5), ir.DataType.FLOAT))
        normal = self.b.op("Mul", wide, self.b.op("Reciprocal", self.b.op("Sqrt", shifted)))
        normal = self.b.op("Cast", normal, to=int(self.o.dtype)) if narrow else normal
        return self.b.op("Mul", scale, normal)

    def heads(self, x: ir.Value, perm: Sequence[int] = (0, 2, 1, 3), heads: int | None = None) -> ir.Value:
        count = heads or self.o.heads
        split = self.b.op("Reshape", x, self.b.constant([0, 0, count, _WIDTH // self.o.heads]))
        return self.b.op("Transpose", split, perm=list(perm))

    def rotated(self, x: ir.Value, cos: ir.Value, sin: ir.Value) -> ir.Value:
        half, b = _WIDTH // self.o.heads // 2, self.b
        low = b.op("Slice", x, b.constant([0]), b.constant([half]), b.constant([3]))
        high = b.op("Slice", x, b.constant([half]), b.constant([2**63 - 1]), b.constant([3]))
        turned = b.op("Concat", b.op("Neg", high), low, axis=-1)
        return b.op("Add", b.op("Mul", x, cos), b.op("Mul", turned, sin))

    def tables(self, length: Dim) -> tuple[ir.Value, ir.Value]:
        """Cosines and sines, [batch, 1, length, size of a head]; constant ones for one token and for all batches."""
        b, size = self.b, _WIDTH // self.o.heads
        if self.o.tables == "inputs":
            cos, sin = (self.input(name, self.o.batch, 1, length, size) for name in ("cos", "sin"))
            return cos, sin
        frequencies = (0.1 ** np.linspace(0, 2, size // 2)).astype(np.float32)
        if self.o.tables == "constants" and isinstance(length, int):
            angles = np.tile(frequencies, 2).reshape(1, 1, 1, size) * 3
            return b.constant(np.cos(angles), self.o.dtype), b.constant(np.sin(angles), self.o.dtype)
        positions = self.input("positions", self.o.batch, length, dtype=ir.DataType.FLOAT)
        angles = b.op("Mul", b.op("Unsqueeze", positions, b.constant([2])), b.constant(frequencies, ir.DataType.FLOAT))
        both = b.op("Concat", angles, angles, axis=-1)
        of_heads = [b.op("Unsqueeze", b.op(f, both), b.constant([1])) for f in ("Cos", "Sin")]
        if self.o.dtype == ir.DataType.FLOAT:
            return of_heads[0], of_heads[1]
        return b.op("Cast", of_heads[0], to=int(self.o.dtype)), b.op("Cast", of_heads[1], to=int(self.o.dtype))

    def repeated(self, x: ir.Value) -> ir.Value:
        """Each head of keys or values for a group of query heads, as transformers' repeat_kv."""
        b, size, groups = self.b, _WIDTH // self.o.heads, self.o.heads // 2
        whole = b.op("Shape", x)
        dims = [b.op("Slice", whole, b.constant([k]), b.constant([k + 1]), b.constant([0])) for k in (0, 2)]
        shape = b.op("Concat", dims[0], b.constant([2, groups]), dims[1], b.constant([size]), axis=0)
        wide = b.op("Expand", b.op("Unsqueeze", x, b.constant([2])), shape)
        joined = b.op("Concat", dims[0], b.constant([self.o.heads]), dims[1], b.constant([size]), axis=0)
        return b.op("Reshape", wide, joined)

    def weighted(self, q: ir.Value, k: ir.Value, v: ir.Value, mask: ir.Value | None) -> ir.Value:
        """Attention of heads q, transposed keys and v, heads joined again."""
        scores = self.b.op("MatMul", q, k)
        scores = self.b.op("Mul", scores, self.number(1 / math.sqrt(_WIDTH // self.o.heads)))
        scores = scores if mask is None else self.b.op("Add", scores, mask)
        result = self.b.op("MatMul", self.b.op("Softmax", scores, axis=-1), v)
        joined = self.b.op("Transpose", result, perm=[0, 2, 1, 3])
        return self.b.op("Reshape", joined, self.b.constant([0, 0, _WIDTH]))

    def self_attention(self, x: ir.Value, mask: ir.Value | None) -> ir.Value:
        q, k, v = (self.linear(x, name, _WIDTH) for name in ("query", "key", "value"))
        mixed = self.weighted(self.heads(q), self.heads(k, (0, 2, 3, 1)), self.heads(v), mask)
        return self.linear(mixed, "out", _WIDTH)

    def mlp(self, x: ir.Value) -> ir.Value:
        inner = self.activation(self.linear(x, "up", _HIDDEN))
        return self.linear(inner, "down", _WIDTH, _HIDDEN)

    def gated_mlp(self, x: ir.Value) -> ir.Value:
        gate = self.activation(self.linear(x, "gate", _HIDDEN))
        inner = self.b.op("Mul", gate, self.linear(x, "up", _HIDDEN))
        return self.linear(inner, "down", _WIDTH, _HIDDEN)

    def conv(self, x: ir.Value, name: str, kernel: int = 3, group: int = 1) -> ir.Value:
        weight = self.weight(f"{name}.weight", _CHANNELS, _CHANNELS // group, kernel, kernel, size=0.1)
        pads = [kernel // 2] * 4
        bias = self.weight(f"{name}.bias", _CHANNELS) if self.o.bias else None
        return self.b.op("Conv", x, weight, bias, pads=pads, group=group, kernel_shape=[kernel] * 2)

    def mask(self, keys: Dim = "s") -> ir.Value | None:
        return self.input("mask", self.o.batch, 1, 1, keys) if self.o.mask else None


def _tokens(net: _Net, length: Dim = "s") -> ir.Value:
    return net.input("x", net.o.batch, length, _WIDTH)


def attention(net: _Net) -> list[ir.Value]:
    return [net.self_attention(_tokens(net), net.mask())]


def mlp(net: _Net) -> list[ir.Value]:
    x = _tokens(net)
    return [net.b.op("Add", x, net.mlp(x))]


def gated(net: _Net) -> list[ir.Value]:
    return [net.gated_mlp(_tokens(net))]


def norms(net: _Net) -> list[ir.Value]:
    """A residual and its norm, as between two layers."""
    total = net.b.op("Add", _tokens(net), net.input("y", net.o.batch, "s", _WIDTH))
    return [total, net.norm(total, "norm")]


def encoder(net: _Net) -> list[ir.Value]:
    """A layer as those of BERT (norms behind) and of ViT (norms first)."""
    x, mask = _tokens(net), net.mask()
    if net.o.mask:
        x = net.norm(net.b.op("Add", net.self_attention(x, mask), x), "norm1")
        return [net.norm(net.b.op("Add", net.mlp(x), x), "norm2")]
    x = net.b.op("Add", x, net.self_attention(net.norm(x, "norm1"), mask))
    return [net.b.op("Add", x, net.mlp(net.norm(x, "norm2")))]


def rotary(net: _Net) -> list[ir.Value]:
    """Attention with rotary embedding."""
    x, (cos, sin) = _tokens(net), net.tables("s")
    q, k, v = (net.heads(net.linear(x, name, _WIDTH)) for name in ("query", "key", "value"))
    keys = net.b.op("Transpose", net.rotated(k, cos, sin), perm=[0, 1, 3, 2])
    return [net.linear(net.weighted(net.rotated(q, cos, sin), keys, v, net.mask()), "out", _WIDTH)]


def chosen(net: _Net) -> list[ir.Value]:
    """A layer that changes some tokens and leaves the others, as those that drop padding."""
    x = _tokens(net)
    keep = net.input("keep", net.o.batch, "s", 1, dtype=ir.DataType.BOOL)
    return [net.norm(net.b.op("Where", keep, net.mlp(x), x), "norm")]


def embedding(net: _Net) -> list[ir.Value]:
    """Rotary embedding alone."""
    heads = net.input("x", net.o.batch, net.o.heads, "s", _WIDTH // net.o.heads)
    return [net.rotated(heads, *net.tables("s"))]


def grouped(net: _Net) -> list[ir.Value]:
    """The attention of a layer of Llama: rotary embedding, and fewer heads of keys than of queries."""
    x, (cos, sin) = _tokens(net), net.tables("s")
    size = _WIDTH // net.o.heads
    q = net.rotated(net.heads(net.linear(x, "query", _WIDTH)), cos, sin)
    k, v = (net.heads(net.linear(x, name, 2 * size), heads=2) for name in ("key", "value"))
    k, v = net.repeated(net.rotated(k, cos, sin)), net.repeated(v)
    return [net.linear(net.weighted(q, net.b.op("Transpose", k, perm=[0, 1, 3, 2]), v, net.mask()), "out", _WIDTH)]


def step(net: _Net) -> list[ir.Value]:
    """A step of a decoder: one token, its keys and values behind those of a cache."""
    x, size, b = _tokens(net, 1), _WIDTH // net.o.heads, net.b
    past = [net.input(name, net.o.batch, net.o.heads, _CACHED, size) for name in ("past_key", "past_value")]
    q, k, v = (net.heads(net.linear(x, name, _WIDTH)) for name in ("query", "key", "value"))
    if net.o.norm == "rms":  # as Llama's
        cos, sin = net.tables(1)
        q, k = net.rotated(q, cos, sin), net.rotated(k, cos, sin)
    key, value = (b.op("Concat", old, new, axis=2) for old, new in zip(past, (k, v), strict=True))
    mixed = net.weighted(q, b.op("Transpose", key, perm=[0, 1, 3, 2]), value, net.mask(f"{_CACHED} + 1"))
    return [net.linear(mixed, "out", _WIDTH), key, value]


def _map(net: _Net) -> ir.Value:
    return net.input("x", net.o.batch, _CHANNELS, 16, 16)


def residual(net: _Net) -> list[ir.Value]:
    """A block as those of ResNet."""
    x = _map(net)
    y = net.conv(net.activation(net.conv(x, "conv1")), "conv2")
    return [net.activation(net.b.op("Add", y, x))]


def separable(net: _Net) -> list[ir.Value]:
    """A depthwise convolution with a squeeze-excite, and a pointwise one, as in EfficientNet."""
    x, b = _map(net), net.b
    y = net.activation(net.conv(x, "depthwise", group=_CHANNELS))
    mean = b.op("ReduceMean", y, b.constant([2, 3]), keepdims=1)
    gate = b.op("Sigmoid", net.conv(net.activation(net.conv(mean, "squeeze", 1)), "excite", 1))
    return [b.op("Add", net.conv(b.op("Mul", y, gate), "project", 1), x)]


def halves(net: _Net) -> list[ir.Value]:
    """Halves of a map's channels that change places, as in ShuffleNet."""
    first, second = net.b.parts("Split", 2, net.activation(net.conv(_map(net), "conv1")), axis=1, num_outputs=2)
    return [net.conv(net.b.op("Concat", net.activation(second), first, axis=1), "conv2")]


def pooled(net: _Net) -> list[ir.Value]:
    """The end of a classifier: convolution, mean of the map, product."""
    y, b = net.activation(net.conv(_map(net), "conv")), net.b
    mean = b.op("GlobalAveragePool", y)
    return [net.linear(b.op("Flatten", mean, axis=1), "classes", 16, _CHANNELS)]


def normalized(net: _Net) -> list[ir.Value]:
    """A convolution and its BatchNormalization."""
    x, b = _map(net), net.b
    scale, variance = (net.weight(f"bn.{n}", _CHANNELS, size=0.1, shift=1.0) for n in ("scale", "variance"))
    shift, mean = (net.weight(f"bn.{n}", _CHANNELS) for n in ("shift", "mean"))
    y = b.op("BatchNormalization", net.conv(x, "conv1"), scale, shift, mean, variance, epsilon=1e-5)
    return [net.conv(net.activation(y), "conv2", 1)]


NETWORKS: dict[str, Callable[[_Net], list[ir.Value]]] = {
    f.__name__: f
    for f in (
        attention, mlp, gated, norms, encoder, rotary, chosen, embedding, grouped, step, residual, separable, halves,
        pooled, normalized,
    )
}  # fmt: skip


def network(name: str, options: Options) -> ir.Model:
    """The model of a network, whose inputs and outputs have names and shapes."""
    net = _Net(options)
    outputs = NETWORKS[name](net)
    for k, value in enumerate(outputs):
        value.name = f"output{k}"
    net.graph.outputs.extend(outputs)
    return ir.Model(net.graph, ir_version=9)
