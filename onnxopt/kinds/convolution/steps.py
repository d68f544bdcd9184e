"""The steps by which a convolution absorbs neighbouring nodes. Every step changes it or returns a reason against it.

Which forms cuDNN takes, and which of them pay, is in benchmarks/notes: convolution layers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from onnxopt.costs.convolution import numbers
from onnxopt.fusion.channels_last import KRSC, KTRSC, Sandwich, sandwich
from onnxopt.graph.coded_convolutions import Operands
from onnxopt.graph.codes import is_dequantize, is_quantize
from onnxopt.graph.match import is_constant, is_private, only_consumer
from onnxopt.graph.shapes.shapes import Dims, Shapes
from onnxopt.kinds.convolution import activations, codes, dense_kernels
from onnxopt.kinds.convolution.activations import NONE, Activation
from onnxopt.kinds.convolution.codes import SHAPE_UNKNOWN
from onnxopt.program.convolution import DTYPES, Convolution, ConvolutionCodes
from onnxopt.program.window import Window

# cuDNN compiles a kernel for every activation but a ReLU. Between a convolution with few channels and a separate
# kernel, data/convolution.json decides. Activations with more arithmetic than SiLU gain nothing in cuDNN's kernel.
# Where the shape is not fixed, kernels for the usual one are compiled early; other shapes get two kernels
# (custom_ops/cuda/convolution/plans.h).
_COMPILED_CHANNELS = numbers().compiled_channels
_COMPILED_CHANNELS_IN_BLOCK = numbers().compiled_channels_in_block
_COMPILED_WIDE_CHANNELS = numbers().compiled_wide_channels
_COMPILED_DTYPES = ("float16", "bfloat16")
_TITLES = {
    "relu": "Relu",
    "silu": "SiLU",
    "clip": "Clip",
    "leaky_relu": "LeakyRelu",
    "hardswish": "HardSwish",
    "prelu": "PRelu",
}


@dataclasses.dataclass
class GrowingConvolution:
    """A convolution while it absorbs neighbouring nodes.

    conv: the Conv. nodes: the nodes that it replaces. output: the value that it computes. channels: C and K.
    fixed: whether all dims of x are numbers. usual: whether the sizes that they have in most runs are known. in_block:
    whether it shares tensors with other convolutions.
    """

    conv: ir.Node
    nodes: list[ir.Node]
    x: ir.Value
    w: ir.Value
    bias: ir.Value | None
    output: ir.Value
    window: Window
    group: int
    channels: tuple[int, int]
    fixed: bool
    usual: bool
    in_block: bool = False
    residual: ir.Value | None = None
    residual_last: bool = False
    activation: Activation = NONE
    output_padding: tuple[int, int] = (0, 0)
    depth_padding: int = 0
    codes: ConvolutionCodes | None = None
    scales: ir.Value | None = None

    def operands(self) -> list[ir.Value]:
        """The values that it reads, in the order of the region's inputs; a value read twice is there twice."""
        of_it = (self.x, self.w, self.bias, self.residual, self.activation.slope, self.scales)
        return [v for v in of_it if v is not None]

    def is_product(self) -> bool:
        """Whether the convolution is the product of its pixels and a matrix."""
        return self.window.is_pointwise and self.group == 1 and not self.is_transposed

    @property
    def is_transposed(self) -> bool:
        return self.conv.op_type == "ConvTranspose"

    def is_strided_volume(self) -> bool:
        """Whether it is a ConvTranspose with strides over a depth and more (graph/layout/transposed_volumes.py)."""
        window = self.window
        if not self.is_transposed or window.depth is None or dataclasses.replace(window, depth=None).is_pointwise:
            return False
        return max(window.depth.stride, *window.strides) > 1

    def can_take_more(self) -> bool:
        """Whether some step may still follow."""
        name = self.activation.name
        if self.is_strided_volume() or (self.codes is not None and self.codes.result is not None):
            return False
        return name == "none" or (name != "relu" and self.residual is None)

    def operation(self) -> dict[str, Any]:
        """The fields of the convolution that are no operands."""
        return {
            "window": self.window, "group": self.group, "residual_last": self.residual_last,
            "activation": self.activation.name, "activation_value": self.activation.value,
            "transposed": self.is_transposed, "output_padding": self.output_padding,
            "depth_padding": self.depth_padding,
        }  # fmt: skip

    def meaning(self, inputs: Sequence[ir.Value], shapes: Shapes) -> Convolution:
        """The meaning of the convolution, for the region's inputs."""

        def at(value: ir.Value | None) -> int | None:
            return None if value is None else inputs.index(value)

        convolution = Convolution(
            inputs=tuple(_dtype(v, shapes) for v in inputs), outputs=(_dtype(self.output, shapes),),
            x=inputs.index(self.x), w=inputs.index(self.w), bias=at(self.bias), residual=at(self.residual),
            slope=at(self.activation.slope), scale=at(self.scales), codes=self.codes, **self.operation(),
        )  # fmt: skip
        convolution.verify()
        return convolution


def start(conv: ir.Node, shapes: Shapes) -> GrowingConvolution | str:
    """The convolution of a Conv node alone, or the reason why cuDNN cannot run it in NHWC."""
    match = sandwich(conv, shapes)
    if isinstance(match, str):
        return match
    operands = codes.operands(match)
    if isinstance(operands, str):
        return operands
    values = [v for v in ((match.x, match.w, match.bias, match.y) if operands is None else (match.x,)) if v is not None]
    dtypes = {_dtype(v, shapes) for v in values}
    if len(dtypes) != 1 or not dtypes <= set(DTYPES):
        return f"A Conv of {' and '.join(sorted(dtypes))} runs as ONNX Runtime's own kernel"
    if not is_constant(match.w):
        return "The weight is computed at run time, in NCHW"
    assert match.w.const_value is not None
    dims, channels = match.w.const_value.shape.numpy(), (shapes.dims(match.x) or (None,))[-1]
    if len(dims) != 2 and match.weight_order not in (KRSC, KTRSC):
        return "The weight does not lie as [K, R, S, C / group]"
    k, *kernel, group_channels = dims
    read = group_channels * match.group
    if match.is_transposed:
        k, read = read, k
    if min(dims) < 1 or channels != read or k % match.group or read % match.group:
        return "The channels of the input are not those of the weight"
    if match.bias is not None and shapes.dims(match.bias) != (k,):
        return "The bias has not one number a channel"
    window = _window(match, kernel)
    if isinstance(window, str):
        return window
    sizes = shapes.dims(match.x) or (None,)
    fixed = all(isinstance(d, int) for d in sizes)
    usual = all(shapes.expected.of(d) is not None for d in sizes)
    convolution = GrowingConvolution(
        conv, list(match.nodes), match.x, match.w, match.bias, match.y, window, match.group, (read, k), fixed, usual,
        output_padding=match.output_padding, depth_padding=match.depth_padding,
    )  # fmt: skip
    if operands is None:
        return convolution
    return _of_codes(convolution, operands) if usual else SHAPE_UNKNOWN.format(codes.TITLE)


def _of_codes(convolution: GrowingConvolution, operands: Operands) -> GrowingConvolution:
    bias = convolution.bias if operands.bias is None else operands.bias.inputs[0]
    x, before = operands.x.inputs[0], [n for n in (operands.x, operands.bias) if n is not None]
    assert x is not None
    of_codes = ConvolutionCodes(operands.scale, zero=float(operands.zero))
    return dataclasses.replace(
        convolution, x=x, bias=bias, scales=operands.scales, codes=of_codes,
        nodes=[*before, *convolution.nodes],
    )  # fmt: skip


def candidates(value: ir.Value) -> list[ir.Node]:
    """The nodes of the next step behind a value, in order: its only reader, or those of an activation."""
    uses = list(value.uses())
    if value.is_graph_output() or not uses:
        return []
    readers = list(dict.fromkeys(u.node for u in uses))
    if len(readers) > 1:
        return activations.gated(value)
    dequantize = only_consumer(readers[0].outputs[0]) if is_quantize(readers[0]) else None
    if dequantize is None or not is_dequantize(dequantize):
        return readers
    following = candidates(dequantize.outputs[0])
    return [*readers, dequantize, *following] if following and is_step(following[-1]) else readers


def rounds(nodes: Sequence[ir.Node]) -> bool:
    """Whether the nodes of a step round to codes first, and go on with what these stand for."""
    return len(nodes) > 1 and is_quantize(nodes[0])


def runs_codes(convolution: GrowingConvolution) -> bool:
    """Whether some kernel runs a convolution of codes: cuDNN's take int8 with the zero point 0."""
    if convolution.codes is None or (convolution.x.dtype == ir.DataType.INT8 and convolution.codes.zero == 0):
        return True
    of_codes = convolution.residual is None or convolution.codes.residual is not None
    return of_codes and convolution.codes.result is not None and convolution.activation.name in ("none", "relu", "clip")


def is_step(node: ir.Node) -> bool:
    """Whether some convolution takes in such a node."""
    return (node.domain == "" and node.op_type in ("Add", "Sigmoid")) or activations.is_activation(node)


def take(convolution: GrowingConvolution, nodes: Sequence[ir.Node], shapes: Shapes) -> str | None:
    """Absorb the nodes of a step. Returns None, or a reason; then the convolution is unchanged."""
    last = nodes[-1]
    if convolution.is_strided_volume():
        return "cuDNN has no fast kernel for what follows a strided ConvTranspose of three dims"
    if rounds(nodes):
        return _take_rounded(convolution, nodes, shapes)
    if is_quantize(last):
        return _take_result(convolution, last)
    if last.domain != "" or not last.outputs or _dtype(last.outputs[0], shapes) != _dtype(convolution.output, shapes):
        return f"cuDNN has no epilogue for {last.op_type}"
    if len(nodes) == 1 and last.op_type == "Add":
        reason = _take_residual(convolution, last, shapes)
    else:
        reason = _take_activation(convolution, nodes, shapes)
    if reason is None:
        convolution.nodes += nodes
        convolution.output = last.outputs[0]
    return reason


def _take_rounded(convolution: GrowingConvolution, nodes: Sequence[ir.Node], shapes: Shapes) -> str | None:
    """Absorb a Q, a DQ of its codes, and what follows."""
    quantize, dequantize, *following = nodes
    scale, again = codes.scale_of(quantize), codes.scale_of(dequantize)
    if convolution.codes is None or convolution.codes.rounded is not None or convolution.residual is not None:
        return "The convolution rounds to no codes there"
    if scale is None or scale != again:
        return "The codes after the convolution are not of 8 bits, or read with another scale"
    if convolution.activation.name != "none" and following[-1].op_type != "Add":
        return "The convolution already has an activation"
    rounded = dataclasses.replace(
        convolution, nodes=[*convolution.nodes, quantize, dequantize], output=dequantize.outputs[0],
        codes=dataclasses.replace(convolution.codes, rounded=scale, rounded_dtype=codes.dtype_of_codes(quantize)),
    )  # fmt: skip
    reason = take(rounded, following, shapes)
    if reason is None:
        vars(convolution).update(vars(rounded))
    return reason


def _take_result(convolution: GrowingConvolution, quantize: ir.Node) -> str | None:
    scale = codes.scale_of(quantize)
    if convolution.codes is None:
        return "A convolution of floats writes no codes; another kernel quantizes its result"
    if scale is None:
        return "The codes of the convolution's result are not of 8 bits with one scale"
    convolution.codes = dataclasses.replace(convolution.codes, result=scale)
    convolution.nodes.append(quantize)
    convolution.output = quantize.outputs[0]
    return None


def _take_residual(convolution: GrowingConvolution, node: ir.Node, shapes: Shapes) -> str | None:
    others = [v for v in node.inputs if v is not convolution.output]
    other = others[0] if len(others) == 1 else None
    if other is None:
        return "Both inputs of the Add are the convolution's result"
    if convolution.residual is not None:
        return "The convolution already has a residual"
    if convolution.activation.name == "relu" and convolution.codes is None:
        return "The Add follows a Relu, which ends what cuDNN has precompiled"
    if _dtype(other, shapes) != _dtype(convolution.output, shapes):
        return f"`{other.name}` has another dtype than the convolution's result"
    if not shapes.same(other, convolution.output) or not shapes.same(node.outputs[0], convolution.output):
        dims, of = shapes.dims(other), shapes.dims(convolution.output)
        return (
            f"`{other.name}` {_text(dims)} is no residual of shape {_text(of)}; cuDNN's kernels for sums that are"
            " broadcast fail at run time"
        )
    convolution.residual, convolution.residual_last = other, convolution.activation.name != "none"
    dequantize = other.producer()
    if convolution.codes is not None and dequantize is not None and is_private(other):
        scale = codes.scale_of(dequantize) if is_dequantize(dequantize) else None
        if scale is not None:
            convolution.residual = dequantize.inputs[0]
            convolution.codes = dataclasses.replace(convolution.codes, residual=scale)
            convolution.nodes.append(dequantize)
    return None


def _take_activation(convolution: GrowingConvolution, nodes: Sequence[ir.Node], shapes: Shapes) -> str | None:
    activation = activations.of(convolution.output, nodes, shapes)
    if isinstance(activation, str):
        return activation
    if convolution.activation.name != "none":
        return "The convolution already has an activation"
    if convolution.codes is not None and activation.name == "prelu":
        return "cuDNN's kernels of codes have no PRelu"
    if (
        convolution.codes is None
        and activation.name != "relu"
        and (reason := _why_not_compiled(convolution, activation.name)) is not None
    ):
        return reason
    convolution.activation = activation
    return None


def is_dense(convolution: GrowingConvolution, activation: str) -> bool:
    """Whether a kernel of ours runs the convolution with an activation."""
    if convolution.is_transposed or convolution.group > 1 or convolution.codes is not None:
        return False
    return dense_kernels.takes(convolution.window, _dtype_of(convolution), convolution.channels, activation)


def few_channels(convolution: GrowingConvolution, activation: str) -> str | None:
    """Why a kernel that cuDNN compiles with an activation is slow for so few channels, if it is."""
    minimum = _COMPILED_CHANNELS_IN_BLOCK if convolution.in_block else _COMPILED_CHANNELS
    x, y = convolution.channels
    few = not any(x >= of_x and y >= of_y for of_x, of_y in (minimum, _COMPILED_WIDE_CHANNELS))
    if activation in ("none", "relu") or not few or convolution.is_product() or is_dense(convolution, activation):
        return None
    return f"cuDNN's kernel with {_TITLES[activation]} is slow for fewer than {minimum[0]} channels to {minimum[1]}"


def _why_not_compiled(convolution: GrowingConvolution, activation: str) -> str | None:
    """Why a kernel after the convolution computes an activation for which cuDNN would compile a kernel.

    In blocks, the number of channels is no reason: which may have few, the block knows.
    """
    title = _TITLES[activation]
    if convolution.residual is not None:
        return f"The {title} follows a residual; a kernel after the convolution computes it"
    if _dtype_of(convolution) not in _COMPILED_DTYPES:
        return f"cuDNN has a kernel with {title} for 16-bit floats alone"
    if convolution.is_transposed and convolution.group > 1:
        return f"cuDNN has no kernel with {title} for a ConvTranspose with groups"
    if not convolution.in_block and (reason := few_channels(convolution, activation)):
        return reason
    if not convolution.usual or (convolution.is_transposed and not convolution.fixed):
        return SHAPE_UNKNOWN.format(title)
    return None


def _window(match: Sandwich, kernel: Sequence[int]) -> Window | str:
    """kernel: the sides of the window, none of a matrix."""
    window, conv = match.window, match.conv
    depth = None if window is None else window.depth
    sides = () if window is None else window.kernel if depth is None else (depth.kernel, *window.kernel)
    if window is None or sides != (tuple(kernel) or (1,) * len(sides)):
        return "kernel_shape is not that of the weight"
    dilations = (*window.dilations, *(() if depth is None else (depth.dilation,)))
    if window.auto_pad.startswith("SAME") and max(dilations) > 1:
        return "ONNX Runtime refuses auto_pad with dilations"
    if window.auto_pad != "NOTSET" and any(conv.attributes.get_ints("pads", ())):
        return "ONNX Runtime refuses pads beside auto_pad"
    try:
        window.verify()
    except ValueError as error:
        return f"The Conv is invalid: {error}"
    return window


def _dtype(value: ir.Value, shapes: Shapes) -> str:
    dtype = shapes.dtype(value)
    return "an unknown dtype" if dtype is None else dtype.name


def _dtype_of(convolution: GrowingConvolution) -> str:
    dtype = convolution.w.dtype
    return "" if dtype is None else dtype.name.lower()


def _text(dims: Dims | None) -> str:
    return "of unknown rank" if dims is None else "[" + ", ".join("?" if d is None else str(d) for d in dims) + "]"
