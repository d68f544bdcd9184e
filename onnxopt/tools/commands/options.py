"""Options that several commands share, and their values."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from onnxopt import option_fields
from onnxopt.errors import UsageError
from onnxopt.pipeline.options import Options
from onnxopt.verification.lowering.goals import Goals


class Renamed(click.Option):
    """An option whose last spelling is an older one, which is taken and not shown."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        spelled, self.opts = self.opts, self.opts[:-1]
        try:
            return super().get_help_record(ctx)
        finally:
            self.opts = spelled


def click_option(row: option_fields.Option) -> Callable[..., Any]:
    """The click option of a field: one that takes a value, a flag, or a pair of flags."""
    names, text = (row.spelled, row.name), row.help()
    if row.alone is not None:
        return click.option(
            *names, metavar=row.value, type=click.UNPROCESSED, is_flag=False, flag_value=row.alone, default=row.default,
            callback=_no_file, help=text,
        )  # fmt: skip
    if row.of is not bool:
        kind = click.Choice(row.of) if isinstance(row.of, tuple) else None if row.of is str else row.of
        default = None if row.many or row.required else row.default
        return click.option(
            *names, metavar=row.value, type=kind, multiple=row.many, required=row.required, default=default, help=text
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
    "--provider", help="Execution provider by ONNX Runtime's name. Default: CUDA where usable, else CPU."
)
quiet = click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def goals(command: Callable[..., None]) -> Callable[..., None]:
    """The options of what every output has to keep against float32, which become the keywords of quality.Goals."""
    names = [field.name for field in dataclasses.fields(Goals)]
    return functools.reduce(lambda decorated, name: click_option(_FIELDS[name])(decorated), reversed(names), command)


def parse_shapes(texts: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """Shapes by name, of texts NAME=DIMS with DIMS as 8x128 or 8,128; empty DIMS is a scalar. UsageError for others."""
    shapes: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, equals, dims = text.rpartition("=")
        if not name or not equals or not re.fullmatch(r"(\d+([x,]\d+)*)?", dims):
            raise UsageError(f"--shape {text}: expected NAME=DIMS, as in ids=8x128")
        if name in shapes:
            raise UsageError(f"--shape {name} is given twice")
        shapes[name] = tuple(int(d) for d in re.split("[x,]", dims)) if dims else ()
    return shapes


def one_output(argument: Path | None, option: Path | None, name: str) -> Path:
    """Where to write, which was given as the argument `name` or as --output. UsageError unless it was given once."""
    paths = [path for path in (argument, option) if path is not None]
    if len(paths) != 1:
        raise UsageError(f"give either {name} or --output")
    return paths[0]
