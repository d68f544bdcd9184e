"""Lowering of group norms: a program in front of the norm, the norm, and a program behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from onnxopt.fusion.in_front import inputs_around, nodes_in_front, source_of
from onnxopt.fusion.operands import apply_operator, constant, storage
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.group_norm.match import NORMS, Norm, norm
from onnxopt.kinds.group_norm.row_slices import Cut, cuts_of
from onnxopt.kinds.pointwise.lower import immediate
from onnxopt.program.core import Transform, TransformRead
from onnxopt.program.expressions import Builder, Expr
from onnxopt.program.group_norm import GroupNorm
from onnxopt.program.pointwise import Program, without_dead_code


def lower(
    nodes: Sequence[ir.Node],
    inputs: Sequence[ir.Value],
    outputs: Sequence[ir.Value],
    opsets: Mapping[str, int],
    shapes: Shapes,
) -> GroupNorm:
    """The meaning of nodes in topological order, with one norm among them, that read `inputs` and scalar constants.

    Raises ValueError, with the reason, where the nodes cannot be one kernel.
    """
    (node,) = (n for n in nodes if n.op_type in NORMS and n.domain == "")
    found = norm(node, shapes, opsets.get("", 0))
    if isinstance(found, str):
        raise ValueError(found)
    if len(outputs) != 1:
        raise ValueError(f"The kernel has {len(outputs)} results")
    cuts = _cuts(found, nodes, shapes)
    others = [n for n in _without_cuts(nodes, cuts) if n not in found.nodes]
    in_front = nodes_in_front(found.x, others)
    behind = [n for n in others if n not in in_front]
    source = source_of(found.x, in_front, shapes) if in_front else found.x
    part = _Parts(found, inputs, cuts, opsets, shapes)
    meaning = GroupNorm(
        inputs=tuple(storage(v, shapes).name for v in inputs),
        outputs=(storage(outputs[0], shapes).name,),
        channels=found.channels,
        groups=found.groups,
        epsilon=found.epsilon,
        epilogue=part.behind(behind, outputs[0]),
        prologue=part.in_front(in_front, source) if in_front else None,
        x=list(inputs).index(source),
    )
    meaning.verify()
    return meaning


def inputs_of(found: Norm, nodes: Sequence[ir.Node], shapes: Shapes) -> list[ir.Value]:
    """Values that a region reads from outside: x, scale, bias, then others in order of first use.

    Scalar constants of elementwise nodes are left out.
    """
    cuts = _cuts(found, nodes, shapes)
    read = inputs_around(found.nodes, (found.x, found.scale, found.bias), _without_cuts(nodes, cuts))
    return list(dict.fromkeys(cuts[v].source if v in cuts else v for v in read))


def _cuts(found: Norm, nodes: Sequence[ir.Node], shapes: Shapes) -> dict[ir.Value, Cut]:
    """What the nodes cut off rows, by the values that others of them read."""
    read = dict.fromkeys(v for n in nodes if n not in found.nodes for v in n.inputs if v is not None)
    return cuts_of(read, nodes, shapes)


def _without_cuts(nodes: Sequence[ir.Node], cuts: Mapping[ir.Value, Cut]) -> list[ir.Node]:
    own = {n for cut in cuts.values() for n in cut.nodes}
    return [n for n in nodes if n not in own]


class _Parts:
    """Makes the programs around one norm."""

    def __init__(
        self,
        found: Norm,
        inputs: Sequence[ir.Value],
        cuts: Mapping[ir.Value, Cut],
        opsets: Mapping[str, int],
        shapes: Shapes,
    ) -> None:
        self._found, self._inputs, self._cuts = found, list(inputs), cuts
        self._opsets, self._shapes = opsets, shapes

    def in_front(self, nodes: Sequence[ir.Node], source: ir.Value) -> Transform:
        """The program of the nodes that compute x from `source`; its result is not rounded."""
        reads, builder, known = self._begin(nodes, source, storage(source, self._shapes).name, [])
        self._apply(nodes, builder, known)
        return self._part(builder, known[self._found.x], "float32", reads)

    def behind(self, nodes: Sequence[ir.Node], result: ir.Value) -> Transform:
        """The program of scale, bias and the nodes that read the norm's result."""
        found = self._found
        factors = [] if _is_everywhere(found.scale, 1.0) else [found.scale]
        terms = [] if _is_everywhere(found.bias, 0.0) else [found.bias]
        reads, builder, known = self._begin(nodes, found.y, "float32", [*factors, *terms])
        value = builder.inputs[0]
        for k, factor in enumerate(factors, 1):
            value = value * builder.inputs[k]
            assert factor is found.scale
        for k, term in enumerate(terms, 1 + len(factors)):
            value = value + builder.inputs[k]
            assert term is found.bias
        known[found.y] = value
        self._apply(nodes, builder, known)
        return self._part(builder, known[result], storage(result, self._shapes).name, reads)

    def _begin(
        self, nodes: Sequence[ir.Node], source: ir.Value, dtype: str, parameters: list[ir.Value]
    ) -> tuple[tuple[TransformRead, ...], Builder, dict[ir.Value, Expr]]:
        inside = {v for n in nodes for v in n.outputs}
        read = dict.fromkeys(v for n in nodes for v in n.inputs if v is not None and v not in inside)
        others = [v for v in read if v is not source and constant(v) is None]
        reads = [TransformRead(self._position(v), self._form_of_parameter()) for v in parameters]
        reads += [self._read(v) for v in others]
        dtypes = (dtype, *(storage(v, self._shapes).name for v in (*parameters, *others)))
        builder = Builder(dtypes)
        known = dict(zip(others, builder.inputs[1 + len(parameters) :], strict=True))
        known[source] = builder.inputs[0]
        return tuple(reads), builder, known

    def _apply(self, nodes: Sequence[ir.Node], builder: Builder, known: dict[ir.Value, Expr]) -> None:
        for node in nodes:
            for value in node.inputs:
                if value is not None and value not in known:
                    known[value] = immediate(builder, value, self._shapes)[0]
            known[node.outputs[0]] = apply_operator(node, known, self._opsets, self._shapes)

    def _part(self, builder: Builder, result: Expr, dtype: str, reads: tuple[TransformRead, ...]) -> Transform:
        inputs = tuple(e.exact_in or e.dtype for e in builder.inputs)
        depends = (tuple(range(len(inputs))),)
        program = Program(inputs, (dtype,), tuple(builder.code), (result.id,), depends, (0,))
        program = without_dead_code(program)
        program.verify()
        return Transform(program, reads)

    def _read(self, value: ir.Value) -> TransformRead:
        form, cut = self._form(value), self._cuts.get(value)
        if cut is None:
            return TransformRead(self._position(value), form)
        if form != "sample":
            raise ValueError(f"`{value.name}` is cut off rows, and not read by sample")
        return TransformRead(self._position(cut.source), form, cut.row, cut.first)

    def _position(self, value: ir.Value) -> int:
        if value not in self._inputs:
            raise ValueError(f"`{value.name}` is no input of the region")
        return self._inputs.index(value)

    def _form_of_parameter(self) -> str:
        found = self._found
        return "group" if found.by_group and found.groups != found.channels else "channel"

    def _form(self, value: ir.Value) -> str:
        """How a value that is broadcast against x is read. ValueError where no kernel can read it so."""
        dims, of = self._shapes.dims(value), self._shapes.dims(self._found.x)
        if dims is not None and of is not None and len(dims) <= len(of):
            if self._shapes.elements(value) == 1:
                return "scalar"
            if dims[-1] == of[-1] and all(d == 1 for d in dims[:-1]):
                return "channel"
            if len(dims) == len(of) and self._shapes.same(value, self._found.x):
                return "element"
            if len(dims) == len(of) and dims == (of[0], 1, 1, of[3]) and of[0] is not None:
                return "sample"
        raise ValueError(f"`{value.name}` is not broadcast against `{self._found.x.name}` by channel or by sample")


def _is_everywhere(value: ir.Value, number: float) -> bool:
    """Whether a value is a constant of this number alone."""
    if value.const_value is None or value.is_graph_input():
        return False
    return bool((value.const_value.numpy().astype(np.float64) == number).all())
