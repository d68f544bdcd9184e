"""The families of rewrite rules. A family is one row: its name, what `explain` says of it, and its rules."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from onnxopt.graph.rewrite import (
    attention,
    convolutions,
    einsums,
    folded,
    merging,
    normalized_products,
    outer_products,
    rotary,
    rotary_pairs,
    scaled_products,
)
from onnxopt.graph.rewrite.rule_sets import RuleSet


@dataclasses.dataclass(frozen=True)
class Family:
    """Rules that are right or wrong as a whole: where verification fails, a family is left out by its name.

    explanation: what `explain` prints where the rules applied; {} is how often. rules: in flow.py stands when each
    of them runs. A family without rules is a pass, which flow.py calls. Rules that belong to no family always run.
    """

    name: str
    explanation: str
    rules: tuple[RuleSet, ...] = ()


GATED_WEIGHTS = "gated_weights"
_ROWS = (
    Family("einsums", "{} x Einsum into a product", einsums.RULES),
    Family("attention", "{} x attention into one operator", attention.RULES),
    Family("heads", "{} x attention with zeros that fill its heads up", attention.PADDED),
    Family("rotary", "{} x rotary embedding into one operator", (*rotary.RULES, *rotary_pairs.RULES)),
    Family("outer_products", "{} x product over one element into a multiplication", outer_products.RULES),
    Family("merge", "{} x projections of one tensor into one product", (*merging.HEADS, *merging.PROJECTIONS)),
    Family("gate", "{} x gate and up projections into one product", merging.GATES),
    Family("tokens", "{} x convolution into a product", (*convolutions.ACTIVATIONS, *convolutions.PRODUCTS)),
    Family(
        "fold",
        "{} x bias, factor or normalization into the convolution or product before it",
        (*folded.RULES, *scaled_products.RULES, *normalized_products.RULES),
    ),
    Family("channels_last", "{} x convolution in channels last"),
    Family(GATED_WEIGHTS, "{} x gate of a map onto the weights of the 1x1 convolution behind it"),
)
FAMILIES: Mapping[str, Family] = {family.name: family for family in _ROWS}
FAMILY_OF: Mapping[RuleSet, str] = {rule_set: family.name for family in _ROWS for rule_set in family.rules}
