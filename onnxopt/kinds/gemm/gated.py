"""Gate and up of a gated MLP: one product with packed codes, whose halves are multiplied behind an activation.

g, u = Split(product, 2)    y = Mul(Mul(g, Sigmoid(g)), u) | Mul(Gelu(g), u)
"""

from __future__ import annotations

import onnx_ir as ir

from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.convolution import activations
from onnxopt.kinds.gemm.growing import GrowingGemm


def take(gemm: GrowingGemm, shapes: Shapes) -> bool:
    """Absorb what multiplies the halves of a packed product's columns. False where it is not all there."""
    plain = gemm.residual is None and not gemm.residual_shape and gemm.activation == "none" and not gemm.parts
    if gemm.packed is None or not plain:
        return False
    split = _reader(gemm.output, "Split")
    halves = None if split is None else _halves(gemm, split, shapes)
    if split is None or halves is None:
        return False
    gate, up = halves
    nodes, name = activations.gated(gate), "silu"
    if not nodes:
        nodes, name = _gelu(gate), "gelu_tanh"
    elif activations.of(gate, nodes, shapes) != activations.Activation(name):
        return False
    if not nodes:
        return False
    product = _reader(nodes[-1].outputs[0], "Mul")
    if product is None or set(product.inputs) != {nodes[-1].outputs[0], up} or _reader(up, "Mul") is not product:
        return False
    gemm.nodes += [split, *nodes, product]
    gemm.output, gemm.gate = product.outputs[0], name
    return True


def _halves(gemm: GrowingGemm, split: ir.Node, shapes: Shapes) -> tuple[ir.Value, ir.Value] | None:
    of = shapes.dims(gemm.output)
    if not of or split.attributes.get_int("axis", 0) not in (-1, len(of) - 1) or len(split.outputs) != 2:
        return None
    columns, widths = of[-1], [dims[-1] if (dims := shapes.dims(v)) else None for v in split.outputs]
    if not isinstance(columns, int) or columns % 2 or widths != [columns // 2] * 2:
        return None
    return split.outputs[0], split.outputs[1]


def _gelu(gate: ir.Value) -> list[ir.Node]:
    """The tanh form of GELU; none where something else reads the value."""
    gelu = _reader(gate, "Gelu")
    return [gelu] if gelu is not None and gelu.attributes.get_string("approximate", "none") == "tanh" else []


def _reader(value: ir.Value, op_type: str) -> ir.Node | None:
    """The only reader of a value where it is this ONNX operator."""
    uses = list(value.uses())
    if len(uses) != 1 or value.is_graph_output():
        return None
    node = uses[0].node
    return node if node.op_type == op_type and node.domain == "" else None
