"""The parts of a kernel: its meaning, its places in the model, and its predicted traffic."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol


class Meaning(Protocol):
    """What a kernel computes, as kernels.json states it. inputs, outputs: storage dtype names."""

    @property
    def inputs(self) -> tuple[str, ...]: ...
    @property
    def outputs(self) -> tuple[str, ...]: ...
    def verify(self) -> None: ...
    def to_json(self) -> dict[str, Any]: ...


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Predicted bytes moved through device memory and kernels launched, before and after fusing.

    Bytes are None where a dim that matters is symbolic, and so is flops: floating-point operations of the convolutions
    and products, a multiplication and an addition each; 0 where there are none of these.
    """

    bytes_before: int | None
    bytes_after: int | None
    launches_before: int
    launches_after: int = 1
    flops: int | None = 0


@dataclasses.dataclass(frozen=True)
class Site:
    """One place in the model where a fused function stands: the nodes it replaced and its predicted traffic."""

    node: str  # name of the function's node
    replaced: tuple[str, ...]  # names of the original nodes
    shapes: tuple[str, ...]  # inputs then outputs, as "float16[8,128,768]"; symbolic dims by name, unknown "?"
    traffic: Traffic
