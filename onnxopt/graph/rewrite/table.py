"""Every rewrite rule in the order of execution, and its family.

Rules of a family are right or wrong as a whole: where verification fails, a family is left out by its name. A rule that
several families need is of all of them, and runs where one of them is not left out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping

import onnx_ir as ir

from onnxopt.graph.layout import gated_weights
from onnxopt.graph.refusal import Refusal
from onnxopt.graph.rewrite import (
    channels_last,
    dims_of_inputs,
    float32_kernels,
    gathers,
    layout,
    rotary,
    rotary_pairs,
    scattered_order,
    scatters,
    tables,
    to_contrib,
    to_standard,
    unequal_splits,
)
from onnxopt.graph.rewrite.attention import (
    attention_nodes,
    cached,
    channels_first,
    grouped_heads,
    head_norms,
    head_sizes,
    hidden_rows,
    joined_heads,
    joined_streams,
    near_misses,
    padded_heads,
    query_scale,
    sdpa,
    sequence_first,
    widened_views,
    window_masks,
    window_views,
    windows_apart,
)
from onnxopt.graph.rewrite.convolutions import as_products, branches, constants, idle_taps, pixel_shuffles, pooled_gates
from onnxopt.graph.rewrite.decomposed import (
    decomposed_activations,
    decomposed_choices,
    decomposed_group_norms,
    decomposed_reductions,
    decomposed_scales,
    short_axes,
)
from onnxopt.graph.rewrite.decomposed import near_misses as near_activations
from onnxopt.graph.rewrite.products import (
    adapters,
    aligned_products,
    einsums,
    merging,
    normalized_products,
    outer_products,
    packed_attention,
    part_biases,
    prepended_rows,
    product_forms,
    reordered_columns,
    repeated_columns,
    scaled_products,
    shared_operand,
)
from onnxopt.graph.rewrite.rule_sets import Scope
from onnxopt.graph.rewrite.schedule import CANCEL, UNTIL_NOTHING_APPLIES, Cleanup, Phase, Step
from onnxopt.graph.shapes.contrib_schemas import DOMAIN

ALIGNED_CHANNELS = "aligned_channels"
GATED_WEIGHTS = "gated_weights"
FLOAT32_KERNELS = "float32_kernels"
# What `explain` says where rules of a family applied; {} is how often. A family comes after those whose results its
# rules are for: bisection adds one after the other.
FAMILIES: Mapping[str, str] = {
    "decomposed": "{} x activation, norm, Softmax, mean or sum of several operators into one",
    "products": "{} x product into its usual form",
    "indices": "{} x constant index or size, in place of its computation",
    "tables": "{} x rows of several tables into those of one, or points into one Gather",
    "einsums": "{} x Einsum into a product",
    "attention_forms": "{} x view, bias or norm around attention into its usual form",
    "attention": "{} x attention into one operator",
    "heads": "{} x attention with zeros that fill its heads up",
    "rotary": "{} x rotary embedding into one operator",
    "outer_products": "{} x product over one element into a multiplication",
    "merge": "{} x projections of one tensor into one product",
    "gate": "{} x gate and up projections into one product",
    "tokens": "{} x convolution into a product",
    "fold": "{} x bias, factor, normalization or row into the convolution, product or constant beside it",
    "repeated_columns": "{} x product whose repeated columns are multiplied once",
    "splits": "{} x Split into unequal parts into Slices",
    ALIGNED_CHANNELS: "{} x convolution whose channels are filled up to multiples of 16 bytes",
    "channels_last": "{} x convolution in channels last",
    GATED_WEIGHTS: "{} x gate of a map onto the weights of the 1x1 convolution that follows",
    FLOAT32_KERNELS: "{} x operator without a CUDA kernel in 16 bits into float32, between Casts",
}

_DECOMPOSED = ("decomposed",)
_PRODUCTS = ("products",)
_INDICES = ("indices",)
_FORMS = ("attention_forms",)
_ATTENTION = ("attention",)
_HEADS = ("heads",)
_MAPPED = (*_ATTENTION, *_HEADS)  # of attention that was recognised
_ROTARY = ("rotary",)
_MERGE = ("merge",)
_TOKENS = ("tokens",)
_FOLD = ("fold",)
_CHANNELS_LAST = ("channels_last",)


def _has(*op_types: str) -> Callable[[ir.Graph], bool]:
    return lambda graph: any(node.op_type in op_types for node in graph.all_nodes())


def _has_internal(graph: ir.Graph) -> bool:
    return any(node.domain == DOMAIN for node in graph.all_nodes())


def _has_softmaxes(graph: ir.Graph) -> bool:
    return bool(near_misses.softmaxes(graph))


def _has_attention(graph: ir.Graph) -> bool:
    return _has_internal(graph) or _has_softmaxes(graph)


def _activation_refusals(model: ir.Model, _: Scope, families: Collection[str]) -> tuple[Refusal, ...]:
    return near_activations.refusals(model) if _DECOMPOSED[0] in families else ()


def _refusals(model: ir.Model, scope: Scope, families: Collection[str]) -> tuple[Refusal, ...]:
    if "attention" not in families:
        return ()
    return near_misses.refusals(model, scope.index_values, "heads" in families)


_GEMMS = Step(_PRODUCTS, product_forms.GEMM, then=Cleanup.CLEAN_UP, only_if=_has("Gemm"))
_BIASES = Step(_PRODUCTS, part_biases.RULES, then=Cleanup.CLEAN_UP, only_if=_has("MatMul", "Gemm"))
TABLE: tuple[Phase, ...] = (
    Phase(
        name="recompose",
        why="the rules after it know operators, not what exporters take apart",
        steps=(
            Step(_INDICES, scattered_order.RULES, then=Cleanup.CLEAN_UP),
            Step((*_DECOMPOSED, *_FORMS, *_MAPPED), layout.AXES),
            Step(_DECOMPOSED, decomposed_scales.RULES, then=Cleanup.CLEAN_UP),
            Step(_DECOMPOSED, decomposed_reductions.SUMS, then=Cleanup.CLEAN_UP),  # what it adds may be there already
            Step(
                _DECOMPOSED,
                (*decomposed_activations.RULES, *decomposed_reductions.RULES, *decomposed_choices.RULES),
                then=Cleanup.CLEAN_UP,
            ),
            Step(_DECOMPOSED, (*decomposed_activations.RULES, *decomposed_reductions.RULES), then=Cleanup.CLEAN_UP),
            Step(_DECOMPOSED, decomposed_group_norms.RULES, only_if=decomposed_group_norms.may_apply),
            Step(_PRODUCTS, pooled_gates.RULES, then=Cleanup.CLEAN_UP, only_if=_has("Conv")),
            Step(_PRODUCTS, product_forms.TRANSPOSED, then=Cleanup.CLEAN_UP),
            Step(_ROTARY, rotary.HALVES, then=Cleanup.CLEAN_UP),
        ),
        refusals=_activation_refusals,
    ),
    Phase(
        name="products",
        why="attention multiplies by MatMul, and adds one bias to each",
        steps=(
            Step(("einsums",), einsums.RULES, only_if=_has("Einsum")),
            Step(_PRODUCTS, product_forms.TRANSPOSED, then=Cleanup.CLEAN_UP, only_if=_has("MatMul")),
            Step(_PRODUCTS, adapters.RULES, then=Cleanup.CLEAN_UP, only_if=_has("MatMul")),
            _BIASES,
        ),
    ),
    Phase(
        name="positions",
        why="masks of attention get smaller, and tables are no longer repeated once pairs are rotated",
        steps=(
            Step(_ROTARY, rotary_pairs.RULES, only_if=rotary_pairs.may_apply),
            Step(_INDICES, scatters.RULES, then=Cleanup.CLEAN_UP, only_if=scatters.may_apply),
            Step(_INDICES, gathers.RULES, then=Cleanup.CLEAN_UP, only_if=gathers.may_apply),
            Step(("tables",), tables.RULES, then=Cleanup.CLEAN_UP | Cleanup.CANCEL, only_if=tables.may_apply),
            Step(_FOLD, prepended_rows.RULES, then=Cleanup.CLEAN_UP, only_if=prepended_rows.may_apply),
        ),
    ),
    Phase(
        name="recognise",
        why="attention becomes Sdpa, an operator of the internal domain, which the rules after it know",
        only_if=_has_softmaxes,
        steps=(
            Step((*_DECOMPOSED, *_FORMS, *_MAPPED), layout.AXES),
            Step(_FORMS, channels_first.PRODUCTS),
            Step(_FORMS, channels_first.OPERANDS),
            Step(_FORMS, channels_first.RESULTS, then=Cleanup.CLEAN_UP),
            Step(_FORMS, sequence_first.RULES, then=Cleanup.CLEAN_UP),  # products of three parts are built three times
            _GEMMS,
            _BIASES,
            Step(_INDICES, dims_of_inputs.RULES),
            Step(_FORMS, (*window_views.RULES, *windows_apart.RULES)),
            Step(
                _FORMS,
                (*layout.BEFORE_RECOGNITION, *joined_heads.RULES, *window_masks.RULES, *reordered_columns.RULES),
            ),
            Step(_FORMS, joined_streams.RULES, only_if=_has("Concat")),
            Step(_FORMS, (*query_scale.BEFORE_RECOGNITION, *head_norms.BEFORE_RECOGNITION)),
            Step(_ATTENTION, (*sdpa.RULES, *widened_views.RULES)),
            Step(_HEADS, head_sizes.PADDED, only_if=_has_softmaxes),
            Step(_HEADS, padded_heads.RULES),
            Step(_ATTENTION, head_sizes.OWN_KERNEL, only_if=_has_softmaxes),
        ),
        refusals=_refusals,
    ),
    dataclasses.replace(
        CANCEL,
        steps=tuple(dataclasses.replace(step, families=_ATTENTION) for step in CANCEL.steps),
        only_if=_has_attention,
    ),
    Phase(
        name="map",
        why="operators of a runtime replace every Sdpa",
        only_if=_has_attention,
        steps=(
            Step(_ROTARY, rotary.RULES, then=Cleanup.CLEAN_UP),  # it makes the same tables for q and for k
            Step(_MAPPED, (*grouped_heads.RULES, *cached.RULES)),  # before attention without a cache
            Step(_MAPPED, to_contrib.GROUPED),
            Step(_MERGE, merging.HEADS),  # before heads are repeated, and Rotary is decomposed
            Step(_MAPPED, to_contrib.ATTENTION),
            Step(_ROTARY, to_contrib.ROTARY),
        ),
        then=Cleanup.CANCEL,
    ),
    Phase(
        name="merge",
        why="products of attention are MatMuls now, and which of them share an operand no longer changes",
        steps=(
            Step(_MAPPED, query_scale.RULES),
            _GEMMS,
            Step(("outer_products",), outer_products.RULES),  # attention may be over one key
            Step(_MERGE, merging.PROJECTIONS),
            Step(_MERGE, packed_attention.PARTS, only_if=_has("MultiHeadAttention")),
            Step(_MERGE, shared_operand.RULES),
            Step(_MERGE, head_norms.MERGED),
            # Last, as products of queries are merged where nothing but attention reads these.
            Step(_MAPPED, (*window_masks.QUERY_SIZES, *attention_nodes.OPERAND_SIZES)),
        ),
    ),
    Phase(
        name="convolutions",
        why="those that are products become products, with the constants and the activations that follow them",
        steps=(
            Step(_FOLD, (*idle_taps.RULES, *constants.RULES, *branches.RULES), only_if=_has("Conv", "ConvTranspose")),
            Step(_FOLD, pixel_shuffles.RULES, only_if=_has("DepthToSpace")),
            Step(_TOKENS, as_products.PRODUCTS),
        ),
        repeat=UNTIL_NOTHING_APPLIES,
        then=Cleanup.CANCEL,
    ),
    Phase(
        name="fold",
        why="constants and normalizations are folded into the products that there are now",
        steps=(
            Step(("gate",), merging.GATES),
            Step(_DECOMPOSED, short_axes.RULES, then=Cleanup.CANCEL, only_if=_has(*short_axes.REDUCTIONS)),
            Step(_FOLD, (*scaled_products.RULES, *normalized_products.RULES), then=Cleanup.CANCEL),
            Step(("repeated_columns",), repeated_columns.RULES, then=Cleanup.CLEAN_UP, only_if=_has("Concat")),
            Step(_PRODUCTS, aligned_products.RULES, only_if=_has("MatMul", "Gemm")),  # of weights that change no more
        ),
        then=Cleanup.CLEAN_UP,
    ),
    Phase(
        name="float32",
        why="no rule before it looks past a Cast; kernels that compute Casts read parts of a Split where they are",
        steps=(Step((FLOAT32_KERNELS,), float32_kernels.RULES, only_if=float32_kernels.may_apply),),
    ),
    Phase(
        name="splits",
        why="attention reads parts of a product where they are",
        steps=(
            Step(("splits",), unequal_splits.RULES, only_if=_has("Split")),
            # After what reads queries. Layers share which queries see no key.
            Step(_MAPPED, hidden_rows.RULES, then=Cleanup.CLEAN_UP, only_if=_has("MultiHeadAttention")),
        ),
    ),
    Phase(
        name="channels_last",
        why="Transposes of equal convolutions have to stay apart, so nothing that merges equal nodes follows",
        steps=(
            Step((ALIGNED_CHANNELS,), channels_last.ALIGNED, only_if=_has("Conv", "ConvTranspose")),
            Step(_CHANNELS_LAST, channels_last.TOKENS, only_if=_has("Conv", "ConvTranspose")),
            Step(_CHANNELS_LAST, channels_last.RULES, only_if=_has("Conv", "ConvTranspose")),
            Step(_FOLD, normalized_products.MAPS, only_if=_has("BatchNormalization")),
            Step((GATED_WEIGHTS,), channels_last.GATES, only_if=lambda graph: bool(gated_weights.candidates(graph))),
        ),
    ),
)
# The portable form: standard operators in place of those of com.microsoft that TABLE made. Its rules are of no family,
# as verification compares the portable file as one.
PORTABLE: tuple[Phase, ...] = (
    Phase(
        name="internal",
        why="standard attention replaces the internal operators that these become again",
        steps=(Step((), to_standard.ATTENTION), Step((), to_standard.TO_INTERNAL), Step((), to_contrib.UNGROUP)),
    ),
    dataclasses.replace(CANCEL, only_if=_has_internal),  # heads are repeated now
    Phase(
        name="standard",
        why="no internal operator remains",
        steps=(Step((), to_standard.TO_STANDARD),),
        then=Cleanup.CANCEL | Cleanup.CLEAN_UP,
    ),
)
