"""Products of each expert's rows with its weight, one after the other, as exporters write a grouped product.

Concat(x[0:end0] W[0], x[end0:end1] W[1], ...)    rows of x in the experts' order

Behind it may stand the Add of each row's expert's bias, GatherND(bias, Unsqueeze(expert of each row, -1)).
"""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from onnxopt.fusion.operands import constant
from onnxopt.graph.match import is_constant

_MIN = 2  # experts


@dataclasses.dataclass(frozen=True)
class GroupedProducts:
    """nodes: all of them, the Concat last, or the Add of a bias. x: the rows. weight: [experts, depth, columns]. ends:
    [experts], where each expert's rows end. bias: [experts, columns], gathered at `at`, a column of the rows' experts;
    None where there is none."""

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    weight: ir.Value
    ends: ir.Value
    experts: int
    bias: ir.Value | None = None
    at: ir.Value | None = None

    @property
    def y(self) -> ir.Value:
        return self.nodes[-1].outputs[0]


def producer(value: ir.Value | None, op_type: str) -> ir.Node | None:
    """The ONNX operator of this type that computes a value."""
    node = value.producer() if value is not None else None
    return node if node is not None and (node.domain, node.op_type) == ("", op_type) else None


def is_number(value: ir.Value | None, number: float) -> bool:
    """Whether a value is a constant of one element, this number."""
    tensor = constant(value)
    return tensor is not None and bool(tensor.numpy().item() == number)


def find(concat: ir.Node) -> GroupedProducts | None:
    """The products that a Concat joins, None where it joins something else."""
    if len(concat.inputs) < _MIN or concat.attributes.get_int("axis") != 0:
        return None
    nodes: dict[ir.Node, None] = {}
    sources: list[tuple[ir.Value | None, ...]] = []  # of x, of the weights and of the ends
    last: ir.Value | None = None
    for k, value in enumerate(concat.inputs):
        product = _product(value, k, last)
        if product is None:
            return None
        nodes |= dict.fromkeys(product.nodes)
        last = product.limit
        sources.append((product.x, product.weights, product.ends))
    x, weights, ends = (producers[0] for producers in zip(*sources, strict=True))
    if any(source != sources[0] for source in sources) or x is None or weights is None or ends is None:
        return None
    return _with_bias(GroupedProducts((*nodes, concat), x, weights, ends, len(concat.inputs)))


def _with_bias(product: GroupedProducts) -> GroupedProducts:
    """The same with the Add of a bias of each expert, where only that reads the products."""
    readers = product.y.consumers()
    add = readers[0] if len(readers) == 1 and not product.y.is_graph_output() else None
    if add is None or (add.domain, add.op_type) != ("", "Add"):
        return product
    gather = producer(add.inputs[1] if add.inputs[0] is product.y else add.inputs[0], "GatherND")
    if gather is None or gather.attributes.get_int("batch_dims", 0) != 0 or gather.inputs[0] is None:
        return product
    if not is_constant(gather.inputs[0]):
        return product
    return dataclasses.replace(product, nodes=(*product.nodes, gather, add), bias=gather.inputs[0], at=gather.inputs[1])


@dataclasses.dataclass(frozen=True)
class _OfExpert:
    nodes: tuple[ir.Node, ...]
    x: ir.Value
    weights: ir.Value
    ends: ir.Value
    limit: ir.Value


def _product(value: ir.Value | None, k: int, first: ir.Value | None) -> _OfExpert | None:
    """MatMul(Gather(x, Range(first, ends[k], 1)), weights[k]); first: None for 0."""
    matmul = producer(value, "MatMul")
    gather = producer(matmul.inputs[0], "Gather") if matmul is not None else None
    counted = producer(gather.inputs[1], "Range") if gather is not None else None
    if matmul is None or gather is None or counted is None or gather.attributes.get_int("axis", 0) != 0:
        return None
    begin, limit, step = counted.inputs
    begins = is_number(begin, 0) if first is None else begin is first
    weight, end = _element(matmul.inputs[1], k), _element(limit, k)
    if not begins or not is_number(step, 1) or weight is None or end is None or limit is None:
        return None
    x = gather.inputs[0]
    if x is None:
        return None
    return _OfExpert((*end[0], counted, gather, *weight[0], matmul), x, weight[1], end[1], limit)


def _element(value: ir.Value | None, k: int) -> tuple[tuple[ir.Node, ...], ir.Value] | None:
    """The nodes Split and Squeeze that take part k along axis 0 of a value, and that value."""
    squeeze = producer(value, "Squeeze")
    part = squeeze.inputs[0] if squeeze is not None else None
    split = producer(part, "Split")
    if squeeze is None or split is None or part is None or split.attributes.get_int("axis", 0) != 0:
        return None
    axes = squeeze.inputs[1] if len(squeeze.inputs) > 1 else None
    if not is_number(axes, 0) or part is not split.outputs[k] or split.inputs[0] is None:
        return None
    return (split, squeeze), split.inputs[0]


def splits_evenly(node: ir.Node) -> bool:
    """Whether a Split makes parts of one size."""
    sizes = node.inputs[1] if len(node.inputs) > 1 else None
    if sizes is None:
        return True
    if sizes.const_value is None or sizes.is_graph_input():
        return False
    return len(set(sizes.const_value.numpy().tolist())) == 1
