"""Views downstream of attention whose result is cast to float32 (sdpa.py) come before that Cast.

    Transpose | Reshape (Cast(x)) -> Cast(Transpose | Reshape (x))          x: an Sdpa's result, also guarded or viewed

The views of heads meet those of its operator then, and cancel.
"""

from __future__ import annotations

import onnx_ir as ir
from onnxscript.rewriter import MatchContext, MatchResult, RewriteRuleClassBase

from onnxopt.graph.passes.rooted import Rooted
from onnxopt.graph.rewrite.rule_sets import RuleSet
from onnxopt.graph.shapes.contrib_schemas import DOMAIN

_VIEWS = ("Transpose", "Reshape")
_AFTER = {"Transpose": 0, "Reshape": 0, "Where": 2}  # operators after an Sdpa, with the position of its result


class WidenedView(RewriteRuleClassBase):
    """The rule above, for one operator."""

    def __init__(self, op_type: str) -> None:
        super().__init__(f"Widened{op_type}")
        self._op_type = op_type

    def pattern(self, op, x):
        wide = op.Cast(x, to=int(ir.DataType.FLOAT))
        return getattr(op, self._op_type)(wide, _allow_other_inputs=True, _allow_other_attributes=True, _outputs=["y"])

    def check(self, context: MatchContext, x, y):
        node = x.producer()
        while node is not None and node.domain == "" and node.op_type in _AFTER:
            node = node.inputs[_AFTER[node.op_type]].producer()
        attended = node is not None and (node.domain, node.op_type) == (DOMAIN, "Sdpa")
        return MatchResult() if attended else MatchResult().fail(f"`{x.name}` is no result of attention")

    def rewrite(self, op, x, y):
        node = y.producer()
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        return op.Cast(getattr(op, self._op_type)(x, *node.inputs[1:], **attributes), to=ir.DataType.FLOAT)


RULES = (RuleSet(lambda _: [Rooted(op_type, WidenedView.rule(op_type)) for op_type in _VIEWS], counted=False),)
