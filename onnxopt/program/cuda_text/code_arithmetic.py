"""Functions of CUDA for codes that are computed without the units for conversions, of which a multiprocessor has few.

A float between -2^22 and 2^22 is rounded by adding 1.5 * 2^23, and then its lowest bits are those of the integer. A
code is limited to such a range after the rounding; what is outside stays outside.
"""

from __future__ import annotations

from onnxopt.program.dtypes import DTYPES
from onnxopt.program.pointwise import Instruction, Program

_FARTHEST = 2.0**20  # of limits and of what is added; leaves room to 2^22
_CODES = frozenset({"int8", "uint8", "int16", "uint16"})


def function(k: int, program: Program) -> str | None:
    """The name of a function for instruction k, None where the usual one is needed."""
    instruction = program.code[k]
    if instruction.op == "round" and instruction.dtype == "float32" and _is_limited(k, program):
        return "round_to_code"
    if instruction.op == "cast" and instruction.dtype in _CODES and _is_code(instruction.args[0], program):
        return f"code_of<{DTYPES[instruction.dtype].cuda}>"
    return None


def _is_limited(k: int, program: Program) -> bool:
    """Whether a rounded number, to which a constant may be added, is only limited to codes."""
    value = len(program.leaves) + k
    users = _users(value, program)
    if (
        len(users) == 1
        and program.code[users[0]].op == "add"
        and _other_is_near(program.code[users[0]], value, program)
    ):
        if value in program.results:
            return False
        value = len(program.leaves) + users[0]
        users = _users(value, program)
    return value not in program.results and bool(users) and all(_limits(u, value, program) for u in users)


def _limits(k: int, value: int, program: Program) -> bool:
    """Whether instruction k is the comparison or the minimum of a select between limits, and for that alone."""
    number = len(program.leaves) + k
    selects = _users(number, program)
    return (
        number not in program.results
        and bool(selects)
        and all(
            (limits := _operands(len(program.leaves) + s, program)) is not None and limits == value for s in selects
        )
    )


def _is_code(value: int, program: Program) -> bool:
    return _operands(value, program) is not None


def _operands(value: int, program: Program) -> int | None:
    """x of select(low < x, min(x, high), low) with constants that are near enough, None for other values."""
    chosen = _instruction(value, program)
    if chosen is None or chosen.op != "select":
        return None
    above, floor = (_instruction(a, program) for a in chosen.args[:2])
    if above is None or floor is None or above.op != "lt" or floor.op != "min":
        return None
    low, x = above.args
    fits = low == chosen.args[2] and _is_near(low, program) and _other_is_near(floor, x, program)
    return x if fits else None


def _other_is_near(instruction: Instruction, value: int, program: Program) -> bool:
    """Whether an instruction has two operands: the value, and a constant that is near enough."""
    others = [a for a in instruction.args if a != value]
    return len(instruction.args) == 2 and len(others) == 1 and _is_near(others[0], program)


def _is_near(value: int, program: Program) -> bool:
    instruction = _instruction(value, program)
    if instruction is None or instruction.op != "const" or not isinstance(instruction.value, float):
        return False
    return instruction.value.is_integer() and abs(instruction.value) <= _FARTHEST


def _instruction(value: int, program: Program) -> Instruction | None:
    first = len(program.leaves)
    return program.code[value - first] if value >= first else None


def _users(value: int, program: Program) -> list[int]:
    return [k for k, i in enumerate(program.code) if value in i.args]
