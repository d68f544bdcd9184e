"""Gates of squeeze-excites that products of rows compute, as 1x1 convolutions of maps of one pixel.

    View(f(Gemm(h(Gemm(View(mean(x)), v, a)), w, b))) -> f(Conv(h(Conv(mean(x), v, a)), w, b))      that a Mul reads

f and h are elementwise. Keras' Dense and PyTorch's Linear give such gates. As convolutions they become one kernel with
the depthwise convolution before them, and may scale weights instead of the map. Heads of classifiers stay products.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from onnxopt.costs.squeeze_excite import numbers
from onnxopt.graph.layout.forms import CONVOLVED
from onnxopt.graph.layout.orders import TO_NCHW, TO_NHWC
from onnxopt.graph.match import integers, is_constant, is_private
from onnxopt.graph.passes.new_nodes import NewNodes
from onnxopt.graph.rewrite.rule_sets import Pass
from onnxopt.graph.shapes.infer import Knowledge

_VIEWS = frozenset({"Flatten", "Reshape", "Squeeze", "Unsqueeze"})
_ELEMENTWISE = frozenset(
    {"Add", "Clip", "Div", "Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "Mul", "Relu", "Sigmoid",
     "Softplus", "Tanh"}
)  # fmt: skip
_MAX_NODES = 8  # elementwise, after one product
_MAX_BYTES = numbers().max_weight_bytes  # of both weights, as those of a squeeze-excite's kernel


class _Product(NamedTuple):
    """rows: what is multiplied. weight: [K, C]. result: with the bias. after: elementwise nodes of the result."""

    rows: ir.Value
    weight: np.ndarray
    bias: ir.Value | None
    result: ir.Value
    after: tuple[ir.Node, ...] = ()


class _Gate(NamedTuple):
    """mean: the node that computes it, over these axes. rows, view: the gate with two dims and four. last: in NHWC."""

    mean: ir.Node
    axes: list[int]
    first: _Product
    second: _Product
    rows: ir.Value
    view: ir.Value
    last: bool


def to_convolutions(graph: ir.Graph, inferred: Knowledge) -> int:
    """Change such gates in place; how many. Nodes without use remain."""
    count = 0
    for node in [n for n in graph if n.op_type == "Mul" and n.domain == ""]:
        for value in dict.fromkeys(node.inputs):
            gate = None if value is None else _gate(value, node.outputs[0], inferred)
            if gate is not None:
                _replace(graph, gate)
                count += 1
    return count


def _gate(value: ir.Value, product: ir.Value, inferred: Knowledge) -> _Gate | None:
    dims, scaled = inferred.dims(value), inferred.dims(product)
    if dims is None or scaled is None or len(dims) != 4 or len(scaled) != 4 or dims == scaled:
        return None
    last = dims[1] == dims[2] == 1
    if not last and not dims[2] == dims[3] == 1:
        return None
    rows = _before_views(value)
    if rows is None or inferred.dims(rows) != (dims[0], dims[3 if last else 1]):
        return None
    second = _stage(rows, inferred)
    first = _stage(second.rows, inferred) if second is not None and is_private(second.rows) else None
    if first is None or second is None or first.weight.nbytes + second.weight.nbytes > _MAX_BYTES:
        return None
    pooled = _before_views(first.rows, shared=True)
    mean = None if pooled is None else pooled.producer()
    axes = None if mean is None else _mean_axes(mean, inferred)
    if mean is None or axes is None:
        return None
    of = inferred.dims(mean.inputs[0]) or ()
    if inferred.dims(first.rows) != (of[0], of[1 if axes == [2, 3] else 3]):
        return None
    return _Gate(mean, axes, first, second, rows, value, last)


def _before_views(value: ir.Value, shared: bool = False) -> ir.Value | None:
    """What views of a value begin with; None where other nodes read what is between. shared: where they may."""
    while (node := value.producer()) is not None and node.op_type in _VIEWS and node.domain == "":
        source = node.inputs[0]
        if source is None or not (shared or is_private(value)):
            return None
        value = source
    return value if shared or is_private(value) else None


def _stage(value: ir.Value, inferred: Knowledge) -> _Product | None:
    """The product that a value is an elementwise function of."""
    dims, inside, pending = inferred.dims(value), set[ir.Node](), [value]
    product: _Product | None = None
    while pending:
        at = pending.pop()
        node = at.producer()
        if node is None or node.domain != "" or inferred.dims(at) != dims or at.dtype not in CONVOLVED:
            return None
        if node in inside or (product is not None and product.result is at):
            continue
        stage = _product(node, inferred)
        if stage is not None:
            if product is not None:
                return None
            product = stage
        elif node.op_type not in _ELEMENTWISE or len(inside) == _MAX_NODES:
            return None
        else:
            inside.add(node)
            pending += [v for v in node.inputs if v is not None and not _is_number(v)]
    if product is None:
        return None
    hidden = {product.result, *(n.outputs[0] for n in inside)} - {value}
    readers = {reader for v in hidden for reader in v.consumers()}
    if not readers <= inside or any(v.is_graph_output() for v in hidden):
        return None
    return product._replace(after=tuple(inside))


def _product(node: ir.Node, inferred: Knowledge) -> _Product | None:
    """The product of rows by a constant that a node is, or adds a constant to."""
    bias: ir.Value | None = None
    result = node.outputs[0]
    if node.op_type == "Add":
        operands = [v for v in node.inputs if v is not None and not is_constant(v)]
        bias = next((v for v in node.inputs if is_constant(v)), None)
        inner = operands[0].producer() if len(operands) == 1 and is_private(operands[0]) else None
        if inner is None or inner.op_type != "MatMul":
            return None
        node = inner
    rows, weight = (*node.inputs, None, None)[:2]
    dims = inferred.dims(rows)
    if node.domain != "" or node.op_type not in ("MatMul", "Gemm") or rows is None or dims is None or len(dims) != 2:
        return None
    if not is_constant(weight) or weight is None or weight.const_value is None or len(weight.const_value.shape) != 2:
        return None
    if node.op_type == "Gemm":
        factors = [node.attributes.get_float(name, 1.0) for name in ("alpha", "beta")]
        if node.attributes.get_int("transA", 0) or factors != [1.0, 1.0]:
            return None
        bias = node.inputs[2] if len(node.inputs) > 2 else None
    array = weight.const_value.numpy()
    array = array if node.attributes.get_int("transB", 0) else array.T
    if bias is not None and (not is_constant(bias) or bias.const_value.size != len(array)):  # type: ignore[union-attr]
        return None
    return _Product(rows, array, bias, result)


def _is_number(value: ir.Value) -> bool:
    return is_constant(value) and value.const_value is not None and value.const_value.size == 1


def _mean_axes(node: ir.Node, inferred: Knowledge) -> list[int] | None:
    """Height and width of the map that a node takes the mean over; None for other nodes."""
    dims = inferred.dims(node.inputs[0]) if node.inputs else None
    if node.domain != "" or dims is None or len(dims) != 4:
        return None
    if node.op_type == "GlobalAveragePool":
        return [2, 3]
    if node.op_type != "ReduceMean":
        return None
    stated = integers(node.inputs[1]) if len(node.inputs) > 1 else list(node.attributes.get_ints("axes", ()))
    axes = sorted(axis % 4 for axis in stated or ())
    return axes if axes in ([1, 2], [2, 3]) else None


def _replace(graph: ir.Graph, gate: _Gate) -> None:
    dtype, mean = gate.rows.dtype, gate.mean
    new = _before(graph, gate.first.result)
    at = mean.outputs[0]
    if mean.op_type == "ReduceMean" and not mean.attributes.get_int("keepdims", 1):
        axes = new.constant(np.array(gate.axes, np.int64))
        at = new.add("ReduceMean", [mean.inputs[0], axes], dtype, [ir.AttrInt64("keepdims", 1)])
    if gate.axes == [1, 2]:
        at = new.add("Transpose", [at], dtype, [ir.AttrInt64s("perm", TO_NCHW)])
    for product, end in ((gate.first, gate.second.rows), (gate.second, gate.rows)):
        new = _before(graph, product.result)
        operands = [at, new.constant(np.ascontiguousarray(product.weight)[:, :, None, None])]
        if product.bias is not None and product.bias.const_value is not None:
            operands.append(new.constant(product.bias.const_value.numpy().reshape(-1)))
        convolved = new.add("Conv", operands, dtype, [ir.AttrInt64s("kernel_shape", [1, 1])])
        product.result.replace_all_uses_with(convolved)
        for node in product.after:
            node.outputs[0].shape = None
        at = convolved if end is product.result else end
    if gate.last:
        at = _before(graph, gate.view).add("Transpose", [at], dtype, [ir.AttrInt64s("perm", TO_NHWC)])
    gate.view.replace_all_uses_with(at)


def _before(graph: ir.Graph, value: ir.Value) -> NewNodes:
    node = value.producer()
    assert node is not None
    return NewNodes(graph, node)


RULES = (Pass(lambda model, scope: to_convolutions(model.graph, scope.inferred)),)
