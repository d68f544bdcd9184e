"""Columns of a product that are the same for many rows are multiplied once for these rows.

    MatMul(Concat(x, Expand(g)), [V; W]) -> Add(MatMul(x, V), MatMul(g, W))         also Gemm, and Conv of one element
    Conv(Concat(x, Resize(g)), [V W], b) -> Add(Conv(x, V), Conv(g, W, b))          g [N, C, 1, 1], as of global pooling

Networks of points join the features of each point with those of the cloud, and segmentation networks join maps with
the mean of the image. The Concat copies all of it, and the product multiplies each repeated column again. The kernel
of the activation that follows adds both products. In 16 bits each of them is rounded before they are added. Readers of
the Concat that are no such products keep it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from onnxopt.costs.rewrite import numbers
from onnxopt.graph.match import constant, is_constant, is_private, operand
from onnxopt.graph.passes.new_nodes import NewNodes
from onnxopt.graph.rewrite.rule_sets import Pass, Scope
from onnxopt.graph.rewrite.weights import FLOATS
from onnxopt.graph.shapes.dims import Dims
from onnxopt.graph.shapes.infer import Knowledge

_BIAS = 2  # its position among the inputs of Conv and Gemm


class _Part(NamedTuple):
    """An operand of a Concat. value: what is joined, or what it repeats, of these dims. columns: of the Concat."""

    value: ir.Value
    dims: Dims
    columns: range
    repeats: bool


class _Joined(NamedTuple):
    """A Concat along `axis` and its parts. dims: of its result."""

    concat: ir.Node
    axis: int
    dims: Dims
    parts: tuple[_Part, ...]


class _Product(NamedTuple):
    """A product of a Concat. depth: the axis of the weight that has an element for each column."""

    node: ir.Node
    weight: ir.Value
    depth: int
    outputs: int


def _split_all(model: ir.Model, scope: Scope) -> int:
    count = 0
    for node in [n for n in model.graph if (n.domain, n.op_type) == ("", "Concat")]:
        joined = _joined(node, scope.inferred)
        products = None if joined is None else _products(joined)
        if joined is not None and products and _pays(joined, products, scope):
            for product in products:
                _split(product, joined)
            count += len(products)
    return count


def _joined(concat: ir.Node, inferred: Knowledge) -> _Joined | None:
    """A Concat of which some operands repeat a smaller tensor, and others do not."""
    dims, y = inferred.dims(concat.outputs[0]), concat.outputs[0]
    if dims is None or y.dtype not in FLOATS or y.is_graph_output():
        return None
    axis, parts, first = concat.attributes.get_int("axis", 0) % len(dims), [], 0
    for value in concat.inputs:
        own = inferred.dims(value)
        if value is None or own is None or not _equal_beside(own, dims, axis):
            return None
        source, width = _source(value, own, axis, inferred), own[axis]
        if not isinstance(width, int):
            return None
        shape = own if source is None else inferred.dims(source)
        assert shape is not None
        parts.append(_Part(source or value, shape, range(first, first + width), source is not None))
        first += width
    return _Joined(concat, axis, dims, tuple(parts)) if len({part.repeats for part in parts}) == 2 else None


def _equal_beside(one: Dims, other: Dims, axis: int) -> bool:
    """Whether all dims but one are known to be equal."""
    pairs = zip(one, other, strict=True)
    return len(one) == len(other) and all(a == b for k, (a, b) in enumerate(pairs) if k != axis)


def _source(value: ir.Value, dims: Dims, axis: int, inferred: Knowledge) -> ir.Value | None:
    """The tensor that a value repeats along dims in which it has one element; None where there is none."""
    node = value.producer()
    if node is None or node.domain != "":
        return None
    source, last = _repeated(node)
    own = inferred.dims(source)
    if source is None or own is None or len(own) != len(dims) or source.dtype != value.dtype:
        return None
    if own[axis] != dims[axis] or any(a not in (1, b) for a, b in zip(own, dims, strict=True)):
        return None
    return source if own != dims and (not last or all(d == 1 for d in own[2:])) else None


def _repeated(node: ir.Node) -> tuple[ir.Value | None, bool]:
    """What a node may repeat, and whether it does so only if all dims after the second are 1."""
    if node.op_type in ("Expand", "Tile"):
        return node.inputs[0], False
    if node.op_type == "Resize":
        return (node.inputs[0], True) if _keeps_elements(node) else (None, True)
    if node.op_type == "Mul":
        ones = [_is_one(v) for v in node.inputs]
        return (node.inputs[ones.index(False)] if sum(ones) == 1 else None), False
    return None, False


def _keeps_elements(resize: ir.Node) -> bool:
    """Whether a Resize of maps of one element repeats it."""
    text = resize.attributes.get_string
    if text("mode", "nearest") not in ("nearest", "linear") or resize.attributes.get_int("antialias", 0) != 0:
        return False
    if text("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize" or "axes" in resize.attributes:
        return False
    if operand(resize, 3) is not None:
        return True
    scales = constant(operand(resize, 2))
    return scales is not None and bool((scales[:2] == 1).all())


def _is_one(value: ir.Value | None) -> bool:
    """Whether every element of a value is known to be 1."""
    node = None if value is None else value.producer()
    if node is not None and (node.domain, node.op_type) == ("", "ConstantOfShape"):
        fill = node.attributes.get_tensor("value", None)
        return fill is not None and bool((fill.numpy() == 1).all())
    array = constant(value)
    return array is not None and bool((array == 1).all())


def _products(joined: _Joined) -> list[_Product] | None:
    """The products that read a Concat, None where anything else does."""
    products = [_product(use.node, use.idx, joined) for use in joined.concat.outputs[0].uses()]
    found = [p for p in products if p is not None]
    return found if len(found) == len(products) else None


def _product(node: ir.Node, position: int, joined: _Joined) -> _Product | None:
    weight, last = operand(node, 1), len(joined.dims) - 1
    if node.domain != "" or position != 0 or weight is None or not is_constant(weight) or not is_private(weight):
        return None
    shape = weight.const_value.shape.numpy()  # type: ignore[union-attr]
    if node.op_type == "Conv" and joined.axis == 1 and len(shape) == len(joined.dims) > 2:
        return _Product(node, weight, 1, shape[0]) if _has_one_element(node, shape) else None
    if joined.axis != last or len(shape) != 2:
        return None
    if node.op_type == "MatMul" and last > 0:
        return _Product(node, weight, 0, shape[1])
    if node.op_type == "Gemm" and not node.attributes.get_int("transA", 0):
        depth = 1 if node.attributes.get_int("transB", 0) else 0
        return _Product(node, weight, depth, shape[1 - depth])
    return None


def _has_one_element(conv: ir.Node, weight: Sequence[int]) -> bool:
    """Whether every window of a Conv of one group is one element of its input."""
    bias = operand(conv, _BIAS)
    way = conv.attributes.get_string("auto_pad", "NOTSET")
    strides = conv.attributes.get_ints("strides", ())
    padded = any(conv.attributes.get_ints("pads", ())) if way == "NOTSET" else any(n != 1 for n in strides)
    alone = conv.attributes.get_int("group", 1) == 1 and math.prod(weight[2:]) == 1
    return alone and not padded and (bias is None or is_constant(bias))


def _pays(joined: _Joined, products: Sequence[_Product], scope: Scope) -> bool:
    """Whether the Concat's copy and the products of repeated columns take longer than to add both products.

    A dim whose size is unknown counts as 1.
    """
    costs, dtype = numbers(), joined.concat.outputs[0].dtype
    assert dtype is not None

    def rows(dims: Dims) -> int:
        return math.prod(scope.expected.of(d) or 1 for k, d in enumerate(dims) if k != joined.axis)

    count = rows(joined.dims)
    repeated = [part for part in joined.parts if part.repeats]
    once = sum(len(part.columns) * rows(part.dims) for part in repeated)
    fewer = sum(len(part.columns) for part in repeated) * count - once  # elements of the Concat
    others = [part for part in joined.parts if not part.repeats]
    outputs = sum(product.outputs for product in products)
    moved = fewer * (1 + len(products))  # written once, and read by every product
    moved += 2 * count * len(others[0].columns) if len(others) == 1 else 0
    moved -= 2 * count * outputs  # the kernel that adds reads and writes the result
    saved = moved * dtype.bitwidth // 8 + 2 * fewer * outputs // costs.operations_per_byte
    return saved >= costs.min_saved_of_repeated


def _split(product: _Product, joined: _Joined) -> None:
    """Put the sum of a product for each shape of parts in place of the product."""
    node, y = product.node, product.node.outputs[0]
    assert isinstance(node.graph, ir.Graph)
    new = NewNodes(node.graph, node)
    groups: dict[Dims, list[_Part]] = {}
    for part in joined.parts:
        dims = (*part.dims[: joined.axis], *part.dims[joined.axis + 1 :])
        groups.setdefault(dims if part.repeats else (), []).append(part)
    bias = operand(node, _BIAS)
    alone = groups.pop(())
    others = list(groups.values())
    last = others[-1] if bias is None or _is_of_columns(bias) else alone
    total = _of_parts(new, product, joined, alone, bias if last is alone else None)
    for parts in others:
        total = new.add(
            "Add", [total, _of_parts(new, product, joined, parts, bias if last is parts else None)], y.dtype
        )
    total.shape = None if y.shape is None else y.shape.copy()
    y.replace_all_uses_with(total, replace_graph_outputs=True)
    total.name = y.name if y.is_graph_output() else total.name


def _is_of_columns(bias: ir.Value) -> bool:
    """Whether a constant has no more than one row."""
    return is_constant(bias) and all(d == 1 for d in bias.const_value.shape.numpy()[:-1])  # type: ignore[union-attr]


def _of_parts(
    new: NewNodes, product: _Product, joined: _Joined, parts: Sequence[_Part], bias: ir.Value | None
) -> ir.Value:
    """The product of some parts, joined, and their part of the weight."""
    dtype, attributes = product.node.outputs[0].dtype, list(product.node.attributes.values())
    x = parts[0].value
    if len(parts) > 1:
        x = new.add("Concat", [part.value for part in parts], x.dtype, [ir.AttrInt64("axis", joined.axis)])
    columns = [k for part in parts for k in part.columns]
    tensor, depth = product.weight.const_value, product.depth
    assert tensor is not None
    dims = list(tensor.shape.numpy())
    dims[depth] = len(columns)

    def evaluate() -> np.ndarray:
        return np.ascontiguousarray(np.take(tensor.numpy(), columns, depth))

    weight = new.lazy(f"{product.weight.name}/columns", evaluate, tensor.dtype, dims)
    return new.add(product.node.op_type, [x, weight, *([] if bias is None else [bias])], dtype, attributes)


RULES = (Pass(_split_all),)
