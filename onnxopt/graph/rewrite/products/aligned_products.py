"""Products with a constant matrix whose depth or width is no multiple of 16 bytes, with zeros that fill it up.

    MatMul(Concat(x, y), w) -> MatMul(Pad(Concat(x, y)), [w; 0])          also Gemm; w has zeros after its rows
    MatMul(x, w)            -> MatMul(Pad(x), [w; 0])                     where that gains more than a Pad costs
    f(MatMul(x, w) + b)     -> Slice(f(MatMul(x, [w, 0]) + [b, 0]))       the same; f: Relu or Gelu, or nothing

Matrix units load 16 bytes at a time, and cuBLASLt's fast algorithms need rows that begin at multiples of them (NVIDIA,
Matrix Multiplication Background User's Guide). The kernel that joins columns writes the zeros too. A zero times a zero
adds nothing, whatever the columns hold. From which sizes on the others gain, costs/data/rewrite.json says.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from onnxopt.costs.rewrite import numbers
from onnxopt.graph.match import is_constant, is_private, only_consumer
from onnxopt.graph.passes.new_nodes import NewNodes
from onnxopt.graph.rewrite.rule_sets import Pass, Scope
from onnxopt.graph.rewrite.weights import FLOATS
from onnxopt.program.hardware import ACCESS_BYTES

_MAX_PARTS = 6  # of a Concat, so that a kernel joins them (program/indexing.py: MAX_CONDITIONS)


class _Product(NamedTuple):
    """A product of x [.., K] and a constant matrix w with K x N elements, whose axis `depth` has the K.

    rows: of x, over all its matrices; None where they are not known.
    """

    node: ir.Node
    x: ir.Value
    w: ir.Value
    depth: int
    rows: int | None

    @property
    def sides(self) -> tuple[int, int]:
        """K and N."""
        dims = self.w.const_value.shape.numpy()  # type: ignore[union-attr]
        return dims[self.depth], dims[1 - self.depth]

    def missing(self, side: int) -> int:
        """Elements up to the next multiple of 16 bytes."""
        assert self.x.dtype is not None
        return -side % (ACCESS_BYTES * 8 // self.x.dtype.bitwidth)


def align(graph: ir.Graph, scope: Scope) -> int:
    """Change such products in place; how many."""
    count = 0
    for node in [n for n in graph if n.op_type in ("MatMul", "Gemm") and n.domain == ""]:
        product = _product(node, scope)
        if product is None:
            continue
        if product.missing(product.sides[0]) and (_is_joined(product, scope) or _gains_by_depth(product)):
            _fill_depth(graph, product, len(scope.inferred.dims(product.x) or ()))
            count += 1
        elif _gains_by_width(product) and (chain := _chain(product, scope)):
            _fill_width(graph, product, chain)
            count += 1
    return count


def _product(node: ir.Node, scope: Scope) -> _Product | None:
    x, w = node.inputs[0], node.inputs[1]
    dims = scope.inferred.dims(x)
    if x is None or w is None or not dims or len(dims) < 2 or x.dtype not in FLOATS or is_constant(x):
        return None
    if not is_constant(w) or len(w.const_value.shape) != 2 or not is_private(w):  # type: ignore[union-attr]
        return None
    depth = node.attributes.get_int("transB", 0) or 0
    if node.attributes.get_int("transA", 0) != 0 or dims[-1] != w.const_value.shape.numpy()[depth]:  # type: ignore[union-attr]
        return None
    sizes = [scope.expected.of(dim) for dim in dims[:-1]]
    rows = math.prod(n for n in sizes if n is not None) if None not in sizes else None
    return _Product(node, x, w, depth, rows)


def _is_joined(product: _Product, scope: Scope) -> bool:
    """Whether a kernel that joins the columns writes the zeros as well."""
    concat, dims = product.x.producer(), scope.inferred.dims(product.x) or ()
    if concat is None or (concat.domain, concat.op_type) != ("", "Concat") or not is_private(product.x):
        return False
    if len(concat.inputs) > _MAX_PARTS or concat.attributes.get_int("axis", 0) not in (-1, len(dims) - 1):
        return False
    widths = [(scope.inferred.dims(part) or (None,))[-1] for part in concat.inputs]
    return all(isinstance(width, int) for width in widths)


def _gains_by_depth(product: _Product) -> bool:
    """Whether the product takes longer than an aligned one and a Pad of x, which is no larger than the result.

    ONNX Runtime has no CUDA kernel for a Pad of bfloat16.
    """
    depth, width = product.sides
    if product.x.dtype == ir.DataType.BFLOAT16:
        return False
    return product.rows is not None and depth <= width and product.rows * width >= numbers().min_padded[depth % 2]


def _gains_by_width(product: _Product) -> bool:
    """Whether the product takes longer than an aligned one and a Slice of the result, which is smaller than x.

    One column is a product of a matrix and a vector, which has kernels of its own.
    """
    depth, width = product.sides
    if product.rows is None or width == 1 or not product.missing(width) or product.missing(depth):
        return False
    return 2 * width <= depth and product.rows * depth >= numbers().min_sliced[width % 2]


def _chain(product: _Product, scope: Scope) -> list[ir.Node]:
    """The product, the Add of a constant vector and the activation that follow it and stay its epilogue.

    Empty where the product adds something else itself, or the graph returns the result.
    """
    node, width = product.node, product.sides[1]
    c = node.inputs[2] if len(node.inputs) > 2 else None
    if c is not None and not _is_vector(c, width):
        return []
    chain = [node]
    follower = only_consumer(node.outputs[0])
    if follower is not None and c is None and (follower.op_type, follower.domain) == ("Add", ""):
        other = next((v for v in follower.inputs if v is not node.outputs[0]), None)
        if other is not None and _is_vector(other, width):
            chain.append(follower)
            follower = only_consumer(follower.outputs[0])
    if follower is not None and follower.op_type in ("Relu", "Gelu") and follower.domain == "":
        chain.append(follower)
    return [] if chain[-1].outputs[0].is_graph_output() else chain


def _is_vector(value: ir.Value, width: int) -> bool:
    return is_constant(value) and value.const_value.shape.numpy() == (width,)  # type: ignore[union-attr]


def _fill_depth(graph: ir.Graph, product: _Product, rank: int) -> None:
    node, x, missing = product.node, product.x, product.missing(product.sides[0])
    new = NewNodes(graph, node)
    pads = new.constant(np.array([0] * (2 * rank - 1) + [missing], np.int64))
    node.replace_input_with(0, new.add("Pad", [x, pads], x.dtype))
    node.replace_input_with(1, _padded(new, product.w, product.depth, missing))


def _fill_width(graph: ir.Graph, product: _Product, chain: list[ir.Node]) -> None:
    width = product.sides[1]
    missing, new = product.missing(width), NewNodes(graph, chain[0])
    for node in chain:
        for position, value in enumerate(node.inputs):
            if value is product.w:
                node.replace_input_with(position, _padded(new, value, 1 - product.depth, missing))
            elif value is not None and _is_vector(value, width):
                node.replace_input_with(position, _padded(new, value, 0, missing))
        node.outputs[0].shape = None
    wide, after = chain[-1].outputs[0], NewNodes(graph, chain[-1], after=chain[-1])
    uses = list(wide.uses())
    ends = [after.constant(np.array([number], np.int64)) for number in (0, width, -1)]
    cut = after.add("Slice", [wide, *ends], wide.dtype)
    for user, position in uses:
        user.replace_input_with(position, cut)


def _padded(new: NewNodes, constant: ir.Value, axis: int, missing: int) -> ir.Value:
    tensor = constant.const_value
    assert tensor is not None
    dims = list(tensor.shape.numpy())
    dims[axis] += missing

    def evaluate() -> np.ndarray:
        return np.pad(tensor.numpy(), [(0, missing * (k == axis)) for k in range(len(dims))])

    return new.lazy(f"{constant.name}/aligned", evaluate, tensor.dtype, dims)


RULES = (Pass(lambda model, scope: align(model.graph, scope) if scope.gpu else 0),)
