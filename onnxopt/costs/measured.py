"""The files of measured numbers: a row a number, with its unit, its meaning and where it comes from."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

FOLDER = Path(__file__).parent / "data"
Numbers = TypeVar("Numbers")
_TYPES: Mapping[str, tuple[type, ...]] = {"int": (int,), "float": (int, float)}
_CHOSEN = "chosen, not measured: "
_OF_KINDS = {"attention": "token_attention", "block": "convolution"}  # kinds whose family has another name
_MEASUREMENT = ({"gpu", "date", "results"}, {"cpu", "date", "results"})


@dataclasses.dataclass(frozen=True)
class Row:
    """A number of a family, or a small table of them.

    what: its meaning, which continues its name and unit. measured: the key of a measurement of the family, None for a
    number that was chosen; why: then the reason. cpp: its C++ type, where the library reads it from generated/costs.h.
    where: the file and the constant of device code that has it; then it is no number of the host.
    """

    value: Any
    unit: str
    what: str
    measured: str | None
    why: str = ""
    cpp: str = ""
    where: str = ""


@dataclasses.dataclass(frozen=True)
class Family:
    """measurements: where numbers come from: a GPU or a CPU, a date, and files of results."""

    measurements: Mapping[str, Mapping[str, Any]]
    rows: Mapping[str, Row]


@functools.cache
def family(name: str) -> Family:
    """The numbers of costs/<name>.json. ValueError says what is wrong."""
    return parse(json.loads((FOLDER / f"{name}.json").read_text("utf-8")), name)


def gpus(kind: str) -> frozenset[str]:
    """Names of the GPUs on which numbers of a kind of kernels were measured; none where the kind has no numbers."""
    name = _OF_KINDS.get(kind, kind)
    if not (FOLDER / f"{name}.json").is_file():
        return frozenset()
    return frozenset(str(row["gpu"]) for row in family(name).measurements.values() if "gpu" in row)


def parse(document: Mapping[str, Any], name: str) -> Family:
    """The family of a document. ValueError where a number does not say its unit and where it comes from."""
    for key, measurement in document["measurements"].items():
        if set(measurement) not in _MEASUREMENT or not all(measurement.values()):
            raise ValueError(f"{name}.json, {key}: a measurement must state its gpu or cpu, date and results")
    rows = {}
    for key, fields in document["rows"].items():
        try:
            row = Row(**fields)
        except TypeError as error:
            raise ValueError(f"{name}.json, {key}: {error}") from None
        if problem := _problem(row, document["measurements"]):
            raise ValueError(f"{name}.json, {key}: {problem}")
        rows[key] = row
    return Family(document["measurements"], rows)


def _problem(row: Row, measurements: Mapping[str, Any]) -> str:
    if not row.unit or not row.what:
        return "a number must state its unit and what it is"
    if row.measured is None:
        return "" if row.why.startswith(_CHOSEN) else f'a number is measured, or says why: "{_CHOSEN}..."'
    if row.why:
        return "a number that was measured was not chosen"
    return "" if row.measured in measurements else f"there is no measurement {row.measured!r}"


def load(name: str, form: type[Numbers]) -> Numbers:
    """The values of a family as the dataclass that names them: lists as tuples, tables by numbers with int keys."""
    return fill(name, {key: row.value for key, row in family(name).rows.items() if not row.where}, form)


def fill(name: str, values: Mapping[str, Any], form: type[Numbers]) -> Numbers:
    """The dataclass with these values. ValueError where names differ, or an int or a float has no such value."""
    declared = {field.name: field.type for field in dataclasses.fields(form)}  # type: ignore[arg-type]
    if values.keys() != declared.keys():
        differing = ", ".join(sorted(values.keys() ^ declared.keys()))
        raise ValueError(f"{name}.json and {form.__name__} differ in {differing}")
    for key, value in values.items():
        types = _TYPES.get(str(declared[key]))
        if types is not None and (isinstance(value, bool) or not isinstance(value, types)):
            raise ValueError(f"{name}.json: {key}: {value!r} is not of type {declared[key]}")
    return form(**{key: _frozen(value) for key, value in values.items()})


def _frozen(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_frozen, value))
    if isinstance(value, dict):
        return {int(key) if key.isdigit() else key: _frozen(entry) for key, entry in value.items()}
    return value
