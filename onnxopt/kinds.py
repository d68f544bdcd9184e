"""The one place that tells the kinds of regions apart: what a region means, its entry points and its CUDA text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from onnxopt import generate_pointwise, variants
from onnxopt.lower import lower as lower_pointwise
from onnxopt.program import Program
from onnxopt.regions import Kernel, Kind, Meaning, Region, Variant
from onnxopt.shapes import Shapes


def lower(region: Region, opsets: Mapping[str, int], shapes: Shapes) -> Meaning:
    """What the region computes, in the form of its kind."""
    match region.kind:
        case Kind.POINTWISE:
            return lower_pointwise(region.nodes, region.inputs, region.outputs, opsets, shapes)


def entry_points(name: str, meaning: Meaning, regions: Sequence[Region], shapes: Shapes) -> tuple[Variant, ...]:
    """The entry points of the kernel `name`, which stands for all of `regions`; regions[0] gives its kind."""
    match regions[0].kind:
        case Kind.POINTWISE:
            return variants.choose(name, cast(Program, meaning), regions, shapes)


def cuda(kernel: Kernel) -> list[str]:
    """Lines of CUDA source with every entry point of the kernel."""
    match kernel.kind:
        case Kind.POINTWISE:
            return generate_pointwise.lines(kernel)
