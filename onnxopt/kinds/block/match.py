"""Blocks: convolutions that read channels of a tensor in place, or write their channels of a Concat's result.

    open -> Split -> convolutions on one part -> Concat of the parts and their results
    Split -> a convolution on each part
    Concat(x, a) -> convolution -> b; Concat(x, a, b) -> convolution -> c; Concat(x, a, b, c)

A block begins with a Concat whose operands all are results of convolutions or Splits of these, with a Split whose parts
convolutions alone read, or with growing Concats (growing.py), whose other operands are copied. It takes in every
convolution that lies on a path between two of its own.

cuDNN's precompiled kernels are slow on channels of a wider tensor, slower than with a copy of them. The kernels that it
compiles at run time, for all activations but a ReLU, are not. So convolutions with SiLU alone read and write in place
(figures: benchmarks/notes: convolution layers), and with growing Concats those with any such activation. In a block
with a Concat they have their activation from fewer channels on (costs/data/convolution.json), with growing Concats from
any.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import onnx_ir as ir

from onnxopt.costs.convolution import numbers
from onnxopt.fusion import cost
from onnxopt.fusion.context import Context
from onnxopt.fusion.kernel import Traffic
from onnxopt.fusion.region import Kind, Region
from onnxopt.graph.refusal import Refusal
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.block.growing import Growing, growing
from onnxopt.kinds.block.slices import Channels, channels, is_concat, source_of_channels
from onnxopt.kinds.convolution.match import grown
from onnxopt.kinds.convolution.steps import GrowingConvolution, few_channels
from onnxopt.program.block import MAX_INPUTS, MAX_STEPS, Block, BlockCopy, BlockStep, Part

_CHANNELS_WITHOUT_CONCAT = numbers().channels_without_concat
_GAIN = numbers().growing_concats_gain
_ALIGNED = 16  # bytes, to which cuDNN's kernels want every pixel of a tensor


@dataclasses.dataclass(frozen=True)
class _Placed:
    """The tensor that a convolution's result is a part of, and its first channel there."""

    whole: ir.Value
    first: int


@dataclasses.dataclass(frozen=True)
class _Shared:
    """What Concats of a block join. placed: results of convolutions. copied: other values. concats: of the block."""

    placed: Mapping[ir.Value, _Placed]
    copied: Mapping[ir.Value, _Placed] = dataclasses.field(default_factory=dict)
    concats: Sequence[ir.Node] = ()

    def place(self, value: ir.Value) -> _Placed:
        """Where a value is: in the tensor that it is a part of, or one of its own."""
        return self.placed.get(value, _Placed(value, 0))


def find(context: Context, kind: Kind) -> tuple[list[Region], list[Refusal]]:
    """Regions of all blocks, and refusals of Concats of convolutions' results."""
    search = _Search(context, kind)
    for node in reversed(list(context.order)):  # the widest Concats first
        if is_concat(node, context.shapes):
            search.begin_with_growing(node)
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
        self._joined: dict[ir.Value, _Placed] = {}  # results of growing Concats, as parts of the widest one's
        self._why: dict[ir.Node, str] = {}  # why the widest of growing Concats is in no block
        self.regions: list[Region] = []
        self.refusals: list[Refusal] = []

    def begin_with_growing(self, widest: ir.Node) -> None:
        """Make a block of the convolutions whose results this Concat joins and narrower ones do, too."""
        whole: set[ir.Value] = set()
        copied: set[ir.Value] = set()

        def joins(node: ir.Node) -> bool:
            is_open = node in self._context.order and not self._context.is_owned(node)
            return is_open and node.outputs[0] not in whole and is_concat(node, self._shapes)

        while joins(widest):
            concats = growing(widest, self._shapes, joins)
            if concats is None:
                break
            joined = {node.outputs[0]: first for node, first in concats.narrower.items()}
            self._joined = {v: _Placed(widest.outputs[0], first) for v, first in joined.items()}
            shared = self._shared(concats, copied)
            begin = [self._of[v] for v in shared.placed]
            if not begin:
                break
            nodes = self._nodes(self._with_those_between(begin), shared)
            outside = [v for v in (*joined, *shared.placed) if not self._is_read_in(v, nodes)]
            if not outside:
                if reason := self._why_not_growing(shared) or self._take(begin, shared):
                    self._why[widest] = reason
                break
            whole |= joined.keys() & set(outside)
            copied |= shared.placed.keys() & set(outside)
        self._joined = {}

    def _shared(self, concats: Growing, copied: Iterable[ir.Value]) -> _Shared:
        """What growing Concats join. copied: results of convolutions to copy, as those are that cuDNN writes slowly."""
        result = concats.widest.outputs[0]
        parts = {v: (self._source_of(v), _Placed(result, first)) for v, first in concats.operands.items()}
        placed: dict[ir.Value, _Placed] = {}
        for whole in dict.fromkeys(part.whole for part, _ in parts.values()):
            place = self._place(whole, [(part, at) for part, at in parts.values() if part.whole is whole])
            if whole not in copied and isinstance(place, _Placed) and not _is_plain(self._of[whole]):
                placed[whole] = place
        others = {v: at for v, (part, at) in parts.items() if part.whole not in placed}
        return _Shared(placed, others, (*concats.narrower, concats.widest))

    def _why_not_growing(self, shared: _Shared) -> str | None:
        """The reason why the block's copies would cost about what the Concats do."""
        joined = sum(channels(n.outputs[0], self._shapes) or 0 for n in shared.concats)
        moved = sum(channels(v, self._shapes) or 0 for v in shared.copied)
        if moved * _GAIN <= joined:
            return None
        return f"In place, {moved} channels would be copied, and the Concats copy {joined}"

    def begin_with_concat(self, node: ir.Node) -> None:
        """Make a block of the convolutions whose results a Concat joins."""
        parts = [self._source_of(v) for v in node.inputs if v is not None]
        sources = list(dict.fromkeys(p.whole for p in parts))
        if self._context.is_owned(node) or not any(v in self._of for v in sources):
            return
        placed = self._all_placed(node, parts)
        if isinstance(placed, str):
            reason: str | None = placed
        else:
            reason = self._take([self._of[v] for v in placed], _Shared(placed, {}, [node]))
        if reason is not None:
            self.refusals.append(Refusal(node.name or "", "Concat", "", self._why.get(node, reason)))

    def begin_with_split(self, node: ir.Node) -> None:
        """Make a block of the convolutions that read the parts of a Split."""
        readers = dict.fromkeys(n for v in node.outputs for n in self._context.readers(v))
        owners = [self._owner.get(n) for n in readers]
        convolutions = list({id(c): c for c in owners if c is not None}.values())
        wide = all(c.channels[1] >= _CHANNELS_WITHOUT_CONCAT or c.is_product() for c in convolutions)
        splits_channels = all(self._source_of(v).node is node for v in node.outputs)
        outside = None in owners or any(v.is_graph_output() for v in node.outputs)
        if convolutions and wide and splits_channels and not outside:
            self._take(convolutions, _Shared({}))

    def _source_of(self, value: ir.Value) -> Channels:
        """The channels that a value is of another one."""
        source = source_of_channels(value, self._shapes, self._opset) or Channels(value, 0, 0)
        place = self._joined.get(source.whole)
        if place is None:
            return source
        node = source.whole.producer() if source.node is None else source.node
        return Channels(place.whole, place.first + source.first, source.count, node)

    def _all_placed(self, node: ir.Node, parts: Sequence[Channels]) -> dict[ir.Value, _Placed] | str:
        """Where in a Concat's result each convolution's result lies, or the reason why one lies in no single place."""
        at = [sum(part.count for part in parts[:k]) for k in range(len(parts))]
        placed: dict[ir.Value, _Placed] = {}
        for whole in dict.fromkeys(part.whole for part in parts):
            if whole not in self._of:
                return f"`{whole.name}` is no result of a convolution that could write its channels of `{node.name}`"
            found = [
                (p, _Placed(node.outputs[0], first)) for p, first in zip(parts, at, strict=True) if p.whole is whole
            ]
            place = self._place(whole, found)
            if isinstance(place, str):
                return place
            placed[whole] = place
        return placed

    def _place(self, whole: ir.Value, parts: Sequence[tuple[Channels, _Placed]]) -> _Placed | str:
        """Where a convolution writes its result, whose parts are at these places, or why in no single place."""
        places = {_Placed(at.whole, at.first - part.first) for part, at in parts}
        if len(places) != 1:
            return f"The Concat reads channels of `{whole.name}` twice or in another order"
        if sum(part.count for part, _ in parts) != channels(whole, self._shapes):
            return f"The Concat leaves out channels of `{whole.name}`"
        if whole not in self._of or whole.is_graph_output():
            return f"`{whole.name}` is read elsewhere too, so it must be a tensor of its own"
        return places.pop()

    def _nodes(self, members: Sequence[GrowingConvolution], shared: _Shared) -> set[ir.Node]:
        """Those of the convolutions, the Concats, and the Splits and Slices that these alone read."""
        nodes = {*(n for c in members for n in c.nodes), *shared.concats}
        values = [v for c in members for v in c.operands()]
        values += [v for n in shared.concats for v in n.inputs if v is not None]
        cuts = {source.node for source in map(self._source_of, values) if source.node is not None}
        return nodes | {cut for cut in cuts if all(self._is_read_in(v, nodes) for v in cut.outputs)}

    def _take(self, begin: Sequence[GrowingConvolution], shared: _Shared) -> str | None:
        """Make a block of these convolutions and those between them. Returns the reason where there is none."""
        members = self._with_those_between(begin)
        nodes = self._nodes(members, shared)
        if any(self._context.is_owned(n) for n in nodes):
            return "Another kernel takes a part of it"
        if reason := self._why_not(members, nodes, shared):
            return reason
        ordered = sorted(nodes, key=self._context.order.__getitem__)
        if self._context.makes_cycle(ordered):
            return "Other nodes between the convolutions read some of their results and compute others"
        region = self._region(members, ordered, shared)
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
        depends = dict.fromkeys((*(c.output for c in begin), *(at.whole for at in self._joined.values())), True)
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
                if depends.get(whole, False) and whole in self._of and whole not in members:
                    members[whole] = self._of[whole]
                    waiting.append(self._of[whole])
        return sorted(members.values(), key=lambda c: self._context.order[c.conv])

    def _is_read_in(self, value: ir.Value, nodes: set[ir.Node]) -> bool:
        """Whether these nodes alone read a value."""
        return not value.is_graph_output() and nodes.issuperset(self._context.readers(value))

    def _why_not(self, members: Sequence[GrowingConvolution], nodes: set[ir.Node], shared: _Shared) -> str | None:
        """The reason why cuDNN should not run these convolutions in place."""
        if len(members) > MAX_STEPS:
            return f"The block would have {len(members)} convolutions; the limit is {MAX_STEPS}"
        for value in shared.placed:
            for reader in self._context.readers(value):
                if reader not in nodes:
                    return f"{reader.op_type} reads `{value.name}` too, so it must be a tensor of its own"
        for convolution in members:
            read = [self._source_of(v) for v in (convolution.x, convolution.residual) if v is not None]
            parts = [(p.first, p.whole) for p in read if p.node in nodes and p.whole not in shared.placed]
            placed = [(p, shared.placed[p.whole]) for p in read if p.whole in shared.placed]
            parts += [(place.first + p.first, place.whole) for p, place in placed]
            if place := shared.placed.get(convolution.output):
                parts.append((place.first, place.whole))
            name, grows = convolution.activation.name, len(shared.concats) > 1
            if not grows and (few := few_channels(convolution, name)):
                return few
            if not parts:
                continue
            if _is_plain(convolution) if grows else name != "silu":
                return "cuDNN's precompiled kernels are slow on channels of a wider tensor"
            if unaligned := self._unaligned(parts):
                return unaligned
        return None

    def _unaligned(self, parts: Iterable[tuple[int, ir.Value]]) -> str | None:
        """The reason why cuDNN would not read or write these channels of tensors, by the first one of each."""
        for first, whole in parts:
            dtype, width = self._shapes.dtype(whole), channels(whole, self._shapes) or 1
            if dtype is None or first * dtype.size % _ALIGNED or width * dtype.size % _ALIGNED:
                return f"Channel {first} of `{whole.name}` does not begin at a multiple of {_ALIGNED} bytes"
        return None

    def _region(self, members: Sequence[GrowingConvolution], nodes: Sequence[ir.Node], shared: _Shared) -> Region | str:
        inside, outputs = {v for n in nodes for v in n.outputs}, self._context.outputs_of(nodes)
        copied = {self._operand(v, inside).whole: v for v in shared.copied}
        if computed := [whole for whole in copied if whole in inside]:
            return f"`{computed[0].name}` is read elsewhere too, so it must be a tensor of its own"
        operands = [self._operand(v, inside).whole for c in members for v in c.operands()]
        inputs = [v for v in dict.fromkeys([*operands, *copied]) if v not in inside]
        if (count := max(len(inputs), len(shared.copied))) > MAX_INPUTS:
            return f"The block would read {count} tensors; the limit is {MAX_INPUTS}"
        written = list(dict.fromkeys([*outputs, *(shared.place(c.output).whole for c in members)]))
        numbers = {v: k for k, v in enumerate([*inputs, *written])}

        def of(place: _Placed, count: int) -> Part:
            return Part(numbers[place.whole], place.first, count, channels(place.whole, self._shapes) or 0)

        def part(value: ir.Value) -> Part:
            operand = self._operand(value, inside)
            place = shared.place(operand.whole)
            return of(_Placed(place.whole, place.first + operand.first), operand.count)

        read, result = (tuple(_dtype(v, self._shapes) for v in values) for values in (inputs, outputs))
        steps = [
            BlockStep(
                part(c.x),
                numbers[c.w],
                part(c.output),
                bias=None if c.bias is None else numbers[c.bias],
                residual=None if c.residual is None else part(c.residual),
                slope=None if c.activation.slope is None else numbers[c.activation.slope],
                **c.operation(),
            )
            for c in members
        ]
        copies = [BlockCopy(source, of(at, source.channels)) for v, at in shared.copied.items() for source in [part(v)]]
        widths = [channels(v, self._shapes) for v in written]
        meaning = Block(read, result, tuple(w for w in widths if w is not None), tuple(steps), tuple(copies))
        meaning.verify()
        traffic = self._traffic(members, nodes, shared)
        return Region(tuple(nodes), tuple(inputs), tuple(outputs), traffic, self._kind, meaning)

    def _operand(self, value: ir.Value, inside: Iterable[ir.Value]) -> Channels:
        """The channels that a value is, of another one where the node that takes them is in the block."""
        source = self._source_of(value)
        if source.node is not None and value not in inside:
            return Channels(value, 0, source.count)
        return source

    def _traffic(self, members: Sequence[GrowingConvolution], nodes: Sequence[ir.Node], shared: _Shared) -> Traffic:
        """Each convolution and each copy reads and writes the channels that it needs."""
        before = cost.region_traffic(nodes, (), (), self._shapes)
        values = [v for c in members for v in (*dict.fromkeys(c.operands()), c.output)]
        values += [*shared.copied, *shared.copied]
        sizes = [self._shapes.bytes(v) for v in values]
        after = None if None in sizes else sum(s for s in sizes if s is not None)
        return dataclasses.replace(before, bytes_after=after, launches_after=len(members) + len(shared.copied))


def _runs_in_block(convolution: GrowingConvolution) -> bool:
    """Whether a step of a block can be this convolution: it has no depth and is no ConvTranspose."""
    return not convolution.is_transposed and convolution.window.depth is None


def _is_plain(convolution: GrowingConvolution) -> bool:
    """Whether cuDNN has a precompiled kernel for it, with its activation."""
    return convolution.activation.name in ("none", "relu")


def _dtype(value: ir.Value, shapes: Shapes) -> str:
    dtype = shapes.dtype(value)
    return "" if dtype is None else dtype.name
