"""Image convolutions in the graph, and what their nodes mean."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from onnxopt.fusion.channels_last import KRSC, Sandwich, around_window, sandwich
from onnxopt.fusion.in_front import inputs_around, nodes_in_front, source_of
from onnxopt.fusion.operands import storage
from onnxopt.graph.layout.orders import TO_NHWC, transposes
from onnxopt.graph.match import is_constant, is_private
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.depthwise.lower import part_of
from onnxopt.program.core import FLOATS, Transform
from onnxopt.program.image_convolution import FILTERS, MAX_CHANNELS, MAX_FILTERS, ImageConvolution


@dataclasses.dataclass(frozen=True)
class Image:
    """A convolution and what it reads.

    nodes: those of the sandwich, and in front of it a Transpose to NHWC and a Pad that appends channels of zeros, where
    nothing else reads their results. x: [N, H, W, C], or [N, C, H, W] with `planes`.
    """

    found: Sandwich
    nodes: tuple[ir.Node, ...]
    x: ir.Value
    planes: bool
    channels: int


def image(conv: ir.Node, shapes: Shapes) -> Image | str:
    """The convolution around a Conv, or the reason why no kernel of this kind can run it."""
    found = sandwich(conv, shapes)
    if isinstance(found, str):
        return found
    w, x = shapes.dims(found.w), shapes.dims(found.x)
    if w is None or x is None or len(w) != 4 or len(x) != 4 or found.weight_order != KRSC or not is_constant(found.w):
        return "The weight is no constant [K, R, S, C]"
    filters, rows, columns, channels = w
    if found.group != 1 or not isinstance(channels, int) or not 1 <= channels <= MAX_CHANNELS or x[3] != channels:
        return f"The convolution has groups, or not 1 to {MAX_CHANNELS} channels"
    if not isinstance(filters, int) or filters < FILTERS or filters % FILTERS or filters > MAX_FILTERS:
        return f"The number of filters, {filters}, is no multiple of {FILTERS} up to {MAX_FILTERS}"
    dtype = shapes.dtype(found.x)
    if dtype is None or dtype.name not in FLOATS or any(shapes.dtype(v) != dtype for v in (found.w, found.y)):
        return f"The dtype of `{found.x.name}` is not one of {', '.join(FLOATS)}"
    if found.bias is not None and (shapes.dims(found.bias) != (filters,) or shapes.dtype(found.bias) != dtype):
        return f"The bias `{found.bias.name}` is not one {dtype.name} a filter"
    reason = _why_not_window(found, (rows, columns))
    return reason or _with_front(found, channels, shapes)


def _why_not_window(found: Sandwich, kernel: tuple[object, object]) -> str:
    window = found.window
    if window is None or window.kernel != kernel:
        return "kernel_shape is not that of the weight"
    if window.auto_pad != "NOTSET" and any(found.conv.attributes.get_ints("pads", ())):
        return "ONNX Runtime refuses pads beside auto_pad"
    try:
        window.verify()
    except ValueError as error:
        return f"The Conv is invalid: {error}"
    broken = ImageConvolution.why_not(window=window)
    return f"Of the convolution, the {broken}" if broken else ""


def _with_front(found: Sandwich, channels: int, shapes: Shapes) -> Image:
    """The convolution with the Pad and the Transpose in front of it that only it reads."""
    x, nodes = found.x, found.nodes
    source = _padded(x, shapes)
    if source is not None:
        producer, dims = x.producer(), shapes.dims(source)
        assert producer is not None and dims is not None and isinstance(dims[3], int)
        x, nodes, channels = source, (producer, *nodes), dims[3]
    turn = x.producer()
    turned = turn is not None and transposes(turn, TO_NHWC) and around_window(turn) is None  # not another operator's
    if turn is not None and turned and is_private(x) and turn.inputs[0] is not None:
        return Image(found, (turn, *nodes), turn.inputs[0], True, channels)
    return Image(found, nodes, x, False, channels)


def _padded(x: ir.Value, shapes: Shapes) -> ir.Value | None:
    """What a Pad appends channels of zeros to, None where x is no such private result."""
    pad = x.producer()
    if pad is None or pad.op_type != "Pad" or pad.domain != "" or not is_private(x) or len(pad.inputs) != 2:
        return None
    source, pads = pad.inputs
    dims, padded = (shapes.dims(v) if v is not None else None for v in (source, x))
    if source is None or pads is None or not is_constant(pads) or dims is None or padded is None or len(dims) != 4:
        return None
    assert pads.const_value is not None
    counts = pads.const_value.numpy().tolist()
    appended = pad.attributes.get_string("mode", "constant") == "constant" and not any(counts[:7]) and len(counts) == 8
    fits = isinstance(dims[3], int) and dims[3] >= 1 and counts[-1] >= 0 and dims[3] + counts[-1] == padded[3]
    return source if appended and fits else None


def lower(
    nodes: Sequence[ir.Node],
    inputs: Sequence[ir.Value],
    outputs: Sequence[ir.Value],
    opsets: Mapping[str, int],
    shapes: Shapes,
) -> ImageConvolution:
    """The meaning of nodes in topological order, one of them a Conv of an image, that read `inputs` and constants.

    Raises ValueError, with the reason, where the nodes cannot be one kernel.
    """
    (conv,) = (n for n in nodes if n.op_type == "Conv")
    of = image(conv, shapes)
    if isinstance(of, str):
        raise ValueError(of)
    if len(outputs) != 1:
        raise ValueError(f"The kernel has {len(outputs)} results")
    found = of.found
    others = [n for n in nodes if n not in of.nodes]
    in_front = nodes_in_front(of.x, others)
    behind = [n for n in others if n not in in_front]
    x, planes, before = of.x, of.planes, None
    if in_front:
        x, planes, before = _before(of, in_front, inputs, opsets, shapes)
    dims = shapes.dims(found.w)
    assert dims is not None and found.window is not None
    assert isinstance(dims[0], int) and isinstance(dims[3], int)
    meaning = ImageConvolution(
        inputs=tuple(storage(v, shapes).name for v in inputs),
        outputs=(storage(outputs[0], shapes).name,),
        channels=of.channels,
        weight_channels=dims[3],
        filters=dims[0],
        planes=planes,
        window=found.window,
        epilogue=part_of(behind, found.y, "float32", outputs[0], inputs, opsets, shapes),
        prologue=before,
        x=inputs.index(x),
        weight=inputs.index(found.w),
        bias=None if found.bias is None else inputs.index(found.bias),
    )
    meaning.verify()
    return meaning


def _before(
    of: Image, nodes: Sequence[ir.Node], inputs: Sequence[ir.Value], opsets: Mapping[str, int], shapes: Shapes
) -> tuple[ir.Value, bool, Transform]:
    """The image that nodes in front read, whether it is NCHW, and their program. A Transpose to NHWC may be first."""
    turns = [n for n in nodes if transposes(n, TO_NHWC)]
    elementwise = [n for n in nodes if n not in turns]
    source, planes = source_of(of.x, elementwise, shapes), of.planes
    part = part_of(elementwise, source, storage(source, shapes).name, of.x, inputs, opsets, shapes, 1 if planes else -1)
    if not turns:
        return source, planes, part
    if len(turns) > 1 or planes or turns[0].outputs[0] is not source or turns[0].inputs[0] is None:
        raise ValueError("The nodes in front transpose more than the image")
    return turns[0].inputs[0], True, part


def inputs_of(of: Image, nodes: Sequence[ir.Node], x: ir.Value | None = None) -> list[ir.Value]:
    """Values that a region reads from outside: x, weight, bias, then others in order of first use; no constants that
    its nodes keep. x: what nodes in front read, where there are some."""
    return inputs_around(of.nodes, (of.x if x is None else x, of.found.w, of.found.bias), nodes)
