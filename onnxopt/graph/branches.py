"""The branches of If, and the pass that moves Casts of results into them, where they meet what computes the results.

    Cast(If(c) {a} {b}) -> If(c) {Cast(a)} {Cast(b)}        where all that reads the result are Casts to one dtype

No bit changes: one branch runs.
"""

from __future__ import annotations

import onnx_ir as ir


def branches_of(node: ir.Node) -> list[ir.Graph]:
    """The branches of an If; none of other nodes."""
    if node.domain != "" or node.op_type != "If":
        return []
    return [a.as_graph() for a in node.attributes.values() if a.type == ir.AttributeType.GRAPH]


class BranchCastsPass(ir.passes.InPlacePass):
    """Moves them, in place. Results that other operators or the graph's outputs read stay as they are."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Move the Casts of all results that have no other readers."""
        modified = False
        for node in list(model.graph.all_nodes()):
            for position in range(len(node.outputs)) if branches_of(node) else ():
                modified |= _move(node, position)
        return ir.passes.PassResult(model, modified)


def _move(node: ir.Node, position: int) -> bool:
    result = node.outputs[position]
    casts = [use.node for use in result.uses()]
    targets = {cast.attributes.get_int("to", 0) for cast in casts}
    if result.is_graph_output() or len(targets) != 1 or not all(map(_is_plain_cast, casts)):
        return False
    dtype = ir.DataType(targets.pop())
    for branch in branches_of(node):
        value = branch.outputs[position]
        cast = ir.node("Cast", [value], {"to": dtype.value}, num_outputs=1)
        cast.outputs[0].type, cast.outputs[0].shape = ir.TensorType(dtype), value.shape
        branch.append(cast)
        branch.outputs[position] = cast.outputs[0]
    result.type = ir.TensorType(dtype)
    for cast in casts:
        cast.outputs[0].replace_all_uses_with(result, replace_graph_outputs=True)
        assert cast.graph is not None
        cast.graph.remove(cast, safe=True)
    return True


def _is_plain_cast(node: ir.Node) -> bool:
    return node.domain == "" and node.op_type == "Cast" and "saturate" not in node.attributes
