"""Blocks: convolutions that read channels of a tensor in place, or write their channels of a Concat's result.

    open -> Split -> convolutions on one part -> Concat of the parts and their results
    Split -> a convolution on each part

A block begins with a Concat whose operands all are results of convolutions or Splits of these, or with a Split whose
parts convolutions alone read. It takes in every convolution that lies on a path between two of its own.

cuDNN's precompiled kernels are slow on channels of a wider tensor, slower than with a copy of them. The kernels that it
compiles at run time, for SiLU, are not. So convolutions with SiLU alone read and write in place (figures:
benchmarks/notes: convolution layers). In a block with a Concat they have their SiLU from fewer channels on
(costs/data/convolution.json).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import onnx_ir as ir

from onnxopt.costs.convolution import numbers
from onnxopt.fusion import cost
from onnxopt.fusion.context import Context
from onnxopt.fusion.kernel import Traffic
from onnxopt.fusion.region import Kind, Region
from onnxopt.graph.refusal import Refusal
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.block.slices import Channels, channels, is_concat, source_of_channels
from onnxopt.kinds.convolution.match import grown
from onnxopt.kinds.convolution.steps import GrowingConvolution
from onnxopt.program.block import MAX_INPUTS, MAX_STEPS, Block, BlockStep, Part

_CHANNELS_WITHOUT_CONCAT = numbers().channels_without_concat
_ALIGNED = 16  # bytes, to which cuDNN's kernels want every pixel of a tensor


@dataclasses.dataclass(frozen=True)
class _Placed:
    """The tensor that a convolution's result is a part of, and its first channel there."""

    whole: ir.Value
    first: int


def find(context: Context, kind: Kind) -> tuple[list[Region], list[Refusal]]:
    """Regions of all blocks, and refusals of Concats of convolutions' results."""
    search = _Search(context, kind)
    for node in list(context.order):
        if is_concat(node, context.shapes):
            search.begin_with_concat(node)
    for node in list(context.order):
        if node.op_type in ("Split", "Slice") and node.domain == "":
            search.begin_with_split(node)
    return search.regions, search.refusals


class _Search:
    """The blocks of one graph while they are found."""

    def __init__(self, context: Context, kind: Kind):
        self._context, self._kind, self._shapes = context, kind, context.shapes
        convolutions = filter(_runs_in_block, grown(context, [], in_block=True))
        self._of = {c.output: c for c in convolutions}  # that are in no block yet, by result
        self._owner = {n: c for c in self._of.values() for n in c.nodes}
        self._opset = context.opsets.get("", 0)
        self.regions: list[Region] = []
        self.refusals: list[Refusal] = []

    def begin_with_concat(self, node: ir.Node) -> None:
        """Make a block of the convolutions whose results a Concat joins."""
        parts = [self._source_of(v) for v in node.inputs if v is not None]
        sources = list(dict.fromkeys(p.whole for p in parts))
        if not any(v in self._of for v in sources):
            return
        placed = self._placed(node, parts)
        reason = placed if isinstance(placed, str) else self._take([self._of[v] for v in placed], placed, node)
        if reason is not None:
            self.refusals.append(Refusal(node.name or "", "Concat", "", reason))

    def begin_with_split(self, node: ir.Node) -> None:
        """Make a block of the convolutions that read the parts of a Split."""
        readers = dict.fromkeys(n for v in node.outputs for n in self._context.readers(v))
        owners = [self._owner.get(n) for n in readers]
        convolutions = list({id(c): c for c in owners if c is not None}.values())
        wide = all(c.channels[1] >= _CHANNELS_WITHOUT_CONCAT or c.is_product() for c in convolutions)
        splits_channels = all(self._source_of(v).node is node for v in node.outputs)
        outside = None in owners or any(v.is_graph_output() for v in node.outputs)
        if convolutions and wide and splits_channels and not outside:
            self._take(convolutions, {}, node)

    def _source_of(self, value: ir.Value) -> Channels:
        """The channels that a value is of another one."""
        source = source_of_channels(value, self._shapes, self._opset)
        return source if source is not None else Channels(value, 0, 0)

    def _placed(self, node: ir.Node, parts: Sequence[Channels]) -> dict[ir.Value, _Placed] | str:
        """Where in a Concat's result each convolution's result lies, or the reason why one lies in no single place."""
        placed: dict[ir.Value, _Placed] = {}
        counts: dict[ir.Value, int] = {}
        at = 0
        for part in parts:
            name = part.whole.name
            if part.whole not in self._of:
                return f"`{name}` is no result of a convolution that could write its channels of `{node.name}`"
            place = _Placed(node.outputs[0], at - part.first)
            if placed.setdefault(part.whole, place) != place:
                return f"The Concat reads channels of `{name}` twice or in another order"
            counts[part.whole] = counts.get(part.whole, 0) + part.count
            at += part.count
        for value, count in counts.items():
            if count != channels(value, self._shapes):
                return f"The Concat leaves out channels of `{value.name}`"
            if value.is_graph_output():
                return f"`{value.name}` is read elsewhere too, so it must be a tensor of its own"
        return placed

    def _take(
        self, begin: Sequence[GrowingConvolution], placed: dict[ir.Value, _Placed], around: ir.Node
    ) -> str | None:
        """Make a block of these convolutions and those between them. Returns the reason where there is none."""
        members = self._with_those_between(begin)
        nodes = {n for c in members for n in c.nodes}
        if around.op_type == "Concat":
            nodes.add(around)
        nodes |= {slice_node for slice_node in self._cuts(members, around) if self._is_read_in(slice_node, nodes)}
        if any(self._context.is_owned(n) for n in nodes):
            return "Another kernel takes a part of it"
        if reason := self._why_not(members, nodes, placed):
            return reason
        ordered = sorted(nodes, key=self._context.order.__getitem__)
        if self._context.makes_cycle(ordered):
            return "Other nodes between the convolutions read some of their results and compute others"
        region = self._region(members, ordered, placed)
        if isinstance(region, str):
            return region
        region.verify()
        self.regions.append(region)
        self._context.contract(region.nodes)
        for convolution in members:
            del self._of[convolution.output]
            for node in convolution.nodes:
                del self._owner[node]
        return None

    def _with_those_between(self, begin: Sequence[GrowingConvolution]) -> list[GrowingConvolution]:
        """These convolutions and those on paths between them, through convolutions and Splits alone, in order."""
        first = min(self._context.order[c.conv] for c in begin)
        depends: dict[ir.Value, bool] = {c.output: True for c in begin}
        members = {c.output: c for c in begin}
        pending = [c for c in self._of.values() if self._context.order[c.conv] > first]
        for convolution in sorted(pending, key=lambda c: self._context.order[c.conv]):
            if convolution.output not in depends:
                reads = (self._source_of(v).whole for v in convolution.operands())
                depends[convolution.output] = any(depends.get(v, False) for v in reads)
        waiting = list(begin)
        while waiting:
            for value in waiting.pop().operands():
                whole = self._source_of(value).whole
                if depends.get(whole, False) and whole not in members:
                    members[whole] = self._of[whole]
                    waiting.append(self._of[whole])
        return sorted(members.values(), key=lambda c: self._context.order[c.conv])

    def _is_read_in(self, slice_node: ir.Node, nodes: set[ir.Node]) -> bool:
        """Whether these nodes alone read the results of a Split or Slice."""
        return all(not v.is_graph_output() and nodes.issuperset(self._context.readers(v)) for v in slice_node.outputs)

    def _cuts(self, members: Sequence[GrowingConvolution], around: ir.Node) -> set[ir.Node]:
        """The Splits and Slices that these convolutions or the Concat read."""
        values = [v for c in members for v in c.operands()]
        values += [v for v in around.inputs if v is not None] if around.op_type == "Concat" else []
        return {source.node for source in map(self._source_of, values) if source.node is not None}

    def _why_not(
        self, members: Sequence[GrowingConvolution], nodes: set[ir.Node], placed: dict[ir.Value, _Placed]
    ) -> str | None:
        """The reason why cuDNN should not run these convolutions in place."""
        if len(members) > MAX_STEPS:
            return f"The block would have {len(members)} convolutions; the limit is {MAX_STEPS}"
        for value in placed:
            for reader in self._context.readers(value):
                if reader not in nodes:
                    return f"{reader.op_type} reads `{value.name}` too, so it must be a tensor of its own"
        for convolution in members:
            read = [self._source_of(v) for v in (convolution.x, convolution.residual) if v is not None]
            parts = [(p.first, p.whole) for p in read if p.node in nodes and p.whole not in placed]
            parts += [(placed[p.whole].first + p.first, placed[p.whole].whole) for p in read if p.whole in placed]
            if convolution.output in placed:
                parts.append((placed[convolution.output].first, placed[convolution.output].whole))
            if not parts:
                continue
            if convolution.activation.name != "silu":
                return "cuDNN's precompiled kernels are slow on channels of a wider tensor"
            for first, whole in parts:
                dtype, width = self._shapes.dtype(whole), channels(whole, self._shapes) or 1
                if dtype is None or first * dtype.size % _ALIGNED or width * dtype.size % _ALIGNED:
                    return f"Channel {first} of `{whole.name}` does not begin at a multiple of {_ALIGNED} bytes"
        return None

    def _region(
        self, members: Sequence[GrowingConvolution], nodes: Sequence[ir.Node], placed: dict[ir.Value, _Placed]
    ) -> Region | str:
        inside, outputs = {v for n in nodes for v in n.outputs}, self._context.outputs_of(nodes)
        operands = [self._operand(v, inside).whole for c in members for v in c.operands()]
        inputs = [v for v in dict.fromkeys(operands) if v not in inside]
        if len(inputs) > MAX_INPUTS:
            return f"The block would read {len(inputs)} tensors; the limit is {MAX_INPUTS}"
        written = list(dict.fromkeys([*outputs, *(self._place(c.output, placed).whole for c in members)]))
        numbers = {v: k for k, v in enumerate([*inputs, *written])}

        def part(value: ir.Value) -> Part:
            operand = self._operand(value, inside)
            place = self._place(operand.whole, placed)
            of = channels(place.whole, self._shapes) or 0
            return Part(numbers[place.whole], place.first + operand.first, operand.count, of)

        dtypes = [tuple(_dtype(v, self._shapes) for v in values) for values in (inputs, outputs)]
        steps = [
            BlockStep(
                part(c.x),
                numbers[c.w],
                part(c.output),
                bias=None if c.bias is None else numbers[c.bias],
                residual=None if c.residual is None else part(c.residual),
                **c.operation(),
            )
            for c in members
        ]
        widths = [channels(v, self._shapes) for v in written]
        meaning = Block(dtypes[0], dtypes[1], tuple(w for w in widths if w is not None), tuple(steps))
        meaning.verify()
        traffic = self._traffic(members, nodes)
        return Region(tuple(nodes), tuple(inputs), tuple(outputs), traffic, self._kind, meaning)

    def _operand(self, value: ir.Value, inside: Iterable[ir.Value]) -> Channels:
        """The channels that a value is, of another one where the node that takes them is in the block."""
        source = self._source_of(value)
        if source.node is not None and value not in inside:
            return Channels(value, 0, source.count)
        return source

    def _place(self, value: ir.Value, placed: dict[ir.Value, _Placed]) -> _Placed:
        return placed.get(value, _Placed(value, 0))

    def _traffic(self, members: Sequence[GrowingConvolution], nodes: Sequence[ir.Node]) -> Traffic:
        """Each convolution reads and writes the channels that it needs."""
        before = cost.region_traffic(nodes, (), (), self._shapes)
        sizes = [self._shapes.bytes(v) for c in members for v in (*dict.fromkeys(c.operands()), c.output)]
        after = None if None in sizes else sum(s for s in sizes if s is not None)
        return dataclasses.replace(before, bytes_after=after, launches_after=len(members))


def _runs_in_block(convolution: GrowingConvolution) -> bool:
    """Whether a step of a block can be this convolution: it has no slopes and no depth and is no ConvTranspose."""
    plain = not convolution.is_transposed and convolution.window.depth is None
    return plain and convolution.activation.slope is None


def _dtype(value: ir.Value, shapes: Shapes) -> str:
    dtype = shapes.dtype(value)
    return "" if dtype is None else dtype.name
