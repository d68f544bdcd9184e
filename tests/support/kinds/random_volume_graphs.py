"""Random graphs of convolutions of three dims and of what stands around them, with dims that may be symbolic."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st

from tests.support.kinds.random_convolution_graphs import Building, finished

_Dims = tuple[int, ...]
_END = np.iinfo(np.int64).max


@dataclasses.dataclass(frozen=True)
class Volume:
    """A value of shape [N, C, D, H, W]."""

    name: str
    dims: _Dims


def _added(b: Building, dims: _Dims, op_type: str, inputs: list[str], **attributes: Any) -> Volume:
    return Volume(b.node(op_type, inputs, **attributes)[0], dims)


def _axes(b: Building, *choices: int) -> _Dims:
    return b.pick(*choices), b.pick(*choices), b.pick(*choices)


def _window(b: Building, x: Volume, *, is_pool: bool) -> tuple[dict[str, Any], _Dims]:
    """Attributes of a window, often one that is flat along some axes, and the sizes of the result."""
    sides, strides = _axes(b, 1, 1, 2, 3), _axes(b, 1, 1, 2)
    auto = b.pick("NOTSET", "NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")
    dilations = (1, 1, 1) if is_pool or auto.startswith("SAME") else _axes(b, 1, 1, 2)
    attributes: dict[str, Any] = {"kernel_shape": sides, "strides": strides}
    attributes |= {} if is_pool else {"dilations": dilations}
    if auto.startswith("SAME"):
        out = tuple(-(-size // stride) for size, stride in zip(x.dims[2:], strides, strict=True))
        return attributes | {"auto_pad": auto}, out
    reach = [d * (side - 1) + 1 for d, side in zip(dilations, sides, strict=True)]
    if auto == "VALID":
        attributes["auto_pad"], pads = auto, [0] * 6
    else:
        pads = attributes["pads"] = [b.draw(st.integers(0, min(r - 1, 2))) for r in reach * 2]
    room = [size + pads[k] + pads[k + 3] - reach[k] for k, size in enumerate(x.dims[2:])]
    return attributes, tuple(r // stride + 1 for r, stride in zip(room, strides, strict=True))


def conv(b: Building, x: Volume, others: list[Volume]) -> Volume:
    n, c = x.dims[:2]
    group = b.pick(1, 1, 1, 1, c, *(g for g in (2, 3) if c % g == 0))
    k = group * b.pick(1, 2, 3) if group > 1 else b.pick(1, 2, 3, 8)
    attributes, sizes = _window(b, x, is_pool=False)
    weight = b.normal(k, c // group, *attributes["kernel_shape"])
    inputs = [x.name, weight] + ([b.normal(k)] if b.pick(True, False) else [])
    if b.pick(True, False):
        attributes.pop("kernel_shape")
    return _added(b, (n, k, *sizes), "Conv", inputs, group=group, **attributes)


def transposed(b: Building, x: Volume, others: list[Volume]) -> Volume:
    n, c, *sizes = x.dims
    sides, strides = _axes(b, 1, 2, 3), _axes(b, 1, 2)
    pads = [b.draw(st.integers(0, min(1, sides[k % 3] - 1))) for k in range(6)]
    added = [b.draw(st.integers(0, stride - 1)) for stride in strides]
    out = [(e - 1) * strides[k] + sides[k] + added[k] - pads[k] - pads[k + 3] for k, e in enumerate(sizes)]
    group = b.pick(1, 1, c)
    inputs = [x.name, b.normal(c, 2, *sides)] + ([b.normal(2 * group)] if b.pick(True, False) else [])
    attributes = {"strides": strides, "pads": pads, "output_padding": added, "group": group}
    return _added(b, (n, 2 * group, *out), "ConvTranspose", inputs, **attributes)


def pool(b: Building, x: Volume, others: list[Volume]) -> Volume:
    if b.pick(True, False, False):
        return _added(b, (*x.dims[:2], 1, 1, 1), b.pick("GlobalAveragePool", "GlobalMaxPool"), [x.name])
    attributes, sizes = _window(b, x, is_pool=True)
    op_type = b.pick("MaxPool", "AveragePool")
    more = {"count_include_pad": b.pick(0, 1)} if op_type == "AveragePool" else {}
    return _added(b, (*x.dims[:2], *sizes), op_type, [x.name], **attributes, **more)


def resize(b: Building, x: Volume, others: list[Volume]) -> Volume:
    mode = {"mode": b.pick("nearest", "linear"), "coordinate_transformation_mode": b.pick("asymmetric", "half_pixel")}
    factors = b.pick((2, 2, 2), (1, 2, 2), (2, 1, 1))
    inputs = [x.name, "", b.constant(np.array([1, 1, *factors], np.float32))]
    sizes = [size * factor for size, factor in zip(x.dims[2:], factors, strict=True)]
    return _added(b, (*x.dims[:2], *sizes), "Resize", inputs, **mode)


def concat(b: Building, x: Volume, others: list[Volume]) -> Volume:
    axis = b.pick(1, 1, -4, 2, 3, -1)
    fitting = [o for o in others if all(o.dims[k] == x.dims[k] for k in range(5) if k != axis % 5)]
    parts, dims = [x, b.pick(*fitting)], list(x.dims)
    dims[axis % 5] = sum(p.dims[axis % 5] for p in parts)
    return _added(b, tuple(dims), "Concat", [p.name for p in parts], axis=axis)


def split(b: Building, x: Volume, others: list[Volume]) -> Volume:
    n, c, *sizes = x.dims
    if c < 2:
        return x
    _, second = b.node("Split", [x.name, b.ints(1, c - 1)], 2, axis=b.pick(1, -4))
    return Volume(second, (n, c - 1, *sizes))


def cut(b: Building, x: Volume, others: list[Volume]) -> Volume:
    axis = b.pick(1, 2, 3, 4)
    start, step = b.pick((1, 1), (0, 2))
    dims = list(x.dims)
    dims[axis] = len(range(dims[axis])[start::step])
    if not dims[axis]:
        return x
    inputs = [x.name, b.ints(start), b.ints(_END), b.ints(b.pick(axis, axis - 5)), b.ints(step)]
    return _added(b, tuple(dims), "Slice", inputs)


def pad(b: Building, x: Volume, others: list[Volume]) -> Volume:
    n, c, d, h, w = x.dims
    if b.pick(True, False):
        inputs = [x.name, b.ints(0, 1, 2, 1, 0, 0, 0, 0, 1, 1), b.constant(np.float32(0.5))]
        return _added(b, (n, c + 1, d + 2, h + 2, w + 1), "Pad", inputs)
    mode = b.pick("edge", "constant")
    return _added(b, (n, c, d + 1, h, w), "Pad", [x.name, b.ints(1, 0), "", b.ints(b.pick(2, -3))], mode=mode)


def elementwise(b: Building, x: Volume, others: list[Volume]) -> Volume:
    _, c, d, h, w = x.dims
    form = b.pick("unary", "constant", "map", "reduced", "maps")
    if form == "unary":
        return _added(b, x.dims, b.pick("Relu", "LeakyRelu", "Tanh", "Elu", "Sigmoid"), [x.name])
    if form == "map":
        same = [o for o in others if o.dims == x.dims]
        return _added(b, x.dims, b.pick("Add", "Mul"), [b.pick(*same).name, x.name])
    if form == "maps":  # an operand of four dims that is computed
        (mean,) = b.node("ReduceMean", [x.name, b.ints(0)], keepdims=0)
        return _added(b, x.dims, "Add", [x.name, b.node("Tanh", [mean])[0]])
    if form == "reduced":
        axes = b.pick((2, 3, 4), (-1,), (1,), (0, 2), (1, 2, 3, 4))
        (small,) = b.node(b.pick("ReduceMean", "ReduceMax"), [x.name, b.ints(*axes)])
        return _added(b, x.dims, "Mul", [x.name, b.node("Sigmoid", [small])[0]])
    dims = b.pick((), (1,), (c, 1, 1, 1), (1, c, 1, 1, 1), (w,), (h, w), (d, 1, 1), (1, c, d, h, w))
    return _added(b, x.dims, b.pick("Add", "Sub", "Mul", "PRelu"), [x.name, b.normal(*dims)])


def normalization(b: Building, x: Volume, others: list[Volume]) -> Volume:
    c = x.dims[1]
    form = b.pick("batch", "instance", "groups", "softmax")
    if form == "softmax":
        return _added(b, x.dims, "Softmax", [x.name], axis=b.pick(1, -4, 2, -1))
    if form == "groups":
        groups = b.pick(1, *(g for g in (2, 3) if c % g == 0))
        (grouped,) = b.node("Reshape", [x.name, b.ints(0, groups, -1)])
        (normed,) = b.node("InstanceNormalization", [grouped, b.normal(groups), b.normal(groups)])
        (whole,) = b.node("Reshape", [normed, b.node("Shape", [x.name])[0]])
        (scaled,) = b.node("Mul", [whole, b.normal(c, 1, 1, 1)])
        return _added(b, x.dims, "Add", [scaled, b.normal(c, 1, 1, 1)])
    if form == "instance":
        return _added(b, x.dims, "InstanceNormalization", [x.name, b.normal(c), b.normal(c)])
    variance = b.constant(np.linspace(0.5, 2, c).astype(np.float32))
    return _added(b, x.dims, "BatchNormalization", [x.name, b.normal(c), b.normal(c), b.normal(c), variance])


def around(b: Building, x: Volume, others: list[Volume]) -> Volume:
    """What is no volume: tokens, their norm and back, a result of fewer dims; or a volume in channels last."""
    c = x.dims[1]
    form = b.pick("reduced", "tokens", "last", "pooled")
    if form == "reduced":
        b.node("ReduceMax", [x.name, b.ints(*b.pick((1,), (2,), (2, 3, 4), (1, 3)))], keepdims=0)
        return x
    if form == "pooled":
        b.node("Softmax", b.node("Flatten", b.node("GlobalAveragePool", [x.name])))
        return x
    if form == "last":
        (last,) = b.node("Transpose", [x.name], perm=[0, 2, 3, 4, 1])
        return _added(b, x.dims, "Transpose", b.node("Mul", [last, b.normal(c)]), perm=[0, 4, 1, 2, 3])
    (flat,) = b.node("Reshape", [x.name, b.ints(0, c, -1)])
    (tokens,) = b.node("Transpose", [flat], perm=[0, 2, 1])
    (normed,) = b.node("LayerNormalization", [tokens, b.normal(c), b.normal(c)], axis=-1)
    (rows,) = b.node("Transpose", [normed], perm=[0, 2, 1])
    return _added(b, x.dims, "Reshape", [rows, b.node("Shape", [x.name])[0]])


STEPS = (
    conv, conv, conv, conv, conv, transposed, pool, pool, resize, concat, concat, split, cut, pad, elementwise,
    elementwise, elementwise, normalization, normalization, around,
)  # fmt: skip
_LARGEST = 6000  # elements


@st.composite
def volume_graphs(draw: st.DrawFn) -> tuple[onnx.ModelProto, _Dims]:
    """A model with the input x, and the shape of x."""
    b = Building(draw)
    sizes = [draw(st.integers(3, 6)) for _ in range(3)]
    volumes = [Volume("x", (b.pick(1, 2), b.pick(1, 2, 3, 6), *sizes))]
    volumes.append(conv(b, volumes[0], volumes))
    for _ in range(draw(st.integers(1, 8))):
        if min(volumes[-1].dims) < 1:
            break  # the last window does not fit, which is for ONNX Runtime to refuse
        x = b.pick(volumes[-1], *volumes)
        if math.prod(x.dims) <= _LARGEST:
            volumes.append(draw(st.sampled_from(STEPS))(b, x, volumes))
    symbolic = b.pick((), ("N",), ("N", "D", "H", "W"))
    return finished(b, [(v.name, v.dims) for v in volumes], "NCDHW", symbolic), volumes[0].dims
