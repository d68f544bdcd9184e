"""The pass: nodes around convolutions compute in channels last, with Transposes where that meets the rest.

    Conv(x, w, b) -> Transpose(Conv(Transpose(x'), turned(w'), b))        x' as [N, H, W, C]

Inputs and outputs of the graph keep their layout. Attention and control flow stay NCHW. Convolutions of other dtypes
than floats stay as they are, and those of codes that no kernel multiplies; those of one dim have two here (one_dim.py),
and those of three compute in [N, D, H, W, C].
"""

from __future__ import annotations

import onnx_ir as ir

from onnxopt.graph.layout import group_norms
from onnxopt.graph.layout.forms import CONVOLUTIONS, form
from onnxopt.graph.layout.network import choose, reachable
from onnxopt.graph.layout.write import Writer
from onnxopt.graph.shapes.infer import Knowledge


def assign(model: ir.Model, inferred: Knowledge, *, codes: bool = False) -> int:
    """Change the main graph in place; the number of convolutions that are in channels last now.

    inferred: the shapes of this model, which are also written on its values. codes: whether kernels multiply the codes
    of convolutions. Nodes without use remain.
    """
    if not any(node.op_type in CONVOLUTIONS and node.domain == "" for node in model.graph):
        return 0
    opset = model.opset_imports.get("", 0)
    by_node = {node: f for node in model.graph if (f := form(node, opset, codes=codes)) is not None}
    by_node |= group_norms.forms(model.graph, opset)
    forms = reachable({node: by_node[node] for node in model.graph if node in by_node})
    chosen = choose(forms, inferred)
    if not chosen:
        return 0
    writer = Writer(model.graph)
    for node in list(model.graph):
        writer.take(node, forms[node] if node in chosen else None)
    return sum(node.op_type in CONVOLUTIONS for node in chosen)
