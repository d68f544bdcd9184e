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
import math
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from onnxopt.program import dtypes

INT32 = 2**31 - 1
FLOAT32 = 3.4028234663852886e38  # the largest
SCHEMA = "schema"  # of a field's metadata

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
class Field:
    """What one field may hold. optional: or None, which JSON leaves out. key: its name in JSON; "" for the field's own.
    omit: JSON leaves out what equals the default. beside: JSON leaves it out where that field is None."""

    optional: bool = dataclasses.field(default=False, kw_only=True)
    key: str = dataclasses.field(default="", kw_only=True)
    omit: bool = dataclasses.field(default=False, kw_only=True)
    beside: str = dataclasses.field(default="", kw_only=True)

    def problem(self, value: Any, kernel: Meaning) -> str:
        """What is wrong with a value, which is not None; "" where nothing is. kernel: the meaning with this field."""
        raise NotImplementedError

    def to_json(self, value: Any) -> Any:
        """The form of a value that is not None in kernels.json."""
        return value

    def positions(self, value: Any) -> Iterator[int]:
        """The inputs that a value that is not None reads."""
        return iter(())


@dataclasses.dataclass(frozen=True)
class Integer(Field):
    """An integer from low to high, a multiple of `multiple`."""

    low: int
    high: int
    multiple: int = 1

    def problem(self, value: Any, kernel: Meaning) -> str:
        if not self.low <= value <= self.high:
            return f"is {value}, not an integer from {self.low} to {self.high}"
        return f"is {value}, not a multiple of {self.multiple}" if value % self.multiple else ""


@dataclasses.dataclass(frozen=True)
class Integers(Field):
    """Integers from low to high: `count` of them, or any number up to `max_count`."""

    low: int
    high: int
    count: int | None = None
    max_count: int = 64

    def problem(self, value: Any, kernel: Meaning) -> str:
        if len(value) > self.max_count or (self.count is not None and len(value) != self.count):
            return f"has {len(value)} numbers, not {self.count or f'at most {self.max_count}'}"
        if all(self.low <= n <= self.high for n in value):
            return ""
        return f"is {tuple(value)}, not integers from {self.low} to {self.high}"

    def to_json(self, value: Any) -> list[int]:
        return list(value)


@dataclasses.dataclass(frozen=True)
class Number(Field):
    """A finite float from low to high. above: it is not `low` itself. whole: it has no fraction."""

    low: float
    high: float
    above: bool = False
    whole: bool = False

    def problem(self, value: Any, kernel: Meaning) -> str:
        if not (math.isfinite(value) and self.low <= value <= self.high) or (self.above and value == self.low):
            return f"is {value}, not a number {self.range()}"
        return f"is {value}, which has a fraction" if self.whole and not float(value).is_integer() else ""

    def range(self) -> str:
        """The limits, as errors state them."""
        low = f"{'above' if self.above else 'from'} {self.low:g}" if self.low > -FLOAT32 else ""
        high = f"to {self.high:g}" if self.high < FLOAT32 else ""
        return " ".join(part for part in (low, high) if part) or "that is finite in float32"


@dataclasses.dataclass(frozen=True)
class Choice(Field):
    """One of some names. enum: the C++ name of their type, which has the names of all such fields."""

    enum: str
    names: tuple[str, ...]

    def problem(self, value: Any, kernel: Meaning) -> str:
        return "" if value in self.names else f"is {value!r}, not one of {', '.join(self.names)}"


@dataclasses.dataclass(frozen=True)
class Flag(Field):
    """True or false."""

    def problem(self, value: Any, kernel: Meaning) -> str:
        return "" if isinstance(value, bool) else f"is {value!r}, not true or false"


@dataclasses.dataclass(frozen=True)
class Operand(Field):
    """A position among the kernel's inputs. dtypes: those that it may have; none for any. same_as: the operand whose
    dtype it has, or "outputs" for that of the first output."""

    dtypes: tuple[str, ...] = ()
    same_as: str = ""

    def problem(self, value: Any, kernel: Meaning) -> str:
        inputs = kernel.inputs
        if not 0 <= value < len(inputs):
            return f"is {value}, and there are {len(inputs)} inputs"
        if self.dtypes and inputs[value] not in self.dtypes:
            return f"is of {inputs[value]}, not one of {', '.join(self.dtypes)}"
        return ""

    def positions(self, value: int) -> Iterator[int]:
        return iter((value,))


@dataclasses.dataclass(frozen=True)
class Unread(Field):
    """Positions of inputs that the kernel does not read, as the function's body alone does."""

    def problem(self, value: Any, kernel: Meaning) -> str:
        if not all(0 <= at < len(kernel.inputs) for at in value):
            return f"is {tuple(value)}, and there are {len(kernel.inputs)} inputs"
        return "has an input that the kernel reads" if set(value) & kernel.positions() else ""

    def to_json(self, value: Any) -> list[int]:
        return list(value)


@dataclasses.dataclass(frozen=True)
class Nested(Field):
    """A record within the record."""

    record: type[Record]

    def problem(self, value: Any, kernel: Meaning) -> str:
        return ""  # Record.problem goes into it

    def to_json(self, value: Any) -> Any:
        return value.to_json()

    def positions(self, value: Record) -> Iterator[int]:
        # The inputs of a meaning within a meaning are others than the kernel's.
        return iter(()) if isinstance(value, Meaning) else _positions(value)


@dataclasses.dataclass(frozen=True)
class Several(Field):
    """A tuple of low to high records."""

    record: type[Record]
    low: int
    high: int

    def problem(self, value: Any, kernel: Meaning) -> str:
        if not self.low <= len(value) <= self.high:
            return f"are {len(value)}, not {self.low} to {self.high}"
        return ""  # Record.problem goes into them

    def to_json(self, value: Any) -> Any:
        return [one.to_json() for one in value]

    def positions(self, value: tuple[Record, ...]) -> Iterator[int]:
        return (at for one in value for at in _positions(one))


@dataclasses.dataclass(frozen=True)
class Code(Field):
    """A program (program/pointwise.py) without index operations. operands: of which it takes `low` to `high`, all
    float32. It stores one result of the first output's dtype."""

    low: int = 1
    high: int = 1

    def problem(self, value: Any, kernel: Meaning) -> str:
        value.verify()
        if value.index is not None:
            return "has index operations"
        count, stored = len(value.inputs), kernel.outputs[-1]
        if not self.low <= count <= self.high or value.inputs != ("float32",) * count or value.outputs != (stored,):
            takes = self.low if self.low == self.high else f"{self.low} to {self.high}"
            return f"does not compute one {stored} from {takes} float32"
        return ""

    def to_json(self, value: Any) -> Any:
        return value.to_json()


def integer(low: int, high: int = INT32, multiple: int = 1, **options: Any) -> Any:
    """A field with an integer from low to high. options: default, optional, key, omit, beside, as for
    all fields."""
    return field_of(Integer, (low, high, multiple), options)


def integers(low: int, high: int = INT32, count: int | None = None, max_count: int = 64, **options: Any) -> Any:
    """A field with a tuple of integers from low to high."""
    return field_of(Integers, (low, high, count, max_count), options)


def number(
    low: float = -FLOAT32, high: float = FLOAT32, *, above: bool = False, whole: bool = False, **options: Any
) -> Any:
    """A field with a finite float from low to high."""
    return field_of(Number, (low, high, above, whole), options)


def choice(enum: str, names: tuple[str, ...], **options: Any) -> Any:
    """A field with one of some names."""
    return field_of(Choice, (enum, names), options)


def flag(**options: Any) -> Any:
    """A field that is true or false."""
    return field_of(Flag, (), options)


def operand(allowed: tuple[str, ...] = (), same_as: str = "", **options: Any) -> Any:
    """A field with a position among the inputs; allowed: its dtypes."""
    return field_of(Operand, (allowed, same_as), options)


def unread(**options: Any) -> Any:
    """A field with the positions of inputs that the kernel does not read."""
    return field_of(Unread, (), options)


def nested(record: type[Record], **options: Any) -> Any:
    """A field with a record."""
    return field_of(Nested, (record,), options)


def several(record: type[Record], low: int, high: int, **options: Any) -> Any:
    """A field with a tuple of records."""
    return field_of(Several, (record, low, high), options)


def code(low: int = 1, high: int = 1, **options: Any) -> Any:
    """A field with a program of low to high float32 operands."""
    return field_of(Code, (low, high), options)


def field_of(kind: type[Field], values: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """A dataclass field with a schema. options: as for all fields."""
    named = {name: options.pop(name) for name in ("optional", "key", "omit", "beside") if name in options}
    if named.get("optional"):
        options.setdefault("default", None)
    return dataclasses.field(metadata={SCHEMA: kind(*values, **named)}, **options)


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
        return next(((rule.field, rule.problem) for rule in self.RULES if not _holds(rule, self)), None)

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
                row[name] = list(value)
            elif not self._is_left_out(field, value, own[name].default):
                row[field.key or name] = field.to_json(value)
        return row

    def _is_left_out(self, field: Field, value: Any, default: Any) -> bool:
        """Whether JSON has no such key."""
        alone = field.beside and getattr(self, field.beside) is None
        return bool(value is None or alone or (field.omit and value == default))


class Meaning(Record):
    """What a kernel computes; a base of frozen dataclasses with the fields inputs and outputs, storage dtype names.

    INPUTS, OUTPUTS: the fewest and the most of each. INPUT_DTYPES, OUTPUT_DTYPES: those that all inputs, or all
    outputs, are of; none for any. IMPLICIT: inputs that are operands by their place alone. READS_ALL:
    whether no input is there for the function's body alone. ABI_INPUTS: the header and
    the constant of cuda_kernels/ that says how many inputs a kernel has room for, which C++ compares with INPUTS.
    """

    KIND: ClassVar[str]
    INPUTS: ClassVar[tuple[int, int]]
    OUTPUTS: ClassVar[tuple[int, int]] = (1, 1)
    INPUT_DTYPES: ClassVar[tuple[str, ...]] = ()
    OUTPUT_DTYPES: ClassVar[tuple[str, ...]] = ()
    IMPLICIT: ClassVar[tuple[int, ...]] = ()
    READS_ALL: ClassVar[bool] = True
    ABI_INPUTS: ClassVar[tuple[str, str] | None] = None
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

    def positions(self) -> set[int]:
        """The inputs that something reads."""
        return {*self.IMPLICIT, *_positions(self)}

    def check(self) -> tuple[str, str] | None:
        """What no rule can say: the field and what is wrong with it. Its twin is in custom_ops/program/checks.cc."""
        return None


def is_shared(value: Any) -> bool:
    """Whether a member of a class is a property that C++ has too."""
    return isinstance(value, property) and "shared" in vars(value.fget)


@functools.cache
def _schema(cls: type) -> Mapping[str, Field]:
    fields = dataclasses.fields(cls)
    return types.MappingProxyType({f.name: f.metadata[SCHEMA] for f in fields if SCHEMA in f.metadata})


def _positions(record: Record) -> Iterator[int]:
    for name, field in record.schema().items():
        if (value := getattr(record, name)) is not None:
            yield from field.positions(value)


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


def _holds(rule: Rule, record: Record) -> bool:
    return _evaluated(rule.holds, {name: getattr(record, name) for name in _names(rule.holds) - {*_FUNCTIONS}})
