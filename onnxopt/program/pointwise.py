"""Program: what one pointwise kernel computes for one element, as straight-line code over scalar primitives.

program/cuda_text/ turns a program into CUDA source. The library's CPU kernel (custom_ops/) reads it from
kernels.json and interprets it.

Every value of a program has an id. The leaves have ids 0 .. len(leaves) - 1, in their compute dtype; instruction k
defines id len(leaves) + k. The leaves are the inputs. In a kernel with index operations the leaves are the kernel's
accesses to its inputs, followed by its conditions on the index (program/indexing.py).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

from onnxopt.program.dtypes import COMPUTE_DTYPES, DTYPES
from onnxopt.program.indexing import INDEX_DTYPES, Indexing
from onnxopt.program.schema import Variant

_FLOAT = frozenset({"float32", "float64"})
_INTEGER = frozenset(d for d in COMPUTE_DTYPES if d not in _FLOAT and d != "bool")
_NUMBER = _FLOAT | _INTEGER
_ANY = _NUMBER | {"bool"}
_BOOL = frozenset({"bool"})


@dataclasses.dataclass(frozen=True)
class Primitive:
    """A scalar function: its arity, the dtypes its operands may have, and whether it returns bool.

    All operands have one dtype; the exceptions are `select` (bool, T, T) and `cast`. cost: in float32 instructions.
    """

    arity: int
    operands: frozenset[str]
    predicate: bool = False
    cost: int = 1


PRIMITIVES: dict[str, Primitive] = {
    # a constant, in the field `value`
    "const": Primitive(0, _ANY, cost=0),
    # conversions. cast: to `dtype`. narrow: rounded to the storage dtype `storage`, still as float32
    "cast": Primitive(1, _ANY),
    "narrow": Primitive(1, frozenset({"float32"}), cost=2),
    # arithmetic. Integers wrap around, also the lowest one by -1; div of integers truncates. On integers x / 0 is 0 and
    # x mod 0 is x, but the CPU kernel reports an error, as ONNX Runtime's operators do, where no condition leaves
    # elements out
    "neg": Primitive(1, _NUMBER),
    "abs": Primitive(1, _NUMBER),
    "sign": Primitive(1, _NUMBER, cost=2),
    "add": Primitive(2, _NUMBER),
    "sub": Primitive(2, _NUMBER),
    "mul": Primitive(2, _NUMBER),
    "div": Primitive(2, _NUMBER, cost=8),
    "min": Primitive(2, _NUMBER, cost=2),  # NaN if an operand is NaN; max too
    "max": Primitive(2, _NUMBER, cost=2),
    "pow": Primitive(2, _NUMBER, cost=40),
    "mod": Primitive(2, _INTEGER, cost=20),  # sign of the divisor, as Python's %
    "fmod": Primitive(2, _NUMBER, cost=20),  # sign of the dividend, as C's fmod
    # float functions
    "sqrt": Primitive(1, _FLOAT, cost=8),
    "exp": Primitive(1, _FLOAT, cost=8),
    "expm1": Primitive(1, _FLOAT, cost=16),
    "log": Primitive(1, _FLOAT, cost=12),
    "log1p": Primitive(1, _FLOAT, cost=16),
    "erf": Primitive(1, _FLOAT, cost=20),
    "sin": Primitive(1, _FLOAT, cost=20),
    "cos": Primitive(1, _FLOAT, cost=20),
    "tan": Primitive(1, _FLOAT, cost=24),
    "asin": Primitive(1, _FLOAT, cost=20),
    "acos": Primitive(1, _FLOAT, cost=20),
    "atan": Primitive(1, _FLOAT, cost=20),
    "sinh": Primitive(1, _FLOAT, cost=24),
    "cosh": Primitive(1, _FLOAT, cost=16),
    "tanh": Primitive(1, _FLOAT, cost=16),
    "asinh": Primitive(1, _FLOAT, cost=24),
    "acosh": Primitive(1, _FLOAT, cost=24),
    "atanh": Primitive(1, _FLOAT, cost=24),
    "floor": Primitive(1, _FLOAT),
    "ceil": Primitive(1, _FLOAT),
    "round": Primitive(1, _FLOAT),  # half to even
    # predicates
    "isnan": Primitive(1, _FLOAT, predicate=True),
    "isinf": Primitive(1, _FLOAT, predicate=True),
    "lt": Primitive(2, _NUMBER, predicate=True),
    "le": Primitive(2, _NUMBER, predicate=True),
    "eq": Primitive(2, _ANY, predicate=True),
    # logic
    "not": Primitive(1, _BOOL),
    "and": Primitive(2, _BOOL),
    "or": Primitive(2, _BOOL),
    "xor": Primitive(2, _BOOL),
    # bits. A shift by the dtype's width or more gives 0
    "bit_not": Primitive(1, _INTEGER),
    "bit_and": Primitive(2, _INTEGER),
    "bit_or": Primitive(2, _INTEGER),
    "bit_xor": Primitive(2, _INTEGER),
    "shift_left": Primitive(2, _INTEGER),
    "shift_right": Primitive(2, _INTEGER),
    # select(condition, if_true, if_false)
    "select": Primitive(3, _ANY),
}


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One primitive applied to earlier values.

    op: a key of PRIMITIVES. dtype: compute dtype of the result. args: ids of the operands.
    value: the constant of `const`. storage: the dtype `narrow` rounds to.
    """

    op: str
    dtype: str
    args: tuple[int, ...] = ()
    value: float | int | bool | None = None
    storage: str | None = None


@dataclasses.dataclass(frozen=True)
class Program:
    """A pointwise kernel's meaning.

    inputs, outputs: storage dtype names. results[k]: id of the value that output k stores.
    depends[k]: inputs whose numpy broadcast is the shape of output k. ranks[k]: the least rank of output k, because a
    constant that became part of the code may have had more dims than every input.
    index: how the kernel reads its inputs, where index operations are part of it. The index then states the outputs'
    shapes, and depends and ranks do not count.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    code: tuple[Instruction, ...]
    results: tuple[int, ...]
    depends: tuple[tuple[int, ...], ...]
    ranks: tuple[int, ...]
    index: Indexing | None = None

    @property
    def accesses(self) -> tuple[str, ...]:
        """Storage dtypes of the inputs, or, with index operations, of every access to an input."""
        return self.inputs if self.index is None else tuple(self.inputs[a.input] for a in self.index.accesses)

    @property
    def conditions(self) -> int:
        """How many conditions on the index the kernel evaluates for an element."""
        return 0 if self.index is None else len(self.index.conditions)

    @property
    def leaves(self) -> tuple[str, ...]:
        """Storage dtypes of the values that no instruction defines: accesses, then conditions."""
        return (*self.accesses, *("bool",) * self.conditions)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Compute dtype of every id."""
        return (*(DTYPES[d].compute for d in self.leaves), *(i.dtype for i in self.code))

    @property
    def cost(self) -> int:
        """Work for one element in float32 instructions: a rough figure for the cost model."""
        return sum(PRIMITIVES[i.op].cost for i in self.code)

    def verify(self) -> None:
        """Raise ValueError naming the first instruction or output that breaks a rule of this module."""
        if unknown := sorted({*self.inputs, *self.outputs} - DTYPES.keys()):
            raise ValueError(f"{', '.join(unknown)}: no storage dtype")
        dtypes = self.dtypes
        for k, instruction in enumerate(self.code):
            problem = _problem(instruction, dtypes, len(self.leaves) + k)
            if problem:
                raise ValueError(f"instruction {k} ({instruction.op}): {problem}")
        if not len(self.outputs) == len(self.results) == len(self.depends) == len(self.ranks):
            raise ValueError("outputs, results, depends and ranks differ in length")
        for k, (storage, result, depends) in enumerate(zip(self.outputs, self.results, self.depends, strict=True)):
            if not 0 <= result < len(dtypes) or dtypes[result] != DTYPES[storage].compute:
                raise ValueError(f"output {k}: {storage} cannot store value {result}")
            if any(not 0 <= i < len(self.inputs) for i in depends) or (self.index is None and not depends):
                raise ValueError(f"output {k}: depends on no input, or on one that is not there")
        if self.index is not None:
            self.index.verify(len(self.inputs), len(self.outputs))
            for _, lookup in self.index.lookups:
                self._verify_index(self.index, lookup.index)

    def _verify_index(self, index: Indexing, value: int) -> None:
        if not 0 <= value < len(self.dtypes) or self.dtypes[value] not in INDEX_DTYPES:
            raise ValueError(f"a lookup: value {value} is no {' or '.join(INDEX_DTYPES)}")
        leaves = self.leaves_of((value,))
        if not leaves or any(index.accesses[k].lookup for k in leaves if k < len(index.accesses)):
            raise ValueError(f"a lookup: value {value} depends on nothing, or on what is looked up")

    def leaves_of(self, values: Iterable[int]) -> frozenset[int]:
        """The leaves that these values are computed from, indices of lookups left out."""
        first = len(self.leaves)
        seen, open_ = set[int](), list(values)
        while open_:
            value = open_.pop()
            if value not in seen:
                seen.add(value)
                open_ += self.code[value - first].args if value >= first else ()
        return frozenset(value for value in seen if value < first)

    def to_json(self) -> dict[str, Any]:
        """The form in kernels.json. Non-finite constants are the strings "inf", "-inf" and "nan"."""
        code = []
        for i in self.code:
            row: dict[str, Any] = {"op": i.op, "dtype": i.dtype, "args": list(i.args)}
            if i.value is not None:
                row["value"] = str(i.value) if isinstance(i.value, float) and not math.isfinite(i.value) else i.value
            if i.storage is not None:
                row["storage"] = i.storage
            code.append(row)
        document: dict[str, Any] = {
            "inputs": list(self.inputs),
            "outputs": list(self.outputs),
            "code": code,
            "results": list(self.results),
            "depends": [list(d) for d in self.depends],
            "ranks": list(self.ranks),
        }
        if self.index is not None:
            document["index"] = self.index.to_json()
        return document


def _problem(i: Instruction, dtypes: tuple[str, ...], own_id: int) -> str | None:
    primitive = PRIMITIVES.get(i.op)
    if primitive is None:
        return "no such primitive"
    if len(i.args) != primitive.arity:
        return f"takes {primitive.arity} operands, has {len(i.args)}"
    if any(not 0 <= a < own_id for a in i.args):
        return f"uses a value that is not defined before it: {i.args}"
    if (i.op == "const") != (i.value is not None) or (i.op == "narrow") != (i.storage is not None):
        return "field value belongs to const, field storage to narrow"
    if i.storage is not None and (i.storage not in DTYPES or DTYPES[i.storage].compute != i.dtype):
        return f"{i.storage} is no storage dtype that computes in {i.dtype}"
    operands = [dtypes[a] for a in i.args]
    if i.op == "select":
        if operands[0] != "bool" or operands[1] != operands[2]:
            return f"takes (bool, T, T), has {operands}"
        operands = operands[1:]
    if any(o not in primitive.operands for o in operands) or (len(set(operands)) > 1):
        return f"operands cannot be {operands}"
    expected = "bool" if primitive.predicate else operands[0] if operands and i.op != "cast" else i.dtype
    if i.dtype != expected or i.dtype not in COMPUTE_DTYPES:
        return f"returns {expected}, not {i.dtype}"
    return None


def without_dead_code(program: Program) -> Program:
    """The program without the instructions that no output needs, such as the exponent of x ** 2 once it is x * x."""
    first = len(program.leaves)
    index = program.index
    live = {*program.results, *(() if index is None else (lookup.index for _, lookup in index.lookups))}
    for k in range(len(program.code) - 1, -1, -1):
        if first + k in live:
            live.update(program.code[k].args)
    ids = {k: k for k in range(first)}
    code: list[Instruction] = []
    for k, instruction in enumerate(program.code):
        if first + k in live:
            ids[first + k] = first + len(code)
            code.append(dataclasses.replace(instruction, args=tuple(ids[a] for a in instruction.args)))
    renumbered = None if index is None else index.renumbered(ids)
    results = tuple(ids[r] for r in program.results)
    return dataclasses.replace(program, code=tuple(code), results=results, index=renumbered)


@dataclasses.dataclass(frozen=True)
class PointwiseVariant(Variant):
    """tile, tile_columns: sides of a tile where inputs go through shared memory, else 0. whole: a tile has all rows of
    the domain. slides: in each column, a tile begins with the vector that holds its first row."""

    tile: int = 0
    tile_columns: int = 0
    whole: bool = False
    slides: bool = False
