"""Brings any model to the one form that later steps are written for, without changing what it computes.

Afterwards there are no model-local functions, the opset is 20 where it can be reached, nodes are in topological order,
every node and value has a name of its own, and constants are initializers. Nodes that are constant, unused, repeated or
without effect are gone, and shapes were inferred from the inputs alone. Inputs and outputs keep names, order, dtypes,
dims and default values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import TypeVar

import onnx
import onnx_ir as ir
from onnx_ir.passes import common

from onnxopt.errors import ModelError, step
from onnxopt.graph import code_limits, fused_domain, read
from onnxopt.graph.branches import BranchCastsPass
from onnxopt.graph.passes.codes.moved_codes import MoveCodesPass
from onnxopt.graph.passes.common_subexpressions import MergeEqualNodesPass
from onnxopt.graph.passes.contrib.anchors import carried
from onnxopt.graph.passes.contrib.decompose import DecomposeContribPass, note_of_blocks
from onnxopt.graph.passes.device_positions import CountOnDevicePass
from onnxopt.graph.passes.fold import Fold
from onnxopt.graph.passes.inline import inline_functions
from onnxopt.graph.passes.interface import ORT_CONSTANT_IR_VERSION, Interface
from onnxopt.graph.passes.joined_splits import JoinedSplitsPass
from onnxopt.graph.passes.masks.filled_boxes import FilledBoxesPass
from onnxopt.graph.passes.metadata import remove_onnxscript_metadata
from onnxopt.graph.passes.no_op_rules import no_op_rules
from onnxopt.graph.passes.operand_order import OperandOrderPass
from onnxopt.graph.passes.opset import TARGET, convert_opset
from onnxopt.graph.passes.opset23 import Opset23Pass
from onnxopt.graph.passes.padding.constant_padding import ConstantPaddingPass
from onnxopt.graph.passes.padding.same_padding import SamePaddingPass
from onnxopt.graph.passes.shape_subgraphs import SimplifyShapesPass
from onnxopt.graph.passes.shared_initializers import ShareInitializersPass
from onnxopt.graph.passes.simplified_norms import SimplifiedNormsPass
from onnxopt.graph.passes.unique_names import UniqueNamesPass
from onnxopt.graph.passes.whole_resizes import WholeResizesPass
from onnxopt.graph.shapes.checked_sizes import checked_sizes
from onnxopt.graph.sizes.bounded_sizes import BoundedSizesPass
from onnxopt.graph.sizes.multiple_sizes import MultipleSizesPass
from onnxopt.graph.sizes.single_sizes import SingleSizesPass
from onnxopt.graph.summed_padding import SummedPaddingPass
from onnxopt.paths import StrPath

MARK = "onnxopt.version"  # metadata of every model that onnxopt wrote
_FUNCTIONS_IR_VERSION = 8  # oldest with model-local functions, which outline makes
_ROUNDS = 8  # folding and rules feed each other; real models settle in two
_FIRST_OPSET_OF_RULES = 13
_DEFAULT_GROWTH = 0.01
_Result = TypeVar("_Result")


@dataclasses.dataclass(frozen=True)
class Normalized:
    """notes: what a user should know, such as an opset that could not be converted."""

    model: ir.Model
    notes: tuple[str, ...]

    @property
    def checked(self) -> dict[str, int]:
        """The symbols of inputs that can have one size alone, with that size."""
        return checked_sizes(self.model.graph)


def refuse_optimized(model: ir.Model, where: StrPath = "the model") -> None:
    """Raise ModelError where onnxopt wrote the model. where: how the message calls it, such as its path."""
    if MARK in model.metadata_props or any(fused_domain.holds_fused(domain) for domain, _, _ in model.functions):
        raise ModelError(f"{where}: is optimized by onnxopt already; give the original model")


def normalize(
    model: ir.Model,
    *,
    opset: int = TARGET,
    lowest_opset: int = TARGET,
    growth: float = _DEFAULT_GROWTH,
    decompose: bool = True,
) -> Normalized:
    """Normalize `model` in place.

    opset: to convert older models to. lowest_opset: to lower newer models to, where they can be. growth: share of the
    model's size by which constant folding may enlarge it. decompose: whether operators of ONNX Runtime's optimizers
    become standard ones.
    Raises ModelError where onnxopt wrote the model, where its nodes form a cycle, where scales or blocks of codes are
    wrong, and where a pass fails.
    """
    refuse_optimized(model)
    notes: list[str] = []
    with read.quiet():
        interface = Interface(model)
        model.ir_version = max(model.ir_version, ORT_CONSTANT_IR_VERSION)
        _tidy(model, notes)
        stacked = _declared_stacks(model)
        _forget_declared_shapes(model)
        code_limits.check(model)
        if _run("spelling out norms of ONNX Runtime", SimplifiedNormsPass(), model).modified:
            _name(model)
            _lift_constants(model)
        if _run("decomposing operators of opset 23", Opset23Pass(), model).modified:
            _name(model)
            _lift_constants(model)
        if converted := convert_opset(model, opset, max(opset, lowest_opset)):
            notes.append(converted)
        decompositions = DecomposeContribPass()
        if decompose and _run("decomposing operators of ONNX Runtime's optimizers", decompositions, model).modified:
            _name(model)
            _lift_constants(model)
        if note := note_of_blocks(model):
            notes.append(note)
        if model.opset_imports.get("", 0) >= _FIRST_OPSET_OF_RULES:
            single_sizes = SingleSizesPass()  # before passes remove the nodes that say which dims are 1
            _run("looking for dims that can only be 1", single_sizes, model)
            notes += single_sizes.notes
            _run("looking for minima of sizes that can only be one of them", BoundedSizesPass(), model)
            _run("looking for sizes that can only be whole multiples", MultipleSizesPass(), model)
        _simplify(model, growth)
        interface.restore(model)
        _declare_stacks(model, stacked)
        model.opset_imports.setdefault("", opset)  # restoring may need an Identity, also in models of other domains
        common.RemoveUnusedOpsetsPass()(model)
        remove_onnxscript_metadata(model)
        _name(model)
    model.ir_version = _lowest_ir_version(model)
    return Normalized(model, tuple(notes))


def _run(what: str, run: Callable[[ir.Model], _Result], model: ir.Model) -> _Result:
    """Run a pass, or another function of a model. what: it does, for the message.

    Whatever the pass raises becomes a StepError that names the pass, the node where it is known, and the cause.
    """
    with step(f"{what} (pass {type(run).__name__})"):
        return run(model)


def _tidy(model: ir.Model, notes: list[str]) -> None:
    """Inline functions, sort and name nodes, make constants initializers. What follows relies on all of it."""
    if reason := inline_functions(model):
        notes.append(f"model-local functions not inlined: {reason}")
    try:
        common.TopologicalSortPass()(model)
    except (ir.passes.PassError, ValueError) as error:
        raise ModelError(f"the graph's nodes form a cycle: {read.first_line(error)}") from error
    _name(model)  # before all that refers to values by name, as lifting and onnx's C++ passes do
    _lift_constants(model)
    _remove_unused(model)


def _forget_declared_shapes(model: ir.Model) -> None:
    """Drop the declared shapes inside the graph: exporters get some wrong, and others would follow from these."""
    for graph in reversed(list(model.graphs())):  # bodies before the graphs around them
        for value in graph.initializers.values():
            if value.const_value is not None:
                value.shape = ir.Shape(value.const_value.shape.numpy())
                value.dtype = value.const_value.dtype
        if graph is not model.graph:
            for value in (*graph.inputs, *graph.outputs):
                if value.const_value is None:
                    value.shape = None
        for node in graph:
            for value in node.outputs:
                value.shape = None
            if node.op_type == "Loop" and node.domain == "":
                for value in node.attributes["body"].as_graph().inputs[:2]:
                    value.shape = ir.Shape([])  # counter and condition are scalars; ORT requires the declaration


def _declared_stacks(model: ir.Model) -> dict[str, dict[int, ir.Shape]]:
    """By name of a Loop: what its body declares as the shapes of the outputs that the Loop stacks, by position."""
    declared: dict[str, dict[int, ir.Shape]] = {}
    for loop, stacked in _loops(model):
        shapes = {k: value.shape.copy(frozen=False) for k, value in stacked.items() if value.shape is not None}
        if shapes and loop.name is not None:
            declared[loop.name] = shapes
    return declared


def _declare_stacks(model: ir.Model, declared: dict[str, dict[int, ir.Shape]]) -> None:
    """Declare these shapes again where none was inferred: ORT takes them for a Loop that never runs its body."""
    for loop, stacked in _loops(model):
        for k, shape in declared.get(loop.name or "", {}).items():
            if k in stacked and stacked[k].shape is None:
                stacked[k].shape = shape


def _loops(model: ir.Model) -> Iterator[tuple[ir.Node, dict[int, ir.Value]]]:
    """Each Loop with the outputs of its body that it stacks, by position."""
    for node in model.graph.all_nodes():
        if node.op_type == "Loop" and node.domain == "":
            outputs = node.attributes["body"].as_graph().outputs
            yield node, {k: outputs[k] for k in range(len(node.inputs) - 1, len(outputs))}


def _simplify(model: ir.Model, growth: float) -> None:
    """Fold constants, remove nodes without effect, merge equal nodes."""
    constants = [v.const_value for graph in model.graphs() for v in graph.initializers.values()]
    fold = Fold(int(growth * sum(tensor.nbytes for tensor in constants if tensor is not None)))
    rules = no_op_rules() if model.opset_imports.get("", 0) >= _FIRST_OPSET_OF_RULES else None
    simplify_shapes = SimplifyShapesPass()
    if any(node.op_type == "DequantizeLinear" for node in model.graph.all_nodes()):
        _merge_equal(model)  # what moving codes does to a value depends on how many nodes read it
    if rules is not None:
        _run("padding as convolutions state it", SamePaddingPass(), model)
        _run("scaling by whole factors", WholeResizesPass(), model)
    for _ in range(_ROUNDS):
        changed = _run("shape inference", simplify_shapes, model).modified
        changed |= _run("constant folding", fold, model)
        if rules is not None:
            _lift_constants(model)  # what folding and the rules made
            _run("ordering operands", OperandOrderPass(), model)
            with carried(model):
                changed |= _run("applying rules without effect on results", rules, model).modified
            changed |= _run("constant padding as convolutions state it", ConstantPaddingPass(), model).modified
            changed |= _run("moving codes", MoveCodesPass(), model).modified
            changed |= _run("moving Casts into branches", BranchCastsPass(), model).modified
            _name(model)
        _remove_unused(model)
        if not changed:
            break
    if rules is not None:
        _run("joining the parts of Splits", JoinedSplitsPass(), model)
        if _run("choosing in place of filling boxes", FilledBoxesPass(), model).modified:
            _remove_unused(model)  # before what they read is counted on the device
        _run("finding padding without a sum", SummedPaddingPass(), model)
        _run("counting positions on the device", CountOnDevicePass(), model)
    _name(model)
    _lift_constants(model)
    _merge_equal(model)
    _remove_unused(model)


def _merge_equal(model: ir.Model) -> None:
    _run("sharing equal initializers", ShareInitializersPass(), model)
    _run("merging equal nodes", MergeEqualNodesPass(), model)


def _name(model: ir.Model) -> None:
    _run("naming nodes and values", UniqueNamesPass(), model)


def _lift_constants(model: ir.Model) -> None:
    lift = common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)
    _run("making constants initializers", lift, model)


def _remove_unused(model: ir.Model) -> None:
    _run("removing unused nodes", common.RemoveUnusedNodesPass(), model)


def _lowest_ir_version(model: ir.Model) -> int:
    """The lowest IR version with everything that the model uses (https://onnx.ai/onnx/repo-docs/Versioning.html)."""
    graphs = list(model.graphs())
    nodes = list(model.graph.all_nodes())
    values = [v for graph in graphs for v in (*graph.inputs, *graph.initializers.values())]
    values += [v for node in nodes for v in node.outputs]
    needed = [_FUNCTIONS_IR_VERSION, *(_ir_version_of_dtype(value.dtype) for value in values)]
    needed += [_ir_version_of(d, v) for d, v in model.opset_imports.items() if d in ("", "ai.onnx.ml")]
    described = any(v.metadata_props for v in values) or any(n.metadata_props for n in nodes)
    if described or any(g.metadata_props for g in graphs) or any(overload for _, _, overload in model.functions):
        needed.append(10)
    return max(needed)


def _ir_version_of(domain: str, version: int) -> int:
    try:
        return onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid(domain, version)], ignore_unknown=True)
    except ValueError:
        return onnx.IR_VERSION


def _ir_version_of_dtype(dtype: ir.DataType | None) -> int:
    if dtype is None or dtype < ir.DataType.FLOAT8E4M3FN:
        return 3
    if dtype <= ir.DataType.FLOAT8E5M2FNUZ:
        return 9
    return 10 if dtype <= ir.DataType.INT4 else 11
