"""A program as CUDA statements, over the functions of cuda_kernels/device/."""

from __future__ import annotations

import itertools
import math
from collections.abc import Container, Mapping, Sequence
from typing import cast

import numpy as np

from onnxopt.program.cuda_text import code_arithmetic, decomposed
from onnxopt.program.dtypes import DTYPES, FLOAT8
from onnxopt.program.pointwise import Instruction, Program

C_TYPES = {d.compute: ("float" if d.compute == "float32" else DTYPES[d.compute].cuda) for d in DTYPES.values()}
_RENAMED = {"not": "logic_not", "and": "logic_and", "or": "logic_or", "xor": "logic_xor"}
PACKED = frozenset(
    {"const", "add", "sub", "neg", "min", "max", "abs", "bit_not", "bit_and", "bit_or", "bit_xor"}
)  # cuda_kernels/device/packed.cuh
_APPROXIMATE = frozenset(
    {"exp", "expm1", "log", "log1p", "sqrt", "sin", "cos", "tanh", "erf", "div"}
)  # cuda_kernels/device/approximate.cuh
_MIN_ADDED = 2.0**-100  # an ulp of this number is a normal float32
INDEX = {32: "uint32_t", 64: "uint64_t"}


def has_wide_floats(program: Program) -> bool:
    """Whether some float has more than 16 bits, so that the error of approximate functions would be visible."""
    floats = [d for name in (*program.inputs, *program.outputs) if (d := DTYPES[name]).kind == "float"]
    return any(d.size > 2 for d in floats)


def is_exact(program: Program) -> bool:
    """The same for a part of a kernel, whose leaves may be computed: conversions may show the errors of those."""
    return has_wide_floats(program) or any(map(_makes_codes, program.code))


def seen_by_casts(program: Program) -> set[int]:
    """The values whose last bits may decide what a conversion gives, such as a code.

    What a rounding to 16 bits follows is left out: errors of approximate functions do not show after that.
    """
    first, seen = len(program.leaves), set[int]()
    waiting = [a for i in program.code if _makes_codes(i) for a in i.args]
    while waiting:
        value = waiting.pop()
        if value in seen:
            continue
        seen.add(value)
        if value >= first and program.code[value - first].op != "narrow":
            waiting += program.code[value - first].args
    return seen


def _makes_codes(instruction: Instruction) -> bool:
    """Whether an instruction rounds so coarsely that the error of its operand may move the result by a large step."""
    return instruction.op in ("cast", "round") or instruction.storage in FLOAT8


def statements(
    program: Program,
    inputs: list[str],
    exact: bool,
    sums: Container[int] = (),
    *,
    packed: bool = False,
    stored: Sequence[int | None] = (),
) -> tuple[list[str], list[str]]:
    """The program's code as CUDA statements over the expressions `inputs`, and the program's results as expressions.

    exact: without approximate functions; else they are used where no conversion to integers shows their error. sums:
    leaves that are at least 1 and never infinite. packed: for four 8-bit elements at once. stored: of each output, a
    value to give in place of its own.
    """
    names = list(inputs)
    body = []
    first, seen = len(program.leaves), seen_by_casts(program)
    candidates = [] if exact else [k for k in range(len(program.code)) if first + k not in seen]
    gelus = {k: gelu for k in candidates if (gelu := decomposed.gelu(program, k))}
    results = [decomposed.stored_value(program, k) for k in range(len(program.results))]
    results = [new if new is not None else old for old, new in itertools.zip_longest(results, stored)]
    needed = _needed(program, results, gelus)
    for k, instruction in enumerate(program.code):
        if instruction.op == "const":
            names.append(_packed_literal(instruction) if packed else literal(instruction))
            continue
        names.append(f"v{k}")
        if first + k not in needed:
            continue
        args = instruction.args
        exactly = exact or first + k in seen
        more = ""
        if k in gelus:
            function, args = "approximate::gelu", gelus[k]
        elif _is_reciprocal_of_normal(instruction, program):
            function = "reciprocal_of_normal" if exactly else "approximate::reciprocal_of_normal"
            args = args[1:]
        elif exactly and instruction.op == "div" and args[1] in sums:
            function = "divide_by_sum"
        elif (code_function := code_arithmetic.function(k, program)) is not None:
            function = code_function
        elif exactly and (inverse := _inverse(k, program)) is not None:
            function, more = "divide_by_constant", f", {literal(inverse)}"
        else:
            function = _exact_function(instruction) if exactly else _approximate_function(instruction, program)
        operands = ", ".join(names[a] for a in args) + more
        c_type = C_TYPES[instruction.dtype]
        body.append(f"const {f'Packed<{c_type}>' if packed else c_type} v{k} = {function}({operands});")
    return body, [names[value] for value in results]


def _needed(program: Program, results: Sequence[int], gelus: Mapping[int, tuple[int, int]]) -> set[int]:
    """The values that results are made of."""
    first, needed, waiting = len(program.leaves), set[int](), list(results)
    while waiting:
        value = waiting.pop()
        if value not in needed:
            needed.add(value)
            waiting += gelus.get(value - first, program.code[value - first].args) if value >= first else ()
    return needed


def _inverse(k: int, program: Program) -> Instruction | None:
    """What divide_by_constant takes beside the operands of instruction k, where that rounds x / constant to a code.

    That is an integer or an 8-bit float. The quotients that it does not give exactly are rounded to 0.
    """
    instruction, first = program.code[k], len(program.leaves)
    if instruction.op != "div" or instruction.dtype != "float32" or not _constant_id(instruction.args[1], program):
        return None
    users = [i for i in program.code if first + k in i.args]
    if not users or any(i.op != "round" and i.storage not in FLOAT8 for i in users) or first + k in program.results:
        return None
    value = program.code[instruction.args[1] - first].value
    assert isinstance(value, float)
    significand, _ = math.frexp(abs(value))
    if not 2.0**-60 <= abs(value) <= 2.0**60 or significand == 1 - 2.0**-24:
        return None
    return Instruction("const", "float32", value=float(np.float32(1) / np.float32(value)))


def _packed_literal(instruction: Instruction) -> str:
    byte = int(cast(int, instruction.value)) % 256
    return f"Packed<{C_TYPES[instruction.dtype]}>{{0x{byte * 0x01010101:08x}u}}"


def _exact_function(instruction: Instruction) -> str:
    if instruction.op == "cast":
        return f"cast<{C_TYPES[instruction.dtype]}>"
    if instruction.op == "narrow":
        return f"narrow<{DTYPES[str(instruction.storage)].cuda}>"
    return _RENAMED.get(instruction.op, instruction.op)


def _approximate_function(instruction: Instruction, program: Program) -> str:
    if instruction.op not in _APPROXIMATE or instruction.dtype != "float32":
        return _exact_function(instruction)
    if instruction.op == "erf" and _is_only_added_to_one(instruction, program):
        return "approximate::erf_plus"
    if instruction.op == "div" and _constant_id(instruction.args[0], program):
        return "approximate::divide_constant"
    return f"approximate::{instruction.op}"


def _constant_id(value: int, program: Program) -> bool:
    first = len(program.leaves)
    return value >= first and program.code[value - first].op == "const"


def _is_reciprocal_of_normal(instruction: Instruction, program: Program) -> bool:
    """Whether the instruction is 1 / (x + constant), as in sigmoid.

    Such a sum is 0 or at least an ulp of the constant, so it is never subnormal and its reciprocal needs no branch.
    """
    if instruction.op != "div" or instruction.dtype != "float32":
        return False
    first = len(program.leaves)
    one, sum_ = (program.code[a - first] if a >= first else None for a in instruction.args)
    if one is None or one.op != "const" or one.value != 1.0 or sum_ is None or sum_.op != "add":
        return False
    added = [program.code[a - first].value for a in sum_.args if _constant_id(a, program)]
    return any(c is not None and abs(c) >= _MIN_ADDED for c in added)


def _is_only_added_to_one(instruction: Instruction, program: Program) -> bool:
    first = len(program.leaves)
    own_id = first + program.code.index(instruction)
    uses = [i for i in program.code if own_id in i.args]
    ones = {first + k for k, i in enumerate(program.code) if i.op == "const" and i.value == 1.0}
    return own_id not in program.results and all(i.op == "add" and ones & set(i.args) for i in uses)


def literal(instruction: Instruction) -> str:
    """A constant as a C++ literal of its compute dtype with the same bits, except for NaN payloads."""
    value, dtype = instruction.value, instruction.dtype
    c_type = C_TYPES[dtype]
    if dtype == "bool":
        return "true" if value else "false"
    if dtype not in ("float32", "float64"):
        suffix = "ull" if dtype == "uint64" else "ll" if dtype == "int64" else "u" if dtype == "uint32" else ""
        minimum = value == -(2**63) if dtype == "int64" else False
        return f"{c_type}({'-9223372036854775807ll - 1' if minimum else f'{value}{suffix}'})"
    number = float(value)  # type: ignore[arg-type]
    if math.isnan(number):
        return f"{c_type}(not_a_number())"
    if math.isinf(number):
        return f"{'-' if number < 0 else ''}{c_type}(infinity())"
    text = str(np.float32(number)) if dtype == "float32" else repr(number)
    text = text if any(c in text for c in ".e") else f"{text}.0"
    return f"{text}f" if dtype == "float32" else text
