"""What a program behind a norm begins with: factors and terms of a channel, which those of the norm take in."""

from __future__ import annotations

import dataclasses

from onnxopt.program.core import Transform
from onnxopt.program.pointwise import Instruction, without_dead_code


def split(part: Transform) -> tuple[list[tuple[str, int]], Transform]:
    """The leading steps ("mul", "add" or "sub", and the read that is the operand, from 1 on), and the rest of the part.

    A step is taken where nothing else reads its operand that passes through, and where all elements of a channel have
    the same other operand.
    """
    program = part.program
    first = len(program.inputs)
    steps: list[tuple[str, int]] = []
    value = 0
    while (user := _only_user(program.code, value, program.results)) is not None:
        instruction = program.code[user]
        other = instruction.args[1 - instruction.args.index(value)] if len(instruction.args) == 2 else 0
        turned = instruction.op == "sub" and instruction.args[0] != value
        if instruction.op not in ("mul", "add", "sub") or turned or not 1 <= other < first:
            break
        if part.reads[other - 1].form == "element":
            break
        steps.append((instruction.op, other))
        value = first + user
    code = [dataclasses.replace(i, args=tuple(0 if a == value else a for a in i.args)) for i in program.code]
    results = tuple(0 if r == value else r for r in program.results)
    rest = without_dead_code(dataclasses.replace(program, code=tuple(code), results=results))
    return steps, dataclasses.replace(part, program=rest)


def _only_user(code: tuple[Instruction, ...], value: int, results: tuple[int, ...]) -> int | None:
    """The only instruction that reads a value, which is no result; None where there is none or several."""
    users = [k for k, instruction in enumerate(code) if value in instruction.args]
    return users[0] if len(users) == 1 and value not in results else None
