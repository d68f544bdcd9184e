"""Every file of measured numbers says on which GPU, when, and by which results, which are there."""

from __future__ import annotations

import copy
import datetime
import json
from pathlib import Path

import pytest

from onnxopt.costs import measured
from onnxopt.runtime import gpus

ROOT = Path(__file__).resolve().parents[2]
FAMILIES = sorted(path.stem for path in measured.FOLDER.glob("*.json"))


def _document(family: str) -> dict:
    return json.loads((measured.FOLDER / f"{family}.json").read_text("utf-8"))


@pytest.mark.parametrize("family", FAMILIES)
def test_what_was_measured_is_there(family: str) -> None:
    document = _document(family)
    assert document["how"] and (measured.FOLDER / f"{family}.py").is_file()
    for arch, section in document["archs"].items():
        of = section["measured"]
        gpu = gpus.find_gpu(of["gpu"])
        assert gpu is not None and gpu.arch == arch
        assert datetime.date.fromisoformat(of["date"]) <= datetime.date.today()
        assert all((ROOT / path).is_file() for path in of["results"])


def test_the_newest_architecture_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    document = _document("pointwise")
    document["archs"]["sm_120"] = copy.deepcopy(document["archs"]["sm_90"])
    document["archs"]["sm_120"]["values"]["tile_of_bytes"] = 188
    (tmp_path / "pointwise.json").write_text(json.dumps(document), "utf-8")
    monkeypatch.setattr(measured, "FOLDER", tmp_path)
    assert measured.newest.__wrapped__("pointwise")["tile_of_bytes"] == 188


@pytest.mark.parametrize("name", ["gpu", "date", "results"])
def test_numbers_without_their_source_are_refused(name: str) -> None:
    document = _document("pointwise")
    document["archs"]["sm_90"]["measured"][name] = ""
    with pytest.raises(ValueError, match=r"pointwise.json, sm_90: measured must state date, gpu, results"):
        measured.parse(document, "pointwise")
