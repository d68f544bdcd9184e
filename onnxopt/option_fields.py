"""Options as fields of a dataclass, from which click's options, batch files and docs are made."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

_METADATA = "option"


class Option(NamedTuple):
    """One option of a command that is a field of a dataclass.

    name: of the field, and of the keyword in Python. text: what it does; `{other}` is another option. spelled: on the
    command line, "--on/--off" where there are two, "--no-x" for what is on by default. negative: the text of "--no-x".
    value: the placeholder of its value. of: what a value is converted to; a tuple of texts for a choice of them. many:
    whether it may be repeated. alone: what the option means without a value; None where it needs one. required: whether
    a command refuses to go without. batch: the type of the field in a batch's file; None where it has none.
    """

    name: str
    default: Any
    text: str
    spelled: str = ""
    negative: str = ""
    value: str | None = None
    of: Any = bool
    many: bool = False
    alone: Any = None
    required: bool = False
    batch: Any = None

    def help(self) -> str:
        """The text of the command line."""
        return re.sub(r"\{(\w+)\}", lambda m: _flag(m[1]), self.negative or self.text)

    def python(self) -> str:
        """The text of the keyword."""
        return re.sub(r"\{(\w+)\}", r"`\1`", self.text)


def option(default: Any, text: str, **row: Any) -> Any:
    """A field that is an option. row: the other fields of `Option`."""
    return dataclasses.field(default=default, metadata={_METADATA: Option("", default, text, **row)})


def same_option(holder: type, name: str) -> Any:
    """A field that is the same option as the one of another dataclass."""
    row = next(row for row in options_of(holder) if row.name == name)
    return dataclasses.field(default=row.default, metadata={_METADATA: row})


def options_of(holder: type) -> Iterator[Option]:
    """The options among a dataclass's fields, in their order."""
    for field in dataclasses.fields(holder):
        if _METADATA in field.metadata:
            row: Option = field.metadata[_METADATA]
            yield row._replace(name=field.name, spelled=row.spelled or _flag(field.name))


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
