"""The file of a batch: which models, with which options, and what differs for single ones.

[defaults]                    # options of onnxopt.optimize, by their names in Python
archs = ["sm_90"]
[[models]]
path = "exports/*.onnx"       # from the file's own folder; a model, a folder or a pattern
[[models]]
path = "exports/bert.onnx"    # a model that several entries name takes the options of all, the last one's first
precision = "float16"
bench = true
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pydantic

from onnxopt.errors import UsageError
from onnxopt.paths import StrPath
from onnxopt.pipeline import precision
from onnxopt.pipeline.options import Options
from onnxopt.runtime import archs, releases
from onnxopt.tools import options_file
from onnxopt.tools.batching.jobs import Job, Needs, names, sources

SUFFIX = ".toml"
_MEMORY_PER_BYTE = 4  # of the model's file: the model, its normalized form, and two sessions
_MEMORY = 1_000_000_000  # bytes beside that


class Work(pydantic.BaseModel):
    """What a job does and needs beside the options of `optimize`.

    tune: seconds to tune the artifact for. bench: time it and record that. cpus, memory_gb, gpus: of a machine of a
    cluster; gpus are for tune and bench.
    """

    model_config = pydantic.ConfigDict(extra="forbid", strict=True)

    tune: float | None = pydantic.Field(default=None, gt=0)
    bench: bool = False
    cpus: float = pydantic.Field(default=1, gt=0)
    memory_gb: float | None = pydantic.Field(default=None, gt=0)
    gpus: float = pydantic.Field(default=1, ge=0)


class Entry(Work):
    """Models with the options that differ from the defaults. name: of the output, where the path is one model."""

    path: str
    name: str | None = pydantic.Field(default=None, pattern=r"^[^/]+$")


class Config(pydantic.BaseModel):
    """The whole file."""

    model_config = pydantic.ConfigDict(extra="forbid", strict=True)

    defaults: Work = Work()
    models: list[Entry] = pydantic.Field(min_length=1)


_Defaults = pydantic.create_model("Defaults", __base__=Work, **options_file.FIELDS)
_Entry = pydantic.create_model("Entry", __base__=Entry, **options_file.FIELDS)
_Config = pydantic.create_model(
    "Config",
    __base__=Config,
    defaults=(_Defaults, _Defaults()),
    models=(list[_Entry], pydantic.Field(min_length=1)),  # type: ignore[valid-type]
)


def jobs_of(models: Sequence[StrPath], out_dir: Path, archs: Sequence[str] | None = None) -> list[Job]:
    """The jobs that a configuration file, or paths and patterns, name; the outputs lie in `out_dir`.

    archs: in place of those in [defaults]; None for these.

    UsageError where the file is wrong, a path does not exist, or two outputs would have one name.
    """
    if not any(str(path).endswith(SUFFIX) for path in models):
        paths = sources(models, out_dir)
        shared = _Defaults.model_validate({} if archs is None else {"archs": list(archs)})
        _check("--arch", shared)
        return [_job(name, path, out_dir, shared) for name, path in zip(names(paths), paths, strict=True)]
    if len(models) != 1:
        raise UsageError(f"give one configuration file ({SUFFIX}), or models and patterns, not both")
    file = Path(models[0])
    config = read(file)
    defaults = options_file.resolved(config.defaults.model_dump(exclude_unset=True), file.parent)
    if archs is not None:
        defaults["archs"] = list(archs)
    options: dict[Path, dict[str, Any]] = {}
    for entry in config.models:
        paths = [path.absolute() for path in sources([entry.path], out_dir, file.parent)]
        if entry.name is not None and len(paths) != 1:
            raise UsageError(f"{file}: name = {entry.name!r} is for one model, {entry.path} names {len(paths)}")
        stated = options_file.resolved(entry.model_dump(exclude_unset=True, exclude={"path"}), file.parent)
        for path in paths:
            options.setdefault(path, dict(defaults)).update(stated)
    return _named(file, options, out_dir)


def read(file: Path) -> Config:
    """UsageError, one line that names the place, where the file cannot be read or is wrong."""
    document = options_file.parsed(file)
    tables = {name: options_file.named(table) for name, table in document.items()}
    if isinstance(models := document.get("models"), list):
        tables["models"] = [options_file.named(entry) for entry in models]
    return options_file.validated(_Config, tables, file)


def _named(file: Path, options: dict[Path, dict[str, Any]], out_dir: Path) -> list[Job]:
    stated = {path: fields.pop("name") for path, fields in options.items() if fields.get("name") is not None}
    others = [path for path in options if path not in stated]
    by_path = {**stated, **dict(zip(others, names(others), strict=True))}
    by_name: dict[str, Path] = {}
    for path, name in by_path.items():
        if (other := by_name.setdefault(name, path)) != path:
            raise UsageError(f"{file}: {path} and {other} would both be named {name}; give one of them a name")
    validated = {path: _Defaults.model_validate(fields) for path, fields in options.items()}
    for path, settings in validated.items():
        _check(f"{file}: {path.name}", settings)
    return [_job(by_path[path], path, out_dir, settings) for path, settings in validated.items()]


def _check(where: str, work: Work) -> None:
    """UsageError where an option has a value that is wrong for every model and on every machine."""
    options = _options(work)
    try:
        archs.named([name for name in options.archs or [] if name != archs.NATIVE])
        releases.release(options.ort_min)
        if options.precision is not None or options.caches:
            precision.asked(options)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None


def _options(work: Work) -> Options:
    return Options(**options_file.fields_of(work.model_dump()))


def _job(name: str, source: Path, out_dir: Path, work: Work) -> Job:
    if source.is_dir() and (work.tune is not None or work.bench):
        raise UsageError(f"{source}: is a folder; tune and bench are for single models")
    memory = _memory(source) if work.memory_gb is None else round(work.memory_gb * 1e9)
    needs = Needs(work.cpus, memory, work.gpus)
    return Job(name, source.absolute(), out_dir.absolute() / name, _options(work), work.tune, work.bench, needs)


def _memory(source: Path) -> int:
    """Bytes that optimizing takes, about."""
    files = [path for path in source.rglob("*.onnx*") if path.is_file()] if source.is_dir() else [source]
    return _MEMORY + _MEMORY_PER_BYTE * sum(path.stat().st_size for path in files if path.exists())
