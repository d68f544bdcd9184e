"""Every operator of com.microsoft that was fused from standard ones becomes these again, so that rules know one form.

Each decomposition computes what ONNX Runtime's kernels compute. What nothing fuses in the end is put back
(restore.py). Operators that have no standard form, or whose operands are not known well enough, stay as they are.
"""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from onnxopt.graph.match import is_constant
from onnxopt.graph.passes.contrib.activations import ACTIVATIONS
from onnxopt.graph.passes.contrib.anchors import ORIGINALS, anchor_of, give
from onnxopt.graph.passes.contrib.attention import ATTENTION
from onnxopt.graph.passes.contrib.building import Decomposition, is_read, standard_form, uncast
from onnxopt.graph.passes.contrib.norms import NORMS
from onnxopt.graph.passes.contrib.products import PRODUCTS
from onnxopt.graph.passes.unique_names import UniqueNamesPass
from onnxopt.graph.shapes.contrib_rules import BLOCKED, CONTRIB
from onnxopt.graph.shapes.infer import infer

FIRST_OPSET = 20  # of Gelu
_DECOMPOSITIONS: dict[str, Decomposition] = {**ACTIVATIONS, **NORMS, **PRODUCTS, **ATTENTION}


@dataclasses.dataclass(frozen=True, eq=False)
class Original:
    """A node that was decomposed. outputs: anchors, None where unread.

    inputs: anchors, or constants. names: of all outputs. narrowed: positions of inputs that are int32, where the
    anchor is that of int64.
    """

    op_type: str
    name: str
    attributes: tuple[ir.Attr, ...]
    inputs: tuple[object, ...]
    outputs: tuple[object, ...]
    names: tuple[str, ...]
    narrowed: frozenset[int]

    @property
    def is_attention(self) -> bool:
        return self.op_type in ATTENTION and self.op_type != "RotaryEmbedding"


class DecomposeContribPass(ir.passes.InPlacePass):
    """The pass, which infers the shapes of a model that has such operators."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        if model.opset_imports.get("", 0) < FIRST_OPSET:
            return ir.passes.PassResult(model, False)
        total, changed = 0, True
        while changed and any(map(_decomposition, model.graph.all_nodes())):
            UniqueNamesPass()(model)
            infer(model).write()  # again, as nothing is known of most results of operators that are fused
            nodes = [node for graph in model.graphs() for node in graph if _decomposition(node)]
            changed = sum(map(_decomposed, nodes)) > 0
            total += changed
        return ir.passes.PassResult(model, total > 0)


def may_apply(model: ir.Model) -> bool:
    """Whether a model has operators that the pass may decompose."""
    return any(map(_decomposition, model.graph.all_nodes()))


def note_of_blocks(model: ir.Model) -> str | None:
    """What a user should know of operators that ONNX Runtime wrote for one CPU's vectors; None without any."""
    count = sum(node.domain == BLOCKED for node in model.graph.all_nodes())
    if not count:
        return None
    return (
        f"{count} nodes of {BLOCKED} stay, which ONNX Runtime wrote for one CPU when it saved the model; "
        "give the model that it was saved from, or save it with ORT_ENABLE_EXTENDED"
    )


def _decomposition(node: ir.Node) -> Decomposition | None:
    return _DECOMPOSITIONS.get(node.op_type) if node.domain == CONTRIB else None


def _decomposed(node: ir.Node) -> bool:
    """Replace a node, if its operands allow it."""
    decomposition = _decomposition(node)
    form = None if decomposition is None else standard_form(node, decomposition)
    if form is None:
        return False
    op, results = form
    operands = [None if v is None else uncast(v) for v in node.inputs]
    original = Original(
        op_type=node.op_type,
        name=node.name or "",
        attributes=tuple(node.attributes.values()),
        inputs=tuple(None if v is None else _anchored(v) for v in operands),
        outputs=tuple(_anchored(v) if is_read(v) else None for v in node.outputs),
        names=tuple(value.name or "" for value in node.outputs),
        narrowed=frozenset(k for k, v in enumerate(operands) if v is not node.inputs[k]),
    )

    def note(old: ir.Value, new: ir.Value) -> None:
        give(new, old)
        new.meta[ORIGINALS] = (*new.meta.get(ORIGINALS, ()), original)

    op.replace(results, note)
    return True


def _anchored(value: ir.Value) -> object:
    return value.const_value if is_constant(value) else anchor_of(value)
