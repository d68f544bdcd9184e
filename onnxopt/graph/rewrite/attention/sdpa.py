"""Scaled dot-product attention as PyTorch's exporters write it, to one Sdpa.

    MatMul(P, v) -> Sdpa(q, k, v, mask)     P = Softmax(scores), or Cast(Softmax(Cast(scores)))
                                            or Where(IsNaN(P), 0, P)
    MatMul(P, Cast(v)) -> Cast(Sdpa(q, k, v, mask))         q, k and v of 16 bits, P and the result of float32
    scores = MatMul(q, k^T), with a constant factor on q, on k^T or on the product, and one of
        Add(scores, mask)    Add(Add(scores, mask), more)    Where(shown, scores, low)    Where(hidden, low, scores)
        Add(Where(shown, scores, low), mask)    Where(shown, Add(scores, mask), low)
        Where(hidden, low, Add(scores, mask))

The masked scores may be raised to the least number of their dtype, which replaces -inf, where no mask holds one.
The scores may be capped before they are masked, and may get a sink, which is a score for no key, behind them:

    Mul(Tanh(Div(scores, cap)), cap)    P = Slice(Softmax(x), [0:-1])    x = Concat(scores, sinks), or x - ReduceMax(x)

The scale is the product of the factors; one of more than one element stays on q. Where it differs from 1 / sqrt(H) only
by the rounding of constants in the model's dtype, it is set to 1 / sqrt(H). The guard against NaN is dropped where no
row can be masked with -inf from end to end; elsewhere such rows are found by the mask and become zeros as before. What
the guard does to a query that holds a NaN or an infinity is not kept. Rows whose every key is hidden by a finite mask
weigh their keys as before: hidden_rows.py.

Two masks, such as a bias of positions and hidden keys, become one, which layers that read both share. What a mask shows
by position is told apart from the rest (masks/parts.py): a kernel computes a window itself, and reads what is left. All
heads may share one head of keys and values.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir
from onnxscript.rewriter import MatchContext, MatchResult, RewriteRuleClassBase, pattern

from onnxopt.graph.passes.rooted import Rooted
from onnxopt.graph.rewrite.attention import hidden_rows
from onnxopt.graph.rewrite.attention.attention_operands import (
    HEAD_STEP,
    Obstacle,
    cap_of,
    casts_round,
    has_usual_heads,
    narrow_values,
    operand_and_factor,
    scalar,
    scale_of,
    shapes_disagree,
    sinks_of,
    without_casts,
)
from onnxopt.graph.rewrite.masks import masks, parts
from onnxopt.graph.rewrite.masks.index_values import IndexValues
from onnxopt.graph.rewrite.masks.masks import Mask
from onnxopt.graph.rewrite.masks.parts import Parts
from onnxopt.graph.rewrite.rule_sets import RuleSet
from onnxopt.graph.shapes.contrib_schemas import DOMAIN
from onnxopt.graph.shapes.dims import broadcasts_exactly, simplest
from onnxopt.graph.shapes.value_dims import dims_of

_REDUCE_MAX_WITH_AXES_INPUT = 18  # opset
_HIDING = -1e4  # scores of this or less get weights of 0 in every float dtype
_HIDDEN = ("hidden", "under")  # ways of masking by a condition that hides keys
_BY_BOTH = ("both", "over", "under")  # by a condition and by what is added
_MAX_LOST = 2.0**-6  # of a score, where a constant bias of float32 is rounded


@dataclasses.dataclass(frozen=True)
class Form:
    """One attention as the pattern matched it.

    q (B, N, S, H), k_transposed (B, N, H, T), v (B, N, T, V): without the constant factors on them, whose product is
    scale. mask: what mask_value is known to show. guards_rows: whether rows that the mask hides with -inf become zeros.
    cap: of scores, 0 without one. sinks: of each head. keys: k itself, where k_transposed is a Cast of it. scaled: the
    operator and the factor of more than one element that queries still get, as attention of cosines has one of heads.
    widened: whether values were cast to float32, in which the result is, too.
    """

    q: ir.Value
    k_transposed: ir.Value
    v: ir.Value
    scale: float
    mask: Mask
    mask_value: ir.Value | None
    guards_rows: bool
    cap: float = 0.0
    sinks: ir.TensorProtocol | None = None
    keys: ir.Value | None = None
    scaled: tuple[str, ir.Value] | None = None
    widened: bool = False


class ScaledDotProduct(RewriteRuleClassBase):
    """The rule above. index_values: what the graph's integer and bool tensors hold."""

    def __init__(self, index_values: IndexValues) -> None:
        super().__init__("attention")
        self._index_values = index_values

    def pattern(
        self, op, q, k_transposed, v, mask, more, shown, hidden, low, q_factor, k_factor, factor, zero, cap_factor, cap,
        sinks, floor,
    ):  # fmt: skip
        queries = _factored(op, q, q_factor, "q_scaling")
        keys = _factored(op, k_transposed, k_factor, "k_scaling")
        scores = _factored(op, op.MatMul(queries, keys), factor, "scaling")
        capped = op.Tanh(_factored(op, scores, cap_factor, "cap_scaling"))
        scores = pattern.OrValue(
            [op.Mul(capped, cap), op.Mul(cap, capped), scores], tag_var="capped", tag_values=[True, True, False]
        )
        scores = pattern.OrValue([op.Cast(scores, _outputs=["scores_cast"]), scores])
        once = [op.Add(scores, mask), op.Add(mask, scores)]
        twice = [total for added in once for total in (op.Add(added, more), op.Add(more, added))]
        selected = op.Where(shown, scores, low)
        both = [op.Add(selected, mask), op.Add(mask, selected)]
        over = [op.Where(shown, added, low) for added in once]
        under = [op.Where(hidden, low, added) for added in once]
        masked = pattern.OrValue(
            [*once, *twice, *both, *over, *under, selected, op.Where(hidden, low, scores), scores],
            tag_var="masking",
            tag_values=["add"] * 2 + ["twice"] * 4 + ["both"] * 2 + ["over"] * 2 + ["under"] * 2
            + ["shown", "hidden", "none"],
        )  # fmt: skip
        raised = [op.Max(masked, floor), op.Max(floor, masked)]
        masked = pattern.OrValue([*raised, masked], tag_var="raised", tag_values=[True, True, False])
        masked = pattern.OrValue([op.Cast(masked, _outputs=["masked_cast"]), masked])
        sunk = op.Concat(masked, sinks, axis=-1)
        largest = op.ReduceMax(sunk, _allow_other_inputs=True, keepdims=1, _allow_other_attributes=True)
        sunk = pattern.OrValue([op.Sub(sunk, largest), sunk])
        logits = pattern.OrValue([sunk, masked], tag_var="sunk", tag_values=[True, False])
        weights = op.Softmax(logits, axis=-1, _outputs=["softmax"])
        weights = pattern.OrValue([op.Cast(weights, _outputs=["weights_cast"]), weights])
        guarded = op.Where(op.IsNaN(weights), zero, weights)
        weights = pattern.OrValue([guarded, weights], tag_var="guarded", tag_values=[True, False])
        without_sinks = op.Slice(weights, _allow_other_inputs=True, _outputs=["cut"])
        weights = pattern.OrValue([without_sinks, weights], tag_var="is_cut", tag_values=[True, False])
        return op.MatMul(weights, v)

    def check(self, context: MatchContext, **match):
        result = MatchResult()
        form = self._form(match)
        if isinstance(form, Obstacle):
            return result.fail(form.reason, form.value)
        if form.guards_rows and context.model.opset_imports.get("", 0) < _REDUCE_MAX_WITH_AXES_INPUT:
            return result.fail(
                f"the mask may hide a whole row with -inf; finding such rows takes opset {_REDUCE_MAX_WITH_AXES_INPUT}"
            )
        if reason := self.size_obstacle(form, context):
            return result.fail(reason)
        return result

    def size_obstacle(self, form: Form, context: MatchContext) -> str:
        """Why heads of this size are not taken, or "". Those of other sizes: head_sizes.py."""
        return "" if has_usual_heads(form.q, form.v) else odd_size(form)

    def _form(self, matched: Mapping[str, Any]) -> Form | Obstacle:
        """The attention that was matched, or why it is none. `check` and `rewrite` both ask: a match holds no more."""
        match, v = dict(matched), matched["v"]
        q, match["q_factor"] = operand_and_factor(match["q"], match["q_factor"])
        k_transposed, match["k_factor"] = operand_and_factor(match["k_transposed"], match["k_factor"])
        for name, value in (("q", q), ("k", k_transposed), ("v", v)):
            if value.shape is None or len(value.shape) != 4:
                return Obstacle(f"{name}, `{value.name}`, is not known to have four dims", value)
        narrow = narrow_values(q, k_transposed, v)
        v = v if narrow is None else narrow
        q, k_transposed, keys = without_casts(q, k_transposed, v)
        if reason := shapes_disagree(q, k_transposed, v) or casts_round(q, v, match):
            return Obstacle(reason)
        scaled = None
        if match["q_scaling"] != "none" and self._keeps_shape(match["q_factor"], q):
            scaled, match["q_scaling"] = ({"mul": "Mul", "div": "Div"}[match["q_scaling"]], match["q_factor"]), "none"
        scale = scale_of(q, match)
        if isinstance(scale, Obstacle):
            return scale
        cap, sinks = (cap_of(match) if match["capped"] else 0.0), None
        if cap is None:
            return Obstacle("the cap of the scores is not a constant number above 0")
        if match["sunk"] or match["is_cut"]:
            sinks = sinks_of(q, match.get("sinks"), match.get("cut"))
            if sinks is None:
                return Obstacle("the score after those of the keys is not one constant of each head, or is not removed")
        masking = self._masking(match, q, k_transposed)
        if isinstance(masking, Obstacle):
            return masking
        mask_value, shows = masking
        if match["guarded"] and scalar(match["zero"]) != 0:
            return Obstacle("the guard against NaN sets NaNs to a value other than 0", match["zero"])
        if match["raised"] and not (shows.finite and parts.is_lowest(match["floor"])):
            return Obstacle(f"Max raises scores to `{match['floor'].name}`, which may be more than the mask hides by")
        guards_rows = match["guarded"] and not shows.finite and not _shows_some_key(shows)
        if guards_rows and sinks is not None:
            return Obstacle("rows that see a sink alone are guarded against NaN")
        scale *= cap or 1.0
        widened = narrow is not None
        return Form(q, k_transposed, v, scale, shows, mask_value, guards_rows, cap, sinks, keys, scaled, widened)

    def _masking(
        self, match: Mapping[str, Any], q: ir.Value, k_transposed: ir.Value
    ) -> tuple[ir.Value | None, Mask] | Obstacle:
        """The mask and what it is known to show, or why it is none."""
        masking, mask, low = match["masking"], match["mask"], match["low"]
        by_condition = {
            "shown": match["shown"], "both": match["shown"], "over": match["shown"],
            "hidden": match["hidden"], "under": match["hidden"],
        }  # fmt: skip
        mask_value = {**by_condition, "none": None}.get(masking, mask)
        if masking in by_condition:
            number = scalar(low)
            if number is None:
                return Obstacle(f"Where sets hidden scores to `{low.name}`, which is no constant of one element", low)
            if number > _HIDING:
                return Obstacle(f"Where sets hidden scores to {number:g}, which does not hide them", low)
        more = mask if masking in _BY_BOTH else match["more"]
        masked_by = (mask_value, more if masking in ("twice", *_BY_BOTH) else None)
        for value in (v for v in masked_by if v is not None):
            if not self._broadcasts(value, q, k_transposed):
                return Obstacle(f"the mask `{value.name}` is not known to broadcast to the scores", value)
            if (lost := parts.lost(value, q.dtype)) > _MAX_LOST:
                return Obstacle(f"the mask `{value.name}` loses {lost:.2g} where it is rounded to {q.dtype}", value)
        shows = self._what_shows(masking, mask_value, low)
        if masking in ("twice", *_BY_BOTH):
            shows = Mask("any", finite=shows.finite and masks.additive(more, self._index_values).finite)
        return mask_value, shows

    def _keeps_shape(self, factor: ir.Value, q: ir.Value) -> bool:
        """Whether queries keep their shape and dtype with a factor of more than one element."""
        dims, whole = self._index_values.dims(factor), self._index_values.dims(q)
        if scalar(factor) is not None or factor.dtype != q.dtype or dims is None or whole is None:
            return False
        return len(dims) <= len(whole) and all(
            broadcasts_exactly(d, s) for d, s in zip(reversed(dims), reversed(whole), strict=False)
        )

    def _broadcasts(self, mask: ir.Value, q: ir.Value, k_transposed: ir.Value) -> bool:
        dims, rows, keys = (self._index_values.dims(value) for value in (mask, q, k_transposed))
        if dims is None or rows is None or keys is None or len(dims) > 4:
            return False
        scores = (*rows[:3], keys[3])
        return all(broadcasts_exactly(d, s) for d, s in zip(reversed(dims), reversed(scores), strict=False))

    def _what_shows(self, masking: str, value: ir.Value | None, low: ir.Value | None) -> Mask:
        """What the mask shows. low: the constant that hidden scores are set to."""
        if value is None:
            return masks.NONE
        if masking in ("add", "twice"):
            return masks.additive(value, self._index_values)
        mask = masks.boolean(value, self._index_values, shows=masking not in _HIDDEN)
        number = scalar(low)
        return dataclasses.replace(mask, finite=number is not None and math.isfinite(number))

    def rewrite(self, op, mask, more, shown, hidden, low, masking, **match):
        form = self._form(
            {**match, "mask": mask, "more": more, "shown": shown, "hidden": hidden, "low": low, "masking": masking}
        )
        assert isinstance(form, Form)  # as check found
        attended = self._attended(op, form, mask, more, shown, hidden, low, masking)
        return op.Cast(attended, to=ir.DataType.FLOAT) if form.widened else attended

    def _attended(self, op, form: Form, mask, more, shown, hidden, low, masking: str):
        q, v = form.q, form.v
        if form.scaled is not None:
            operator, factor = form.scaled
            q = getattr(op, operator)(q, factor)
            q.shape, q.dtype = form.q.shape, form.q.dtype
        assert q.dtype is not None
        diagonal = self._is_diagonal(form)
        causal = diagonal and form.mask.kind == "causal" and form.mask.offset == 0
        keys = form.keys if form.keys is not None else op.Transpose(form.k_transposed, perm=[0, 1, 3, 2])
        attributes = {"scale": form.scale, "causal": int(causal), "_domain": DOMAIN}
        attributes |= {"cap": form.cap} if form.cap else {}
        attributes |= form.mask.window() if diagonal else {}
        sinks = () if form.sinks is None else (op.Constant(value=form.sinks),)
        extended = bool(form.cap) or form.sinks is not None
        all_masks = (form.mask_value, more if masking == "twice" else mask if masking in _BY_BOTH else None)
        if form.mask.kind == "none" or (causal and not extended):
            return op.Sdpa(q, keys, v, *((None, *sinks) if sinks else ()), **attributes)
        apart = self._parts(masking, mask, more, shown, hidden, low)
        dtype = mask.dtype if masking in ("add", "twice") else low.dtype
        shifts = masking in ("add", "twice") and self._only_shifts(form, apart, mask, more, dtype)
        weigh = apart.weigh(self._index_values)
        hidden_weigh = "scores" if shifts else weigh or "once"
        limits, rest = {}, None
        may_part = form.mask.kind == "any" and bool(weigh)
        if form.mask_value is not None and may_part and (apart.conditions or apart.added):
            within = apart.by_position(form.mask_value, self._index_values)
            limits = within.limits() if diagonal and not shifts else {}
            if limits or (within.kind == "none" and apart.are_shared(form.mask_value, self._index_values)):
                rest = apart.rest(op, q.dtype, form.mask.finite)
        if rest is not None and not limits:
            mask, rest, dtype = rest, None, q.dtype
        elif masking != "add":
            added_masks = (mask, more) if masking == "twice" else (mask,)
            if masking != "twice":
                number = scalar(low) or 0.0 if masking == "both" else _low(low)
                nothing, lowest = (op.Constant(value=parts.scalar_of(n, dtype)) for n in (0.0, number))
                beside = mask if masking in ("over", "under") else nothing
                bias = op.Where(hidden, lowest, beside) if masking in _HIDDEN else op.Where(shown, beside, lowest)
                bias.dtype = dtype
                added_masks = (bias, mask) if masking == "both" else (bias,)
            if apart.summed and q.dtype == ir.DataType.FLOAT16:
                added_masks, dtype = tuple(parts.raised(op, m, q.dtype) for m in added_masks), q.dtype
            mask = added_masks[0]
            for other in added_masks[1:]:
                mask = parts.added(op, mask, other, form.mask.finite, dtype)
        unrounded = mask  # narrowing makes -inf finite
        if dtype is not None and dtype != q.dtype:
            mask = parts.narrowed(op, mask, q.dtype)
        attributes |= limits
        if sinks == () and (limits or self._may_hide_rows(form, diagonal, all_masks)):
            attributes[hidden_rows.WEIGH] = hidden_weigh
        if not form.guards_rows:
            return op.Sdpa(q, keys, v, mask, *_after_mask(sinks, rest), **attributes)
        zero, floor = (op.Constant(value=parts.scalar_of(n, q.dtype)) for n in (0.0, parts.MIN[q.dtype]))
        lowest = op.Constant(value=parts.scalar_of(parts.MIN[dtype or q.dtype], dtype or q.dtype))
        # Not the largest number of the mask: ReduceMax of -inf alone is the least finite one on CUDA (1.31).
        shows = op.Cast(op.GreaterOrEqual(unrounded, lowest), to=ir.DataType.FLOAT)
        any_shown = op.ReduceMax(shows, op.Constant(value=ir.tensor([-1], dtype=ir.DataType.INT64)), keepdims=1)
        rest = None if rest is None else op.Max(rest, floor)
        attended = op.Sdpa(q, keys, v, op.Max(mask, floor), *_after_mask(sinks, rest), **attributes)
        return op.Where(op.Not(op.Cast(any_shown, to=ir.DataType.BOOL)), zero, attended)

    def _parts(self, masking: str, mask, more, shown, hidden, low) -> Parts:
        if masking in ("add", "twice"):
            return parts.of([mask, more] if masking == "twice" else [mask], self._index_values)
        number, hides = _low(low), masking in _HIDDEN
        condition = parts.condition_parts(hidden if hides else shown, hides, number, self._index_values)
        if masking not in _BY_BOTH:
            return condition
        return parts.of([mask], self._index_values, condition, summed=masking == "both")

    @staticmethod
    def _only_shifts(form: Form, apart: Parts, mask, more, dtype: ir.DataType | None) -> bool:
        """Whether hiding every key of a row changes no weight of it, see hidden_rows.py."""
        numbers = [apart.low or None, *(parts.least_of(v) for v in (mask, more))]
        return hidden_rows.shift_alone(min((n for n in numbers if n is not None), default=None), dtype)

    @staticmethod
    def _may_hide_rows(form: Form, diagonal: bool, masks: Sequence[ir.Value | None]) -> bool:
        """Whether the mask may hide every key of a row of float16, whose keys then weigh alike."""
        if form.q.dtype != ir.DataType.FLOAT16 or form.guards_rows:
            return False
        if form.mask.kind == "none" or form.mask.limits() or hidden_rows.shows_each_query_a_key(masks):
            return False
        if any(mask is not None for mask in masks) and all(m is None or hidden_rows.is_product_bias(m) for m in masks):
            return False
        return diagonal or not hidden_rows.follows_a_cache(form.k_transposed)

    def _is_diagonal(self, form: Form) -> bool:
        """Whether queries and keys are the same tokens, so that every query stands at a key of its own.

        Of queries behind a cache, operators that call themselves causal read different keys; these keep their mask.
        """
        queries, keys = self._index_values.dims(form.q), self._index_values.dims(form.k_transposed)
        return queries is not None and keys is not None and simplest(keys[3] - queries[2]) == 0


def odd_size(form: Form) -> str:
    """What is unusual about heads that ONNX Runtime's fused kernels do not take."""
    size, v_size = dims_of(form.q)[3], dims_of(form.v)[3]
    return f"heads have {size} and {v_size} elements; fused attention kernels take multiples of {HEAD_STEP}"


def _factored(op, x, factor, name: str):
    """x, or x times or divided by a value bound to `factor`; `name` is bound to "mul", "div" or "none"."""
    return pattern.OrValue(
        [op.Mul(x, factor), op.Mul(factor, x), op.Div(x, factor), x],
        tag_var=name,
        tag_values=["mul", "mul", "div", "none"],
    )


def _low(value: ir.Value) -> float:
    """The number that is added to hidden scores in place of setting them to a constant, so that none of them counts."""
    number = scalar(value) or 0.0
    return min(number, hidden_rows.LOWEST_ADDED) if value.dtype == ir.DataType.FLOAT else number


def _after_mask(sinks: tuple[ir.Value, ...], rest: ir.Value | None) -> tuple[ir.Value | None, ...]:
    """The inputs of Sdpa behind the mask."""
    return sinks if rest is None else (*(sinks or (None,)), rest)


def _shows_some_key(mask: Mask) -> bool:
    """Whether the mask is known to show every query at least one key."""
    return mask.kind == "none" or (mask.kind == "causal" and bool(mask.limits()))


RULES = (RuleSet(lambda scope: [Rooted("MatMul", ScaledDotProduct.rule(scope.index_values))]),)
