"""Symbolic dims of inputs that can have one size alone, because the graph fails at every other one.

Mostly that is 1.
Exporters write such graphs where the example had one sequence: an input is declared as [batch, sequence], and

    Reshape(x [batch, sequence, 768], [1, sequence, 12, 64])    keeps the number of elements
    MatMul(a [n, batch], b [1, m]), Gemm                        multiply dims of equal size
    Concat(a [batch, n], b [1, m], axis=1)                      joins what has equal sizes elsewhere
    Squeeze(x [batch, n], axis 0)                               removes a dim of 1
    GatherND(x [1, n], [[0..batch), i]), Gather                 read elements that are there

only where batch is 1. Broadcasting says nothing: there a dim may also be 1 itself. Sizes are taken to be at least 1.
Where a dim is 0, no element is missing, and the graph might run with another batch; what onnxopt writes fails then.

The pass lets all nodes read the input through a check, which makes the dim 1 for all that infers shapes later:

    x -> Unsqueeze(Squeeze(x, axes), axes)

So a run with another size fails in the optimized model as well, at the Squeeze, whose name says what is wrong.

Exporters also leave the channels of images symbolic (all vision models of optimum), which the weights state:

    Conv(x [batch, channels, h, w], w [64, 3, 7, 7])            reads 3 channels
    ConvTranspose, BatchNormalization, InstanceNormalization    as many as the weight, the scale has

There the check is a Reshape, which copies all dims but the one that it states:

    x -> Reshape(x, [0, 3, 0, 0])
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator

import onnx_ir as ir
import sympy

from onnxopt.graph.passes.new_nodes import initializer
from onnxopt.graph.rewrite.masks.index_functions import Affine
from onnxopt.graph.rewrite.masks.index_values import IndexValues
from onnxopt.graph.shapes.checked_sizes import axes_of, checked_axes, is_check
from onnxopt.graph.shapes.dims import Dim, Dims, min_at_one, product, sign, symbols_of
from onnxopt.graph.shapes.infer import Knowledge, infer

_LARGEST = 64  # terms of an expression that is solved
# The axis of the second operand, which has as many elements (for each group of a Conv) as the first has channels.
_CHANNELS = {"Conv": 1, "ConvTranspose": 0, "BatchNormalization": 0, "InstanceNormalization": 0}
_DIMS_ALONE = frozenset({"Shape", "Size"})  # operators that read no element of their operand


class SingleSizesPass(ir.passes.InPlacePass):
    """Lets the model check the dims of inputs that can have one size alone, and all other nodes see that they have it.

    notes: a sentence for the user on each such dim. The model has opset 13 or later.
    """

    def __init__(self) -> None:
        self.notes: list[str] = []

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        checked: set[tuple[ir.Value, int]] = set()
        while (single := _first_single(model)) is not None and (single.value, single.axis) not in checked:
            checked.add((single.value, single.axis))
            name = _check(model.graph, single)
            says = f"the graph only accepts {single.size} for `{name}`: {single.node.op_type} `{single.node.name}` "
            says += "fails at every other size"
            advice = f". Export with an example of 2 or more for a dynamic `{name}`" if single.size == 1 else ""
            self.notes.append(says + advice)
        return ir.passes.PassResult(model, bool(self.notes))


@dataclasses.dataclass(frozen=True)
class _Single:
    """A dim of an input that can have one size alone. node: what fails at every other one."""

    value: ir.Value
    axis: int
    node: ir.Node
    size: int = 1


def _first_single(model: ir.Model) -> _Single | None:
    graph = model.graph
    if not any(isinstance(dim, ir.SymbolicDim) for value in graph.inputs for dim in value.shape or ()):
        return None
    inferred = infer(model)
    sources: dict[Dim, tuple[ir.Value, int]] = {}
    for value in sorted(graph.inputs, key=_reads_elements, reverse=True):
        for axis, dim in enumerate(inferred.dims(value) or ()):
            if isinstance(dim, sympy.Symbol) and axis not in checked_axes(value):
                sources.setdefault(dim, (value, axis))
    for node, zero in zeros(graph, inferred):
        for symbol in ones_of(zero):
            if symbol in sources:
                return _Single(*sources[symbol], node)
    for node in graph:  # behind the others: a Squeeze is a check of an input only where it reads it
        dim, size = _channels(node, inferred)
        if dim in sources and size > 1:
            return _Single(*sources[dim], node, size)
    return None


def _check(graph: ir.Graph, single: _Single) -> str:
    """Let all readers of an input read it through the check. Returns what the dim is called.

    Of two Squeezes, one after the other, the second would read no input, so one checks all dims that are 1. A Squeeze
    and a Reshape would become one Reshape, which checks their product; so behind a Reshape all checks are Reshapes.
    """
    value, dims = single.value, single.value.shape
    assert dims is not None  # its dims are known
    dim, name = dims[single.axis], _name_of(value, single.axis)
    axes = [k for k, other in enumerate(dims) if k == single.axis or (other == dim and dim == name)]
    pair, reshaped = _check_of_ones(value), any(map(is_check, value.consumers()))
    if single.size > 1:
        ones = () if pair is None else sorted(_axes_of(pair[0]) or ())
        for axis in ones:
            _check_by_reshape(graph, value, axis, 1, _name_of(value, axis))
        if pair is not None:
            _remove(graph, pair)
        _check_by_reshape(graph, value, single.axis, single.size, name)
    elif reshaped:
        for axis in axes:
            _check_by_reshape(graph, value, axis, 1, name)
    elif pair is not None:
        _widen(graph, value, pair, axes, name)
    else:
        _check_by_squeeze(graph, value, axes, name)
    return name


def _name_of(value: ir.Value, axis: int) -> str:
    dim = None if value.shape is None else value.shape[axis]
    return dim.value if isinstance(dim, ir.SymbolicDim) and dim.value else f"{value.name}.{axis}"


def _check_by_squeeze(graph: ir.Graph, value: ir.Value, checks: list[int], name: str) -> None:
    """Let all readers of an input read it through a Squeeze of dims that are 1, and an Unsqueeze."""
    axes = initializer(graph, ir.tensor(checks, dtype=ir.DataType.INT64), f"{value.name}_checked_axes")
    squeeze = ir.Node("", "Squeeze", [value, axes], name=f"{name}_must_be_1")
    unsqueeze = ir.Node("", "Unsqueeze", [squeeze.outputs[0], axes], name=f"{name}_is_1")
    for node, part in ((squeeze, "squeezed"), (unsqueeze, "checked")):
        node.outputs[0].name, node.outputs[0].type = f"{value.name}_{part}", value.type
    for reader, position in tuple(value.uses()):
        if reader is not squeeze:
            reader.replace_input_with(position, unsqueeze.outputs[0])
    graph.insert_before(next(iter(graph)), [squeeze, unsqueeze])


def _check_of_ones(value: ir.Value) -> tuple[ir.Node, ir.Node] | None:
    """The Squeeze and the Unsqueeze by which all nodes read an input; None without such a check."""
    readers = tuple(value.consumers())
    if len(readers) != 1 or readers[0].op_type != "Squeeze" or readers[0].outputs[0].is_graph_output():
        return None
    squeeze = readers[0]
    consumers = tuple(squeeze.outputs[0].consumers())
    if (
        len(consumers) != 1
        or consumers[0].op_type != "Unsqueeze"
        or {squeeze.graph, consumers[0].graph} != {value.graph}
    ):
        return None
    there, back = _axes_of(squeeze), _axes_of(consumers[0], value)
    return (squeeze, consumers[0]) if there and there == back else None


def _axes_of(node: ir.Node, value: ir.Value | None = None) -> frozenset[int] | None:
    """The constant axes of a Squeeze, or of an Unsqueeze to the dims of a value; None where they are computed."""
    value = value or node.inputs[0]
    return None if value is None or value.shape is None else axes_of(node, len(value.shape))


def _widen(graph: ir.Graph, value: ir.Value, pair: tuple[ir.Node, ir.Node], checks: list[int], name: str) -> None:
    """Let a Squeeze that checks dims of an input check these too."""
    squeeze, unsqueeze = pair
    widened = ir.tensor(sorted({*checks, *(_axes_of(squeeze) or ())}), dtype=ir.DataType.INT64)
    axes = initializer(graph, widened, f"{value.name}_checked_axes")
    squeeze.name, squeeze.outputs[0].shape = f"{name}_and_{squeeze.name}", None
    for node in (squeeze, unsqueeze):
        node.replace_input_with(1, axes)


def _check_by_reshape(graph: ir.Graph, value: ir.Value, axis: int, size: int, name: str) -> None:
    """Let all readers of an input read it through a Reshape that states the dim."""
    assert value.shape is not None
    dims = [size if k == axis else 0 for k in range(len(value.shape))]
    stated = initializer(graph, ir.tensor(dims, dtype=ir.DataType.INT64), f"{value.name}_checked_dims")
    reshape = ir.Node("", "Reshape", [value, stated], name=f"{name}_must_be_{size}")
    reshape.outputs[0].name, reshape.outputs[0].type = f"{stated.name}_of_{size}", value.type
    for reader, position in tuple(value.uses()):
        if reader is not reshape:
            reader.replace_input_with(position, reshape.outputs[0])
    graph.insert_before(next(iter(graph)), [reshape])


def _remove(graph: ir.Graph, pair: tuple[ir.Node, ir.Node]) -> None:
    """Let the readers of a check of ones read what it reads."""
    squeeze, unsqueeze = pair
    assert squeeze.inputs[0] is not None
    unsqueeze.outputs[0].replace_all_uses_with(squeeze.inputs[0])
    graph.remove([unsqueeze, squeeze], safe=True)


def _reads_elements(value: ir.Value) -> bool:
    """Whether a node reads an input's elements, so that no pass removes a check of the input as useless."""
    return any(node.op_type not in _DIMS_ALONE for node in value.consumers())


# --- what has to be zero --------------------------------------------------------------------------------------------


def zeros(graph: ir.Graph, inferred: Knowledge) -> Iterator[tuple[ir.Node, sympy.Expr]]:
    """Each node that fails wherever an expression of dims is not 0, with the expression."""
    index_values = None
    for node in graph:
        if node.domain not in ("", "ai.onnx"):
            continue
        for a, b in _equal_dims(node, inferred):
            if a != b and not (isinstance(a, int) and isinstance(b, int)):
                yield node, sympy.sympify(a) - b
        if node.op_type in ("GatherND", "Gather"):
            index_values = index_values or IndexValues(graph, inferred)
            for past_the_end in _past_the_end(node, index_values):
                yield node, past_the_end


def _channels(node: ir.Node, inferred: Knowledge) -> tuple[Dim | None, int]:
    """The dim of an operand that has to be as many channels as a constant states, with that number; None and 0."""
    if node.domain not in ("", "ai.onnx") or node.op_type not in _CHANNELS or len(node.inputs) < 2:
        return None, 0
    dims, weight = inferred.dims(node.inputs[0]), inferred.dims(node.inputs[1])
    axis = _CHANNELS[node.op_type]
    if not dims or len(dims) < 3 or not weight or len(weight) <= axis or not isinstance(weight[axis], int):
        return None, 0
    groups = node.attributes.get_int("group", 1) if node.op_type == "Conv" else 1
    return dims[1], weight[axis] * groups


def _equal_dims(node: ir.Node, inferred: Knowledge) -> Iterator[tuple[Dim, Dim]]:
    """Pairs of sizes that a node takes to be equal."""
    shapes = [inferred.dims(value) for value in node.inputs]
    if node.op_type == "Reshape" and shapes[0] is not None:
        wanted = _wanted(node, shapes[0], inferred)
        if wanted is not None:
            yield product(shapes[0]), product(wanted)
    elif node.op_type == "MatMul" and shapes[0] and shapes[1]:
        yield shapes[0][-1], shapes[1][-2 if len(shapes[1]) > 1 else 0]
    elif node.op_type == "Gemm" and shapes[0] and shapes[1]:
        turned = (node.attributes.get_int("transA", 0), node.attributes.get_int("transB", 0))
        yield shapes[0][0 if turned[0] else -1], shapes[1][-1 if turned[1] else 0]
    elif node.op_type == "Concat":
        present = [shape for shape in shapes if shape]
        axis = node.attributes.get_int("axis") % len(present[0]) if present else 0
        for shape in present[1:]:
            yield from (pair for k, pair in enumerate(zip(present[0], shape, strict=False)) if k != axis)
    elif node.op_type == "Squeeze" and shapes[0] is not None and len(node.inputs) > 1:
        axes = inferred.contents(node.inputs[1])
        yield from ((shapes[0][a], 1) for a in (() if axes is None else axes.flat) if isinstance(a, int))


def _wanted(node: ir.Node, before: Dims, inferred: Knowledge) -> list[Dim] | None:
    """The dims that a Reshape asks for; None where one of them is not known, or is what is left over."""
    held = inferred.contents(node.inputs[1])
    if held is None or held.ndim != 1:
        return None
    copies = not node.attributes.get_int("allowzero", 0)
    dims = [before[k] if dim == 0 and copies and k < len(before) else dim for k, dim in enumerate(held)]
    return dims if all(map(inferred.is_size, dims)) else None


def _past_the_end(node: ir.Node, index_values: IndexValues) -> Iterator[sympy.Expr]:
    """By how much the last element that a node reads lies behind the last one that is there, where that is never less.

    As it may not be more either, it is 0.
    """
    data, indices = index_values.dims(node.inputs[0]), index_values.dims(node.inputs[1])
    if not data or not indices:
        return
    if node.op_type == "Gather":
        rows = [(index_values.of(node.inputs[1]), data[node.attributes.get_int("axis", 0) % len(data)])]
    elif node.attributes.get_int("batch_dims", 0) == 0:
        rows = list(zip(index_values.positions(node.inputs[1]) or (), data, strict=False))
        indices = indices[:-1]
    else:
        return
    for position, length in rows:
        if isinstance(position, Affine):
            steps = zip(position.widened(len(indices)), indices, strict=True)
            excess = sum((c * (n - 1) for c, n in steps if c > 0), sympy.sympify(position.offset)) - length + 1
            if min_at_one(excess):
                yield excess


# --- what follows ----------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=4096)
def ones_of(zero: sympy.Expr) -> tuple[sympy.Symbol, ...]:
    """The symbols that are 1 wherever an expression of sizes of at least 1 is 0."""
    symbols, expanded = symbols_of(zero), sympy.expand(zero)
    if not expanded.is_polynomial(*symbols) or len(sympy.Add.make_args(expanded)) > _LARGEST:
        return ()
    factors = [factor for factor, _ in sympy.factor_list(expanded)[1] if sign(factor) not in (1, -1)]
    if len(factors) != 1:
        return ()  # any one of them may be 0
    return symbols_of(factors[0]) if min_at_one(factors[0]) or min_at_one(-factors[0]) else ()
