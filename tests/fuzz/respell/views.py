"""Spellings of views, parts, copies and constants."""

from __future__ import annotations

import itertools

import numpy as np
import onnx_ir as ir

from tests.fuzz.respell.building import Builder
from tests.fuzz.respell.spelling import ANY, axis_of, constant_of, ints_of, rank_of, spells

_END = 2**63 - 1


def _copy(b: Builder, node: ir.Node) -> ir.Value | None:
    """The same node once more, whose result a copy reads; None for nodes of several results or unknown rank."""
    if len(node.outputs) > 1 or node.outputs[0].shape is None:
        return None
    value = b.op(node.op_type, *node.inputs, **{name: a.value for name, a in node.attributes.items()})
    value.shape, value.type = node.outputs[0].shape, node.outputs[0].type
    return value


@spells(ANY)
def identity(b: Builder, node: ir.Node) -> ir.Value | None:
    value = _copy(b, node)
    if value is None:
        return None
    floats = value.dtype is not None and value.dtype.is_floating_point()
    return b.op("Dropout" if floats and b.rng.random() < 0.3 else "Identity", value)


@spells(ANY)
def transposed_twice(b: Builder, node: ir.Node) -> ir.Value | None:
    value = _copy(b, node)
    if value is None or rank_of(value) < 2:
        return None
    perm = list(range(rank_of(value)))
    while perm == sorted(perm):
        b.rng.shuffle(perm)
    return b.op("Transpose", b.op("Transpose", value, perm=perm), perm=np.argsort(perm).tolist())


@spells(ANY)
def unsqueezed(b: Builder, node: ir.Node) -> ir.Value | None:
    value = _copy(b, node)
    if value is None:
        return None
    axes = b.constant([b.rng.randint(0, rank_of(value))])
    return b.op("Squeeze", b.op("Unsqueeze", value, axes), axes)


@spells(ANY)
def reshaped(b: Builder, node: ir.Node) -> ir.Value | None:
    """To other dims and back: the last two joined, or the last split."""
    value = _copy(b, node)
    if value is None or value.shape is None or rank_of(value) < 3:
        return None
    symbols = [k for k, d in enumerate(value.shape) if not isinstance(d, int)]
    last = value.shape[-1]
    if not isinstance(last, int) or last % 2 or (symbols and symbols != list(range(len(symbols)))):
        return None
    zeros = [0] * (rank_of(value) - 1)
    form = b.rng.choice(["split", "joined", "flat"])
    if form == "split":
        return b.op("Reshape", b.op("Reshape", value, b.constant([*zeros, 2, last // 2])), b.constant([*zeros, last]))
    if form == "joined" and isinstance(value.shape[-2], int):
        joined = b.op("Reshape", value, b.constant([*zeros[:-1], -1]))
        return b.op("Reshape", joined, b.constant([*zeros[:-1], value.shape[-2], last]))
    if len(symbols) > 1:
        return b.op("Reshape", b.op("Reshape", value, b.constant([-1, last])), b.op("Shape", value))
    back = [d if isinstance(d, int) else -1 for d in value.shape]
    return b.op("Reshape", b.op("Reshape", value, b.constant([-1, last])), b.constant(back))


@spells("Reshape")
def computed_shape(b: Builder, node: ir.Node) -> ir.Value | None:
    """Reshape to a shape that is put together of x's dims."""
    x, shape = node.inputs
    wanted = ints_of(shape)
    if wanted is None:
        return None
    of_x = b.op("Shape", x)
    zero = b.constant([0])
    parts = [
        b.op("Unsqueeze", b.op("Gather", of_x, b.constant(k), axis=0), zero) if d == 0 else b.constant([d])
        for k, d in enumerate(wanted)
    ]
    return b.op("Reshape", x, b.op("Concat", *parts, axis=0))


@spells("Reshape")
def guessed_dim(b: Builder, node: ir.Node) -> ir.Value | None:
    """Reshape with -1 for one of the numbers in its shape."""
    x, dims = node.inputs[0], ints_of(node.inputs[1])
    if dims is None or -1 in dims:
        return None
    places = [k for k, d in enumerate(dims) if d > 0]
    if not places:
        return None
    dims[b.rng.choice(places)] = -1
    return b.op("Reshape", x, b.constant(dims))


@spells("Flatten")
def flattened(b: Builder, node: ir.Node) -> ir.Value | None:
    x = node.inputs[0]
    assert x is not None and x.shape is not None
    if axis_of(node, 1) != 1 or not all(isinstance(d, int) for d in x.shape[1:]):
        return None
    if x.shape[2:] == (1, 1) and b.rng.random() < 0.5:
        return b.op("Squeeze", x, b.constant([2, 3]))
    return b.op("Reshape", x, b.constant([0, -1]))


@spells("Split")
def sliced(b: Builder, node: ir.Node) -> list[ir.Value] | None:
    axis, ends = axis_of(node, 0), [0]
    for part in node.outputs:
        size = None if part.shape is None else part.shape[axis]
        if not isinstance(size, int):
            return None
        ends.append(ends[-1] + size)
    axes = b.constant([axis])
    return [
        b.op("Slice", node.inputs[0], b.constant([start]), b.constant([end]), axes)
        for start, end in itertools.pairwise(ends)
    ]


@spells("Slice")
def part_of_split(b: Builder, node: ir.Node) -> ir.Value | None:
    """A Slice of one half as a part of a Split."""
    x, y = node.inputs[0], node.outputs[0]
    starts, axes = ints_of(node.inputs[1]), ints_of(node.inputs[3])
    if x is None or x.shape is None or y.shape is None or starts is None or axes is None or len(axes) > 1:
        return None
    (axis,) = axes
    whole, part = x.shape[axis], y.shape[axis]
    if not isinstance(whole, int) or not isinstance(part, int) or whole != 2 * part:
        return None
    return b.parts("Split", 2, x, axis=axis, num_outputs=2)[0 if starts == [0] else 1]


@spells("Slice")
def open_slice(b: Builder, node: ir.Node) -> ir.Value | None:
    """The same bounds counted from the other end, or written as exporters do."""
    x, (starts, ends, axes) = node.inputs[0], (ints_of(v) for v in node.inputs[1:4])
    if x is None or x.shape is None or starts is None or ends is None or axes is None or len(axes) > 1:
        return None
    (start,), (end,), axis = starts, ends, axes[0] % len(x.shape)
    size = x.shape[axis]
    if not isinstance(size, int):
        return None
    start, end = (bound + size if bound < 0 else min(bound, size) for bound in (start, end))
    start = start - size if start and b.rng.random() < 0.5 else start
    end = b.rng.choice([_END, size]) if end == size else b.rng.choice([end, end - size])
    axis = axis - len(x.shape) if b.rng.random() < 0.5 else axis
    return b.op("Slice", x, b.constant([start]), b.constant([end]), b.constant([axis]), b.constant([1]))


@spells("Slice")
def gathered(b: Builder, node: ir.Node) -> ir.Value | None:
    """A Slice as a Gather of the positions."""
    x, y = node.inputs[0], node.outputs[0]
    starts, axes = ints_of(node.inputs[1]), ints_of(node.inputs[3])
    if x is None or x.shape is None or y.shape is None or starts is None or axes is None or len(axes) > 1:
        return None
    (start,), (axis,) = starts, axes
    count = y.shape[axis]
    if not isinstance(count, int) or start < 0:
        return None
    return b.op("Gather", x, b.constant(np.arange(start, start + count)), axis=axis)


@spells("Transpose")
def transposed_in_two_steps(b: Builder, node: ir.Node) -> ir.Value | None:
    perm, rank = list(node.attributes.get_ints("perm", [])), rank_of(node.inputs[0])
    first = list(range(rank))
    b.rng.shuffle(first)
    if rank < 3 or not perm:
        return None
    second = [first.index(axis) for axis in perm]
    return b.op("Transpose", b.op("Transpose", node.inputs[0], perm=first), perm=second)


@spells(ANY)
def constants_as_nodes(b: Builder, node: ir.Node) -> ir.Value | None:
    """Constant operands as nodes, and large ones as views of nodes."""
    if len(node.outputs) > 1 or not any(v is not None and v.const_value is not None for v in node.inputs):
        return None
    inputs = []
    for value in node.inputs:
        if value is not None and value.const_value is not None and not value.is_graph_input():
            tensor = ir.tensor(value.const_value.numpy(), dtype=value.const_value.dtype)
            value = b.op("Constant", value=tensor)
        inputs.append(value)
    return b.op(node.op_type, *inputs, **{name: a.value for name, a in node.attributes.items()})


@spells("MatMul", "Add", "Mul", "Conv")
def constants_as_views(b: Builder, node: ir.Node) -> ir.Value | None:
    """Constant operands as a Reshape, Identity or Cast of a constant."""
    inputs, changed = list(node.inputs), False
    for k, value in enumerate(inputs):
        tensor = constant_of(value)
        if value is None or tensor is None or tensor.dtype not in (ir.DataType.FLOAT16, ir.DataType.FLOAT):
            continue
        form, changed = b.rng.choice(["reshape", "identity", "expand"]), True
        shape = list(tensor.shape.numpy())
        if form == "identity" or not shape:
            inputs[k] = b.op("Identity", value)
        elif form == "reshape":
            flat = b.constant(tensor.numpy().reshape(-1), tensor.dtype)
            inputs[k] = b.op("Reshape", flat, b.constant(shape))
        else:
            inputs[k] = b.op("Expand", value, b.constant(shape))
    return b.op(node.op_type, *inputs, **{n: a.value for n, a in node.attributes.items()}) if changed else None


@spells("Concat")
def concat_axis(b: Builder, node: ir.Node) -> ir.Value:
    axis, rank = node.attributes.get_int("axis", 0), rank_of(node.inputs[0])
    return b.op("Concat", *node.inputs, axis=axis - rank if axis >= 0 else axis + rank)


@spells("Expand")
def tiled(b: Builder, node: ir.Node) -> ir.Value | None:
    """An Expand of dims of 1 as a Tile, or as a Concat of copies."""
    x, y = node.inputs[0], node.outputs[0]
    if x is None or x.shape is None or y.shape is None or len(x.shape) != len(y.shape):
        return None
    repeats = [1 if a == b_ else b_ for a, b_ in zip(x.shape, y.shape, strict=True)]
    if not all(isinstance(count, int) for count in repeats):
        return None
    grown = [k for k, count in enumerate(repeats) if count != 1]
    if len(grown) == 1 and b.rng.random() < 0.5:
        return b.op("Concat", *[x] * int(str(repeats[grown[0]])), axis=grown[0])
    return b.op("Tile", x, b.constant([int(str(count)) for count in repeats]))
