"""Mixtures of experts as the exporter of transformers writes them, from the choice of experts to the sum of results.

rows = x[order / chosen]                    first = rows by expert, times W          (products.py, expert_sort.py)
h = f(first) or f(halves of first)          second = h by expert, times V
y = ReduceSum(Reshape((second * factors[order])[back], [-1, chosen, columns]), 1)
"""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from onnxopt.fusion import eligibility
from onnxopt.fusion.operands import constant
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.experts import expert_sort
from onnxopt.kinds.experts.expert_sort import Nodes, Order
from onnxopt.kinds.experts.products import GroupedProducts, is_number, producer, splits_evenly

_MAX_NODES = 16  # of the activation
_END = 1 << 31  # the end of a Slice that keeps everything behind its start


@dataclasses.dataclass(frozen=True)
class Activation:
    """Elementwise nodes, in no order, of the first product's result or of its two halves, and what makes these.

    interleaved: the halves are the even and the odd columns.
    """

    nodes: tuple[ir.Node, ...]
    operands: tuple[ir.Value, ...]
    result: ir.Value
    interleaved: bool = False


@dataclasses.dataclass(frozen=True)
class Mixture:
    """A whole mixture of experts. nodes: all of them, in no order."""

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    ids: ir.Value
    factors: ir.Value
    first: GroupedProducts
    second: GroupedProducts
    activation: Activation
    chosen: int
    y: ir.Value

    @property
    def inputs(self) -> tuple[ir.Value, ...]:
        biases = tuple(bias for bias in (self.first.bias, self.second.bias) if bias is not None)
        return (self.x, self.ids, self.factors, self.first.weight, self.second.weight, *biases)


def find(second: GroupedProducts, by_result: dict[ir.Value, GroupedProducts], shapes: Shapes) -> Mixture | str:
    """The mixture whose second products these are, or what keeps it from being found whole."""
    nodes: Nodes = dict.fromkeys(second.nodes)
    activation = _activation(second.x, by_result)
    if activation is None:
        return "What they read is no elementwise function of other experts' products"
    first = by_result[_origin(activation)]
    if first.ends is not second.ends or first.experts != second.experts:
        return "The two products of an expert have different rows"
    nodes |= dict.fromkeys((*first.nodes, *activation.nodes))
    scaled = _scaled(second.y, nodes)
    if scaled is None:
        return "What they compute is not multiplied by a factor for each row alone"
    results, sorted_factors = scaled
    order = _order(sorted_factors, shapes, nodes)
    if isinstance(order, str):
        return order
    factors, ordered = order
    for product in (first, second):
        if product.bias is not None and not expert_sort.is_column(product.at, ordered.sorted, nodes):
            return f"`{product.bias.name}` is not gathered for each row's expert"
    if not expert_sort.are_ends(first.ends, ordered, first.experts, nodes):
        return "The ends of the experts' rows are not counted as known"
    if not expert_sort.are_of(ordered.ids, first.experts, shapes):
        return f"The experts are not known to be chosen by a TopK of {first.experts} scores"
    x = _gathered(first.x, nodes)
    if x is None or not expert_sort.are_tokens(x[1], ordered, nodes):
        return "The rows are not the tokens in the experts' order"
    y = _summed(results, ordered, shapes, nodes)
    if y is None:
        return "The rows' results are not added up for each token"
    return Mixture(tuple(nodes), x[0], ordered.ids, factors, first, second, activation, ordered.chosen, y)


def _activation(result: ir.Value, by_result: dict[ir.Value, GroupedProducts]) -> Activation | None:
    """The elementwise function of other grouped products that a value is."""
    nodes: dict[ir.Node, None] = {}
    operands: dict[ir.Value, None] = {}
    pending = [result]
    while pending:
        value = pending.pop()
        node = value.producer()
        if value in by_result or (node is not None and (_halves(node, by_result) or _every_second(node, by_result))):
            operands[value] = None
        elif node is None or len(nodes) == _MAX_NODES or not eligibility.is_elementwise(node):
            return None
        elif node not in nodes:
            nodes[node] = None
            pending += [v for v in node.inputs if v is not None and constant(v) is None]
    if len(operands) == 1 and next(iter(operands)) in by_result:
        return Activation(tuple(nodes), tuple(operands), result)
    sources = {node for value in operands if (node := value.producer()) is not None}
    if len(sources) == 1 and _halves(split := sources.pop(), by_result):
        return Activation((split, *nodes), tuple(split.outputs), result)
    slices = {_every_second(node, by_result): node for node in sources}
    if len(sources) != 2 or slices.keys() != {"even", "odd"} or len({node.inputs[0] for node in sources}) != 1:
        return None
    even, odd = slices["even"], slices["odd"]
    return Activation((even, odd, *nodes), (even.outputs[0], odd.outputs[0]), result, interleaved=True)


def _halves(node: ir.Node, by_result: dict[ir.Value, GroupedProducts]) -> bool:
    """Whether a node cuts the columns of grouped products into halves."""
    if (node.domain, node.op_type) != ("", "Split") or len(node.outputs) != 2 or not splits_evenly(node):
        return False
    return node.inputs[0] in by_result and node.attributes.get_int("axis", 0) in (1, -1)


def _every_second(node: ir.Node, by_result: dict[ir.Value, GroupedProducts]) -> str:
    """ "even" or "odd" where a Slice takes these columns of grouped products, else ""."""
    if (node.domain, node.op_type) != ("", "Slice") or node.inputs[0] not in by_result or len(node.inputs) != 5:
        return ""
    start, end, axis, step = node.inputs[1:]
    last = constant(end)
    whole = last is not None and last.numpy().item() >= _END
    if not whole or not is_number(step, 2) or not (is_number(axis, 1) or is_number(axis, -1)):
        return ""
    return "even" if is_number(start, 0) else "odd" if is_number(start, 1) else ""


def _origin(activation: Activation) -> ir.Value:
    """The products' result that an activation is of."""
    node = activation.operands[0].producer()
    if len(activation.operands) == 1 or node is None or node.inputs[0] is None:
        return activation.operands[0]
    return node.inputs[0]


def _only_reader(value: ir.Value) -> ir.Node | None:
    readers = value.consumers()
    return readers[0] if len(readers) == 1 and not value.is_graph_output() else None


def _cast_of(value: ir.Value, nodes: Nodes) -> ir.Node | None:
    """The only reader of a value, or of its Cast, which is added."""
    node = _only_reader(value)
    if node is None or (node.domain, node.op_type) != ("", "Cast"):
        return node
    nodes[node] = None
    return _only_reader(node.outputs[0])


def _scaled(result: ir.Value, nodes: Nodes) -> tuple[ir.Value, ir.Value] | None:
    """The product of results, perhaps cast, and a column of factors; and these factors."""
    node = _cast_of(result, nodes)
    if node is None or (node.domain, node.op_type) != ("", "Mul"):
        return None
    first, second = node.inputs
    column = second if first is result or first in {cast.outputs[0] for cast in result.consumers()} else first
    unsqueeze = producer(column, "Unsqueeze")
    factors = unsqueeze.inputs[0] if unsqueeze is not None else None
    if unsqueeze is None or factors is None or not expert_sort.is_column(column, factors, nodes):
        return None
    nodes[node] = None
    return node.outputs[0], factors


def _order(sorted_factors: ir.Value, shapes: Shapes, nodes: Nodes) -> tuple[ir.Value, Order] | str:
    """The factors [tokens, chosen], and the order that the sorted ones are in."""
    gathered = _gathered(sorted_factors, nodes)
    flat = producer(gathered[0], "Reshape") if gathered is not None else None
    if gathered is None or flat is None or not is_number(flat.inputs[1], -1) or flat.inputs[0] is None:
        return "The factors are not gathered in the experts' order"
    order = expert_sort.find(gathered[1], shapes, nodes)
    if isinstance(order, str):
        return order
    if shapes.dims(flat.inputs[0]) != shapes.dims(order.ids):
        return "There is not one factor for each chosen expert"
    nodes[flat] = None
    return flat.inputs[0], order


def _gathered(value: ir.Value | None, nodes: Nodes) -> tuple[ir.Value, ir.Value] | None:
    """What is gathered along axis 0, and the positions, which have one dim."""
    node = producer(value, "GatherND")
    if node is not None and node.attributes.get_int("batch_dims", 0) == 0:
        column = producer(node.inputs[1], "Unsqueeze")
        at = column.inputs[0] if column is not None else None
        if node.inputs[0] is None or at is None or not expert_sort.is_column(node.inputs[1], at, nodes):
            return None
        nodes[node] = None
        return node.inputs[0], at
    node = producer(value, "Gather")
    if node is None or node.attributes.get_int("axis", 0) != 0 or None in node.inputs:
        return None
    nodes[node] = None
    return node.inputs[0], node.inputs[1]  # type: ignore[return-value]


def _summed(rows: ir.Value, ordered: Order, shapes: Shapes, nodes: Nodes) -> ir.Value | None:
    """The sum of each token's rows, perhaps cast, where rows lie in the experts' order."""
    node = _only_reader(rows)
    back = _gathered(node.outputs[0], nodes) if node is not None else None
    if node is None or back is None or back[0] is not rows or not expert_sort.are_back(back[1], ordered, shapes, nodes):
        return None
    view = _only_reader(node.outputs[0])
    dims = shapes.dims(rows)
    if view is None or (view.domain, view.op_type) != ("", "Reshape") or dims is None or len(dims) != 2:
        return None
    sizes = view.inputs[1].const_value if view.inputs[1] is not None else None
    summed = _cast_of(view.outputs[0], nodes)
    if sizes is None or summed is None or (summed.domain, summed.op_type) != ("", "ReduceSum"):
        return None
    tokens, *rest = sizes.numpy().tolist()
    id_dims = shapes.dims(ordered.ids)
    if rest != [ordered.chosen, dims[1]] or (tokens != -1 and (id_dims is None or tokens != id_dims[0])):
        return None
    if len(summed.inputs) != 2 or not is_number(summed.inputs[1], 1) or summed.attributes.get_int("keepdims", 1) != 0:
        return None
    nodes |= dict.fromkeys((view, summed))
    cast = _only_reader(summed.outputs[0])
    if cast is None or (cast.domain, cast.op_type) != ("", "Cast"):
        return summed.outputs[0]
    nodes[cast] = None
    return cast.outputs[0]
