"""Convolutions of one dim as those of images of height 1: [N, C, L] as [N, C, 1, L], which is the same memory.

    Conv(x, w, b), pads [p, q] -> Squeeze(Conv(Unsqueeze(x, 2), w', b), 2), pads [0, p, 0, q]      w' as [K, C, 1, S]

What follows such a convolution element by element or along its axes is of four dims too, up to operators that are not
here, which read a Squeeze. So layout and kernels of images serve sequences.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxopt.graph.layout import group_norms
from onnxopt.graph.layout.forms import CONVOLUTIONS, CONVOLVED, QUANTIZED, is_quantized, operand, rank
from onnxopt.graph.layout.weights import reordered
from onnxopt.graph.match import constant, is_constant, only_consumer
from onnxopt.graph.shapes.value_dims import same
from onnxopt.program.operators import row_operators
from onnxopt.program.operators import table as operators

_RANK = 3
_HEIGHT = 2  # the axis of height in [N, C, H, W]
_AXIS = {0: 0, 1: 1, 2: 3}  # an axis of [N, C, L] in [N, C, 1, L]
_SAME_AXIS = {0: 0, 1: 1, 2: 2}
# What an attribute of one window dim starts with for the height; of pads, for its begin and for its end.
_WINDOW = {"kernel_shape": 1, "strides": 1, "dilations": 1, "output_padding": 0}
_POOLS = frozenset({"AveragePool", "MaxPool"})
# Operators of any number of dims, whose parameters are by channel.
_BY_CHANNEL = frozenset(
    {"BatchNormalization", "GlobalAveragePool", "GlobalMaxPool", "GroupNormalization", "InstanceNormalization"}
)


@dataclasses.dataclass(frozen=True)
class _Form:
    """A node of four dims.

    maps: positions of operands that become images. constants: by position, operands with new contents. dims: by
    position, those with new dims. attributes: those that change. result: whether the results are images. like: of a
    Reshape, the value whose shape the result has.
    """

    maps: tuple[int, ...]
    constants: Mapping[int, np.ndarray] = dataclasses.field(default_factory=dict)
    dims: Mapping[int, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    result: bool = True
    like: ir.Value | None = None


def widen_sequences(model: ir.Model) -> int:
    """Change the main graph in place, where shapes are known; how many convolutions have two dims now.

    Nodes without use remain: most values have no reader of three dims.
    """
    convolutions = {node: found for node in model.graph if (found := _convolution(node)) is not None}
    if not convolutions:
        return 0
    writer, opset = _Writer(model.graph), model.opset_imports.get("", 0)
    normed: dict[ir.Node, ir.Value] = {}  # the last node of a norm over groups -> what the first one reads
    for node in list(model.graph):
        form: _Form | None
        if node.op_type in CONVOLUTIONS and node.domain == "":
            form = convolutions.get(node)
        elif node in normed:
            form = _ungrouped(node, normed[node])
        elif any(v in writer.images for v in node.inputs):
            form = _form(node, opset)
            if form is not None and (last := _last_of_norm(node)) is not None:
                normed[last] = operand(node, 0)
        else:
            form = _pad(node, _SAME_AXIS) if node.op_type == "Pad" and rank(node.inputs[0]) == _RANK else None
        if form is not None:
            writer.write(node, form)
    return len(convolutions)


def _form(node: ir.Node, opset: int) -> _Form | None:
    """A node that reads the result of a convolution, None where it stays as it is."""
    if any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in node.attributes.values()):
        return None
    if any(v.name and rank(v) is None for v in node.outputs):
        return None
    if node.domain == "":
        if node.op_type in _BY_OPERATOR:
            return _BY_OPERATOR[node.op_type](node)
        if node.op_type in _BY_CHANNEL:
            return _Form((0,)) if len(node.outputs) == 1 else None
        row = row_operators.find("", node.op_type, opset)
        if row is not None and row.operands == 1 and not row.channels:
            return _along_axes(node) if row.axes == "axes" else None
    if node.op_type in QUANTIZED:
        return None  # which may have an axis
    if operators.find(node.domain, node.op_type, opset if node.domain == "" else 1) is not None:
        return _elementwise(node)
    return None


def _convolution(node: ir.Node) -> _Form | None:
    if node.op_type not in CONVOLUTIONS or node.domain != "":
        return None
    x, weight = node.inputs[0], node.inputs[1]
    if x is None or weight is None or x.dtype not in CONVOLVED or rank(x) != _RANK or is_quantized(node):
        return None
    if not is_constant(weight) or rank(weight) != _RANK or rank(node.outputs[0]) != _RANK:
        return None
    if "output_shape" in node.attributes:
        return None
    assert weight.const_value is not None
    k, c, s = weight.const_value.shape.numpy()
    group = node.attributes.get_int("group", 1)
    if group != 1 and not (node.op_type == "Conv" and c == 1 and k == group):
        return None  # cuDNN's heuristics name engines for long windows of groups that take ten times as long
    return _Form((0,), dims={1: (k, c, 1, s)}, attributes=_window(node))


def _pool(node: ir.Node) -> _Form | None:
    return _Form((0,), attributes=_window(node)) if len(node.outputs) == 1 else None


def _window(node: ir.Node) -> dict[str, list[int]]:
    attributes = {
        name: [height, *node.attributes.get_ints(name)] for name, height in _WINDOW.items() if name in node.attributes
    }
    if "pads" in node.attributes:
        begin, end = node.attributes.get_ints("pads")
        attributes["pads"] = [0, begin, 0, end]
    return attributes


def _elementwise(node: ir.Node) -> _Form | None:
    """Operands of two dims and more get the height before the last one; those of less broadcast as they did."""
    if len(node.outputs) != 1 or rank(node.outputs[0]) != _RANK:
        return None
    maps, dims = [], {}
    for k, value in enumerate(node.inputs):
        if value is None:
            continue
        if is_constant(value) and value.const_value is not None:
            own = value.const_value.shape.numpy()
            if len(own) > 1:
                dims[k] = (*own[:-1], 1, own[-1])
        elif (own_rank := rank(value)) is None:
            return None
        elif own_rank > 1:
            maps.append(k)
    return _Form(tuple(maps), dims=dims)


def _along_axes(node: ir.Node) -> _Form | None:
    """A reduction over axes that are stated; that of height may go with that of length."""
    if "axes" in node.attributes:
        stated: Sequence[int] = node.attributes.get_ints("axes")
    elif len(node.inputs) > 1 and (array := constant(node.inputs[1])) is not None and array.size:
        stated = [int(axis) for axis in array]
    else:
        return None
    axes = {axis % _RANK for axis in stated}
    keeps = bool(node.attributes.get_int("keepdims", 1)) and rank(node.outputs[0]) == _RANK
    if not keeps and 2 not in axes:
        return None  # the height would stay
    new = sorted({_AXIS[axis] for axis in axes} | ({_HEIGHT} if 2 in axes else set()))
    if "axes" in node.attributes:
        return _Form((0,), attributes={"axes": new}, result=keeps)
    return _Form((0,), constants={1: np.array(new, np.int64)}, result=keeps)


def _concat(node: ir.Node) -> _Form | None:
    dims = {}
    for k, value in enumerate(node.inputs):
        if value is not None and is_constant(value) and value.const_value is not None:
            own = value.const_value.shape.numpy()
            dims[k] = (*own[:-1], 1, own[-1])
    maps = tuple(k for k in range(len(node.inputs)) if k not in dims)
    if any(rank(node.inputs[k]) is None for k in maps):
        return None
    return _Form(maps, dims=dims, attributes={"axis": _AXIS[node.attributes.get_int("axis", 0) % _RANK]})


def _split(node: ir.Node) -> _Form | None:
    return _Form((0,), attributes={"axis": _AXIS[node.attributes.get_int("axis", 0) % _RANK]})


def _slice(node: ir.Node) -> _Form | None:
    axes = constant(node.inputs[3]) if len(node.inputs) > 3 and node.inputs[3] is not None else None
    if axes is None:
        return None
    return _Form((0,), constants={3: np.array([_AXIS[int(axis) % _RANK] for axis in axes], np.int64)})


def _pad(node: ir.Node, axis_of: Mapping[int, int] = _AXIS) -> _Form | None:
    """Pads of all axes, as the layout pass writes them. axis_of: where the axes go; to themselves in a row that stays:
    ONNX Runtime's optimizer fails where it moves a Transpose through a Pad of a few axes."""
    pads = constant(node.inputs[1]) if len(node.inputs) > 1 else None
    stated = node.inputs[3] if len(node.inputs) > 3 else None
    axes = constant(stated) if stated is not None else np.arange(_RANK)
    if pads is None or axes is None or pads.size != 2 * axes.size:
        return None
    count = 1 + max(axis_of.values())
    whole = np.zeros(2 * count, np.int64)
    for k, axis in enumerate(axes):
        at = axis_of[int(axis) % _RANK]
        whole[[at, count + at]] = pads[k], pads[axes.size + k]
    names = {} if stated is None else {3: np.arange(count, dtype=np.int64)}
    widens = axis_of is _AXIS
    return _Form((0,) if widens else (), constants={1: whole} | names, result=widens)


def _reshape(node: ir.Node) -> _Form | None:
    """A Reshape that copies no dim of the length or after it."""
    target = constant(node.inputs[1])
    copies = target is not None and bool((target[2:] == 0).any()) and node.attributes.get_int("allowzero", 0) == 0
    return None if target is None or copies else _Form((0,), result=False)


def _last_of_norm(first: ir.Node) -> ir.Node | None:
    """The Reshape to [N, C, L] after the InstanceNormalization of groups of a Reshape, None for other nodes."""
    norm = only_consumer(first.outputs[0]) if first.op_type == "Reshape" and first.domain == "" else None
    ends = None if norm is None else group_norms.reshapes(norm)
    if ends is None or ends[0] is not first:
        return None
    x, y = operand(first, 0), ends[1].outputs[0]
    if x.shape is None or y.shape is None or len(y.shape) != _RANK:
        return None
    return ends[1] if all(same(a, b) for a, b in zip(x.shape, y.shape, strict=True)) else None


def _ungrouped(last: ir.Node, x: ir.Value) -> _Form | None:
    """The Reshape back to x's shape."""
    dims = None if x.shape is None else [*x.shape[:-1], 1, x.shape[-1]]
    if dims is None or not all(isinstance(dim, int) and dim > 0 for dim in dims[1:]):
        return _Form((), like=x)
    first = dims[0] if isinstance(dims[0], int) else 0
    return _Form((), constants={1: np.array([first, *dims[1:]], np.int64)})


_BY_OPERATOR: Mapping[str, Callable[[ir.Node], _Form | None]] = {
    "Concat": _concat, "Split": _split, "Slice": _slice, "Pad": _pad, "Reshape": _reshape,
    **dict.fromkeys(_POOLS, _pool),
}  # fmt: skip


class _Writer:
    """Takes the nodes of a graph in topological order. images: of values of three dims, those of four."""

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self.images: dict[ir.Value | None, ir.Value] = {}
        self._constants: dict[tuple[ir.Value | None, tuple[int, ...], bytes], ir.Value] = {}

    def write(self, node: ir.Node, form: _Form) -> None:
        """Put the form in place of a node."""
        inputs = list(node.inputs)
        for k in form.maps:
            inputs[k] = self._image(operand(node, k), node)
        for k, array in form.constants.items():
            inputs[k] = self._integers(array)
        for k, dims in form.dims.items():
            inputs[k] = self._reshaped(operand(node, k), dims)
        if form.like is not None:
            inputs[1] = self._shape_of(form.like, node)
        kept = [attribute for name, attribute in node.attributes.items() if name not in form.attributes]
        changed = ir.convenience.convert_attributes(dict(form.attributes))
        new = ir.Node(
            node.domain, node.op_type, inputs, [*kept, *changed], overload=node.overload,
            num_outputs=len(node.outputs), name=node.name, doc_string=node.doc_string,
            metadata_props=node.metadata_props,
        )  # fmt: skip
        self._graph.insert_before(node, new)
        for old, result in zip(node.outputs, new.outputs, strict=True):
            result.type = old.type
            if form.result:
                assert old.shape is not None
                result.name, result.shape = f"{old.name}_image", _with_height(old.shape)
                back = self._add(node, "Squeeze", result, str(old.name))
                back.shape = old.shape
                self.images[back] = result
                ir.convenience.replace_all_uses_with(old, back, replace_graph_outputs=True)
            else:
                result.name, result.shape = old.name, old.shape
                ir.convenience.replace_all_uses_with(old, result, replace_graph_outputs=True)
        self._graph.remove(node, safe=True)

    def _image(self, value: ir.Value, node: ir.Node) -> ir.Value:
        if value not in self.images:
            assert value.shape is not None
            image = self._add(node, "Unsqueeze", value, f"{value.name}_image")
            image.shape = _with_height(value.shape)
            self.images[value] = image
        return self.images[value]

    def _shape_of(self, value: ir.Value, node: ir.Node) -> ir.Value:
        image = self._image(value, node)
        new = ir.Node("", "Shape", [image], num_outputs=1, name=f"{image.name}/Shape")
        new.outputs[0].name, new.outputs[0].type = f"{image.name}_dims", ir.TensorType(ir.DataType.INT64)
        new.outputs[0].shape = ir.Shape([_RANK + 1])
        self._graph.insert_before(node, new)
        return new.outputs[0]

    def _add(self, node: ir.Node, op_type: str, value: ir.Value, name: str) -> ir.Value:
        axes = self._integers(np.array([-2], np.int64))
        new = ir.Node("", op_type, [value, axes], num_outputs=1, name=f"{name}/{op_type}")
        new.outputs[0].name, new.outputs[0].type = name, value.type
        self._graph.insert_before(node, new)
        return new.outputs[0]

    def _integers(self, array: np.ndarray) -> ir.Value:
        return self._constant(None, ir.Tensor(array, name="axes"), array.shape, array.tobytes())

    def _reshaped(self, value: ir.Value, dims: tuple[int, ...]) -> ir.Value:
        """A constant with these dims; its contents stay lazy."""
        tensor = value.const_value
        assert tensor is not None
        lazy = reordered(tensor, (), dims, str(value.name)).const_value
        assert lazy is not None
        return self._constant(value, lazy, dims, b"")

    def _constant(
        self, source: ir.Value | None, tensor: ir.TensorProtocol, dims: tuple[int, ...], contents: bytes
    ) -> ir.Value:
        key = (source, dims, contents)
        if key not in self._constants:
            names = (f"{tensor.name}_image{'_' * bool(k)}{k or ''}" for k in itertools.count())
            name = next(n for n in names if n not in self._graph.initializers)
            value = ir.Value(name=name, shape=ir.Shape(dims), type=ir.TensorType(tensor.dtype), const_value=tensor)
            self._graph.register_initializer(value)
            self._constants[key] = value
        return self._constants[key]


def _with_height(shape: ir.Shape) -> ir.Shape:
    dims = list(shape)
    return ir.Shape([*dims[:-1], 1, dims[-1]])
