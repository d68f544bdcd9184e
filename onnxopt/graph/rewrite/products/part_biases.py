"""Biases of the parts of a product become one bias of the product.

    Split(x W) -> (Add(q, b1), k, Add(v, b3))            ->    Split(Add(x W, [b1, 0, b3]))    also by Slices
    Split(Gemm(x, W, b)) -> (q, Add(Unsqueeze(k), 1))    ->    Split(Gemm(x, W, b + [0, 1])) -> (q, Unsqueeze(k))

DeBERTa adds biases to q and v of one product, and diffusion transformers add 1 to the scales among the parts of a
modulation. A product takes one bias in its kernel, and other kernels read the parts where they are stored. Two biases
are added in float32 and rounded once.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxopt.graph.match import constant, is_constant, is_private, only_consumer, operand
from onnxopt.graph.passes.new_nodes import NewNodes
from onnxopt.graph.rewrite.products.column_parts import Cut, cuts_of, keeps_columns
from onnxopt.graph.rewrite.rule_sets import Pass, Scope

_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE)
_BIAS_OF_GEMM = 2  # its position among the inputs


def _merge(model: ir.Model, _: Scope) -> int:
    return sum(_merge_biases(node) for node in tuple(model.graph) if node.op_type in ("MatMul", "Gemm"))


def _merge_biases(product: ir.Node) -> bool:
    columns = _width(product)
    if columns is None or product.outputs[0].dtype not in _FLOATS:
        return False
    last = _biased(product, columns)
    cuts = cuts_of(last.outputs[0], columns)
    own = _bias(last, columns)
    if cuts is None or own is None:
        return False
    sums = {cut: total for cut in cuts if (total := _sum(cut)) is not None}
    bias = _with_sums(own, cuts, sums)
    if not sums or bias is None:
        return False
    _set_bias(last, bias)
    for total in sums.values():
        term = next(v for v in total.inputs if not is_constant(v))
        assert term is not None
        total.outputs[0].replace_all_uses_with(term, replace_graph_outputs=True)
    return True


def _width(product: ir.Node) -> int | None:
    """How many columns the constant weight of a MatMul or Gemm has, None where there is none."""
    weight = operand(product, 1)
    if product.domain != "" or not is_constant(weight):
        return None
    shape = weight.const_value.shape.numpy()  # type: ignore[union-attr]
    return shape[-2 if product.attributes.get_int("transB", 0) else -1] if len(shape) > 1 else None


def _biased(product: ir.Node, columns: int) -> ir.Node:
    """The node that adds a product's own bias, if anything does; else the product."""
    total = only_consumer(product.outputs[0])
    return product if total is None or _added(total, product.outputs[0], columns) is None else total


def _bias(node: ir.Node, columns: int) -> np.ndarray | None:
    """What the node of `_biased` adds to each column, zeros where it adds nothing; None where that is unknown."""
    dtype = node.outputs[0].dtype
    assert dtype is not None
    if node.attributes.get_float("beta", 1.0) != 1.0:
        return None
    if node.op_type == "Add":
        term = next(v for v in node.inputs if is_constant(v))
    elif (term := operand(node, _BIAS_OF_GEMM)) is None:
        return np.zeros(columns, dtype.numpy())
    bias = constant(term)
    fits = bias is not None and bias.size == columns and bias.shape[-1] == columns
    return bias.reshape(columns) if bias is not None and fits else None


def _sum(cut: Cut) -> ir.Node | None:
    """The Add of a constant that is all that reads a part, maybe after views."""
    value, total = cut.value, only_consumer(cut.value)
    while total is not None and keeps_columns(total, cut.size):
        value = total.outputs[0]
        total = only_consumer(value)
    return None if total is None or _added(total, value, cut.size) is None else total


def _added(total: ir.Node, value: ir.Value, size: int) -> np.ndarray | None:
    """The constant that a node adds to columns, one number or one for each."""
    if total.op_type != "Add" or total.domain != "" or not is_private(value) or value.shape is None:
        return None
    added = constant(total.inputs[1] if total.inputs[0] is value else total.inputs[0])
    if added is None or added.size not in (1, size) or added.ndim > len(value.shape):
        return None
    return added.reshape(-1) if added.size == 1 or added.shape[-1] == size else None


def _with_sums(own: np.ndarray, cuts: list[Cut], sums: dict[Cut, ir.Node]) -> np.ndarray | None:
    """The bias of all columns. None where parts share columns, or a sum is too large for the dtype."""
    bias, covered = own.astype(np.float64 if own.dtype == np.float64 else np.float32), np.zeros(own.size, bool)
    for cut in cuts:
        span = slice(cut.first, cut.first + cut.size)
        if covered[span].any() or cut.first + cut.size > own.size:
            return None
        covered[span] = True
        if cut in sums:
            term = next(v for v in sums[cut].inputs if is_constant(v))
            bias[span] = bias[span] + constant(term).reshape(-1).astype(bias.dtype)  # type: ignore[union-attr]
    with np.errstate(over="ignore"):
        rounded = bias.astype(own.dtype)
    return rounded if np.isfinite(rounded.astype(bias.dtype)).all() else None


def _set_bias(node: ir.Node, bias: np.ndarray) -> None:
    """Make `bias` what the node adds, or what a new Add adds to a MatMul's result."""
    y, graph = node.outputs[0], node.graph
    assert isinstance(graph, ir.Graph)
    if node.op_type == "MatMul":
        readers = {use.node for use in y.uses()}
        new = NewNodes(graph, node, node)
        total = new.add("Add", [y, new.constant(bias)], y.dtype)
        total.shape = None if y.shape is None else y.shape.copy()
        for reader in readers:
            reader.replace_input_with(0, total)
        return
    place = _BIAS_OF_GEMM if node.op_type == "Gemm" else [is_constant(v) for v in node.inputs].index(True)
    node.resize_inputs(max(place + 1, len(node.inputs)))
    node.replace_input_with(place, NewNodes(graph, node).constant(bias))


RULES = (Pass(_merge),)
