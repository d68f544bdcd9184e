"""Running a table of rewrite rules: which steps run, what is inferred for them, and what is cleaned up in between.

Shapes are inferred on demand: before a step, where one that applied left them stale.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

import onnx_ir as ir
from onnx_ir.passes import common
from onnxscript.rewriter import RewriteRule, RewriteRuleSet

from onnxopt.graph.passes.common_subexpressions import MergeEqualNodesPass
from onnxopt.graph.passes.contrib.anchors import carried
from onnxopt.graph.passes.metadata import remove_onnxscript_metadata
from onnxopt.graph.passes.rooted import Rooted
from onnxopt.graph.passes.shared_initializers import ShareInitializersPass
from onnxopt.graph.passes.unique_names import UniqueNamesPass
from onnxopt.graph.refusal import Refusal
from onnxopt.graph.rewrite import layout
from onnxopt.graph.rewrite.products import packed_weights
from onnxopt.graph.rewrite.rule_sets import Pass, Row, RuleSet, Scope
from onnxopt.graph.rewrite.weights import Joiner
from onnxopt.graph.shapes.infer import Knowledge, infer


class Cleanup(enum.Flag):
    """What follows where rules applied.

    CANCEL: Transposes and Reshapes that undo one another go. CLEAN_UP: unused and equal nodes go, afterwards.
    """

    NONE = 0
    CANCEL = enum.auto()
    CLEAN_UP = enum.auto()


@dataclasses.dataclass(frozen=True)
class Step:
    """Rules that run one after the other, on shapes that were inferred before the first.

    families: names; the step runs unless all of them are left out. Without a name it is of none, and always runs.
    only_if: saves inference where no rule can apply. then: where a rule applied.
    """

    families: tuple[str, ...]
    rules: Sequence[Row]
    then: Cleanup = Cleanup.NONE
    only_if: Callable[[ir.Graph], bool] | None = None


@dataclasses.dataclass(frozen=True)
class Phase:
    """Steps with one purpose.

    why: the phase stands where it does in the table. repeat: how often the steps run at most; they stop once none of
    them applies. only_if: of the steps together. then: CANCEL where a step applied, CLEAN_UP where the model changed
    since it was cleaned up last. refusals: what did not apply, and why; families are those that were not left out.
    """

    name: str
    why: str
    steps: tuple[Step, ...]
    repeat: int = 1
    then: Cleanup = Cleanup.NONE
    only_if: Callable[[ir.Graph], bool] | None = None
    refusals: Callable[[ir.Model, Scope, Collection[str]], tuple[Refusal, ...]] | None = None


UNTIL_NOTHING_APPLIES = 1000
CANCEL = Phase(
    name="cancel",
    why="a Transpose passes Q and DQ on its way to another, and each that goes may leave one that goes next",
    steps=(Step((), layout.CODES), Step((), layout.CANCELLING)),
    repeat=3,
)


class Rewriting:
    """One model while it is rewritten.

    applied: by family that was not left out, how often its rules were applied so far. refusals: of the phases that ran.
    """

    def __init__(
        self,
        model: ir.Model,
        families: Iterable[str] = (),
        folder: Path | None = None,
        usual: Mapping[str, int] = types.MappingProxyType({}),
        gpu: bool = False,
    ) -> None:
        """folder: for joined weights; it has to outlive the model. usual, gpu: as of `Scope`."""
        self.model = model
        self.applied = dict.fromkeys(families, 0)
        self.refusals: tuple[Refusal, ...] = ()
        self._usual, self._gpu = usual, gpu
        self._joiner = None if folder is None else Joiner(folder)
        self._is_clean = True
        self._scope: Scope | None = None  # while no rule has applied since the last inference

    def run(self, phases: Iterable[Phase]) -> int:
        """Run phases in order. Returns how often rules of theirs applied."""
        return sum(self._run_phase(phase) for phase in phases)

    def scope(self) -> Scope:
        """What rules may use of the graph as it is now: where shapes are stale, they are inferred and written to it."""
        if self._scope is None:
            self._scope = Scope(self.model.graph, infer_shapes(self.model), self._joiner, self._usual, self._gpu)
        return self._scope

    def _run_phase(self, phase: Phase) -> int:
        if phase.only_if is not None and not phase.only_if(self.model.graph):
            return 0
        total = 0
        for _ in range(phase.repeat):
            count = sum(self._run_step(step) for step in phase.steps)
            total += count
            if not count:
                break
        self._clean(phase.then if total else phase.then & Cleanup.CLEAN_UP)
        if phase.refusals is not None:
            self.refusals += phase.refusals(self.model, self.scope(), self.applied)
        return total

    def _run_step(self, step: Step) -> int:
        families = [name for name in step.families if name in self.applied]
        if step.families and not families:
            return 0
        if step.only_if is not None and not step.only_if(self.model.graph):
            return 0
        count = self._apply(step.rules, families)
        if count:
            self._scope, self._is_clean = None, False
            self._clean(step.then)
        return count

    def _clean(self, cleanup: Cleanup) -> None:
        if Cleanup.CANCEL in cleanup:
            self._run_phase(CANCEL)
        if Cleanup.CLEAN_UP in cleanup and not self._is_clean:
            clean_up(self.model)
            self._is_clean = True

    def _apply(self, rows: Sequence[Row], families: Sequence[str]) -> int:
        scope, total = self.scope(), 0
        packed = any(isinstance(row, RuleSet) and row.packed for row in rows)
        with packed_weights.as_products(self.model.graph) if packed else contextlib.nullcontext():
            for row in rows:
                count = apply(self.model, row, scope)
                total += count
                for family in families if row.counted else ():
                    self.applied[family] += count
        return total


def apply(model: ir.Model, row: Row, scope: Scope) -> int:
    """Apply a row once, in place. Returns how often its rules applied."""
    with carried(model):
        count = row.run(model, scope) if isinstance(row, Pass) else _match(model, list(row.rules(scope)))
    if count:
        remove_identities(model)
        common.RemoveUnusedNodesPass()(model)
    return count


def remove_identities(model: ir.Model) -> None:
    """Let readers of an Identity read its operand.

    An output of a graph stays where its operand is no result of the same graph, as in a branch of If that hands on
    a value from outside, or is an output itself. onnx_ir's pass lets such a branch return what it does not compute.
    """
    parts: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    nodes = [n for part in parts for n in part.all_nodes()]
    for node in [n for n in nodes if (n.domain, n.op_type) == ("", "Identity")]:
        x, y = node.inputs[0], node.outputs[0]
        if x is None or node.graph is None:
            continue
        if y.is_graph_output():
            producer = x.producer()
            if producer is None or producer.graph is not node.graph or x.is_graph_output():
                continue
            x.name = y.name
        if x.shape is None:
            x.shape = y.shape
        x.type = x.type or y.type
        y.replace_all_uses_with(x, replace_graph_outputs=True)
        node.graph.remove(node, safe=True)


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
    inferred = infer(model)
    inferred.write()
    return inferred


def clean_up(model: ir.Model) -> None:
    """Remove unused and equal nodes, and let constants be initializers, each once."""
    UniqueNamesPass()(model)
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    ShareInitializersPass()(model)
    MergeEqualNodesPass()(model)
    common.RemoveUnusedNodesPass()(model)
    common.TopologicalSortPass()(model)
    common.RemoveUnusedOpsetsPass()(model)
    remove_onnxscript_metadata(model)
    UniqueNamesPass()(model)
