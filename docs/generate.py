"""Writes docs/cli.md and docs/python.md from the commands and docstrings, docs/tutorial.md from its notebook,
docs/costs.md and the table of keys in docs/rewrite-rules.md from the numbers of onnxopt/costs/, the table of families
there from the rules, and the table of drivers in docs/artifact.md from the architectures. Draws docs/images/*.svg from
the result files of benchmarks/, and writes their figures into the site's front page.

    python docs/generate.py

A test fails where the files are not what this script writes, so they cannot go stale.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import pydantic

import onnxopt
from onnxopt import option_fields
from onnxopt.codegen.architectures import ARCHITECTURES, DRIVERS
from onnxopt.costs import attention, measured
from onnxopt.graph.rewrite import FAMILIES
from onnxopt.tools.cli import main
from onnxopt.tools.commands.options import Renamed

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parent))
from benchmarks.support import measured_models, networks_chart  # noqa: E402  (the source tree's, beside docs/)

TUTORIAL = FOLDER / "tutorial.ipynb"
_LONGEST_VALUE = 60  # characters in a table
_NOTICE = "<!-- Written by docs/generate.py; change the source, then run it. -->\n"


def cli() -> str:
    """Every command with its arguments and options."""
    context = click.Context(main, info_name="onnxopt")
    parts = [
        "# Commands\n",
        _NOTICE,
        f"{main.help}\n",
        "Results go to stdout, progress and errors to stderr. Exit codes:\n",
        "| code | meaning |\n|---|---|\n"
        "| 0 | done |\n"
        "| 1 | what was compared or examined is not as it should be: two models do not agree (verify), an output is "
        "below `--min-sqnr` or `--min-agreement`, a figure is worse than before (check), a machine or an artifact "
        "has problems (doctor) |\n"
        '| 2 | bad input, or it cannot be done here; one line that begins with "error:" says what and where |\n'
        "| 3 | the result could not be verified; such a line, or the report of verify |\n"
        "| 128 + N | signal N ended it; 130 after Ctrl-C |\n",
        "Where many models are optimized, the code is the largest of those that failed, and their reasons are in the\n"
        "result.\n",
        "With `--json` every result is one JSON object on stdout, with `schema_version` (1). An error is one as\n"
        'well, beside the line on stderr: `{"schema_version": 1, "error": {"kind": ..., "message": ...,\n'
        '"exit_code": ...}}`. `kind` is the class of the error, as [python.md](python.md#errors) lists them.\n'
        "[convert.md](convert.md#3-look-at-it) has the fields of what `optimize` prints.\n",
        "Names may be spelled in other ways: `--precision fp16` (half, bf16), `--shape ids:8x128`, several of them\n"
        "with commas as trtexec takes them (`--shapes ids:8x128,mask:8x128`), `--arch 9.0` or `sm90`,\n"
        "`--provider cuda`. An unknown name of a command, an option, a GPU, an architecture or a key of a\n"
        "configuration file is answered with the nearest one.\n",
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
    opts = option.opts[:1] if isinstance(option, Renamed) else option.opts
    spelled = "/".join([*opts[-1:], *option.secondary_opts])
    short = f"{opts[0]}, " if len(opts) > 1 else ""
    value = "" if option.is_flag else f" {option.make_metavar(click.Context(command))}"
    text = (option.help or "").replace("|", "\\|")
    notes = ["required"] if option.required else []
    if option.show_default and option.default is not None:
        notes.append(f"default {option.default}")
    return f"| `{short}{spelled}{value}` | {text}{f' ({chr(44).join(notes)})' if notes else ''} |"


def python() -> str:
    """Every name of the package, with its signature and docstring."""
    parts = ["# Python\n", _NOTICE, f"```\n{inspect.cleandoc(onnxopt.__doc__ or '')}\n```\n"]
    public = {name: getattr(onnxopt, name) for name in onnxopt.__all__ if not name.startswith("__")}
    errors = {name: thing for name, thing in public.items() if name.endswith("Error")}
    functions = {name: thing for name, thing in public.items() if inspect.isfunction(thing)}
    classes = {name: thing for name, thing in public.items() if name not in errors and name not in functions}
    for name, thing in {**functions, **classes}.items():
        text = _class(thing) if name in classes else _signature(thing)
        parts += [f"## onnxopt.{name}\n", f"```python\n{text}\n```\n", f"{inspect.cleandoc(thing.__doc__ or '')}\n"]
        parts += _options(thing) if name in classes and dataclasses.is_dataclass(thing) else []
    parts.append("## Errors\n")
    parts.append("| error | |\n|---|---|")
    for name, error in errors.items():
        parts.append(f"| `{name}` | {' '.join(inspect.cleandoc(error.__doc__ or '').split())} |")
    return "\n".join([*parts, ""])


def _class(thing: type) -> str:
    """A class with its fields, then its public properties and methods."""
    lines = [f"class {thing.__name__}:"]
    fields = thing.__annotations__ if dataclasses.is_dataclass(thing) or issubclass(thing, pydantic.BaseModel) else {}
    lines += [f"    {name}: {annotation}" for name, annotation in fields.items() if name != "model_config"]
    for name, member in vars(thing).items():
        method = member.fget if isinstance(member, property) else member
        if name.startswith("_") or not inspect.isfunction(method):
            continue
        lines += ["    @property"] if isinstance(member, property) else []
        lines.append(f"    def {name}{_one_line(method)}")
    return "\n".join(lines)


def _options(thing: type) -> list[str]:
    """A table of a class's options, with the one of the command line; nothing for other classes."""
    rows = [
        f"| `{row.name}` | {row.python()} | `{row.spelled}` |".replace("/--", "`/`--")
        for row in option_fields.options_of(thing)
    ]
    return ["\n".join(["| field | | command |", "|---|---|---|", *rows, ""])] if rows else []


def _one_line(method: Callable[..., Any]) -> str:
    signature = inspect.signature(method)
    arguments = [str(parameter).replace("'", "") for parameter in signature.parameters.values()]
    return f"({', '.join(arguments)}) -> {signature.return_annotation}"


def _signature(function: Callable[..., Any]) -> str:
    """As it is written in the source, a parameter a line."""
    signature = inspect.signature(function)
    lines, keyword_only = [], False
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            lines.append("    *,")
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        lines.append(f"    {parameter.name}: {parameter.annotation}{default},")
    if not lines:
        return f"def {function.__name__}() -> {signature.return_annotation}"
    return "\n".join([f"def {function.__name__}(", *lines, f") -> {signature.return_annotation}"])


def tutorial() -> str:
    """The notebook's cells: text, code, and what the code printed when the notebook was saved."""
    first, *cells = json.loads(TUTORIAL.read_text("utf-8"))["cells"]
    heading, _, text = "".join(first["source"]).partition("\n")
    parts = [f"{heading}\n", _NOTICE, f"{text.strip()}\n"]
    for cell in cells:
        source = "".join(cell["source"])
        parts.append(f"```python\n{source}\n```\n" if cell["cell_type"] == "code" else f"{source}\n")
        if printed := "".join(_printed(output) for output in cell.get("outputs", ())):
            parts.append(f"```text\n{printed.rstrip()}\n```\n")
    return "\n".join(parts)


def _printed(output: dict[str, Any]) -> str:
    lines = output["text"] if output["output_type"] == "stream" else output["data"]["text/plain"]
    return "\n".join(line.rstrip() for line in "".join(lines).splitlines()) + "\n"


def costs() -> str:
    """Every number that decides what is faster, with its source."""
    parts = [
        "# Measured numbers\n",
        _NOTICE,
        "What is faster is decided by these numbers, which `onnxopt/costs/` has as data: a JSON file a family. Each\n"
        "says on which GPU or CPU it was measured, when, and on which results of `benchmarks/`; a number that was\n"
        "chosen without a measurement says so. Long tables are in the JSON file alone.\n",
    ]
    for name in sorted(path.stem for path in measured.FOLDER.glob("*.json")):
        family, module = measured.family(name), importlib.import_module(f"onnxopt.costs.{name}")
        parts += [
            f"## {name}\n",
            f"{inspect.cleandoc(module.__doc__ or '')}\n",
            "| number | value | what it is | source |",
        ]
        parts += ["|---|---|---|---|", *(_cost(name, key, row) for key, row in family.rows.items()), ""]
        parts += [f"- {key}: {_source(measurement)}" for key, measurement in family.measurements.items()]
        parts += [""] if family.measurements else []
    return "\n".join(parts)


def _cost(name: str, key: str, row: measured.Row) -> str:
    value = json.dumps(row.value)
    shown = f"`{value}`" if len(value) <= _LONGEST_VALUE else f"[{name}.json](../onnxopt/costs/data/{name}.json)"
    source = f"{row.measured or row.why}{f'; in {row.where}' if row.where else ''}"
    return f"| `{key}` | {shown} | {row.unit}: {row.what} | {source} |"


def _source(measurement: Mapping[str, Any]) -> str:
    results = ", ".join(f"[{Path(path).name}](../{path})" for path in measurement["results"])
    return f"{measurement.get('gpu') or measurement['cpu']}, {measurement['date']}: {results}"


def attention_keys() -> str:
    """The table of docs/rewrite-rules.md: keys up to which attention runs in our kernel, as a part of a list."""
    numbers = attention.numbers()
    titles = ("elements", "q, k and v are tensors", "are slices of one product", "causal")
    of_bias = "a bias for each score: tensors; one product or causal"
    lines = [f"| {' | '.join((*titles, of_bias))} |", "|---|---|---|---|---|"]
    narrowest = 32
    for row in numbers.hopper:
        apart, causal, biased = row["apart"], row["causal"], row["biased"]
        packed = None if apart is None else max(apart, numbers.hopper_keys_if_packed)
        of_tensors = biased if apart is None else min(apart, biased)
        sizes = str(row["width"]) if row["width"] == narrowest else f"{narrowest} to {row['width']}"
        of_causal = "as beside it" if causal == apart and apart is not None else _keys(causal)
        lines.append(
            f"| {sizes} | {_keys(apart)} | {_keys(packed)} | {of_causal} | {_keys(of_tensors)}; {_keys(biased)} |"
        )
        narrowest = row["width"] + 8
    padded = f"{numbers.keys_if_apart} ({numbers.keys_if_padded} where flash attention pads them)"
    lines.append(f"| others | {padded} | {_keys(numbers.keys_if_packed)} | as beside it | as beside it |")
    return "".join(f"  {line}\n" for line in lines)


def _keys(number: int | None) -> str:
    return "any" if number is None else f"{number:,}"


def drivers() -> str:
    """The table of docs/artifact.md: the first driver of each CUDA release, and the architectures that need it."""
    lines = ["| cuda_driver | driver for Linux |", "|---|---|"]
    for cuda, driver in DRIVERS.items():
        archs = ", ".join(a.name for a in ARCHITECTURES if a.cuda == cuda)
        lines.append(f"| {cuda} ({archs}) | {driver} or later |")
    return "".join(f"{line}\n" for line in lines)


def _with_table(text: str, table: str) -> str:
    """A page with this table in place of the one that has its first title."""
    title = re.match(r" *\| [^|]* \|", table)
    assert title is not None
    result, count = re.subn(rf"^{re.escape(title[0])}.*\n( *\|.*\n)+", lambda _: table, text, flags=re.MULTILINE)
    assert count == 1, title[0]
    return result


def artifact() -> str:
    """docs/artifact.md with its table of drivers."""
    return _with_table((FOLDER / "artifact.md").read_text("utf-8"), drivers())


def families() -> str:
    """The table of docs/rewrite-rules.md: every family, and what `explain` says of it."""
    lines = ["| family | what `explain` counts |", "|---|---|"]
    lines += [f"| `{name}` | {text.removeprefix('{} x ')} |" for name, text in FAMILIES.items()]
    return "".join(f"{line}\n" for line in lines)


def rewrite_rules() -> str:
    """docs/rewrite-rules.md with its tables of keys and of families."""
    return _with_table(_with_table((FOLDER / "rewrite-rules.md").read_text("utf-8"), attention_keys()), families())


def front() -> str:
    """docs/site/front.md with the sentence of measured ratios."""
    page = (FOLDER / "site" / "front.md").read_text("utf-8")
    lines = textwrap.fill(networks_chart.sentence(), 128, break_long_words=False, break_on_hyphens=False)
    begin, end = "<!-- written by docs/generate.py -->\n", "<!-- end of what is written -->\n"
    before, _, rest = page.partition(begin)
    return f"{before}{begin}{lines}\n{end}{rest.partition(end)[2]}"


def images() -> dict[str, str]:
    """The pictures that are drawn from result files, by name below docs/images."""
    charts = {f"networks-{scheme}.svg": networks_chart.chart(scheme) for scheme in networks_chart.SCHEMES}
    return {"measured.svg": measured_models.picture(), **charts}


if __name__ == "__main__":
    (FOLDER / "cli.md").write_text(cli(), "utf-8")
    (FOLDER / "python.md").write_text(python(), "utf-8")
    (FOLDER / "tutorial.md").write_text(tutorial(), "utf-8")
    (FOLDER / "costs.md").write_text(costs(), "utf-8")
    (FOLDER / "artifact.md").write_text(artifact(), "utf-8")
    (FOLDER / "rewrite-rules.md").write_text(rewrite_rules(), "utf-8")
    (FOLDER / "site" / "front.md").write_text(front(), "utf-8")
    for name, picture in images().items():
        (FOLDER / "images" / name).write_text(picture, "utf-8")
