"""Every command that takes an artifact refuses one that is not signed as ONNXOPT_PUBLIC_KEY asks."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

import click
import pytest

import onnxopt
from onnxopt.artifact import archive, minisign, signing
from onnxopt.tools.cli import COMMANDS
from tests.support.artifacts import make
from tests.support.command import assert_refused, run

pytestmark = pytest.mark.usefixtures("library")

# What follows the name; ARTIFACT is the folder, ARCHIVE the same packed, NEW a path that does not exist.
CALLS = {
    "add-arch": ["ARTIFACT", "sm_90"],
    "bench": ["ARTIFACT"],
    "bench, packed": ["ARCHIVE"],
    "bench, against": ["TRUSTED", "--against", "ARTIFACT"],
    "check": ["ARTIFACT", "--save", "NEW"],
    "check, baseline": ["TRUSTED", "--baseline", "ARTIFACT"],
    "doctor": ["ARTIFACT"],
    "explain": ["ARTIFACT"],
    "explain, packed": ["ARCHIVE"],
    "export-ortpackage": ["ARTIFACT", "NEW.ortpackage"],
    "export-triton": ["ARTIFACT", "NEW"],
    "pack": ["ARTIFACT", "NEW"],
    "refit": ["ARTIFACT", "NEW.safetensors", "-o", "NEW"],
    "report": ["ARTIFACT"],
    "report, packed": ["ARCHIVE", "-o", "NEW"],
    "tune": ["ARTIFACT"],
    "unpack": ["ARCHIVE", "NEW"],
    "verify": ["ARTIFACT", "TRUSTED"],
    "verify, second": ["TRUSTED", "ARTIFACT"],
    "verify, packed": ["TRUSTED", "ARCHIVE"],
    "verify-signature": ["ARTIFACT"],
}
# inspect and optimize take models; keygen and sign are how a signature comes to be.
WITHOUT = {"inspect", "batch", "optimize", "quantize", "keygen", "sign"}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An artifact signed by another key, its archive, and one that is signed as it has to be."""
    folder = tmp_path_factory.mktemp("signed")
    key, other = minisign.generate_key(), minisign.generate_key()
    signing.sign(make(folder / "artifact"), other)
    archive.pack(folder / "artifact", folder / "archive.zip")
    signing.sign(make(folder / "trusted"), key)
    (folder / "key.pub").write_text(key.public.to_text())
    return {
        "ARTIFACT": folder / "artifact",
        "ARCHIVE": folder / "archive.zip",
        "TRUSTED": folder / "trusted",
        "KEY": folder / "key.pub",
    }


def test_the_table_has_every_command_that_takes_an_artifact() -> None:
    called = {call.split(",")[0] for call in CALLS}
    assert called | WITHOUT == set(COMMANDS)
    for name in WITHOUT - {"sign"}:
        command = importlib.import_module(f"onnxopt.tools.commands.{name}").command
        arguments = {p.name for p in command.params if isinstance(p, click.Argument)}
        assert arguments <= {"model", "models", "file"}


@pytest.mark.parametrize("call", CALLS)
def test_a_wrong_signature_is_refused(
    call: str, places: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv(signing.PUBLIC_KEY_VARIABLE, str(places["KEY"]))
    before = {p: p.stat().st_mtime_ns for p in places["ARTIFACT"].rglob("*")}
    arguments = [str(places.get(a, tmp_path / a if a.startswith("NEW") else a)) for a in CALLS[call]]
    assert_refused(run(call.split(",")[0], *arguments), "is signed by key", "not by the key asked for")
    assert {p: p.stat().st_mtime_ns for p in places["ARTIFACT"].rglob("*")} == before
    assert not os.listdir(tmp_path)


def test_the_same_commands_take_what_is_signed(
    places: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(signing.PUBLIC_KEY_VARIABLE, str(places["KEY"]))
    for arguments in (["explain", places["TRUSTED"]], ["pack", places["TRUSTED"], tmp_path / "a.zip"]):
        assert run(*arguments).exit_code == 0
    assert run("unpack", tmp_path / "a.zip", tmp_path / "out").exit_code == 0
    assert onnxopt.explain(places["TRUSTED"])
    (tmp_path / "out" / "manifest.json.minisig").unlink()
    assert_refused(run("explain", tmp_path / "out"), "is not signed")
    assert_refused(run("doctor", tmp_path / "out"), "is not signed")
