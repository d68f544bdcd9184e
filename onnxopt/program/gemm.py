"""Gemm: what one GEMM of the library computes, its epilogue included.

    output = activation(alpha * op(a) @ op(b) + bias + beta * residual)

Sums are float32 for every dtype. Some algorithms of cuBLASLt round the product to the storage dtype before they add
bias and residual, as separate operators do. float32 products use TF32 where ONNX Runtime's own products do (provider
option use_tf32, on by default). b may be codes of 2, 4 or 8 bits. cuBLASLt has a list of epilogues, so no
program is one.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from onnxopt.program.fields import choice, flag, integer, nested, number, operand, unread
from onnxopt.program.hardware import ACCESS_BYTES, MAX_SHARED_BYTES
from onnxopt.program.schema import WHOLE_WARPS, Meaning, Record, Rule, Variant, shared

DTYPES = ("float16", "bfloat16", "float32")
ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "silu")
FLOAT8 = "float8e4m3fn"
MAX_PARTS = 8
GATES = ("silu", "gelu_tanh")
PACKED_BITS = (2, 4, 8)
GROUPS = (16, 32, 64, 128, 256)  # codes that share a scale
MIN_GROUP = {2: 32, 4: 16, 8: 16}  # by bits: a word of 2-bit codes has them all of one scale, and its neighbour
SIXTEEN_BIT = ("float16", "bfloat16")  # dtypes of a where b is packed
_ACTIVATED = (*SIXTEEN_BIT, "float32")  # dtypes of activations that cuBLASLt does not have


@dataclasses.dataclass(frozen=True)
class PackedIntegers(Record):
    """Weights as com.microsoft.MatMulNBits stores them: b is uint8 [N, ceil(K / group), group * bits / 8].

    scales, zeros: positions in inputs. Scales [N, ceil(K / group)] have the dtype of a. Zero points are floats of that
    dtype and shape, or uint8, packed along the last dim as codes are; None for the middle of the codes.
    """

    RULES: ClassVar = (
        Rule("bits", "bits in (2, 4, 8)", "are not 2, 4 or 8"),
        Rule("group", f"group in {GROUPS}", "is no power of 2 of codes"),
        Rule("group", f"bits > 2 or group >= {MIN_GROUP[2]}", "is too short for 2 bits"),
    )
    bits: int = integer(2, 8)
    group: int = integer(GROUPS[0], GROUPS[-1])
    scales: int = operand(SIXTEEN_BIT, same_as="outputs")
    zeros: int | None = operand(("uint8", *SIXTEEN_BIT), optional=True)


@dataclasses.dataclass(frozen=True)
class Gemm(Meaning):
    """The meaning of a GEMM kernel.

    inputs: storage dtypes of all inputs. outputs: storage dtype of the output [..., M, N]. Several outputs are equal
    parts of it, [..., M, N / parts] side by side; then b is one matrix and there is no residual.
    a, b, bias, residual: positions in inputs, None where the GEMM has no such operand. Their shapes are
    [..., M, K], [..., K, N], [N] and [..., M, N]; leading dims broadcast as those of MatMul.
    transpose_a, transpose_b: the last two dims of the operand are swapped first.
    residual_shape: the output has the dims of the residual, of which only the last must be N. This is the case where a
    Reshape between the MatMul and the Add is part of the kernel.
    activation: one of ACTIVATIONS. gelu is exact; it and silu are of products of floats alone.
    unread: positions of inputs that the kernel does not read. Operands may be float16 where all else is float32, and
    codes of 8-bit floats, which alpha scales: then a is as it lies, and b transposed.
    packed: how b holds integers of 2, 4 or 8 bits instead of floats, a matrix [N, K] that transpose_b goes with.
    rows: where it is not 0, a is [..., T, K] and M = rows of its T rows are read, from the row `first_row` on.
    gate: with a packed b alone, one of GATES: the output is [..., M, N / 2], gate(g) * u of the two halves g and u of
    the columns, bias included. There is neither a residual nor an activation then.
    """

    KIND: ClassVar = "gemm"
    INPUTS: ClassVar = (1, 6)
    OUTPUTS: ClassVar = (1, MAX_PARTS)
    OUTPUT_DTYPES: ClassVar = DTYPES
    RULES: ClassVar = (
        Rule("outputs", "all(d == outputs[0] for d in outputs)", "differ in dtype"),
        Rule("inputs", "packed is not None or inputs[a] == inputs[b]", "have other dtypes for a than for b"),
        Rule(
            "inputs",
            "packed is not None or inputs[a] == outputs[0] or (inputs[a] == 'float16' and outputs[0] == 'float32')"
            f" or (inputs[a] == '{FLOAT8}' and outputs[0] != 'bfloat16')",
            "differ from the output's dtype",
        ),
        Rule(
            "packed",
            f"packed is None or (inputs[b] == 'uint8' and inputs[a] == outputs[0] and outputs[0] in {SIXTEEN_BIT})",
            "do not go with these dtypes",
        ),
        Rule("packed", "packed is None or (transpose_b and not transpose_a)", "do not go with these transposes"),
        Rule(
            "packed",
            "packed is None or packed.zeros is None or inputs[packed.zeros] in ('uint8',)"
            " or inputs[packed.zeros] == outputs[0]",
            "have zeros of another dtype",
        ),
        Rule(
            "inputs",
            f"inputs[a] != '{FLOAT8}' or (transpose_b and not transpose_a)",
            "are codes of 8-bit floats, which do not go with these transposes",
        ),
        Rule(
            "outputs",
            "len(outputs) == 1 or (residual is None and not transpose_a)",
            "are several, which go with neither a residual nor a transposed a",
        ),
        Rule(
            "gate",
            "gate is None or (packed is not None and residual is None and activation == 'none' and len(outputs) == 1)",
            "does not go with this product",
        ),
        Rule(
            "activation",
            "activation not in ('gelu', 'silu')"
            f" or (packed is None and inputs[a] == outputs[0] and outputs[0] in {_ACTIVATED})",
            "does not go with these dtypes",
        ),
        Rule(
            "rows",
            f"rows == 0 or (packed is None and not transpose_a and inputs[a] != '{FLOAT8}' and len(outputs) == 1)",
            "do not go with this product",
        ),
        Rule("first_row", "first_row == 0 or rows > 0", "is set without rows"),
        Rule("residual_shape", "not residual_shape or residual is not None", "is set without a residual"),
    )
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    a: int = operand(default=0)
    b: int = operand(default=1)
    bias: int | None = operand(same_as="outputs", optional=True)
    residual: int | None = operand(same_as="outputs", optional=True)
    transpose_a: bool = flag(default=False)
    transpose_b: bool = flag(default=False)
    alpha: float = number(default=1.0)
    beta: float = number(default=1.0)
    residual_shape: bool = flag(default=False)
    activation: str = choice("Activation", ACTIVATIONS, default="none")
    unread: tuple[int, ...] = unread(default=(), omit=True)
    packed: PackedIntegers | None = nested(PackedIntegers, optional=True, key="codes")
    gate: str | None = choice("Activation", GATES, optional=True)
    rows: int = integer(0, default=0, omit=True)
    first_row: int = integer(0, default=0, omit=True)

    @property
    @shared
    def dtype(self) -> str:
        """Of the outputs, the bias and the residual."""
        return self.outputs[0]

    @property
    @shared
    def operands(self) -> str:
        """The dtype of a and b; of a alone where b is packed."""
        return self.inputs[self.a]

    @property
    @shared
    def has_float8_operands(self) -> bool:
        """Whether a and b are codes of 8-bit floats."""
        return self.inputs[self.a] == "float8e4m3fn"

    @property
    @shared
    def packed_zeros(self) -> bool:
        """Whether zero points are packed as codes are."""
        return self.packed is not None and self.packed.zeros is not None and self.inputs[self.packed.zeros] == "uint8"

    @property
    @shared
    def activates_apart(self) -> bool:
        """Whether kernels of ours compute the activation: cuBLASLt has neither an exact GELU nor a SiLU."""
        return self.activation in ("gelu", "silu")


@dataclasses.dataclass(frozen=True)
class WidenVariant(Variant):
    """Codes of 8 bits become 16-bit floats, 8 by a thread."""

    KERNEL = Gemm
    RULES = (Rule("vector", "vector == 8", "is not 8"),)


@dataclasses.dataclass(frozen=True)
class FewRowsVariant(Variant):
    """For up to `rows` rows of a. A warp computes `columns` columns, `unroll` vectors of each at a time. shared: bytes
    of a block on the matrix units."""

    KERNEL = Gemm
    RULES = (
        WHOLE_WARPS,
        Rule("vector", f"vector * size(kernel.operands) == {ACCESS_BYTES}", f"is not {ACCESS_BYTES} bytes"),
        Rule(
            "rows",
            "kernel.transpose_b and not kernel.transpose_a",
            "are of a product with its second operand transposed alone",
        ),
        Rule(
            "rows",
            "kernel.operands == kernel.dtype or kernel.has_float8_operands",
            "are of a product whose operands have the result's dtype",
        ),
    )
    rows: int = integer(1, 64, default=1)
    columns: int = integer(1, 32, default=1)
    shared: int = integer(0, MAX_SHARED_BYTES, default=0)


@dataclasses.dataclass(frozen=True)
class PackedVariant(Variant):
    """role: "codes" for up to `rows` rows of a, "floats" turns the weight into floats, "gate" multiplies the halves of
    a product of these. columns: of the result, by a block. shared: bytes of a block.
    """

    KERNEL = Gemm
    RULES = (WHOLE_WARPS,)
    role: str = choice("PackedRole", ("codes", "floats", "gate"), default="codes")
    rows: int = integer(0, 64, default=0)
    columns: int = integer(1, 256, default=1)
    shared: int = integer(0, MAX_SHARED_BYTES, default=0)


_ACTIVATES_APART = Rule("role", "kernel.activates_apart", "does not go with this product's activation")


@dataclasses.dataclass(frozen=True)
class ActivationVariant(Variant):
    """The activation alone, in place."""

    KERNEL = Gemm
    RULES = (_ACTIVATES_APART,)
    role: str = choice("ActivationRole", ("activation",), default="activation")


@dataclasses.dataclass(frozen=True)
class TilesVariant(Variant):
    """The product of many rows, by tiles of 128 rows and `columns` columns, on Hopper. shared: bytes of a block."""

    KERNEL = Gemm
    RULES = (
        _ACTIVATES_APART,
        Rule("threads", "threads == 384", "is not 384"),
        Rule("columns", "not kernel.transpose_a", "are of a product whose first operand is not transposed"),
        Rule("columns", "kernel.dtype != 'float32' or kernel.transpose_b", "are of float32 whose second one is"),
    )
    role: str = choice("TilesRole", ("tiles",), default="tiles")
    columns: int = integer(64, 256, 64, default=256)
    shared: int = integer(0, MAX_SHARED_BYTES, default=0)
