"""Why a node stays as it is, for a user to read: what rewriting and fusing report, and `explain` prints."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Refusal:
    """A node that stays as it is next to a node it might have been fused with, and why.

    node, op_type: its name and operator. neighbour: name of the other node, "" where the reason holds whatever the
    neighbour. reason: a sentence without a full stop, which names the operator and the value that are in the way.
    """

    node: str
    op_type: str
    neighbour: str
    reason: str
