"""Refusals: nodes that stay as they are, and why."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Refusal:
    """A node that stays as it is next to a node it might have been fused with, and why, for a user to read.

    neighbour: name of the other node, "" where the reason holds whatever the neighbour.
    """

    node: str
    op_type: str
    neighbour: str
    reason: str
