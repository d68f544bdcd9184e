"""The tables of cases, one a kind of kernel; forms of a kind that take other operands have tables of their own."""

from __future__ import annotations

from cases import (
    attention,
    block,
    convolution,
    depthwise,
    expanded_depthwise,
    experts,
    extended_attention,
    flash_attention,
    gemm,
    group_norm,
    image_convolution,
    packed_weights,
    pointwise,
    pool,
    rowwise,
    scan,
    squeeze_excite,
)

TABLES = tuple(
    module.TABLE
    for module in (
        attention,
        block,
        convolution,
        depthwise,
        expanded_depthwise,
        experts,
        extended_attention,
        flash_attention,
        gemm,
        group_norm,
        image_convolution,
        packed_weights,
        pointwise,
        pool,
        rowwise,
        scan,
        squeeze_excite,
    )
)
