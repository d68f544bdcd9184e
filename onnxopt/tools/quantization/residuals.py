"""The other operand of an Add after a quantized convolution is quantized too, so that it is no map of floats.

    Conv -> Add(., v) -> Relu -> Q        v is quantized, with the Q that a convolution reads where there is one

The convolution's own result is not: its kernel adds the residual to what it has not rounded yet.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from onnxopt.graph.codes import is_dequantize, is_quantize
from onnxopt.graph.match import only_consumer


def sums(model: ir.Model, convolutions: Collection[str]) -> list[str]:
    """The names of the Adds of a map to the result of one of these convolutions, which nothing else reads."""
    return [
        str(node.name) for node in model.graph
        if (node.domain, node.op_type) == ("", "Add") and node.name and not any(map(_is_constant, node.inputs))
        and any(_convolution(v, convolutions) is not None for v in node.inputs) and node.inputs[0] is not node.inputs[1]
    ]  # fmt: skip


def unround(model: ir.Model, added: Collection[str]) -> None:
    """Let each of these Adds read the result of its first convolution, not what its codes stand for, in place."""
    order = {node: k for k, node in enumerate(model.graph)}
    for node in [n for n in model.graph if n.name in added]:
        rounded = [(order[c], k, c) for k, v in enumerate(node.inputs) if (c := _rounded(v)) is not None]
        if rounded:
            _, position, convolution = min(rounded, key=lambda row: row[0])
            node.replace_input_with(position, convolution.outputs[0])


def _is_constant(value: ir.Value | None) -> bool:
    return value is None or value.const_value is not None


def _convolution(value: ir.Value | None, names: Collection[str]) -> ir.Node | None:
    node = None if value is None else value.producer()
    if node is None or node.op_type != "Conv" or node.name not in names or only_consumer(node.outputs[0]) is None:
        return None
    return node


def _rounded(value: ir.Value | None) -> ir.Node | None:
    """The convolution before a Q and a DQ that nothing else reads."""
    dequantize = None if value is None else value.producer()
    quantize = dequantize.inputs[0].producer() if is_dequantize(dequantize) and dequantize.inputs[0] else None  # type: ignore[union-attr]
    if value is None or quantize is None or not is_quantize(quantize) or only_consumer(value) is None:
        return None
    node = None if quantize.inputs[0] is None else quantize.inputs[0].producer()
    private = all(only_consumer(v) is not None for v in (quantize.outputs[0], quantize.inputs[0]) if v is not None)
    return node if private and node is not None and node.op_type == "Conv" else None
