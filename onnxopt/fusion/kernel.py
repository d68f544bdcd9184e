"""What makes up a kernel: its meaning, its entry points, the places in the model that call it, and what it saves."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol


class Meaning(Protocol):
    """What a kernel computes, as kernels.json tells the library. inputs, outputs: storage dtype names."""

    @property
    def inputs(self) -> tuple[str, ...]: ...
    @property
    def outputs(self) -> tuple[str, ...]: ...
    def verify(self) -> None: ...
    def to_json(self) -> dict[str, Any]: ...


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Predicted bytes moved through device memory and kernels launched, before and after fusing.

    Bytes are None where a dim that matters is symbolic.
    """

    bytes_before: int | None
    bytes_after: int | None
    launches_before: int
    launches_after: int = 1


@dataclasses.dataclass(frozen=True)
class Variant:
    """One entry point of a kernel.

    modes: one letter an access, then one a condition (kinds/pointwise/access_modes.py). The first variant whose modes
    fit the actual shapes runs. index: 32 or 64 bit. vector: elements a load; unroll: vectors a thread; threads: of a
    block. tile, tile_columns: sides of a tile, where inputs go through shared memory, else 0. whole: a tile has all
    rows of the domain. slides: a tile begins in each column with the vector that its first row lies in. waits: the
    kernel itself waits for the preceding kernel of the stream (programmatic dependent launch), where a GPU can.
    """

    symbol: str
    modes: str
    index: int
    vector: int
    unroll: int
    threads: int
    tile: int = dataclasses.field(default=0, kw_only=True)
    tile_columns: int = dataclasses.field(default=0, kw_only=True)
    whole: bool = dataclasses.field(default=False, kw_only=True)
    slides: bool = dataclasses.field(default=False, kw_only=True)
    waits: bool = dataclasses.field(default=False, kw_only=True)


@dataclasses.dataclass(frozen=True)
class Site:
    """One place in the model where a fused function stands: the nodes it replaced and its predicted traffic."""

    node: str  # name of the function's node
    replaced: tuple[str, ...]  # names of the original nodes
    shapes: tuple[str, ...]  # inputs then outputs, as "float16[8,128,768]"; symbolic dims by name, unknown "?"
    traffic: Traffic
