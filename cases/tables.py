"""The tables of cases, one a kind of kernel; forms of a kind that take other operands have tables of their own."""

from __future__ import annotations

from cases import (
    depthwise,
    expanded_depthwise,
    extended_attention,
    flash_attention,
    group_norm,
    image_convolution,
)

TABLES = tuple(
    module.TABLE
    for module in (
        depthwise,
        expanded_depthwise,
        extended_attention,
        flash_attention,
        group_norm,
        image_convolution,
    )
)
