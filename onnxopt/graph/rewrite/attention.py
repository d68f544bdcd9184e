"""Scaled dot-product attention as PyTorch's exporters write it, to one Sdpa.

    MatMul(P, v) -> Sdpa(q, k, v, mask)     P = Softmax(scores), or Cast(Softmax(Cast(scores)))
                                            or Where(IsNaN(P), 0, P)
    scores = MatMul(q, k^T), with a constant factor on q, on k^T or on the product, and one of
        Add(scores, mask)    Where(shown, scores, low)    Where(hidden, low, scores)

The factors multiply to the scale. Where that is 1 / sqrt(H) but for the rounding of constants in the model's dtype it
is taken to be just that. The guard against NaN goes where no row can be masked with -inf from end to end; elsewhere
such rows are found by the mask and become zeros as before. What the guard does to a query that holds a NaN or an
infinity is not kept. A row whose every key is hidden by a finite mask has no defined
attention: its result depends on how scores of -65504 round, here as in any runtime.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import MatchContext, MatchResult, RewriteRule, RewriteRuleClassBase, pattern

from onnxopt.graph.rewrite.masks import masks
from onnxopt.graph.rewrite.masks.index_values import IndexValues
from onnxopt.graph.rewrite.masks.masks import Mask
from onnxopt.graph.rewrite.symbolic import AtMost, dims_of, same
from onnxopt.graph.shapes.contrib_schemas import DOMAIN

_ROUNDING = {ir.DataType.FLOAT: 2.0**-23, ir.DataType.FLOAT16: 2.0**-10, ir.DataType.BFLOAT16: 2.0**-7}
_LEAST = {ir.DataType.FLOAT: -3.4028234663852886e38, ir.DataType.FLOAT16: -65504.0, ir.DataType.BFLOAT16: -3.38e38}
_REDUCE_MAX_WITH_AXES_INPUT = 18  # opset
_HEAD_MULTIPLE = 8  # elements; heads of other sizes run unfused, slower than the products and the softmax by themselves
_WIDE = (ir.DataType.FLOAT, ir.DataType.DOUBLE)


class ScaledDotProduct(RewriteRuleClassBase):
    """The rule above. known: what the graph's integer and bool tensors hold."""

    def __init__(self, known: IndexValues) -> None:
        super().__init__("attention")
        self._known = known
        self._mask = masks.NONE
        self._scale = 0.0
        self._guards_rows = False

    def rule_of_self(self) -> RewriteRule:
        return RewriteRule(self.pattern, self.rewrite, self.check, name=self.name)

    def pattern(self, op, q, k_transposed, v, mask, shown, hidden, low, q_factor, k_factor, factor, zero):
        queries = _factored(op, q, q_factor, "q_scaling")
        keys = _factored(op, k_transposed, k_factor, "k_scaling")
        scores = _factored(op, op.MatMul(queries, keys), factor, "scaling")
        scores = pattern.OrValue([op.Cast(scores, _outputs=["scores_cast"]), scores])
        masked = pattern.OrValue(
            [
                op.Add(scores, mask),
                op.Add(mask, scores),
                op.Where(shown, scores, low),
                op.Where(hidden, low, scores),
                scores,
            ],
            tag_var="masking",
            tag_values=["add", "add", "shown", "hidden", "none"],
        )
        masked = pattern.OrValue([op.Cast(masked, _outputs=["masked_cast"]), masked])
        weights = op.Softmax(masked, axis=-1, _outputs=["softmax"])
        weights = pattern.OrValue([op.Cast(weights, _outputs=["weights_cast"]), weights])
        guarded = op.Where(op.IsNaN(weights), zero, weights)
        weights = pattern.OrValue([guarded, weights], tag_var="guarded", tag_values=[True, False])
        return op.MatMul(weights, v)

    def check(
        self, context: MatchContext, q, k_transposed, v, mask, shown, hidden, low, zero, masking, guarded, **found
    ):
        result = MatchResult()
        q, found["q_factor"] = _operand_and_factor(q, found["q_factor"])
        k_transposed, found["k_factor"] = _operand_and_factor(k_transposed, found["k_factor"])
        for name, value in (("q", q), ("k", k_transposed), ("v", v)):
            if value.shape is None or len(value.shape) != 4:
                return result.fail(f"{name} ({value.name}) is not known to have the four dims of heads", value)
        if reason := _shapes_disagree(q, k_transposed, v) or _casts_round(q, v, found):
            return result.fail(reason)
        scale = _scale(q, found)
        if isinstance(scale, str):
            return result.fail(scale)
        mask_value = {"add": mask, "shown": shown, "hidden": hidden, "none": None}[masking]
        if masking in ("shown", "hidden") and (number := _scalar(low)) is not None and number > -1e4:
            return result.fail(f"hidden scores become {number:g}, which does not hide them")
        if masking in ("shown", "hidden") and _scalar(low) is None:
            return result.fail("what hidden scores become is not a constant of one element", low)
        if mask_value is not None and not self._broadcasts(mask_value, q, k_transposed):
            return result.fail(f"the mask {mask_value.name} is not known to broadcast to the scores", mask_value)
        self._scale = scale
        self._mask = self._what_mask(masking, mask_value, low)
        if guarded and _scalar(zero) != 0:
            return result.fail("NaNs become something other than 0", zero)
        self._guards_rows = guarded and not self._mask.finite and not self._shows_some_key(q, k_transposed)
        if self._guards_rows and context.model.opset_imports.get("", 0) < _REDUCE_MAX_WITH_AXES_INPUT:
            return result.fail("the mask may hide a whole row with -inf, and the opset is too old to find such rows")
        return result

    def _broadcasts(self, mask: ir.Value, q: ir.Value, k_transposed: ir.Value) -> bool:
        dims = self._known.symbols.dims(mask)
        scores = (*dims_of(q)[:3], dims_of(k_transposed)[3])
        if dims is None or len(dims) > 4:
            return False
        # What is at most as long as the scores, and broadcasts to them, is as long as they are.
        exact = [d.limit if isinstance(d, AtMost) else d for d in dims]
        return all(d == 1 or same(d, s) for d, s in zip(reversed(exact), reversed(scores), strict=False))

    def _what_mask(self, masking: str, value: ir.Value | None, low: ir.Value | None) -> Mask:
        if value is None:
            return masks.NONE
        if masking == "add":
            return masks.additive(value, self._known)
        found = masks.boolean(value, self._known, shows=masking == "shown")
        number = _scalar(low) if low is not None else None
        return Mask(found.kind, found.offset, number is not None and math.isfinite(number))

    def _shows_some_key(self, q: ir.Value, k_transposed: ir.Value) -> bool:
        """Whether the mask provably shows every query at least one key."""
        causal = self._mask.kind == "causal"
        return self._mask.kind == "none" or (causal and isinstance(self._mask.offset, int) and self._mask.offset >= 0)

    def rewrite(self, op, q, k_transposed, v, mask, shown, hidden, low, masking, **found):
        q, _ = _operand_and_factor(q, found["q_factor"])
        k_transposed, _ = _operand_and_factor(k_transposed, found["k_factor"])
        causal = self._mask.kind == "causal" and _is_diagonal(self._mask, q, k_transposed)
        keys = op.Transpose(k_transposed, perm=[0, 1, 3, 2])
        attributes = {"scale": self._scale, "causal": int(causal), "_domain": DOMAIN}
        if causal or self._mask.kind == "none":
            return op.Sdpa(q, keys, v, **attributes)
        if masking != "add":
            array = np.array(0, dtype=low.dtype.numpy())
            nothing = op.Constant(value=ir.tensor(array, dtype=low.dtype))
            mask = op.Where(shown, nothing, low) if masking == "shown" else op.Where(hidden, low, nothing)
        if mask.dtype is not None and mask.dtype != q.dtype:
            mask = _narrowed(op, mask, q.dtype)
        if not self._guards_rows:
            return op.Sdpa(q, keys, v, mask, **attributes)
        zero, least = (op.Constant(value=_scalar_of(n, q.dtype)) for n in (0.0, _LEAST[q.dtype]))
        best = op.ReduceMax(mask, op.Constant(value=ir.tensor([-1], dtype=ir.DataType.INT64)), keepdims=1)
        return op.Where(op.Less(best, least), zero, op.Sdpa(q, keys, v, op.Max(mask, least), **attributes))


def _factored(op, x, factor, name: str):
    """x, or x times or divided by a value bound to `factor`; `name` is bound to which."""
    return pattern.OrValue(
        [op.Mul(x, factor), op.Mul(factor, x), op.Div(x, factor), x],
        tag_var=name,
        tag_values=["mul", "mul", "div", "none"],
    )


def _operand_and_factor(operand: ir.Value, factor: ir.Value | None) -> tuple[ir.Value, ir.Value | None]:
    """The two as they are meant: where any value may be the operand, the matcher takes them in the order they stand."""
    if factor is not None and _scalar(factor) is None and _scalar(operand) is not None:
        return factor, operand
    return operand, factor


def _narrowed(op, mask, dtype: ir.DataType):
    """A float32 mask in the dtype of q: its -3.4e38 would become -inf, so it is held above what that dtype can hold."""
    if dtype == ir.DataType.FLOAT16:
        mask = op.Max(mask, op.Constant(value=_scalar_of(_LEAST[dtype], ir.DataType.FLOAT)))
    return op.Cast(mask, to=dtype)


def _scalar_of(value: float, dtype: ir.DataType) -> ir.TensorProtocol:
    return ir.tensor(np.array(value).astype(dtype.numpy()), dtype=dtype)


def _shapes_disagree(q: ir.Value, k_transposed: ir.Value, v: ir.Value) -> str:
    a, b, c = dims_of(q), dims_of(k_transposed), dims_of(v)
    if not all(isinstance(d, int) for d in (a[1], a[3], b[1], b[2], c[1], c[3])):
        return "the number of heads or their size is not known"
    if a[3] != b[2]:
        return f"q has heads of {a[3]}, k of {b[2]}"
    if not (a[1] == b[1] == c[1]):
        return f"q, k and v have {a[1]}, {b[1]} and {c[1]} heads"
    if not (same(a[0], b[0]) and same(b[0], c[0])):
        return f"q, k and v are not known to have the same batch: {a[0]}, {b[0]}, {c[0]}"
    if not same(b[3], c[2]):
        return f"k and v are not known to have the same length: {b[3]}, {c[2]}"
    if a[1] == 0 or a[3] == 0:
        return "there are no heads"
    if a[3] % _HEAD_MULTIPLE or c[3] % _HEAD_MULTIPLE:
        return f"heads of {a[3]} and {c[3]}: fused attention kernels take multiples of {_HEAD_MULTIPLE}"
    return ""


def _casts_round(q: ir.Value, v: ir.Value, found: dict) -> str:
    """Why a Cast between the products is more than a wider softmax, or ""."""
    if q.dtype != v.dtype or q.dtype not in _ROUNDING:
        return f"q is {q.dtype}, v {v.dtype}: not one float dtype that attention kernels take"
    for name in ("scores_cast", "masked_cast"):
        value = found.get(name)
        if value is not None and value.dtype not in (*_WIDE, q.dtype):
            return f"{value.name} is cast to {value.dtype}, which is narrower than {q.dtype}"
    value = found.get("weights_cast")
    if value is not None and value.dtype not in (v.dtype, *_WIDE):
        return f"the weights are cast to {value.dtype}"
    return ""


def _scale(q: ir.Value, found: dict) -> float | str:
    """The product of all factors, or why it is not known."""
    scale = 1.0
    for factor, how in (("q_factor", "q_scaling"), ("k_factor", "k_scaling"), ("factor", "scaling")):
        if found[how] == "none":
            continue
        value = found[factor]
        number = _scalar(value)
        if number is None:
            return f"the factor {value.name} is not a constant of one element"
        if number == 0 or not math.isfinite(number):
            return f"the factor {value.name} is {number}"
        scale = scale * number if found[how] == "mul" else scale / number
    usual = 1 / math.sqrt(int(dims_of(q)[3]))  # type: ignore[arg-type]
    rounding = _ROUNDING[q.dtype] if q.dtype is not None else 0.0
    return usual if abs(scale - usual) <= 2 * rounding * usual else scale


def _scalar(value: ir.Value | None) -> float | None:
    tensor = value.const_value if value is not None else None
    return float(tensor.numpy().item()) if tensor is not None and tensor.size == 1 else None


def _is_diagonal(mask: Mask, q: ir.Value, k_transposed: ir.Value) -> bool:
    """Whether the last query reads all keys, which is what runtimes call causal."""
    queries, keys = dims_of(q)[2], dims_of(k_transposed)[3]
    if same(queries, keys):
        return mask.offset == 0
    difference = keys - queries
    if isinstance(difference, ir.SymbolicDim):
        difference = difference.simplify()
    return str(difference) == str(mask.offset)
