"""Other forms of a model: the one that lower precision is chosen for, and the one without com.microsoft."""

from __future__ import annotations

import functools

import onnx_ir as ir

from onnxopt.graph import read
from onnxopt.graph.passes.interface import Interface
from onnxopt.graph.rewrite import (
    decomposed_activations,
    decomposed_reductions,
    folded,
    spelled_layer_norms,
    to_contrib,
    to_standard,
)
from onnxopt.graph.rewrite.applying import LAST_OPSET_OF_OLD_SOFTMAX, apply_all, cancel, clean_up, infer_shapes
from onnxopt.graph.shapes.contrib_schemas import DOMAIN


def prepare_float32(model: ir.Model) -> None:
    """Prepare a model for lower precision, in place.

    Constants behind convolutions are folded into their weights, so as to round once. Activations and Softmax in
    elementary operators become one operator, whose exponentials no value stores. Norms in elementary operators become
    LayerNormalization, so that no Cast stands inside of what ONNX Runtime fuses to one.
    """
    opset = model.opset_imports.get("", 0)
    if opset <= LAST_OPSET_OF_OLD_SOFTMAX:
        return
    with read.quiet():
        interface = Interface(model)
        infer_shapes(model)
        recomposed = (*decomposed_activations.RULES, *decomposed_reductions.RULES)
        if apply_all(model, (*folded.RULES, *recomposed, *spelled_layer_norms.rules_for(opset))):
            infer_shapes(model)
            clean_up(model)
        interface.restore(model)


def to_portable(model: ir.Model) -> None:
    """Put standard operators in place of those of com.microsoft that `rewrite` made, in place."""
    with read.quiet():
        infer_shapes(model)
        count = apply_all(model, to_standard.ATTENTION)
        infer_shapes(model)
        count += apply_all(model, to_standard.TO_INTERNAL)
        if not count:
            return
        infer_shapes(model)
        apply_all(model, to_contrib.UNGROUP)
        apply = functools.partial(apply_all, model)
        cancel(model, apply)
        apply_all(model, to_standard.TO_STANDARD)
        cancel(model, apply)
        model.opset_imports.pop(DOMAIN, None)
        clean_up(model)
