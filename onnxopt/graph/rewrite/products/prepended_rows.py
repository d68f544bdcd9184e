"""Constant rows in front of a tensor go into a constant that is added to both.

    Add(Concat(Expand(row), x), positions) -> Add(Pad(x), positions + row)

Vision transformers put the row of a class token in front of the patches, and add positions. Where the batch is
symbolic, Expand repeats the row in a kernel of its own at every run; Pad is address arithmetic in the Add's kernel. The
sum is rounded once, as before. -0.0 in front becomes 0.0. Where the number of patches is symbolic, the positions state
it: a Reshape of x fails at every other number, as the Add did. Sizes are taken to be at least 1.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import MatchContext, MatchResult, RewriteRuleClassBase

from onnxopt.graph.match import is_constant
from onnxopt.graph.passes.rooted import Rooted
from onnxopt.graph.rewrite.rule_sets import RuleSet
from onnxopt.graph.rewrite.weights import array_of, rounded

_PADDED = (ir.DataType.FLOAT, ir.DataType.FLOAT16)  # dtypes that ONNX Runtime's Pad has CUDA kernels for


class FrontRows(RewriteRuleClassBase):
    """reverse: whether the constant is the first operand of the Add."""

    def __init__(self, reverse: bool) -> None:
        super().__init__(f"FrontRows{'Reversed' if reverse else ''}")
        self._reverse = reverse

    def pattern(self, op, row, shape, x, positions):
        expanded = op.Expand(row, shape, _outputs=["expanded"])
        joined = op.Concat(expanded, x, _allow_other_attributes=True, _outputs=["joined"])
        return op.Add(positions, joined) if self._reverse else op.Add(joined, positions)

    def check(self, context: MatchContext, row, shape, x, positions, expanded, joined) -> MatchResult:
        result = MatchResult()
        if not is_constant(row) or not is_constant(positions):
            return result.fail("the prepended rows, or what is added, is no constant")
        if positions.dtype not in _PADDED or any(v.shape is None for v in (x, expanded, joined)):
            return result.fail(f"ONNX Runtime pads no {positions.dtype} on CUDA, or a shape is not known")
        axis, sums, rows = _axis(joined), positions.const_value.shape.numpy(), row.const_value.shape.numpy()
        if not len(sums) == len(rows) == len(joined.shape):
            return result.fail("the constants have fewer dims than the result")
        if rows[axis] != expanded.shape[axis] or not _fits(joined.shape[axis], sums[axis], rows[axis]):
            return result.fail("the number of rows is not known, or they repeat")
        if any(n not in (1, d) for k, (n, d) in enumerate(zip(sums, joined.shape, strict=True)) if k != axis):
            return result.fail("what is added repeats the rows")
        return result

    def rewrite(self, op, row, shape, x, positions, expanded, joined):
        axis, rank = _axis(joined), len(joined.shape)
        count = row.const_value.shape.numpy()[axis]
        prefix = [slice(None)] * axis + [slice(count)]
        array, rows = array_of(positions), array_of(row)
        others = np.broadcast_shapes(np.take(array, [0], axis).shape, np.take(rows, [0], axis).shape)
        whole = np.broadcast_to(array, (*others[:axis], array.shape[axis], *others[axis + 1 :])).copy()
        whole[tuple(prefix)] += rows
        name = f"{positions.name}/with_rows_in_front"
        sums = op.initializer(rounded(whole, positions.dtype, name), name=name)
        pads = [count if k == axis else 0 for k in range(2 * rank)]
        if not isinstance(x.shape[axis], int):
            dims = [array.shape[axis] - count if k == axis else 0 for k in range(rank)]
            x = op.Reshape(x, op.Constant(value=ir.tensor(dims, dtype=ir.DataType.INT64)))
        return op.Add(op.Pad(x, op.Constant(value=ir.tensor(pads, dtype=ir.DataType.INT64))), sums)


def _fits(joined: int | ir.SymbolicDim, sums: int, rows: int) -> bool:
    """Whether as many rows are added as there are: a number of more than the constant rows is no 1 that repeats."""
    return joined == sums if isinstance(joined, int) else sums > rows


def _axis(joined: ir.Value) -> int:
    """The axis of a Concat whose rank is known."""
    node = joined.producer()
    assert node is not None and joined.shape is not None
    return node.attributes.get_int("axis") % len(joined.shape)


RULES = (RuleSet(lambda _: [Rooted("Add", FrontRows.rule(reverse)) for reverse in (False, True)]),)


def may_apply(graph: ir.Graph) -> bool:
    """Whether a graph joins what it expands with something else."""
    return any(
        node.op_type == "Expand" and any(reader.op_type == "Concat" for reader in node.outputs[0].consumers())
        for node in graph
    )
