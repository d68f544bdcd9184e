"""Random graphs of convolutions of one dim and of what stands around them, with dims that may be symbolic."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st

from tests.support.kinds.random_convolution_graphs import Building, finished


@dataclasses.dataclass(frozen=True)
class Row:
    """A value of shape [N, C, L]."""

    name: str
    dims: tuple[int, int, int]


def _added(b: Building, dims: tuple[int, int, int], op_type: str, inputs: list[str], **attributes: Any) -> Row:
    return Row(b.node(op_type, inputs, **attributes)[0], dims)


def conv(b: Building, x: Row, others: list[Row]) -> Row:
    n, c, length = x.dims
    group = b.pick(1, 1, c)
    k, size, stride, dilation = group * b.pick(1, 2, 3), b.pick(1, 3, 4), b.pick(1, 1, 2), b.pick(1, 1, 3)
    inputs = [x.name, b.normal(k, c // group, size)] + ([b.normal(k)] if b.pick(True, False) else [])
    if b.pick(True, False, False):
        auto = b.pick("SAME_UPPER", "SAME_LOWER")
        return _added(b, (n, k, -(-length // stride)), "Conv", inputs, strides=[stride], auto_pad=auto, group=group)
    pads = [b.draw(st.integers(0, 3)), b.draw(st.integers(0, 3))]
    out = (length + sum(pads) - dilation * (size - 1) - 1) // stride + 1
    attributes = {"strides": [stride], "pads": pads, "dilations": [dilation], "kernel_shape": [size], "group": group}
    return _added(b, (n, k, out), "Conv", inputs, **attributes)


def transposed(b: Building, x: Row, others: list[Row]) -> Row:
    n, c, length = x.dims
    size, stride = b.pick(2, 3, 4), b.pick(1, 2, 3)
    pads, more = [b.draw(st.integers(0, 1)), b.draw(st.integers(0, 1))], b.draw(st.integers(0, stride - 1))
    inputs = [x.name, b.normal(c, 3, size)] + ([b.normal(3)] if b.pick(True, False) else [])
    out = (length - 1) * stride + size + more - sum(pads)
    return _added(
        b, (n, 3, out), "ConvTranspose", inputs, strides=[stride], pads=pads, output_padding=[more]
    )  # fmt: skip


def pool(b: Building, x: Row, others: list[Row]) -> Row:
    n, c, length = x.dims
    if b.pick(True, False, False):
        return _added(b, (n, c, 1), b.pick("GlobalAveragePool", "GlobalMaxPool"), [x.name])
    size, stride, pads = b.pick(2, 3), b.pick(1, 2), [b.draw(st.integers(0, 1)), b.draw(st.integers(0, 1))]
    op_type = b.pick("MaxPool", "AveragePool")
    more = {"count_include_pad": b.pick(0, 1)} if op_type == "AveragePool" else {}
    out = (length + sum(pads) - size) // stride + 1
    return _added(b, (n, c, out), op_type, [x.name], kernel_shape=[size], strides=[stride], pads=pads, **more)


def concat(b: Building, x: Row, others: list[Row]) -> Row:
    axis = b.pick(1, 2, -1)
    fitting = [o for o in others if all(o.dims[k] == x.dims[k] for k in range(3) if k != axis % 3)]
    parts, dims = [x, b.pick(*fitting)], list(x.dims)
    dims[axis % 3] = sum(p.dims[axis % 3] for p in parts)
    return _added(b, (dims[0], dims[1], dims[2]), "Concat", [p.name for p in parts], axis=axis)


def split(b: Building, x: Row, others: list[Row]) -> Row:
    n, c, length = x.dims
    if c < 2:
        return x
    _, second = b.node("Split", [x.name, b.ints(1, c - 1)], 2, axis=b.pick(1, -2))
    return Row(second, (n, c - 1, length))


def cut(b: Building, x: Row, others: list[Row]) -> Row:
    n, c, length = x.dims
    start, step = b.pick((1, 1), (0, 2), (-1, -1))
    stop = np.iinfo(np.int64).min if step < 0 else np.iinfo(np.int64).max
    left = len(range(length)[start::step])
    if not left:
        return x
    inputs = [x.name, b.ints(start), b.ints(stop), b.ints(b.pick(2, -1)), b.ints(step)]
    return _added(b, (n, c, left), "Slice", inputs)


def pad(b: Building, x: Row, others: list[Row]) -> Row:
    n, c, length = x.dims
    if b.pick(True, False):
        return _added(b, (n, c + 1, length + 3), "Pad", [x.name, b.ints(0, 1, 2, 0, 0, 1), b.constant(np.float32(0.5))])
    return _added(b, (n, c, length + 2), "Pad", [x.name, b.ints(1, 1), "", b.ints(-1)], mode=b.pick("edge", "constant"))


def elementwise(b: Building, x: Row, others: list[Row]) -> Row:
    _, c, length = x.dims
    same = [o for o in others if o.dims == x.dims]
    form = b.pick("unary", "constant", "map", "reduced", "rows")
    if form == "unary":
        return _added(b, x.dims, b.pick("Relu", "LeakyRelu", "Tanh", "Elu", "Sigmoid"), [x.name])
    if form == "map":
        return _added(b, x.dims, b.pick("Add", "Mul"), [b.pick(*same).name, x.name])
    if form == "rows":  # an operand of two dims that is computed
        (mean,) = b.node("ReduceMean", [x.name, b.ints(0)], keepdims=0)
        return _added(b, x.dims, "Add", [x.name, b.node("Tanh", [mean])[0]])
    if form == "reduced":
        (small,) = b.node(b.pick("ReduceMean", "ReduceMax"), [x.name, b.ints(*b.pick((2,), (-1,), (1,), (1, 2)))])
        return _added(b, x.dims, "Mul", [x.name, b.node("Sigmoid", [small])[0]])
    dims = b.pick((), (1,), (c, 1), (1, c, 1), (length,), (c, length), (1, 1, length))
    return _added(b, x.dims, b.pick("Add", "Sub", "Mul", "PRelu"), [x.name, b.normal(*dims)])


def normalization(b: Building, x: Row, others: list[Row]) -> Row:
    c = x.dims[1]
    form = b.pick("batch", "instance", "groups")
    if form == "groups":
        groups = b.pick(1, *(g for g in (2, 3) if c % g == 0))
        (grouped,) = b.node("Reshape", [x.name, b.ints(0, groups, -1)])
        (normed,) = b.node("InstanceNormalization", [grouped, b.normal(groups), b.normal(groups)])
        (whole,) = b.node("Reshape", [normed, b.node("Shape", [x.name])[0]])
        return _added(b, x.dims, "Add", [b.node("Mul", [whole, b.normal(c, 1)])[0], b.normal(c, 1)])
    if form == "instance":
        return _added(b, x.dims, "InstanceNormalization", [x.name, b.normal(c), b.normal(c)])
    variance = b.constant(np.linspace(0.5, 2, c).astype(np.float32))
    return _added(b, x.dims, "BatchNormalization", [x.name, b.normal(c), b.normal(c), b.normal(c), variance])


def around(b: Building, x: Row, others: list[Row]) -> Row:
    """What is no map: tokens, their norm and back, or a result of less dims."""
    c = x.dims[1]
    if b.pick(True, False):
        b.node("ReduceMax", [x.name, b.ints(b.pick(1, 2))], keepdims=0)
        return x
    (tokens,) = b.node("Transpose", [x.name], perm=[0, 2, 1])
    (normed,) = b.node("LayerNormalization", [tokens, b.normal(c), b.normal(c)], axis=-1)
    return _added(b, x.dims, "Transpose", [normed], perm=[0, 2, 1])


STEPS = (
    conv, conv, conv, conv, transposed, pool, concat, split, cut, pad, elementwise, elementwise, elementwise,
    normalization, around,
)  # fmt: skip
_LARGEST = 60


@st.composite
def sequence_graphs(draw: st.DrawFn) -> tuple[onnx.ModelProto, tuple[int, int, int]]:
    """A model with the input x, and the shape of x."""
    b = Building(draw)
    rows = [Row("x", (b.pick(1, 2), b.pick(1, 2, 3, 6), draw(st.integers(3, 17))))]
    rows.append(conv(b, rows[0], rows))
    for _ in range(draw(st.integers(1, 9))):
        if min(rows[-1].dims) < 1:
            break  # the last window does not fit, which is for ONNX Runtime to refuse
        x = b.pick(rows[-1], *rows)
        if max(x.dims) <= _LARGEST:
            rows.append(draw(st.sampled_from(STEPS))(b, x, rows))
    return finished(b, [(row.name, row.dims) for row in rows], "NCL", b.pick((), ("N",), ("N", "L"))), rows[0].dims
