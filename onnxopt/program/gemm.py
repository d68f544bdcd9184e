"""Gemm: what one GEMM of the library computes, its epilogue included.

    output = activation(alpha * op(a) @ op(b) + bias + beta * residual)

Sums are float32 for every dtype. Some algorithms of cuBLASLt round the product to the storage dtype before they add
bias and residual, as separate operators do. float32 products use TF32 where ONNX Runtime's own products do (provider
option use_tf32, on by default). b may be codes of 2, 4 or 8 bits. The C++ side is custom_ops/program/gemm.h.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

DTYPES = ("float16", "bfloat16", "float32")
ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh")
FLOAT8 = "float8e4m3fn"
_WIDENED = {
    ("float16", "float32"),
    (FLOAT8, "float16"),
    (FLOAT8, "float32"),
}  # operands and outputs
MOST_PARTS = 8  # kGemmParts of custom_ops/program/gemm.h
GATES = ("silu", "gelu_tanh")
PACKED_BITS = (2, 4, 8)
GROUPS = (16, 32, 64, 128, 256)  # codes that share a scale
LEAST_GROUP = {2: 32, 4: 16, 8: 16}  # by bits: a word of 2-bit codes has them all of one scale, and its neighbour
_IN_JSON = {"packed": "codes"}  # fields whose name in kernels.json is another one
SIXTEEN_BIT = ("float16", "bfloat16")  # dtypes of a where b is packed, and with an exact GELU


@dataclasses.dataclass(frozen=True)
class PackedIntegers:
    """Weights as com.microsoft.MatMulNBits stores them: b is uint8 [N, ceil(K / group), group * bits / 8].

    scales, zeros: positions in inputs. Scales [N, ceil(K / group)] have the dtype of a. Zero points are floats of that
    dtype and shape, or uint8, packed along the last dim as codes are; None for the middle of the codes.
    """

    bits: int
    group: int
    scales: int
    zeros: int | None = None

    def verify(self, inputs: Sequence[str], dtype: str) -> None:
        """Raise ValueError naming the field that breaks a rule of this class. dtype: of a."""
        if self.bits not in PACKED_BITS or self.group not in GROUPS or self.group < LEAST_GROUP[self.bits]:
            raise ValueError(f"packed: {self.bits} bits in groups of {self.group}")
        if dtype not in SIXTEEN_BIT or inputs[self.scales] != dtype:
            raise ValueError(f"packed: scales of {inputs[self.scales]} with a of {dtype}")
        if self.zeros is not None and inputs[self.zeros] not in ("uint8", dtype):
            raise ValueError(f"packed: zero points of {inputs[self.zeros]}")

    def to_json(self) -> dict[str, Any]:
        """The form in kernels.json, without the zero points that there are not."""
        return {k: v for k, v in dataclasses.asdict(self).items() if v is not None}


@dataclasses.dataclass(frozen=True)
class Gemm:
    """The meaning of a GEMM kernel.

    inputs: storage dtypes of all inputs. outputs: storage dtype of the output [..., M, N]. Several outputs are equal
    parts of it, [..., M, N / parts] side by side; then b is one matrix and there is no residual.
    a, b, bias, residual: positions in inputs, None where the GEMM has no such operand. Their shapes are
    [..., M, K], [..., K, N], [N] and [..., M, N]; leading dims broadcast as those of MatMul.
    transpose_a, transpose_b: the last two dims of the operand are swapped first.
    residual_shape: the output has the dims of the residual, of which only the last must be N. This is the case where a
    Reshape between the MatMul and the Add is part of the kernel.
    activation: one of ACTIVATIONS. gelu is exact, and of 16-bit floats alone.
    unread: positions of inputs that the kernel does not read. Operands may be float16 where all else is float32, and
    codes of 8-bit floats, which alpha scales: then a is as it lies, and b transposed.
    packed: how b holds integers of 2, 4 or 8 bits instead of floats, a matrix [N, K] that transpose_b goes with.
    gate: with a packed b alone, one of GATES: the output is [..., M, N / 2], gate(g) * u of the two halves g and u of
    the columns, bias included. There is neither a residual nor an activation then.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    a: int = 0
    b: int = 1
    bias: int | None = None
    residual: int | None = None
    transpose_a: bool = False
    transpose_b: bool = False
    alpha: float = 1.0
    beta: float = 1.0
    residual_shape: bool = False
    activation: str = "none"
    unread: tuple[int, ...] = ()
    packed: PackedIntegers | None = None
    gate: str | None = None

    def verify(self) -> None:
        """Raise ValueError naming the field that breaks a rule of this class."""
        of_packed = () if self.packed is None else (self.packed.scales, self.packed.zeros)
        operands = [i for i in (self.a, self.b, self.bias, self.residual, *self.unread, *of_packed) if i is not None]
        if set(operands) != set(range(len(self.inputs))):
            raise ValueError(f"inputs: operands {operands} are not all of {len(self.inputs)} inputs")
        if not 1 <= len(self.outputs) <= MOST_PARTS:
            raise ValueError(f"outputs: {len(self.outputs)}, not 1 to {MOST_PARTS}")
        self._verify_dtypes()
        if len(self.outputs) > 1 and (self.residual is not None or self.transpose_a):
            raise ValueError("parts go with neither a residual nor a transposed a")
        if self.outputs[0] not in DTYPES:
            raise ValueError(f"outputs: {self.outputs[0]} is not one of {', '.join(DTYPES)}")
        if self.gate is not None:
            plain = self.residual is None and self.activation == "none" and len(self.outputs) == 1
            if self.gate not in GATES or self.packed is None or not plain:
                raise ValueError(f"gate: {self.gate} of a product without packed weights, or with another epilogue")
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation: {self.activation} is not one of {', '.join(ACTIVATIONS)}")
        if self.activation == "gelu" and (self.packed or {*self.inputs, *self.outputs} - set(SIXTEEN_BIT)):
            raise ValueError(f"activation: {self.activation} of {self.outputs[0]} and inputs of {self.inputs}")
        if not math.isfinite(self.alpha) or not math.isfinite(self.beta):
            raise ValueError("alpha and beta must be finite")
        if self.residual_shape and self.residual is None:
            raise ValueError("residual_shape without a residual")

    def operand_dtype(self) -> str:
        """The storage dtype of a and b."""
        return self.inputs[self.a]

    def has_float8_operands(self) -> bool:
        """Whether a and b are codes of 8-bit floats."""
        return self.operand_dtype() == FLOAT8

    def _verify_dtypes(self) -> None:
        added = [self.inputs[i] for i in (self.bias, self.residual) if i is not None]
        if {*added, *self.outputs} != {self.outputs[0]}:
            raise ValueError("bias, residual and outputs differ in dtype")
        dtype = self.operand_dtype()
        if self.packed is not None:
            self.packed.verify(self.inputs, dtype)
            if self.inputs[self.b] != "uint8" or dtype != self.outputs[0] or not self.transpose_b or self.transpose_a:
                raise ValueError("packed: b is no transposed matrix of uint8, or dtypes differ")
        elif self.inputs[self.b] != dtype or (dtype != self.outputs[0] and (dtype, self.outputs[0]) not in _WIDENED):
            raise ValueError(f"operands of {dtype} and {self.inputs[self.b]} with outputs of {self.outputs[0]}")
        if self.has_float8_operands() and (self.transpose_a or not self.transpose_b):
            raise ValueError("codes of 8-bit floats do not go with these transposes")
        if set(self.unread) & {self.a, self.b, self.bias, self.residual}:
            raise ValueError("unread: an operand of the GEMM is among them")

    def to_json(self) -> dict[str, Any]:
        """The form in kernels.json, without the operands that the GEMM does not have."""
        row = dataclasses.asdict(self)
        if not self.unread:
            del row["unread"]
        row["packed"] = None if self.packed is None else self.packed.to_json()
        named = {_IN_JSON.get(k, k): v for k, v in row.items() if v is not None}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in named.items()}
