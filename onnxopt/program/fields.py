"""What one field of a schema may hold (program/schema.py): numbers, names, operands, records, programs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, Protocol

INT32 = 2**31 - 1
FLOAT32 = 3.4028234663852886e38  # the largest
SCHEMA = "schema"  # of a field's metadata


class Kernel(Protocol):
    """The meaning that a field belongs to. inputs, outputs: storage dtype names."""

    @property
    def inputs(self) -> tuple[str, ...]: ...
    @property
    def outputs(self) -> tuple[str, ...]: ...
    def positions(self) -> set[int]: ...


@dataclasses.dataclass(frozen=True)
class Field:
    """What one field may hold. optional: or None, which JSON leaves out. key: its name in JSON; "" for the field's own.
    omit: JSON leaves out what equals the default. beside: JSON leaves it out where that field is None."""

    optional: bool = dataclasses.field(default=False, kw_only=True)
    key: str = dataclasses.field(default="", kw_only=True)
    omit: bool = dataclasses.field(default=False, kw_only=True)
    beside: str = dataclasses.field(default="", kw_only=True)

    def problem(self, value: Any, kernel: Kernel) -> str:
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

    def problem(self, value: Any, kernel: Kernel) -> str:
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

    def problem(self, value: Any, kernel: Kernel) -> str:
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

    def problem(self, value: Any, kernel: Kernel) -> str:
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

    def problem(self, value: Any, kernel: Kernel) -> str:
        return "" if value in self.names else f"is {value!r}, not one of {', '.join(self.names)}"


@dataclasses.dataclass(frozen=True)
class Flag(Field):
    """True or false."""

    def problem(self, value: Any, kernel: Kernel) -> str:
        return "" if isinstance(value, bool) else f"is {value!r}, not true or false"


@dataclasses.dataclass(frozen=True)
class Operand(Field):
    """A position among the kernel's inputs. dtypes: those that it may have; none for any. same_as: the operand whose
    dtype it has, or "outputs" for that of the first output."""

    dtypes: tuple[str, ...] = ()
    same_as: str = ""

    def problem(self, value: Any, kernel: Kernel) -> str:
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

    def problem(self, value: Any, kernel: Kernel) -> str:
        if not all(0 <= at < len(kernel.inputs) for at in value):
            return f"is {tuple(value)}, and there are {len(kernel.inputs)} inputs"
        return "has an input that the kernel reads" if set(value) & kernel.positions() else ""

    def to_json(self, value: Any) -> list[int]:
        return list(value)


@dataclasses.dataclass(frozen=True)
class Nested(Field):
    """A record within the record."""

    record: type[Any]

    def problem(self, value: Any, kernel: Kernel) -> str:
        return ""  # Record.problem goes into it

    def to_json(self, value: Any) -> Any:
        return value.to_json()

    def positions(self, value: Any) -> Iterator[int]:
        return value.nested_positions()


@dataclasses.dataclass(frozen=True)
class Several(Field):
    """A tuple of low to high records."""

    record: type[Any]
    low: int
    high: int

    def problem(self, value: Any, kernel: Kernel) -> str:
        if not self.low <= len(value) <= self.high:
            return f"are {len(value)}, not {self.low} to {self.high}"
        return ""  # Record.problem goes into them

    def to_json(self, value: Any) -> Any:
        return [one.to_json() for one in value]

    def positions(self, value: tuple[Any, ...]) -> Iterator[int]:
        return (at for one in value for at in one.nested_positions())


@dataclasses.dataclass(frozen=True)
class Code(Field):
    """A program (program/pointwise.py) without index operations. operands: of which it takes `low` to `high`, all
    float32. It stores one result of the first output's dtype."""

    low: int = 1
    high: int = 1

    def problem(self, value: Any, kernel: Kernel) -> str:
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
    """A field with an integer from low to high. options: default, optional, key, omit and
    beside, as for all fields."""
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


def nested(record: type[Any], **options: Any) -> Any:
    """A field with a record."""
    return field_of(Nested, (record,), options)


def several(record: type[Any], low: int, high: int, **options: Any) -> Any:
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
