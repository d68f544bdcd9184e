"""A constant factor on the queries becomes part of the attention operator's scale.

MultiHeadAttention(q * c, k, v; scale) -> MultiHeadAttention(q, k, v; scale * c)

Attention is recognised with a factor that nothing else reads, and a bias that is added behind it. Two functions see to
that first: queries with a factor may also be multiplied by embeddings of positions (`copy_shared_factors`), and scores
may get a bias before their factor (`multiply_biases`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir
from onnxscript.rewriter import MatchContext, MatchResult, RewriteRuleClassBase

from onnxopt.graph.passes.rooted import Rooted
from onnxopt.graph.rewrite.attention import near_misses
from onnxopt.graph.rewrite.attention.attention_nodes import is_for_kernel, keep_for_kernel
from onnxopt.graph.rewrite.attention.attention_operands import scalar
from onnxopt.graph.rewrite.rule_sets import Pass, RuleSet
from onnxopt.graph.shapes.contrib_schemas import CONTRIB


class ScaledQuery(RewriteRuleClassBase):
    def pattern(self, op, q, c, k, v):
        return op.MultiHeadAttention(
            op.Mul(q, c), k, v,
            _domain=CONTRIB, _allow_other_inputs=True, _allow_other_attributes=True, _outputs=["y"],
        )  # fmt: skip

    def check(self, context: MatchContext, q: ir.Value, c: ir.Value, y: ir.Value, **_: ir.Value) -> MatchResult:
        tensor = c.const_value
        if tensor is None or tensor.size != 1 or (q.shape is not None and len(tensor.shape) > len(q.shape)):
            return MatchResult().fail(f"the factor `{c.name}` is not a constant of one element")
        factor = float(tensor.numpy().item())
        if not math.isfinite(factor) or factor == 0:
            return MatchResult().fail(f"the factor `{c.name}` is {factor}")
        return MatchResult()

    def rewrite(self, op, q: ir.Value, c: ir.Value, y: ir.Value, **_: ir.Value):
        node = y.producer()
        assert node is not None and c.const_value is not None
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        attributes["scale"] *= float(c.const_value.numpy().item())
        attended = op.MultiHeadAttention(q, *node.inputs[1:], _domain=CONTRIB, **attributes)
        if is_for_kernel(node):
            keep_for_kernel(attended)
        return attended


def copy_shared_factors(model: ir.Model) -> int:
    """Give the scores of each attention a factor of their own where others read it too. Returns how many.

    Copies that no attention takes in are merged with the other nodes when equal nodes are.
    """
    count = 0
    for softmax, _ in near_misses.softmaxes(model.graph):
        product = near_misses.product_before(softmax)
        for position, operand in enumerate(product.inputs):
            node = None if operand is None else operand.producer()
            if operand is None or node is None or len(operand.uses()) == 1 or not _is_factor(node):
                continue
            attributes = list(node.attributes.values())
            copy = ir.Node("", node.op_type, node.inputs, attributes, name=f"{node.name}_of_{product.name}")
            result = copy.outputs[0]
            result.name, result.type, result.shape = f"{operand.name}_of_{product.name}", operand.type, operand.shape
            product.graph.insert_before(product, copy)  # type: ignore[union-attr]
            product.replace_input_with(position, result)
            count += 1
    return count


def multiply_biases(model: ir.Model) -> int:
    """(scores + bias) c -> scores c + bias c for 0 < c <= 1, and scores - bias -> scores + -bias.

    Returns how many there were. What computes the bias takes the factor in. A larger factor might make an infinity of
    a mask's least number.
    """
    count = 0
    for softmax, _ in near_misses.softmaxes(model.graph):
        scores = near_misses.product_before(softmax).outputs[0]
        value = scores
        while (node := _only_reader(value)) is not None:
            result = node.outputs[0]
            if node.op_type == "Sub" and node.inputs[0] is value:
                bias = _new(node, "Neg", [node.inputs[1]], node.inputs[1])
                _replace(node, _new(node, "Add", [value, bias], result))
                count += 1
            elif node.op_type == "Add" and (factor := _only_reader(result)) is not None and _shrinks(factor, result):
                terms = [
                    _new(factor, factor.op_type, [term if v is result else v for v in factor.inputs], term)
                    for term in node.inputs
                ]
                _replace(factor, _new(factor, "Add", terms, factor.outputs[0]))
                node.graph.remove(node, safe=True)  # type: ignore[union-attr]
                count += 1
            else:
                value = result
                continue
            value = scores  # the factor may stand behind another sum now
    return count


def _only_reader(value: ir.Value) -> ir.Node | None:
    """The one node that reads a value, where it is arithmetic."""
    if len(value.uses()) != 1 or value.is_graph_output():
        return None
    (node,) = value.consumers()
    return node if node.domain == "" and node.op_type in ("Add", "Sub", "Mul", "Div") else None


def _shrinks(node: ir.Node, value: ir.Value) -> bool:
    """Whether a node multiplies a value by a constant above 0 and up to 1."""
    if node.op_type not in ("Mul", "Div") or (node.op_type == "Div" and node.inputs[0] is not value):
        return False
    number = next((n for v in node.inputs if v is not value and (n := scalar(v)) is not None), 0.0)
    return number >= 1 if node.op_type == "Div" else 0 < number <= 1


def _new(place: ir.Node, op_type: str, inputs: Sequence[ir.Value | None], like: ir.Value | None) -> ir.Value:
    """The result of a new node in front of `place`, which has the dtype and shape of `like`."""
    node = ir.Node("", op_type, inputs)
    if like is not None:
        node.outputs[0].type, node.outputs[0].shape = like.type, like.shape
    place.graph.insert_before(place, node)  # type: ignore[union-attr]
    return node.outputs[0]


def _replace(node: ir.Node, value: ir.Value) -> None:
    node.outputs[0].replace_all_uses_with(value)
    node.graph.remove(node, safe=True)  # type: ignore[union-attr]


def _is_factor(node: ir.Node) -> bool:
    return node.domain == "" and node.op_type in ("Mul", "Div") and any(scalar(v) is not None for v in node.inputs)


BEFORE_RECOGNITION = (
    Pass(lambda model, _: multiply_biases(model)),
    Pass(lambda model, _: copy_shared_factors(model), counted=False),
)
RULES = (RuleSet(lambda _: [Rooted("MultiHeadAttention", ScaledQuery.rule())], counted=False),)
