"""A GEMM while it absorbs neighbouring nodes, step by step (kinds/gemm/steps.py)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir

from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.program.gemm import Gemm, PackedIntegers


@dataclasses.dataclass(frozen=True)
class Packed:
    """A weight of codes: see program/gemm.py."""

    bits: int
    group: int
    scales: ir.Value
    zeros: ir.Value | None


@dataclasses.dataclass
class GrowingGemm:
    """A GEMM while it absorbs neighbouring nodes.

    nodes: the nodes that it replaces. output: the value that it computes. parts: the values that it computes where its
    columns are split, else empty; output is the first of them. residual_shape, rows, first_row: see program/gemm.py.
    unread: 8-bit codes that the nodes read and the kernel does not, because a and b are the same codes in 16 bits.
    multiplies_codes: a and b are codes, of 16 bits or of 8. per_sample: a 1x1 convolution whose weight each sample has
    for itself.
    """

    nodes: list[ir.Node]
    a: ir.Value
    b: ir.Value
    output: ir.Value
    transpose_a: bool = False
    transpose_b: bool = False
    alpha: float = 1.0
    beta: float = 1.0
    bias: ir.Value | None = None
    residual: ir.Value | None = None
    residual_shape: bool = False
    activation: str = "none"
    parts: tuple[ir.Value, ...] = ()
    unread: tuple[ir.Value, ...] = ()
    multiplies_codes: bool = False
    packed: Packed | None = None
    gate: str | None = None
    per_sample: bool = False
    rows: int = 0
    first_row: int = 0

    def outputs(self) -> tuple[ir.Value, ...]:
        """The values that the GEMM computes."""
        return self.parts or (self.output,)

    def operands(self) -> list[ir.Value]:
        """The values that the GEMM reads, in the order of the region's inputs; a value read twice is there twice."""
        code_operands = () if self.packed is None else (self.packed.scales, self.packed.zeros)
        values = (self.a, self.b, *code_operands, self.bias, self.residual, *self.unread)
        return [v for v in values if v is not None]

    def can_fuse(self) -> bool:
        """Whether the GEMM is faster than the execution provider's own kernels."""
        adds = self.bias is not None or self.residual is not None or self.activation != "none" or self.multiplies_codes
        reads = self.reads_transposed_weight() or self.packed is not None or self.rows > 0
        return adds or bool(self.parts) or reads or self.is_convolution()

    @property
    def has_float8_operands(self) -> bool:
        """Whether the GEMM reads codes of 8-bit floats."""
        return self.b.dtype == ir.DataType.FLOAT8E4M3FN

    def is_convolution(self) -> bool:
        """Whether the GEMM is a 1x1 convolution in NHWC."""
        return self.per_sample or any(n.op_type == "Conv" for n in self.nodes)

    def reads_transposed_weight(self) -> bool:
        """Whether the GEMM reads a transposed weight directly, which the provider would copy at load time."""
        transposed = self.transpose_b and any(n.op_type == "Transpose" for n in self.nodes)
        return transposed and self.b.const_value is not None and not self.b.is_graph_input()

    def meaning(self, inputs: Sequence[ir.Value], shapes: Shapes) -> Gemm:
        """The meaning of the GEMM, for the region's inputs."""

        def at(value: ir.Value | None) -> int | None:
            return None if value is None else inputs.index(value)

        p = self.packed
        packed = None if p is None else PackedIntegers(p.bits, p.group, inputs.index(p.scales), at(p.zeros))
        gemm = Gemm(
            inputs=tuple(dtype_of(v, shapes) for v in inputs),
            outputs=tuple(dtype_of(v, shapes) for v in self.outputs()),
            a=inputs.index(self.a), b=inputs.index(self.b), bias=at(self.bias), residual=at(self.residual),
            transpose_a=self.transpose_a, transpose_b=self.transpose_b,
            alpha=self.alpha, beta=self.beta, residual_shape=self.residual_shape, activation=self.activation,
            unread=tuple(map(inputs.index, self.unread)), packed=packed, gate=self.gate,
            rows=self.rows, first_row=self.first_row,
        )  # fmt: skip
        gemm.verify()
        return gemm


def dtype_of(value: ir.Value, shapes: Shapes) -> str:
    """The name of a value's dtype, or words for one that is not known."""
    dtype = shapes.dtype(value)
    return "an unknown dtype" if dtype is None else dtype.name
