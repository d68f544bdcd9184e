"""The steps by which a convolution absorbs neighbouring nodes. Every step changes it or returns a reason against it.

Which forms cuDNN takes, and which of them pay, was measured (benchmarks/convolutions.md, section 3).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from onnxopt.fusion.channels_last import KRSC, Sandwich, is_constant, sandwich
from onnxopt.graph.shapes.shapes import Dims, Shapes
from onnxopt.program.convolution import DTYPES, Convolution
from onnxopt.program.window import Window

# With fewer channels of x and of y, cuDNN's engine for SiLU is slower than a convolution and a kernel behind it: 3x3,
# 3 -> 32 at 8x640x640 takes 91 us instead of 58 + 28, 32 -> 32 at 8x160x160 42 instead of 25 + 7, but 32 -> 64 at
# 8x320x320 34 instead of 30 + 14. This is not so for 1x1 convolutions, which memory bounds: 16 -> 96 at 32x112x112
# takes 66 us, a product and a SiLU apart 95.
_SILU_CHANNELS = (32, 64)
_SILU_CHANNELS_IN_BLOCK = (32, 32)  # where the two would also cost copies of what they share with others
_SILU_DTYPES = ("float16", "bfloat16")


@dataclasses.dataclass
class GrowingConvolution:
    """A convolution while it absorbs neighbouring nodes.

    conv: the Conv. nodes: the nodes that it replaces. output: the value that it computes. channels: C and K.
    fixed: whether all dims of x are numbers. in_block: whether it shares tensors with other convolutions.
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
    in_block: bool = False
    residual: ir.Value | None = None
    residual_last: bool = False
    activation: str = "none"

    def operands(self) -> list[ir.Value]:
        """The values that it reads, in the order of the region's inputs; a value read twice is there twice."""
        return [v for v in (self.x, self.w, self.bias, self.residual) if v is not None]

    def is_product(self) -> bool:
        """Whether the convolution is the product of its pixels and a matrix."""
        return self.window.is_pointwise and self.group == 1

    def can_take_more(self) -> bool:
        """Whether some step may still follow."""
        return self.activation == "none" or (self.activation == "silu" and self.residual is None)

    def meaning(self, inputs: Sequence[ir.Value], shapes: Shapes) -> Convolution:
        """The meaning of the convolution, for the region's inputs."""

        def at(value: ir.Value | None) -> int | None:
            return None if value is None else inputs.index(value)

        convolution = Convolution(
            inputs=tuple(_dtype(v, shapes) for v in inputs), outputs=(_dtype(self.output, shapes),),
            window=self.window, group=self.group, x=inputs.index(self.x), w=inputs.index(self.w), bias=at(self.bias),
            residual=at(self.residual), residual_last=self.residual_last, activation=self.activation,
        )  # fmt: skip
        convolution.verify()
        return convolution


def start(conv: ir.Node, shapes: Shapes) -> GrowingConvolution | str:
    """The convolution of a Conv node alone, or the reason why cuDNN cannot run it in NHWC."""
    found = sandwich(conv, shapes)
    if isinstance(found, str):
        return found
    values = [v for v in (found.x, found.w, found.bias, found.y) if v is not None]
    dtypes = {_dtype(v, shapes) for v in values}
    if len(dtypes) != 1 or not dtypes <= set(DTYPES):
        return f"A Conv of {' and '.join(sorted(dtypes))} runs as ONNX Runtime's own kernel"
    if not is_constant(found.w):
        return "The weight is computed at run time, in NCHW"
    assert found.w.const_value is not None
    dims, channels = found.w.const_value.shape.numpy(), (shapes.dims(found.x) or (None,))[-1]
    matrix = len(dims) == 2
    if not (matrix or (len(dims) == 4 and found.weight_order == KRSC)):
        return "The weight does not lie as [K, R, S, C / group]"
    k, r, s, of_group = (dims[0], 1, 1, dims[1]) if matrix else dims
    if min(k, r, s, of_group) < 1 or channels != of_group * found.group:
        return "The channels of the input are not those of the weight"
    if found.bias is not None and shapes.dims(found.bias) != (k,):
        return "The bias has not one number a channel"
    window = _window(found, (r, s))
    if isinstance(window, str):
        return window
    fixed = all(isinstance(d, int) for d in shapes.dims(found.x) or (None,))
    both = (of_group * found.group, k)
    return GrowingConvolution(
        conv, list(found.nodes), found.x, found.w, found.bias, found.y, window, found.group, both, fixed
    )


def candidates(value: ir.Value) -> list[ir.Node]:
    """The nodes of the next step behind a value, in order: its only reader, or the Sigmoid and the Mul of a SiLU."""
    uses = list(value.uses())
    if value.is_graph_output() or not uses:
        return []
    if len(uses) == 1:
        return [uses[0].node]
    readers = list(dict.fromkeys(u.node for u in uses))
    sigmoid = next((n for n in readers if n.op_type == "Sigmoid" and n.domain == ""), None)
    if len(readers) != 2 or len(uses) != 2 or sigmoid is None:
        return readers if len(readers) == 1 else []
    gate = sigmoid.outputs[0]
    product = next(n for n in readers if n is not sigmoid)
    if product.op_type != "Mul" or product.domain != "" or set(product.inputs) != {value, gate}:
        return []
    return [sigmoid, product] if len(list(gate.uses())) == 1 and not gate.is_graph_output() else []


def is_step(node: ir.Node) -> bool:
    """Whether some convolution takes in such a node."""
    return node.domain == "" and node.op_type in ("Add", "Relu", "Sigmoid", "Mul", "Swish")


def take(convolution: GrowingConvolution, nodes: Sequence[ir.Node], shapes: Shapes) -> str | None:
    """Absorb the nodes of a step. Returns None, or a reason; then the convolution is unchanged."""
    last = nodes[-1]
    if last.domain != "" or not last.outputs or _dtype(last.outputs[0], shapes) != _dtype(convolution.output, shapes):
        return f"cuDNN has no epilogue for {last.op_type}"
    if len(nodes) == 2 or last.op_type == "Swish":
        reason = _take_silu(convolution, last)
    elif last.op_type == "Add":
        reason = _take_residual(convolution, last, shapes)
    elif last.op_type == "Relu":
        reason = _take_relu(convolution)
    else:
        reason = f"cuDNN has no epilogue for {last.op_type}"
    if reason is None:
        convolution.nodes += nodes
        convolution.output = last.outputs[0]
    return reason


def _take_residual(convolution: GrowingConvolution, node: ir.Node, shapes: Shapes) -> str | None:
    others = [v for v in node.inputs if v is not convolution.output]
    other = others[0] if len(others) == 1 else None
    if other is None:
        return "Both inputs of the Add are the convolution's result"
    if convolution.residual is not None:
        return "The convolution already has a residual"
    if convolution.activation == "relu":
        return "The Add follows a Relu, which ends what cuDNN has precompiled"
    if _dtype(other, shapes) != _dtype(convolution.output, shapes):
        return f"`{other.name}` has another dtype than the convolution's result"
    if not shapes.same(other, convolution.output) or not shapes.same(node.outputs[0], convolution.output):
        dims, of = shapes.dims(other), shapes.dims(convolution.output)
        return (
            f"`{other.name}` {_text(dims)} is no residual of shape {_text(of)}; cuDNN's kernels for sums that are"
            " broadcast fail at run time"
        )
    convolution.residual, convolution.residual_last = other, convolution.activation != "none"
    return None


def _take_relu(convolution: GrowingConvolution) -> str | None:
    if convolution.activation != "none":
        return "The convolution already has an activation"
    convolution.activation = "relu"
    return None


def _take_silu(convolution: GrowingConvolution, node: ir.Node) -> str | None:
    if node.op_type == "Swish" and float(_attribute(node, "alpha", 1.0)) != 1.0:
        return "The Swish has an alpha other than 1"
    if convolution.activation != "none":
        return "The convolution already has an activation"
    if convolution.residual is not None:
        return "The SiLU follows a residual; a kernel behind the convolution computes it"
    if _dtype_of(convolution) not in _SILU_DTYPES:
        return "cuDNN has a kernel with SiLU for 16-bit floats alone"
    least = _SILU_CHANNELS_IN_BLOCK if convolution.in_block else _SILU_CHANNELS
    few = any(count < of for count, of in zip(convolution.channels, least, strict=True))
    if few and not convolution.is_product():
        return f"cuDNN's kernel with SiLU is slow for fewer than {least[0]} channels to {least[1]}"
    if not convolution.fixed:
        return "cuDNN compiles a kernel with SiLU for half a second a shape, and the shape is not known yet"
    convolution.activation = "silu"
    return None


def _window(found: Sandwich, kernel: tuple[int, int]) -> Window | str:
    window, conv = found.window, found.conv
    if window is None or window.kernel != kernel:
        return "kernel_shape is not that of the weight"
    if window.auto_pad.startswith("SAME") and window.dilations != (1, 1):
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


def _attribute(node: ir.Node, name: str, default: Any) -> Any:
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.value


def _text(dims: Dims | None) -> str:
    return "of unknown rank" if dims is None else "[" + ", ".join("?" if d is None else str(d) for d in dims) + "]"
