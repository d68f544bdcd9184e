"""Dims of values and what small integer tensors hold, as dims, on top of the shapes that passes.infer has written.

An exporter that keeps batch and sequence dynamic writes `Reshape(x, [Shape(ids)[0], Shape(ids)[1], -1, 32])`. Which dim
-1 stands for, and that the two others are x's own, decides whether attention is recognised. Here small integer tensors
are followed as dims (onnx_ir.SymbolicDim) for the rules of rewriting, and one thing is known that shapes cannot say: a
dim that a Slice cuts to at most n, which broadcasts against n to n.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from onnxopt.program import operators

Dim = int | ir.SymbolicDim
_SMALL = 16  # elements of an integer tensor that is followed as dims
_SAME_SHAPE = frozenset({"Softmax", "LayerNormalization", "RMSNormalization", "CumSum", "Clip", "Trilu", "Gelu"})
_SAME_CONTENTS = frozenset({"Squeeze", "Unsqueeze", "Reshape", "Cast", "Identity"})


@dataclasses.dataclass(frozen=True)
class AtMost:
    """A dim that is not known but never more than `limit`."""

    limit: Dim


Known = Dim | AtMost | None
Dims = tuple[Known, ...]


def refine(model: ir.Model) -> Symbols:
    """Improve the shapes of the main graph's values in place; what onnx's inference found stays where it is better.

    Nodes must be in topological order. What is returned answers further questions as long as the graph stays as it is.
    """
    symbols = Symbols()
    symbols.run(model.graph)
    return symbols


def same(a: object, b: object) -> bool:
    """Whether two dims are equal at every run, as far as that can be told."""
    if isinstance(a, int) or isinstance(b, int):
        return a == b
    return isinstance(a, ir.SymbolicDim) and a.value is not None and a == b


def dims_of(value: ir.Value) -> tuple[Dim, ...]:
    """The dims of a value whose rank a rule has made sure of."""
    assert value.shape is not None
    return value.shape.dims


def _simple(dim: Dim) -> Dim:
    return dim if isinstance(dim, int) else _simplified(dim)


@functools.lru_cache(maxsize=4096)  # sympy takes a second for some, and the same ones come with every refinement
def _simplified(dim: ir.SymbolicDim) -> Dim:
    return _as_number(dim.simplify())


def _as_number(dim: ir.SymbolicDim) -> Dim:
    text = str(dim.value)
    return int(text) if text.lstrip("-").isdigit() else dim


class Symbols:
    """Dims of values, and the dims that small integer tensors hold."""

    def __init__(self) -> None:
        self._dims: dict[ir.Value, Dims] = {}
        self._contents: dict[ir.Value, tuple[Dim | None, ...] | None] = {}
        self._rules: dict[str, Callable[[ir.Node], Dims | None]] = {
            "Expand": self._expand, "Slice": self._slice, "Unsqueeze": self._unsqueeze,
        }  # fmt: skip

    def run(self, graph: ir.Graph) -> None:
        for node in graph:
            if node.domain not in ("", "ai.onnx") or not node.outputs:
                continue
            found = self._infer(node)
            if found is not None:
                self._keep(node.outputs[0], found)
            if node.outputs[0].dtype in (ir.DataType.INT64, ir.DataType.INT32):
                self.contents(node.outputs[0])  # in order, so that a question asked later never recurses deep

    def _infer(self, node: ir.Node) -> Dims | None:
        rule = self._rules.get(node.op_type)
        if rule is not None:
            return rule(node)
        if node.op_type in _SAME_SHAPE:
            return self.dims(node.inputs[0])
        if (node.domain, node.op_type) in operators.OPERATORS:
            return self._broadcast([self.dims(v) for v in node.inputs if v is not None])
        return None

    def _keep(self, value: ir.Value, found: Dims) -> None:
        before = (
            value.shape.dims if value.shape is not None and len(value.shape) == len(found) else (None,) * len(found)
        )
        known = tuple(b if f is None or isinstance(b, int) else f for f, b in zip(found, before, strict=True))
        self._dims[value] = tuple(None if isinstance(d, ir.SymbolicDim) and d.value is None else d for d in known)
        value.shape = ir.Shape(
            [b if isinstance(k, AtMost) else k for k, b in zip(known, before, strict=True)]
        )  # fmt: skip

    def dims(self, value: ir.Value | None) -> Dims | None:
        if value is None:
            return None
        if value not in self._dims:
            if value.const_value is not None:
                self._dims[value] = tuple(int(d) for d in value.const_value.shape.numpy())
            elif value.shape is None:
                return None
            else:
                known = [None if isinstance(d, ir.SymbolicDim) and d.value is None else d for d in value.shape.dims]
                self._dims[value] = tuple(known)
        return self._dims[value]

    def constants(self, graph: ir.Graph) -> list[tuple[ir.Value, ir.TensorProtocol]]:
        """Values of the graph that are computed from shapes and are numbers for all that, with what they hold."""
        found = []
        for node in graph:
            for value in node.outputs:
                contents, dims = self._contents.get(value), self.dims(value)
                if (
                    contents
                    and dims is not None
                    and all(isinstance(c, int) for c in contents)
                    and node.op_type != "Constant"
                    and value.dtype is not None
                ):
                    array = np.array(contents).reshape([1] * len(dims) if len(contents) == 1 else [-1])
                    found.append((value, ir.tensor(array.astype(value.dtype.numpy()), dtype=value.dtype)))
        return found

    # --- integer tensors that hold dims -------------------------------------------------------------------------------

    def contents(self, value: ir.Value | None) -> tuple[Dim | None, ...] | None:
        """The elements of a small integer tensor of rank 0 or 1, or of one element, as dims; None where it is none."""
        if value is None:
            return None
        if value not in self._contents:
            found, dims = self._find_contents(value), self.dims(value)
            flat = found is not None and (len(found) == 1 or (dims is not None and len(dims) <= 1))
            self._contents[value] = found if flat else None
        return self._contents[value]

    def _find_contents(self, value: ir.Value) -> tuple[Dim | None, ...] | None:
        tensor = value.const_value
        if tensor is not None:
            fits = tensor.size <= _SMALL and tensor.dtype in (ir.DataType.INT64, ir.DataType.INT32)
            return tuple(int(x) for x in tensor.numpy().flat) if fits else None
        node = value.producer()
        if node is None or node.domain not in ("", "ai.onnx") or value.dtype == ir.DataType.BOOL:
            return None
        if node.op_type == "Shape":
            dims = self.dims(node.inputs[0])
            start, end = node.attributes.get_int("start", 0), node.attributes.get_int("end", None)
            return None if dims is None else tuple(None if isinstance(d, AtMost) else d for d in dims[start:end])
        parts = [
            self.contents(v) for v in node.inputs[: None if node.op_type in ("Concat", "Add", "Sub", "Mul") else 1]
        ]
        if any(part is None for part in parts) or not parts:
            return None
        known = [part for part in parts if part is not None]
        if node.op_type in _SAME_CONTENTS:
            return known[0]
        if node.op_type == "Concat":
            return tuple(d for part in known for d in part)
        return self._computed_contents(node, known)

    def _computed_contents(self, node: ir.Node, parts: list[tuple[Dim | None, ...]]) -> tuple[Dim | None, ...] | None:
        if node.op_type in ("Add", "Sub", "Mul") and all(len(p) == 1 and p[0] is not None for p in parts):
            a, b = parts[0][0], parts[1][0]
            assert a is not None and b is not None
            return (_simple(a + b if node.op_type == "Add" else a - b if node.op_type == "Sub" else a * b),)
        indices = [self._numbers(v) for v in node.inputs[1:]]
        if node.op_type == "Gather" and indices[0] is not None:
            return tuple(parts[0][i] for i in indices[0])
        if node.op_type == "Slice" and all(indices):
            start, end, *more = (index[0] for index in indices if index)
            return parts[0][start : end : more[1] if len(more) > 1 else 1]
        return None

    def _numbers(self, value: ir.Value | None) -> list[int] | None:
        """The elements of a small integer tensor that is known to the last of them."""
        contents = self.contents(value)
        numbers = [c for c in contents or () if isinstance(c, int)]
        return numbers if contents is not None and len(numbers) == len(contents) else None

    # --- one rule an operator -----------------------------------------------------------------------------------------

    def _broadcast(self, operands: Sequence[Dims | None]) -> Dims | None:
        if not operands or any(o is None for o in operands):
            return None
        known = [o for o in operands if o is not None]
        rank = max(map(len, known))
        columns = zip(*[(1,) * (rank - len(o)) + o for o in known], strict=True)
        return tuple(_broadcast_dim(column) for column in columns)

    def _expand(self, node: ir.Node) -> Dims | None:
        return self._broadcast([self.dims(node.inputs[0]), self.contents(node.inputs[1])])

    def _slice(self, node: ir.Node) -> Dims | None:
        dims = self.dims(node.inputs[0])
        starts, ends = self.contents(node.inputs[1]), self.contents(node.inputs[2])
        axes = self.contents(node.inputs[3]) if len(node.inputs) > 3 else None
        steps = self.contents(node.inputs[4]) if len(node.inputs) > 4 else None
        if dims is None or starts is None or ends is None or axes is None or any(s != 1 for s in steps or ()):
            return None
        cut = list(dims)
        for axis, start, end in zip(axes, starts, ends, strict=True):
            if not isinstance(axis, int):
                return None
            cut[axis] = _cut(dims[axis], start, end)
        return tuple(cut)

    def _unsqueeze(self, node: ir.Node) -> Dims | None:
        dims, axes = self.dims(node.inputs[0]), self.contents(node.inputs[1])
        if dims is None or axes is None or not all(isinstance(a, int) for a in axes):
            return None
        rank = len(dims) + len(axes)
        new = {a % rank for a in axes if isinstance(a, int)}
        rest = iter(dims)
        return tuple(1 if k in new else next(rest) for k in range(rank))


def _is_dim(dim: object) -> bool:
    return isinstance(dim, (int, ir.SymbolicDim))


def _broadcast_dim(column: Sequence[Known]) -> Known:
    found: Known = 1
    for dim in column:
        found = _broadcast_pair(found, dim)
    return found


def _broadcast_pair(a: Known, b: Known) -> Known:
    if a == 1:
        return b
    if b == 1 or (_is_dim(a) and same(a, b)):
        return a
    for one, other in ((a, b), (b, a)):
        if isinstance(one, int):
            return one  # a number above 1 wins over anything that it can meet
        if isinstance(other, AtMost) and _is_dim(one) and same(other.limit, one):
            return one  # at most n, and n or 1: where it is neither the model cannot run
    return a if isinstance(a, AtMost) and a == b else None


def _cut(dim: Known, start: Dim | None, end: Dim | None) -> Known:
    """The dim that a Slice of step 1 leaves."""
    if isinstance(dim, int) and isinstance(start, int) and isinstance(end, int):
        return len(range(dim)[start:end])
    if start == 0 and isinstance(end, int) and end >= 2**31 - 1:
        return dim
    if start == 0 and end is not None and not (isinstance(end, int) and end < 0):
        return dim if _is_dim(dim) and same(dim, end) else AtMost(end)
    return None
