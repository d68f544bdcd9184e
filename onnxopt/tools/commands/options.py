"""Options that several commands share, their values, and the printing of results."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from onnxopt.errors import UsageError


class Renamed(click.Option):
    """An option whose last spelling is an older one, which is taken and not shown."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        spelled, self.opts = self.opts, self.opts[:-1]
        try:
            return super().get_help_record(ctx)
        finally:
            self.opts = spelled


SCHEMA_VERSION = 1  # of the JSON that commands print
shape = click.option(
    "--shape",
    "shapes",
    metavar="NAME=DIMS",
    multiple=True,
    help="Size of an input (ids=8x128) or of a dynamic dim (batch=8) to run at; repeat for more.",
)
provider = click.option(
    "--provider", help="Execution provider by ONNX Runtime's name. Default: CUDA where usable, else CPU."
)
data = click.option(
    "--data",
    metavar="FILE.npz",
    multiple=True,
    type=Path,
    help="Your own inputs by name, as numpy.savez writes them, instead of generated ones; repeat for more.",
)
emulate = click.option(
    "--emulate",
    is_flag=True,
    help="Run the CUDA kernels on the CPU too, at small sizes, compiled by g++. Takes three minutes at most.",
)
archs = click.option(
    "--arch",
    "archs",
    multiple=True,
    metavar="NAME,...",
    help="What to compile for: architectures (sm_90), GPUs (h200), `native` for this machine's, `all`, or `none`; "
    "repeat for more. Default: all.",
)
timeout = click.option(
    "--timeout",
    type=float,
    metavar="SECONDS",
    help="How long one run of the original, or of what is made of it, may take. Default: 30, and 1 for each 10 MB.",
)
_GOALS = (
    click.option("--min-sqnr", metavar="DB", type=float, help="Signal to noise that every output has to keep, in dB."),
    click.option("--min-cosine", metavar="COSINE", type=float, help="Cosine that every output has to keep."),
    click.option("--min-top1", metavar="SHARE", type=float, help="Share of rows that keep their greatest element."),
    click.option(
        "--min-top5", metavar="SHARE", type=float, help="Share of rows whose greatest element stays among the five."
    ),
    click.option("--max-kl", metavar="NATS", type=float, help="Divergence of the rows' softmax, at most."),
)
quiet = click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def goals(command: Callable[..., None]) -> Callable[..., None]:
    """The options of what every output has to keep against float32, which become the keywords of quality.Goals."""
    return functools.reduce(lambda decorated, option: option(decorated), reversed(_GOALS), command)


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
    given = [path for path in (argument, option) if path is not None]
    if len(given) != 1:
        raise UsageError(f"give either {name} or --output")
    return given[0]


def print_json(document: Mapping[str, Any]) -> None:
    """Print a result, or an error, with the schema version of what commands print."""
    click.echo(json.dumps({"schema_version": SCHEMA_VERSION, **document}, indent=2))


def print_result(document: Mapping[str, Any], text: str, as_json: bool) -> None:
    if as_json:
        print_json(document)
    else:
        click.echo(text)
