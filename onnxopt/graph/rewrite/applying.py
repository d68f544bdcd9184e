"""Applying rules to a model: which families may run, what is counted, what is inferred and cleaned up in between."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import onnx_ir as ir
from onnx_ir.passes import common
from onnxscript.rewriter import RewriteRule, RewriteRuleSet

from onnxopt.graph.passes.common_subexpressions import MergeEqualNodesPass
from onnxopt.graph.passes.metadata import remove_onnxscript_metadata
from onnxopt.graph.passes.rooted import Rooted
from onnxopt.graph.passes.shared_initializers import ShareInitializersPass
from onnxopt.graph.passes.unique_names import UniqueNamesPass
from onnxopt.graph.rewrite import layout, packed_weights
from onnxopt.graph.rewrite.families import FAMILIES, FAMILIES_OF
from onnxopt.graph.rewrite.masks.index_values import IndexValues
from onnxopt.graph.rewrite.rule_sets import Pass, Row, RuleSet, Scope
from onnxopt.graph.rewrite.weights import Joiner
from onnxopt.graph.shapes.expected import ExpectedSizes
from onnxopt.graph.shapes.infer import Knowledge, infer

LAST_OPSET_OF_OLD_SOFTMAX = 12  # up to it, Softmax flattens its operand to two dims
_CANCELLING_PASSES = 3


class Rewriting:
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
        self._known = infer_shapes(self.model)
        return self._known

    def expected(self) -> ExpectedSizes:
        """Sizes of symbolic dims to choose by."""
        return ExpectedSizes(infer(self.model), self._usual)

    def cancel(self) -> None:
        """Remove Transposes and Reshapes that cancel."""
        cancel(self.model, self.apply)


def cancel(model: ir.Model, apply: Callable[[Sequence[Row]], int]) -> None:
    for _ in range(_CANCELLING_PASSES):
        infer_shapes(model)
        if apply(layout.CODES):  # a Transpose passes Q and DQ on its way to another
            infer_shapes(model)
        if not apply(layout.CANCELLING):
            return


def apply_all(model: ir.Model, rows: Sequence[Row]) -> int:
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


def infer_shapes(model: ir.Model) -> Knowledge:
    """Infer the shapes of all values, and write them to the model."""
    UniqueNamesPass()(model)
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    known = infer(model)
    known.write()
    return known


def clean_up(model: ir.Model) -> None:
    UniqueNamesPass()(model)
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    ShareInitializersPass()(model)
    MergeEqualNodesPass()(model)
    common.RemoveUnusedNodesPass()(model)
    common.TopologicalSortPass()(model)
    common.RemoveUnusedOpsetsPass()(model)
    remove_onnxscript_metadata(model)
    UniqueNamesPass()(model)
