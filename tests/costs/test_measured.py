"""Numbers say their unit and what they are, and by which GPU, date and results they were measured."""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from onnxopt.costs import measured
from onnxopt.kinds import KINDS
from onnxopt.runtime import gpus

ROOT = Path(__file__).resolve().parents[2]
FAMILIES = sorted(path.stem for path in measured.FOLDER.glob("*.json"))


def _document(family: str) -> dict[str, Any]:
    return json.loads((measured.FOLDER / f"{family}.json").read_text("utf-8"))


@pytest.mark.parametrize("family", FAMILIES)
def test_measurements_are_there(family: str) -> None:
    read = measured.family(family)
    for measurement in read.measurements.values():
        assert "cpu" in measurement or gpus.find_gpu(measurement["gpu"]) is not None
        assert datetime.date.fromisoformat(measurement["date"]) <= datetime.date.today()
        assert all((ROOT / path).is_file() for path in measurement["results"])
    used = {row.measured for row in read.rows.values()} - {None}
    assert used == set(read.measurements), "a measurement that no number rests on"


@pytest.mark.parametrize("family", FAMILIES)
def test_every_number_has_a_place_in_its_module(family: str) -> None:
    numbers = importlib.import_module(f"onnxopt.costs.{family}").numbers()
    rows = measured.family(family).rows
    assert {field.name for field in dataclasses.fields(numbers)} == {key for key, row in rows.items() if not row.where}


def test_gpus_of_kinds() -> None:
    """Those of every kind with a family of numbers are GPUs of the catalogue."""
    named = {kind.name: measured.gpus(kind.name) for kind in KINDS}
    assert {name for name, found in named.items() if not found} == {"grid_sample"}
    assert all(gpus.find_gpu(name) for found in named.values() for name in found)


def test_device_code_has_the_numbers_that_are_said_to_be_there() -> None:
    rows = [row for family in FAMILIES for row in measured.family(family).rows.values() if row.where]
    assert rows
    for row in rows:
        file, _, constant = row.where.rpartition(" ")
        (line,) = re.findall(rf"\b{constant} = (.*);", (ROOT / file).read_text("utf-8"))
        assert {str(n) for n in row.value} <= set(re.findall(r"\d+", line)), row.where


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"unit": ""}, "must state its unit"),
        ({"what": ""}, "must state its unit"),
        ({"measured": None}, 'is measured, or says why: "chosen, not measured: '),
        ({"measured": None, "why": "by feeling"}, 'is measured, or says why: "chosen, not measured: '),
        ({"why": "chosen, not measured: by feeling"}, "was not chosen"),
        ({"measured": "nothing"}, "no measurement 'nothing'"),
        ({"gpu": "NVIDIA H200"}, "unexpected keyword argument 'gpu'"),
    ],
)
def test_numbers_without_their_source_are_refused(change: dict[str, Any], reason: str) -> None:
    document = _document("pointwise")
    document["rows"]["threads"] |= change
    with pytest.raises(ValueError, match=rf"pointwise.json, threads: .*{reason}"):
        measured.parse(document, "pointwise")


@pytest.mark.parametrize("name", ["gpu", "date", "results"])
def test_measurements_without_their_source_are_refused(name: str) -> None:
    for lost in ({}, {name: ""}):
        document = _document("pointwise")
        del document["measurements"]["blocks"][name]
        document["measurements"]["blocks"] |= lost
        with pytest.raises(ValueError, match=r"pointwise.json, blocks: a measurement must state its gpu or cpu"):
            measured.parse(document, "pointwise")


@dataclasses.dataclass(frozen=True)
class _Form:
    blocks: int
    share: float
    table: dict[int, tuple[int, ...]]


def test_values_are_filled_in_by_name() -> None:
    form = measured.fill("family", {"blocks": 2, "share": 1, "table": {"16": [1, 2]}}, _Form)
    assert form == _Form(2, 1, {16: (1, 2)})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"blocks": 2.5}, "blocks: 2.5 is not of type int"),
        ({"blocks": True}, "blocks: True is not of type int"),
        ({"share": "half"}, "share: 'half' is not of type float"),
        ({"more": 1}, "differ in more"),
    ],
)
def test_values_of_another_form_are_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=rf"family.json.*{reason}"):
        measured.fill("family", {"blocks": 2, "share": 1.0, "table": {}} | change, _Form)
