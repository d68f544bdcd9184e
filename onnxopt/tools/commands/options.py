"""Options that several commands share, and their values."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from onnxopt import option_fields
from onnxopt.errors import UsageError
from onnxopt.pipeline.options import Options
from onnxopt.runtime.sessions import provider_named
from onnxopt.verification.lowering.goals import Goals


class Renamed(click.Option):
    """An option whose first spelling is shown; the others are taken."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        spelled, self.opts = self.opts, self.opts[:1]
        try:
            return super().get_help_record(ctx)
        finally:
            self.opts = spelled


class Names(click.Choice[str]):
    """A choice of names, in any case, also by synonyms; a near miss is answered with the right one."""

    def __init__(self, names: Sequence[str], synonyms: Mapping[str, str]) -> None:
        super().__init__(names)
        self._synonyms = synonyms

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        name = str(value).lower()
        chosen = self._synonyms.get(name, name)
        if chosen not in self.choices:
            self.fail(option_fields.not_one_of(str(value), self.choices), param, ctx)
        return chosen


def click_option(row: option_fields.Option) -> Callable[..., Any]:
    """The click option of a field: one that takes a value, a flag, or a pair of flags."""
    names, text, kind = (row.spelled, *row.also, row.name), row.help(), Renamed if row.also else click.Option
    if row.alone is not None:
        return click.option(
            *names, metavar=row.value, type=click.UNPROCESSED, is_flag=False, flag_value=row.alone, default=row.default,
            callback=_no_file, help=text,
        )  # fmt: skip
    if row.of is not bool:
        values = Names(row.of, row.synonyms) if isinstance(row.of, tuple) else None if row.of is str else row.of
        default = None if row.many or row.required else row.default
        return click.option(
            *names,
            cls=kind,
            metavar=row.value,
            type=values,
            multiple=row.many,
            required=row.required,
            default=default,
            help=text,
        )
    if "/" in row.spelled:
        return click.option(*names, default=row.default, help=text)
    return click.option(*names, is_flag=True, flag_value=not row.default, default=row.default, help=text)


def _no_file(_: click.Context, option: click.Parameter, value: Any) -> Any:
    """The value of an option that may stand alone. UsageError where it is the file that follows the option."""
    if isinstance(value, str) and Path(value).exists():
        name = option.opts[0]
        raise UsageError(f"{name} {value}: took the file for its value; write {name} after the file")
    return value


def click_options(holder: type, *leave_out: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The click options of a dataclass's fields, in their order. leave_out: names of fields."""
    rows = [row for row in option_fields.options_of(holder) if row.name not in leave_out]
    return lambda command: functools.reduce(
        lambda decorated, row: click_option(row)(decorated), reversed(rows), command
    )


_FIELDS = {row.name: row for row in option_fields.options_of(Options)}
shape, data, emulate, archs, timeout = (
    click_option(_FIELDS[name]) for name in ("shapes", "data", "emulate", "archs", "timeout")
)
provider = click.option(
    "--provider",
    metavar="NAME",
    type=provider_named,
    help="Execution provider: cpu, cuda, or ONNX Runtime's name. Default: CUDA where usable, else CPU.",
)
quiet = click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def goals(command: Callable[..., None]) -> Callable[..., None]:
    """The options of what every output has to keep against float32, which become the keywords of quality.Goals."""
    names = [field.name for field in dataclasses.fields(Goals)]
    return functools.reduce(lambda decorated, name: click_option(_FIELDS[name])(decorated), reversed(names), command)


_SHAPE = re.compile(r"(?P<name>.+)[=:](?P<dims>(\d+([x,]\d+)*)?)")
_NEXT = re.compile(r",(?=[^,]*[=:])")  # a comma with another name after it, not with a dim


def parse_shapes(texts: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """Shapes by name, of texts NAME=DIMS or NAME:DIMS with DIMS as 8x128 or 8,128; empty DIMS is a scalar.

    A text may have several, with commas between them, as trtexec takes them. UsageError for others.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for text in texts:
        rows = [_SHAPE.fullmatch(part) for part in _NEXT.split(text)]
        for row in rows if all(rows) else [_SHAPE.fullmatch(text)]:
            if row is None:
                raise UsageError(f"--shape {text}: expected NAME=DIMS, as in ids=8x128")
            if row["name"] in shapes:
                raise UsageError(f"--shape {row['name']} is given twice")
            shapes[row["name"]] = tuple(int(d) for d in re.split("[x,]", row["dims"])) if row["dims"] else ()
    return shapes


def output(name: str) -> Callable[..., Any]:
    """The option that says the same as the argument `name`."""
    return click.option("-o", "--output", type=Path, help=f"The same as {name}; must not exist.")


def one_output(argument: Path | None, option: Path | None, name: str) -> Path:
    """Where to write, which was given as the argument `name` or as --output. UsageError unless it was given once."""
    paths = [path for path in (argument, option) if path is not None]
    if len(paths) != 1:
        raise UsageError(f"give either {name} or --output")
    return paths[0]
