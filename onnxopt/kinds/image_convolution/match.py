"""Image convolutions in the graph: a dense convolution of one to four channels, NCHW or NHWC."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from onnxopt.fusion.channels_last import KRSC, Sandwich, around_window, sandwich
from onnxopt.fusion.core_lowering import CoreMatch
from onnxopt.graph.layout.orders import TO_NHWC, transposes
from onnxopt.graph.match import is_constant, is_private
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.program.core import FLOATS
from onnxopt.program.image_convolution import FILTERS, MAX_CHANNELS, MAX_FILTERS, ImageConvolution


def image(conv: ir.Node, shapes: Shapes) -> CoreMatch | str:
    """The convolution around a Conv, or the reason why no kernel of this kind can run it."""
    match = sandwich(conv, shapes)
    if isinstance(match, str):
        return match
    w, x = shapes.dims(match.w), shapes.dims(match.x)
    if w is None or x is None or len(w) != 4 or match.weight_order != KRSC or not is_constant(match.w):
        return "The weight is no constant [K, R, S, C]"
    filters, rows, columns, channels = w
    if match.group != 1 or not isinstance(channels, int) or not 1 <= channels <= MAX_CHANNELS or x[-1] != channels:
        return f"The convolution has groups, or not 1 to {MAX_CHANNELS} channels"
    if not isinstance(filters, int) or filters < FILTERS or filters % FILTERS or filters > MAX_FILTERS:
        return f"The number of filters, {filters}, is no multiple of {FILTERS} up to {MAX_FILTERS}"
    dtype = shapes.dtype(match.x)
    if dtype is None or dtype.name not in FLOATS or any(shapes.dtype(v) != dtype for v in (match.w, match.y)):
        return f"The dtype of `{match.x.name}` is not one of {', '.join(FLOATS)}"
    if match.bias is not None and (shapes.dims(match.bias) != (filters,) or shapes.dtype(match.bias) != dtype):
        return f"The bias `{match.bias.name}` is not one {dtype.name} a filter"
    reason = _why_not_window(match, (rows, columns))
    return reason or _with_layout(match, channels, shapes)


def _why_not_window(match: Sandwich, kernel: tuple[object, object]) -> str:
    window = match.window
    if window is None or window.kernel != kernel:
        return "kernel_shape is not that of the weight"
    if window.auto_pad != "NOTSET" and any(match.conv.attributes.get_ints("pads", ())):
        return "ONNX Runtime refuses pads beside auto_pad"
    try:
        window.verify()
    except ValueError as error:
        return f"The Conv is invalid: {error}"
    broken = ImageConvolution.why_not(window=window)
    return f"Of the convolution, the {broken}" if broken else ""


def _with_layout(match: Sandwich, channels: int, shapes: Shapes) -> CoreMatch:
    """The convolution with the Transpose to NHWC and the Pad that appends channels of zeros, where nothing else reads
    their results."""
    x, nodes = match.x, match.nodes
    source = _padded(x, shapes)
    if source is not None:
        producer, dims = x.producer(), shapes.dims(source)
        assert producer is not None and dims is not None and isinstance(dims[-1], int)
        x, nodes, channels = source, (producer, *nodes), dims[-1]
    turn = x.producer()
    turned = turn is not None and transposes(turn, TO_NHWC) and around_window(turn) is None  # not another operator's
    if turn is not None and turned and is_private(x) and turn.inputs[0] is not None:
        return _core(match, (turn, *nodes), turn.inputs[0], channels, planes=True, shapes=shapes)
    return _core(match, nodes, x, channels, planes=False, shapes=shapes)


def _core(
    match: Sandwich, nodes: tuple[ir.Node, ...], x: ir.Value, channels: int, *, planes: bool, shapes: Shapes
) -> CoreMatch:
    """x: [N, H, W, C], or [N, C, H, W] with `planes`."""
    dims = shapes.dims(match.w)
    assert dims is not None
    return CoreMatch(
        nodes=nodes,
        x=x,
        y=match.y,
        operands={"weight": match.w, "bias": match.bias},
        first=(x, match.w, match.bias),
        fields={
            "channels": channels,
            "weight_channels": dims[3],
            "filters": dims[0],
            "planes": planes,
            "window": match.window,
        },
        channels=1 if planes else -1,
    )


def with_transpose(match: CoreMatch, turn: ir.Node) -> CoreMatch:
    """The convolution of an NCHW image that a Transpose upstream of the prologue turns."""
    image = turn.inputs[0]
    assert image is not None
    return dataclasses.replace(
        match,
        nodes=(turn, *match.nodes),
        first=(image, *match.first[1:]),
        fields={**match.fields, "planes": True},
        entry=(turn.outputs[0], image),
    )


def _padded(x: ir.Value, shapes: Shapes) -> ir.Value | None:
    """What a Pad appends channels of zeros to, None where x is no such private result."""
    pad = x.producer()
    if pad is None or pad.op_type != "Pad" or pad.domain != "" or not is_private(x) or len(pad.inputs) != 2:
        return None
    source, pads = pad.inputs
    dims, padded = (shapes.dims(v) if v is not None else None for v in (source, x))
    if source is None or pads is None or not is_constant(pads) or dims is None or padded is None:
        return None
    assert pads.const_value is not None
    counts = pads.const_value.numpy().tolist()
    is_constant_pad = pad.attributes.get_string("mode", "constant") == "constant"
    appended = is_constant_pad and not any(counts[:-1]) and len(counts) == 2 * len(dims)
    channels = dims[-1]
    fits = isinstance(channels, int) and channels >= 1 and counts[-1] >= 0 and channels + counts[-1] == padded[-1]
    return source if appended and fits else None
