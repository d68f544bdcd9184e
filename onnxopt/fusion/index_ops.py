"""Index operators: for each operator, the operand elements that the elements of its result are copies of.

A row of the table undoes one operator: it turns the map of a result into pieces, each an operand with a map of its own.
Every piece but the last has guards that state where the piece applies. The last piece applies everywhere else.
Source: the ONNX operator specification, opset 13 and later.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxopt.fusion.index_maps import Guard, Linear, Map, NotAffine, reshape
from onnxopt.fusion.operands import looks_up
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.program.extents import ONE, ZERO, Extent, Sum, total

SINCE = 13  # the versions whose parameters are inputs
# Names of the inputs behind the data, for reasons.
_PARAMETERS = {
    "Reshape": ("shape",), "Squeeze": ("axes",), "Unsqueeze": ("axes",), "Expand": ("shape",),
    "Slice": ("starts", "ends", "axes", "steps"), "Split": ("split",), "Gather": ("indices",), "Tile": ("repeats",),
    "Pad": ("pads", "fill value", "axes"), "Resize": ("roi", "scales", "sizes"),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Piece:
    """A part of a result. value: the operand that the part is read from, None for the constant `fill`."""

    value: ir.Value | None
    map: Map
    inside: tuple[Guard, ...] = ()
    fill: Any = None


@dataclasses.dataclass(frozen=True)
class Use:
    """One node with the map of one of its results. Methods raise NotAffine where a shape or parameter is unknown."""

    node: ir.Node
    output: int
    map: Map
    shapes: Shapes

    @property
    def data(self) -> ir.Value:
        value = self.node.inputs[0]
        if value is None:
            raise NotAffine(f"{self.node.op_type} has no data input")
        return value

    @property
    def result_dims(self) -> tuple[Extent, ...]:
        return dims_of(self.node.outputs[self.output], self.shapes)

    def dims(self, k: int = 0) -> tuple[Extent, ...]:
        value = self.node.inputs[k]
        if value is None:
            raise NotAffine(f"{self.node.op_type} has no data input")
        return dims_of(value, self.shapes)

    def length(self, k: int, axis: int) -> Sum:
        """The size of a dim of input k as a sum. NotAffine where it is unknown."""
        value = self.node.inputs[k]
        dims = None if value is None else self.shapes.dims(value)
        dim = None if dims is None else dims[axis]
        if dim is None:
            raise NotAffine(f"{self.node.op_type} works along a dim that is not known")
        return self.shapes.length(dim)

    def parameter(self, k: int) -> np.ndarray | None:
        """Input k as a constant; None where it is left out."""
        value = self.node.inputs[k] if k < len(self.node.inputs) else None
        if value is None:
            return None
        if value.const_value is None or value.is_graph_input():
            raise NotAffine(_is_computed(self.node.op_type, k, value))
        return value.const_value.numpy()

    def attribute(self, name: str, default: Any) -> Any:
        attribute = self.node.attributes.get(name)
        return default if attribute is None else attribute.value

    def axis(self, default: int) -> int:
        return int(self.attribute("axis", default)) % len(self.dims())

    def moved(self, coordinates: Mapping[int, Linear] | list[Linear]) -> list[Piece]:
        """One piece: the data input at these coordinates."""
        rows = coordinates if isinstance(coordinates, list) else [coordinates[k] for k in range(len(coordinates))]
        return [Piece(self.data, self.map.with_coordinates(rows))]


def dims_of(value: ir.Value, shapes: Shapes) -> tuple[Extent, ...]:
    """The dims of a value. Raises NotAffine where one is unknown or zero."""
    dims = shapes.dims(value)
    if dims is None or None in dims:
        raise NotAffine(f"The shape of `{value.name}` is unknown")
    if 0 in dims:
        raise NotAffine(f"`{value.name}` has no elements")
    return tuple(shapes.extent(d) for d in dims if d is not None)


def _is_computed(op_type: str, k: int, value: ir.Value) -> str:
    names = _PARAMETERS.get(op_type, ())
    name = names[k - 1] if k <= len(names) else "parameters"
    if name.endswith("s"):
        return f"{op_type}'s {name} `{value.name}` are computed at run time; only constant {name} are fused"
    return f"{op_type}'s {name} `{value.name}` is computed at run time; only a constant {name} is fused"


def number(dim: Extent, op_type: str) -> int:
    """The size of the dim that an operator works along. Raises NotAffine where the size is symbolic."""
    if dim.number is None:
        raise NotAffine(f"{op_type} works along a dim of unknown size; only dims of known size are fused")
    return dim.number


def _reshape(use: Use) -> list[Piece]:
    if not is_shape_of_dims(use.node):
        use.parameter(1)
    return [Piece(use.data, reshape(use.map, use.result_dims, use.dims()))]


def is_shape_of_dims(node: ir.Node) -> bool:
    """Whether a node is a Reshape or Expand to a computed shape, which a function's body computes from dims."""
    shape = node.inputs[1] if node.op_type in ("Reshape", "Expand") and node.domain == "" else None
    return shape is not None and (shape.const_value is None or shape.is_graph_input())


def _transpose(use: Use) -> list[Piece]:
    order = use.attribute("perm", None) or range(len(use.dims()))[::-1]
    return use.moved({int(axis): use.map.coordinates[k] for k, axis in enumerate(order)})


def _expand(use: Use) -> list[Piece]:
    if not is_shape_of_dims(use.node):
        use.parameter(1)
    return use.moved(broadcast(use.map, use.result_dims, use.data, use.shapes))


def broadcast(result: Map, result_dims: tuple[Extent, ...], operand: ir.Value, shapes: Shapes) -> list[Linear]:
    """Coordinates of an operand that numpy's rules broadcast into the result."""
    dims = dims_of(operand, shapes)
    if len(dims) > len(result_dims):
        raise NotAffine(f"`{operand.name}` has more dims than the shape it is broadcast to")
    first = len(result_dims) - len(dims)
    rows = []
    for k, dim in enumerate(dims):
        if dim != ONE and dim != result_dims[first + k]:
            raise NotAffine(f"A dim of `{operand.name}` may or may not be broadcast: its size is symbolic")
        rows.append(Linear() if dim == ONE else result.coordinates[first + k])
    return rows


def _slice(use: Use) -> list[Piece]:
    starts, ends, axes, steps = (use.parameter(k) for k in (1, 2, 3, 4))
    if starts is None or ends is None:
        raise NotAffine("Slice has no starts or no ends")
    dims = use.dims()
    rows = list(use.map.coordinates)
    for k, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        axis = (int(axes[k]) if axes is not None else k) % len(dims)
        step = int(steps[k]) if steps is not None else 1
        size = dims[axis].number
        first = total(slice(start, end, step).indices(size)[0]) if size is not None else _first(use, axis, start, step)
        rows[axis] = rows[axis].shifted(first, step)
    return use.moved(rows)


def _first(use: Use, axis: int, start: int, step: int) -> Sum:
    """The first element that a Slice takes of a dim of unknown size, given that it takes one."""
    if start >= 0 and step > 0:
        return total(start)
    first = use.length(0, axis) + start
    if step < 0 or not first.not_negative():
        raise NotAffine("Slice cuts a dim of unknown size")
    return first


def _split(use: Use) -> list[Piece]:
    axis = use.axis(0)
    offset = sum(number(dims_of(v, use.shapes)[axis], "Split") for v in use.node.outputs[: use.output])
    rows = list(use.map.coordinates)
    rows[axis] = rows[axis].shifted(offset)
    return use.moved(rows)


def _gather(use: Use) -> list[Piece]:
    indices, axis = use.parameter(1), use.axis(0)
    if indices is None:
        raise NotAffine("Gather has no indices")
    size = number(use.dims()[axis], "Gather")
    flat = [int(i) for i in indices.reshape(-1)]
    if not all(-size <= i < size for i in flat):
        raise NotAffine(f"Gather's indices lie outside of a dim of {size}")
    first, rows = flat[0] % size, list(use.map.coordinates)
    step = flat[1] - flat[0] if len(flat) > 1 else 0
    coordinate = rows[axis].shifted(first, step) if step else Linear(total(first))
    return use.moved([*rows[:axis], coordinate, *rows[axis + indices.ndim :]])


def _tile(use: Use) -> list[Piece]:
    repeats = use.parameter(1)
    if repeats is None:
        raise NotAffine("Tile has no repeats")
    pairs = [(Extent(int(times)), dim) for times, dim in zip(repeats, use.dims(), strict=True)]
    parts = [part for pair in pairs for part in pair]
    counted = reshape(use.map, [times * dim for times, dim in pairs], parts)
    return [Piece(use.data, counted.with_coordinates(counted.coordinates[1::2]))]


def _concat(use: Use) -> list[Piece]:
    axis, begin = use.axis(0), ZERO
    form = use.map.coordinates[axis]
    pieces = []
    rolls = bool(rolled(use.node))
    for k, value in enumerate(use.node.inputs):
        if value is None:
            raise NotAffine("Concat leaves out an input")
        end = begin + (use.length(k, axis) if rolls else number(use.dims(k)[axis], "Concat"))
        guarded = use.map.guarded(form, begin, end)
        if guarded is not None:
            rows = list(guarded.coordinates)
            rows[axis] = rows[axis].shifted(begin * -1)
            inside = () if guarded is use.map else (Guard(form, begin, end),)
            pieces.append(Piece(value, guarded.with_coordinates(rows), inside))
        begin = end
    return pieces


def rolled(node: ir.Node) -> list[ir.Node]:
    """The Slices of one tensor that a Concat joins; none where it joins others.

    Dims of unknown size that others join stay a copy of ONNX Runtime.
    """
    parts = [None if value is None else value.producer() for value in node.inputs]
    slices = [part for part in parts if part is not None and (part.domain, part.op_type) == ("", "Slice")]
    is_roll = node.op_type == "Concat" and len(slices) == len(node.inputs) and len({s.inputs[0] for s in slices}) == 1
    return list(dict.fromkeys(slices)) if is_roll else []


def _pad(use: Use) -> list[Piece]:
    mode = use.attribute("mode", "constant")
    if mode != "constant":
        raise NotAffine(f"Pad has mode {mode}; only constant padding is fused")
    pads, fill, axes = use.parameter(1), use.parameter(2), use.parameter(3)
    if pads is None:
        raise NotAffine("Pad has no pads")
    dims = use.dims()
    which = range(len(dims)) if axes is None else [int(a) % len(dims) for a in axes]
    filler = Piece(None, use.map, fill=0 if fill is None else fill.reshape(()).item())
    current, rows, inside = use.map, list(use.map.coordinates), []
    for k, axis in enumerate(which):
        low, high = int(pads[k]), int(pads[k + len(which)])
        if not low and not high:
            continue
        size = number(dims[axis], "Pad")
        guarded = current.guarded(rows[axis], total(low), total(low + size))
        if guarded is None:
            return [filler]
        if guarded is not current:
            inside.append(Guard(rows[axis], total(low), total(low + size)))
        current = guarded
        rows[axis] = rows[axis].shifted(-low)
    data = Piece(use.data, current.with_coordinates(rows), tuple(inside))
    return [data, filler] if inside else [data]


def _resize(use: Use) -> list[Piece]:
    """Nearest by whole factors: every element is repeated, as by Reshape, Expand and Reshape.

    Symbolic dims of the result have to be written as multiples of the operand's (fusion/multiples.py).
    """
    pairs = list(zip(use.dims(), _factors(use), strict=True))
    parts = [part for pair in pairs for part in pair]
    whole = tuple(dim * times for dim, times in pairs)
    if whole != use.result_dims:
        raise NotAffine("Resize works along a dim of unknown size; only dims of known size are fused")
    counted = reshape(use.map, whole, parts)
    return [Piece(use.data, counted.with_coordinates(counted.coordinates[::2]))]


def _factors(use: Use) -> list[Extent]:
    """How often Resize repeats the elements along each dim. NotAffine where it does anything else."""
    mode = use.attribute("mode", "nearest")
    if mode != "nearest" or use.attribute("antialias", 0):
        raise NotAffine(f"Resize has mode {mode}; only nearest is fused")
    dims = use.dims()
    axes = [int(a) % len(dims) for a in use.attribute("axes", range(len(dims)))]
    factors = [1] * len(dims)
    _, scales, sizes = (use.parameter(k) for k in (1, 2, 3))
    if scales is not None and scales.size:
        wanted = [float(n) for n in scales]
    elif sizes is not None and use.attribute("keep_aspect_ratio_policy", "stretch") == "stretch":
        wanted = [int(n) / number(dims[a], "Resize") for a, n in zip(axes, sizes, strict=True)]
    else:
        raise NotAffine("Resize has no scales, or sizes that keep the aspect ratio")
    for axis, factor in zip(axes, wanted, strict=True):
        if not factor.is_integer() or factor < 1:
            raise NotAffine(f"Resize has a factor of {factor:.6g}; only whole factors are fused")
        factors[axis] = int(factor)
    _check_repeats(use, max(factors))
    return [Extent(n) for n in factors]


def _check_repeats(use: Use, factor: int) -> None:
    """NotAffine unless Resize's way to coordinates takes element i / factor, rounded down, for element i."""
    way = use.attribute("coordinate_transformation_mode", "half_pixel")
    rounding = use.attribute("nearest_mode", "round_prefer_floor")
    centred = way in ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel") and rounding.startswith("round")
    # From the first corner on, a half is rounded down as an element's own place is; a third is too, two thirds are not.
    cornered = way == "asymmetric" and (rounding == "floor" or (rounding == "round_prefer_floor" and factor <= 2))
    if factor > 1 and not centred and not cornered:
        raise NotAffine(f"Resize by {factor} with {way} and {rounding} does not repeat every element in its place")


def _depth_to_space(use: Use) -> list[Piece]:
    batch, channels, height, width = use.dims()
    size = int(use.attribute("blocksize", 1))
    block, depth = Extent(size), channels.over(Extent(size * size))
    if depth is None:
        raise NotAffine("DepthToSpace needs a number of channels that is known to be a multiple of blocksize²")
    by_column = use.attribute("mode", "DCR") == "DCR"
    inner = (block, block, depth) if by_column else (depth, block, block)
    order = (0, 3, 4, 1, 5, 2) if by_column else (0, 1, 4, 2, 5, 3)
    return _permuted(use, (batch, *inner, height, width), order)


def _space_to_depth(use: Use) -> list[Piece]:
    batch, channels, height, width = use.dims()
    block = Extent(int(use.attribute("blocksize", 1)))
    rows, columns = height.over(block), width.over(block)
    if rows is None or columns is None:
        raise NotAffine("SpaceToDepth needs a height and width that are known to be multiples of blocksize")
    return _permuted(use, (batch, channels, rows, block, columns, block), (0, 3, 5, 1, 2, 4))


def _permuted(use: Use, parts: tuple[Extent, ...], order: tuple[int, ...]) -> list[Piece]:
    """Undoes Reshape to `parts`, Transpose by `order` and Reshape to the result, the last one first."""
    transposed = reshape(use.map, use.result_dims, [parts[k] for k in order])
    rows = {axis: transposed.coordinates[k] for k, axis in enumerate(order)}
    inside = transposed.with_coordinates([rows[k] for k in range(len(parts))])
    return [Piece(use.data, reshape(inside, parts, use.dims()))]


VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})  # ONNX Runtime copies no data for them
_ROWS: dict[str, Callable[[Use], list[Piece]]] = {
    **dict.fromkeys(VIEWS, _reshape),
    "Transpose": _transpose,
    "Expand": _expand,
    "Slice": _slice,
    "Split": _split,
    "Gather": _gather,
    "Tile": _tile,
    "Concat": _concat,
    "Pad": _pad,
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
    "Resize": _resize,
}


def is_index(node: ir.Node) -> bool:
    """Whether the node is one of this module's operators, whatever its parameters."""
    return node.domain == "" and node.op_type in _ROWS


def is_view(node: ir.Node) -> bool:
    """Whether the node only changes the shape."""
    return node.domain == "" and node.op_type in VIEWS


def data_inputs(node: ir.Node) -> tuple[ir.Value | None, ...]:
    """The inputs that hold data; the other inputs are parameters."""
    holds_all = not is_index(node) or node.op_type == "Concat" or looks_up(node)
    return tuple(node.inputs) if holds_all else tuple(node.inputs[:1])


def reads_computed_parameters(node: ir.Node) -> bool:
    """Whether axes or other parameters of a node are computed: a kernel has no operand for them.

    The shape of a Reshape or Expand is none of them: the result's dims tell it.
    """
    if is_shape_of_dims(node):
        return False
    parameters = [v for v in node.inputs[len(data_inputs(node)) :] if v is not None]
    return any(v.const_value is None or v.is_graph_input() for v in parameters)


def undo(node: ir.Node, output: int, result: Map, shapes: Shapes) -> list[Piece]:
    """The pieces of the node's result `output` that is read by the map `result`. Raises NotAffine."""
    return _ROWS[node.op_type](Use(node, output, result, shapes))
