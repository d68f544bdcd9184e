"""Gemm: what one GEMM of the library computes, its epilogue included.

    output = activation(alpha * op(a) @ op(b) + bias + beta * residual)

Sums are float32 for every dtype. Some algorithms of cuBLASLt round the product to the storage dtype before they add
bias and residual, as separate operators do. float32 products use TF32 where ONNX Runtime's own products do (provider
option use_tf32, on by default). The C++ side is custom_ops/program/gemm.h.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

DTYPES = ("float16", "bfloat16", "float32")
ACTIVATIONS = ("none", "relu", "gelu_tanh")
CODES = "float8e4m3fn"
_WIDENED = {
    ("float16", "float32"),
    (CODES, "float16"),
    (CODES, "float32"),
}  # operands and outputs
MOST_PARTS = 8  # kGemmParts of custom_ops/program/gemm.h


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
    unread: positions of inputs that the kernel does not read. Operands may be float16 where all else is float32, and
    codes of 8-bit floats, which alpha scales: then a is as it lies, and b transposed.
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

    def verify(self) -> None:
        """Raise ValueError naming the field that breaks a rule of this class."""
        operands = [i for i in (self.a, self.b, self.bias, self.residual, *self.unread) if i is not None]
        if set(operands) != set(range(len(self.inputs))):
            raise ValueError(f"inputs: operands {operands} are not all of {len(self.inputs)} inputs")
        if not 1 <= len(self.outputs) <= MOST_PARTS:
            raise ValueError(f"outputs: {len(self.outputs)}, not 1 to {MOST_PARTS}")
        self._verify_dtypes()
        if len(self.outputs) > 1 and (self.residual is not None or self.transpose_a):
            raise ValueError("parts go with neither a residual nor a transposed a")
        if self.outputs[0] not in DTYPES:
            raise ValueError(f"outputs: {self.outputs[0]} is not one of {', '.join(DTYPES)}")
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation: {self.activation} is not one of {', '.join(ACTIVATIONS)}")
        if not math.isfinite(self.alpha) or not math.isfinite(self.beta):
            raise ValueError("alpha and beta must be finite")
        if self.residual_shape and self.residual is None:
            raise ValueError("residual_shape without a residual")

    def operand_dtype(self) -> str:
        """The storage dtype of a and b."""
        return self.inputs[self.a]

    def has_codes(self) -> bool:
        """Whether a and b are codes of 8-bit floats."""
        return self.operand_dtype() == CODES

    def _verify_dtypes(self) -> None:
        added = [self.inputs[i] for i in (self.bias, self.residual) if i is not None]
        if {*added, *self.outputs} != {self.outputs[0]}:
            raise ValueError("bias, residual and outputs differ in dtype")
        dtype = self.operand_dtype()
        if self.inputs[self.b] != dtype or (dtype != self.outputs[0] and (dtype, self.outputs[0]) not in _WIDENED):
            raise ValueError(f"operands of {dtype} and {self.inputs[self.b]} with outputs of {self.outputs[0]}")
        if self.has_codes() and (self.transpose_a or not self.transpose_b):
            raise ValueError("codes of 8-bit floats do not go with these transposes")
        if set(self.unread) & {self.a, self.b, self.bias, self.residual}:
            raise ValueError("unread: an operand of the GEMM is among them")

    def to_json(self) -> dict[str, Any]:
        """The form in kernels.json, without the operands that the GEMM does not have."""
        row = dataclasses.asdict(self)
        if not self.unread:
            del row["unread"]
        return {k: list(v) if isinstance(v, tuple) else v for k, v in row.items() if v is not None}
