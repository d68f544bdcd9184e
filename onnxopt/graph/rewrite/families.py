"""The families of rewrite rules. A family is one row: its name, what `explain` says of it, and its rules."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

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
from onnxopt.graph.rewrite.rule_sets import Row


@dataclasses.dataclass(frozen=True)
class Family:
    """Rules that are right or wrong as a whole: where verification fails, a family is left out by its name.

    explanation: what `explain` prints where the rules applied; {} is how often. rules: in flow.py stands when each
    of them runs. A rule that several families need is of all of them, and runs where one of them is not left out.
    """

    name: str
    explanation: str
    rules: tuple[Row, ...]


GATED_WEIGHTS = "gated_weights"
_CANCELLED = (*layout.CODES, *layout.CANCELLING)
_MAPPED = (  # what becomes of recognised attention
    *layout.AXES, *grouped_heads.RULES, *cached.RULES, *to_contrib.GROUPED, *to_contrib.ATTENTION, *query_scale.RULES,
    *window_masks.OF_QUERIES, *attention_nodes.OF_OPERANDS, *_CANCELLED,
)  # fmt: skip
# A family stands behind those whose results its rules are for: bisection adds one after the other.
_ROWS = (
    Family(
        "decomposed",
        "{} x activation, Softmax, mean or sum of several operators into one",
        (*layout.AXES, *decomposed_reductions.SUMS, *decomposed_activations.RULES, *decomposed_reductions.RULES),
    ),
    Family(
        "products",
        "{} x product into its usual form",
        (*product_forms.GEMM, *product_forms.TRANSPOSED, *part_biases.RULES),
    ),
    Family(
        "indices",
        "{} x index or size that is known, in place of its computation",
        (*scattered_order.RULES, *gathers.RULES, *dims_of_inputs.RULES),
    ),
    Family("einsums", "{} x Einsum into a product", einsums.RULES),
    Family(
        "attention_forms",
        "{} x view, bias or norm around attention into its usual form",
        (
            *layout.AXES, *layout.BEFORE_RECOGNITION, *sequence_first.RULES, *window_views.RULES, *windows_apart.RULES,
            *joined_heads.RULES, *window_masks.RULES, *reordered_columns.RULES, *query_scale.BEFORE_RECOGNITION,
            *head_norms.BEFORE_RECOGNITION,
        ),
    ),
    Family("attention", "{} x attention into one operator", (*attention.RULES, *head_sizes.OF_OWN_KERNEL, *_MAPPED)),
    Family(
        "heads",
        "{} x attention with zeros that fill its heads up",
        (*head_sizes.PADDED, *padded_heads.RULES, *_MAPPED),
    ),
    Family(
        "rotary",
        "{} x rotary embedding into one operator",
        (*rotary.HALVES, *rotary.RULES, *rotary_pairs.RULES, *to_contrib.ROTARY, *_CANCELLED),
    ),
    Family("outer_products", "{} x product over one element into a multiplication", outer_products.RULES),
    Family(
        "merge",
        "{} x projections of one tensor into one product",
        (*merging.HEADS, *merging.PROJECTIONS, *shared_operand.RULES, *head_norms.JOINED),
    ),
    Family("gate", "{} x gate and up projections into one product", merging.GATES),
    Family(
        "tokens", "{} x convolution into a product", (*convolutions.ACTIVATIONS, *convolutions.PRODUCTS, *_CANCELLED)
    ),
    Family(
        "fold",
        "{} x bias, factor, normalization or row into the convolution, product or constant beside it",
        (*front_rows.RULES, *folded.RULES, *scaled_products.RULES, *normalized_products.RULES, *_CANCELLED),
    ),
    Family("splits", "{} x Split into unequal parts into Slices", unequal_splits.RULES),
    Family("channels_last", "{} x convolution in channels last", (*channels_last.TOKENS, *channels_last.RULES)),
    Family(
        GATED_WEIGHTS,
        "{} x gate of a map onto the weights of the 1x1 convolution behind it",
        channels_last.GATES,
    ),
)  # fmt: skip
FAMILIES: Mapping[str, Family] = {family.name: family for family in _ROWS}
FAMILIES_OF: Mapping[Row, frozenset[str]] = {
    row: frozenset(family.name for family in _ROWS if row in family.rules) for family in _ROWS for row in family.rules
}
