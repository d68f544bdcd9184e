"""Options as fields of a dataclass, from which click's options, batch files and docs are made."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

_METADATA = "option"


class Option(NamedTuple):
    """One option of a command that is a field of a dataclass.

    name: of the field, and of the keyword in Python. text: what it does; `{other}` is another option. spelled: on the
    command line, "--on/--off" where there are two, "--no-x" for what is on by default. negative: the text of "--no-x".
    also: other spellings that are taken and not shown. value: the placeholder of
    its value. of: what a value is converted to; a tuple of texts for a choice of them. synonyms: of these texts. many:
    whether it may be repeated. alone: what the option means without a value; None where it needs one. required: whether
    a command refuses to go without. batch: the type of the field in a batch's file; None where it has none. flags: how
    the options beside it are spelled, by name.
    """

    name: str
    default: Any
    text: str
    spelled: str = ""
    also: tuple[str, ...] = ()
    negative: str = ""
    value: str | None = None
    of: Any = bool
    synonyms: Mapping[str, str] = {}
    many: bool = False
    alone: Any = None
    required: bool = False
    batch: Any = None
    flags: Mapping[str, str] = {}

    def help(self) -> str:
        """The text of the command line."""
        return re.sub(r"\{(\w+)\}", lambda m: self.flags[m[1]].partition("/")[0], self.negative or self.text)

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
    rows: dict[str, Option] = {
        field.name: field.metadata[_METADATA] for field in dataclasses.fields(holder) if _METADATA in field.metadata
    }
    flags = {name: row.spelled or _flag(name) for name, row in rows.items()}
    for name, row in rows.items():
        yield row._replace(name=name, spelled=flags[name], flags=flags)


def not_one_of(name: str, known: Iterable[str]) -> str:
    """The error about an unknown name: "'fp61' is not one of float16, bfloat16; did you mean 'float16'?"."""
    names = tuple(known)
    return f"{name!r} is not one of {', '.join(names)}{did_you_mean(name, names)}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of an error about an unknown name: "; did you mean 'h200'?", "" where no known one is near."""
    by_letters = {_letters(one): one for one in known}
    near = difflib.get_close_matches(_letters(name), by_letters, n=1)
    return f"; did you mean {by_letters[near[0]]!r}?" if near else ""


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
