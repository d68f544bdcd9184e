"""The axis along which heads lie, followed from one side of an operator to the other, and the edit that widens it.

`across` says what an operator asks for where one of its values gets wider heads: the same on its other side, nothing
where a constant weight ends the axis, or a reason why it cannot be. `widen` then changes the operator's constants.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir

from onnxopt.graph.match import is_constant
from onnxopt.graph.rewrite.weights import Joiner
from onnxopt.graph.shapes.value_dims import dims_of, same


@dataclasses.dataclass(frozen=True)
class Mark:
    """Along this axis of a value lie heads of `size` elements, one after the other; each gets `padded` elements."""

    axis: int
    size: int
    padded: int

    def width(self, old: int) -> int:
        """The axis' new length."""
        return old // self.size * self.padded

    def at(self, axis: int) -> Mark:
        return dataclasses.replace(self, axis=axis)


Marks = Mapping[ir.Value, Mark]
_Asked = list[tuple[ir.Value, Mark]]


def across(node: ir.Node, value: ir.Value, mark: Mark) -> _Asked | str:
    """What follows for the other values of a node that reads or computes `value`, or why it cannot be widened."""
    rule = _RULES.get(node.op_type) if node.domain == "" else None
    verb = "computes" if value.producer() is node else "reads"
    if rule is None:
        return f"{node.op_type} `{node.name}` {verb} `{value.name}`"
    if any(x is not None and x.shape is None for x in (*node.inputs, *node.outputs)):
        return f"the shapes of {node.op_type} `{node.name}` are not known"
    result = rule(node, value, mark)
    return f"{node.op_type} `{node.name}` {verb} `{value.name}`, and {result}" if isinstance(result, str) else result


def widen(node: ir.Node, marks: Marks, joiner: Joiner) -> None:
    """Change the constants of a node whose values get wider heads."""
    edit = _EDITS.get(node.op_type)
    if edit is not None:
        edit(node, marks, joiner)


def weight_of(node: ir.Node) -> ir.Value | None:
    """The weight of a product with a constant."""
    return node.inputs[1] if node.op_type in ("MatMul", "Gemm") else None


def _rank(value: ir.Value) -> int:
    return len(dims_of(value))


def _input(node: ir.Node, index: int) -> ir.Value:
    value = node.inputs[index]
    assert value is not None
    return value


def _numbers(value: ir.Value) -> list[int]:
    assert value.const_value is not None
    return [int(n) for n in value.const_value.numpy().reshape(-1)]


def _other_side(node: ir.Node, value: ir.Value) -> ir.Value:
    """The first input where `value` is the output, the output where it is the first input."""
    return _input(node, 0) if value is node.outputs[0] else node.outputs[0]


def _transpose(node: ir.Node, value: ir.Value, mark: Mark) -> _Asked | str:
    perm = node.attributes.get_ints("perm", tuple(reversed(range(_rank(value)))))
    axis = perm[mark.axis] if value is node.outputs[0] else list(perm).index(mark.axis)
    return [(_other_side(node, value), mark.at(axis))]


def _reshape(node: ir.Node, value: ir.Value, mark: Mark) -> _Asked | str:
    """Heads stay heads where the same dims stand behind their axis on both sides, counted from the last."""
    other = _other_side(node, value)
    dims, others = dims_of(value), dims_of(other)
    axis = mark.axis + len(others) - len(dims)
    trailing = zip(dims[mark.axis + 1 :], others[axis + 1 :], strict=True) if axis >= 0 else ()
    width = others[axis] if axis >= 0 else None
    whole = isinstance(width, int) and width > 0 and width % mark.size == 0
    if not whole or not all(same(a, b) for a, b in trailing):
        return "the two shapes do not show the same heads"
    asked = (other, mark.at(axis))
    if _target(node, mark if value is node.outputs[0] else asked[1]) is None:
        return "its target is not known"
    return [asked]


def _target(node: ir.Node, mark: Mark) -> tuple[list[int], int] | None:
    """The wider target of a Reshape, and its allowzero; None where it cannot be a constant. mark: of the output."""
    x, y = _input(node, 0), node.outputs[0]
    dims = dims_of(y)
    allow_zero = node.attributes.get_int("allowzero", 0)
    if is_constant(_input(node, 1)):
        target = _numbers(_input(node, 1))
        for k, dim in enumerate(dims):
            if k == mark.axis and isinstance(dim, int):
                target[k] = -1 if target[k] == -1 else mark.width(dim)
            elif target[k] == 0 and isinstance(dim, int):
                target[k] = dim  # it may have been copied from the axis that gets wider
        return target, allow_zero
    target = []
    for k, dim in enumerate(dims):
        if isinstance(dim, int):
            target.append(mark.width(dim) if k == mark.axis else dim)
        else:
            target.append(0 if k < _rank(x) and same(dims_of(x)[k], dim) else -1)
    return None if target.count(-1) > 1 or 0 in dims else (target, 0)


def _split(node: ir.Node, value: ir.Value, mark: Mark) -> _Asked | str:
    x, parts = _input(node, 0), node.outputs
    axis = node.attributes.get_int("axis", 0) % _rank(x)
    if axis == mark.axis:
        widths = [dims_of(part)[axis] for part in (x, *parts)]
        if any(not isinstance(w, int) or w % mark.size for w in widths):
            return "a part is not known to have whole heads"
    return [(other, mark) for other in (x, *parts) if other is not value]


def _gather(node: ir.Node, value: ir.Value, mark: Mark) -> _Asked | str:
    """One of several along another axis."""
    x, y, indices = _input(node, 0), node.outputs[0], _input(node, 1)
    axis = node.attributes.get_int("axis", 0) % _rank(x)
    if _rank(indices) != 0:
        return "it takes more than one index"
    if value is y:
        return [(x, mark.at(mark.axis + (mark.axis >= axis)))]
    return "it takes one element of a head" if axis == mark.axis else [(y, mark.at(mark.axis - (mark.axis > axis)))]


def _squeeze(node: ir.Node, value: ir.Value, mark: Mark) -> _Asked | str:
    x, y = _input(node, 0), node.outputs[0]
    if len(node.inputs) < 2 or not is_constant(node.inputs[1]):
        return "its axes are not constants"
    gone = {axis % _rank(x) for axis in _numbers(_input(node, 1))}
    axes = [axis for axis in range(_rank(x)) if axis not in gone]
    if value is y:
        return [(x, mark.at(axes[mark.axis]))]
    return [(y, mark.at(axes.index(mark.axis)))] if mark.axis in axes else "it removes the axis"


def _operand_and_constant(node: ir.Node) -> tuple[ir.Value, ir.Value] | None:
    a, b = _input(node, 0), _input(node, 1)
    if is_constant(b) and not is_constant(a):
        return a, b
    return (b, a) if is_constant(a) and not is_constant(b) and node.op_type != "Div" else None


def _elementwise(node: ir.Node, x: ir.Value, value: ir.Value, mark: Mark) -> _Asked | str:
    y = node.outputs[0]
    if _rank(x) != _rank(y) or dims_of(x)[mark.axis] != dims_of(y)[mark.axis]:
        return "it broadcasts"
    return [(x if value is y else y, mark)]


def _scaled(node: ir.Node, value: ir.Value, mark: Mark) -> _Asked | str:
    """Products with one finite factor, which keep zeros."""
    operands = _operand_and_constant(node)
    if operands is None:
        return "neither operand is a constant"
    x, factor = operands
    assert factor.const_value is not None
    if factor.const_value.size != 1:
        return "the constant is more than one factor"
    number = float(factor.const_value.numpy().item())
    if not math.isfinite(number) or (node.op_type == "Div" and number == 0):
        return f"the factor is {number}"
    return _elementwise(node, x, value, mark)


def _biased(node: ir.Node, value: ir.Value, mark: Mark) -> _Asked | str:
    operands = _operand_and_constant(node)
    if operands is None:
        return "neither operand is a constant"
    x, bias = operands
    axis = mark.axis - _rank(value) + _rank(bias)
    if axis < 0 or dims_of(bias)[axis] != dims_of(value)[mark.axis]:
        return "the constant has not one term for each element of a head"
    return _elementwise(node, x, value, mark)


def _cast(node: ir.Node, value: ir.Value, mark: Mark) -> _Asked | str:
    return [(_other_side(node, value), mark)]


def _guarded(node: ir.Node, value: ir.Value, mark: Mark) -> _Asked | str:
    """Where(hidden, 0, x): the guard of attention whose mask may hide a row."""
    hidden, zero, x = (_input(node, k) for k in range(3))
    if not is_constant(zero) or zero.const_value.size != 1 or zero.const_value.numpy().any():  # type: ignore[union-attr]
        return "it sets elements to something else than 0"
    axis = mark.axis - _rank(value) + _rank(hidden)
    if value is hidden or (axis >= 0 and dims_of(hidden)[axis] != 1):
        return "it tells the elements of a head apart"
    return _elementwise(node, x, value, mark)


def _product(node: ir.Node, value: ir.Value, mark: Mark) -> _Asked | str:
    """A constant weight ends the axis: its columns make the heads, or its rows read them."""
    weight, y = _input(node, 1), node.outputs[0]
    if value is weight or not is_constant(weight) or _rank(weight) != 2:
        return "its second operand is not a constant matrix"
    if len(weight.uses()) != 1 or weight.is_graph_output():
        return f"the weight `{weight.name}` has other readers, so a padded copy would make the model larger"
    if mark.axis != _rank(value) - 1 or _rank(value) != _rank(y):
        return "heads do not lie along the axis of its sum" if value is not y else "heads lie along its rows"
    return []


def _gemm(node: ir.Node, value: ir.Value, mark: Mark) -> _Asked | str:
    makes_heads = value is node.outputs[0]
    if not makes_heads and node.attributes.get_int("transA", 0) != 0:
        return "it transposes its first operand"
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if makes_heads and bias is not None and (not is_constant(bias) or _last(bias) != _last(value)):
        return "its bias is no constant with one term for each column"
    return _product(node, value, mark)


def _last(value: ir.Value) -> object:
    return dims_of(value)[-1] if _rank(value) else None


def _widen_reshape(node: ir.Node, marks: Marks, joiner: Joiner) -> None:
    dims = _target(node, marks[node.outputs[0]])
    assert dims is not None
    target, allow_zero = dims
    array = np.array(target, np.int64)
    name = "heads_" + "_".join(map(str, target)).replace("-", "m")
    node.replace_input_with(1, _initializer(node, name, lambda: ir.Tensor(array, name=name)))
    node.attributes.add(ir.AttrInt64("allowzero", allow_zero))


def _widen_split(node: ir.Node, marks: Marks, joiner: Joiner) -> None:
    mark = marks[_input(node, 0)]
    axis = node.attributes.get_int("axis", 0) % _rank(_input(node, 0))
    if axis != mark.axis or len(node.inputs) < 2 or node.inputs[1] is None:
        return
    sizes = [mark.width(int(dims_of(part)[axis])) for part in node.outputs]  # type: ignore[arg-type]
    name = "heads_" + "_".join(map(str, sizes))
    node.replace_input_with(1, _initializer(node, name, lambda: ir.Tensor(np.array(sizes, np.int64), name=name)))


def _widen_bias(node: ir.Node, marks: Marks, joiner: Joiner) -> None:
    operands = _operand_and_constant(node)
    assert operands is not None
    bias, mark = operands[1], marks[node.outputs[0]]
    axis = mark.axis - _rank(node.outputs[0]) + _rank(bias)
    _widen_constant(node, list(node.inputs).index(bias), mark.at(axis), joiner)


def _widen_product(node: ir.Node, marks: Marks, joiner: Joiner) -> None:
    """The columns for the result, the rows for the first operand."""
    columns = 0 if node.op_type == "Gemm" and node.attributes.get_int("transB", 0) != 0 else 1
    for value, axis in ((node.outputs[0], columns), (_input(node, 0), 1 - columns)):
        if value in marks:
            _widen_constant(node, 1, marks[value].at(axis), joiner)
    if node.outputs[0] in marks and len(node.inputs) > 2 and node.inputs[2] is not None:
        _widen_constant(node, 2, marks[node.outputs[0]].at(_rank(_input(node, 2)) - 1), joiner)


def _widen_constant(node: ir.Node, index: int, mark: Mark, joiner: Joiner) -> None:
    source = _input(node, index)
    assert source.const_value is not None
    tensor, name = source.const_value, f"{source.name}/heads{mark.axis}_{mark.size}_{mark.padded}"

    def wider() -> ir.TensorProtocol:
        return joiner.constant(_with_zeros(tensor.numpy(), mark), tensor.dtype, name)

    node.replace_input_with(index, _initializer(node, name, wider))


def _with_zeros(array: np.ndarray, mark: Mark) -> np.ndarray:
    """Zeros behind each head along the mark's axis."""
    leading, heads, trailing = (
        array.shape[: mark.axis],
        array.shape[mark.axis] // mark.size,
        array.shape[mark.axis + 1 :],
    )
    wide = np.zeros((*leading, heads, mark.padded, *trailing), array.dtype)
    wide[(slice(None),) * (len(leading) + 1) + (slice(0, mark.size),)] = array.reshape(
        *leading, heads, mark.size, *trailing
    )
    return wide.reshape(*leading, heads * mark.padded, *trailing)


def _initializer(node: ir.Node, name: str, make: Callable[[], ir.TensorProtocol]) -> ir.Value:
    """The graph's initializer of this name, made where there is none yet: equal names have equal content."""
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    if name not in graph.initializers:
        graph.register_initializer(ir.val(name, const_value=make()))
    return graph.initializers[name]


_Rule = Callable[[ir.Node, ir.Value, Mark], "_Asked | str"]
_RULES: Mapping[str, _Rule] = {
    "Transpose": _transpose, "Reshape": _reshape, "Split": _split, "Gather": _gather, "Squeeze": _squeeze,
    "Mul": _scaled, "Div": _scaled, "Add": _biased, "Cast": _cast, "Where": _guarded, "MatMul": _product,
    "Gemm": _gemm,
}  # fmt: skip
_EDITS: Mapping[str, Callable[[ir.Node, Marks, Joiner], None]] = {
    "Reshape": _widen_reshape, "Split": _widen_split, "Add": _widen_bias,
    "MatMul": _widen_product, "Gemm": _widen_product,
}  # fmt: skip
