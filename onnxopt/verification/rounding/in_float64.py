"""A model of float32 in float64, to hold the original and the model under check against (rounding/widening.py).

ONNX Runtime's CPU kernels of convolutions and pools take no float64, so they become operators that do: a convolution is
a sum of products, one for each element of the filter. What has no such form runs in float32, between two Casts.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

from onnxopt.graph.passes.inline import inline_functions
from onnxopt.graph.passes.new_nodes import NewNodes, initializer
from onnxopt.graph.passes.unique_names import UniqueNamesPass
from onnxopt.verification.rounding import widening

# Operators whose CPU kernels in ONNX Runtime 1.31 lack float64; others that turn out to are told apart by its message.
_SINGLE = frozenset(
    {"AveragePool", "Conv", "ConvTranspose", "Elu", "Erf", "GRU", "Gelu", "GlobalAveragePool", "GlobalMaxPool",
     "HardSigmoid", "HardSwish", "InstanceNormalization", "LRN", "LSTM", "LeakyRelu", "LpPool", "Mish",
     "NonMaxSuppression", "NonZero", "OneHot", "PRelu", "RNN", "Resize", "Selu", "Softplus", "Softsign",
     "ThresholdedRelu", "Upsample"}
)  # fmt: skip
_AXES_AS_INPUT = 18  # opset of ReduceMean and ReduceMax
_PADS_AS_INPUT = 11  # opset of Pad
_MAX_TERMS = 128  # elements of a filter: a product each
_END = np.iinfo(np.int64).max


def double(model: Path, folder: Path, single: Collection[str] = ()) -> tuple[Path, frozenset[str]]:
    """Write the model file's float64 form into the empty `folder`; returns its path, and what runs in float32.

    single: types of operators that run in float32, beside those that are known to. NotWidened where there is no such
    form.
    """
    rounded = set[str]()

    def adapted(source: ir.Model) -> Callable[[], None]:
        if reason := inline_functions(source):
            raise widening.NotWidened(reason)
        constants = _Constants(source.graph)
        for node in list(source.graph):
            _decompose(source, node, constants)

        def cast() -> None:
            for node in list(source.graph.all_nodes()):
                if node.op_type in _SINGLE or node.op_type in single:
                    _cast(node)
                    rounded.add(node.op_type)
            UniqueNamesPass()(source)

        return cast

    path = widening.widen(model, folder, to=widening.IN_FLOAT64, adapted=adapted)
    return path, frozenset(rounded)


def _cast(node: ir.Node) -> None:
    """Let a node read and write float32 between nodes of float64."""
    graph = node.graph
    assert graph is not None
    single, wide = ir.DataType.FLOAT, ir.DataType.DOUBLE
    for k, operand in enumerate(node.inputs):
        if operand is not None and operand.dtype == wide:
            cast = ir.node("Cast", inputs=[operand], attributes={"to": single.value})
            graph.insert_before(node, cast)
            node.replace_input_with(k, cast.outputs[0])
    for value in node.outputs:
        if value.dtype == wide:
            cast = ir.node("Cast", inputs=[value], attributes={"to": wide.value})
            name, result = value.name, cast.outputs[0]
            result.type, result.shape, value.type = value.type, value.shape, ir.TensorType(single)
            value.replace_all_uses_with(result, replace_graph_outputs=True)
            cast.replace_input_with(0, value)
            value.name, result.name = f"{name}_single", name
            graph.insert_after(node, cast)


class _Constants:
    """Adds initializers to a graph; equal lists of integers are one."""

    def __init__(self, graph: ir.Graph) -> None:
        self._graph, self._count = graph, 0
        self._ints: dict[tuple[int, ...], ir.Value] = {}

    def ints(self, values: Sequence[int]) -> ir.Value:
        key = tuple(values)
        if key not in self._ints:
            self._ints[key] = self.add(np.array(key, np.int64))
        return self._ints[key]

    def add(self, array: np.ndarray) -> ir.Value:
        self._count += 1
        return initializer(self._graph, ir.Tensor(array), f"float64_constant_{self._count}")


def _decompose(model: ir.Model, node: ir.Node, constants: _Constants) -> None:
    """Replace a convolution or a global pool by operators that take float64, where its rank and filter are known."""
    opset = model.opset_imports.get("", 0)
    if node.domain not in ("", "ai.onnx") or opset < _PADS_AS_INPUT:
        return
    result = None
    if node.op_type in ("GlobalAveragePool", "GlobalMaxPool"):
        result = _global_pool(model.graph, node, opset, constants)
    elif node.op_type == "Conv":
        result = _convolution(model.graph, node, constants)
    if result is None:
        return
    old = node.outputs[0]
    result.type, result.shape, name = old.type, old.shape, old.name
    old.replace_all_uses_with(result, replace_graph_outputs=True)
    old.name, result.name = f"{name}_replaced", name
    model.graph.remove(node, safe=True)


def _global_pool(graph: ir.Graph, node: ir.Node, opset: int, constants: _Constants) -> ir.Value | None:
    x = node.inputs[0]
    if x is None or x.shape is None:
        return None
    add, axes = NewNodes(graph, node), list(range(2, len(x.shape)))
    reduction = "ReduceMean" if node.op_type == "GlobalAveragePool" else "ReduceMax"
    if opset < _AXES_AS_INPUT:
        return add.add(reduction, [x], x.dtype, [ir.AttrInt64s("axes", axes)])
    return add.add(reduction, [x, constants.ints(axes)], x.dtype)


def _convolution(graph: ir.Graph, node: ir.Node, constants: _Constants) -> ir.Value | None:
    """A sum over the elements of the filter: what it meets of the padded input, times its matrix of channels."""
    x, filters = node.inputs[0], node.inputs[1]
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    weights = None if filters is None or filters.const_value is None else filters.const_value
    automatic = node.attributes.get_string("auto_pad", "NOTSET")
    if x is None or weights is None or filters is None or automatic not in ("NOTSET", "VALID"):
        return None
    if filters.is_graph_input() or (bias is not None and bias.const_value is None):
        return None
    array = weights.numpy()
    kernel, groups = array.shape[2:], node.attributes.get_int("group", 1)
    if np.prod(kernel, dtype=np.int64) > _MAX_TERMS:
        return None
    rank, ones = len(kernel), [1] * len(kernel)
    strides, dilations = (list(node.attributes.get_ints(n, ones)) for n in ("strides", "dilations"))
    pads = list(node.attributes.get_ints("pads", [0] * 2 * rank)) if automatic == "NOTSET" else [0] * 2 * rank
    add, dtype, ints = NewNodes(graph, node), x.dtype, constants.ints
    padded = x
    if any(pads):
        padded = add.add("Pad", [x, ints([0, 0, *pads[:rank], 0, 0, *pads[rank:]])], dtype)
    channels, inner = array.shape[0], array.shape[1]
    total, first = None, padded
    for number, place in enumerate(itertools.product(*map(range, kernel))):
        starts = [k * d for k, d in zip(place, dilations, strict=True)]
        ends = [-(size - 1 - k) * d or _END for k, d, size in zip(place, dilations, kernel, strict=True)]
        axes = ints(range(2, 2 + rank))
        met = add.add("Slice", [padded, ints(starts), ints(ends), axes, ints(strides)], dtype)
        first = met if total is None else first
        rows = add.add("Reshape", [met, ints([0, groups, inner, -1])], dtype)
        matrix = array.reshape(channels, inner, -1)[:, :, number].reshape(groups, channels // groups, inner)
        product = add.add("MatMul", [constants.add(np.ascontiguousarray(matrix)), rows], dtype)
        total = product if total is None else add.add("Add", [total, product], dtype)
    shape = add.add("Shape", [first], ir.DataType.INT64)
    batch, sides = (add.add("Slice", [shape, ints([a]), ints([b])], ir.DataType.INT64) for a, b in ((0, 1), (2, _END)))
    dims = add.add("Concat", [batch, ints([channels]), sides], ir.DataType.INT64, [ir.AttrInt64("axis", 0)])
    result = add.add("Reshape", [total, dims], dtype)
    if bias is None or bias.const_value is None:
        return result
    column = bias.const_value.numpy().reshape([1, channels, *ones])
    return add.add("Add", [result, constants.add(column)], dtype)
