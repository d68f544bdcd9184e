"""Small products of one tensor, as Slices of one product.

    MultiHeadAttention(q1, z Wk1, z Wv1), MultiHeadAttention(q2, z Wk2, z Wv2)
        -> the same with Slices of z [Wk1 Wv1 Wk2 Wv2]
    MultiHeadAttention(s Wq, s Wk, x Wv)
        -> the same with Slices of s [Wq Wk]
    Mul(Reshape(x W1), y), Softmax(Reshape(x W2))
        -> the same with Slices of x [W1 W2]
    Add(x1, Unsqueeze(t W1)), Mul(x2, Unsqueeze(Split(t W2)))
        -> the same with Slices of t [W1 W2]
    Reshape(x Wq), Reshape(x Wk), Concat(cache, Transpose(Reshape(x Wv)))
        -> the same with Slices of x [Wq Wk Wv]
    MultiHeadAttention(f(x Wq), g(x Wk), x Wv)
        -> the same with Slices of x [Wq Wk Wv]; also where each is a Concat of such of two tensors x

Every layer of a decoder, and of a diffusion network, attends to the same few tokens, and every block of the latter adds
a product of the same embedding to its map, or scales and shifts its tokens by parts of one. Each of these products is
smaller than a GPU. Detectors add positions to what queries and keys are computed of, and not to that of values; their
points and weights are products of one tensor. Our kernels read the Slices where they are stored. ONNX Runtime copies
them, so that only those are merged that such a kernel reads. Behind a cache, a step of a decoder has few tokens:
kernels of ours rotate queries and keys, and copy the new values to the cache anyway. f and g are what such kernels
compute: norms, and rotary embedding of a part of each head or of some tokens.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import onnx_ir as ir

from onnxopt.costs import attention as costs
from onnxopt.costs.attention import AttentionSize
from onnxopt.costs.rewrite import numbers
from onnxopt.graph.match import is_constant, only_consumer
from onnxopt.graph.passes.new_nodes import NewNodes, initializer
from onnxopt.graph.rewrite.attention.attention_nodes import attends, has_mask, is_for_kernel
from onnxopt.graph.rewrite.products.column_parts import Cut, cuts_of
from onnxopt.graph.rewrite.rule_sets import Pass, Scope
from onnxopt.graph.rewrite.weights import Joiner
from onnxopt.graph.shapes.contrib_schemas import CONTRIB
from onnxopt.graph.shapes.value_dims import reshape_to
from onnxopt.program import flash_attention
from onnxopt.program.operators.row_operators import ROW_OPERATORS
from onnxopt.program.operators.table import OPERATORS

_KEYS, _VALUES = 1, 2  # positions among the inputs of MultiHeadAttention
_STORED = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
_FLOATS = _STORED | {ir.DataType.FLOAT}
_VIEWS = frozenset({"Unsqueeze", "Reshape", "Squeeze"})
_MOVING = _VIEWS | {"Concat", "Expand", "Slice", "Split", "Transpose"}
_MAX_PREPARING = 64  # values between a product and an attention
_MAX_WORK = 8  # operators between a part of a product and what it is broadcast against
_MULTIPLE = 8  # of the columns of a product of an embedding: parts of a row stay aligned
_MAX_BYTES = numbers().max_merged_bytes
_MAX_DIVIDED_BYTES = numbers().max_divided_bytes


@dataclasses.dataclass(frozen=True)
class _Product:
    """x op(weight) + bias.

    result: what is read of it. node: the MatMul or Gemm. by_rows: the weight is [N, K]. cuts: the parts of the result
    that are read; none where it is read whole.
    """

    x: ir.Value
    weight: ir.Value
    bias: ir.Value | None
    result: ir.Value
    node: ir.Node
    by_rows: bool = False
    cuts: tuple[Cut, ...] = ()

    @property
    def tensor(self) -> ir.TensorProtocol:
        assert self.weight.const_value is not None
        return self.weight.const_value

    @property
    def width(self) -> int:
        return self.tensor.shape.numpy()[0 if self.by_rows else 1]

    @property
    def group(self) -> tuple[object, ...]:
        """What products have in common that one product takes the place of."""
        return self.x, self.tensor.dtype, self.by_rows, self.tensor.shape[1 if self.by_rows else 0]

    @property
    def bytes(self) -> int:
        """Of the weight, or of the result where that is known to be larger."""
        shape = self.result.shape
        known = shape is not None and shape.is_static()
        return max(self.tensor.nbytes, math.prod(shape.numpy()) * self.tensor.dtype.bitwidth // 8 if known else 0)  # type: ignore[union-attr]


def merge(model: ir.Model, joiner: Joiner, scope: Scope) -> int:
    """Merge products of one tensor, in place. Returns how many products there are now in place of others."""
    graph = model.graph
    whole = (*_attention_products(graph, scope), *_cache_products(graph), *_divided_products(graph, scope))
    groups = _grouped((*whole, *_prepared_head_products(graph, scope)))
    groups = [group for group in groups if sum(p.tensor.nbytes for p in group) <= _MAX_BYTES]
    groups += [part for group in _grouped(_broadcast_products(graph)) for part in _up_to_limit(group)]
    for group in groups:
        alone, last = group[0], group[0].result.producer()
        if len(group) > 1:
            _merge(graph, group, joiner)
        elif last is not None and any(cut.value is not alone.result for cut in alone.cuts):
            _cut(NewNodes(graph, last, last), alone, alone.result, 0)
    return sum(len(group) > 1 for group in groups)


def _grouped(products: Iterable[_Product]) -> list[list[_Product]]:
    """The products that one product can take the place of, together."""
    groups: dict[tuple[object, ...], dict[ir.Value, _Product]] = collections.defaultdict(dict)
    for product in products:
        groups[product.group].setdefault(product.result, product)
    return [list(group.values()) for group in groups.values()]


def _up_to_limit(products: list[_Product]) -> Iterator[list[_Product]]:
    """The products in their order, in groups of up to _MAX_BYTES."""
    group: list[_Product] = []
    for product in products:
        if group and sum(p.bytes for p in (*group, product)) > _MAX_BYTES:
            yield group
            group = []
        group.append(product)
    yield group


def _attention_products(graph: ir.Graph, scope: Scope) -> Iterator[_Product]:
    """Products that are queries, keys or values of an attention that our kernel runs."""
    for node in graph:
        if (node.domain, node.op_type) != (CONTRIB, "MultiHeadAttention") or not _is_ours(node, scope):
            continue
        for value in node.inputs[: _VALUES + 1]:
            product = None if value is None else _matrix_product(value, node)
            if product is not None and product.x.shape is not None and len(product.x.shape) == 3:
                yield product


def _divided_products(graph: ir.Graph, scope: Scope) -> Iterator[_Product]:
    """Products whose columns a Reshape divides, as those of points and weights of a deformable attention, and which
    only kernels of ours read: no activation can be in the product's epilogue."""
    for node in graph:
        if (node.op_type, node.domain) != ("Reshape", "") or node.inputs[0] is None or not scope.gpu:
            continue
        product, view = _matrix_product(node.inputs[0], node), node.outputs[0]
        if product is None or product.x.dtype not in _FLOATS or product.x.shape is None or view.shape is None:
            continue
        rank = len(product.x.shape)
        divides = len(view.shape) > rank and list(view.shape)[: rank - 1] == list(product.x.shape)[:-1]
        if divides and product.bytes <= _MAX_DIVIDED_BYTES and all(map(_is_fused, view.consumers())):
            yield product


def _is_fused(node: ir.Node) -> bool:
    key = (node.domain, node.op_type)
    return key in OPERATORS or key in ROW_OPERATORS


def _is_ours(node: ir.Node, scope: Scope) -> bool:
    q, k = node.inputs[0], node.inputs[_KEYS] if len(node.inputs) > _KEYS else None
    heads = node.attributes.get_int("num_heads", 0) or 0
    if q is None or k is None or q.dtype is None or not attends(q.dtype, scope.gpu):
        return False
    if q.shape is None or k.shape is None or len(k.shape) != 3:
        return False
    row = q.shape[2] if len(q.shape) == 3 else None
    if not isinstance(row, int) or not heads or row % heads:
        return False
    width = row // heads
    size = AttentionSize(
        scope.expected.of(k.shape[1]), width, packed=True, hopper=flash_attention.is_hopper(width, width),
        bias="scores" if has_mask(node) else "",
        dtype=q.dtype.name.lower(),
    )  # fmt: skip
    return is_for_kernel(node) or costs.pays(size)


def _broadcast_products(graph: ir.Graph) -> Iterator[_Product]:
    """Products that are broadcast against larger tensors, whole or in parts: embeddings and modulations."""
    for node in graph:
        if node.op_type not in ("MatMul", "Gemm") or node.domain != "" or node.outputs[0].dtype not in _FLOATS:
            continue
        total = only_consumer(node.outputs[0])
        product = None if total is None else _matrix_product(total.outputs[0], None)
        product = product or _matrix_product(node.outputs[0], None) or _gemm(node.outputs[0])
        if product is None:
            continue
        cuts = cuts_of(product.result, product.width) or [Cut(product.result, 0, product.width)]
        if all(cut.first % _MULTIPLE == cut.size % _MULTIPLE == 0 and _is_broadcast(cut.value) for cut in cuts):
            yield dataclasses.replace(product, cuts=tuple(cuts))


def _is_broadcast(value: ir.Value, work: int = _MAX_WORK) -> bool:
    """Whether kernels of ours may take in all readers of a value, and repeat it, maybe after `work` operators."""
    if value.is_graph_output() or value.shape is None or isinstance(reshape_to(value, value.shape), str) or not work:
        return False
    for reader in value.consumers():
        result, key = reader.outputs[0], (reader.domain, reader.op_type)
        if key in OPERATORS and result.shape is not None and _repeats(value.shape, result.shape):
            continue
        is_view = reader.op_type in _VIEWS and reader.domain == ""
        if not (is_view or key in OPERATORS) or not _is_broadcast(result, work - 1):
            return False
    return True


def _repeats(shape: ir.Shape, result: ir.Shape) -> bool:
    """Whether a result has more elements than an operand that is broadcast into it, whatever the symbols are."""
    dims = [1] * (len(result) - len(shape)) + list(shape)
    return any(dim == 1 != wide for dim, wide in zip(dims, result, strict=True))


def _cache_products(graph: ir.Graph) -> Iterator[_Product]:
    """Queries, keys and values of an attention behind a cache, which is where the values go."""
    heads: dict[tuple[object, ...], list[tuple[_Product, ir.Value]]] = collections.defaultdict(list)
    for node in graph:
        if (node.op_type, node.domain) != ("Reshape", "") or node.inputs[0] is None:
            continue
        value, view = node.inputs[0], node.outputs[0]
        if value.dtype not in _STORED or view.shape is None or len(view.shape) != 4:
            continue
        product = _matrix_product(value, node)
        if product is not None and product.x.shape is not None and len(product.x.shape) == 3:
            heads[(*product.group, view.shape[3])].append((product, view))
    for products in heads.values():
        if len(products) == len("qkv") and any(_goes_to_a_cache(view) for _, view in products):
            yield from (product for product, _ in products)


def _prepared_head_products(graph: ir.Graph, scope: Scope) -> Iterator[_Product]:
    """Queries, keys and values of one tensor, or of each of several streams, which kernels prepare for attention.

    Those of one tensor are for an attention of ours, which reads the values in place; Concats join those of streams.
    """
    for node in graph:
        if (node.domain, node.op_type) != (CONTRIB, "MultiHeadAttention"):
            continue
        sources = [_source_products(value, node) for value in node.inputs[: _VALUES + 1]]
        products = {product.node: product for source in sources for product in source}
        count = len({product.group for product in products.values()})
        if not count or any(len({product.group for product in source}) != count for source in sources):
            continue
        if len(products) == sum(map(len, sources)) == len("qkv") * count and (count > 1 or _is_ours(node, scope)):
            yield from products.values()


def _source_products(value: ir.Value | None, reader: ir.Node) -> list[_Product]:
    """The products that a value is prepared from by operators that kernels of ours take in, besides other values."""
    seen, ring, products = {value}, [(value, reader)], dict[ir.Value, _Product]()
    while ring and len(seen) <= _MAX_PREPARING:
        operand, reader = ring.pop()
        node = None if operand is None else operand.producer()
        if operand is None or node is None:
            continue
        product = _matrix_product(operand, reader)
        if product is not None and product.x.shape is not None and len(product.x.shape) == 3:
            products[product.result] = product
            continue
        key = (node.domain, node.op_type)
        if key not in OPERATORS and key not in ROW_OPERATORS and (node.domain or node.op_type not in _MOVING):
            continue
        new = [v for v in node.inputs if v not in seen]
        seen.update(new)
        ring += [(v, node) for v in new]
    return [] if ring else list(products.values())


def _goes_to_a_cache(view: ir.Value) -> bool:
    """Whether heads are turned and written behind what an input of the graph has, or into it, and nothing else."""
    readers = view.consumers()
    if len(readers) != 1 or readers[0].op_type != "Transpose" or view.is_graph_output():
        return False
    readers = readers[0].outputs[0].consumers()
    if len(readers) != 1 or readers[0].domain != "":
        return False
    writer = readers[0]
    if writer.op_type == "ScatterND":
        return writer.inputs[2] is not None and writer.inputs[2].producer() in view.consumers()
    past = writer.inputs[0]
    along_tokens = writer.attributes.get_int("axis", 0) in (2, -2) and len(writer.inputs) == 2
    return writer.op_type == "Concat" and along_tokens and past is not None and past.is_graph_input()


def _matrix_product(value: ir.Value, reader: ir.Node | None) -> _Product | None:
    """MatMul with a constant, and the Add of a constant vector behind it, that only `reader` reads, if one is named."""
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
    return _product(node, bias, result, by_rows=False)


def _gemm(value: ir.Value) -> _Product | None:
    """Gemm of a matrix and a constant."""
    node = value.producer()
    if node is None or node.op_type != "Gemm" or node.domain != "":
        return None
    plain = {"transA": 0, "alpha": 1.0, "beta": 1.0}
    if any(name in node.attributes and node.attributes[name].value != number for name, number in plain.items()):
        return None
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    return _product(node, bias, value, by_rows=bool(node.attributes.get_int("transB", 0)))


def _product(node: ir.Node, bias: ir.Value | None, result: ir.Value, by_rows: bool) -> _Product | None:
    x, weight = node.inputs[:2]
    if x is None or weight is None or not is_constant(weight) or weight.is_graph_output() or x.dtype != weight.dtype:
        return None
    assert weight.const_value is not None
    if len(weight.uses()) != 1 or len(weight.const_value.shape) != 2:
        return None
    product = _Product(x, weight, bias, result, node, by_rows)
    if bias is None:
        return product
    tensor = bias.const_value if is_constant(bias) else None
    fits = tensor is not None and tensor.shape.numpy() == (product.width,) and tensor.dtype == weight.const_value.dtype
    return product if fits else None


def _is_read_by(value: ir.Value, reader: ir.Node | None) -> bool:
    return reader is None or (not value.is_graph_output() and [use.node for use in value.uses()] == [reader])


def _merge(graph: ir.Graph, products: Sequence[_Product], joiner: Joiner) -> None:
    position = {node: k for k, node in enumerate(graph)}
    new = NewNodes(graph, min((p.node for p in products), key=position.__getitem__))
    x, dtype, by_rows = products[0].x, products[0].tensor.dtype, products[0].by_rows
    name = "+".join(str(p.weight.name) for p in products)
    if by_rows:
        weight = joiner.constant(np.concatenate([p.tensor.numpy() for p in products]), dtype, name)
        operands = [x, initializer(graph, weight, name)]
        if any(p.bias is not None for p in products):
            operands.append(new.constant(_merged_bias(products)))
        value = new.add("Gemm", operands, dtype, [ir.AttrInt64("transB", 1)])
    else:
        weight = joiner.columns([p.tensor for p in products], name)
        value = new.add("MatMul", [x, initializer(graph, weight, name)], dtype)
        if any(p.bias is not None for p in products):
            value = new.add("Add", [value, new.constant(_merged_bias(products))], dtype)
    ends = [0, *itertools.accumulate(p.width for p in products)]
    for product, begin in zip(products, ends, strict=False):
        _cut(new, product, value, begin)


def _cut(new: NewNodes, product: _Product, value: ir.Value, begin: int) -> None:
    """Let Slices of `value`, in whose columns from `begin` on the product is, take the place of what is read of it."""
    for cut in product.cuts or (Cut(product.result, 0, product.width),):
        first, dims = begin + cut.first, [] if product.x.shape is None else list(product.x.shape)[:-1]
        bounds = [new.constant(np.array([n], np.int64)) for n in (first, first + cut.size, -1)]
        part = new.add("Slice", [value, *bounds], value.dtype)
        part.shape = ir.Shape([*dims, cut.size]) if product.x.shape is not None else None
        wanted = cut.value.shape
        if product.cuts and wanted is not None and wanted != part.shape:
            part = new.add("Reshape", [part, new.constant(np.array(reshape_to(part, wanted), np.int64))], value.dtype)
            part.shape = wanted.copy()
        cut.value.replace_all_uses_with(part)


def _merged_bias(products: Sequence[_Product]) -> np.ndarray:
    """The biases side by side, zeros where there is none."""
    rows = []
    for product in products:
        tensor = None if product.bias is None else product.bias.const_value
        rows.append(np.zeros(product.width, product.tensor.dtype.numpy()) if tensor is None else tensor.numpy())
    return np.concatenate(rows)


def _pass(model: ir.Model, scope: Scope) -> int:
    assert scope.joiner is not None
    return merge(model, scope.joiner, scope)


RULES = (Pass(_pass),)
