"""Spellings of sums, products and factors."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from tests.fuzz.respell.building import WIDE, Builder
from tests.fuzz.respell.spelling import ANY, constant_of, is_float, number_of, rank_of, spells


@spells("Add", "Mul")
def swapped(b: Builder, node: ir.Node) -> ir.Value:
    return b.op(node.op_type, node.inputs[1], node.inputs[0])


@spells("Add")
def sum_of_two(b: Builder, node: ir.Node) -> ir.Value | None:
    return b.op("Sum", *node.inputs) if is_float(node.outputs[0]) else None


@spells("Add")
def sum_of_three(b: Builder, node: ir.Node) -> ir.Value | None:
    for x, other in (node.inputs, reversed(node.inputs)):
        made = None if x is None else x.producer()
        if made is not None and made.op_type == "Add" and is_float(x):
            return b.op("Sum", *made.inputs, other)
    return None


@spells("Add")
def subtracted(b: Builder, node: ir.Node) -> ir.Value | None:
    """x + c as x - (-c), and x + y as x - (-y)."""
    x, y = node.inputs
    if y is None or not is_float(y) or x is None:
        return None
    if (tensor := constant_of(y)) is not None:
        return b.op("Sub", x, b.constant(-tensor.numpy(), tensor.dtype))
    return b.op("Sub", x, b.op("Neg", y))


@spells("Where")
def choice_by_casts(b: Builder, node: ir.Node) -> ir.Value | None:
    """c ? x : y as x Cast(c) + y Cast(Not(c)), where both are finite."""
    condition, *values = node.inputs
    tensors = [t.numpy() for v in values if (t := constant_of(v)) is not None]
    if not all(map(is_float, values)) or not all(np.isfinite(t.astype(np.float32)).all() for t in tensors):
        return None
    dtype = int(values[0].dtype)  # type: ignore[union-attr, arg-type]
    factors = [b.op("Cast", c, to=dtype) for c in (condition, b.op("Not", condition))]
    terms = [b.op("Mul", *b.rng.sample(pair, 2)) for pair in zip(values, factors, strict=True)]
    return b.op("Add", *b.rng.sample(terms, 2))


@spells("Neg")
def negative(b: Builder, node: ir.Node) -> ir.Value:
    x = node.inputs[0]
    assert x is not None
    if b.rng.random() < 0.5:
        return b.op("Mul", *b.rng.sample([x, b.number(-1.0, x)], 2))
    return b.op("Sub", b.number(0.0, x), x)


@spells("Mul")
def divided(b: Builder, node: ir.Node) -> ir.Value | None:
    """x times a number as x divided by its reciprocal."""
    for x, factor in (node.inputs, reversed(node.inputs)):
        number = number_of(factor)
        if number and x is not None:
            return b.op("Div", x, b.number(1.0 / number, x))
    return None


@spells("Mul")
def computed_factor(b: Builder, node: ir.Node) -> ir.Value | None:
    """The factor as a quotient or root of constants, as exporters leave it."""
    for x, factor in (node.inputs, reversed(node.inputs)):
        number = number_of(factor)
        if number and number > 0 and x is not None:
            if b.rng.random() < 0.5:
                return b.op("Mul", x, b.op("Div", b.number(1.0, x), b.number(1.0 / number, x)))
            return b.op("Div", x, b.op("Sqrt", b.number(number**-2, x)))
    return None


@spells("Mul")
def factor_on_an_operand(b: Builder, node: ir.Node) -> ir.Value | None:
    """(q k) c as (q c) k or q (k c) or (q sqrt(c)) (k sqrt(c)), as of attention's scores."""
    for product, factor in (node.inputs, reversed(node.inputs)):
        number, made = number_of(factor), None if product is None else product.producer()
        if not number or number < 0 or made is None or made.op_type != "MatMul" or len(made.outputs[0].uses()) > 1:
            continue
        q, k = made.inputs
        if q is None or k is None or any(constant_of(v) is not None for v in (q, k)):
            continue
        form = b.rng.choice(["q", "k", "both"])
        share = number**0.5 if form == "both" else number
        q = q if form == "k" else b.op("Mul", q, b.number(share, q))
        k = k if form == "q" else b.op("Mul", k, b.number(share, k))
        return b.op("MatMul", q, k)
    return None


@spells("Add", "Mul")
def constant_with_dims(b: Builder, node: ir.Node) -> ir.Value | None:
    """A constant operand with leading dims of 1: [N] as [1, N] or [1, 1, N]."""
    rank = rank_of(node.outputs[0])
    for k, value in enumerate(node.inputs):
        tensor = constant_of(value)
        if tensor is not None and len(tensor.shape) < rank:
            shape = (1,) * b.rng.randint(1, rank - len(tensor.shape)) + tuple(tensor.shape.numpy())
            inputs = list(node.inputs)
            inputs[k] = b.constant(tensor.numpy().reshape(shape), tensor.dtype)
            return b.op(node.op_type, *inputs)
    return None


@spells("MatMul")
def gemm_between_views(b: Builder, node: ir.Node) -> ir.Value | None:
    """x w as Reshape, Gemm, Reshape."""
    x, weight = node.inputs[0], constant_of(node.inputs[1])
    if x is None or weight is None or len(weight.shape) != 2 or rank_of(x) != 3:
        return None
    rows, columns = weight.shape.numpy()
    flat = b.op("Reshape", x, b.constant([-1, rows]))
    return b.op("Reshape", _gemm(b, flat, weight, None), _leading(b, x, columns))


@spells("Add")
def gemm_with_bias(b: Builder, node: ir.Node) -> ir.Value | None:
    """x w + c as Reshape, Gemm, Reshape, or as Gemm alone where x is a matrix."""
    for product, bias in (node.inputs, reversed(node.inputs)):
        made = None if product is None else product.producer()
        if made is None or made.op_type != "MatMul" or constant_of(bias) is None:
            continue
        x, weight = made.inputs[0], constant_of(made.inputs[1])
        if x is None or weight is None or len(weight.shape) != 2 or rank_of(x) not in (2, 3):
            continue
        if len(made.outputs[0].uses()) > 1 or rank_of(bias) != 1:
            continue
        rows, columns = weight.shape.numpy()
        if rank_of(x) == 2:
            return _gemm(b, x, weight, bias)
        flat = b.op("Reshape", x, b.constant([-1, rows]))
        return b.op("Reshape", _gemm(b, flat, weight, bias), _leading(b, x, columns))
    return None


def _gemm(b: Builder, x: ir.Value, weight: ir.TensorProtocol, bias: ir.Value | None) -> ir.Value:
    turned = b.rng.randint(0, 1)
    array = np.ascontiguousarray(weight.numpy().T) if turned else weight.numpy()
    return b.op("Gemm", x, b.constant(array, weight.dtype), bias, transB=turned)


def _leading(b: Builder, x: ir.Value, columns: int) -> ir.Value:
    """The shape of x with other columns, computed in one of the ways of exporters."""
    assert x.shape is not None
    form = b.rng.choice(["slice", "gather", "constant"])
    numbers = [d for d in x.shape[:2] if isinstance(d, int)]
    if form == "constant" and numbers:
        return b.constant([d if isinstance(d, int) else -1 for d in x.shape[:2]] + [columns])
    shape = b.op("Shape", x)
    if form == "gather":
        batch, length = (b.op("Gather", shape, b.constant(k), axis=0) for k in (0, 1))
        zero = b.constant([0])
        return b.op(
            "Concat", b.op("Unsqueeze", batch, zero), b.op("Unsqueeze", length, zero), b.constant([columns]), axis=0
        )
    leading = b.op("Slice", shape, b.constant([0]), b.constant([2]), b.constant([0]))
    return b.op("Concat", leading, b.constant([columns]), axis=0)


@spells("MatMul")
def transposed_weight(b: Builder, node: ir.Node) -> ir.Value | None:
    x, weight = node.inputs[0], constant_of(node.inputs[1])
    if weight is None or len(weight.shape) != 2:
        return None
    turned = b.constant(np.ascontiguousarray(weight.numpy().T), weight.dtype)
    return b.op("MatMul", x, b.op("Transpose", turned, perm=[1, 0]))


@spells("MatMul")
def transposed_product(b: Builder, node: ir.Node) -> ir.Value | None:
    """a b as the Transpose of b^T a^T, for products of activations."""
    if any(constant_of(v) is not None or rank_of(v) != 4 for v in node.inputs):
        return None
    a, c = (b.op("Transpose", v, perm=[0, 1, 3, 2]) for v in node.inputs)
    return b.op("Transpose", b.op("MatMul", c, a), perm=[0, 1, 3, 2])


@spells("Conv")
def bias_added(b: Builder, node: ir.Node) -> ir.Value | None:
    """A convolution's bias as an Add of [1, C, 1, 1] or [C, 1, 1]."""
    bias = constant_of(node.inputs[2]) if len(node.inputs) > 2 else None
    if bias is None:
        return None
    shape = b.rng.choice([(1, -1, 1, 1), (-1, 1, 1)])
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    y = b.op("Conv", *node.inputs[:2], **attributes)
    return b.op("Add", *b.rng.sample([y, b.constant(bias.numpy().reshape(shape), bias.dtype)], 2))


@spells("Conv")
def same_pads(b: Builder, node: ir.Node) -> ir.Value | None:
    """Pads by auto_pad, and attributes that say the default."""
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    pads = attributes.pop("pads", None)
    if pads is None:
        return None
    attributes |= {"auto_pad": "SAME_UPPER" if any(pads) else "VALID", "strides": [1, 1], "dilations": [1, 1]}
    return b.op("Conv", *node.inputs, **attributes)


@spells("BatchNormalization")
def batch_norm(b: Builder, node: ir.Node) -> ir.Value:
    """As a product and a sum of each channel."""
    x, *parameters = node.inputs
    assert x is not None and x.dtype is not None
    scale, shift, mean, variance = (constant_of(p).numpy().astype(np.float64) for p in parameters)  # type: ignore[union-attr]
    factor = scale / np.sqrt(variance + node.attributes.get_float("epsilon", 1e-5))
    columns = [a.reshape(1, -1, 1, 1) for a in (factor, shift - mean * factor)]
    return b.op("Add", b.op("Mul", x, b.constant(columns[0], x.dtype)), b.constant(columns[1], x.dtype))


@spells(ANY)
def wide_and_back(b: Builder, node: ir.Node) -> ir.Value | None:
    """Casts that lose nothing, behind a value."""
    value = node.outputs[0]
    if value.dtype not in WIDE or len(node.outputs) > 1:
        return None
    copy = b.op(node.op_type, *node.inputs, **{name: a.value for name, a in node.attributes.items()})
    return b.op("Cast", b.op("Cast", copy, to=int(WIDE[value.dtype])), to=int(value.dtype))


@spells("Add", "Mul", "Relu", "Neg", "Softmax")
def computed_wide(b: Builder, node: ir.Node) -> ir.Value | None:
    """A node of float16 computed in float32, as runtimes do by themselves."""
    value = node.outputs[0]
    if value.dtype != ir.DataType.FLOAT16:
        return None
    wide = [b.op("Cast", v, to=int(ir.DataType.FLOAT)) for v in node.inputs]
    result = b.op(node.op_type, *wide, **{name: a.value for name, a in node.attributes.items()})
    return b.op("Cast", result, to=int(ir.DataType.FLOAT16))


@spells("Add")
def rotated_by_parts(b: Builder, node: ir.Node) -> ir.Value | None:
    """x cos + [-x2, x1] sin as [x1 cos1 - x2 sin1, x2 cos2 + x1 sin2]."""
    products = [None if v is None else v.producer() for v in node.inputs]
    if any(p is None or p.op_type != "Mul" for p in products):
        return None
    x, cos = products[0].inputs  # type: ignore[union-attr]
    turned, sin = products[1].inputs  # type: ignore[union-attr]
    made = None if turned is None else turned.producer()
    if made is None or made.op_type != "Concat" or x is None or cos is None or sin is None or x.shape is None:
        return None
    if rank_of(x) != 4 or any(rank_of(v) != 4 for v in (cos, sin)):
        return None
    (x1, x2), (c1, c2), (s1, s2) = (b.parts("Split", 2, v, axis=-1, num_outputs=2) for v in (x, cos, sin))
    low = b.op("Sub", b.op("Mul", x1, c1), b.op("Mul", x2, s1))
    high = b.op("Add", b.op("Mul", x2, c2), b.op("Mul", x1, s2))
    return b.op("Concat", low, high, axis=-1)
