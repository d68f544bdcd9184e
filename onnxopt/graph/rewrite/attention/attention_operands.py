"""What an attention multiplies: queries, keys and values without the factors and Casts on them.

    q c    k^T c    Cast(q)    Transpose(Cast(k))

q and k of 16 bits may be cast to float32 in front of their product, which kernels add up in float32 anyhow. So may v
where the scores are a product of 16 bits, as TorchScript writes attention of half models under a float32 mask.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import onnx_ir as ir

from onnxopt.graph.match import integers
from onnxopt.graph.shapes.value_dims import dims_of, same

HEAD_STEP = 8  # elements, of whose multiples ONNX Runtime's fused kernels take heads
_ROUNDING = {ir.DataType.FLOAT: 2.0**-23, ir.DataType.FLOAT16: 2.0**-10, ir.DataType.BFLOAT16: 2.0**-7}
_FACTORS = (
    ("q_factor", "q_scaling"), ("k_factor", "k_scaling"), ("factor", "scaling"), ("cap_factor", "cap_scaling"),
)  # fmt: skip
_SIXTEEN_BIT = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_WIDE = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
_MAX_SINKS = 1 << 22  # elements, where they were expanded to all queries


@dataclasses.dataclass(frozen=True)
class Obstacle:
    """Why a match is no attention, and the value that is in the way."""

    reason: str
    value: ir.Value | None = None


def has_usual_heads(q: ir.Value, v: ir.Value) -> bool:
    """Whether ONNX Runtime's fused kernels take heads of these sizes, which are known."""
    sizes = [dims_of(value)[3] for value in (q, v)]
    return all(isinstance(size, int) and size % HEAD_STEP == 0 for size in sizes)


def operand_and_factor(operand: ir.Value, factor: ir.Value | None) -> tuple[ir.Value, ir.Value | None]:
    """Operand and factor of a Mul in this order: the matcher binds them in the order in which they stand."""
    if factor is None or scalar(factor) is not None:
        return operand, factor
    constant = operand.const_value is not None and factor.const_value is None
    return (factor, operand) if constant else (operand, factor)


def without_casts(q: ir.Value, k_transposed: ir.Value, v: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value | None]:
    """q, k^T and, where nothing else has its dtype, k: as they were before a Cast from v's 16 bits to float32."""
    narrow, node = _before_cast(q, v), k_transposed.producer()
    source_of_keys = _before_cast(k_transposed, v)
    if narrow is not None and source_of_keys is not None:
        return narrow, source_of_keys, None
    if narrow is None or node is None or (node.domain, node.op_type) != ("", "Transpose"):
        return q, k_transposed, None
    keys = None if node.inputs[0] is None else _before_cast(node.inputs[0], v)
    if keys is None or node.attributes.get_ints("perm") != (0, 1, 3, 2):
        return q, k_transposed, None
    return narrow, k_transposed, keys


def narrow_values(q: ir.Value, k_transposed: ir.Value, v: ir.Value) -> ir.Value | None:
    """The 16-bit values that v is a Cast of to float32, where scores are a product of 16 bits already."""
    node = v.producer()
    source = node.inputs[0] if node is not None and (node.domain, node.op_type) == ("", "Cast") else None
    if source is None or v.dtype != ir.DataType.FLOAT or source.dtype not in _SIXTEEN_BIT:
        return None
    return source if source.dtype == q.dtype == k_transposed.dtype else None


def _before_cast(value: ir.Value, v: ir.Value) -> ir.Value | None:
    """What a Cast makes float32 of, where that has v's dtype of 16 bits."""
    node = value.producer()
    if node is None or (node.domain, node.op_type) != ("", "Cast") or value.dtype != ir.DataType.FLOAT:
        return None
    source = node.inputs[0]
    return source if source is not None and source.dtype == v.dtype and v.dtype in _SIXTEEN_BIT else None


def shapes_disagree(q: ir.Value, k_transposed: ir.Value, v: ir.Value) -> str:
    """Why q (B, N, S, H), k^T (B, M, H, T) and v (B, M, T, V) make no attention, or ""."""
    a, b, c = dims_of(q), dims_of(k_transposed), dims_of(v)
    if not all(isinstance(d, int) for d in (a[1], a[3], b[1], b[2], c[1], c[3])):
        return "the number of heads, or their size, is not known"
    if a[3] != b[2]:
        return f"the heads of q have {a[3]} elements, those of k {b[2]}"
    if b[1] != c[1] or b[1] not in (a[1], 1):
        return f"q has {a[1]} heads, k has {b[1]} and v has {c[1]}"
    if not (same(a[0], b[0]) and same(b[0], c[0])):
        return f"the batch sizes of q, k and v are not known to be equal: {a[0]}, {b[0]}, {c[0]}"
    if not same(b[3], c[2]):
        return f"the lengths of k and v are not known to be equal: {b[3]}, {c[2]}"
    if a[1] == 0 or a[3] == 0:
        return "q has no heads, or heads of no elements"
    if c[3] == 0:
        return "v has heads of no elements"
    return ""


def casts_round(q: ir.Value, v: ir.Value, match: Mapping[str, Any]) -> str:
    """Why a Cast between the two products loses precision, or ""."""
    if q.dtype != v.dtype or q.dtype not in _ROUNDING:
        return f"q is {q.dtype} and v is {v.dtype}; attention kernels take one dtype of FLOAT, FLOAT16 and BFLOAT16"
    for name in ("scores_cast", "masked_cast"):
        value = match.get(name)
        if value is not None and value.dtype not in (*_WIDE, q.dtype):
            return f"Cast gives the scores `{value.name}` {value.dtype}, which is narrower than the {q.dtype} of q"
    value = match.get("weights_cast")
    if value is not None and value.dtype not in (v.dtype, *_WIDE):
        return f"Cast gives the weights `{value.name}` {value.dtype}, v is {v.dtype}"
    return ""


def scale_of(q: ir.Value, match: Mapping[str, Any]) -> float | Obstacle:
    """The product of all factors, or why it is not known."""
    scale = 1.0
    for factor, operation in _FACTORS:
        if match.get(operation, "none") == "none":
            continue
        value = match[factor]
        number = scalar(value)
        if number is None:
            return Obstacle(f"the factor `{value.name}` is not a constant of one element", value)
        if number == 0 or not math.isfinite(number):
            return Obstacle(f"the factor `{value.name}` is {number}", value)
        scale = scale * number if match[operation] == "mul" else scale / number
    usual = 1 / math.sqrt(int(dims_of(q)[3]))  # type: ignore[arg-type]
    rounding = _ROUNDING[q.dtype] if q.dtype is not None else 0.0
    return usual if abs(scale - usual) <= 2 * rounding * usual else scale


def scalar(value: ir.Value | None) -> float | None:
    """The element of a constant of one, None for other values."""
    tensor = value.const_value if value is not None else None
    return float(tensor.numpy().item()) if tensor is not None and tensor.size == 1 else None


def cap_of(match: Mapping[str, Any]) -> float | None:
    """The cap of the scores x, which become cap tanh(x / cap), whatever factor of x the graph states; None for others.

    A factor f of the operand of Tanh makes that of x cap times f.
    """
    cap = scalar(match["cap"])
    return cap if cap is not None and math.isfinite(cap) and cap > 0 else None


def sinks_of(q: ir.Value, sinks: ir.Value | None, sliced: ir.Value | None) -> ir.TensorProtocol | None:
    """The score of each head behind those of the keys, where Slice leaves its weight out; None for anything else."""
    if sinks is None or sliced is None or sinks.dtype != q.dtype:
        return None
    bounds = [integers(v) for v in sliced.producer().inputs[1:]]  # type: ignore[union-attr]
    weights = sliced.producer().inputs[0]  # type: ignore[union-attr]
    keys = None if weights is None or weights.shape is None else weights.shape[-1]
    ends = ([-1], [keys - 1]) if isinstance(keys, int) else ([-1],)
    if len(bounds) < 3 or bounds[0] != [0] or bounds[1] not in ends:
        return None
    if bounds[2] not in ([3], [-1]) or bounds[3:] not in ([], [[1]]):
        return None
    node, heads = sinks.producer(), dims_of(q)[1]
    source = node.inputs[0] if sinks.const_value is None and node is not None and node.op_type == "Expand" else sinks
    if source is None or source.const_value is None or source.const_value.size > _MAX_SINKS:
        return None
    array = source.const_value.numpy()
    array = array.reshape((1,) * (4 - array.ndim) + array.shape)
    if array.ndim != 4 or array.shape[1] != heads or array.shape[3] != 1 or (array != array[:1, :, :1]).any():
        return None
    return ir.tensor(array[0, :, 0, 0].copy(), dtype=q.dtype)
