"""What decompositions of ONNX Runtime's operators share: new nodes, operands, and the reasons not to decompose."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from onnxopt.graph.match import is_constant, operand


class NoStandardForm(Exception):
    """An operator has no decomposition here: the reason."""


class Standard:
    """Builds the standard form of one node; the new nodes join no graph before `place`."""

    def __init__(self, node: ir.Node) -> None:
        self.node = node
        self._nodes: list[ir.Node] = []

    def __call__(self, op_type: str, *inputs: ir.Value | None, **attributes: object) -> ir.Value:
        """The first result of a new node of ONNX's domain."""
        return self.several(op_type, 1, *inputs, **attributes)[0]

    def several(self, op_type: str, count: int, *inputs: ir.Value | None, **attributes: object) -> Sequence[ir.Value]:
        new = ir.node(op_type, inputs, attributes, num_outputs=count, name=f"{self.node.name}/{op_type}")  # type: ignore[arg-type]
        self._nodes.append(new)
        return new.outputs

    def constant(self, array: np.ndarray | Sequence[int]) -> ir.Value:
        return self("Constant", value=ir.tensor(np.asarray(array)))

    def number(self, number: float, like: ir.Value) -> ir.Value:
        """A constant without dims, of the dtype of a value."""
        dtype = dtype_of(like)
        with np.errstate(over="ignore"):  # float16 holds the lowest number of float32 as -inf
            array = np.array(number, dtype.numpy())
        return self("Constant", value=ir.tensor(array, dtype=dtype))

    def part(self, whole: ir.Value, start: int, end: int) -> ir.Value:
        """Some columns of a constant, which are copied when they are read."""
        tensor = whole.const_value
        assert tensor is not None
        shape = ir.Shape([*tensor.shape.numpy()[:-1], end - start])

        def columns() -> ir.Tensor:
            return ir.Tensor(np.ascontiguousarray(tensor.numpy()[..., start:end]), dtype=tensor.dtype)

        lazy = ir.LazyTensor(columns, dtype=tensor.dtype, shape=shape, name=f"{whole.name}/{start}")
        return self("Constant", value=lazy)

    def rows_twice(self, table: ir.Value, numbers: ir.Value) -> ir.Value:
        """Rows of a table (T, H) beside themselves, (.., 2 H). numbers: of the rows."""
        if is_constant(table):
            return self("Gather", self._twice(table), numbers)
        rows = self("Gather", table, numbers)
        return self("Concat", rows, rows, axis=-1)

    def _twice(self, table: ir.Value) -> ir.Value:
        """A constant (T, H) beside itself, (T, 2 H): one for all nodes that read the table, copied when it is read."""
        tensor, graph, name = table.const_value, self.node.graph, f"{table.name}/twice"
        assert tensor is not None and graph is not None
        if name in graph.initializers:
            return graph.initializers[name]
        rows, width = tensor.shape.numpy()

        def doubled() -> ir.Tensor:
            return ir.Tensor(np.concatenate([tensor.numpy()] * 2, axis=-1), dtype=tensor.dtype)

        lazy = ir.LazyTensor(doubled, dtype=tensor.dtype, shape=ir.Shape([rows, 2 * width]), name=name)
        new = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=lazy.shape, const_value=lazy)
        graph.register_initializer(new)
        return new

    def place(self, result: ir.Value | None) -> None:
        """Insert the nodes before the one that they replace; the one that computes the result gets its name."""
        assert self.node.graph is not None
        last = None if result is None else result.producer()
        if last is not None:
            last.name = self.node.name
        self.node.graph.insert_before(self.node, self._nodes)

    def replace(
        self, results: Sequence[ir.Value | None], note: Callable[[ir.Value, ir.Value], None] = lambda old, new: None
    ) -> None:
        """Put placed results in the place of the node's own, and remove the node. note: is told of each pair before."""
        for old, new in zip(self.node.outputs, results, strict=False):
            if new is None or not is_read(old):
                continue
            new.name, new.type, new.shape = old.name, old.type, old.shape
            note(old, new)
            old.replace_all_uses_with(new, replace_graph_outputs=True)
        assert self.node.graph is not None
        self.node.graph.remove(self.node, safe=True)

    def discard(self) -> None:
        """Take the nodes off the values that they read."""
        for node in self._nodes:
            for position in range(len(node.inputs)):
                node.replace_input_with(position, None)


Decomposition = Callable[[Standard], Sequence[ir.Value | None]]
"""The results of a node by standard operators, None for those that nothing reads. Raises NoStandardForm."""


def standard_form(node: ir.Node, decomposition: Decomposition) -> tuple[Standard, Sequence[ir.Value | None]] | None:
    """The standard nodes, placed before the node, and their results; None where its operands allow none."""
    op = Standard(node)
    try:
        results = decomposition(op)
    except NoStandardForm:
        op.discard()
        return None
    op.place(results[0])
    return op, results


def dtype_of(value: ir.Value) -> ir.DataType:
    if value.dtype is None:
        raise NoStandardForm(f"the dtype of `{value.name}` is not known")
    return value.dtype


def rank_of(value: ir.Value) -> int:
    if value.shape is None:
        raise NoStandardForm(f"the rank of `{value.name}` is not known")
    return len(value.shape)


def size_of(value: ir.Value, axis: int) -> int:
    size = value.shape[axis] if rank_of(value) else None  # type: ignore[index]
    if not isinstance(size, int):
        raise NoStandardForm(f"the dim {axis} of `{value.name}` is not known")
    return size


def required(node: ir.Node, position: int) -> ir.Value:
    value = operand(node, position)
    if value is None:
        raise NoStandardForm(f"{node.op_type} has no input {position}")
    return value


def absent(node: ir.Node, *positions: int) -> None:
    """Raise NoStandardForm where one of these inputs is there."""
    for position in positions:
        if operand(node, position) is not None:
            raise NoStandardForm(f"{node.op_type} has the input {position}")


def unread(node: ir.Node, *positions: int) -> None:
    """Raise NoStandardForm where something reads one of these results."""
    for value in (node.outputs[k] for k in positions if k < len(node.outputs)):
        if is_read(value):
            raise NoStandardForm(f"`{value.name}` is read")


def is_read(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()


def usual(node: ir.Node, **attributes: int | float | str) -> None:
    """Raise NoStandardForm where an attribute is there with another value."""
    for name, wanted in attributes.items():
        if name in node.attributes and node.attributes[name].value != wanted:
            raise NoStandardForm(f"{node.op_type} has {name}")


def uncast(value: ir.Value) -> ir.Value:
    """The int64 that a Cast made an operator's int32 of; else the value. Standard operators read both."""
    cast = value.producer()
    source = cast.inputs[0] if cast is not None and (cast.domain, cast.op_type) == ("", "Cast") else None
    narrowed = source is not None and (source.dtype, value.dtype) == (ir.DataType.INT64, ir.DataType.INT32)
    return source if source is not None and narrowed else value
