"""Whether an output is there already, made of the same files with the same options by the same onnxopt.

Files count by their content, options by their values, whichever way they were spelled. `cache` and `timeout` do not
change an artifact. Imports neither ONNX nor the steps: a run that has nothing to do ends in a fraction of a second.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from onnxopt import files, option_fields, versions
from onnxopt.artifact import existing
from onnxopt.errors import UsageError
from onnxopt.pipeline.options import Options
from onnxopt.runtime import archs

Request = dict[str, Any]  # options, files, code: as the manifest has it
_MODEL, _REFERENCE = "model", "reference"
_INPUTS = ("data", "calibrate")
_NO_PART = ("cache", "timeout", _REFERENCE, *_INPUTS)  # of the options that are recorded


def files_of(model: Path, others: Iterable[str], role: str = _MODEL) -> dict[str, Path]:
    """A model file and the files that hold its weights, by names that do not depend on where the model is."""
    folder = os.path.realpath(model.parent)
    return {role: model, **{f"{role}/{os.path.relpath(path, folder)}": Path(path) for path in others}}


def files_in(folder: Path) -> dict[str, Path]:
    """All files of a folder, by their paths in it."""
    return {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if not path.is_dir()}


def request(options: Options, sources: Mapping[str, Path]) -> Request | None:
    """What an artifact is made of. sources: files by name. None where inputs are arrays in memory.

    UsageError where an architecture is unknown, OSError where a file cannot be read.
    """
    paths = dict(sources)
    for kind in _INPUTS:
        for number, source in enumerate(getattr(options, kind), 1):
            if not isinstance(source, str | os.PathLike):
                return None
            paths[f"{kind} {number}"] = Path(source)
    if options.reference is not None:
        paths.setdefault(_REFERENCE, Path(options.reference))
    return {
        "options": _stated(options),
        "files": digests(paths),
        "code": versions.code(),
    }


def digests(paths: Mapping[str, Path]) -> dict[str, str]:
    """The SHA-256 of files by name. OSError where one cannot be read."""
    return {name: _digest(path) for name, path in sorted(paths.items())}


def is_done(source: Path, output: Path, options: Options) -> bool:
    """Whether nothing is to be done; False where nothing is at `output`.

    source: the model file, or the folder of models. UsageError saying what differs where something else is there.
    """
    if not os.path.lexists(output):
        return False
    record = existing.record_of(output)
    if record is None:
        raise UsageError(f"{output}: exists already and is no artifact; remove it, or choose another output")
    if differing := "; ".join(_differences(record, source, output, options)):
        raise UsageError(f"{output}: exists already, but {differing}; --force replaces it, and -o names another output")
    return True


def _differences(record: dict[str, Any], source: Path, output: Path, options: Options) -> Iterator[str]:
    earlier = _request_of(record)
    if earlier is None:
        yield "does not say what it was made of, as after a model in memory"
        return
    if record["onnxopt"] != versions.onnxopt():
        yield f"it was made by onnxopt {record['onnxopt']}"
    elif earlier["code"] != versions.code():
        yield "it was made by another build of onnxopt"
    try:
        now = request(options, _sources(source, options, earlier["files"]))
    except (OSError, ValueError) as error:  # ValueError for a name that no file can have
        yield f"{error.filename} cannot be read: {error.strerror}" if isinstance(error, OSError) else str(error)
        return
    if now is None:
        yield "inputs in memory cannot be compared"
        return
    for name in sorted({*earlier["options"], *now["options"]}):
        before, value = (asked["options"].get(name) for asked in (earlier, now))
        if name == "archs" and before and {*before} < {*value}:
            lacking = ",".join(arch for arch in value if arch not in before)
            yield f"it has no code for {lacking}, which `onnxopt add-arch {output} {lacking}` adds"
        elif before != value:
            yield f"{_spelled(name)} was {_text(before)} and is {_text(value)}"
    for name in sorted({*earlier["files"], *now["files"]}):
        if earlier["files"].get(name) != now["files"].get(name):
            yield f"{source if name == _MODEL else name} is another file"
    if damage := existing.damage(output, record):
        yield damage


def _request_of(record: dict[str, Any]) -> Request | None:
    """The request of a record, which anybody may have written; None where it has not the form of one."""
    earlier = record.get("request")
    if not isinstance(earlier, dict) or not all(isinstance(earlier.get(name), dict) for name in ("options", "files")):
        return None
    archs_are_listed = isinstance(earlier["options"].get("archs"), list)
    return earlier if archs_are_listed and isinstance(earlier.get("code"), str) else None


def _sources(source: Path, options: Options, earlier: Mapping[str, str]) -> dict[str, Path]:
    """The files of a model or a folder now. earlier: names by which those of weights are found without reading it."""
    if source.is_dir():
        return files_in(source)
    roots = {_MODEL: source}
    if options.reference is not None:
        roots[_REFERENCE] = Path(options.reference)
    weights = {
        name: Path(os.path.realpath(root.parent), name.removeprefix(f"{role}/"))
        for role, root in roots.items()
        for name in earlier
        if name.startswith(f"{role}/")
    }
    return {**roots, **weights}


def _stated(options: Options) -> dict[str, Any]:
    """The options that have another value than by default, as JSON gives them back; architectures always."""
    values: dict[str, Any] = {
        row.name: getattr(options, row.name)
        for row in option_fields.options_of(Options)
        if row.name not in _NO_PART and getattr(options, row.name) not in (row.default, {}, [], ())
    }
    if values.get("shapes"):
        values["shapes"] = {name: list(dims) for name, dims in values["shapes"].items()}
    stated: dict[str, Any] = json.loads(json.dumps({**values, "archs": archs.named(options.archs)}, default=str))
    return stated


def _spelled(name: str) -> str:
    return next((row.spelled for row in option_fields.options_of(Options) if row.name == name), name)


def _text(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "not given" if value is None else "given"
    return ",".join(map(str, value)) or archs.NONE if isinstance(value, list) else json.dumps(value).strip('"')


def _digest(path: Path) -> str:
    with files.open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
