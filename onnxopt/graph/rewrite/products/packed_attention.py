"""q, k and v that are parts of one product already, as exporters and onnxsim write them.

    MultiHeadAttention(parts of x W + b) -> Attention(x, W', b')

W' has the columns of W in the order of q, k and v. Views of any kind may cut the product apart (parts_of_columns.py).
Attention runs the product itself, and splits it in the kernel that adds the bias; sizes are those of SelfAttention.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import MatchContext, MatchResult

from onnxopt.graph.match import is_constant, is_private
from onnxopt.graph.passes.rooted import Rooted
from onnxopt.graph.rewrite.products.merging import SelfAttention
from onnxopt.graph.rewrite.products.parts_of_columns import Part, part_of
from onnxopt.graph.rewrite.rule_sets import RuleSet
from onnxopt.graph.shapes.contrib_schemas import CONTRIB

_ROWS = {3: (0, 1), 4: (0, 2)}  # axes that count sequences and tokens in operands of MultiHeadAttention, by rank


@dataclasses.dataclass(frozen=True)
class _Packed:
    """The product whose parts are q, k and v. columns: those of each, in its order."""

    x: ir.Value
    weight: ir.Value
    bias: ir.Value | None
    columns: tuple[np.ndarray, ...]

    def order(self) -> np.ndarray:
        return np.concatenate(self.columns)

    def widths(self) -> list[int]:
        return [part.size for part in self.columns]


class PackedSelfAttention(SelfAttention):
    """q, k and v of one MultiHeadAttention, which are parts of one product."""

    def pattern(self, op, q, k, v):
        return op.MultiHeadAttention(
            q, k, v, _domain=CONTRIB, _allow_other_inputs=True, _allow_other_attributes=True, _outputs=["y"]
        )

    def check(self, context: MatchContext, q, k, v, y, **_):
        result, node = MatchResult(), y.producer()
        packed = _packed(node)
        if isinstance(packed, str):
            return result.fail(packed)
        if reason := self._unlike_attention(packed.x, packed.widths(), node):
            return result.fail(reason)
        if self._is_ours(packed.x, packed.widths(), node):
            return result.fail("onnxopt's kernel of attention reads the parts where they are")
        if not self._fits_attention(packed.x, (packed.weight,), node):
            return result.fail("Attention would split the product at a higher cost than its parts have")
        return result

    def rewrite(self, op, q, k, v, y, **_):
        node = y.producer()
        packed = _packed(node)
        assert isinstance(packed, _Packed)
        tensor, order = _tensor(packed.weight), packed.order()
        if (order == np.arange(order.size)).all():
            weight = packed.weight
        else:
            columns = np.ascontiguousarray(tensor.numpy()[:, order])
            weight = op.initializer(self._joiner.constant(columns, tensor.dtype, f"{packed.weight.name}/by_part"))
        bias = np.zeros(order.size, tensor.dtype.numpy())
        if packed.bias is not None:
            bias = _tensor(packed.bias).numpy()[order]
        bias = op.initializer(ir.Tensor(bias, dtype=tensor.dtype, name=f"{packed.weight.name}/bias_by_part"))
        return self._attention(op, node, packed.x, weight, bias, packed.widths())


def _packed(attention: ir.Node) -> _Packed | str:
    """The product whose parts an attention reads, or why there is none."""
    parts: list[Part] = []
    for value in attention.inputs[:3]:
        part = part_of(value)
        if isinstance(part, str):
            return part
        if part.rows != _ROWS.get(part.columns.ndim):
            return "the rows of a part are not those of queries and keys"
        parts.append(part)
    product = parts[0].product
    if any(part.product is not product for part in parts):
        return "q, k and v are not parts of one product"
    columns = tuple(part.columns.reshape(-1) for part in parts)
    if product.shape is None or sorted(np.concatenate(columns)) != [*range(int(product.shape[-1]))]:  # type: ignore[arg-type]
        return "q, k and v are not each column of the product once"
    path = frozenset[ir.Node]().union(*(part.path for part in parts))
    for value in (product, *(output for node in path for output in node.outputs)):
        if value.is_graph_output() or not {use.node for use in value.uses()} <= {*path, attention}:
            return f"`{value.name}` has other readers"
    return _of_product(product, columns)


def _of_product(product: ir.Value, columns: tuple[np.ndarray, ...]) -> _Packed | str:
    total, bias = product.producer(), None
    if total is not None and total.op_type == "Add" and total.domain == "":
        constants = [value for value in total.inputs if is_constant(value)]
        others = [value for value in total.inputs if value not in constants]
        if len(constants) != 1 or others[0] is None or not is_private(others[0]):
            return "what is added to the product is not a constant"
        bias, product = constants[0], others[0]
    node = product.producer()
    if node is None or node.op_type != "MatMul" or node.domain != "" or not is_constant(node.inputs[1]):
        return "the parts are not those of a product with a constant"
    x, weight = node.inputs
    assert x is not None and weight is not None
    if x.shape is None or len(x.shape) != 3 or len(_tensor(weight).shape) != 2 or not is_private(weight):
        return f"the weight `{weight.name}` is no matrix of a product of three dims, or has other readers"
    if bias is not None and _tensor(bias).shape.numpy() != _tensor(weight).shape.numpy()[1:]:
        return f"the bias `{bias.name}` is not a vector with an element for each column"
    return _Packed(x, weight, bias, columns)


def _tensor(value: ir.Value) -> ir.TensorProtocol:
    assert value.const_value is not None
    return value.const_value


PARTS = (
    RuleSet(
        lambda scope: [Rooted("MultiHeadAttention", PackedSelfAttention.rule("packed_attention", scope.joiner, scope))]
    ),
)
