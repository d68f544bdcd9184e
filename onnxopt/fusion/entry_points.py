"""Entry points: every fused function becomes a kernel with entry points for the shapes at the function's places."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from onnxopt.fusion.kernel import Meaning
from onnxopt.fusion.outline import Function
from onnxopt.fusion.provider_preference import is_quantized
from onnxopt.fusion.region import Kernel, Region
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.program.schema import Variant


def choose(functions: Sequence[Function], opsets: Mapping[str, int], shapes: Shapes) -> tuple[Kernel, ...]:
    """A kernel for each function. Call this before outline.replace, which takes the regions out of the graph."""
    return tuple(_kernel(function, opsets, shapes) for function in functions)


def with_alternatives(kernel: Kernel) -> Kernel:
    """The kernel with the alternatives of `tune` behind its own entry points, which keep their order.

    The library runs an alternative only where launches.json beside the library states that the alternative was measured
    to be faster on this GPU.
    """
    variants = {variant.symbol: variant for variant in kernel.kind.alternatives(kernel)}
    return dataclasses.replace(kernel, variants=(*kernel.variants, *_verified(variants.values(), kernel.program)))


def shared(kernels: Iterable[Kernel]) -> tuple[Kernel, ...]:
    """The kernels, those of equal CUDA text with the entry points of the first of them.

    Kernels of one text differ in numbers that a launch passes, such as which columns of a product they read.
    """
    first: dict[object, tuple[Variant, ...]] = {}
    kernels = list(kernels)
    for k, kernel in enumerate(kernels):
        if kernel.variants:
            named = tuple(dataclasses.replace(v, symbol=f"entry_{n}") for n, v in enumerate(kernel.variants))
            text = "\n".join(kernel.kind.cuda(dataclasses.replace(kernel, name="kernel", variants=named)))
            variants = first.setdefault((kernel.kind.name, text, named), kernel.variants)
            kernels[k] = dataclasses.replace(kernel, variants=variants)
    return tuple(kernels)


def _kernel(function: Function, opsets: Mapping[str, int], shapes: Shapes) -> Kernel:
    first, kind = function.regions[0], function.regions[0].kind
    return Kernel(
        name=function.name,
        kind=kind,
        ops=tuple(node.op_type for node in first.nodes),
        program=function.meaning,
        variants=_verified(
            kind.entry_points(function.name, function.meaning, function.regions, opsets, shapes), function.meaning
        ),
        sites=function.sites,
        usual=_usual(function.regions, shapes) if kind.plans_shapes else (),
        cpu=all(kind.pays_on_cpu(region) and not is_quantized(region) for region in function.regions),
    )


def _verified(variants: Iterable[Variant], meaning: Meaning) -> tuple[Variant, ...]:
    """Entry points that the library will take. Raises ValueError naming the field that it would refuse."""
    verified = tuple(variants)
    for variant in verified:
        if broken := variant.problem(meaning):
            raise ValueError(f"entry point {variant.symbol}: {broken[0]}: {broken[1]}")
    return verified


def _usual(regions: Sequence[Region], shapes: Shapes) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """The inputs' shapes that most runs have at each place with symbolic dims, as far as they are known."""
    usual: dict[tuple[tuple[int, ...], ...], None] = {}
    for region in regions:
        dims = [shapes.dims(v) for v in region.inputs]
        sizes = [None if d is None else tuple(shapes.expected.of(size) for size in d) for d in dims]
        if dims != sizes and all(s is not None and None not in s and 0 not in s for s in sizes):
            usual[tuple(tuple(n for n in s if n is not None) for s in sizes if s is not None)] = None
    return tuple(usual)
