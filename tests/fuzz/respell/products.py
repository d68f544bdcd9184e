"""Products and convolutions in other nodes: several in one, as Einsum, with the padding apart."""

from __future__ import annotations

import itertools

import numpy as np
import onnx_ir as ir

from tests.fuzz.respell.building import Builder
from tests.fuzz.respell.spelling import constant_of, rank_of, spells


@spells("MatMul")
def joined_products(b: Builder, node: ir.Node) -> ir.Value | None:
    """All products of one operand with matrices as one, and its parts by Split or Slices.

    Of float16 and equally wide matrices: in float32 ONNX Runtime's Attention has the products, and of other widths
    separate ones are not always merged.
    """
    x = node.inputs[0]
    assert x is not None
    if x.dtype != ir.DataType.FLOAT16:
        return None
    products = [user for user in x.consumers() if _matrix_of(user, x) is not None]
    others = [user for user in x.consumers() if user not in products and user.outputs[0].uses()]
    if node not in products or len(products) < 2 or len(products) != len(set(products)) or any(map(_is_view, others)):
        return None  # a view may be of another product's rows
    matrices = [_matrix_of(product, x) for product in products]
    columns = [matrix.shape[1] for matrix in matrices if matrix is not None]
    if len(set(columns)) > 1:
        return None
    joined = np.concatenate([matrix for matrix in matrices if matrix is not None], axis=1)
    # At the first product's place, so that every reader of a part is downstream.
    first = min(products, key=list(b.graph).index)
    at_first = Builder(b.graph, b.rng, first)
    whole, axis = at_first.op("MatMul", x, at_first.constant(joined, x.dtype)), rank_of(x) - 1
    if b.rng.random() < 0.5:
        parts = list(at_first.parts("Split", len(columns), whole, at_first.constant(columns), axis=axis))
    else:
        bounds = np.cumsum([0, *columns]).tolist()
        parts = [
            at_first.op("Slice", whole, *(at_first.constant([n]) for n in (low, high, axis)))
            for low, high in itertools.pairwise(bounds)
        ]
    own = None
    for product, part in zip(products, parts, strict=True):
        part.shape, part.type = product.outputs[0].shape, product.outputs[0].type
        if product is node:
            own = part
        else:
            product.outputs[0].replace_all_uses_with(part, replace_graph_outputs=True)
    return own


def _is_view(node: ir.Node) -> bool:
    return node.op_type in ("Reshape", "Flatten")


def _matrix_of(node: ir.Node, x: ir.Value) -> np.ndarray | None:
    """The constant matrix that a product multiplies x with."""
    if node.op_type != "MatMul" or node.domain != "" or node.inputs[0] is not x or not node.outputs[0].uses():
        return None
    tensor = constant_of(node.inputs[1])
    return None if tensor is None or len(tensor.shape) != 2 else tensor.numpy()


@spells("MatMul")
def einsum_of_matrix(b: Builder, node: ir.Node) -> ir.Value | None:
    """x w as Einsum, whose weight may lie with its columns first."""
    x, weight = node.inputs[0], constant_of(node.inputs[1])
    if weight is None or len(weight.shape) != 2 or rank_of(x) not in (2, 3):
        return None
    rows = "ab"[: rank_of(x) - 1]
    if b.rng.random() < 0.5:
        return b.op("Einsum", x, node.inputs[1], equation=f"{rows}i,io->{rows}o")
    turned = b.constant(np.ascontiguousarray(weight.numpy().T), weight.dtype)
    return b.op("Einsum", x, turned, equation=f"{rows}i,oi->{rows}o")


@spells("MatMul")
def einsum_of_heads(b: Builder, node: ir.Node) -> ir.Value | None:
    """q k^T and p v as Einsum; k is read before its Transpose."""
    x, y = node.inputs
    if any(constant_of(v) is not None or rank_of(v) != 4 for v in node.inputs):
        return None
    assert y is not None
    turned = y.producer()
    perm = () if turned is None or turned.op_type != "Transpose" else turned.attributes.get_ints("perm", ())
    if turned is not None and tuple(perm) == (0, 1, 3, 2):
        return b.op("Einsum", x, turned.inputs[0], equation="bhqd,bhkd->bhqk")
    return b.op("Einsum", x, y, equation="bhij,bhjk->bhik")


@spells("Conv")
def padding_apart(b: Builder, node: ir.Node) -> ir.Value | None:
    """A convolution's pads as a Pad of zeros."""
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    pads = list(attributes.pop("pads", None) or ())
    if not any(pads):
        return None
    x, half = node.inputs[0], len(pads) // 2
    if b.rng.random() < 0.5:
        padded = b.op("Pad", x, b.constant([0, 0, *pads[:half], 0, 0, *pads[half:]]))
    else:
        assert x is not None
        axes = b.constant(list(range(2, 2 + half)))
        padded = b.op("Pad", x, b.constant(pads), b.constant(np.zeros(()), x.dtype or ir.DataType.FLOAT), axes)
    return b.op("Conv", padded, *node.inputs[1:], **attributes)
