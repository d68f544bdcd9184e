"""Refuses scales, zero points and blocks that no runtime can dequantize with, before anything is built on them.

ONNX Runtime reports most of these when the model runs, and some not at all: a scale that is not a number gives codes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from onnxopt.errors import ModelError
from onnxopt.graph import codes
from onnxopt.graph.shapes.dims import Dims
from onnxopt.graph.shapes.infer import Knowledge, infer

_DOMAINS = ("", "ai.onnx", "com.microsoft")
_CODING = frozenset({"QuantizeLinear", "DequantizeLinear"})
_READ = 1 << 16  # elements; larger scales are not read
_BITS = (2, 4, 8)  # of MatMulNBits
_MIN_BLOCK = 16
_FLOAT8 = frozenset({ir.DataType.FLOAT8E4M3FN, ir.DataType.FLOAT8E5M2})


def check(model: ir.Model) -> None:
    """ModelError naming the first node whose scale, zero point or blocks are wrong. Nodes must have names."""
    nodes = [n for n in model.graph.all_nodes() if n.domain in _DOMAINS]
    nodes = [n for n in nodes if n.op_type in _CODING or n.op_type == "MatMulNBits"]
    if not nodes:
        return
    inferred = infer(model)
    for node in nodes:
        problems = (
            _product_problems(node, inferred) if node.op_type == "MatMulNBits" else _coding_problems(node, inferred)
        )
        for problem in problems:
            raise ModelError(f"{node.op_type} `{node.name}`: {problem}")


def _coding_problems(node: ir.Node, inferred: Knowledge) -> Iterator[str]:
    """What is wrong with a QuantizeLinear or DequantizeLinear."""
    x, scale = node.inputs[0], node.inputs[1]
    zero = node.inputs[2] if len(node.inputs) > 2 else None
    if scale is None:
        return
    yield from _scale_problems(scale, divides=node.op_type == "QuantizeLinear")
    number = codes.scalar(zero) if codes.dtype_of(zero) in _FLOAT8 else None
    if number is not None and number.any():
        yield f"the zero point is {number.astype(np.float32).item():g}; codes that are 8-bit floats have none but 0"
    dims, scale_dims, zero_dims = inferred.dims(x), inferred.dims(scale), inferred.dims(zero)
    if zero_dims is not None and scale_dims is not None and _differ(_as_scalar(zero_dims), _as_scalar(scale_dims)):
        yield f"the zero point has shape {_text(zero_dims)}, the scale {_text(scale_dims)}"
    if dims is None or scale_dims is None or (all(d == 1 for d in scale_dims) and len(scale_dims) < 2):
        return
    axis, size = node.attributes.get_int("axis", 1), node.attributes.get_int("block_size", 0)
    if not -len(dims) <= axis < len(dims):
        yield f"axis {axis} is none of a tensor of {len(dims)} dims"
        return
    if size < 0:
        yield f"blocks of {size}"
    elif size:
        blocks = tuple(-(-d // size) if isinstance(d, int) and k == axis % len(dims) else d for k, d in enumerate(dims))
        if _differ(scale_dims, blocks):
            yield (
                f"{_text(dims)} in blocks of {size} along axis {axis} takes scales of shape {_text(blocks)}, "
                f"these have {_text(scale_dims)}"
            )
    elif len(scale_dims) > 1 or _differ(scale_dims, (dims[axis],)):
        count = f"one value, or one for each of {dims[axis]} on axis {axis}"
        yield f"the scale has shape {_text(scale_dims)}; it takes {count}"


def _product_problems(node: ir.Node, inferred: Knowledge) -> Iterator[str]:
    """What is wrong with a MatMulNBits."""
    rows, columns, size = (node.attributes.get_int(name, 0) for name in ("K", "N", "block_size"))
    bits = node.attributes.get_int("bits", 4)
    if bits not in _BITS:
        yield f"weights of {bits} bits; there are {', '.join(map(str, _BITS))}"
        return
    if size < _MIN_BLOCK or size & (size - 1):
        yield f"blocks of {size}; they are a power of two from {_MIN_BLOCK} on"
        return
    blocks = -(-rows // size)
    wanted = (columns, blocks, size * bits // 8)
    weight, scales = (_elements(inferred.dims(node.inputs[k])) for k in (1, 2))
    stated = f"K {rows} and N {columns} of {bits} bits in blocks of {size}"
    if weight not in (None, math.prod(wanted)) and not node.attributes.get_int("weight_prepacked", 0):
        yield f"the weight has {weight} bytes; {stated} take {math.prod(wanted)}"
    if scales not in (None, columns * blocks):
        yield f"{scales} scales; {stated} take {columns * blocks}"
    if len(node.inputs) > 3 and (zero := node.inputs[3]) is not None:
        packed = codes.dtype_of(zero) == ir.DataType.UINT8
        count, expected = _elements(inferred.dims(zero)), columns * (-(-blocks * bits // 8) if packed else blocks)
        if count not in (None, expected):
            yield f"{count} {'bytes of ' * packed}zero points; {stated} take {expected}"
    if node.inputs[2] is not None:
        yield from _scale_problems(node.inputs[2], divides=False)


def _scale_problems(scale: ir.Value, *, divides: bool) -> Iterator[str]:
    tensor = scale.const_value
    if tensor is None or scale.is_graph_input() or tensor.size > _READ:
        return
    values = tensor.numpy().astype(np.float64)
    wrong = values[~np.isfinite(values)]
    if wrong.size:
        yield f"the scale `{scale.name}` has a value that is no number: {wrong.flat[0]:g}"
    elif divides and (values == 0).any():
        yield f"the scale `{scale.name}` is 0, and numbers are divided by it"


def _differ(one: Dims, other: Dims) -> bool:
    """Whether two shapes are known to differ."""
    if len(one) != len(other):
        return True
    return any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in zip(one, other, strict=True))


def _as_scalar(dims: Dims) -> Dims:
    """A vector of one element as the scalar that ONNX Runtime takes it for."""
    return () if dims == (1,) else dims


def _elements(dims: Dims | None) -> int | None:
    numbers = [d for d in dims or () if isinstance(d, int)]
    return None if dims is None or len(numbers) < len(dims) else math.prod(numbers)


def _text(dims: Dims) -> str:
    return "[" + ", ".join(map(str, dims)) + "]"
