"""The rewrite step, top to bottom: recognise attention, map it to operators, cancel layout changes, merge products.

At last, convolutions get their layout."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import onnx_ir as ir
from onnx_ir.passes import common
from onnxscript.rewriter import RewriteRuleSet

from onnxopt.graph import read
from onnxopt.graph.layout import assign, gated_weights, turn_tokens
from onnxopt.graph.passes.common_subexpressions import MergeEqualNodesPass
from onnxopt.graph.passes.interface import Interface
from onnxopt.graph.passes.metadata import remove_onnxscript_metadata
from onnxopt.graph.passes.moved_codes import MoveCodesPass
from onnxopt.graph.passes.rooted import Rooted
from onnxopt.graph.passes.shared_initializers import ShareInitializersPass
from onnxopt.graph.passes.unequal_splits import UnequalSplitsPass
from onnxopt.graph.passes.unique_names import UniqueNamesPass
from onnxopt.graph.refusal import Refusal
from onnxopt.graph.rewrite import (
    attention,
    attention_nodes,
    cached,
    convolutions,
    folded,
    front_rows,
    gathers,
    grouped_heads,
    head_norms,
    joined_heads,
    layout,
    merging,
    near_misses,
    packed_weights,
    padded_heads,
    query_scale,
    reordered_columns,
    rotary,
    rotary_pairs,
    scattered_order,
    sequence_first,
    shared_operand,
    to_contrib,
    to_standard,
    window_masks,
    window_views,
    windows_apart,
)
from onnxopt.graph.rewrite.dims_of_inputs import read_from_inputs
from onnxopt.graph.rewrite.families import FAMILIES, FAMILY_OF, GATED_WEIGHTS
from onnxopt.graph.rewrite.masks.index_values import IndexValues
from onnxopt.graph.rewrite.rule_sets import RuleSet, Scope
from onnxopt.graph.rewrite.weights import Joiner
from onnxopt.graph.shapes.contrib_schemas import DOMAIN
from onnxopt.graph.shapes.expected import ExpectedSizes
from onnxopt.graph.shapes.infer import Knowledge, infer

# One product for gate and up saves 3 us a layer of Llama, and a Split kernel behind it costs 11 (benchmarks/notes.md).
# Pointwise regions read the two halves by address arithmetic, so that no Split runs.
SPLIT_IS_FUSED = True
_LAST_OPSET_OF_OLD_SOFTMAX = 12  # up to it, Softmax flattens its operand to two dims
_CANCELLING_PASSES = 3


@dataclasses.dataclass(frozen=True)
class Rewritten:
    """applied: by family, how often its rules changed the model. refusals: attention that stayed as it is, and why."""

    applied: dict[str, int]
    refusals: tuple[Refusal, ...]


def rewrite(
    model: ir.Model,
    folder: Path,
    *,
    leave_out: Collection[str] = (),
    gates: bool = SPLIT_IS_FUSED,
    usual: Mapping[str, int] = types.MappingProxyType({}),
) -> Rewritten:
    """Rewrite a normalized model in place. folder: for joined weights; it has to outlive the model.

    leave_out: names of FAMILIES not to apply. gates: whether to apply "gate", which pays only where Split is fused.
    usual: sizes that symbols of the inputs have in most runs.
    """
    families = set(FAMILIES) - set(leave_out) - (set() if gates else {"gate"})
    rewriting = _Rewriting(model, families, folder, usual)
    if model.opset_imports.get("", 0) <= _LAST_OPSET_OF_OLD_SOFTMAX:
        return Rewritten(rewriting.applied, ())
    refusals: tuple[Refusal, ...] = ()
    with read.quiet():
        interface = Interface(model)
        if rewriting.apply(scattered_order.RULES):
            _clean_up(model)
        _write_products(rewriting)
        if rotary_pairs.may_apply(model.graph):
            _infer(model)
            rewriting.apply(rotary_pairs.RULES)  # before positions are read: nothing repeats the tables any more
        _read_known_positions(rewriting)
        if families & {"attention", "heads"} and near_misses.softmaxes(model):
            refusals = _recognise(rewriting)
            if "attention" in families or rewriting.applied["heads"]:
                _map(rewriting)
        rewriting.apply(FAMILIES["outer_products"].rules)  # behind attention, whose products may be over one key
        rewriting.merge_projections()
        attention_nodes.read_off_operands(model)  # which are merged where they can be
        _convolutions(rewriting)
        rewriting.merge(merging.GATES)
        if any(node.op_type == "BatchNormalization" for node in model.graph):
            _infer(model)  # which dim of it are the channels
        if rewriting.apply(FAMILIES["fold"].rules):
            _cancel(model)
        if any(rewriting.applied.values()):
            _clean_up(model)
        _slice_unequal_parts(model)
        if "channels_last" in families:
            rewriting.applied["channels_last"] = _channels_last(model)
        if GATED_WEIGHTS in families:
            rewriting.applied[GATED_WEIGHTS] = _gated_weights(model)
        interface.restore(model)
    return Rewritten(rewriting.applied, refusals)


class _Rewriting:
    """One model while it is rewritten. applied: by family, how often its rules were applied so far."""

    def __init__(
        self,
        model: ir.Model,
        families: Collection[str],
        folder: Path,
        usual: Mapping[str, int] = types.MappingProxyType({}),
    ) -> None:
        self.model = model
        self._usual = usual
        self.applied = dict.fromkeys(sorted(families), 0)
        self._joiner = Joiner(folder)

    def apply(
        self,
        rule_sets: Sequence[RuleSet],
        index_values: IndexValues | None = None,
        expected: ExpectedSizes | None = None,
    ) -> int:
        """Apply rules, set after set, but not those of families that are left out. How often any was applied."""
        scope, total = Scope(self.model.graph, self._joiner, expected, index_values), 0
        for rule_set in rule_sets:
            family = FAMILY_OF.get(rule_set)
            if family is not None and family not in self.applied:
                continue
            count = _apply(self.model, rule_set, scope)
            total += count
            if family is not None and rule_set.counted:
                self.applied[family] += count
        return total

    def merge_projections(self) -> None:
        """One product in place of an attention's three, and of several small ones of one tensor."""
        if "merge" not in self.applied:
            return
        expected = self.expected()
        self.merge(merging.PROJECTIONS, expected)
        merged = shared_operand.merge(self.model, self._joiner, expected)
        if merged:
            _infer(self.model)
            head_norms.join(self.model)
        self.applied["merge"] += merged

    def expected(self) -> ExpectedSizes:
        """Sizes of symbolic dims to choose by."""
        return ExpectedSizes(infer(self.model), self._usual)

    def merge(self, rule_sets: Sequence[RuleSet], expected: ExpectedSizes | None = None) -> None:
        """Apply rules that merge products, with packed weights too."""
        with packed_weights.as_products(self.model.graph):
            self.apply(rule_sets, expected=expected)

    def pad_heads(self) -> Knowledge:
        """Pad the heads of every Sdpa that can be padded. Returns what is then known of the model's values."""
        _infer(self.model)
        padded_heads.pad(self.model, self._joiner)
        common.RemoveUnusedNodesPass()(self.model)
        return _infer(self.model)


def _write_products(rewriting: _Rewriting) -> None:
    """Einsum becomes MatMul: before attention is recognised, which multiplies so."""
    model = rewriting.model
    if any(node.op_type == "Einsum" for node in model.graph.all_nodes()):
        _infer(model)
        if rewriting.apply(FAMILIES["einsums"].rules):
            _clean_up(model)


def _read_known_positions(rewriting: _Rewriting) -> None:
    """Gathers by known positions become views and slices, and constant rows in front of others go into a constant.

    Before attention is recognised, as its masks get smaller.
    """
    model = rewriting.model
    if not gathers.may_apply(model.graph) and not front_rows.may_apply(model.graph):
        return
    known = _infer(model)
    if rewriting.apply((*gathers.RULES, *front_rows.RULES), IndexValues(model.graph, known)):
        _infer(model)
        _clean_up(model)


def _recognise(rewriting: _Rewriting) -> tuple[Refusal, ...]:
    """Attention becomes Sdpa, an operator of the internal domain. Returns what stays, and why."""
    model = rewriting.model
    known = _infer(model)
    layout.count_axes_from_the_end(model)
    if rewriting.apply(sequence_first.RULES):
        _clean_up(model)  # products of three parts are built three times
        known = _infer(model)
    if read_from_inputs(model, known):
        common.RemoveUnusedNodesPass()(model)
        known = _infer(model)
    if rewriting.apply(window_views.RULES) + windows_apart.join_windows(model):
        known = _infer(model)
    rules = (*layout.BEFORE_RECOGNITION, *joined_heads.RULES, *window_masks.RULES, *reordered_columns.RULES)
    prepared = rewriting.apply(rules)
    factors = query_scale.multiply_biases(model) | query_scale.copy_shared_factors(model)
    if head_norms.bring_to_products(model) | factors or prepared:
        known = _infer(model)
    index_values = IndexValues(model.graph, known)
    rewriting.apply(attention.RULES, index_values)
    pads = "heads" in rewriting.applied
    if rewriting.apply(attention.PADDED, index_values):
        index_values = IndexValues(model.graph, rewriting.pad_heads())
    return near_misses.refusals(model, index_values, pads) if "attention" in rewriting.applied else ()


def _map(rewriting: _Rewriting) -> None:
    """Operators of a runtime replace Sdpa. Afterwards no operator of the internal domain is left."""
    _cancel(rewriting.model)
    rewriting.apply(rotary.RULES)
    rewriting.apply(grouped_heads.RULES)
    rewriting.apply(cached.RULES)  # before GROUPED, which takes attention without a cache
    rewriting.apply(to_contrib.GROUPED, expected=rewriting.expected())
    rewriting.merge(merging.HEADS)  # before heads are repeated, and before Rotary is taken apart
    rewriting.apply(to_contrib.OPERATORS, expected=rewriting.expected())
    rewriting.model.opset_imports.pop(DOMAIN, None)
    _cancel(rewriting.model)
    rewriting.apply(query_scale.RULES)
    window_masks.read_off_queries(rewriting.model)


def _cancel(model: ir.Model) -> None:
    for _ in range(_CANCELLING_PASSES):
        _infer(model)
        if MoveCodesPass()(model).modified:  # a Transpose passes Q and DQ on its way to another
            common.RemoveUnusedNodesPass()(model)
            _infer(model)
        if not _apply_all(model, layout.CANCELLING):
            return


def _convolutions(rewriting: _Rewriting) -> None:
    """Convolutions become products. A Transpose that passes an activation may reach another convolution."""
    before = dict(rewriting.applied)
    while rewriting.apply(convolutions.ACTIVATIONS) + rewriting.apply(convolutions.PRODUCTS):
        _infer(rewriting.model)
    if rewriting.applied != before:
        _cancel(rewriting.model)


def _slice_unequal_parts(model: ir.Model) -> None:
    """Splits of unequal parts become Slices: once attention reads what it can where it lies."""
    if any(node.op_type == "Split" for node in model.graph):
        _infer(model)
        if UnequalSplitsPass()(model).modified:
            UniqueNamesPass()(model)


def _channels_last(model: ir.Model) -> int:
    """Convolutions compute in channels last. Equal nodes stay apart afterwards: each has Transposes of its own."""
    if not any(node.op_type in ("Conv", "ConvTranspose") for node in model.graph):
        return 0
    known = _infer(model)
    if turn_tokens(model.graph):
        common.RemoveUnusedNodesPass()(model)
        known = _infer(model)
    count = assign(model, known)
    if count:
        common.RemoveUnusedNodesPass()(model)
        UniqueNamesPass()(model)
    return count


def _gated_weights(model: ir.Model) -> int:
    """Gates scale the weights of 1x1 convolutions in channels last, in place of their maps."""
    convs = gated_weights.candidates(model.graph)
    count = gated_weights.scale(model.graph, convs, _infer(model)) if convs else 0
    if count:
        common.RemoveUnusedNodesPass()(model)
        UniqueNamesPass()(model)
    return count


def fold_float32(model: ir.Model) -> None:
    """Fold constants behind convolutions into their weights, in place: before lower precision, so as to round once."""
    if model.opset_imports.get("", 0) <= _LAST_OPSET_OF_OLD_SOFTMAX:
        return
    with read.quiet():
        interface = Interface(model)
        _infer(model)
        if _apply_all(model, folded.RULES):
            _infer(model)
            _clean_up(model)
        interface.restore(model)


def to_portable(model: ir.Model) -> None:
    """Put standard operators in place of those of com.microsoft that `rewrite` made, in place."""
    with read.quiet():
        _infer(model)
        count = _apply_all(model, to_standard.ATTENTION)
        _infer(model)
        count += _apply_all(model, to_standard.TO_INTERNAL)
        if not count:
            return
        _infer(model)
        _apply_all(model, to_contrib.UNGROUP)
        _cancel(model)
        _apply_all(model, to_standard.TO_STANDARD)
        _cancel(model)
        model.opset_imports.pop(DOMAIN, None)
        _clean_up(model)


def _apply_all(model: ir.Model, rule_sets: Sequence[RuleSet]) -> int:
    return sum(_apply(model, rule_set, Scope(model.graph)) for rule_set in rule_sets)


def _apply(model: ir.Model, rule_set: RuleSet, scope: Scope) -> int:
    rules = list(rule_set.rules(scope))
    roots = {rule.op_type if isinstance(rule, Rooted) else None for rule in rules}
    parts: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    nodes = (node for part in parts for node in part.all_nodes())
    if None not in roots and not any(node.op_type in roots for node in nodes):
        return 0  # the matcher asks every rule at every node
    count: int = RewriteRuleSet(rules).apply_to_model(model)  # type: ignore[arg-type]
    if count:
        common.IdentityEliminationPass()(model)
        common.RemoveUnusedNodesPass()(model)
    return count


def _infer(model: ir.Model) -> Knowledge:
    """Infer the shapes of all values, and write them to the model."""
    UniqueNamesPass()(model)
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    known = infer(model)
    known.write()
    return known


def _clean_up(model: ir.Model) -> None:
    UniqueNamesPass()(model)
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    ShareInitializersPass()(model)
    MergeEqualNodesPass()(model)
    common.RemoveUnusedNodesPass()(model)
    common.TopologicalSortPass()(model)
    common.RemoveUnusedOpsetsPass()(model)
    remove_onnxscript_metadata(model)
    UniqueNamesPass()(model)
