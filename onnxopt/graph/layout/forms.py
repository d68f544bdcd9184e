"""How each operator looks in channels last: which operands and results lie as [N, H, W, C], and what else changes.

Volumes have a depth after N.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxopt.graph import coded_convolutions
from onnxopt.graph.codes import is_dequantize, is_plain
from onnxopt.graph.layout.orders import RANK, RANKS, to_channels_first, to_channels_last
from onnxopt.graph.match import constant, is_constant
from onnxopt.program.operators import row_operators
from onnxopt.program.operators import table as operators

CONVOLVED = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.FLOAT})
# Operators over height and width, of volumes over depth too, which stay as they are between two Transposes.
CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})
_SPATIAL = CONVOLUTIONS | {"MaxPool", "AveragePool", "Resize", "DepthToSpace", "SpaceToDepth"}
# Operators over whole maps, which a kernel for reductions runs in any layout.
_GLOBAL_POOLS = {"GlobalAveragePool": "ReduceMean", "GlobalMaxPool": "ReduceMax"}
_REDUCED_AS_INPUT = 18  # the opset from which on these operators take their axes as an input
QUANTIZED = frozenset({"QuantizeLinear", "DequantizeLinear"})


@dataclasses.dataclass(frozen=True)
class Form:
    """A node in channels last.

    inputs, outputs: positions of the operands and results that lie in channels last; no result where all lie the same
    in either layout. attributes: those that change. constants: by position, operands with new contents. spread:
    positions of computed operands of fewer dims than the result, which get as many and then lie in channels last.
    between: the node itself stays as it is, between Transposes. op_type: of the node that replaces it, "" for its own.
    term: of a normalization, which becomes a Mul by constant 1 and an Add of this. dims: of a Shape: which
    dims of channels last its result consists of. begins: of the last node of a norm over groups, the first one: either
    both lie in channels last or none, and the result has the shape of the first one's operand.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...] = (0,)
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    constants: Mapping[int, np.ndarray] = dataclasses.field(default_factory=dict)
    spread: tuple[int, ...] = ()
    between: bool = False
    op_type: str = ""
    term: np.ndarray | None = None
    dims: tuple[int, ...] = ()
    begins: ir.Node | None = None

    def maps(self, node: ir.Node) -> list[ir.Value]:
        """The operands and results that lie in channels last."""
        operands = [operand(node, k) for k in self.inputs]
        return [*operands, *(node.outputs[k] for k in self.outputs)]


def operand(node: ir.Node, position: int) -> ir.Value:
    """An operand that is not left out."""
    value = node.inputs[position]
    assert value is not None
    return value


def form(node: ir.Node, opset: int, *, codes: bool = False) -> Form | None:
    """The node in channels last, None where it stays as it is. Shapes must have been inferred. opset: of ONNX. codes:
    whether kernels multiply the codes of convolutions."""
    if any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in node.attributes.values()):
        return None
    if node.domain == "":
        if node.op_type in _SPATIAL:
            return _spatial(node, codes)
        if node.op_type in _GLOBAL_POOLS and opset >= _REDUCED_AS_INPUT and is_map(node.inputs[0]):
            axes = np.arange(1, _rank_of(node.inputs[0]) - 1)
            return Form((0,), constants={1: axes}, op_type=_GLOBAL_POOLS[node.op_type])
        if node.op_type in _BY_OPERATOR:
            return _BY_OPERATOR[node.op_type](node)
        row = row_operators.find("", node.op_type, opset)
        if row is not None and row.operands == 1 and not row.channels:
            return _along_axes(node, row.axes, row.axis) if row.axes in ("axis", "axes") else None
    if node.op_type in QUANTIZED and not (codes and is_plain(node)):
        return None  # beside convolutions that stay, or with an axis of its own
    if operators.find(node.domain, node.op_type, opset if node.domain == "" else 1) is not None:
        return _elementwise(node)
    return None


def rank(value: ir.Value | None) -> int | None:
    if value is None:
        return None
    if value.const_value is not None:
        return len(value.const_value.shape)
    return None if value.shape is None else len(value.shape)


def is_map(value: ir.Value | None) -> bool:
    """Whether a value is computed, or an input, and has the dims of an image or a volume."""
    return rank(value) in RANKS and not is_constant(value)


def _rank_of(map_: ir.Value | None) -> int:
    dims = rank(map_)
    assert dims is not None
    return dims


def _axis_of(axis: int, dims: int) -> int:
    """An axis of [N, C, ...], of so many dims, in [N, ..., C]."""
    return to_channels_last(dims).index(axis % dims)


def _result_positions(node: ir.Node, dims: int) -> tuple[int, ...] | None:
    """The positions of all results, None where one has not so many dims."""
    if any(v.name and rank(v) != dims for v in node.outputs):
        return None
    return tuple(range(len(node.outputs)))


def _spatial(node: ir.Node, codes: bool) -> Form | None:
    data = node.inputs[0]
    if not is_map(data) or rank(node.outputs[0]) != rank(data) or len(node.outputs) != 1:
        return None
    if node.op_type in CONVOLUTIONS:
        assert data is not None
        if data.dtype not in CONVOLVED or rank(node.inputs[1]) != rank(data):
            return None
        if not (is_constant(node.inputs[1]) or (codes and reads_codes(node))) or _has_grouped_depth(node):
            return None  # no kernel takes it, so that nothing would absorb the Transposes
    if node.op_type == "ConvTranspose" and not _has_kernel(node):
        return None
    return Form((0,), between=True)


def _has_grouped_depth(node: ir.Node) -> bool:
    """Whether a convolution with groups goes over the depth of a volume, for which no NDHWC kernel was measured."""
    if rank(node.inputs[0]) == RANK or node.attributes.get_int("group", 1) == 1:
        return False
    weight = operand(node, 1).const_value
    return node.op_type != "Conv" or weight is None or not is_plane_by_plane(node, weight.shape.numpy()[2:])


def is_plane_by_plane(node: ir.Node, kernel: Sequence[object] = ()) -> bool:
    """Whether a window over a volume sees one plane at a time, each as an image of its own. kernel: where the node
    does not state it."""
    of = node.attributes
    sides, strides = of.get_ints("kernel_shape", kernel), of.get_ints("strides", (1, 1, 1))
    pads = of.get_ints("pads", (0,) * 6)
    return len(sides) == 3 and sides[0] == strides[0] == 1 and pads[0] == pads[3] == 0


def _has_kernel(node: ir.Node) -> bool:
    """Whether the kind `convolution` runs a ConvTranspose; others stay NCHW, as ONNX Runtime's kernels want them."""
    of = node.attributes
    if "output_shape" in of or of.get_string("auto_pad", "NOTSET") != "NOTSET":
        return False
    axes = _rank_of(node.inputs[0]) - 2
    padding, strides = of.get_ints("output_padding", (0,) * axes), of.get_ints("strides", (1,) * axes)
    return all(0 <= p < stride for p, stride in zip(padding, strides, strict=False))


def is_quantized(node: ir.Node) -> bool:
    """Whether the node reads or feeds an operator of quantization, with which runtimes fuse it."""
    around = [v.producer() for v in node.inputs if v is not None] + [u for v in node.outputs for u in v.consumers()]
    return any(n is not None and n.op_type in QUANTIZED for n in around)


def reads_codes(node: ir.Node) -> bool:
    """Whether a Conv of [N, C, H, W] multiplies codes that a kernel takes."""
    dequantize = operand(node, 1).producer()
    codes = dequantize.inputs[0] if is_dequantize(dequantize) and dequantize is not None else None
    return codes is not None and not isinstance(coded_convolutions.operands(node, node.inputs[0], codes), str)


def _elementwise(node: ir.Node) -> Form | None:
    count = rank(node.outputs[0])
    if len(node.outputs) != 1 or count not in RANKS:
        return None
    maps, spread, constants = [], [], {}
    for k, value in enumerate(node.inputs):
        if value is None:
            continue
        if (array := constant(value)) is not None:
            if array.size != 1:
                constants[k] = _permuted(array, count)
            elif array.ndim == count:
                constants[k] = array.reshape(())
        elif (dims := rank(value)) is None:
            return None
        elif dims == count:
            maps.append(k)
        elif not _is_scalar(value):
            spread.append(k)
    return Form(tuple(maps), constants=constants, spread=tuple(spread)) if maps else None


def _is_scalar(value: ir.Value) -> bool:
    return value.shape is not None and all(dim == 1 for dim in value.shape)


def _permuted(array: np.ndarray, dims: int) -> np.ndarray:
    """A constant that broadcasts against [N, C, ...], of so many dims, for [N, ..., C]; no leading dims of 1."""
    whole = array.reshape((1,) * (dims - array.ndim) + array.shape).transpose(to_channels_last(dims))
    first = next((k for k, size in enumerate(whole.shape) if size != 1), dims)
    return np.ascontiguousarray(whole.reshape(whole.shape[first:]))


def _normalization(node: ir.Node) -> Form | None:
    """A BatchNormalization that no convolution has taken in. Factor and term are rounded once."""
    arrays = [constant(value) for value in node.inputs[1:5]]
    data = node.inputs[0]
    if not is_map(data) or len(node.outputs) != 1 or data is None or data.dtype not in CONVOLVED:
        return None
    if any(array is None for array in arrays) or node.attributes.get_int("training_mode", 0) == 1:
        return None
    gamma, beta, mean, variance = (array.astype(np.float64) for array in arrays if array is not None)
    with np.errstate(all="ignore"):
        scale = gamma / np.sqrt(variance + node.attributes.get_float("epsilon", 1e-5))
        factor, term = (array.astype(data.dtype.numpy()) for array in (scale, beta - mean * scale))
    if not all(np.isfinite(array.astype(np.float64)).all() for array in (factor, term)):
        return None
    return Form((0,), constants={1: factor}, term=term)


def _along_axes(node: ir.Node, axes: str, default: int) -> Form | None:
    if not is_map(node.inputs[0]) or any(rank(v) is None for v in node.outputs):
        return None
    attributes: dict[str, Any] = {}
    constants: dict[int, np.ndarray] = {}
    dims = _rank_of(node.inputs[0])
    if axes == "axis":
        reduced = {int(node.attributes.get_int("axis", default)) % dims}
        attributes["axis"] = _axis_of(next(iter(reduced)), dims)
    elif "axes" in node.attributes:
        reduced = {axis % dims for axis in node.attributes.get_ints("axes")}
        attributes["axes"] = sorted(_axis_of(axis, dims) for axis in reduced)
    elif len(node.inputs) > 1 and node.inputs[1] is not None:
        array = constant(node.inputs[1])
        if array is None:
            return None
        reduced = {int(axis) % dims for axis in array}
        constants[1] = np.array(sorted(_axis_of(axis, dims) for axis in reduced), np.int64)
        if not reduced:
            return None
    else:
        if node.op_type == "MeanVarianceNormalization" or node.attributes.get_int("noop_with_empty_axes", 0) == 1:
            return None
        reduced = set(range(dims))
    if rank(node.outputs[0]) == dims:
        return Form((0,), attributes=attributes, constants=constants)
    rest = [_axis_of(axis, dims) for axis in range(dims) if axis not in reduced]
    if rest != sorted(rest):
        return None  # the result's dims would come in another order
    return Form((0,), (), attributes, constants)


def _concat(node: ir.Node) -> Form | None:
    constants = {k: array for k, v in enumerate(node.inputs) if (array := constant(v)) is not None}
    maps = tuple(k for k, v in enumerate(node.inputs) if k not in constants)
    count = rank(node.outputs[0])
    if not maps or count is None or not all(is_map(node.inputs[k]) and rank(node.inputs[k]) == count for k in maps):
        return None
    turned = {k: np.ascontiguousarray(array.transpose(to_channels_last(count))) for k, array in constants.items()}
    return Form(maps, attributes={"axis": _axis_of(node.attributes.get_int("axis", 0), count)}, constants=turned)


def _split(node: ir.Node) -> Form | None:
    if not is_map(node.inputs[0]):
        return None
    count = _rank_of(node.inputs[0])
    results = _result_positions(node, count)
    if results is None:
        return None
    return Form((0,), results, {"axis": _axis_of(node.attributes.get_int("axis", 0), count)})


def _slice(node: ir.Node) -> Form | None:
    count = rank(node.outputs[0])
    if not is_map(node.inputs[0]) or rank(node.inputs[0]) != count or count is None or len(node.inputs) < 3:
        return None
    axes = node.inputs[3] if len(node.inputs) > 3 else None
    array = constant(axes)
    if array is None:
        starts = None if axes is not None or node.inputs[1] is None else constant(node.inputs[1])
        if starts is None:
            return None
        array = np.arange(starts.size)
    return Form((0,), constants={3: np.array([_axis_of(int(axis), count) for axis in array], np.int64)})


def _pad(node: ir.Node) -> Form | None:
    """Pads of all axes: ONNX Runtime's optimizer fails where it moves a Transpose through a Pad of a few axes.

    A Pad that names its axes still does. Without axes the optimizer makes zeros in front of a MaxPool the pool's own
    pads, which are minus infinity (seen up to 1.31.1): results that the original does not have.
    """
    pads = constant(node.inputs[1]) if len(node.inputs) > 1 else None
    count = rank(node.outputs[0])
    if not is_map(node.inputs[0]) or rank(node.inputs[0]) != count or count is None or pads is None:
        return None
    fill = node.inputs[3] if len(node.inputs) > 3 else None
    axes = constant(fill) if fill is not None else np.arange(count)
    if axes is None or pads.size != 2 * axes.size:
        return None
    whole = np.zeros(2 * count, np.int64)
    for k, axis in enumerate(axes):
        at = _axis_of(int(axis), count)
        whole[[at, count + at]] = pads[k], pads[axes.size + k]
    stated = {} if fill is None else {3: np.arange(count, dtype=np.int64)}
    return Form((0,), constants={1: whole} | stated)


def _flat(node: ir.Node) -> Form | None:
    """An operator that only changes the dims of [N, C, 1, 1], which is the same memory in either layout."""
    value = node.inputs[0]
    if not is_map(value) or value is None or value.shape is None or any(dim != 1 for dim in value.shape[2:]):
        return None
    count = len(value.shape)
    if node.op_type == "Flatten":
        return Form((0,), ()) if node.attributes.get_int("axis", 1) == 1 else None
    array = constant(node.inputs[1]) if len(node.inputs) > 1 else None
    if array is None:
        return None
    if node.op_type == "Squeeze":
        same = sorted(int(axis) % count for axis in array) == list(range(2, count))
        return Form((0,), (), constants={1: np.arange(1, count - 1)}) if same else None
    copies = bool((array[node.attributes.get_int("allowzero", 0) != 1 :] == 0).any())  # or dims of 0
    return None if copies or array.size >= RANK else Form((0,), ())


def _unflat(node: ir.Node) -> Form | None:
    """[N, C] as a map of one pixel."""
    array = constant(node.inputs[1]) if len(node.inputs) > 1 else None
    if array is None or rank(node.inputs[0]) != 2 or is_constant(node.inputs[0]):
        return None
    count = 2 + array.size
    same = count in RANKS and sorted(int(axis) % count for axis in array.reshape(-1)) == list(range(2, count))
    return Form((), (0,), constants={1: np.arange(1, count - 1)}) if same else None


def _shape(node: ir.Node) -> Form | None:
    """The dims of a map, which need no other layout of the map."""
    if not is_map(node.inputs[0]):
        return None
    count = _rank_of(node.inputs[0])
    dims = to_channels_first(count)[node.attributes.get_int("start", 0) : node.attributes.get_int("end", count)]
    return Form((0,), (), dims=dims) if dims else None


_BY_OPERATOR: Mapping[str, Callable[[ir.Node], Form | None]] = {
    "Concat": _concat, "Split": _split, "Slice": _slice, "Pad": _pad, "Flatten": _flat, "Squeeze": _flat,
    "Reshape": _flat, "Unsqueeze": _unflat, "Shape": _shape, "BatchNormalization": _normalization,
}  # fmt: skip
