"""The float32 values of a model: it is run part by part, and each part reads what earlier parts computed.

So each node runs about once for each input, however many parts there are; a session that has all values as outputs
would hold all of them in memory.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir

from onnxopt.graph import write
from onnxopt.graph.match import reads
from onnxopt.runtime import sessions

_OUTPUTS = 128  # values of one part: all of them are in memory at once
_BYTES = 1 << 29  # of these, but for one node whose results take more; and of what parts hand on, in all runs
# Of what is handed on: those that numpy and ONNX Runtime both have. What is of another dtype is computed again.
_DTYPES = frozenset(
    {ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BOOL, ir.DataType.INT32, ir.DataType.INT64,
     ir.DataType.INT8, ir.DataType.UINT8}
)  # fmt: skip
Feeds = Mapping[str, Any]
Sizes = Mapping[ir.Value, int]  # bytes


def values_of(model: ir.Model, runs: Sequence[Feeds], folder: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The float32 values that the main graph's nodes compute, by name: of one part in one run, with the run's number.

    model: its nodes in order; it stays as it is. runs: the inputs of each. folder: for temporary files. A run whose
    inputs have no elements ends where ONNX Runtime refuses it; RunError where it refuses another.
    """
    cut, going = _Cut(model, _largest(model, runs, folder), len(runs)), list(range(len(runs)))
    known: list[dict[str, Any]] = [dict(inputs) for inputs in runs]
    while own := cut.next_part():
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            write.save(cut.part(own), scratch)
            session = sessions.open_session(Path(scratch) / write.MODEL_FILE)
            taken = {v.name for v in (*session.get_inputs(), *session.get_overridable_initializers())}
            for k in tuple(going):
                try:
                    values = sessions.run(session, {name: known[k][name] for name in taken & known[k].keys()})
                except sessions.RunError:
                    if not _has_empty(runs[k]):
                        raise
                    going.remove(k)  # shapes of no elements are no model of others, and have no ranges
                    continue
                yield k, {str(v.name): values[str(v.name)] for v in own}
                handed_on = {str(v.name) for v in cut.handed_on}
                known[k] = {name: array for name, array in known[k].items() if name in handed_on or name in runs[k]}
                # A result may keep all memory of its session.
                known[k] |= {name: array.copy() for name, array in values.items() if name in handed_on}


class _Cut:
    """A model's nodes, some after the others. sizes: of what they compute, the most of all runs. runs: their number.

    handed_on: the values of earlier parts that later ones get as inputs: those that are read later, while there is
    memory for them. Others are computed again.
    """

    def __init__(self, model: ir.Model, sizes: Sizes, runs: int) -> None:
        self._model, self._sizes, self._runs = model, sizes, runs
        self._nodes = list(model.graph)
        self._last_reads = {value: k for k, node in enumerate(self._nodes) for value in reads(node)}
        self._end = 0  # of the nodes of the parts so far
        self.handed_on: tuple[ir.Value, ...] = ()

    def next_part(self) -> list[ir.Value]:
        """The float32 values of the next nodes, as many as one session returns; none where all nodes are done."""
        values, total = list[ir.Value](), 0
        for node in self._nodes[self._end :]:
            own = [v for v in node.outputs if is_measured(v)]
            size = sum(self._sizes[v] for v in own)
            if own and values and (len(values) + len(own) > _OUTPUTS or total + size > _BYTES):
                break
            values, total = values + own, total + size
            self._end += 1
        return values

    def part(self, own: Sequence[ir.Value]) -> ir.Model:
        """The model that computes these values, the last ones so far, and those that are handed on."""
        before, chosen, total = self.handed_on, set[ir.Value](), 0
        later = self._read_later()
        for value in sorted(later, key=self._sizes.__getitem__):
            total += self._runs * self._sizes[value]
            if total > _BYTES:
                break
            chosen.add(value)
        self.handed_on = tuple(v for v in later if v in chosen)
        return self._computing(list(dict.fromkeys((*own, *(v for v in self.handed_on if v not in before)))), before)

    def _read_later(self) -> list[ir.Value]:
        done = (v for node in self._nodes[: self._end] for v in node.outputs)
        tensors = (v for v in done if isinstance(v.type, ir.TensorType) and v.dtype in _DTYPES)
        return [v for v in tensors if self._last_reads.get(v, -1) >= self._end]

    def _computing(self, results: Sequence[ir.Value], known: Collection[ir.Value]) -> ir.Model:
        """A model of the nodes that results need. known: values that are inputs of it."""
        needed, nodes = set(results), list[ir.Node]()
        for node in reversed(self._nodes[: self._end]):
            if any(v in needed and v not in known for v in node.outputs):
                nodes.append(node)
                needed.update(reads(node))
        graph, computed = self._model.graph, {v for node in nodes for v in node.outputs}
        view = ir.GraphView(
            [v for v in (*graph.inputs, *known) if v in needed and v not in computed],
            results,
            nodes=nodes[::-1],
            initializers=[v for v in graph.initializers.values() if v in needed],
            opset_imports=graph.opset_imports,
            name=graph.name,
        )
        return ir.Model(
            view.clone(), ir_version=self._model.ir_version, functions=tuple(self._model.functions.values())
        )


def _has_empty(inputs: Feeds) -> bool:
    return any(getattr(array, "size", 1) == 0 for array in inputs.values())


def is_measured(value: ir.Value) -> bool:
    """Whether a value is a tensor of float32 with a name."""
    return value.dtype == ir.DataType.FLOAT and isinstance(value.type, ir.TensorType) and bool(value.name)


def bytes_of(model: ir.Model, inputs: Feeds) -> int:
    """About how many bytes all float32 values of the main graph take with these inputs."""
    sizes = _sizes(model, inputs)
    return sum(_bytes(value, sizes) for value in _values(model))


def _sizes(model: ir.Model, inputs: Feeds) -> dict[str, int]:
    """The sizes that symbols of the inputs have."""
    sizes: dict[str, int] = {}
    for value in model.graph.inputs:
        shape = getattr(inputs.get(value.name or ""), "shape", ())
        if value.shape is not None and len(value.shape) == len(shape):
            sizes |= {str(dim): size for dim, size in zip(value.shape, shape, strict=True) if not isinstance(dim, int)}
    return sizes


def _bytes(value: ir.Value, sizes: Mapping[str, int]) -> int:
    """A value of unknown rank counts as a small one; a dim that is no symbol of an input as the greatest of these."""
    greatest = max(sizes.values(), default=1)
    dims = (
        [] if value.shape is None else [d if isinstance(d, int) else sizes.get(str(d), greatest) for d in value.shape]
    )
    return 4 * math.prod(dims)


def _values(model: ir.Model) -> list[ir.Value]:
    """The float32 values that the main graph's nodes compute."""
    return [value for node in model.graph for value in node.outputs if is_measured(value)]


def _largest(model: ir.Model, runs: Sequence[Feeds], folder: Path) -> dict[ir.Value, int]:
    """The most bytes that each value of the main graph's nodes takes in the runs, about."""
    all_sizes = [_sizes(model, inputs) for inputs in runs]
    computed = [v for node in model.graph for v in node.outputs]
    largest = {v: max((_bytes(v, sizes) for sizes in all_sizes), default=0) for v in computed}
    values = _values(model)
    if len(values) > _OUTPUTS or sum(largest[v] for v in values) > _BYTES:
        counts = _counted(model, [v for v in values if not _is_known(v, all_sizes)], runs, folder)
        largest |= {v: counts[v.name] for v in values if v.name in counts}
    return largest


def _is_known(value: ir.Value, all_sizes: Sequence[Mapping[str, int]]) -> bool:
    """Whether the dims of a value are numbers, or symbols of the inputs, in all runs."""
    return value.shape is not None and all(
        isinstance(dim, int) or str(dim) in sizes for sizes in all_sizes for dim in value.shape
    )


def _counted(model: ir.Model, values: Sequence[ir.Value], runs: Sequence[Feeds], folder: Path) -> dict[str, int]:
    """The most bytes that each of these values takes in the runs, by name: their shapes are outputs of one model."""
    if not values:
        return {}
    part = model.clone()
    by_name = {value.name: value for node in part.graph for value in node.outputs}
    part.graph.outputs.clear()
    for value in values:
        node = ir.node("Shape", [by_name[value.name]])
        node.outputs[0].name, node.outputs[0].type = f"{value.name}/shape of it", ir.TensorType(ir.DataType.INT64)
        part.graph.append(node)
        part.graph.outputs.append(node.outputs[0])
    counts: dict[str, int] = {}
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        write.save(part, scratch)
        session = sessions.open_session(Path(scratch) / write.MODEL_FILE)
        for inputs in runs:
            try:
                shapes = sessions.run(session, inputs)
            except sessions.RunError:
                continue  # `values_of` says so, or leaves it out
            for name, dims in shapes.items():
                own = name.removesuffix("/shape of it")
                counts[own] = max(counts.get(own, 0), 4 * math.prod(map(int, dims)))
    return counts
