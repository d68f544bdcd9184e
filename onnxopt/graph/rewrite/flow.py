"""The rewrite step, top to bottom: recognise attention, map it to operators, cancel layout changes, merge products.

At last, convolutions get their layout. Every rule and pass that changes what is computed is a row of a family, and none
runs whose families are left out; what flow.py and applying.py call besides only cleans up, infers shapes, or asks
whether rules may apply."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Collection, Mapping
from pathlib import Path

import onnx_ir as ir

from onnxopt.graph import read
from onnxopt.graph.layout import gated_weights
from onnxopt.graph.passes.interface import Interface
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
    to_contrib,
    unequal_splits,
    window_masks,
    window_views,
    windows_apart,
)
from onnxopt.graph.rewrite.applying import LAST_OPSET_OF_OLD_SOFTMAX, Rewriting, clean_up, infer_shapes
from onnxopt.graph.rewrite.families import FAMILIES
from onnxopt.graph.rewrite.masks.index_values import IndexValues
from onnxopt.graph.shapes.contrib_schemas import DOMAIN

# One product for gate and up saves 3 us a layer of Llama, and a Split kernel behind it costs 11 (benchmarks/notes.md).
# Pointwise regions read the two halves by address arithmetic, so that no Split runs.
SPLIT_IS_FUSED = True


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
    rewriting = Rewriting(model, families, folder, usual)
    if model.opset_imports.get("", 0) <= LAST_OPSET_OF_OLD_SOFTMAX:
        return Rewritten(rewriting.applied, ())
    refusals: tuple[Refusal, ...] = ()
    with read.quiet():
        interface = Interface(model)
        if rewriting.apply(scattered_order.RULES):
            clean_up(model)
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
            clean_up(model)
        _slice_unequal_parts(rewriting)
        _channels_last(rewriting)
        UniqueNamesPass()(model)
        interface.restore(model)
    return Rewritten(rewriting.applied, refusals)


def _recompose(rewriting: Rewriting) -> None:
    """What exporters take apart becomes one operator: before anything else, which knows the operators."""
    rewriting.infer()
    rewriting.apply(layout.AXES)
    if rewriting.apply(decomposed_reductions.SUMS):
        clean_up(rewriting.model)  # what a Sum adds up may be there already
        rewriting.infer()
    if rewriting.apply((*decomposed_activations.RULES, *decomposed_reductions.RULES, *product_forms.TRANSPOSED)):
        clean_up(rewriting.model)
    if rewriting.apply(rotary.HALVES):
        clean_up(rewriting.model)


def _write_gemms(rewriting: Rewriting) -> bool:
    """Gemm between views becomes MatMul: once attention of [T, B, C] is known, which stands between such views."""
    if not any(node.op_type == "Gemm" for node in rewriting.model.graph):
        return False
    rewriting.infer()
    changed = rewriting.apply(product_forms.GEMM) > 0
    if changed:
        clean_up(rewriting.model)
        _join_biases(rewriting)
    return changed


def _join_biases(rewriting: Rewriting) -> None:
    rewriting.infer()
    if rewriting.apply(part_biases.RULES):
        clean_up(rewriting.model)


def _write_products(rewriting: Rewriting) -> None:
    """Einsum becomes MatMul, and a product gets its bias: before attention is recognised, which multiplies so."""
    if any(node.op_type == "Einsum" for node in rewriting.model.graph.all_nodes()):
        rewriting.infer()
        if rewriting.apply(einsums.RULES):
            rewriting.infer()
            rewriting.apply(product_forms.TRANSPOSED)  # of the products that were Einsum
            clean_up(rewriting.model)
    if any(node.op_type == "MatMul" for node in rewriting.model.graph):
        _join_biases(rewriting)


def _read_known_positions(rewriting: Rewriting) -> None:
    """Gathers by known positions become views and slices, and constant rows in front of others go into a constant.

    Before attention is recognised, as its masks get smaller.
    """
    model = rewriting.model
    if not gathers.may_apply(model.graph) and not front_rows.may_apply(model.graph):
        return
    if rewriting.apply((*gathers.RULES, *front_rows.RULES), IndexValues(model.graph, rewriting.infer())):
        infer_shapes(model)
        clean_up(model)


def _recognise(rewriting: Rewriting) -> tuple[Refusal, ...]:
    """Attention becomes Sdpa, an operator of the internal domain. Returns what stays, and why."""
    model = rewriting.model
    known = rewriting.infer()
    rewriting.apply(layout.AXES)  # of what was written since
    if rewriting.apply(sequence_first.RULES):
        clean_up(model)  # products of three parts are built three times
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


def _map(rewriting: Rewriting) -> None:
    """Operators of a runtime replace Sdpa. Afterwards no operator of the internal domain is left."""
    model = rewriting.model
    rewriting.cancel()
    if rewriting.apply(rotary.RULES):
        clean_up(model)  # tables that are made twice as wide, or get more dims, for q and for k
        rewriting.infer()
    rewriting.apply((*grouped_heads.RULES, *cached.RULES))  # before GROUPED, which takes attention without a cache
    rewriting.apply(to_contrib.GROUPED, expected=rewriting.expected())
    rewriting.apply(merging.HEADS)  # before heads are repeated, and before Rotary is taken apart
    rewriting.apply((*to_contrib.ATTENTION, *to_contrib.ROTARY), expected=rewriting.expected())
    model.opset_imports.pop(DOMAIN, None)
    rewriting.cancel()
    rewriting.apply((*query_scale.RULES, *window_masks.OF_QUERIES))


def _merge_projections(rewriting: Rewriting) -> None:
    """One product in place of an attention's three, and of several small ones of one tensor."""
    expected = rewriting.expected()
    rewriting.apply(merging.PROJECTIONS, expected=expected)
    if rewriting.apply(shared_operand.RULES, expected=expected):
        rewriting.infer()
        rewriting.apply(head_norms.JOINED)


def _convolutions(rewriting: Rewriting) -> None:
    """Convolutions become products. A Transpose that passes an activation may reach another convolution."""
    before = dict(rewriting.applied)
    while rewriting.apply(convolutions.ACTIVATIONS) + rewriting.apply(convolutions.PRODUCTS):
        rewriting.infer()
    if rewriting.applied != before:
        rewriting.cancel()


def _fold(rewriting: Rewriting) -> None:
    """Constants, and normalizations, go into the convolution or product beside them."""
    if any(node.op_type == "BatchNormalization" for node in rewriting.model.graph):
        rewriting.infer()  # which dim of it are the channels
    if rewriting.apply((*folded.RULES, *scaled_products.RULES, *normalized_products.RULES)):
        rewriting.cancel()


def _slice_unequal_parts(rewriting: Rewriting) -> None:
    """Splits of unequal parts become Slices: once attention reads what it can where it lies."""
    if any(node.op_type == "Split" for node in rewriting.model.graph):
        rewriting.infer()
        rewriting.apply(unequal_splits.RULES)


def _channels_last(rewriting: Rewriting) -> None:
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
