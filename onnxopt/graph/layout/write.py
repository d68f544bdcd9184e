"""Writes a graph in channels last: nodes in their new form, Transposes at the borders, weights as kernels read them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxopt.graph.layout.forms import CONVOLUTIONS, Form, is_plane_by_plane, operand, rank
from onnxopt.graph.layout.mark import mark
from onnxopt.graph.layout.orders import to_channels_first, to_channels_last, turns_first, turns_last
from onnxopt.graph.layout.weights import Stored, missing_channels, stored


class Writer:
    """Takes the nodes of a graph one by one, in topological order, and replaces those that have a new form."""

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._last: dict[ir.Value, ir.Value] = {}  # a value in NCHW -> the same in channels last
        self._constants: dict[tuple[ir.DataType, tuple[int, ...], bytes], ir.Value] = {}
        self._weights: dict[tuple[ir.Value, bool, bool], Stored] = {}
        self._padded: dict[tuple[ir.Value, int], ir.Value] = {}  # an image and how many channels were added -> it
        self._began: dict[ir.Node, ir.Value] = {}  # the first node of a norm over groups -> its operand in NCHW

    def take(self, node: ir.Node, form: Form | None) -> None:
        """Write a node; form: None where it stays as it is."""
        if form is not None:
            self._write(node, form)
        elif turns_first(node):
            self._last[node.outputs[0]] = operand(node, 0)
        elif turns_last(node) and node.inputs[0] in self._last and not node.outputs[0].is_graph_output():
            ir.convenience.replace_all_uses_with(node.outputs[0], self._last[node.inputs[0]])

    def _write(self, node: ir.Node, form: Form) -> None:
        """Put the new form in place of a node."""
        if form.dims:
            new = self._picked(node, form)
        else:
            new = self._affine(node, form) if form.term is not None else self._same(node, form)
        self._graph.insert_before(node, new)
        for k, (old, result) in enumerate(zip(node.outputs, new.outputs, strict=True)):
            result.type = old.type
            if k in form.outputs:
                self._replace(old, result, node, form.between)
            else:
                result.name, result.shape = old.name, old.shape
                ir.convenience.replace_all_uses_with(old, result, replace_graph_outputs=True)
        self._graph.remove(node, safe=True)

    def _same(self, node: ir.Node, form: Form) -> ir.Node:
        """The node with the operands, attributes and op type of its form."""
        inputs = list(node.inputs)
        inputs += [None] * (1 + max(form.constants, default=0) - len(inputs))
        for k in form.inputs:
            inputs[k] = self._channels_last(operand(node, k), node)
        for k in form.spread:
            inputs[k] = self._spread(operand(node, k), node)
        for k, array in form.constants.items():
            # Parameters of one node have one dtype.
            inputs[k] = self._constant(array, inputs[k] or (node.inputs[1] if len(node.inputs) > 1 else None))
        if form.begins is not None:
            inputs[1] = self._dims_of(self._began[form.begins], node)
        if form.between and form.inputs:
            x = self._channels_last(operand(node, 0), node)
            if node.op_type == "Conv":
                x = self._with_channels(x, missing_channels(node), node)
            order = to_channels_first(_rank_of(operand(node, 0)))
            turned = self._add(node, "Transpose", [x], {"perm": order}, f"{node.outputs[0].name}_nchw_in")
            turned.shape = _moved(x.shape, order)
            inputs[0] = self._began[node] = turned
            if node.op_type in CONVOLUTIONS:
                inputs[1] = self._weight(node, operand(node, 1))
        attributes = {name: attribute for name, attribute in node.attributes.items() if name not in form.attributes}
        changed = [ir.convenience.convert_attribute(name, value) for name, value in form.attributes.items()]
        return ir.Node(
            node.domain, form.op_type or node.op_type, inputs, [*attributes.values(), *changed], overload=node.overload,
            num_outputs=len(node.outputs), name=node.name, doc_string=node.doc_string,
            metadata_props=node.metadata_props,
        )  # fmt: skip

    def _dims_of(self, x: ir.Value, node: ir.Node) -> ir.Value:
        """The dims of x, for a Reshape to its shape: a constant where they are known, but for the first."""
        if x.shape is not None and all(isinstance(dim, int) for dim in x.shape[1:]):
            first = x.shape[0] if isinstance(x.shape[0], int) else 0
            return self._constant(np.array([first, *x.shape[1:]], np.int64))
        dims = self._add(node, "Shape", [x], {}, f"{x.name}_dims")
        dims.type, dims.shape = ir.TensorType(ir.DataType.INT64), ir.Shape([_rank_of(x)])
        return dims

    def _affine(self, node: ir.Node, form: Form) -> ir.Node:
        """A Mul and an Add of constants."""
        assert form.term is not None
        x = operand(node, 0)
        factor, term = self._constant(form.constants[1], x), self._constant(form.term, x)
        product = self._add(node, "Mul", [self._channels_last(x, node), factor], {}, f"{node.name}_scaled")
        mark(product)
        return ir.Node("", "Add", [product, term], num_outputs=1, name=node.name)

    def _picked(self, node: ir.Node, form: Form) -> ir.Node:
        """The shape in channels last, and a Gather that brings the dims in order."""
        x = self._channels_last(operand(node, 0), node)
        whole = self._add(node, "Shape", [x], {}, f"{node.outputs[0].name}_nhwc")
        whole.type, whole.shape = ir.TensorType(ir.DataType.INT64), ir.Shape([_rank_of(x)])
        return ir.Node("", "Gather", [whole, self._constant(np.array(form.dims))], num_outputs=1, name=node.name)

    def _replace(self, old: ir.Value, result: ir.Value, node: ir.Node, between: bool) -> None:
        """Readers get a Transpose of `result`, which may turn out to have no use."""
        last = to_channels_last(_rank_of(old))
        if between:
            result.name, result.shape = f"{old.name}_nchw_out", old.shape
            result = self._add(node, "Transpose", [result], {"perm": last}, f"{old.name}_nhwc")
        result.name, result.type, result.shape = f"{old.name}_nhwc", old.type, _moved(old.shape, last)
        mark(result)
        back = self._turned(node, result, to_channels_first(_rank_of(old)), str(old.name))
        back.shape = old.shape
        ir.convenience.replace_all_uses_with(old, back, replace_graph_outputs=True)
        self._last[back] = result

    def _channels_last(self, value: ir.Value, node: ir.Node) -> ir.Value:
        if value not in self._last:
            turned = self._turned(node, value, to_channels_last(_rank_of(value)), f"{value.name}_nhwc")
            mark(turned)
            self._last[value] = turned
        return self._last[value]

    def _turned(self, node: ir.Node, value: ir.Value, order: tuple[int, ...], name: str) -> ir.Value:
        """`value` in another layout; a Reshape where that is the same memory."""
        dims = _moved(value.shape, order)
        if dims is not None and order == to_channels_first(len(order)):
            free = all(dim == 1 for dim in dims[2:]) or dims[1] == 1
        else:
            free = dims is not None and (all(dim == 1 for dim in dims[1:-1]) or dims[-1] == 1)
        if free and dims is not None and all(isinstance(dim, int) and dim > 0 for dim in dims[1:]):
            shape = self._constant(np.array([0, *dims[1:]], np.int64))
            result = self._add(node, "Reshape", [value, shape], {}, name)
        else:
            result = self._add(node, "Transpose", [value], {"perm": order}, name)
        result.shape = dims
        return result

    def _spread(self, value: ir.Value, node: ir.Node) -> ir.Value:
        """A value of fewer dims than the result of its node, as it broadcasts in channels last."""
        assert value.shape is not None
        missing = _rank_of(node.outputs[0]) - len(value.shape)
        axes = self._constant(np.arange(missing))
        whole = self._add(node, "Unsqueeze", [value, axes], {}, f"{value.name}_of_all_dims")
        whole.shape = ir.Shape([1] * missing + list(value.shape))
        return self._turned(node, whole, to_channels_last(len(whole.shape)), f"{value.name}_nhwc")

    def _with_channels(self, x: ir.Value, missing: int, node: ir.Node) -> ir.Value:
        """x [N, ..., C] with `missing` channels of zeros behind its own."""
        if not missing:
            return x
        if (x, missing) not in self._padded:
            pads = self._constant(np.array([0] * (2 * _rank_of(x) - 1) + [missing], np.int64))
            padded = self._add(node, "Pad", [x, pads], {}, f"{x.name}_of_more_channels")
            if x.shape is not None and isinstance(x.shape[-1], int):
                padded.shape = ir.Shape([*x.shape[:-1], x.shape[-1] + missing])
            mark(padded)
            self._padded[x, missing] = padded
        return self._padded[x, missing]

    def _weight(self, node: ir.Node, weight: ir.Value) -> ir.Value:
        """A constant weight, or one of constant codes, as kernels read it, with a node that brings it back to the
        operator's order."""
        dequantize = weight.producer()
        if dequantize is None:
            return self._turned_weight(node, weight)
        turned = self._turned_weight(node, operand(dequantize, 0))
        attributes = list(dequantize.attributes.values())
        new = ir.Node(
            dequantize.domain, dequantize.op_type, [turned, *dequantize.inputs[1:]], attributes, num_outputs=1
        )
        new.name, result = f"{dequantize.name}_nhwc", new.outputs[0]
        result.name, result.type, result.shape = f"{weight.name}_of_nhwc", weight.type, weight.shape
        self._graph.insert_before(node, new)
        return result

    def _turned_weight(self, node: ir.Node, weight: ir.Value) -> ir.Value:
        """A constant as kernels read it, with a node that brings it back to the operator's order."""
        # A ConvTranspose's [C, K / group, R, S] lies as [C, R, S, K / group], as if it had several groups.
        group = node.attributes.get_int("group", 1) if node.op_type == "Conv" else 0
        assert weight.const_value is not None
        k, c, *window = weight.const_value.shape.numpy()
        by_planes = is_plane_by_plane(node, window)
        key = (weight, group == 1, by_planes)  # no weight fits two numbers of groups beside 1
        missing = missing_channels(node) if group else 0
        if key not in self._weights:
            name = self._free_name(f"{weight.name}_nhwc")
            self._weights[key] = stored(weight, group, name, missing, by_planes=by_planes)
            self._graph.register_initializer(self._weights[key].value)
        result, back, views = self._weights[key]
        name = f"{weight.name}_nchw"
        if back:
            order = result.shape
            result = self._add(node, "Transpose", [result], {"perm": back}, f"{name}_planes" if views else name)
            result.shape = _moved(order, back)
        if views:
            own = (k, c + missing, *window)
            result = self._add(node, "Reshape", [result, self._constant(np.array(own, np.int64))], {}, name)
            result.shape = ir.Shape(own)
        return result

    def _constant(self, array: np.ndarray, like: ir.Value | None = None) -> ir.Value:
        """An initializer, of the dtype and the name of another one where there is one."""
        dtype = like.dtype if like is not None and like.dtype is not None else ir.DataType.INT64
        array = np.ascontiguousarray(array.astype(dtype.numpy()))
        key = (dtype, array.shape, array.tobytes())
        if key not in self._constants:
            name = self._free_name(f"{like.name}_nhwc" if like is not None else "dims")
            tensor = ir.Tensor(array, dtype=dtype, name=name)
            value = ir.Value(name=name, shape=tensor.shape, type=ir.TensorType(dtype), const_value=tensor)
            self._graph.register_initializer(value)
            self._constants[key] = value
        return self._constants[key]

    def _free_name(self, name: str) -> str:
        names = (f"{name}{'_' * bool(k)}{k or ''}" for k in itertools.count())
        return next(n for n in names if n not in self._graph.initializers)

    def _add(
        self, node: ir.Node, op_type: str, inputs: Sequence[ir.Value], attributes: Mapping[str, Any], name: str
    ) -> ir.Value:
        """Insert a node before `node`; its result, of the dtype of its first operand."""
        new = ir.Node("", op_type, inputs, ir.convenience.convert_attributes(attributes), num_outputs=1)
        (result,) = new.outputs
        result.name = name
        new.name = f"{name}/{op_type}"
        result.type = inputs[0].type
        self._graph.insert_before(node, new)
        return result


def _rank_of(value: ir.Value) -> int:
    """Of a value whose dims are known."""
    dims = rank(value)
    assert dims is not None
    return dims


def _moved(shape: ir.Shape | None, order: tuple[int, ...]) -> ir.Shape | None:
    """The dims in another order."""
    return None if shape is None else ir.Shape([shape[axis] for axis in order])
