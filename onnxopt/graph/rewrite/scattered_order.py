"""How many values are sorted, or are put back where they came from, is read off these values themselves.

ScatterND(x, Unsqueeze(order, -1), Range(0, n, 1)) -> ScatterND(x, Unsqueeze(order, -1), Range(0, m, 1))
m = Squeeze(Shape(order))
TopK(x, Shape(z)) -> TopK(x, Shape(x))    where x and z are equally long

ScatterND takes as many updates as indices, so n is m. Exporters compute n from the sizes of the model's inputs, and
another layer's values are as many. Without these, all that mixtures of experts do with the order of rows lies behind
the experts' ids (kinds/experts/).
"""

from __future__ import annotations

import onnx_ir as ir
from onnxscript.rewriter import MatchContext, MatchResult, RewriteRuleClassBase

from onnxopt.graph.passes.rooted import Rooted
from onnxopt.graph.rewrite.rule_sets import RuleSet
from onnxopt.graph.shapes.value_dims import dims_of, same


class CountOfOrder(RewriteRuleClassBase):
    def pattern(self, op, x, order, axes, first, n, step):
        return op.ScatterND(x, op.Unsqueeze(order, axes), op.Range(first, n, step), _outputs=["y"])

    def check(self, context: MatchContext, order: ir.Value, first: ir.Value, n: ir.Value, step: ir.Value, **_):
        result = MatchResult()
        if not (_is(first, 0) and _is(step, 1)):
            return result.fail("Range does not count from 0 in steps of 1")
        if n.const_value is not None:
            return result.fail(f"`{n.name}` is a constant")
        if order.shape is None or len(order.shape) != 1:
            return result.fail(f"the order `{order.name}` is not known to have one dim")
        squeeze = n.producer()
        shape = squeeze.inputs[0].producer() if squeeze is not None and squeeze.inputs[0] is not None else None
        if shape is not None and shape.op_type == "Shape" and shape.inputs[0] is order:
            return result.fail(f"`{n.name}` is the number of `{order.name}` already")
        return result

    def rewrite(self, op, x, order, axes, first, step, y: ir.Value, **_):
        counted = op.Range(first, op.Squeeze(op.Shape(order)), step)
        node = y.producer()
        attributes = {} if node is None else {name: attribute.value for name, attribute in node.attributes.items()}
        return op.ScatterND(x, op.Unsqueeze(order, axes), counted, **attributes)


class CountOfSorted(RewriteRuleClassBase):
    def pattern(self, op, x, z):
        return op.TopK(x, op.Shape(z, _allow_other_attributes=True), _allow_other_attributes=True, _outputs=["y", "at"])

    def check(self, context: MatchContext, x: ir.Value, z: ir.Value, **_):
        result = MatchResult()
        if x is z:
            return result.fail("TopK sorts as many values as it has already")
        if any(v.shape is None or len(v.shape) != 1 for v in (x, z)) or not same(dims_of(x)[0], dims_of(z)[0]):
            return result.fail(f"`{x.name}` is not known to be as long as `{z.name}`")
        return result

    def rewrite(self, op, x: ir.Value, y: ir.Value, **_):
        node = y.producer()
        attributes = {} if node is None else {name: attribute.value for name, attribute in node.attributes.items()}
        return op.TopK(x, op.Shape(x, start=0), _outputs=2, **attributes)  # as the exporter writes the first one


def _is(value: ir.Value, number: int) -> bool:
    tensor = value.const_value
    return tensor is not None and tensor.size == 1 and not value.is_graph_input() and tensor.numpy().item() == number


RULES = (
    RuleSet(lambda _: [Rooted("ScatterND", CountOfOrder.rule(remove_nodes=False))]),
    RuleSet(lambda _: [Rooted("TopK", CountOfSorted.rule(remove_nodes=False))]),
)
