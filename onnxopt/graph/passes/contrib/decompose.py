"""Every operator of com.microsoft that was fused from standard ones becomes these again, so that rules know one form.

Each decomposition computes what ONNX Runtime's kernels compute. What nothing fuses in the end is put back
(restore.py). Operators that have no standard form, or whose operands are not known well enough, stay as they are.
"""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from onnxopt.graph.match import is_constant
from onnxopt.graph.passes.contrib.activations import ACTIVATIONS
from onnxopt.graph.passes.contrib.attention import ATTENTION
from onnxopt.graph.passes.contrib.building import Decomposition, Kept, Standard
from onnxopt.graph.passes.contrib.norms import NORMS
from onnxopt.graph.passes.contrib.products import PRODUCTS
from onnxopt.graph.shapes.contrib_schemas import CONTRIB
from onnxopt.graph.shapes.infer import infer

FIRST_OPSET = 20  # of Gelu
ANCHOR = "onnxopt.anchor"  # key of a value's meta: an object that names the value, whatever becomes of the graph
ORIGINAL = "onnxopt.original"  # key of a value's meta: the node that computed it
_DECOMPOSITIONS: dict[str, Decomposition] = {**ACTIVATIONS, **NORMS, **PRODUCTS, **ATTENTION}


@dataclasses.dataclass(frozen=True, eq=False)
class Original:
    """A node that was decomposed. inputs: the anchor of each, or a constant. outputs: anchors, None where unread."""

    op_type: str
    name: str
    attributes: tuple[ir.Attr, ...]
    inputs: tuple[object, ...]
    outputs: tuple[object, ...]

    @property
    def is_attention(self) -> bool:
        return self.op_type in ATTENTION and self.op_type != "RotaryEmbedding"


class DecomposeContribPass(ir.passes.InPlacePass):
    """The pass. It infers the shapes of a model that has such operators, and needs them named."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        if model.opset_imports.get("", 0) < FIRST_OPSET or not any(map(_decomposition, model.graph.all_nodes())):
            return ir.passes.PassResult(model, False)
        infer(model).write()
        nodes = [node for graph in model.graphs() for node in graph if _decomposition(node)]
        return ir.passes.PassResult(model, sum(map(_decomposed, nodes)) > 0)


def _decomposition(node: ir.Node) -> Decomposition | None:
    return _DECOMPOSITIONS.get(node.op_type) if node.domain == CONTRIB else None


def _decomposed(node: ir.Node) -> bool:
    """Replace a node, if its operands allow it."""
    decomposition, op = _decomposition(node), Standard(node)
    assert decomposition is not None and node.graph is not None
    try:
        results = decomposition(op)
    except Kept:
        op.discard()
        return False
    op.place()
    original = Original(
        node.op_type, node.name or "", tuple(node.attributes.values()), tuple(map(_anchored, node.inputs)),
        tuple(_anchored(v) if v.uses() or v.is_graph_output() else None for v in node.outputs),
    )  # fmt: skip
    for old, new in zip(node.outputs, results, strict=False):
        if new is None or not (old.uses() or old.is_graph_output()):
            continue
        new.name, new.type, new.shape = old.name, old.type, old.shape
        new.meta[ANCHOR], new.meta[ORIGINAL] = old.meta[ANCHOR], original
        old.replace_all_uses_with(new, replace_graph_outputs=True)
    node.graph.remove(node, safe=True)
    return True


def _anchored(value: ir.Value | None) -> object:
    if value is None:
        return None
    return value.const_value if is_constant(value) else value.meta.setdefault(ANCHOR, object())
