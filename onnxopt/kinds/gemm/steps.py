"""The steps by which a GEMM absorbs neighbouring nodes. Every step changes the GEMM or returns a reason against it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir

from onnxopt.fusion import eligibility, index_ops
from onnxopt.fusion.operands import constant
from onnxopt.graph.layout.orders import TO_NCHW, transposes
from onnxopt.graph.match import integers, is_constant, only_consumer, operand
from onnxopt.graph.shapes.shapes import Dims, Shapes
from onnxopt.kinds.convolution import activations
from onnxopt.kinds.gemm import codes
from onnxopt.kinds.gemm.growing import GrowingGemm, dtype_of
from onnxopt.program.gemm import DTYPES, MAX_PARTS

_PRODUCTS = frozenset({"MatMul", "Gemm"})


def start(node: ir.Node, shapes: Shapes) -> GrowingGemm | str:
    """The GEMM of a MatMul or Gemm node alone, or the reason why cuBLASLt cannot run it."""
    a, b = node.inputs[0], node.inputs[1]
    output = node.outputs[0]
    if a is None or b is None:
        return f"{node.op_type} leaves out an input"
    dtypes = {dtype_of(v, shapes) for v in (a, b, output)}
    if len(dtypes) != 1 or not dtypes <= set(DTYPES):
        return f"A {node.op_type} of {' and '.join(sorted(dtypes))} runs as ONNX Runtime's own kernel"
    if len(shapes.dims(a) or ()) < 2 or len(shapes.dims(b) or ()) < 2:
        return f"An input of {node.op_type} has fewer than two dims or an unknown rank"
    gemm = GrowingGemm([node], a, b, output)
    if node.op_type == "Gemm":
        gemm.transpose_a, gemm.transpose_b = (bool(_attribute(node, name, 0)) for name in ("transA", "transB"))
        gemm.alpha = float(_attribute(node, "alpha", 1.0))
    take_codes(gemm, node)
    c = node.inputs[2] if len(node.inputs) > 2 else None
    beta = float(_attribute(node, "beta", 1.0))
    if c is None or beta == 0:
        return gemm if c is None else "Gemm's C is multiplied by beta = 0"
    return add(gemm, c, beta, shapes) or gemm


def take_codes(gemm: GrowingGemm, node: ir.Node) -> None:
    """Let a product of codes read them, in 16 or in 8 bits, with their scales in alpha."""
    operands = codes.operands(node)
    alpha = gemm.alpha * operands[0].scale * operands[1].scale if operands is not None else 0.0
    if operands is None or not math.isfinite(alpha) or not 0 < abs(alpha) < 3e38:
        return
    a, b = operands
    gemm.alpha, gemm.a, gemm.b = alpha, a.value, b.value
    gemm.transpose_a ^= a.turned
    gemm.transpose_b ^= b.turned
    gemm.multiplies_codes, gemm.nodes = True, [*gemm.nodes, *a.nodes, *b.nodes]
    gemm.unread = tuple(dict.fromkeys((*a.unread, *b.unread)))


def take_transposes(gemm: GrowingGemm, shapes: Shapes, is_free: Callable[[ir.Node], bool]) -> None:
    """Absorb a free Transpose of the last two dims of a or b whose result has no other reader."""
    for name in ("a", "b"):
        value: ir.Value = getattr(gemm, name)
        node = value.producer()
        if (
            node is None
            or node.op_type != "Transpose"
            or node.domain != ""
            or gemm.a is gemm.b
            or gemm.multiplies_codes
            or not is_free(node)
        ):
            continue
        source = node.inputs[0]
        dims = shapes.dims(source) if source is not None else None
        if dims is None or len(value.uses()) != 1 or value.is_graph_output():
            continue
        last_two = [*range(len(dims) - 2), len(dims) - 1, len(dims) - 2]
        if len(dims) < 2 or list(_attribute(node, "perm", list(range(len(dims)))[::-1])) != last_two:
            continue
        setattr(gemm, name, source)
        setattr(gemm, f"transpose_{name}", not getattr(gemm, f"transpose_{name}"))
        gemm.nodes.append(node)


def take_rows(gemm: GrowingGemm, shapes: Shapes, is_free: Callable[[ir.Node], bool]) -> None:
    """Absorb a free Slice of the rows of a that nothing else reads: the GEMM reads them where they are stored."""
    node = gemm.a.producer()
    if node is None or not is_free(node) or only_consumer(gemm.a) is None or gemm.transpose_a or gemm.multiplies_codes:
        return
    source = node.inputs[0]
    dims = None if source is None else shapes.dims(source)
    count = None if dims is None or len(dims) < 2 else dims[-2]
    if source is None or source is gemm.b or is_constant(source) or dims is None or not isinstance(count, int):
        return
    rows = _sliced_rows(node, len(dims), count)
    if len(rows):
        gemm.a, gemm.rows, gemm.first_row = source, len(rows), rows.start
        gemm.nodes.append(node)


def _sliced_rows(node: ir.Node, rank: int, count: int) -> range:
    """The rows of `count` that a Slice along the last dim but one takes; none where it takes others."""
    if (node.op_type, node.domain) != ("Slice", ""):
        return range(0)
    starts, ends, axes, steps = (integers(operand(node, k)) for k in (1, 2, 3, 4))
    if axes not in ([-2], [rank - 2]) or not starts or not ends:
        return range(0)
    if operand(node, 4) is not None and steps != [1]:
        return range(0)
    return range(count)[starts[0] : ends[0]]


def following(value: ir.Value) -> list[ir.Node]:
    """The nodes of the next step after a value, in order: its only reader, or a gate and its product; else none."""
    only = only_consumer(value)
    return activations.gated(value) if only is None else [only]


def take(gemm: GrowingGemm, nodes: Sequence[ir.Node], shapes: Shapes) -> str | None:
    """Absorb the nodes that follow the GEMM's output. Returns None, or a reason; then the GEMM is unchanged."""
    node = nodes[-1]
    activates = len(nodes) > 1 or node.op_type == "Swish"
    step = None if activates else EPILOGUE.get(node.op_type)
    if (step is None and not activates) or node.domain != "":
        return f"cuBLASLt has no epilogue for {node.op_type}"
    if gemm.parts:
        return "The GEMM's columns are already split into several outputs"
    if gemm.activation != "none" and node.op_type != "Split":
        return f"{node.op_type} follows an activation, and cuBLASLt's epilogue ends with the activation"
    if dtype_of(node.outputs[0], shapes) != dtype_of(gemm.output, shapes):
        return f"{node.op_type} changes the dtype of the GEMM's result"
    reason = _take_silu(gemm, nodes, shapes) if step is None else step(gemm, node, shapes)
    if reason is None:
        gemm.nodes += nodes
        gemm.output = node.outputs[0]
    return reason


def _take_scale(gemm: GrowingGemm, node: ir.Node, shapes: Shapes) -> str | None:
    other = _other_operand(gemm, node)
    if other is None:
        return f"Both inputs of the {node.op_type} are the GEMM's result"
    if node.op_type == "Div" and node.inputs[1] is not other:
        return "The GEMM's result is the divisor of this Div, not the dividend"
    tensor = constant(other)
    if tensor is None or len(tensor.shape) > len(shapes.dims(gemm.output) or ()):
        return f"The factor `{other.name}` is not a scalar constant; only a constant scale is folded into the GEMM"
    if gemm.bias is not None or gemm.residual is not None:
        return f"{node.op_type} scales the bias or residual too, which the GEMM's epilogue cannot do"
    factor = float(tensor.numpy().reshape(()).astype("float64"))
    alpha = gemm.alpha / factor if node.op_type == "Div" and factor else gemm.alpha * factor
    if (node.op_type == "Div" and factor == 0) or not math.isfinite(alpha) or abs(alpha) > 3e38:
        return "The scale of the GEMM would not be a finite float32 number"
    gemm.alpha = alpha
    return None


def _take_sum(gemm: GrowingGemm, node: ir.Node, shapes: Shapes) -> str | None:
    other = _other_operand(gemm, node)
    if other is None:
        return "Both inputs of the Add are the GEMM's result"
    if not shapes.same(node.outputs[0], gemm.output):
        return "The Add broadcasts the GEMM's result to a larger shape"
    return add(gemm, other, 1.0, shapes)


def add(gemm: GrowingGemm, other: ir.Value, beta: float, shapes: Shapes) -> str | None:
    """Let the GEMM add a bias or a residual. Returns None, or a reason; then the GEMM is unchanged."""
    dtypes = dtype_of(other, shapes), dtype_of(gemm.output, shapes)
    if dtypes[0] != dtypes[1]:
        return f"`{other.name}` has dtype {dtypes[0]}, the GEMM's result {dtypes[1]}"
    if _is_vector(other, gemm.output, shapes):
        if gemm.bias is not None:
            return "The GEMM already has a bias"
        if gemm.has_float8_operands and dtypes[1] == "float32":
            return "cuBLASLt adds no bias of float32 to a product of 8-bit floats"
        if beta != 1.0:
            return f"Gemm scales its bias by beta = {beta}; cuBLASLt's epilogue adds it unscaled"
        gemm.bias = other
        return None
    if not shapes.same(other, gemm.output):
        dims, of = shapes.dims(other), shapes.dims(gemm.output)
        return (
            f"`{other.name}` {_text(dims)} is neither a bias (one vector along the last dim of {_text(of)}) nor a"
            " residual (of that shape)"
        )
    if gemm.residual is not None:
        return "The GEMM already has a residual"
    gemm.residual, gemm.beta = other, beta
    return None


def _is_vector(value: ir.Value, output: ir.Value, shapes: Shapes) -> bool:
    """Whether a value is one vector along the output's last dim, which all rows share."""
    dims, of = shapes.dims(value), shapes.dims(output)
    if not dims or not of or len(dims) > len(of) or dims[-1] is None or dims[-1] != of[-1]:
        return False
    # For an output of one row, a vector and a residual are the same; adding a vector is cheaper.
    return all(d == 1 for d in dims[:-1])


def _take_reshape(gemm: GrowingGemm, node: ir.Node, shapes: Shapes) -> str | None:
    dims, of = shapes.dims(node.outputs[0]), shapes.dims(gemm.output)
    target = node.inputs[1]
    if target is None or target.const_value is None or target.is_graph_input():
        return "The shape of the Reshape is computed at run time"
    if not dims or not of or dims[-1] is None or dims[-1] != of[-1]:
        return "The Reshape changes the last dim"
    if gemm.residual is not None:
        return "The Reshape comes after a residual of the old shape"
    gemm.residual_shape = True
    return None


def _take_relu(gemm: GrowingGemm, node: ir.Node, shapes: Shapes) -> str | None:
    gemm.activation = "relu"
    return None


def _take_gelu(gemm: GrowingGemm, node: ir.Node, shapes: Shapes) -> str | None:
    if _attribute(node, "approximate", "none") == "tanh":
        gemm.activation = "gelu_tanh"
        return None
    return _take_apart(gemm, "gelu", node, shapes)


def _take_silu(gemm: GrowingGemm, nodes: Sequence[ir.Node], shapes: Shapes) -> str | None:
    activation = activations.of(gemm.output, nodes, shapes)
    if isinstance(activation, str):
        return activation
    if activation.name != "silu":
        return f"cuBLASLt has no epilogue for {activation.name}"
    return _take_apart(gemm, activation.name, nodes[-1], shapes)


def _take_apart(gemm: GrowingGemm, activation: str, node: ir.Node, shapes: Shapes) -> str | None:
    """Absorb an activation that cuBLASLt does not have and `node` ends."""
    if (reason := _why_apart(gemm, node, shapes)) is not None:
        title = "The Gelu is exact (erf)" if activation == "gelu" else "The activation is a SiLU"
        return f"{title}, which cuBLASLt's epilogue does not have, and {reason}"
    gemm.activation = activation
    return None


def _why_apart(gemm: GrowingGemm, node: ir.Node, shapes: Shapes) -> str | None:
    """Why such an activation stays a kernel of its own; None where kinds/gemm/large_products.py computes it."""
    if gemm.packed is not None or gemm.multiplies_codes or gemm.per_sample:
        return "products of codes and those of a weight for each sample have no entry points for it"
    dtype = dtype_of(node.outputs[0], shapes)
    if dtype == "float32" and not (gemm.transpose_b and gemm.b.const_value is not None):
        return "entry points of float32 read a constant weight that is stored transposed"
    for reader in node.outputs[0].consumers():
        if not _is_product(reader):
            return f"the kernel of {reader.op_type} may compute it at no extra cost"
    return None


def _is_product(reader: ir.Node) -> bool:
    """Whether a node is a product, or turns a map for a convolution."""
    conv = only_consumer(reader.outputs[0]) if transposes(reader, TO_NCHW) else None
    if conv is not None:
        return conv.op_type == "Conv" and conv.domain == ""
    return reader.op_type in _PRODUCTS and reader.domain == ""


def _take_split(gemm: GrowingGemm, node: ir.Node, shapes: Shapes) -> str | None:
    """Absorb a Split of the columns into equal parts: the GEMM writes every part into its own output."""
    of, weight = shapes.dims(gemm.output), shapes.dims(gemm.b)
    if not of or _attribute(node, "axis", 0) not in (-1, len(of) - 1):
        return "The Split does not split the last dim"
    columns, count = of[-1], len(node.outputs)
    widths = [dims[-1] if (dims := shapes.dims(v)) else None for v in node.outputs]
    if not isinstance(columns, int) or not 2 <= count <= MAX_PARTS or widths != [columns / count] * count:
        return "The Split's parts are not known to have equal sizes"
    batch = len(weight or ()) != 2 and gemm.packed is None
    if gemm.residual is not None or gemm.residual_shape or gemm.transpose_a or gemm.rows or batch:
        return (
            "The GEMM has a residual, a Reshape, a transposed A, some rows of A or a batch of weights, so its columns"
            " cannot be written as separate outputs"
        )
    readers = (reader for value in node.outputs for reader in value.consumers())
    if reader := next(filter(_is_read_in_place, readers), None):
        return (
            f"The kernel of {reader.op_type} reads the parts inside the GEMM's result, so they need no outputs of their"
            " own"
        )
    gemm.parts = tuple(node.outputs)
    return None


def _is_read_in_place(reader: ir.Node) -> bool:
    """Whether a pointwise region may take the reader, with the Split as index arithmetic."""
    return eligibility.is_elementwise(reader) or index_ops.is_index(reader)


EPILOGUE: dict[str, Callable[[GrowingGemm, ir.Node, Shapes], str | None]] = {
    "Mul": _take_scale, "Div": _take_scale, "Add": _take_sum, "Reshape": _take_reshape, "Relu": _take_relu,
    "Gelu": _take_gelu, "Split": _take_split,
}  # fmt: skip


def _other_operand(gemm: GrowingGemm, node: ir.Node) -> ir.Value | None:
    others = [v for v in node.inputs if v is not gemm.output]
    return others[0] if len(others) == 1 else None


def _attribute(node: ir.Node, name: str, default: Any) -> Any:
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.value


def _text(dims: Dims | None) -> str:
    return "of unknown rank" if dims is None else "[" + ", ".join("?" if d is None else str(d) for d in dims) + "]"
