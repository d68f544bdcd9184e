"""What fuse finds and outline turns into functions: regions, refusals, and the fused functions with their kernels."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any, Protocol

import onnx_ir as ir

from onnxopt.graph.refusal import Refusal
from onnxopt.graph.shapes.shapes import Shapes


class Kind(enum.StrEnum):
    """What a kernel runs, and so which modules find, lower and generate it (kinds/registry.py)."""

    ATTENTION = "attention"
    GEMM = "gemm"
    POINTWISE = "pointwise"
    ROWWISE = "rowwise"
    SCAN = "scan"


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
class Region:
    """Nodes of one graph that one kernel will run.

    nodes: in topological order. inputs: values read from outside; what the nodes read besides are constants that become
    part of the function's body. outputs: values that something outside reads.
    """

    nodes: tuple[ir.Node, ...]
    inputs: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ...]
    traffic: Traffic
    kind: Kind = Kind.POINTWISE

    def verify(self) -> None:
        """Raise ValueError where inputs or outputs do not match what the nodes read and what is read of them."""
        inside = {v for n in self.nodes for v in n.outputs}
        if any(v in inside for v in self.inputs):
            raise ValueError("a region's input is produced inside it")
        if any(v not in inside for v in self.outputs):
            raise ValueError("a region's output is not produced inside it")
        nodes = set(self.nodes)
        read_outside = {v for v in inside if v.is_graph_output() or any(u.node not in nodes for u in v.uses())}
        if read_outside != set(self.outputs):
            raise ValueError("a region's outputs are not the values read outside it")


@dataclasses.dataclass(frozen=True)
class FusionPlan:
    """What to fuse in one model, what not and why, and the shapes that this was decided on."""

    regions: tuple[Region, ...]
    refusals: tuple[Refusal, ...]
    shapes: Shapes


@dataclasses.dataclass(frozen=True)
class Variant:
    """One entry point of a kernel.

    modes: one letter an access, then one a condition (kinds/pointwise/access_modes.py). The first variant whose modes fit the actual shapes
    runs. index: 32 or 64 bit. vector: elements a load; unroll: vectors a thread; threads: of a block. tile,
    tile_columns: sides of a tile, where inputs go through shared memory, else 0. whole: a tile has all rows of the
    domain. slides: a tile begins in each column with the vector that its first row lies in. waits: the kernel waits by
    itself for the one ahead of it in the stream, where a GPU can.
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


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A fused function of the domain `onnxopt`: its meaning, the ops it stands for, its entry points and its places.

    cpu: whether the library's CPU kernel beats ORT's own kernels for it; where False a CPU-only machine inlines it.
    """

    name: str
    kind: Kind
    ops: tuple[str, ...]
    program: Meaning
    variants: tuple[Variant, ...]
    sites: tuple[Site, ...]
    cpu: bool = True
