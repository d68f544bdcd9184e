"""The kind of kernels that are depthwise convolutions in NHWC, with a prologue and an epilogue.

    y = f(DepthwiseConv(g(x)), residual, one element a channel, ...)
    a, b = Split(DepthwiseConv(x))    y = f(a, b, ...)               halves of the channels: a * b, Gelu(a) * b

The kernel applies g to every input that it loads, and loads an input for each tile of outputs that sees it. So nodes
upstream become part of the region only where that is predicted to take less time than a kernel of their own
(costs/data/depthwise.json).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import onnx_ir as ir

from onnxopt.costs.depthwise import numbers
from onnxopt.fusion.context import Context
from onnxopt.fusion.core_growth import CoreKind, Growth
from onnxopt.fusion.core_lowering import CoreMatch
from onnxopt.fusion.kernel import Meaning
from onnxopt.fusion.region import Kernel, Region
from onnxopt.graph.refusal import Refusal
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.depthwise import cuda, entry_points, expanded
from onnxopt.kinds.depthwise.match import core, expanded_core, expansion, gated_core, has_groups_of_one
from onnxopt.program.depthwise import Depthwise
from onnxopt.program.schema import Variant

_NOMINAL = numbers().nominal_elements
_ENDS_WITH_RELU = frozenset({"Transpose", "MatMul", "Gemm"})  # operators whose kernels can end with bias and Relu
_MIN_ACTIVATED = numbers().min_activated_channels


class DepthwiseKind(CoreKind):
    """A depthwise convolution with a prologue and an epilogue, or with a 1x1 convolution upstream of the prologue."""

    name = "depthwise"
    meaning = Depthwise
    operators = frozenset({"Conv"})
    whole_prologue = True
    constant_prologue = True

    def match(self, node: ir.Node, opsets: Mapping[str, int], shapes: Shapes) -> CoreMatch | str:
        return core(node, shapes)

    def match_within(self, nodes: Sequence[ir.Node], opsets: Mapping[str, int], shapes: Shapes) -> CoreMatch | str:
        *first, conv = filter(self.is_core, nodes)
        match = core(conv, shapes)
        if not isinstance(match, str) and any(n.op_type == "Split" and n.inputs[0] is match.y for n in nodes):
            match = gated_core(match, shapes) or "The Split is not one into halves"
        if isinstance(match, str) or not first:
            return match
        wide = expansion(first[0], shapes) if len(first) == 1 else f"{len(first) + 1} convolutions"
        return wide if isinstance(wide, str) else expanded_core(match, wide, shapes)

    def meaning_of(self, match: CoreMatch, inputs: Sequence[ir.Value], fields: dict[str, Any]) -> Meaning:
        wide = match.fields.get("expansion")
        meaning = super().meaning_of(match, inputs, fields | ({} if wide is None else {"expansion": wide(inputs)}))
        if (match.half is not None) != cast(Depthwise, meaning).gated:
            raise ValueError("The epilogue does not read both halves of the channels")
        return meaning

    def refuses(self, node: ir.Node, shapes: Shapes) -> bool:
        return has_groups_of_one(node, shapes)

    def find(self, context: Context) -> tuple[list[Region], list[Refusal]]:
        gated = list(self._gated(context))
        regions, refusals = super().find(context)
        return [*gated, *regions], refusals

    def _gated(self, context: Context) -> Iterator[Region]:
        """A region for every depthwise convolution whose halves one epilogue reads."""
        for node in list(context.order):
            match = core(node, context.shapes) if self.is_core(node) and not context.is_owned(node) else ""
            halves = None if isinstance(match, str) else gated_core(match, context.shapes)
            if halves is None or any(map(context.is_owned, halves.nodes)):
                continue
            growth = Growth(context, self, halves)
            nodes = growth.with_epilogue(growth.in_order(halves.nodes))
            if growth.fits(nodes):
                region = growth.region_of(nodes)
                context.take([region.nodes])
                yield region

    def find_early(self, context: Context) -> list[Region]:
        """A region for every depthwise convolution of what a 1x1 convolution widens, where one kernel pays."""
        regions: list[Region] = []
        for node in list(context.order):
            if not self.is_core(node) or context.is_owned(node):
                continue
            match = core(node, context.shapes)
            if isinstance(match, str) or any(map(context.is_owned, match.nodes)):
                continue
            region = self._expanded(Growth(context, self, match))
            if region is not None:
                context.take([region.nodes])
                regions.append(region)
        return regions

    def _expanded(self, growth: Growth) -> Region | None:
        """The region with a 1x1 convolution upstream, None where there is none or it does not pay."""
        match, context = growth.match, growth.context
        nodes, source = [([], match.x), *growth.prologues()][-1]
        wide = expanded.producer_of(source, match, nodes, context)
        if wide is None:
            return None
        growth.match = expanded_core(match, wide, context.shapes)
        start = growth.in_order([*wide.nodes, *nodes, *match.nodes])
        if not growth.fits(start):
            return None
        region = growth.region_of(start)
        dims = (context.shapes.usual(match.x) or ())[:3]
        if not expanded.pays(cast(Depthwise, region.meaning), dims):
            return None
        return growth.region_of(growth.with_epilogue(start))

    def prologue_pays(self, match: CoreMatch, nodes: Sequence[ir.Node], source: ir.Value, context: Context) -> bool:
        producer, shapes = source.producer(), context.shapes
        if (
            {n.op_type for n in nodes} <= {"Relu", "Add"}
            and producer is not None
            and producer.op_type in _ENDS_WITH_RELU
        ):
            return False  # that producer's kernel applies it at no cost
        if producer is not None and _is_activated(producer, shapes):
            return False
        together = sorted([*nodes, *match.nodes], key=context.order.__getitem__)
        inputs = self.inputs_of(match, together, shapes)
        try:
            meaning = cast(Depthwise, context.lowered(self.lower_nodes, together, inputs, [match.y]))
        except ValueError:
            return False
        assert meaning.prologue is not None
        down, across = meaning.window.strides
        elements = shapes.elements(match.x) or _NOMINAL
        size = 2 if meaning.dtype != "float32" else 4
        dims = shapes.dims(match.y)
        width = dims[-2] if dims is not None and isinstance(dims[-2], int) else None
        outputs = shapes.elements(match.y) or elements // (down * across)
        inside = entry_points.prologue_microseconds(meaning, meaning.prologue.program.cost, outputs, width)
        return inside < entry_points.microseconds_of_pass(2 * elements * size)

    def entry_points(
        self, name: str, meaning: Meaning, regions: Sequence[Region], opsets: Mapping[str, int], shapes: Shapes
    ) -> tuple[Variant, ...]:
        return entry_points.choose(name, cast(Depthwise, meaning), regions, shapes)

    def others(self, kernel: Kernel) -> Iterable[Variant]:
        return entry_points.others(kernel.name, cast(Depthwise, kernel.program))

    def headers(self, kernels: Sequence[Kernel]) -> list[str]:
        return [cuda.HEADER]

    def cuda(self, kernel: Kernel) -> list[str]:
        return cuda.lines(kernel)


def _is_activated(node: ir.Node, shapes: Shapes) -> bool:
    """Whether a node ends a convolution whose own kernel applies what follows."""
    conv = node.inputs[0].producer() if node.op_type == "Transpose" and node.inputs[0] is not None else None
    weight = conv.inputs[1] if conv is not None and conv.op_type == "Conv" else None
    dims = shapes.dims(weight) if weight is not None else None
    return dims is not None and isinstance(dims[1], int) and dims[1] >= _MIN_ACTIVATED


DEPTHWISE = DepthwiseKind()
