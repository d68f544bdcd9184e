"""Lowering of depthwise regions: a program in front of the convolution, the convolution, and a program behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from onnxopt.fusion.channels_last import RSK, Sandwich, sandwich
from onnxopt.fusion.in_front import inputs_around, nodes_in_front, source_of
from onnxopt.fusion.operands import apply_operator, constant, storage
from onnxopt.graph.match import is_constant
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.pointwise.lower import immediate
from onnxopt.program.core import FLOATS, Transform, TransformRead
from onnxopt.program.depthwise import EXPANDED, MAX_EXPANDED, MAX_SIDE, Depthwise, Expansion
from onnxopt.program.expressions import Builder, Expr
from onnxopt.program.pointwise import Program, without_dead_code


def convolution(node: ir.Node, shapes: Shapes) -> Sandwich | str:
    """The depthwise convolution around a Conv, or the reason why no kernel of this kind can run it."""
    found = sandwich(node, shapes)
    if isinstance(found, str):
        return found
    dims, x = shapes.dims(found.w), shapes.dims(found.x)
    if found.weight_order != RSK or not is_constant(found.w) or dims is None or len(dims) != 4:
        return "The weight is no constant that lies in the order of its kernel's rows"
    channels, dtype = dims[3], shapes.dtype(found.x)
    if found.group != channels or dims[2] != 1 or x is None or len(x) != 4 or x[3] != channels:
        return "The convolution has no filter of its own for each channel"
    if dtype is None or dtype.name not in FLOATS or any(shapes.dtype(v) != dtype for v in (found.w, found.y)):
        return f"The dtype of `{found.x.name}` is not one of {', '.join(FLOATS)}"
    if found.bias is not None and (shapes.dims(found.bias) != (channels,) or shapes.dtype(found.bias) != dtype):
        return f"The bias `{found.bias.name}` is not one {dtype.name} a channel"
    window = found.window
    if window is None:
        return "The size of the convolution's kernel is unknown"
    if max(*window.kernel, *window.strides, *window.dilations) > MAX_SIDE or min(window.pads) < 0:
        return f"The convolution's kernel, stride or dilation is above {MAX_SIDE}, or a padding is negative"
    if window.auto_pad.startswith("SAME") and max(window.dilations) > 1:
        return f"ONNX Runtime refuses dilations beside auto_pad = {window.auto_pad}"
    return found


def lower(
    nodes: Sequence[ir.Node],
    inputs: Sequence[ir.Value],
    outputs: Sequence[ir.Value],
    opsets: Mapping[str, int],
    shapes: Shapes,
) -> Depthwise:
    """The meaning of nodes in topological order that read `inputs` and scalar constants: one depthwise Conv, perhaps a
    1x1 Conv in front, and elementwise nodes.

    Raises ValueError, with the reason, where the nodes cannot be one kernel.
    """
    found, wide = _convolutions(nodes, shapes)
    if len(outputs) != 1:
        raise ValueError(f"The kernel has {len(outputs)} results")
    expanded = wide.nodes if wide is not None else ()
    others = [n for n in nodes if n not in found.nodes and n not in expanded]
    in_front = nodes_in_front(found.x, others)
    behind = [n for n in others if n not in in_front]
    source = source_of(found.x, in_front, shapes) if in_front else found.x
    if wide is not None and source is not wide.y:
        raise ValueError(f"`{found.x.name}` is no function of the 1x1 convolution's result alone")
    dtype = storage(found.x, shapes).name
    before = None
    if in_front:
        before = part_of(in_front, source, dtype, found.x, inputs, opsets, shapes)
    after = part_of(behind, found.y, "float32", outputs[0], inputs, opsets, shapes)
    dims = shapes.dims(found.w)
    assert dims is not None and found.window is not None and isinstance(dims[3], int)
    meaning = Depthwise(
        inputs=tuple(storage(v, shapes).name for v in inputs),
        outputs=(storage(outputs[0], shapes).name,),
        channels=dims[3],
        window=found.window,
        epilogue=after,
        prologue=before,
        x=inputs.index(source if wide is None else wide.x),
        weight=inputs.index(found.w),
        bias=None if found.bias is None else inputs.index(found.bias),
        expansion=None if wide is None else _expansion(wide, inputs, shapes),
    )
    meaning.verify()
    return meaning


def expansion(node: ir.Node, shapes: Shapes) -> Sandwich | str:
    """The 1x1 convolution around a Conv that widens what a depthwise one reads, or the reason why no kernel of this
    kind can run it."""
    found = sandwich(node, shapes)
    if isinstance(found, str):
        return found
    dims, dtype, x = shapes.dims(found.w), shapes.dtype(found.x), shapes.dims(found.x)
    is_pointwise = found.window is not None and found.window.is_pointwise and found.group == 1
    if dims is None or len(dims) != 2 or not is_pointwise or not is_constant(found.w) or found.is_transposed:
        return "The Conv is no 1x1 convolution with a constant matrix, without strides, padding and groups"
    wide, narrow = dims
    if not isinstance(wide, int) or not isinstance(narrow, int) or wide % 8 or narrow % 8 or narrow > MAX_EXPANDED:
        return f"{narrow} and {wide} channels are no multiples of 8 up to {MAX_EXPANDED} and any number"
    if x is None or len(x) != 4 or x[3] != narrow:
        return f"`{found.x.name}` has not {narrow} channels"
    if dtype is None or dtype.name not in EXPANDED or any(shapes.dtype(v) != dtype for v in (found.w, found.y)):
        return f"The dtype of `{found.x.name}` is not one of {', '.join(EXPANDED)}"
    if found.bias is not None and (shapes.dims(found.bias) != (wide,) or shapes.dtype(found.bias) != dtype):
        return f"The bias `{found.bias.name}` is not one {dtype.name} a channel"
    return found


def _convolutions(nodes: Sequence[ir.Node], shapes: Shapes) -> tuple[Sandwich, Sandwich | None]:
    """The depthwise convolution among the nodes, and the 1x1 convolution in front of it, if any."""
    *first, conv = (n for n in nodes if n.op_type == "Conv")
    found = convolution(conv, shapes)
    wide = expansion(first[0], shapes) if len(first) == 1 else None
    reason = found if isinstance(found, str) else wide
    if isinstance(found, str) or isinstance(reason, str) or len(first) > 1:
        raise ValueError(reason if isinstance(reason, str) else f"{len(first) + 1} convolutions")
    assert not isinstance(wide, str)
    return found, wide


def _expansion(wide: Sandwich, inputs: Sequence[ir.Value], shapes: Shapes) -> Expansion:
    dims = shapes.dims(wide.w)
    assert dims is not None and isinstance(dims[1], int)
    return Expansion(inputs.index(wide.w), dims[1], None if wide.bias is None else inputs.index(wide.bias))


def inputs_of(found: Sandwich, nodes: Sequence[ir.Node], wide: Sandwich | None = None) -> list[ir.Value]:
    """Values that a region reads from outside: what passes through, weight, bias, those of the 1x1 convolution `wide`
    in front, then others in order of first use.

    Scalar constants of elementwise nodes are left out.
    """
    if wide is None:
        return inputs_around(found.nodes, (found.x, found.w, found.bias), nodes)
    own = (*found.nodes, *wide.nodes)
    return inputs_around(own, (wide.x, found.w, found.bias, wide.w, wide.bias), nodes)


def part_of(
    nodes: Sequence[ir.Node],
    source: ir.Value,
    dtype: str,
    result: ir.Value,
    inputs: Sequence[ir.Value],
    opsets: Mapping[str, int],
    shapes: Shapes,
    channels: int = -1,
) -> Transform:
    """The program of elementwise nodes that compute `result` from `source`, which has this dtype, and other values.

    channels: the axis of channels.
    """
    inside = {v for n in nodes for v in n.outputs}
    read = dict.fromkeys(v for n in nodes for v in n.inputs if v is not None and v not in inside and v is not source)
    others = [v for v in read if constant(v) is None]
    reads = tuple(TransformRead(_position(v, inputs), _form(v, source, shapes, channels)) for v in others)
    dtypes = (dtype, *(storage(v, shapes).name for v in others))
    builder = Builder(dtypes)
    known: dict[ir.Value, Expr] = dict(zip([source, *others], builder.inputs, strict=True))
    for node in nodes:
        for value in node.inputs:
            if value is not None and value not in known:
                known[value] = immediate(builder, value, shapes)[0]
        known[node.outputs[0]] = apply_operator(node, known, opsets, shapes)
    program = Program(
        inputs=dtypes,
        outputs=(storage(result, shapes).name,),
        code=tuple(builder.code),
        results=(known[result].id,),
        depends=(tuple(range(len(dtypes))),),
        ranks=(0,),
    )
    program = without_dead_code(program)
    program.verify()
    return Transform(program, reads)


def _position(value: ir.Value, inputs: Sequence[ir.Value]) -> int:
    if value not in inputs:
        raise ValueError(f"`{value.name}` is no input of the region")
    return list(inputs).index(value)


def _form(value: ir.Value, like: ir.Value, shapes: Shapes, axis: int = -1) -> str:
    """How a value that is broadcast against [N, H, W, C] is read. axis: of channels, where they do not lie last.
    ValueError where no kernel can read it so."""
    dims, of = shapes.dims(value), shapes.dims(like)
    if dims is not None and of is not None and len(dims) <= len(of):
        if shapes.elements(value) == 1:
            return "scalar"
        whole = (1,) * (len(of) - len(dims)) + dims
        if whole[axis] == of[axis] and all(d == 1 for k, d in enumerate(whole) if k != axis % len(of)):
            return "channel"
        if len(dims) == len(of) and shapes.same(value, like):
            return "element"
    raise ValueError(f"`{value.name}` is neither a number, nor one a channel, nor of the shape of `{like.name}`")
