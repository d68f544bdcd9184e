"""Other forms of a model: rewritten, ready to be lowered to 16 bits, and without operators of com.microsoft."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Collection, Mapping
from pathlib import Path

import onnx_ir as ir

from onnxopt.costs.rewrite import numbers
from onnxopt.graph import read
from onnxopt.graph.passes.interface import Interface
from onnxopt.graph.passes.unique_names import UniqueNamesPass
from onnxopt.graph.refusal import Refusal
from onnxopt.graph.rewrite.convolutions import constants
from onnxopt.graph.rewrite.decomposed import (
    decomposed_activations,
    decomposed_choices,
    decomposed_group_norms,
    decomposed_layer_norms,
    decomposed_reductions,
    decomposed_scales,
)
from onnxopt.graph.rewrite.rule_sets import Row
from onnxopt.graph.rewrite.schedule import Cleanup, Phase, Rewriting, Step
from onnxopt.graph.rewrite.table import FAMILIES, PORTABLE, TABLE
from onnxopt.graph.shapes.contrib_schemas import DOMAIN

LAST_OPSET_OF_OLD_SOFTMAX = 12  # up to it, Softmax flattens its operand to two dims
SPLIT_IS_FUSED = numbers().split_is_fused


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
    gpu: bool = False,
) -> Rewritten:
    """Rewrite a normalized model in place. folder: for joined weights; it has to outlive the model.

    leave_out: names of FAMILIES not to apply. gates: whether to apply "gate", which pays only where Split is fused.
    usual: sizes that symbols of the inputs have in most runs. gpu: whether kernels for GPUs are made of the result.
    """
    left_out = {*leave_out} if gates else {*leave_out, "gate"}
    rewriting = Rewriting(model, (name for name in FAMILIES if name not in left_out), folder, usual, gpu)
    if model.opset_imports.get("", 0) > LAST_OPSET_OF_OLD_SOFTMAX:
        with read.quiet():
            interface = Interface(model)
            rewriting.run(TABLE)
            model.opset_imports.pop(DOMAIN, None)
            UniqueNamesPass()(model)
            interface.restore(model)
    return Rewritten(rewriting.applied, rewriting.refusals)


def prepare_float32(model: ir.Model) -> None:
    """Prepare a model for lower precision, in place.

    Constants behind convolutions are folded into their weights, so as to round once. Activations and Softmax in
    elementary operators become one operator, whose exponentials no value stores. Norms in elementary operators become
    LayerNormalization, so that no Cast stands inside of what ONNX Runtime fuses to one.
    """
    opset = model.opset_imports.get("", 0)
    if opset <= LAST_OPSET_OF_OLD_SOFTMAX:
        return
    recomposed: tuple[Row, ...] = (
        *decomposed_scales.RULES,
        *decomposed_activations.RULES,
        *decomposed_reductions.RULES,
        *decomposed_choices.RULES,
    )
    groups = decomposed_group_norms.RULES if decomposed_group_norms.may_apply(model.graph) else ()
    rows = (*constants.RULES, *recomposed, *groups, *decomposed_layer_norms.rules_for(opset))
    with read.quiet():
        interface = Interface(model)
        Rewriting(model).run(
            (Phase("recompose", "values are lowered afterwards", (Step((), rows),), then=Cleanup.CLEAN_UP),)
        )
        interface.restore(model)


def to_portable(model: ir.Model) -> None:
    """Put standard operators in place of those of com.microsoft that `rewrite` made, in place."""
    with read.quiet():
        if Rewriting(model).run(PORTABLE):
            model.opset_imports.pop(DOMAIN, None)
