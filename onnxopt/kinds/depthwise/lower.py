"""Lowering of depthwise regions: a program in front of the convolution, the convolution, and a program behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from onnxopt.fusion.channels_last import RSK, Sandwich, is_constant, sandwich
from onnxopt.fusion.in_front import inputs_around, nodes_in_front, source_of
from onnxopt.fusion.operands import apply_operator, constant, storage
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.pointwise.lower import immediate
from onnxopt.program.depthwise import MOST_SIDE, STORED, Depthwise, Part, Read
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
    if dtype is None or dtype.name not in STORED or any(shapes.dtype(v) != dtype for v in (found.w, found.y)):
        return f"The dtype of `{found.x.name}` is not one of {', '.join(STORED)}"
    if found.bias is not None and (shapes.dims(found.bias) != (channels,) or shapes.dtype(found.bias) != dtype):
        return f"The bias `{found.bias.name}` is not one {dtype.name} a channel"
    window = found.window
    if window is None:
        return "The size of the convolution's kernel is unknown"
    if max(*window.kernel, *window.strides, *window.dilations) > MOST_SIDE or min(window.pads) < 0:
        return f"The convolution's kernel, stride or dilation is above {MOST_SIDE}, or a padding is negative"
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
    """The meaning of nodes in topological order, one of them a depthwise Conv, that read `inputs` and scalar constants.

    Raises ValueError, with the reason, where the nodes cannot be one kernel.
    """
    (conv,) = (n for n in nodes if n.op_type == "Conv")
    found = convolution(conv, shapes)
    if isinstance(found, str):
        raise ValueError(found)
    if len(outputs) != 1:
        raise ValueError(f"The kernel has {len(outputs)} results")
    others = [n for n in nodes if n not in found.nodes]
    in_front = nodes_in_front(found.x, others)
    behind = [n for n in others if n not in in_front]
    source = source_of(found.x, in_front, shapes) if in_front else found.x
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
        after=after,
        before=before,
        x=inputs.index(source),
        weight=inputs.index(found.w),
        bias=None if found.bias is None else inputs.index(found.bias),
    )
    meaning.verify()
    return meaning


def inputs_of(found: Sandwich, nodes: Sequence[ir.Node]) -> list[ir.Value]:
    """Values that a region reads from outside: what passes through, weight, bias, then others in order of first use.

    Scalar constants of elementwise nodes are left out.
    """
    return inputs_around(found.nodes, (found.x, found.w, found.bias), nodes)


def part_of(
    nodes: Sequence[ir.Node],
    source: ir.Value,
    dtype: str,
    result: ir.Value,
    inputs: Sequence[ir.Value],
    opsets: Mapping[str, int],
    shapes: Shapes,
) -> Part:
    """The program of elementwise nodes that compute `result` from `source`, which has this dtype, and other values."""
    inside = {v for n in nodes for v in n.outputs}
    read = dict.fromkeys(v for n in nodes for v in n.inputs if v is not None and v not in inside and v is not source)
    others = [v for v in read if constant(v) is None]
    reads = tuple(Read(_position(v, inputs), _form(v, source, shapes)) for v in others)
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
    return Part(program, reads)


def _position(value: ir.Value, inputs: Sequence[ir.Value]) -> int:
    if value not in inputs:
        raise ValueError(f"`{value.name}` is no input of the region")
    return list(inputs).index(value)


def _form(value: ir.Value, like: ir.Value, shapes: Shapes) -> str:
    """How a value that is broadcast against [N, H, W, C] is read. ValueError where no kernel can read it so."""
    dims, of = shapes.dims(value), shapes.dims(like)
    if dims is not None and of is not None and len(dims) <= len(of):
        if shapes.elements(value) == 1:
            return "scalar"
        if dims[-1] == of[-1] and all(d == 1 for d in dims[:-1]):
            return "channel"
        if len(dims) == len(of) and shapes.same(value, like):
            return "element"
    raise ValueError(f"`{value.name}` is neither a number, nor one a channel, nor of the shape of `{like.name}`")
