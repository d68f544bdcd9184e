"""An attention of many queries in the graph, and what its nodes mean, whichever operators spell it."""

from __future__ import annotations

import dataclasses
from typing import Literal, NamedTuple

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


class Scores(NamedTuple):
    """How scores are computed and which of them count; see FlashAttention."""

    scale: float
    bias: ir.Value | None = None
    sinks: ir.Value | None = None
    cap: float | None = None
    before: int | None = None
    after: int | None = None
    hidden: str = "scores"


def attention_of(
    node: ir.Node,
    nodes: tuple[ir.Node, ...],
    read: Operands,
    heads: int,
    scores: Scores,
    shapes: Shapes,
    *,
    alone: bool,
) -> Attention | str:
    """The attention whose result `node` writes, or why no kernel runs it. See Attention."""
    bias, sinks = scores.bias, scores.sinks
    dtype = shapes.dtype(read.inputs[0])
    if dtype is None or dtype.name not in STORED:
        of = dtype.name if dtype else "unknown"
        return f"The kernel supports {', '.join(STORED)}; q has dtype {of}"
    inputs = tuple(dict.fromkeys((*read.inputs, *(v for v in (bias, sinks) if v is not None))))
    if any(shapes.dtype(v) != dtype for v in inputs):
        return f"The inputs of {node.op_type} do not all have dtype {dtype.name}"
    if reason := why_not(heads, read.groups, read.width, read.values, scores.scale):
        return reason
    q, k, v = read.heads
    meaning = FlashAttention(
        (dtype.name,) * len(inputs), (dtype.name,), heads, read.groups, read.width, read.values, scores.scale, q, k, v,
        bias=None if bias is None else inputs.index(bias), sinks=None if sinks is None else inputs.index(sinks),
        cap=scores.cap, before=scores.before, after=scores.after, hidden=scores.hidden,
    )  # fmt: skip
    try:
        meaning.verify()
    except ValueError as error:
        return f"{node.op_type} cannot be one kernel: {error}"
    return Attention(node, nodes, inputs, node.outputs[0], meaning, read.tokens, alone)
