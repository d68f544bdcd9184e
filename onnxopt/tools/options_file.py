"""Options of `optimize` in a TOML file: for one run (--config, --save-config) and for many (batching/config.py).

model = "exports/bert.onnx"     # from the file's own folder
output = "bert"
archs = ["h200"]                # by the names in Python, or as the command spells them: arch
shapes = {batch = 8}
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pydantic

from onnxopt import option_fields
from onnxopt.errors import UsageError
from onnxopt.pipeline.options import Options

_PATHS = ("data", "calibrate")
_PATH = "reference"
_ROWS = {row.name: row for row in option_fields.options_of(Options) if row.batch is not None}
_SPELLED = {
    name.removeprefix("--").replace("-", "_"): row.name
    for row in _ROWS.values()
    if row.of is not bool
    for name in (row.spelled, *row.also)
}
# The fields of a pydantic model with all options.
FIELDS: dict[str, Any] = {
    name: (row.batch, {} if name == "shapes" else [] if row.default == () else row.default)
    for name, row in _ROWS.items()
} | {"timeout": (float | None, pydantic.Field(default=None, gt=0))}
Model = TypeVar("Model", bound=pydantic.BaseModel)


class _Run(pydantic.BaseModel):
    """One run beside its options."""

    model_config = pydantic.ConfigDict(extra="forbid", strict=True)

    model: str | None = None
    output: str | None = None


_SingleRun = pydantic.create_model("_SingleRun", __base__=_Run, **FIELDS)


class Run(NamedTuple):
    """What a file says of one run. fields: of Options, those that it states."""

    model: Path | None
    output: Path | None
    fields: dict[str, Any]


def read(file: Path) -> Run:
    """The file of one run. UsageError, one line that names the place, where it cannot be read or is wrong."""
    stated = validated(_SingleRun, named(parsed(file)), file).model_dump(exclude_unset=True)
    model, output = (
        None if (path := stated.pop(name, None)) is None else file.parent / path for name in ("model", "output")
    )
    return Run(model, output, fields_of(resolved(stated, file.parent)))


def save(file: Path, model: Path, output: Path, options: Options) -> None:
    """Write the file of one run, which `read` reads. UsageError where it exists, or a value has no place in a file."""
    folder = file.absolute().parent
    stated: dict[str, Any] = {"model": model, "output": output}
    for name, row in _ROWS.items():
        value = getattr(options, name)
        if value != row.default and (name == "archs" or value not in ({}, (), [])):
            stated[name] = value
    for name in ("model", "output", _PATH, *_PATHS):
        if name in stated:
            paths = stated[name] if name in _PATHS else [stated[name]]
            relative = [os.path.relpath(path, folder) for path in paths]
            stated[name] = relative if name in _PATHS else relative[0]
    lines = [f"{name} = {_toml(value)}\n" for name, value in stated.items()]
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.writelines(lines)
    except FileExistsError:
        raise UsageError(f"{file}: exists already; remove it, or save to another file") from None
    except OSError as error:
        raise UsageError(f"{file}: cannot be written: {error.strerror or error}") from error


def parsed(file: Path) -> dict[str, Any]:
    """The document of a TOML file. UsageError where it cannot be read."""
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"{file}: cannot be read: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: is not TOML: {error}") from error


def named(table: Any) -> Any:
    """A table whose options are spelled as on the command line, with their names in Python."""
    if not isinstance(table, Mapping):
        return table
    keys = {key: key.replace("-", "_") for key in table}
    return {_SPELLED.get(key, key) if key not in _ROWS else key: table[old] for old, key in keys.items()}


def validated(kind: type[Model], document: Any, file: Path) -> Model:
    """The document as a pydantic model. UsageError that names the first place which is wrong."""
    try:
        return kind.model_validate(document)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        wrong = _unknown(kind, first["loc"]) if first["type"] == "extra_forbidden" else first["msg"]
        raise UsageError(f"{file}: {'.'.join(map(str, first['loc']))}: {wrong}") from None


def _unknown(kind: type[pydantic.BaseModel], place: tuple[int | str, ...]) -> str:
    """What to say of a name that a file may not have at a place."""
    for part in place[:-1]:
        if isinstance(part, str):
            annotation: Any = kind.model_fields[part].annotation
            kind = next(iter(getattr(annotation, "__args__", ())), annotation)
    fields = kind.model_fields
    return f"is no option; there are {', '.join(fields)}{option_fields.did_you_mean(str(place[-1]), fields)}"


def resolved(fields: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Options whose files are found from the folder of their file."""
    found = {**fields, **{key: [str(folder / name) for name in fields[key]] for key in _PATHS if key in fields}}
    if found.get(_PATH) is not None:
        found[_PATH] = str(folder / found[_PATH])
    return found


def fields_of(stated: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of Options from those of a file: a size is a shape of one dim."""
    fields = {name: value for name, value in stated.items() if name in _ROWS}
    if fields.get("shapes") is not None:
        fields["shapes"] = {
            key: (dims,) if isinstance(dims, int) else tuple(dims) for key, dims in fields["shapes"].items()
        }
    return fields


def _toml(value: Any) -> str:
    """A value as TOML. UsageError for arrays, which are in memory alone."""
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    if isinstance(value, str | os.PathLike):
        return json.dumps(os.fspath(value), ensure_ascii=False).replace("\x7f", "\\u007F")
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_toml(key)} = {_toml(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    raise UsageError(f"a file of options cannot hold {type(value).__name__}")
