"""Schemas: what a kernel's fields may hold, declared once.

A class of program/ declares its fields by `integer`, `choice`, `operand` and so on, and what fields demand of each
other as rules. From this declaration come the class's checks and its JSON here, and its C++ struct and reader
(custom_ops/generate.py, which translates the rules' text).

A rule's text is an expression of Python over the fields of its class: integers, + - * // %, comparisons, `and`, `or`,
`not`, `in`, `is None`, `len`, `max`, `min`, `all` and `any` over one list, `size` (bytes of a dtype), and
`inputs[x]`, the dtype of an operand.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from onnxopt.program import dtypes
from onnxopt.program.fields import SCHEMA, Field, Nested, Operand, Several, Unread
from onnxopt.program.hardware import WARP

Getter = TypeVar("Getter", bound=Callable[..., Any])


def shared(getter: Getter) -> Getter:
    """The getter of a property that C++ has too: its one return statement is an expression as rules have."""
    getter.__dict__["shared"] = True
    return getter


@dataclasses.dataclass(frozen=True)
class Rule:
    """What must hold between fields. field: the one that an error names, with dots for fields of fields. holds: an
    expression. problem: what an error says after the field's name."""

    field: str
    holds: str
    problem: str


@dataclasses.dataclass(frozen=True)
class Dims:
    """The shape of an operand, which calls are checked against. operand: its field, with dots for fields of fields; or
    a name, beside `at`, its position in inputs. dims: of each N, H, W or C, which the first operand that has it binds,
    or an expression without spaces; "D?" for a depth that volumes alone have, whose planes are images where no window
    goes over it; "#" and an expression for any shape of so many elements. when: a condition."""

    operand: str
    dims: str
    at: int | None = None
    when: str = ""


class Record:
    """Fields with a schema; a base of frozen dataclasses. RULES: what fields demand of each other. JSON: the order of
    fields in kernels.json, where it is not that of the class."""

    RULES: ClassVar[Sequence[Rule]] = ()
    JSON: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def schema(cls) -> Mapping[str, Field]:
        """The schema of each field that has one, in the order of the class."""
        return _schema(cls)  # type: ignore[arg-type]

    def problem(self, kernel: Any = None) -> tuple[str, str] | None:
        """The field that breaks a rule first, and what is wrong with it; None where none does. kernel: the meaning that
        this record is a part of, for records with operands or programs."""
        for name, field in self.schema().items():
            value = getattr(self, name)
            if value is None:
                if not field.optional:
                    return name, "is missing"
                continue
            if reason := field.problem(value, kernel):
                return name, reason
            if isinstance(field, Several):
                for k, one in enumerate(value):
                    if inner := one.problem(kernel):
                        return f"{name}[{k}].{inner[0]}", inner[1]
            if isinstance(field, Nested) and (inner := value.problem(None if isinstance(value, Meaning) else kernel)):
                return f"{name}.{inner[0]}", inner[1]
        for name, field in self.schema().items():
            if isinstance(field, Operand) and field.same_as and getattr(self, name) is not None:
                same = kernel.outputs[0] if field.same_as == "outputs" else kernel.inputs[getattr(self, field.same_as)]
                if kernel.inputs[getattr(self, name)] != same:
                    return name, f"has another dtype than {field.same_as}"
        return next(((rule.field, rule.problem) for rule in self.RULES if not _holds(rule, self, kernel)), None)

    def verify(self) -> None:
        """Raise ValueError naming the first field that breaks a rule of this class."""
        if broken := self.problem():
            raise ValueError(f"{broken[0]}: {broken[1]}")

    def reason(self) -> str:
        """What breaks a rule, as an end of a sentence; "" where nothing does."""
        return " ".join(self.problem() or ())

    @classmethod
    def why_not(cls, **values: Any) -> str:
        """What breaks the first of the rules about these fields alone, as `reason` says it."""
        for rule in cls.RULES:
            if _names(rule.holds) <= {*values, *_FUNCTIONS} and not _evaluated(rule.holds, values):
                return f"{rule.field} {rule.problem}"
        return ""

    def to_json(self) -> dict[str, Any]:
        """The form in kernels.json: what is None is left out."""
        row: dict[str, Any] = {}
        own = {field.name: field for field in dataclasses.fields(self)}  # type: ignore[arg-type]
        for name in self.JSON or own:
            field, value = own[name].metadata.get(SCHEMA), getattr(self, name)
            if field is None:
                row[name] = list(value) if isinstance(value, tuple) else value
            elif not self._is_left_out(field, value, own[name].default):
                row[field.key or name] = field.to_json(value)
        return row

    def nested_positions(self) -> Iterator[int]:
        """The kernel's inputs that a record within its meaning reads."""
        for name, field in self.schema().items():
            if (value := getattr(self, name)) is not None:
                yield from field.positions(value)

    def _is_left_out(self, field: Field, value: Any, default: Any) -> bool:
        """Whether JSON has no such key."""
        alone = field.beside and getattr(self, field.beside) is None
        return bool(value is None or alone or (field.omit and value == default))


class Meaning(Record):
    """What a kernel computes; a base of frozen dataclasses with the fields inputs and outputs, storage dtype names.

    INPUTS, OUTPUTS: the fewest and the most of each. INPUT_DTYPES, OUTPUT_DTYPES: those that all inputs, or all
    outputs, are of; none for any. IMPLICIT: inputs that are operands by their place alone. READS_ALL: whether no input
    is there for the function's body alone. ABI_INPUTS: the header and the constant of cuda_kernels/ that says how many
    inputs a kernel has room for, which C++ compares with INPUTS. SHAPES: of operands, in the order in which they are
    checked. RESULT: dims of the output of an operator on images x, of which the last is as those of SHAPES.
    """

    KIND: ClassVar[str]
    INPUTS: ClassVar[tuple[int, int]]
    OUTPUTS: ClassVar[tuple[int, int]] = (1, 1)
    INPUT_DTYPES: ClassVar[tuple[str, ...]] = ()
    OUTPUT_DTYPES: ClassVar[tuple[str, ...]] = ()
    IMPLICIT: ClassVar[tuple[int, ...]] = ()
    READS_ALL: ClassVar[bool] = True
    ABI_INPUTS: ClassVar[tuple[str, str] | None] = None
    SHAPES: ClassVar[Sequence[Dims]] = ()
    RESULT: ClassVar[str] = ""
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def problem(self, kernel: Any = None) -> tuple[str, str] | None:
        for name, stored, (low, high), allowed in (
            ("inputs", self.inputs, self.INPUTS, self.INPUT_DTYPES),
            ("outputs", self.outputs, self.OUTPUTS, self.OUTPUT_DTYPES),
        ):
            if not low <= len(stored) <= high:
                return name, f"are {len(stored)}, not {low}" + (f" to {high}" if high > low else "")
            if other := [dtype for dtype in stored if allowed and dtype not in allowed]:
                return name, f"are of {other[0]}, not of {', '.join(allowed)}"
        if broken := super().problem(self):
            return broken
        excused = {
            at for name, field in self.schema().items() if isinstance(field, Unread) for at in getattr(self, name)
        }
        if self.READS_ALL and (unread := set(range(len(self.inputs))) - self.positions() - excused):
            return "inputs", f"have an input {min(unread)} that nothing reads"
        return self.check()

    def nested_positions(self) -> Iterator[int]:
        return iter(())  # the inputs of a meaning within a meaning are its own

    def positions(self) -> set[int]:
        """The inputs that something reads."""
        return {*self.IMPLICIT, *super().nested_positions()}

    def check(self) -> tuple[str, str] | None:
        """What no rule says: the field and what is wrong with it. Its twin is in custom_ops/kernel_file/checks.cc."""
        return None


@dataclasses.dataclass(frozen=True)
class Variant(Record):
    """One entry point of a kernel; a kind adds the fields that only its entry points have.

    modes: one letter per access, then one per condition (kinds/pointwise/access_modes.py). The library runs the first
    variant whose modes fit the actual shapes. index: bits of an index, 32 or 64. vector: elements per load. unroll:
    vectors per thread. threads: of a block. waits: the kernel waits for the preceding kernel of the stream itself
    (programmatic dependent launch), on GPUs that support it.

    KERNEL: the kernel's meaning, which rules call `kernel`. Fields without a schema are not in C++.
    """

    KERNEL: ClassVar[type[Meaning]]
    symbol: str
    modes: str
    index: int
    vector: int
    unroll: int
    threads: int
    waits: bool = dataclasses.field(default=False, kw_only=True)

    def problem(self, kernel: Any = None) -> tuple[str, str] | None:
        """As of every record. kernel: the meaning of the kernel, or one that has it as a part."""
        if self.RULES and not isinstance(kernel, self.KERNEL):
            kernel = next(part for part in vars(kernel).values() if isinstance(part, self.KERNEL))
        return super().problem(kernel)


WHOLE_WARPS = Rule("threads", f"threads % {WARP} == 0", "is no multiple of a warp")


def is_shared(value: Any) -> bool:
    """Whether a member of a class is a property that C++ has too."""
    return isinstance(value, property) and "shared" in vars(value.fget)


@functools.cache
def _schema(cls: type) -> Mapping[str, Field]:
    fields = dataclasses.fields(cls)
    return types.MappingProxyType({f.name: f.metadata[SCHEMA] for f in fields if SCHEMA in f.metadata})


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "len": len, "max": max, "min": min, "all": all, "any": any, "abs": abs, "size": lambda d: dtypes.DTYPES[d].size,
}  # fmt: skip


@functools.cache
def _compiled(text: str) -> types.CodeType:
    return compile(text, "<rule>", "eval")


@functools.cache
def _names(text: str) -> frozenset[str]:
    """The fields and functions that an expression reads."""
    tree = ast.parse(text, mode="eval")
    bound = {
        node.target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.comprehension) and isinstance(node.target, ast.Name)
    }
    return frozenset(node.id for node in ast.walk(tree) if isinstance(node, ast.Name)) - bound


def _evaluated(text: str, values: Mapping[str, Any]) -> bool:
    return bool(eval(_compiled(text), {"__builtins__": _FUNCTIONS, **values}))


def _holds(rule: Rule, record: Record, kernel: Any) -> bool:
    names = _names(rule.holds) - {*_FUNCTIONS}
    return _evaluated(rule.holds, {name: kernel if name == "kernel" else getattr(record, name) for name in names})
