"""The parts of a kernel: its meaning, its entry points, its places in the model, and its predicted traffic."""

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
class Variant:
    """One entry point of a kernel.

    modes: one letter per access, then one per condition (kinds/pointwise/access_modes.py). The library runs the first
    variant whose modes fit the actual shapes. index: bits of an index, 32 or 64. vector: elements per load. unroll:
    vectors per thread. threads: of a block. tile, tile_columns: sides of a tile where inputs go through shared memory,
    else 0. whole: a tile has all rows of the domain. slides: in each column, a tile begins with the vector that holds
    its first row. waits: the kernel waits for the preceding kernel of the stream itself (programmatic dependent
    launch), on GPUs that support it.
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
