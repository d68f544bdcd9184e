"""Writes docs/cli.md and docs/python.md from the commands and docstrings themselves: python docs/generate.py.

tests/test_docs.py fails where the two files are not what this writes, so they cannot go stale.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click

import onnxopt
from onnxopt.tools.cli import main

FOLDER = Path(__file__).resolve().parent
_NOTICE = "<!-- Written by docs/generate.py; change the source, then run it. -->\n"


def cli() -> str:
    """Every command with its arguments and options."""
    context = click.Context(main, info_name="onnxopt")
    parts = [
        "# Commands\n",
        _NOTICE,
        f"{main.help}\n",
        "Results go to stdout, progress and errors to stderr. Exit codes: 0 done, 1 two models do not agree, 2 an\n"
        'input that cannot be used, said in one line that begins with "error:".\n',
    ]
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert command is not None
        parts += _command(f"onnxopt {name}", command)
    return "\n".join(parts)


def _command(name: str, command: click.Command) -> Iterator[str]:
    yield f"## {name}\n"
    if isinstance(command, click.Group):
        yield f"{inspect.cleandoc(command.help or '')}\n"
        for inner in sorted(command.commands):
            yield from _command(f"{name} {inner}", command.commands[inner])
        return
    arguments = [p.make_metavar(click.Context(command)) for p in command.params if isinstance(p, click.Argument)]
    yield f"```\n{' '.join([name, '[OPTIONS]', *arguments])}\n```\n"
    yield f"{inspect.cleandoc(command.help or '')}\n"
    rows = [_option(p, command) for p in command.params if isinstance(p, click.Option) and not p.hidden]
    if rows:
        yield "\n".join(["| option | |", "|---|---|", *rows, ""])


def _option(option: click.Option, command: click.Command) -> str:
    spelled = "/".join([*option.opts[-1:], *option.secondary_opts])
    short = f"{option.opts[0]}, " if len(option.opts) > 1 else ""
    value = "" if option.is_flag else f" {option.make_metavar(click.Context(command))}"
    text = (option.help or "").replace("|", "\\|")
    notes = ["required"] if option.required else []
    if option.show_default and option.default is not None:
        notes.append(f"default {option.default}")
    return f"| `{short}{spelled}{value}` | {text}{f' ({chr(44).join(notes)})' if notes else ''} |"


def python() -> str:
    """Every name of the package, with its signature and docstring."""
    parts = ["# Python\n", _NOTICE, f"```\n{inspect.cleandoc(onnxopt.__doc__ or '')}\n```\n"]
    names = [n for n in onnxopt.__all__ if not n.startswith("__")]
    functions = [n for n in names if inspect.isfunction(getattr(onnxopt, n))]
    records = [n for n in names if dataclasses.is_dataclass(getattr(onnxopt, n))]
    errors = [n for n in names if n.endswith("Error")]
    rest = sorted(set(names) - {*functions, *records, *errors})
    things = {name: getattr(onnxopt, name) for name in (*functions, *records, *rest)}
    public = {f"onnxopt.{name}": thing for name, thing in things.items()}
    for title, thing in {**public, **dict(_results(things.values()))}.items():
        parts += [f"## {title}\n", f"```python\n{_signature(thing)}\n```\n", _docstring(thing)]
    parts.append("## Errors\n")
    parts.append("| error | |\n|---|---|")
    for name in errors:
        parts.append(f"| `{name}` | {' '.join(inspect.cleandoc(getattr(onnxopt, name).__doc__ or '').split())} |")
    return "\n".join([*parts, ""])


def _results(functions: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """The records that functions return, by name."""
    for function in filter(inspect.isfunction, functions):
        returned = function.__globals__.get(inspect.signature(function).return_annotation)
        if dataclasses.is_dataclass(returned):
            yield returned.__name__, returned  # type: ignore[union-attr]


def _docstring(thing: Any) -> str:
    return f"{inspect.cleandoc(thing.__doc__ or '')}\n"


def _signature(thing: Any) -> str:
    """As it is written in the source; a dataclass by its fields."""
    if dataclasses.is_dataclass(thing):
        return "\n".join([f"class {thing.__name__}:", *(f"    {f.name}: {f.type}" for f in dataclasses.fields(thing))])
    signature = inspect.signature(thing)
    lines, keyword_only = [], False
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            lines.append("    *,")
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        lines.append(f"    {parameter.name}: {parameter.annotation}{default},")
    return "\n".join([f"def {thing.__name__}(", *lines, f") -> {signature.return_annotation}"])


if __name__ == "__main__":
    (FOLDER / "cli.md").write_text(cli(), "utf-8")
    (FOLDER / "python.md").write_text(python(), "utf-8")
