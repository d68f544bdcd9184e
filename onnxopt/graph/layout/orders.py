"""The orders of dims: [N, C, H, W] and [N, H, W, C], of volumes with D before H, and the Transposes between them."""

from __future__ import annotations

import onnx_ir as ir

RANK = 4
RANKS = (RANK, 5)  # of images and of volumes
TO_NCHW = (0, 3, 1, 2)
TO_NHWC = (0, 2, 3, 1)


def to_channels_first(rank: int) -> tuple[int, ...]:
    """The order that makes [N, C, ...] of [N, ..., C]."""
    return (0, rank - 1, *range(1, rank - 1))


def to_channels_last(rank: int) -> tuple[int, ...]:
    """The order that makes [N, ..., C] of [N, C, ...]."""
    return (0, *range(2, rank), 1)


def transposes(node: ir.Node, order: tuple[int, ...]) -> bool:
    """Whether a node is a Transpose to this order."""
    return node.op_type == "Transpose" and node.domain == "" and tuple(node.attributes.get_ints("perm", ())) == order


def turns_first(node: ir.Node) -> bool:
    """Whether a node is a Transpose of an image or a volume to [N, C, ...]."""
    return any(transposes(node, to_channels_first(rank)) for rank in RANKS)


def turns_last(node: ir.Node) -> bool:
    """Whether a node is a Transpose of an image or a volume to [N, ..., C]."""
    return any(transposes(node, to_channels_last(rank)) for rank in RANKS)
