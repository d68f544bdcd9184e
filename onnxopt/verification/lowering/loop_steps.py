"""The values inside bodies of Loop and Scan: each step is run as a model of its own, with its values as outputs.

A loop's own run shows what comes out of it alone. Here its body runs step by step, from the operands that the graph
around it computes, so that steps may have values of other sizes, and bodies may have bodies.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxopt.graph import write
from onnxopt.graph.match import is_constant
from onnxopt.graph.precision import bodies
from onnxopt.graph.precision.bodies import Body
from onnxopt.runtime import sessions

_ALL = 32  # steps of which all values are noted; later, those of steps 64, 128, 256 and so on
_MAX = 4096  # steps; later ones are not run
_OUTPUTS = 256  # values of one session
Values = Mapping[str, Any]
Note = Callable[[str, Any, bool], None]  # is told a value's name and elements, and whether inputs are typical


class Steps:
    """Runs the bodies of one model. folder: for temporary files, which have to outlive this."""

    def __init__(self, model: ir.Model, folder: Path, note: Note) -> None:
        self._model, self._note = model, note
        self._folder, self._is_typical = folder, True
        self._levels: dict[ir.Graph, _Level] = {}

    @staticmethod
    def are_in(model: ir.Model) -> bool:
        """Whether a model has bodies."""
        return any(map(bodies.body_of, bodies.nodes_of(model.graph)))

    def run(self, inputs: Values, is_typical: bool) -> None:
        """Note the float32 values in the bodies of a run with these inputs. RunError where ONNX Runtime refuses."""
        self._is_typical = is_typical
        self._inside(self._model.graph, inputs, notes=False)

    def _level(self, graph: ir.Graph, values: Values) -> _Level:
        if graph not in self._levels:
            folder = Path(tempfile.mkdtemp(dir=self._folder))
            self._levels[graph] = _Level(self._model, graph, values, folder, shows=graph is not self._model.graph)
        return self._levels[graph]

    def _inside(self, graph: ir.Graph, values: Values, *, notes: bool) -> Values:
        """Run a graph and the graphs in it; returns its outputs with the values.

        values: by name, of all graphs around it too.
        """
        level = self._level(graph, values)
        values_inside = level.run(values, all_of_them=notes)
        for name in level.shown if notes else ():
            if name in values_inside:
                self._note(name, values_inside[name], self._is_typical)
        seen = {**values, **values_inside}
        for node in level.nested if notes or graph is self._model.graph else ():
            body = bodies.body_of(node)
            if body is None:
                branch = bool(_value(node.inputs[0], seen))
                name = "then_branch" if branch else "else_branch"
                self._inside(node.attributes[name].as_graph(), seen, notes=True)
            elif body.node.op_type == "Loop":
                self._loop(body, seen)
            else:
                self._scan(body, seen)
        return seen

    def _loop(self, body: Body, values: Values) -> None:
        limit, goes_on = (_value(v, values) for v in body.node.inputs[:2])
        steps = _MAX if limit is None else min(int(np.asarray(limit).item()), _MAX)
        going = True if goes_on is None else bool(np.asarray(goes_on).item())
        states = [_value(state.start, values) for state in body.states]
        step = 0
        while going and step < steps:
            counters = (np.array(step, np.int64), np.array(True))
            results = self._step(body, values, (*counters, *states), step)
            going = bool(np.asarray(_value(body.condition, results)).item())
            states = [_value(state.after, results) for state in body.states]
            step += 1

    def _scan(self, body: Body, values: Values) -> None:
        node, count = body.node, len(body.scanned)
        axes, backward = (_ints(node, name, count) for name in ("scan_input_axes", "scan_input_directions"))
        operands = [np.asarray(_value(v, values)) for v, _ in body.scanned]
        states = [_value(state.start, values) for state in body.states]
        length = operands[0].shape[axes[0]]
        for step in range(min(length, _MAX)):
            elements = [
                np.take(array, length - 1 - step if back else step, axis)
                for array, axis, back in zip(operands, axes, backward, strict=True)
            ]
            results = self._step(body, values, (*states, *elements), step)
            states = [_value(state.after, results) for state in body.states]

    def _step(self, body: Body, values: Values, inputs: tuple[Any, ...], step: int) -> Values:
        own = {str(v.name): array for v, array in zip(body.graph.inputs, inputs, strict=True)}
        noted = step < _ALL or step & (step - 1) == 0
        for name, array in own.items() if noted else ():
            self._note(name, array, self._is_typical)
        return self._inside(body.graph, {**values, **own}, notes=noted)


class _Level:
    """One graph of a model as models of their own, whose inputs are what it reads of the graphs around it.

    shown: the names of its float32 values. nested: its nodes with bodies in them, whose operands are outputs too.
    """

    def __init__(self, model: ir.Model, graph: ir.Graph, values: Values, folder: Path, *, shows: bool) -> None:
        self._model, self._graph, self._values, self._folder = model, graph, values, folder
        self.nested = [n for n in graph if bodies.graphs_of(n) and (shows or any(map(bodies.body_of, (n, *_inner(n)))))]
        self.shown = [str(v.name) for n in graph for v in n.outputs if _is_measured(v)] if shows else []
        own = {str(v.name) for n in graph for v in n.outputs}
        inside = {str(v.name) for n in self.nested for m in (n, *_inner(n)) for v in m.inputs if v is not None}
        results = {str(v.name) for v in graph.outputs} if shows else set()
        self._needed = sorted((inside | results) & own)
        self._sessions: dict[tuple[str, ...], Any] = {}

    def run(self, values: Values, *, all_of_them: bool) -> Values:
        """The needed values by name, and those that are shown too where all of them are asked for."""
        rest = [name for name in self.shown if name not in self._needed] if all_of_them else []
        parts = [self._needed, *(rest[k : k + _OUTPUTS] for k in range(0, len(rest), _OUTPUTS))]
        results: dict[str, Any] = {}
        for names in (tuple(part) for part in parts if part):
            if names not in self._sessions:
                self._sessions[names] = self._session(names)
            session = self._sessions[names]
            feeds = {value.name: values[value.name] for value in session.get_inputs()}
            results |= sessions.run(session, feeds)
        return results

    def _session(self, names: tuple[str, ...]) -> Any:
        graph = self._graph.clone(allow_outer_scope_values=True)
        by_name = {str(v.name): v for n in graph for v in n.outputs}
        for value in graph.inputs:
            value.shape = None  # steps may have others
        _take_in(graph, self._values)
        graph.outputs.clear()
        graph.outputs.extend(by_name[name] for name in names)
        graph.name = graph.name or "step"
        model = ir.Model(graph, ir_version=self._model.ir_version)
        model.opset_imports.update(self._model.opset_imports)
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        write.save(model, folder)
        return sessions.open_session(folder / write.MODEL_FILE, optimize=False)


def _take_in(graph: ir.Graph, values: Values) -> None:
    """Make what nodes read of outside the graph its own, in place: constants, and inputs of the dtypes of values."""
    own = set[ir.Value](graph.inputs) | set(graph.initializers.values())
    nodes = list(graph.all_nodes())
    for inner in graph.subgraphs():
        own |= set(inner.inputs) | set(inner.initializers.values())
    own |= {v for node in nodes for v in node.outputs}
    copies: dict[ir.Value, ir.Value] = {}
    for node in nodes:
        for k, value in enumerate(node.inputs):
            if value is None or value in own:
                continue
            if value not in copies:
                copies[value] = _copy(graph, value, values)
            node.replace_input_with(k, copies[value])


def _copy(graph: ir.Graph, value: ir.Value, values: Values) -> ir.Value:
    name = str(value.name)
    if is_constant(value):
        copy = ir.Value(name=name, type=value.type, shape=value.shape, const_value=value.const_value)
        graph.register_initializer(copy)
        return copy
    if name not in values:
        raise sessions.RunError(f"{name} is no tensor")
    dtype = ir.DataType.from_numpy(np.asarray(values[name]).dtype)
    copy = ir.Value(name=name, type=ir.TensorType(dtype))
    graph.inputs.append(copy)
    return copy


def _inner(node: ir.Node) -> Iterator[ir.Node]:
    for graph in bodies.graphs_of(node):
        yield from bodies.nodes_of(graph)


def _is_measured(value: ir.Value) -> bool:
    return value.dtype == ir.DataType.FLOAT and isinstance(value.type, ir.TensorType) and bool(value.name)


def _value(value: ir.Value | None, values: Values) -> Any:
    if value is None:
        return None
    if is_constant(value):
        assert value.const_value is not None
        return value.const_value.numpy()
    if value.name not in values:
        raise sessions.RunError(f"{value.name} is no tensor")
    return values[str(value.name)]


def _ints(node: ir.Node, name: str, count: int) -> list[int]:
    return list(node.attributes[name].as_ints()) if name in node.attributes else [0] * count
