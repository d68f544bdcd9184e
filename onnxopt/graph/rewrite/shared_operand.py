"""Keys and values of several attentions to one tensor, as Slices of one product.

    MultiHeadAttention(q1, z Wk1, z Wv1), MultiHeadAttention(q2, z Wk2, z Wv2)
        -> the same with Slices of z [Wk1 Wv1 Wk2 Wv2]

Every layer of a decoder, and of a diffusion network, attends to the same few tokens, so that each of these products is
smaller than a GPU. Our attention kernel reads the Slices where they lie; without it, ONNX Runtime copies them. So only
attention that the kernel runs is merged.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnxopt.graph.passes.new_nodes import NewNodes, initializer
from onnxopt.graph.rewrite.weights import Joiner, is_constant
from onnxopt.graph.shapes.contrib_schemas import CONTRIB
from onnxopt.program import flash_attention

_KEYS, _VALUES = 1, 2  # positions among the inputs of MultiHeadAttention
_STORED = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})


@dataclasses.dataclass(frozen=True)
class _Product:
    """x weight + bias. result: what the attention reads. node: the MatMul."""

    x: ir.Value
    weight: ir.Value
    bias: ir.Value | None
    result: ir.Value
    node: ir.Node

    @property
    def width(self) -> int:
        assert self.weight.const_value is not None
        return self.weight.const_value.shape.numpy()[1]


def merge_keys_and_values(model: ir.Model, joiner: Joiner) -> int:
    """Merge the products, in place. Returns how many products there are now in place of others."""
    groups: dict[tuple[object, ...], dict[ir.Value, _Product]] = collections.defaultdict(dict)
    for node in model.graph:
        if (node.domain, node.op_type) != (CONTRIB, "MultiHeadAttention") or not _is_ours(node):
            continue
        for value in node.inputs[_KEYS : _VALUES + 1]:
            product = None if value is None else _product(value, node, model.graph)
            if product is not None and product.weight.const_value is not None:
                constant = product.weight.const_value
                groups[product.x, constant.dtype, constant.shape[0]][product.result] = product
    merged = [list(group.values()) for group in groups.values() if len(group) > 1]
    for products in merged:
        _merge(model.graph, products, joiner)
    return len(merged)


def _is_ours(node: ir.Node) -> bool:
    q, k = node.inputs[0], node.inputs[_KEYS] if len(node.inputs) > _KEYS else None
    heads = node.attributes.get_int("num_heads", 0) or 0
    if q is None or k is None or q.dtype not in _STORED or q.shape is None or k.shape is None or len(k.shape) != 3:
        return False
    row = q.shape[2] if len(q.shape) == 3 else None
    keys = k.shape[1]
    if not isinstance(row, int) or not heads or row % heads:
        return False
    return flash_attention.pays(keys if isinstance(keys, int) else None, row // heads, packed=True)


def _product(value: ir.Value, reader: ir.Node, graph: ir.Graph) -> _Product | None:
    """The product of a tensor of tokens and a constant that only the attention reads."""
    node, bias, result = value.producer(), None, value
    if node is not None and node.op_type == "Add" and node.domain == "" and _is_read_by(value, reader):
        terms = [v for v in node.inputs if v is not None]
        constants = [v for v in terms if is_constant(v)]
        rest = [v for v in terms if not is_constant(v)]
        if len(constants) != 1 or len(rest) != 1:
            return None
        (bias,), (value,), reader = constants, rest, node
        node = value.producer()
    if node is None or node.op_type != "MatMul" or node.domain != "" or not _is_read_by(value, reader):
        return None
    x, weight = node.inputs
    if x is None or weight is None or not is_constant(weight) or len(weight.uses()) != 1 or node.graph is not graph:
        return None
    assert weight.const_value is not None
    shape = weight.const_value.shape.numpy()
    fits = len(shape) == 2 and x.shape is not None and len(x.shape) == 3
    if bias is not None and bias.const_value is not None:
        fits = fits and bias.const_value.shape.numpy() == shape[1:] and bias.const_value.dtype == weight.dtype
    return _Product(x, weight, bias, result, node) if fits else None


def _is_read_by(value: ir.Value, reader: ir.Node) -> bool:
    return not value.is_graph_output() and len(value.uses()) == 1 and value.uses()[0].node is reader


def _merge(graph: ir.Graph, products: Sequence[_Product], joiner: Joiner) -> None:
    position = {node: k for k, node in enumerate(graph)}
    first = min((p.node for p in products), key=position.__getitem__)
    x, dtype = products[0].x, products[0].weight.dtype
    assert dtype is not None
    new = NewNodes(graph, first)
    name = "+".join(str(p.weight.name) for p in products)
    tensors = [p.weight.const_value for p in products if p.weight.const_value is not None]
    value = new.add("MatMul", [x, initializer(graph, joiner.columns(tensors, name), name)], dtype)
    if any(p.bias is not None for p in products):
        rows = [
            np.zeros(p.width, dtype.numpy()) if p.bias is None or p.bias.const_value is None
            else p.bias.const_value.numpy()
            for p in products
        ]  # fmt: skip
        value = new.add("Add", [value, new.constant(np.concatenate(rows))], dtype)
    ends = [0, *itertools.accumulate(p.width for p in products)]
    for product, begin, end in zip(products, ends, ends[1:], strict=False):
        bounds = [new.constant(np.array([n], np.int64)) for n in (begin, end, -1)]
        part = new.add("Slice", [value, *bounds], dtype)
        part.shape = ir.Shape([*x.shape[:2], end - begin]) if x.shape is not None else None
        product.result.replace_all_uses_with(part)
