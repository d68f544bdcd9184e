"""Where `optimize` writes, when it finds that nothing is to be done, and what --force replaces."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import Result

import onnxopt
from onnxopt.artifact import folder as artifact_folder
from onnxopt.errors import UsageError
from onnxopt.pipeline import making
from tests.support.command import assert_refused, run
from tests.support.small_models import CHAIN, write

ROOT = Path(__file__).resolve().parents[2]
SMALL = "g (float[n, 4] x) => (float[n, 4] y) { y = Neg(x) }"


def optimize(*arguments: str | Path) -> Result:
    return run("optimize", *arguments, "--arch", "none")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with models, which is where the command runs."""
    (tmp_path / "sub").mkdir()
    for name in ("m.onnx", "sub/n.onnx", "model"):
        write(tmp_path / name, SMALL)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        (["m.onnx"], "m.onnxopt"),
        (["sub/n.onnx"], "sub/n.onnxopt"),
        (["model"], "model.onnxopt"),
        (["sub"], "sub.onnxopt"),
        (["sub/"], "sub.onnxopt"),
        (["m.onnx", "out"], "out"),
        (["m.onnx", "new/out"], "new/out"),
        (["m.onnx", "-o", "out"], "out"),
        (["sub", "out"], "out"),
        (["m.onnx", "sub/n.onnx", "--out-dir", "out"], "out/m"),
    ],
)
def test_where_it_writes(folder: Path, arguments: list[str], output: str) -> None:
    made = optimize(*arguments)
    assert made.exit_code == 0, made.output
    assert (folder / output).is_dir()


def test_a_folder_is_named_by_its_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder / "sub")
    assert optimize(".").exit_code == 0
    assert (folder / "sub.onnxopt" / "n.onnx").is_file()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["m.onnx", "sub/n.onnx"], ["sub/n.onnx: is a file", "--out-dir"]),
        (["m.onnx", "out.onnx"], ["out.onnx: is no model", "as out.onnxopt"]),
        (["m.onnx", "sub"], ["sub: exists already and is no artifact"]),
        (["m.onnx", "sub", "--force"], ["sub: exists already and is no artifact"]),
        (["m.onnx", "a", "b"], ["an output is for one model, 3 were given", "--out-dir"]),
        (["m.onnx", "a", "-o", "b"], ["-o is for one model, 2 were given"]),
        (["m.onnx", "-o", "a", "--out-dir", "b"], ["either --output", "or --out-dir"]),
        (["*.onnx"], ["a pattern may name many models", "--out-dir"]),
        ([""], ["the path of the model is empty"]),
    ],
)
def test_what_names_no_output(folder: Path, arguments: list[str], words: list[str]) -> None:
    before = sorted(folder.rglob("*"))
    assert_refused(optimize(*arguments), *words)
    assert sorted(folder.rglob("*")) == before


# --- runs that find their artifact done ------------------------------------------------------------------------------


def _manifest(path: Path) -> tuple[int, bytes]:
    return (path / "manifest.json").stat().st_ino, (path / "manifest.json").read_bytes()


@pytest.mark.parametrize(
    "options",
    [
        ["--shape", "n=3", "--shape", "x=3x4"],
        ["--shape", "x=3,4", "--shape", "n=3", "--timeout", "50"],
        ["--shape", "n=3", "--shape", "x=3x4", "--cache", "elsewhere", "--quiet"],
    ],
)
def test_the_same_options_find_it_done(folder: Path, options: list[str]) -> None:
    assert optimize("m.onnx", "--shape", "n=3", "--shape", "x=3x4").exit_code == 0
    before = _manifest(folder / "m.onnxopt")
    again = optimize("m.onnx", *options)
    assert again.exit_code == 0 and "m.onnxopt is up to date" in again.stdout
    assert json.loads(optimize("m.onnx", *options, "--json").stdout)["unchanged"]
    assert _manifest(folder / "m.onnxopt") == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--shape", "n=4"], ['--shape was not given and is {"n": [4]}']),
        (["--no-verify"], ["--no-verify was not given and is given"]),
        (["--no-external-data", "--portable"], ["--external-data", "--portable was not given and is given"]),
        (["--data", "data.npz"], ["data 1 is another file"]),
    ],
)
def test_other_options_name_force(folder: Path, options: list[str], words: list[str]) -> None:
    np.savez(folder / "data.npz", x=np.ones((2, 4), np.float32))
    assert optimize("m.onnx").exit_code == 0
    before = _manifest(folder / "m.onnxopt")
    assert_refused(optimize("m.onnx", *options), *words, "--force replaces it")
    assert_refused(run("optimize", "m.onnx", "--arch", "h200"), "--arch was none and is sm_90")
    assert _manifest(folder / "m.onnxopt") == before


def test_architectures_that_can_be_added(folder: Path) -> None:
    write(folder / "m.onnx", CHAIN)
    assert run("optimize", "m.onnx", "--arch", "sm_90", "--no-verify").exit_code == 0
    advice = "it has no code for sm_80, which `onnxopt add-arch m.onnxopt sm_80` adds"
    assert_refused(run("optimize", "m.onnx", "--arch", "sm_80,sm_90", "--no-verify"), advice)
    assert_refused(run("optimize", "m.onnx", "--arch", "sm_80", "--no-verify"), "--arch was sm_90 and is sm_80")


def test_other_inputs_are_seen_by_their_content(folder: Path) -> None:
    weight = onnx.numpy_helper.from_array(np.ones((64, 4), np.float32), "w")
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[n, 64] x) => (float[n, 4] y) { y = MatMul(x, w) }'
    )
    model.graph.initializer.append(weight)
    onnx.save(model, "w.onnx", save_as_external_data=True, location="w.data", size_threshold=0)
    np.savez("a.npz", x=np.ones((2, 64), np.float32))
    assert optimize("w.onnx", "--data", "a.npz").exit_code == 0
    os.rename("a.npz", "b.npz")
    os.utime("w.data")
    assert "up to date" in optimize("w.onnx", "--data", "b.npz").stdout  # the same content
    Path("w.data").write_bytes(np.full((64, 4), 2, np.float32).tobytes())
    np.savez("b.npz", x=np.zeros((2, 64), np.float32))
    assert_refused(optimize("w.onnx", "--data", "b.npz"), "data 1 is another file", "model/w.data is another file")


@pytest.mark.parametrize("damage", ["model.onnx", "report.html"])
def test_a_damaged_artifact_is_not_done(folder: Path, damage: str) -> None:
    assert optimize("m.onnx").exit_code == 0
    (folder / "m.onnxopt" / damage).unlink()
    assert_refused(optimize("m.onnx"), f"{damage} is missing", "--force")
    assert optimize("m.onnx", "--force").exit_code == 0
    assert "up to date" in optimize("m.onnx").stdout


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"onnxopt": 3}, ["exists already and is no artifact"]),
        ({"files": []}, ["exists already and is no artifact"]),
        ({"files": {"x": {}}}, ["exists already and is no artifact"]),
        ({"files": {"\0": 3}}, ["is missing"]),
        ({"request": 3}, ["does not say what it was made of"]),
        ({"request": {"options": [], "files": {}, "code": ""}}, ["does not say what it was made of"]),
        ({"request": {"options": {"archs": 3}, "files": {}, "code": ""}}, ["does not say what it was made of"]),
        (
            {"request": {"options": {"archs": []}, "files": {"model/\0": ""}, "code": ""}},
            ["another build", "null byte"],
        ),
        ({"request": {"options": {"archs": [], "a": [1]}, "files": {}, "code": ""}}, ["a was 1 and is not given"]),
    ],
)
def test_records_of_others(folder: Path, change: dict[str, object], words: list[str]) -> None:
    assert optimize("m.onnx").exit_code == 0
    path = folder / "m.onnxopt" / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert_refused(optimize("m.onnx"), *words)


def test_another_onnxopt_is_not_the_same(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert optimize("m.onnx").exit_code == 0
    monkeypatch.setattr("onnxopt.versions.code", lambda: "0" * 64)
    assert_refused(optimize("m.onnx"), "another build of onnxopt")
    monkeypatch.setattr("onnxopt.versions.onnxopt", lambda: "9.0")
    assert_refused(optimize("m.onnx"), "made by onnxopt 0.")


def test_folders_and_many_models_find_theirs_done(folder: Path) -> None:
    (folder / "sub" / "config.json").write_text("{}")
    for arguments in (["sub"], ["m.onnx", "sub", "--out-dir", "out"]):
        assert optimize(*arguments).exit_code == 0
        assert "up to date" in (again := optimize(*arguments)).stdout or again.stdout.count("done before") == 2
        assert again.exit_code == 0
    (folder / "sub" / "config.json").write_text("[]")
    assert_refused(optimize("sub"), "config.json is another file", "--force")
    (folder / "sub.onnxopt" / "notes").touch()
    assert_refused(optimize("sub", "--force"), "sub.onnxopt/notes: is no file of the artifact")
    (folder / "sub.onnxopt" / "notes").unlink()
    assert optimize("sub", "--force").exit_code == 0
    assert (folder / "sub.onnxopt" / "config.json").read_text() == "[]"


def test_in_python(folder: Path) -> None:
    first = onnxopt.optimize("m.onnx", "out", archs=())
    again = onnxopt.optimize("m.onnx", "out", archs=())
    assert (first.unchanged, again.unchanged, again.manifest.files) == (False, True, first.manifest.files)
    with pytest.raises(UsageError, match="--portable was not given and is given"):
        onnxopt.optimize("m.onnx", "out", archs=(), portable=True)
    assert not onnxopt.optimize("m.onnx", "out", archs=(), portable=True, force=True).unchanged
    with pytest.raises(UsageError, match="exists already"):
        onnxopt.optimize(onnx.load("m.onnx"), "out", archs=())
    onnxopt.optimize(onnx.load("m.onnx"), "out", archs=(), force=True)
    with pytest.raises(UsageError, match="does not say what it was made of"):
        onnxopt.optimize("m.onnx", "out", archs=())
    made = [onnxopt.optimize_folder("sub", "folder", archs=()) for _ in range(2)]
    assert [row.unchanged for row in made] == [False, True]
    assert made[1].to_json() == made[0].to_json()


def test_a_run_without_work_imports_no_onnx(folder: Path) -> None:
    assert optimize("m.onnx").exit_code == 0
    command = [sys.executable, "-X", "importtime", "-m", "onnxopt", "optimize", folder / "m.onnx", "--arch", "none"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    assert "up to date" in done.stdout
    for heavy in ("onnx_ir", "onnxruntime", "onnx", "pydantic"):
        assert f" {heavy}\n" not in done.stderr


# --- what --force replaces -------------------------------------------------------------------------------------------


def test_force_loses_nothing_where_it_fails(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert optimize("m.onnx").exit_code == 0
    files = sorted(folder.rglob("*"))
    before = _manifest(folder / "m.onnxopt")

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    with monkeypatch.context() as patched:
        patched.setattr(making, "write_manifest", broken)
        assert optimize("m.onnx", "--force").exit_code == 2
    with monkeypatch.context() as patched:  # the second of the two renames
        rename = Path.rename
        patched.setattr(Path, "rename", lambda a, b: broken() if a.name.endswith(".partial") else rename(a, b))
        assert optimize("m.onnx", "--force").exit_code == 2
    assert (sorted(folder.rglob("*")), _manifest(folder / "m.onnxopt")) == (files, before)
    assert optimize("m.onnx", "--force").exit_code == 0
    assert sorted(folder.rglob("*")) == files and _manifest(folder / "m.onnxopt") != before


@pytest.mark.parametrize("what", ["file", "link", "other file inside"])
def test_force_replaces_artifacts_alone(folder: Path, what: str) -> None:
    assert optimize("m.onnx", "made").exit_code == 0
    place = folder / "made"
    if what == "file":
        place = folder / "sub" / "n.onnx"
    elif what == "link":
        place = folder / "linked"
        place.symlink_to(folder / "made")
    else:
        (place / "lib").mkdir(exist_ok=True)
        (place / "lib" / "notes.txt").write_text("mine")
    before = {path: path.lstat().st_mtime_ns for path in folder.rglob("*")}
    assert_refused(optimize("m.onnx", "-o", place, "--force"), str(place))
    assert {path: path.lstat().st_mtime_ns for path in folder.rglob("*")} == before


def test_a_signature_goes_with_what_it_signed(folder: Path) -> None:
    assert optimize("m.onnx").exit_code == 0
    assert run("keygen", folder / "key", "--no-password").exit_code == 0
    assert run("sign", folder / "m.onnxopt", "--key", folder / "key").exit_code == 0
    assert "up to date" in optimize("m.onnx").stdout
    assert optimize("m.onnx", "--force").exit_code == 0
    assert not (folder / "m.onnxopt" / "manifest.json.minisig").exists()


def test_what_a_killed_replacement_left_is_removed(folder: Path) -> None:
    assert optimize("m.onnx").exit_code == 0
    old = folder / ".m.onnxopt.replaced"
    old.mkdir()
    (old / "manifest.json").write_text("{}")
    assert optimize("m.onnx", "--force").exit_code == 0
    assert not old.exists()
    assert artifact_folder.check_output(folder / "new") is None
