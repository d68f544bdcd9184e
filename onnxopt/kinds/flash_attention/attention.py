"""An attention of many queries in the graph, and what its nodes mean, whichever operators spell it."""

from __future__ import annotations

import dataclasses
from typing import Literal

import onnx_ir as ir

from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.kinds.flash_attention.operands import Operands
from onnxopt.program.flash_attention import STORED, FlashAttention, why_not

Lengths = tuple[int | str | None, int | str | None]


@dataclasses.dataclass(frozen=True)
class Attention:
    """An attention and what it reads. nodes: in no order. inputs: of the kernel. lengths: of queries and keys.

    alone: ONNX Runtime has no operator that computes it.
    """

    node: ir.Node
    nodes: tuple[ir.Node, ...]
    inputs: tuple[ir.Value, ...]
    output: ir.Value
    meaning: FlashAttention
    lengths: Lengths
    alone: bool

    def bias(self, shapes: Shapes) -> Literal["", "keys", "scores"]:
        """Whether what is added to scores is there, and the same for all queries."""
        if self.meaning.bias is None:
            return ""
        dims = shapes.dims(self.inputs[self.meaning.bias])
        return "keys" if dims is not None and len(dims) > 1 and dims[-2] == 1 else "scores"

    @property
    def shares_tensors(self) -> bool:
        """Whether two of q, k and v lie in one tensor, so that they would be copied out of it."""
        return len({heads.input for heads, *_ in self.meaning.operands}) < len(self.meaning.operands)


def made(
    node: ir.Node,
    output: ir.Value,
    nodes: tuple[ir.Node, ...],
    read: Operands,
    shapes: Shapes,
    *,
    heads: int,
    scale: float,
    bias: ir.Value | None = None,
    sinks: ir.Value | None = None,
    cap: float | None = None,
    before: int | None = None,
    after: int | None = None,
    alone: bool = False,
) -> Attention | str:
    """The attention, or why no kernel runs it. See Attention and FlashAttention."""
    dtype = shapes.dtype(read.inputs[0])
    if dtype is None or dtype.name not in STORED:
        of = dtype.name if dtype else "unknown"
        return f"The kernel supports {' and '.join(STORED)}; q has dtype {of}"
    inputs = tuple(dict.fromkeys((*read.inputs, *(v for v in (bias, sinks) if v is not None))))
    if any(shapes.dtype(v) != dtype for v in inputs):
        return f"The inputs of {node.op_type} do not all have dtype {dtype.name}"
    if reason := why_not(heads, read.groups, read.width, read.values, scale):
        return reason
    q, k, v = read.heads
    meaning = FlashAttention(
        (dtype.name,) * len(inputs), (dtype.name,), heads, read.groups, read.width, read.values, scale, q, k, v,
        bias=None if bias is None else inputs.index(bias), sinks=None if sinks is None else inputs.index(sinks),
        cap=cap, before=before, after=after,
    )  # fmt: skip
    try:
        meaning.verify()
    except ValueError as error:
        return f"{node.op_type} cannot be one kernel: {error}"
    return Attention(node, nodes, inputs, output, meaning, read.tokens, alone)
