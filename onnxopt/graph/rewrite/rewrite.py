"""The rewrite step, top to bottom: recognise attention, map it to operators, take away what cancels, merge products."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable
from pathlib import Path

import onnx_ir as ir
from onnx_ir.passes import common
from onnxscript.rewriter import RewriteRule, RewriteRuleSet

from onnxopt.graph import read
from onnxopt.graph.passes.common_subexpressions import MergeEqualNodesPass
from onnxopt.graph.passes.interface import Interface
from onnxopt.graph.passes.metadata import remove_onnxscript_metadata
from onnxopt.graph.passes.no_op_rules import Rooted
from onnxopt.graph.passes.shared_initializers import ShareInitializersPass
from onnxopt.graph.passes.unique_names import UniqueNamesPass
from onnxopt.graph.refusal import Refusal
from onnxopt.graph.rewrite import convolutions, layout, near_misses, rotary, symbolic
from onnxopt.graph.rewrite.attention import ScaledDotProduct
from onnxopt.graph.rewrite.cached import CachedGroupQuery
from onnxopt.graph.rewrite.dims_of_inputs import read_from_inputs
from onnxopt.graph.rewrite.grouped_heads import GroupedHeads
from onnxopt.graph.rewrite.masks.index_values import IndexValues
from onnxopt.graph.rewrite.merging import (
    CachedProjections,
    GateAndUp,
    GroupQueryProjections,
    HeadProjections,
    SelfAttention,
)
from onnxopt.graph.rewrite.query_scale import ScaledQuery
from onnxopt.graph.rewrite.to_contrib import GroupQuery, MultiHead, RotaryNodes, RotaryOperator, Ungroup
from onnxopt.graph.rewrite.to_standard import (
    AttentionNodes,
    GroupQueryNodes,
    MultiHeadNodes,
    RotaryOperatorNodes,
    SdpaNodes,
)
from onnxopt.graph.rewrite.weights import Joiner
from onnxopt.graph.shapes.contrib_schemas import DOMAIN
from onnxopt.graph.shapes.infer import InferShapesPass

# What can be left out by itself when verification fails: each is right or wrong as a whole.
FAMILIES = ("attention", "rotary", "merge", "gate", "tokens")
# Measured (docs/notes.md): one product for gate and up saves 3 us a layer of Llama, a Split behind it that runs as a
# kernel costs 11. Pointwise regions read the halves by address arithmetic, so that the Split is gone.
SPLIT_IS_FUSED = True
_ACTIVATIONS = ("Silu", "Gelu", "Sigmoid", "Relu", "Tanh", "HardSwish", "Mish")
_LAST_OPSET_OF_OLD_SOFTMAX = 12


@dataclasses.dataclass(frozen=True)
class Rewritten:
    """applied: how often each rule family changed the model. refusals: attention that stayed as it is, and why."""

    applied: dict[str, int]
    refusals: tuple[Refusal, ...]


def rewrite(
    model: ir.Model,
    folder: Path,
    *,
    leave_out: Collection[str] = (),
    gates: bool = SPLIT_IS_FUSED,
) -> Rewritten:
    """Rewrite a normalized model in place. folder: for joined weights; it has to outlive the model.

    leave_out: families of FAMILIES not to apply. gates: whether to apply "gate", which pays only where Split is fused.
    """
    families = set(FAMILIES) - set(leave_out) - (set() if gates else {"gate"})
    applied = dict.fromkeys(sorted(families), 0)
    if model.opset_imports.get("", 0) <= _LAST_OPSET_OF_OLD_SOFTMAX:
        return Rewritten(applied, ())
    refusals: tuple[Refusal, ...] = ()
    with read.quiet():
        interface = Interface(model)
        if "attention" in families and near_misses.softmaxes(model):
            applied["attention"], refusals = _recognise(model)
            applied.update(_map(model, families, Joiner(folder)))
        if "merge" in families:
            applied["merge"] += _merge_projections(model, Joiner(folder))
        if "tokens" in families:
            applied["tokens"] = _convolutions(model)
        if "gate" in families:
            applied["gate"] = _merge_gates(model, Joiner(folder))
        if any(applied.values()):
            _clean_up(model)
        interface.restore(model)
    return Rewritten(applied, refusals)


def _recognise(model: ir.Model) -> tuple[int, tuple[Refusal, ...]]:
    _infer(model)
    if read_from_inputs(model, symbolic.refine(model)):
        common.RemoveUnusedNodesPass()(model)
        _infer(model)
    if _apply(model, layout.before_recognition()):
        _infer(model)
    known = IndexValues(model.graph, symbolic.refine(model))
    rule = ScaledDotProduct(known)
    count = _apply(model, [Rooted("MatMul", rule.rule_of_self())])
    return count, near_misses.refusals(model, rule)


def _map(model: ir.Model, families: set[str], joiner: Joiner) -> dict[str, int]:
    """Operators instead of what was recognised; afterwards nothing of the internal domain is left."""
    found = {}
    _cancel(model)
    if "rotary" in families:
        found["rotary"] = _apply(model, [Rooted("Add", rule) for rule in rotary.rules()])
    _apply(model, [GroupedHeads.rule()])
    _apply(model, [CachedGroupQuery.rule()])
    _apply(model, [GroupQuery.rule(True)])
    _apply(model, [GroupQuery.rule(False)])
    if "merge" in families:
        rules = [HeadProjections.rule(rotary, joiner) for rotary in (True, False)]
        rules.append(CachedProjections.rule("merge_cached", joiner))
        found["merge"] = sum(_apply(model, [rule]) for rule in rules)
    _apply(model, [Ungroup.rule()])
    _apply(model, [MultiHead.rule()])
    _apply(model, [RotaryOperator.rule()])
    _apply(model, [RotaryNodes.rule()])
    model.opset_imports.pop(DOMAIN, None)
    _cancel(model)
    _apply(model, [ScaledQuery.rule()])
    return found


def _cancel(model: ir.Model) -> None:
    for _ in range(3):
        _infer(model)
        if not _apply(model, layout.after_mapping()):
            return


def _merge_projections(model: ir.Model, joiner: Joiner) -> int:
    count = _apply(model, [GroupQueryProjections.rule("merge_group_query", joiner)])
    return count + _apply(model, [SelfAttention.rule("merge_self_attention", joiner)])


def _convolutions(model: ir.Model) -> int:
    count = 0
    while True:
        moved = _apply(model, convolutions.activations())
        made = _apply(model, convolutions.products())
        if not moved and not made:
            break
        count += made
        _infer(model)
    if count:
        _cancel(model)
    return count


def _merge_gates(model: ir.Model, joiner: Joiner) -> int:
    count = 0
    for activation in _ACTIVATIONS:
        rules = [GateAndUp.rule(activation, gate_first, joiner) for gate_first in (True, False)]
        count += _apply(model, [Rooted("Mul", rule) for rule in rules])
    return count


def to_portable(model: ir.Model) -> None:
    """Put standard operators in place of those of com.microsoft that `rewrite` made, in place."""
    with read.quiet():
        _infer(model)
        count = _apply(model, [AttentionNodes.rule()])
        _infer(model)
        contrib = (GroupQueryNodes, RotaryOperatorNodes, MultiHeadNodes)
        count += sum(_apply(model, [rule.rule()]) for rule in contrib)
        if not count:
            return
        _infer(model)
        _apply(model, [Ungroup.rule()])
        _cancel(model)
        for rule in (RotaryNodes, SdpaNodes):
            _apply(model, [rule.rule()])
        _cancel(model)
        model.opset_imports.pop(DOMAIN, None)
        _clean_up(model)


def _apply(model: ir.Model, rules: Iterable[RewriteRule | Rooted]) -> int:
    count: int = RewriteRuleSet(list(rules)).apply_to_model(model)  # type: ignore[arg-type]
    if count:
        common.IdentityEliminationPass()(model)
        common.RemoveUnusedNodesPass()(model)
    return count


def _infer(model: ir.Model) -> None:
    UniqueNamesPass()(model)
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    InferShapesPass()(model)
    symbolic.refine(model)


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
