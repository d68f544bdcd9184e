"""Products of packed codes while products are merged: MatMulNBits as a MatMul whose weight nobody can read.

So the rules of merging.py need no patterns of their own for it. The codes of a column are neighbours in memory, so that
weights side by side are their bytes one after the other.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence

import onnx_ir as ir

from onnxopt.graph.match import is_constant
from onnxopt.graph.rewrite.weights import Joiner
from onnxopt.graph.shapes.contrib_schemas import CONTRIB

_OPERATOR = "MatMulNBits"
_KEY = "packed"
_COLUMNS = "N"
_TENSORS = 4  # inputs before those that change what codes mean or are added


@dataclasses.dataclass(frozen=True)
class Packed:
    """A weight of codes. attributes: of its node. values: codes, scales and, if there are any, zero points."""

    attributes: dict[str, int]
    values: tuple[ir.Value, ...]

    def form(self) -> tuple[object, ...]:
        """What weights have in common that can lie side by side."""
        rest = {k: v for k, v in self.attributes.items() if k != _COLUMNS}
        tensors = [v.const_value for v in self.values if v.const_value is not None]
        return tuple(sorted(rest.items())), tuple((t.dtype, tuple(t.shape.numpy()[1:])) for t in tensors)


@contextlib.contextmanager
def as_products(graph: ir.Graph) -> Iterator[None]:
    """Inside, every MatMulNBits of the graph with weights of its own is a MatMul; afterwards none of those is."""
    for node in graph:
        if (packed := _packed(node)) is not None:
            _become(node, "MatMul", "", {}, [node.inputs[0], _weight(packed, str(node.name))])
    try:
        yield
    finally:
        for node in graph:
            weight = of(node.inputs[1]) if node.op_type == "MatMul" and node.domain == "" else None
            if weight is None:
                continue
            _become(node, _OPERATOR, CONTRIB, weight.attributes, [node.inputs[0], *weight.values])
            for value in weight.values:
                graph.initializers.setdefault(str(value.name), value)


def of(value: ir.Value | None) -> Packed | None:
    """The packed codes that a weight stands for, None where it is one of floats."""
    packed = None if value is None or value.const_value is None else value.const_value.meta.get(_KEY)
    return packed if isinstance(packed, Packed) else None


def merged(weights: Sequence[Packed], joiner: Joiner, name: str) -> ir.TensorProtocol:
    """A weight with the columns of all, which are of one form."""
    values = []
    for parts in zip(*(w.values for w in weights), strict=True):
        tensors = [v.const_value for v in parts if v.const_value is not None]
        values.append(_constant(joiner.rows(tensors, "+".join(str(v.name) for v in parts))))
    columns = sum(w.attributes[_COLUMNS] for w in weights)
    tensor = _weight(Packed({**weights[0].attributes, _COLUMNS: columns}, tuple(values)), name).const_value
    assert tensor is not None
    return tensor


def _packed(node: ir.Node) -> Packed | None:
    if node.op_type != _OPERATOR or node.domain != CONTRIB or any(v is not None for v in node.inputs[_TENSORS:]):
        return None
    values = tuple(v for v in node.inputs[1:_TENSORS] if v is not None)
    own = all(is_constant(v) and len(v.uses()) == 1 and not v.is_graph_output() for v in values)
    attributes = {name: a.value for name, a in node.attributes.items()}
    sizes = [attributes.get(name) for name in ("K", _COLUMNS)]
    if not own or attributes.get("weight_prepacked", 0) or not all(isinstance(n, int) for n in sizes):
        return None
    return Packed(attributes, values)


def _weight(packed: Packed, name: str) -> ir.Value:
    """A matrix [K, N] in place of the codes."""

    def read() -> ir.Tensor:
        raise AssertionError(f"the weight of {name} is packed; it can be concatenated, and not read")

    scales = packed.values[1].const_value
    assert scales is not None
    shape = ir.Shape([packed.attributes["K"], packed.attributes[_COLUMNS]])
    tensor = ir.LazyTensor(read, dtype=scales.dtype, shape=shape, name=f"{name}/weight")
    tensor.meta[_KEY] = packed
    return _constant(tensor)


def _constant(tensor: ir.TensorProtocol) -> ir.Value:
    shape = ir.Shape(tensor.shape.numpy())
    return ir.Value(name=tensor.name, shape=shape, type=ir.TensorType(tensor.dtype), const_value=tensor)


def _become(
    node: ir.Node, op_type: str, domain: str, attributes: dict[str, int], inputs: Sequence[ir.Value | None]
) -> None:
    node.op_type, node.domain = op_type, domain
    node.attributes.clear()
    for name, number in attributes.items():
        node.attributes[name] = ir.AttrInt64(name, number)
    node.resize_inputs(len(inputs))
    for k, value in enumerate(inputs):
        node.replace_input_with(k, value)
