"""Merges equal nodes, except those whose results may differ between runs or between nodes."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import CommonSubexpressionEliminationPass

_RANDOM = frozenset({"Bernoulli", "Dropout"})  # onnx_ir's pass knows the other random operators
_MARK = "onnxopt_unique"
_APART = "onnxopt.apart"  # key in ir.Value.meta
_HASHABLE = frozenset(
    {
        ir.AttributeType.INT,
        ir.AttributeType.INTS,
        ir.AttributeType.FLOAT,
        ir.AttributeType.FLOATS,
        ir.AttributeType.STRING,
        ir.AttributeType.STRINGS,
        ir.AttributeType.TENSOR,
    }
)


def keep_apart(value: ir.Value) -> None:
    """Let the node that computes a value stay as it is beside equal ones: a kernel will take each of them in."""
    value.meta[_APART] = True


class MergeEqualNodesPass(ir.passes.InPlacePass):
    """onnx_ir's CommonSubexpressionEliminationPass, without the nodes that it must not merge.

    Nodes of other domains may have state or draw random numbers. Bernoulli and Dropout draw random numbers. Attributes
    such as types cannot be compared, and string tensors would be compared by address. Those nodes, and those that
    `keep_apart` names, get an attribute that makes each of them different while the pass runs.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        marked = [node for node in model.graph if not _comparable(node)]
        for i, node in enumerate(marked):
            node.attributes.add(ir.AttrGraph(_MARK, ir.Graph([], [], nodes=[], name=f"{i}")))
        try:
            return CommonSubexpressionEliminationPass()(model)
        finally:
            for node in marked:
                node.attributes.pop(_MARK)


def _comparable(node: ir.Node) -> bool:
    if node.domain != "" or node.op_type in _RANDOM or any(_APART in value.meta for value in node.outputs):
        return False
    return all(
        not attribute.is_ref()
        and attribute.type in _HASHABLE
        and not (attribute.type == ir.AttributeType.TENSOR and attribute.as_tensor().dtype == ir.DataType.STRING)
        for attribute in node.attributes.values()
    )
