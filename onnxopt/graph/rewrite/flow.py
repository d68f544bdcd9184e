"""The rewrite step, top to bottom: recognise attention, map it to operators, cancel layout changes, merge products.

At last, convolutions get their layout. Every rule and pass that changes what is computed is a row of a family, and none
runs whose families are left out; what flow.py calls besides only cleans up, infers shapes, or asks whether rules may
apply."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import onnx_ir as ir
from onnx_ir.passes import common
from onnxscript.rewriter import RewriteRule, RewriteRuleSet

from onnxopt.graph import read
from onnxopt.graph.layout import gated_weights
from onnxopt.graph.passes.common_subexpressions import MergeEqualNodesPass
from onnxopt.graph.passes.interface import Interface
from onnxopt.graph.passes.metadata import remove_onnxscript_metadata
from onnxopt.graph.passes.rooted import Rooted
from onnxopt.graph.passes.shared_initializers import ShareInitializersPass
from onnxopt.graph.passes.unique_names import UniqueNamesPass
from onnxopt.graph.refusal import Refusal
from onnxopt.graph.rewrite import (
    attention,
    attention_nodes,
    cached,
    channels_last,
    convolutions,
    decomposed_activations,
    decomposed_reductions,
    dims_of_inputs,
    einsums,
    folded,
    front_rows,
    gathers,
    grouped_heads,
    head_norms,
    head_sizes,
    joined_heads,
    layout,
    merging,
    near_misses,
    normalized_products,
    outer_products,
    packed_weights,
    padded_heads,
    part_biases,
    product_forms,
    query_scale,
    reordered_columns,
    rotary,
    rotary_pairs,
    scaled_products,
    scattered_order,
    sequence_first,
    shared_operand,
    spelled_layer_norms,
    to_contrib,
    to_standard,
    unequal_splits,
    window_masks,
    window_views,
    windows_apart,
)
from onnxopt.graph.rewrite.families import FAMILIES, FAMILIES_OF
from onnxopt.graph.rewrite.masks.index_values import IndexValues
from onnxopt.graph.rewrite.rule_sets import Pass, Row, RuleSet, Scope
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
    """applied: by family that was not left out, in the order of FAMILIES, how often its rules changed the model.

    refusals: attention that stayed as it is, and why.
    """

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
        _recompose(rewriting)
        _write_products(rewriting)
        if rotary_pairs.may_apply(model.graph):
            rewriting.infer()
            rewriting.apply(rotary_pairs.RULES)  # before positions are read: nothing repeats the tables any more
        _read_known_positions(rewriting)
        if near_misses.softmaxes(model):
            refusals = _recognise(rewriting)
            if "attention" in rewriting.applied or rewriting.applied.get("heads"):
                _map(rewriting)
        _write_gemms(rewriting)
        rewriting.apply(outer_products.RULES)  # behind attention, whose products may be over one key
        _merge_projections(rewriting)
        rewriting.apply(attention_nodes.OF_OPERANDS)  # which are merged where they can be
        _convolutions(rewriting)
        rewriting.apply(merging.GATES)
        _fold(rewriting)
        if rewriting.changed:
            _clean_up(model)
        _slice_unequal_parts(rewriting)
        _channels_last(rewriting)
        UniqueNamesPass()(model)
        interface.restore(model)
    return Rewritten(rewriting.applied, refusals)


class _Rewriting:
    """One model while it is rewritten.

    applied: by family, how often its rules were applied so far. changed: whether any rule was, counted or not.
    """

    def __init__(
        self,
        model: ir.Model,
        families: Collection[str],
        folder: Path,
        usual: Mapping[str, int] = types.MappingProxyType({}),
    ) -> None:
        self.model = model
        self._usual = usual
        self.applied = {name: 0 for name in FAMILIES if name in families}
        self.changed = False
        self._joiner = Joiner(folder)
        self._known: Knowledge | None = None

    def apply(
        self,
        rows: Sequence[Row],
        index_values: IndexValues | None = None,
        expected: ExpectedSizes | None = None,
    ) -> int:
        """Apply rules, row after row, but none whose families are all left out. How often any was applied."""
        scope, total = Scope(self.model.graph, self._joiner, expected, index_values, self._known), 0
        rows = [row for row in rows if FAMILIES_OF[row] & self.applied.keys()]
        packed = any(isinstance(row, RuleSet) and row.packed for row in rows)
        with packed_weights.as_products(self.model.graph) if packed else contextlib.nullcontext():
            for row in rows:
                count = _apply(self.model, row, scope)
                total += count
                for family in FAMILIES_OF[row] & self.applied.keys() if row.counted else ():
                    self.applied[family] += count
        self.changed |= total > 0
        return total

    def infer(self) -> Knowledge:
        """Infer the shapes of all values, and write them to the model."""
        self._known = _infer(self.model)
        return self._known

    def expected(self) -> ExpectedSizes:
        """Sizes of symbolic dims to choose by."""
        return ExpectedSizes(infer(self.model), self._usual)

    def cancel(self) -> None:
        """Remove Transposes and Reshapes that cancel."""
        _cancel(self.model, self.apply)


def _recompose(rewriting: _Rewriting) -> None:
    """What exporters take apart becomes one operator: before anything else, which knows the operators."""
    rewriting.infer()
    rewriting.apply(layout.AXES)
    if rewriting.apply(decomposed_reductions.SUMS):
        _clean_up(rewriting.model)  # what a Sum adds up may be there already
        rewriting.infer()
    if rewriting.apply((*decomposed_activations.RULES, *decomposed_reductions.RULES, *product_forms.TRANSPOSED)):
        _clean_up(rewriting.model)
    if rewriting.apply(rotary.HALVES):
        _clean_up(rewriting.model)


def _write_gemms(rewriting: _Rewriting) -> bool:
    """Gemm between views becomes MatMul: once attention of [T, B, C] is known, which stands between such views."""
    if not any(node.op_type == "Gemm" for node in rewriting.model.graph):
        return False
    rewriting.infer()
    changed = rewriting.apply(product_forms.GEMM) > 0
    if changed:
        _clean_up(rewriting.model)
    return changed


def _write_products(rewriting: _Rewriting) -> None:
    """Einsum becomes MatMul, and a product gets its bias: before attention is recognised, which multiplies so."""
    if any(node.op_type == "Einsum" for node in rewriting.model.graph.all_nodes()):
        rewriting.infer()
        if rewriting.apply(einsums.RULES):
            rewriting.infer()
            rewriting.apply(product_forms.TRANSPOSED)  # of the products that were Einsum
            _clean_up(rewriting.model)
    if any(node.op_type == "MatMul" for node in rewriting.model.graph):
        rewriting.infer()
        if rewriting.apply(part_biases.RULES):
            _clean_up(rewriting.model)


def _read_known_positions(rewriting: _Rewriting) -> None:
    """Gathers by known positions become views and slices, and constant rows in front of others go into a constant.

    Before attention is recognised, as its masks get smaller.
    """
    model = rewriting.model
    if not gathers.may_apply(model.graph) and not front_rows.may_apply(model.graph):
        return
    if rewriting.apply((*gathers.RULES, *front_rows.RULES), IndexValues(model.graph, rewriting.infer())):
        _infer(model)
        _clean_up(model)


def _recognise(rewriting: _Rewriting) -> tuple[Refusal, ...]:
    """Attention becomes Sdpa, an operator of the internal domain. Returns what stays, and why."""
    model = rewriting.model
    known = rewriting.infer()
    rewriting.apply(layout.AXES)  # of what was written since
    if rewriting.apply(sequence_first.RULES):
        _clean_up(model)  # products of three parts are built three times
        known = rewriting.infer()
    if _write_gemms(rewriting):
        known = rewriting.infer()
    if rewriting.apply(dims_of_inputs.RULES):
        known = rewriting.infer()
    if rewriting.apply((*window_views.RULES, *windows_apart.RULES)):
        known = rewriting.infer()
    in_four_dims = (*layout.BEFORE_RECOGNITION, *joined_heads.RULES, *window_masks.RULES, *reordered_columns.RULES)
    if rewriting.apply((*in_four_dims, *query_scale.BEFORE_RECOGNITION, *head_norms.BEFORE_RECOGNITION)):
        known = rewriting.infer()
    index_values = IndexValues(model.graph, known)
    rewriting.apply(attention.RULES, index_values)
    if rewriting.apply(head_sizes.PADDED, index_values):
        rewriting.infer()
        rewriting.apply(padded_heads.RULES)
        index_values = IndexValues(model.graph, rewriting.infer())
    if near_misses.softmaxes(model):
        rewriting.apply(head_sizes.OF_OWN_KERNEL, index_values, rewriting.expected())
    if "attention" not in rewriting.applied:
        return ()
    return near_misses.refusals(model, index_values, "heads" in rewriting.applied)


def _map(rewriting: _Rewriting) -> None:
    """Operators of a runtime replace Sdpa. Afterwards no operator of the internal domain is left."""
    model = rewriting.model
    rewriting.cancel()
    if rewriting.apply(rotary.RULES):
        _clean_up(model)  # tables that are made twice as wide, or get more dims, for q and for k
        rewriting.infer()
    rewriting.apply((*grouped_heads.RULES, *cached.RULES))  # before GROUPED, which takes attention without a cache
    rewriting.apply(to_contrib.GROUPED, expected=rewriting.expected())
    rewriting.apply(merging.HEADS)  # before heads are repeated, and before Rotary is taken apart
    rewriting.apply((*to_contrib.ATTENTION, *to_contrib.ROTARY), expected=rewriting.expected())
    model.opset_imports.pop(DOMAIN, None)
    rewriting.cancel()
    rewriting.apply((*query_scale.RULES, *window_masks.OF_QUERIES))


def _merge_projections(rewriting: _Rewriting) -> None:
    """One product in place of an attention's three, and of several small ones of one tensor."""
    expected = rewriting.expected()
    rewriting.apply(merging.PROJECTIONS, expected=expected)
    if rewriting.apply(shared_operand.RULES, expected=expected):
        rewriting.infer()
        rewriting.apply(head_norms.JOINED)


def _cancel(model: ir.Model, apply: Callable[[Sequence[Row]], int]) -> None:
    for _ in range(_CANCELLING_PASSES):
        _infer(model)
        if apply(layout.CODES):  # a Transpose passes Q and DQ on its way to another
            _infer(model)
        if not apply(layout.CANCELLING):
            return


def _convolutions(rewriting: _Rewriting) -> None:
    """Convolutions become products. A Transpose that passes an activation may reach another convolution."""
    before = dict(rewriting.applied)
    while rewriting.apply(convolutions.ACTIVATIONS) + rewriting.apply(convolutions.PRODUCTS):
        rewriting.infer()
    if rewriting.applied != before:
        rewriting.cancel()


def _fold(rewriting: _Rewriting) -> None:
    """Constants, and normalizations, go into the convolution or product beside them."""
    if any(node.op_type == "BatchNormalization" for node in rewriting.model.graph):
        rewriting.infer()  # which dim of it are the channels
    if rewriting.apply((*folded.RULES, *scaled_products.RULES, *normalized_products.RULES)):
        rewriting.cancel()


def _slice_unequal_parts(rewriting: _Rewriting) -> None:
    """Splits of unequal parts become Slices: once attention reads what it can where it lies."""
    if any(node.op_type == "Split" for node in rewriting.model.graph):
        rewriting.infer()
        rewriting.apply(unequal_splits.RULES)


def _channels_last(rewriting: _Rewriting) -> None:
    """Convolutions compute in channels last. Equal nodes stay apart afterwards: each has Transposes of its own.

    Gates then scale the weights of 1x1 convolutions, in place of their maps.
    """
    graph = rewriting.model.graph
    if any(node.op_type in ("Conv", "ConvTranspose") for node in graph):
        rewriting.infer()
        if rewriting.apply(channels_last.TOKENS):
            rewriting.infer()
        rewriting.apply(channels_last.RULES)
    if gated_weights.candidates(graph):
        rewriting.infer()
        rewriting.apply(channels_last.GATES)


def prepare_float32(model: ir.Model) -> None:
    """Prepare a model for lower precision, in place.

    Constants behind convolutions are folded into their weights, so as to round once. Activations and Softmax in
    elementary operators become one operator, whose exponentials no value stores. Norms in elementary operators become
    LayerNormalization, so that no Cast stands inside of what ONNX Runtime fuses to one.
    """
    opset = model.opset_imports.get("", 0)
    if opset <= _LAST_OPSET_OF_OLD_SOFTMAX:
        return
    with read.quiet():
        interface = Interface(model)
        _infer(model)
        recomposed = (*decomposed_activations.RULES, *decomposed_reductions.RULES)
        if _apply_all(model, (*folded.RULES, *recomposed, *spelled_layer_norms.rules_for(opset))):
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
        apply = functools.partial(_apply_all, model)
        _cancel(model, apply)
        _apply_all(model, to_standard.TO_STANDARD)
        _cancel(model, apply)
        model.opset_imports.pop(DOMAIN, None)
        _clean_up(model)


def _apply_all(model: ir.Model, rows: Sequence[Row]) -> int:
    return sum(_apply(model, row, Scope(model.graph)) for row in rows)


def _apply(model: ir.Model, row: Row, scope: Scope) -> int:
    count = row.run(model, scope) if isinstance(row, Pass) else _match(model, list(row.rules(scope)))
    if count:
        common.IdentityEliminationPass()(model)
        common.RemoveUnusedNodesPass()(model)
    return count


def _match(model: ir.Model, rules: Sequence[RewriteRule | Rooted]) -> int:
    roots = {rule.op_type if isinstance(rule, Rooted) else None for rule in rules}
    parts: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    nodes = (node for part in parts for node in part.all_nodes())
    if None not in roots and not any(node.op_type in roots for node in nodes):
        return 0  # the matcher asks every rule at every node
    return RewriteRuleSet(rules).apply_to_model(model)  # type: ignore[arg-type]


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
