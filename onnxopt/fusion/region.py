"""Regions, kernels, and kinds of kernels.

A region is a set of nodes in a graph. A kernel runs all regions of one meaning and is part of the artifact. A kind
finds regions and turns them into kernels. The three classes refer to each other, so they share this file.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import onnx_ir as ir

from onnxopt.fusion.context import Context
from onnxopt.fusion.kernel import Meaning, Site, Traffic
from onnxopt.graph.refusal import Refusal
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.program.schema import Variant


@dataclasses.dataclass(frozen=True)
class Region:
    """Nodes of one graph that one kernel will run.

    nodes: in topological order. inputs: values read from outside; constants that the nodes read become part of the
    function's body. outputs: values that nodes outside read. kind: the kind of the kernel. meaning: what the kernel
    computes; None until the step `lower`, unless the search for the region lowered the nodes.
    """

    nodes: tuple[ir.Node, ...]
    inputs: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ...]
    traffic: Traffic
    kind: Kind
    meaning: Meaning | None = None

    def verify(self) -> None:
        """Raise ValueError where inputs or outputs do not match the edges between the nodes and the rest."""
        inside = {v for n in self.nodes for v in n.outputs}
        if any(v in inside for v in self.inputs):
            raise ValueError("A region's input is produced inside the region")
        if any(v not in inside for v in self.outputs):
            raise ValueError("A region's output is not produced inside the region")
        nodes = set(self.nodes)
        read_outside = {v for v in inside if v.is_graph_output() or any(u.node not in nodes for u in v.uses())}
        if read_outside != set(self.outputs):
            raise ValueError("A region's outputs are not the values that are read outside the region")


@dataclasses.dataclass(frozen=True)
class FusionPlan:
    """The regions of one model, the refusals, and the shapes that both depend on."""

    regions: tuple[Region, ...]
    refusals: tuple[Refusal, ...]
    shapes: Shapes


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A fused function: its meaning, the op types it replaces, its entry points and places.

    cpu: whether the library's CPU kernel is faster than ONNX Runtime's own kernels; where False, the CPU runs the
    inlined function. usual: the inputs' shapes at its places, where dims are symbolic and the sizes that most runs have
    are known; only for kernels of NVIDIA's libraries, which make something of their own for each shape.
    """

    name: str
    kind: Kind
    ops: tuple[str, ...]
    program: Meaning
    variants: tuple[Variant, ...]
    sites: tuple[Site, ...]
    cpu: bool = True
    usual: tuple[tuple[tuple[int, ...], ...], ...] = ()


class Kind(abc.ABC):
    """A kind of kernel: how to find its regions, what the regions mean, and the code that runs them.

    Each kind is one object in a folder of kinds/, and one line in kinds/__init__.py.
    """

    name: ClassVar[str]  # in kernels.json and manifest.json
    library: ClassVar[str] = ""  # of NVIDIA's, that runs the kernels, where it is not code of our own
    plans_shapes: ClassVar[bool] = (
        False  # whether that library makes a plan for each shape, best ahead of the first run
    )
    splits: ClassVar[bool] = False  # whether to split a region whose kernel spills registers

    def __str__(self) -> str:
        return self.name

    # --- finding ---

    @abc.abstractmethod
    def find(self, context: Context) -> tuple[list[Region], list[Refusal]]:
        """Regions of this kind among the nodes that no other kind has taken, and refusals of other nodes."""

    def find_early(self, context: Context) -> list[Region]:
        """Regions of this kind that take nodes of other kinds with them, found before any kind searches.

        A kind may also take nodes that its later search needs, so that no other kind does.
        """
        return []

    def merge(self, context: Context, regions: list[Region]) -> tuple[list[Region], list[Refusal]]:
        """The regions of all kinds after regions of this kind were joined with their neighbours, and the refusals."""
        return regions, []

    @abc.abstractmethod
    def lower(self, region: Region, opsets: Mapping[str, int], shapes: Shapes) -> Meaning:
        """What the kernel of a region computes. Called for regions that have no meaning yet."""

    def pays_on_cpu(self, region: Region) -> bool:
        """Whether the library's CPU kernel is faster than ONNX Runtime's kernels for the nodes of a region."""
        return False

    # --- naming ---

    def named_nodes(self, region: Region) -> Sequence[ir.Node]:
        """The nodes that name the fused function."""
        return region.nodes

    def identity(self, meaning: Meaning) -> list[Any]:
        """What the hash in the function's name covers beside the nodes and dtypes, as JSON."""
        return [self.name, meaning.to_json()]

    # --- code ---

    @abc.abstractmethod
    def entry_points(
        self, name: str, meaning: Meaning, regions: Sequence[Region], opsets: Mapping[str, int], shapes: Shapes
    ) -> tuple[Variant, ...]:
        """The entry points of the kernel `name`, which runs all of `regions`; none where cuBLASLt runs the kernel."""

    def alternatives(self, kernel: Kernel) -> Iterable[Variant]:
        """Further entry points for `tune` to measure. The library runs only those that were measured to be faster."""
        return ()

    @abc.abstractmethod
    def headers(self, kernels: Sequence[Kernel]) -> list[str]:
        """The headers of cuda_kernels/ that the CUDA text of these kernels includes."""

    @abc.abstractmethod
    def cuda(self, kernel: Kernel) -> list[str]:
        """Lines of CUDA source with every entry point of a kernel."""
