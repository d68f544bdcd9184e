"""The orders of dims: [N, C, H, W] and [N, H, W, C], and the Transposes between them."""

from __future__ import annotations

import onnx_ir as ir

RANK = 4
TO_NCHW = (0, 3, 1, 2)
TO_NHWC = (0, 2, 3, 1)


def transposes(node: ir.Node, order: tuple[int, ...]) -> bool:
    """Whether a node is a Transpose to this order."""
    return node.op_type == "Transpose" and node.domain == "" and tuple(node.attributes.get_ints("perm", ())) == order
