"""Random graphs of convolutions and of what stands around them, with dims that may be symbolic."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import helper, numpy_helper

_END = np.iinfo(np.int64).max


@dataclasses.dataclass(frozen=True)
class Map:
    """A value of shape [N, C, H, W]; N is the same everywhere but after a reduction."""

    name: str
    dims: tuple[int, int, int, int]


class Building:
    """A graph while nodes are drawn for it."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self._random = np.random.default_rng(draw(st.integers(0, 2**16)))
        self._count = 0

    def pick(self, *choices: Any) -> Any:
        return self.draw(st.sampled_from(choices))

    def name(self) -> str:
        self._count += 1
        return f"v{self._count}"

    def constant(self, array: np.ndarray) -> str:
        name = self.name()
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def normal(self, *dims: int) -> str:
        return self.constant(self._random.standard_normal(dims).astype(np.float32) * 0.5)

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def node(self, op_type: str, inputs: list[str], outputs: int = 1, **attributes: Any) -> list[str]:
        names = [self.name() for _ in range(outputs)]
        self.nodes.append(helper.make_node(op_type, inputs, names, name=names[0], **attributes))
        return names

    def add(self, dims: tuple[int, int, int, int], op_type: str, inputs: list[str], **attributes: Any) -> Map:
        return Map(self.node(op_type, inputs, **attributes)[0], dims)


def _window(b: Building, m: Map, sizes: tuple[int, ...], pool: bool) -> tuple[dict[str, Any], tuple[int, int]]:
    """Attributes of a window, and the height and width of the result."""
    k, stride = (b.pick(*sizes), b.pick(*sizes)), (b.pick(1, 1, 2), b.pick(1, 1, 2))
    auto = b.pick("NOTSET", "NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")
    dilations = (1, 1) if pool or auto.startswith("SAME") else (b.pick(1, 1, 2), b.pick(1, 1, 2))
    attributes: dict[str, Any] = {"kernel_shape": k, "strides": stride}
    if not pool:
        attributes["dilations"] = dilations
    reach = [d * (size - 1) + 1 for d, size in zip(dilations, k, strict=True)]
    if auto.startswith("SAME"):
        out = tuple(-(-d // s) for d, s in zip(m.dims[2:], stride, strict=True))
        return attributes | {"auto_pad": auto}, (out[0], out[1])
    pads = [0, 0, 0, 0]
    if auto == "VALID":
        attributes["auto_pad"] = auto
    else:
        most = [min(r - 1, 2) for r in k] * 2
        pads = [b.draw(st.integers(0, p)) for p in most]
        attributes["pads"] = pads
    out = tuple((d + pads[i] + pads[i + 2] - reach[i]) // stride[i] + 1 for i, d in enumerate(m.dims[2:]))
    return attributes, (out[0], out[1])


def conv(b: Building, m: Map, others: list[Map]) -> Map:
    n, c, *_ = m.dims
    group = b.pick(1, 1, c, *(g for g in (2, 3) if c % g == 0))
    k = group * b.pick(1, 2, 3) if b.pick(True, False) else group
    attributes, (h, w) = _window(b, m, (1, 2, 3), pool=False)
    weight = b.normal(k, c // group, *attributes["kernel_shape"])
    inputs = [m.name, weight] + ([b.normal(k)] if b.pick(True, False) else [])
    return b.add((n, k, h, w), "Conv", inputs, group=group, **attributes)


def unsized_conv(b: Building, m: Map, others: list[Map]) -> Map:
    """A convolution that states no attributes, or whose window may be larger than its padded input."""
    n, c, h, w = m.dims
    size = b.pick(1, 3, 5)
    return b.add((n, 4, h - size + 1, w - size + 1), "Conv", [m.name, b.normal(4, c, size, size)])


def transposed(b: Building, m: Map, others: list[Map]) -> Map:
    n, c, h, w = m.dims
    group = b.pick(1, 1, c)
    k, stride = (b.pick(1, 2, 3), b.pick(1, 2, 3)), (b.pick(1, 2), b.pick(1, 2, 3))
    pads = [b.draw(st.integers(0, min(1, k[i % 2] - 1))) for i in range(4)]
    added = [b.draw(st.integers(0, s - 1)) for s in stride]
    sizes = [(e - 1) * stride[i] + k[i] + added[i] - pads[i] - pads[i + 2] for i, e in enumerate((h, w))]
    inputs = [m.name, b.normal(c, 2, *k)] + ([b.normal(2 * group)] if b.pick(True, False) else [])
    attributes: dict[str, Any] = {"strides": stride, "pads": pads, "output_padding": added, "group": group}
    return b.add((n, 2 * group, sizes[0], sizes[1]), "ConvTranspose", inputs, **attributes)


def pool(b: Building, m: Map, others: list[Map]) -> Map:
    attributes, (h, w) = _window(b, m, (2, 3), pool=True)
    op_type = b.pick("MaxPool", "AveragePool")
    if op_type == "AveragePool":
        attributes["count_include_pad"] = b.pick(0, 1)
    if "auto_pad" not in attributes and b.pick(True, False):
        attributes["ceil_mode"] = 1
        k, s, p = attributes["kernel_shape"], attributes["strides"], attributes["pads"]
        h, w = (-(-(d + p[i] + p[i + 2] - k[i]) // s[i]) + 1 for i, d in enumerate(m.dims[2:]))
        h, w = (
            size - ((size - 1) * s[i] >= m.dims[2 + i] + p[i]) for i, size in enumerate((h, w))
        )  # no window begins in the padding at the end
    return b.add((*m.dims[:2], h, w), op_type, [m.name], **attributes)


def global_pool(b: Building, m: Map, others: list[Map]) -> Map:
    return b.add((*m.dims[:2], 1, 1), b.pick("GlobalAveragePool", "GlobalMaxPool"), [m.name])


def resize(b: Building, m: Map, others: list[Map]) -> Map:
    n, c, h, w = m.dims
    mode = {"mode": b.pick("nearest", "linear"), "coordinate_transformation_mode": b.pick("asymmetric", "half_pixel")}
    scales = b.constant(np.array([1, 1, 2, 2], np.float32))
    return b.add((n, c, 2 * h, 2 * w), "Resize", [m.name, "", scales], **mode)


def concat(b: Building, m: Map, others: list[Map]) -> Map:
    axis = b.pick(1, 1, 1, -3, 2, 3)
    fitting = [o for o in others if all(o.dims[k] == m.dims[k] for k in range(4) if k != axis % 4)]
    parts = [b.pick(*fitting) for _ in range(b.pick(1, 2))] + [m]
    dims = list(m.dims)
    dims[axis % 4] = sum(p.dims[axis % 4] for p in parts)
    return b.add((dims[0], dims[1], dims[2], dims[3]), "Concat", [p.name for p in parts], axis=axis)


def split(b: Building, m: Map, others: list[Map]) -> Map:
    n, c, h, w = m.dims
    first = b.draw(st.integers(0, c - 1)) if c > 1 else 0
    _, two = b.node("Split", [m.name, b.ints(first, c - first)], 2, axis=b.pick(1, -3))
    return Map(two, (n, c - first, h, w))


def rejoined(b: Building, m: Map, others: list[Map]) -> Map:
    """The parts of a Split, one of which something else may read, in a Concat."""
    n, c, h, w = m.dims
    if c < 2:
        return m
    first = b.draw(st.integers(1, c - 1))
    one, two = b.node("Split", [m.name, b.ints(first, c - first)], 2, axis=b.pick(1, -3))
    parts = [*b.pick((one, two), (one, two), (two, one), (two,)), *b.pick((), (m.name,))]
    sizes = {one: first, two: c - first, m.name: c}
    if b.pick(True, False):
        weight = b.normal(3, c - first, 1, 1)
        parts += b.node("Conv", [two, weight])
        sizes[parts[-1]] = 3
    if b.pick(True, False):
        parts = [*parts[-1:], *parts[:-1]]
    return b.add((n, sum(sizes[p] for p in parts), h, w), "Concat", parts, axis=b.pick(1, -3))


def cut(b: Building, m: Map, others: list[Map]) -> Map:
    axis = b.pick(1, 1, 2, 3)
    dims = list(m.dims)
    start, step = b.pick((0, 2), (1, 1), (-1, -1))
    stop = -_END if step < 0 else _END
    dims[axis] = len(range(dims[axis])[start:None:step])
    if not dims[axis]:
        return m
    inputs = [m.name, b.ints(start), b.ints(stop), b.ints(b.pick(axis, axis - 4)), b.ints(step)]
    return b.add((dims[0], dims[1], dims[2], dims[3]), "Slice", inputs)


def pad(b: Building, m: Map, others: list[Map]) -> Map:
    n, c, h, w = m.dims
    if b.pick(True, False):
        inputs = [m.name, b.ints(0, 1, 2, 1, 0, 0, 0, 1), b.constant(np.float32(0.5))]
        return b.add((n, c + 1, h + 2, w + 2), "Pad", inputs)
    return b.add((n, c, h + 1, w), "Pad", [m.name, b.ints(1, 0), "", b.ints(2)], mode=b.pick("edge", "constant"))


def constant_operand(b: Building, m: Map, others: list[Map]) -> Map:
    _, c, h, w = m.dims
    dims = b.pick((), (1,), (c, 1, 1), (1, c, 1, 1), (1, 1, 1, 1), (w,), (h, 1), (h, w), (1, h, w), (1, c, h, w))
    operands = [m.name, b.normal(*dims)]
    op_type = b.pick("Add", "Mul", "Sub", "Max", "PRelu")
    if op_type != "PRelu" and b.pick(True, False):
        operands.reverse()
    return b.add(m.dims, op_type, operands)


def computed_operand(b: Building, m: Map, others: list[Map]) -> Map:
    """Another map of the same dims, or a reduction of this one that is broadcast."""
    same = [o for o in others if o.dims == m.dims]
    axes = b.pick(None, (2, 3), (1,), (0,), (0, 2), (0, 1, 2))
    if axes is None:
        return b.add(m.dims, b.pick("Add", "Mul"), [b.pick(*same).name, m.name])
    keep = 1 if axes[-1] != axes[0] + len(axes) - 1 or axes[0] != 0 else b.pick(0, 1)
    (small,) = b.node(b.pick("ReduceMean", "ReduceMax"), [m.name, b.ints(*axes)], keepdims=keep)
    return b.add(m.dims, b.pick("Add", "Mul"), [m.name, b.node("Sigmoid", [small])[0]])


def unary(b: Building, m: Map, others: list[Map]) -> Map:
    if b.pick(True, False, False):
        return b.add(m.dims, b.pick("Softmax", "LogSoftmax"), [m.name], axis=b.pick(1, -3, 2, 3, -1))
    op_type = b.pick("Relu", "Sigmoid", "HardSwish", "LeakyRelu", "Clip", "Identity")
    bounds = [b.constant(np.float32(-0.5)), b.constant(np.float32(0.5))] if op_type == "Clip" else []
    return b.add(m.dims, op_type, [m.name, *bounds])


def normalization(b: Building, m: Map, others: list[Map]) -> Map:
    c = m.dims[1]
    parameters = [b.normal(c), b.normal(c)]
    form = b.pick("batch", "instance", "groups", "groups")
    if form == "instance":
        return b.add(m.dims, "InstanceNormalization", [m.name, *parameters])
    if form == "groups":
        return group_norm(b, m)
    variance = b.constant(np.linspace(0.5, 2, c).astype(np.float32))
    return b.add(m.dims, "BatchNormalization", [m.name, *parameters, b.normal(c), variance])


def group_norm(b: Building, m: Map) -> Map:
    """Groups of channels as exporters write them, with a sum of each sample in front and a SiLU behind."""
    c = m.dims[1]
    groups = b.pick(1, *(g for g in (2, 3) if c % g == 0))
    x = m.name
    if b.pick(True, False):
        (mean,) = b.node("GlobalAveragePool", [x])
        (x,) = b.node("Add", [x, b.node("Tanh", [mean])[0]])
    (grouped,) = b.node("Reshape", [x, b.ints(0, groups, -1)])
    (normed,) = b.node("InstanceNormalization", [grouped, b.normal(groups), b.normal(groups)])
    (shape,) = b.node("Shape", [x])
    (whole,) = b.node("Reshape", [normed, shape])
    (scaled,) = b.node("Mul", [whole, b.normal(c, 1, 1)])
    moved = b.add(m.dims, "Add", [scaled, b.normal(c, 1, 1)])
    if b.pick(True, False):
        return moved
    (gate,) = b.node("Sigmoid", [moved.name])
    return b.add(m.dims, "Mul", [moved.name, gate])


def turned(b: Building, m: Map, others: list[Map]) -> Map:
    """Something on the map in channels last, as exporters write it."""
    c = m.dims[1]
    (last,) = b.node("Transpose", [m.name], perm=[0, 2, 3, 1])
    (scaled,) = b.node("Mul", [last, b.normal(c)])
    return b.add(m.dims, "Transpose", [scaled], perm=[0, 3, 1, 2])


def flat(b: Building, m: Map, others: list[Map]) -> Map:
    """Outputs of less than four dims; the map stays."""
    n, c, *_ = m.dims
    form = b.pick("tokens", "reduced", "pooled", "shape")
    if form == "tokens":
        (whole,) = b.node("Reshape", [m.name, b.ints(0, c, -1)])
        b.node("Transpose", [whole], perm=[0, 2, 1])
    elif form == "shape":
        (dims,) = b.node("Shape", [m.name], **b.pick({}, {"start": 1}, {"start": -2, "end": 4}, {"end": -1}))
        b.node("Cast", [dims], to=onnx.TensorProto.FLOAT)
    elif form == "reduced":
        axes = b.pick((2, 3), (1,), (2,), (0,), (1, 2, 3), (1, 3))
        b.node(b.pick("ReduceSum", "ReduceMin"), [m.name, b.ints(*axes)], keepdims=0)
    else:
        (pooled,) = b.node("GlobalAveragePool", [m.name])
        (row,) = b.node(b.pick("Flatten", "Squeeze"), [pooled])[:1] if n != 1 else b.node("Flatten", [pooled])
        if b.nodes[-1].op_type == "Squeeze":
            b.nodes[-1].input.append(b.ints(2, 3))
        b.node("Softmax", [row])
    return m


STEPS = (
    conv, conv, conv, conv, unsized_conv, transposed, pool, pool, global_pool, resize, concat, concat, split, rejoined,
    cut, pad, constant_operand, constant_operand, computed_operand, computed_operand, unary, unary, normalization,
    turned, flat,
)  # fmt: skip
_LARGEST = 40


@st.composite
def conv_graphs(draw: st.DrawFn) -> tuple[onnx.ModelProto, tuple[int, int, int, int]]:
    """A model with the input x, and the shape of x."""
    b = Building(draw)
    n, c, h, w = b.pick(1, 2), b.pick(1, 2, 3, 6), draw(st.integers(3, 9)), draw(st.integers(3, 9))
    maps = [Map("x", (n, c, h, w))]
    maps.append(conv(b, maps[0], maps))
    for _ in range(draw(st.integers(1, 9))):
        if min(maps[-1].dims) < 1:
            break  # the last window does not fit, which is for ONNX Runtime to refuse
        m = b.pick(maps[-1], *maps)
        if max(m.dims) <= _LARGEST:
            maps.append(draw(st.sampled_from(STEPS))(b, m, maps))
    return finished(b, [(m.name, m.dims) for m in maps], "NCHW", b.pick((), ("N",), ("N", "H", "W"))), maps[0].dims


def finished(
    b: Building, values: Sequence[tuple[str, tuple[int, ...]]], letters: str, symbolic: Sequence[str]
) -> onnx.ModelProto:
    """The model of the nodes that were drawn: of the values, by name and dims, the first is its input, and what nothing
    reads and some others are its outputs. symbolic: letters of the input's dims that it does not state."""
    name, dims = values[0]
    declared = [letter if letter in symbolic else size for letter, size in zip(letters, dims, strict=True)]
    read = {operand for node in b.nodes for operand in node.input}
    results = [result for node in b.nodes for result in node.output if result not in read]
    others = [other for other, _ in values[1:] if other != name]
    results += b.draw(st.lists(st.sampled_from(others), max_size=2, unique=True))
    outputs = [helper.make_tensor_value_info(result, onnx.TensorProto.FLOAT, None) for result in dict.fromkeys(results)]
    x = helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, declared)
    graph = helper.make_graph(b.nodes, "g", [x], outputs, b.constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
