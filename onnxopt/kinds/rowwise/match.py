"""Rowwise regions: a reduction with the elementwise nodes before and after it.

Every value of a region has the shape of the region's grid (kinds/rowwise/grid.py) or one element per row. Elementwise
work before the reduction adds no memory traffic; a value that nodes outside read too becomes an output. What another
reduction along the same rows computes for the region alone, also by way of nodes of one element per row, is part of it.
"""

from __future__ import annotations

import heapq

import onnx_ir as ir

from onnxopt.costs.rowwise import numbers
from onnxopt.fusion import boundary, cost, eligibility, integer_kernels
from onnxopt.fusion.context import Context
from onnxopt.fusion.operands import constant
from onnxopt.fusion.region import Kind, Region
from onnxopt.graph.refusal import Refusal
from onnxopt.kinds.rowwise import grid as row_domain
from onnxopt.kinds.rowwise.grid import RESHAPES, Grid, Unfit
from onnxopt.kinds.rowwise.lower import lower
from onnxopt.kinds.rowwise.merge import join_rows, take_parts
from onnxopt.program.rowwise import RowProgram

_MIN_ELEMENTS = numbers().min_elements
_CODES = (ir.DataType.FLOAT8E4M3FN, ir.DataType.FLOAT16)  # of products, which read them through a Cast
_MAX_CHAIN = 8  # nodes from a reduction to what a region reads of it
_NEAREST = 256  # neighbours that a region looks at; more read one tensor only in graphs of thousands of like nodes


def find(context: Context, kind: Kind) -> tuple[list[Region], list[Refusal]]:
    """A region for every reduction that no other kind has taken, and refusals of reductions without a region."""
    regions: list[Region] = []
    refusals: list[Refusal] = []
    owned: set[ir.Node] = set()
    for node in context.order:
        if node in owned or context.is_owned(node) or row_domain.operator(node, context.opsets) is None:
            continue
        try:
            growth = _Growth(context, kind, node, owned)
            growth.grow()
            region = take_parts(context, kind, growth.region())
        except ValueError as error:  # Unfit, NotAffine, or an error of lowering
            refusals.append(Refusal(node.name or "", node.op_type, "", str(error)))
            continue
        owned.update(region.nodes)
        context.contract(region.nodes)
        regions.append(region)
    return join_rows(context, kind, regions), refusals


class _Growth:
    """One region while it grows from the reduction `seed`."""

    def __init__(self, context: Context, kind: Kind, seed: ir.Node, owned: set[ir.Node]):
        self._context, self._kind, self._owned = context, kind, owned
        self._opsets, self._shapes = context.opsets, context.shapes
        self._check_row_operator(seed)
        row = row_domain.operator(seed, self._opsets)
        assert row is not None
        self.grid = row_domain.grid(seed, row, self._shapes)
        self.alone = row.alone
        self.nodes = [seed]
        self._inside = {seed}
        self._refused: set[ir.Node] = set()
        value = self.grid.value or self.grid.other_value
        assert value is not None
        elements = self._shapes.elements(value)
        if elements is not None and elements < _MIN_ELEMENTS:
            raise Unfit(f"`{value.name}` has {elements} elements, too few for a kernel of its own")
        self._program(self.inputs(), self.outputs())

    def grow(self) -> None:
        """Add neighbours until none fits."""
        while any(self._take(n) for n in self._neighbours()):
            self._refused.clear()  # a node that would have made a cycle may fit now

    def _neighbours(self) -> list[ir.Node]:
        """Readers of the region's values, then producers of its inputs, each in topological order."""
        consumers = {u for n in self.nodes for v in n.outputs for u in self._context.readers(v)}
        producers = {p for n in self.nodes for v in n.inputs if v is not None and (p := v.producer()) is not None}
        order = self._context.order
        free = (n for n in consumers | producers if n in order and self._is_free(n))
        return heapq.nsmallest(_NEAREST, free, key=lambda n: (n not in consumers, order[n]))

    def _is_free(self, node: ir.Node) -> bool:
        """Whether no region holds the node, this one included, and this one has not refused it."""
        if node in self._inside or node in self._refused or node in self._owned:
            return False
        return not self._context.is_owned(node)

    def _take(self, node: ir.Node) -> bool:
        grid = self._fitting(node)
        added = [node] if grid is not None else self._chain_from_reduction(node)
        if not added or self._is_cheaper_downstream(node):
            self._refused.add(node)
            return False
        before = (self.grid, self.nodes, self._inside)
        self.grid = grid or self.grid
        self.nodes = sorted([*self.nodes, *added], key=self._context.order.__getitem__)
        self._inside = {*self._inside, *added}
        if self._problem() is None:
            return True
        self.grid, self.nodes, self._inside = before
        self._refused.add(node)
        return False

    def _fitting(self, node: ir.Node) -> Grid | None:
        """The region's grid after adding this node, None where the node has another domain."""
        if len(node.outputs) < 1 or self._on_host(node):
            return None
        if row_domain.operator(node, self._opsets) is not None:
            return self._with_row_operator(node)
        if node.op_type in RESHAPES and node.domain == "":
            return self._with_reshape(node)
        if not eligibility.is_elementwise(node):
            return None
        if self._context.why_not(node) is not None:
            return None
        result = node.outputs[0]
        if self.grid.view(result, self._shapes) is not None:
            return self.grid
        reads_row = any(v is not None and v.producer() in self._inside for v in node.inputs)
        return self.grid if reads_row and self.grid.is_row(result, self._shapes) else None

    def _with_row_operator(self, node: ir.Node) -> Grid | None:
        try:
            self._check_row_operator(node)
            row = row_domain.operator(node, self._opsets)
            assert row is not None
            other = row_domain.grid(node, row, self._shapes)
        except Unfit:
            return None
        x = node.inputs[0]
        if x is None or other.target is not None or (other.first, other.last) != (self.grid.first, self.grid.last):
            return None
        return self.grid if self.grid.view(x, self._shapes) == 0 else None

    def _chain_from_reduction(self, last: ir.Node) -> list[ir.Node]:
        """What computes one element a row from another reduction along the same rows, for the region alone; empty
        where `last` ends no such chain. torch's var is one: it has a mean of its own, and norms need the root of it.
        """
        chain, pending = set[ir.Node](), [last]
        reduces = False
        while pending:
            node = pending.pop()
            if node in chain or len(chain) == _MAX_CHAIN or not self._is_free(node) or self._on_host(node):
                return []
            result = node.outputs[0]
            if any(v.is_graph_output() for v in node.outputs) or not (
                self.grid.is_row(result, self._shapes) or self.grid.is_squeezed(result, self._shapes)
            ):
                return []
            chain.add(node)
            if row_domain.operator(node, self._opsets) is not None:
                if self._with_row_operator(node) is None:
                    return []
                reduces = True
                continue
            is_view = node.op_type in RESHAPES and node.domain == ""
            if not is_view and (not eligibility.is_elementwise(node) or self._context.why_not(node) is not None):
                return []
            pending += [p for v in node.inputs if v is not None and (p := v.producer()) is not None]
        readers = {u for n in chain for v in n.outputs for u in self._context.readers(v)}
        return list(chain) if reduces and readers <= chain | self._inside else []

    def _with_reshape(self, node: ir.Node) -> Grid | None:
        source, result = node.inputs[0], node.outputs[0]
        if source is None or self._shapes.dtype(source) is None:
            return None
        grid, shapes = self.grid, self._shapes
        rows = [grid.is_row(v, shapes) or grid.is_squeezed(v, shapes) for v in (source, result)]
        views = [grid.view(v, shapes) for v in (source, result)]
        if None not in views:
            return grid
        if source.producer() in self._inside and all(rows) and views == [None, None]:
            return grid  # the node adds or removes the reduced axes of a value with one element per row
        if 0 not in views or any(rows):
            return None
        return row_domain.with_other_view(grid, source, result, shapes)

    def _check_row_operator(self, node: ir.Node) -> None:
        row = row_domain.operator(node, self._opsets)
        assert row is not None
        values = [v for v in node.inputs[: row.operands] if v is not None]
        for value in values:
            dtype = self._shapes.dtype(value)
            if dtype is None or dtype.name not in row.dtypes:
                of = dtype.name if dtype else "an unknown dtype"
                raise Unfit(f"The operator table has no {node.op_type} of {of} (`{value.name}`)")
        if self._on_host(node):
            raise Unfit(eligibility.runs_on_host(node))
        if all(v.const_value is not None for v in values):
            raise Unfit(f"All inputs of {node.op_type} are constants")

    def _on_host(self, node: ir.Node) -> bool:
        return any(v in self._context.host for v in (node.inputs[0], *node.outputs) if v is not None)

    def inputs(self) -> list[ir.Value]:
        """Values that the region reads from outside, without axes and shapes."""
        return boundary.inputs_of(self.nodes, lambda node: node.inputs[: self._operands(node)])

    def _operands(self, node: ir.Node) -> int:
        row = row_domain.operator(node, self._opsets)
        return row.operands if row is not None else 1 if node.op_type in RESHAPES else len(node.inputs)

    def outputs(self) -> list[ir.Value]:
        """Values that nodes outside the region read."""
        return self._context.outputs_of(self.nodes)

    def _problem(self) -> str | None:
        """The reason why the nodes cannot or should not be one kernel, None where they can."""
        inputs, outputs = self.inputs(), self.outputs()
        operands = len(inputs) + len(outputs)
        if operands > cost.MAX_OPERANDS or len(self.nodes) > cost.MAX_NODES:
            size = f"{operands} tensors and {len(self.nodes)} operators"
            return f"The fused kernel would have {size}; the limits are {cost.MAX_OPERANDS} and {cost.MAX_NODES}"
        for node in self.nodes:
            if self._has_computed_parameters(node):
                return f"The axes or the shape of {node.op_type} are computed at run time"
        for node in self.nodes:
            if self._stores_twice(node, outputs):
                return f"The result of {node.op_type} would be stored twice, in two shapes"
        if self._context.makes_cycle(self.nodes):
            return "Fusing would make a cycle through a node outside the kernel"
        try:
            program = self._program(inputs, outputs)
        except ValueError as error:
            return str(error)
        return None if program.cost <= cost.MAX_COST else "The fused kernel would need too many registers"

    def _is_cheaper_downstream(self, node: ir.Node) -> bool:
        """Whether a DequantizeLinear is for the kernels of its readers, which then read codes that are stored anyway.

        That is where a product reads the codes (kinds/gemm/codes.py), and all readers of the numbers wait for it. Codes
        in 16 bits are dequantized by a Mul.
        """
        dequantizes = integer_kernels.is_coding(node) and node.op_type == integer_kernels.DEQUANTIZE
        codes = node.inputs[0] if dequantizes or _multiplies_float16(node) else None
        if codes is None or codes.producer() not in self._inside or node.outputs[0].is_graph_output():
            return False
        if not any(map(self._is_of_product, self._context.readers(codes))):
            return False
        readers = self._context.readers(node.outputs[0])
        return bool(readers) and all(
            eligibility.is_elementwise(reader)
            and not (self._context.is_owned(reader) or reader in self._owned or reader in self._inside)
            and self._context.why_not(reader) is None
            and self._context.makes_cycle([*self.nodes, node, reader])
            for reader in readers
        )

    def _is_of_product(self, reader: ir.Node) -> bool:
        """Whether a reader of codes belongs to a product of them."""
        if reader.op_type == "Cast" and reader.inputs[0] is not None:
            return self._shapes.ir_dtype(reader.inputs[0]) in _CODES and self._context.is_owned(reader)
        return reader.op_type in RESHAPES and self._has_computed_parameters(reader)

    def _has_computed_parameters(self, node: ir.Node) -> bool:
        """Whether the node reads axes or a shape that are not constants."""
        parameters = [v for v in node.inputs[self._operands(node) :] if v is not None]
        return any(v.const_value is None or v.is_graph_input() for v in parameters)

    def _stores_twice(self, node: ir.Node, outputs: list[ir.Value]) -> bool:
        """Whether a view's result would be an output although its input is in memory already."""
        source = node.inputs[0]
        if node.op_type not in RESHAPES or node.outputs[0] not in outputs or source is None:
            return False
        return source in outputs or source.producer() not in self._inside

    def _program(self, inputs: list[ir.Value], outputs: list[ir.Value]) -> RowProgram:
        return self._context.lowered(lower, self.nodes, inputs, outputs)

    def region(self) -> Region:
        """The grown region. Unfit where the region is not worth a kernel."""
        if len(self.nodes) == 1 and not self.alone:
            op_type = self.nodes[0].op_type
            raise Unfit(f"{op_type} has no neighbour to fuse with, and ONNX Runtime's own kernel is as fast")
        inputs, outputs = self.inputs(), self.outputs()
        region = Region(
            tuple(self.nodes), tuple(inputs), tuple(outputs),
            cost.region_traffic(self.nodes, inputs, outputs, self._shapes), self._kind, self._program(inputs, outputs),
        )  # fmt: skip
        region.verify()
        return region


def _multiplies_float16(node: ir.Node) -> bool:
    """Whether a node multiplies a tensor by one constant of float16."""
    factor = constant(node.inputs[1]) if node.op_type == "Mul" and node.domain == "" else None
    return factor is not None and factor.dtype == ir.DataType.FLOAT16 and factor.size == 1
