"""Lowering of cores: an operator with the elementwise nodes upstream and downstream of it becomes a kernel's meaning.

    y = epilogue(core(prologue(x)), operands of the shape of y, one element a channel, ...)

A kind says what it recognises around its operator (`match`) and which class has the meaning; all else is here.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import onnx_ir as ir

from onnxopt.fusion.kernel import Meaning
from onnxopt.fusion.operands import constant, storage
from onnxopt.fusion.programs import program_of
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.program.core import HALF, Transform, TransformRead
from onnxopt.program.expressions import Expr


@dataclasses.dataclass(frozen=True)
class Step:
    """What an epilogue begins with: the core's result is multiplied with an operand ("mul"), or it is added ("add").
    form: how the operand is read (program/core.py)."""

    op: str
    operand: ir.Value
    form: str


@dataclasses.dataclass(frozen=True)
class CoreMatch:
    """What a kind recognises around one node.

    nodes: of the core, in topological order; those of `layout` the model did not have, so they cost nothing. x: what
    the core reads, and a prologue computes. y: what the core computes, and an epilogue reads. operands: the values that
    the meaning's fields of these names are positions of. first: the region's first inputs, in their order. fields:
    other fields of the meaning. channels, y_channels: the axis of channels in x, and in y. entry: where the core's own
    nodes compute what a prologue reads: that value, and the one that the region reads for it. steps: what the epilogue
    begins with. half: what the core computes beside y where each is half of its channels; x then has twice as many.
    """

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    y: ir.Value
    operands: Mapping[str, ir.Value | None]
    first: tuple[ir.Value | None, ...]
    fields: Mapping[str, Any]
    layout: tuple[ir.Node, ...] = ()
    channels: int = -1
    y_channels: int = -1
    entry: tuple[ir.Value, ir.Value] | None = None
    steps: tuple[Step, ...] = ()
    half: ir.Value | None = None


@dataclasses.dataclass(frozen=True)
class RowSlice:
    """C elements from `first` on of every row of `row` elements of source, which `nodes` compute."""

    source: ir.Value
    row: int
    first: int
    nodes: tuple[ir.Node, ...]


class CoreLowering(abc.ABC):
    """How cores of a kind are recognised and lowered; a base of their kinds (fusion/core_growth.py).

    meaning: the class of the meaning. operators: what a core is around. has_transforms: whether the meaning has an
    epilogue and a prologue. forms: by which these read (program/core.py). rounds_prologue: whether a prologue's result
    is stored in x's dtype, else in float32.
    by_sample: ranks of results beside which operands are read by sample; others have images that are planes of one.
    """

    meaning: ClassVar[type[Any]]
    operators: ClassVar[frozenset[str]]
    has_transforms: ClassVar[bool] = True
    rounds_prologue: ClassVar[bool] = True
    by_sample: ClassVar[tuple[int, ...]] = (4,)

    @abc.abstractmethod
    def match(self, node: ir.Node, opsets: Mapping[str, int], shapes: Shapes) -> CoreMatch | str:
        """The core around a node of one of the operators, or the reason why no kernel of this kind can run it."""

    def match_within(self, nodes: Sequence[ir.Node], opsets: Mapping[str, int], shapes: Shapes) -> CoreMatch | str:
        """The core of a region's nodes, or the reason why there is none."""
        cores = [n for n in nodes if self.is_core(n)]
        if len(cores) != 1:
            return f"The region holds {len(cores)} of {', '.join(sorted(self.operators))}"
        return self.match(cores[0], opsets, shapes)

    def is_core(self, node: ir.Node) -> bool:
        return node.op_type in self.operators and node.domain == ""

    def row_slice(self, value: ir.Value, shapes: Shapes) -> RowSlice | None:
        """The slice of a row that a value is, where the kernel can read it there; None for other values."""
        return None

    def meaning_of(self, match: CoreMatch, inputs: Sequence[ir.Value], fields: dict[str, Any]) -> Meaning:
        """The meaning with these fields."""
        meaning: Meaning = self.meaning(**fields)
        return meaning

    def lower_nodes(
        self,
        nodes: Sequence[ir.Node],
        inputs: Sequence[ir.Value],
        outputs: Sequence[ir.Value],
        opsets: Mapping[str, int],
        shapes: Shapes,
    ) -> Meaning:
        """The meaning of nodes in topological order, a core and elementwise ones, that read `inputs` and constants.

        Raises ValueError, with the reason, where the nodes cannot be one kernel.
        """
        match = self.match_within(nodes, opsets, shapes)
        if isinstance(match, str):
            raise ValueError(match)
        if len(outputs) != 1:
            raise ValueError(f"The kernel has {len(outputs)} results")
        fields: dict[str, Any] = {
            "inputs": tuple(storage(v, shapes).name for v in inputs),
            "outputs": (storage(outputs[0], shapes).name,),
            **match.fields,
        }
        fields |= {name: None if v is None else _position(v, inputs) for name, v in match.operands.items()}
        if self.has_transforms:
            slices = self._slices(match, nodes, shapes)
            fields |= _Transforms(match, list(inputs), slices, opsets, shapes, self.by_sample).fields(
                _without(nodes, match.nodes, slices), outputs[0], self.rounds_prologue
            )
        meaning = self.meaning_of(match, inputs, fields)
        meaning.verify()
        return meaning

    def inputs_of(self, match: CoreMatch, nodes: Sequence[ir.Node], shapes: Shapes) -> list[ir.Value]:
        """Values that a region reads from outside: those of the core, then others in order of first use.

        Scalar constants of elementwise nodes are left out.
        """
        slices = self._slices(match, nodes, shapes)
        others = _without(nodes, match.nodes, slices)
        inside = {v for n in nodes for v in n.outputs if v not in slices}
        read = (v for n in others for v in n.inputs if v is not None and constant(v) is None)
        first = [v for v in match.first if v is not None]
        values = [v for v in dict.fromkeys([*first, *read]) if v not in inside]
        return list(dict.fromkeys(slices[v].source if v in slices else v for v in values))

    def _slices(self, match: CoreMatch, nodes: Sequence[ir.Node], shapes: Shapes) -> dict[ir.Value, RowSlice]:
        """The slices of rows among the nodes, by the values that others of them read."""
        inside = set(nodes)
        read = dict.fromkeys(v for n in nodes if n not in match.nodes for v in n.inputs if v is not None)
        slices = {value: self.row_slice(value, shapes) for value in read}
        return {v: s for v, s in slices.items() if s is not None and inside.issuperset(s.nodes)}


def prologue_nodes(x: ir.Value, nodes: Sequence[ir.Node]) -> list[ir.Node]:
    """Those of the nodes that compute x, in their order."""
    among = set(nodes)
    upstream: set[ir.Node] = set()
    pending: list[ir.Value] = [x]
    while pending:
        node = pending.pop().producer()
        if node is not None and node in among and node not in upstream:
            upstream.add(node)
            pending += [v for v in node.inputs if v is not None]
    return [n for n in nodes if n in upstream]


def read_outside(nodes: Sequence[ir.Node]) -> list[ir.Value]:
    """What the nodes read that none of them computes, without scalar constants, in order of first use."""
    inside = {v for n in nodes for v in n.outputs}
    read = dict.fromkeys(v for n in nodes for v in n.inputs if v is not None and v not in inside)
    return [v for v in read if constant(v) is None]


@dataclasses.dataclass(frozen=True)
class _Transforms:
    """Lowers the nodes around one core."""

    match: CoreMatch
    inputs: list[ir.Value]
    slices: Mapping[ir.Value, RowSlice]
    opsets: Mapping[str, int]
    shapes: Shapes
    by_sample: tuple[int, ...]

    def fields(self, nodes: Sequence[ir.Node], result: ir.Value, rounds: bool) -> dict[str, Any]:
        """The meaning's fields x, prologue and epilogue. nodes: elementwise ones around the core."""
        match, shapes = self.match, self.shapes
        upstream = prologue_nodes(match.x, nodes)
        source, prologue = match.x, None
        if upstream:
            source = self._source(upstream)
            stored = storage(match.x, shapes).name if rounds else "float32"
            prologue = self._transform(
                upstream, (source, storage(source, shapes).name), (match.x, stored), match.x, match.channels
            )
        x = source
        if match.entry is not None:
            computed, x = match.entry
            if source is not computed:
                raise ValueError(f"`{match.x.name}` is no function of `{computed.name}` alone")
        downstream = [n for n in nodes if n not in upstream]
        stored = storage(result, shapes).name
        epilogue = self._transform(
            downstream, (match.y, "float32"), (result, stored), match.y, match.y_channels, match.steps
        )
        return {"x": _position(x, self.inputs), "prologue": prologue, "epilogue": epilogue}

    def _source(self, nodes: Sequence[ir.Node]) -> ir.Value:
        """The one tensor of x's shape that the prologue's nodes read. ValueError where it is not one."""
        whole = [v for v in read_outside(nodes) if self.shapes.same(v, self.match.x)]
        if len(whole) != 1:
            raise ValueError(f"The nodes that compute `{self.match.x.name}` read {len(whole)} tensors of its shape")
        return whole[0]

    def _transform(
        self,
        nodes: Sequence[ir.Node],
        source: tuple[ir.Value, str],
        result: tuple[ir.Value, str],
        like: ir.Value,
        channels: int,
        steps: Sequence[Step] = (),
    ) -> Transform:
        """like: of the shape that all operands are broadcast against. channels: its axis of channels."""
        others = [v for v in read_outside(nodes) if v is not source[0]]
        reads = [TransformRead(_position(s.operand, self.inputs), s.form) for s in steps]
        reads += [self._read(v, like, channels) for v in others]
        dtypes = ((v, source[1] if v is self.match.half else storage(v, self.shapes).name) for v in others)
        operands = [source, *((s.operand, storage(s.operand, self.shapes).name) for s in steps), *dtypes]

        def begin(operands: Sequence[Expr]) -> Expr:
            value = operands[0]
            for step, operand in zip(steps, operands[1:], strict=False):
                value = value * operand if step.op == "mul" else value + operand
            return value

        return Transform(program_of(nodes, operands, result, self.opsets, self.shapes, begin), tuple(reads))

    def _read(self, value: ir.Value, like: ir.Value, channels: int) -> TransformRead:
        if value is self.match.half:
            return TransformRead(_position(self.match.x, self.inputs), HALF)
        form, row = form_of(value, like, self.shapes, channels, self.by_sample), self.slices.get(value)
        if row is None:
            return TransformRead(_position(value, self.inputs), form)
        if form != "sample":
            raise ValueError(f"`{value.name}` is a slice of rows, and not read by sample")
        return TransformRead(_position(row.source, self.inputs), form, row.row, row.first)


def form_of(value: ir.Value, like: ir.Value, shapes: Shapes, axis: int, by_sample: Sequence[int]) -> str:
    """How a value that is broadcast against [N, H, W, C] is read. axis: of channels. by_sample: as kinds have it.
    ValueError where no kernel can read it."""
    dims, of = shapes.dims(value), shapes.dims(like)
    if dims is not None and of is not None and len(dims) <= len(of):
        if shapes.elements(value) == 1:
            return "scalar"
        whole = (1,) * (len(of) - len(dims)) + dims
        if whole[axis] == of[axis] and all(d == 1 for k, d in enumerate(whole) if k != axis % len(of)):
            return "channel"
        if len(dims) == len(of) and shapes.same(value, like):
            return "element"
        of_sample = (of[0], *(1 for _ in of[2:]), of[-1])
        if len(of) in by_sample and axis == -1 and dims == of_sample and of[0] is not None:
            return "sample"
    raise ValueError(f"`{value.name}` is not broadcast against `{like.name}` by element, channel or sample")


def _without(nodes: Iterable[ir.Node], core: Collection[ir.Node], slices: Mapping[ir.Value, RowSlice]) -> list[ir.Node]:
    """The elementwise nodes among those of a region."""
    own = {*core, *(n for s in slices.values() for n in s.nodes)}
    return [n for n in nodes if n not in own]


def _position(value: ir.Value, inputs: Sequence[ir.Value]) -> int:
    if value not in inputs:
        raise ValueError(f"`{value.name}` is no input of the region")
    return list(inputs).index(value)
