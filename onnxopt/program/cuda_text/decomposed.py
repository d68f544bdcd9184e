"""Decomposed operations of a program that the GPU computes better as one: GELU, and codes of float16 numbers."""

from __future__ import annotations

import itertools
import math

from onnxopt.program.dtypes import FLOAT8
from onnxopt.program.pointwise import Instruction, Program


def gelu(program: Program, k: int) -> tuple[int, int] | None:
    """x and c where instruction k makes x (1 + erf(c x)) / 2 for a constant c from 1/2 to 1, in any order."""
    if program.code[k].dtype != "float32":
        return None
    for alone, other in _orders("mul", len(program.leaves) + k, program):
        for inner in _orders("mul", other, program)[:1]:
            for x, half, sum_ in itertools.permutations((alone, *inner)):
                c = _scale_in_erf(x, sum_, program) if _constant(half, program) == 0.5 else None
                if c is not None and 0.5 <= (_constant(c, program) or 0.0) <= 1.0:
                    return x, c
    return None


def _scale_in_erf(x: int, sum_: int, program: Program) -> int | None:
    """c of 1 + erf(c x)."""
    for one, erf in _orders("add", sum_, program):
        instruction = _instruction_of(erf, program)
        if _constant(one, program) == 1.0 and instruction is not None and instruction.op == "erf":
            for factor, c in _orders("mul", instruction.args[0], program):
                if factor == x:
                    return c
    return None


def _orders(op: str, value: int, program: Program) -> tuple[tuple[int, int], ...]:
    """The two operands of the instruction that makes a value, in both orders; none where that is another one."""
    instruction = _instruction_of(value, program)
    if instruction is None or instruction.op != op:
        return ()
    one, other = instruction.args
    return (one, other), (other, one)


def _constant(value: int, program: Program) -> float | None:
    """The number of a constant float, None for other values."""
    instruction = _instruction_of(value, program)
    return (
        instruction.value
        if instruction is not None and instruction.op == "const" and isinstance(instruction.value, float)
        else None
    )


def half_of(program: Program, output: int) -> tuple[int, int] | None:
    """x and k where an output stores 2^k times x, rounded to float16, as codes: two at once need fewer conversions."""
    if program.outputs[output] not in FLOAT8:
        return None
    value, exponent = stored_value(program, output), 0
    for factor, other in _orders("mul", value, program):
        significand, power = math.frexp(_constant(factor, program) or 0.0)
        if significand == 0.5 and -14 <= power - 1 <= 15:
            value, exponent = other, power - 1
            break
    instruction = _instruction_of(value, program)
    return (instruction.args[0], exponent) if instruction is not None and instruction.storage == "float16" else None


def _instruction_of(value: int, program: Program) -> Instruction | None:
    """The instruction of a value, None for a leaf."""
    first = len(program.leaves)
    return program.code[value - first] if value >= first else None


def stored_value(program: Program, output: int) -> int:
    """The value that an output stores. Storing rounds to 8-bit floats, so what does only that is left out."""
    value, first = program.results[output], len(program.leaves)
    if program.outputs[output] not in FLOAT8 or value < first:
        return value
    instruction = program.code[value - first]
    return instruction.args[0] if instruction.storage == program.outputs[output] else value
