"""The command: what it prints, and that every bad input ends in one clear line, exit code 2, and nothing on disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import click
import numpy as np
import onnx
import onnx.external_data_helper
import onnx.numpy_helper
import pytest
from click.testing import Result

from onnxopt.artifact import folder as artifact_folder
from onnxopt.pipeline import making
from onnxopt.tools.cli import COMMANDS, main
from onnxopt.tools.commands import inspect as inspect_command
from tests.support.command import assert_refused, run
from tests.support.small_models import CHAIN, NOTHING_TO_FUSE, TOKENS, write

ROOT = Path(__file__).resolve().parents[2]


def optimize(model: Path, output: Path, *more: str) -> Result:
    return run("optimize", model, "-o", output, "--arch", "none", *more)


@pytest.fixture
def chain(tmp_path: Path) -> Path:
    return write(tmp_path / "chain.onnx", CHAIN)


# --- what it does ----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("library")
def test_the_main_job(chain: Path, artifact: Path) -> None:
    made = optimize(chain, artifact)
    assert made.exit_code == 0, made.output
    lines = made.stdout.splitlines()
    readme = (ROOT / "README.md").read_text("utf-8")  # shows the output for a larger model
    for name in ("nodes", "launches, predicted", "bytes moved, predicted", "verified", "CPU, library", "next: "):
        assert any(line.startswith(name) for line in lines), name
        assert f"\n{name}" in readme, name
    assert [" ".join(line.split()) for line in lines if line.startswith(("nodes", "calls"))] == [
        "calls of 2 fused kernels 0 2 +2",
        "nodes 7 3 -57 %",
    ]
    assert lines[-2] == "chain.onnx: 2 kernels fused; outputs agree with the original's"
    assert lines[-1] == f"next: onnxopt bench {artifact} (times it against the original)"
    assert any(line.startswith(f"wrote {artifact} in ") for line in lines)
    assert all(line.startswith(("Compiling kernels", "Verifying")) for line in made.stderr.splitlines())
    assert optimize(chain, artifact.with_name("quiet"), "--quiet").stderr == ""

    explained = run("explain", artifact)
    assert explained.exit_code == 0
    assert "Add, Tanh, Mul, Sub" in explained.stdout

    verified = run("verify", chain, artifact)
    assert verified.exit_code == 0, verified.output
    assert "CPU, library" in verified.stdout and verified.stdout.endswith("\nverify: passed\n")

    timed = run("bench", artifact, "--iterations", "5", "--shape", "batch=16")
    assert timed.exit_code == 0, timed.output
    assert "batch=16" in timed.stdout
    assert "times as fast as original" in timed.stdout


@pytest.mark.usefixtures("library", "without_footprints")
def test_json_for_machines(chain: Path, artifact: Path) -> None:
    made = json.loads(optimize(chain, artifact, "--json").stdout)
    assert made["artifact"] == str(artifact)
    assert made["manifest"]["verify"]["status"] == "passed"
    assert len(json.loads(run("explain", artifact, "--json").stdout)["kernels"]) == 2
    assert json.loads(run("verify", chain, artifact, "--json").stdout)["failures"] == 0
    assert json.loads(run("bench", artifact, "--iterations", "3", "--json").stdout)["artifact"]["runs"] == 3
    assert json.loads(run("inspect", chain, "--json").stdout)["ops"]["Mul"] == 2


def test_explain_and_verify_escape_too(tmp_path: Path) -> None:
    source = write(tmp_path / "m.onnx", CHAIN)
    model = onnx.load(source)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n\x1b[31m"
    model.graph.output[0].name = model.graph.node[-1].output[0] = "y\x1b[31m"
    onnx.save(model, source)
    out = tmp_path / "out"
    assert run("optimize", source, "-o", out, "--arch", "none", "--no-verify").exit_code == 0
    model.graph.node[2].op_type = "Add"
    onnx.save(model, tmp_path / "other.onnx")
    for name, result in (("n", run("explain", out, "--kernels")), ("y", run("verify", out, tmp_path / "other.onnx"))):
        assert rf"{name}\x1b[31m" in result.stdout
        assert all(c.isprintable() or c == "\n" for c in result.stdout)


def test_verify_says_no_with_exit_code_1(chain: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "other.onnx", CHAIN.replace("Sub(c, a)", "Sub(a, c)"))
    result = run("verify", chain, other)
    assert result.exit_code == 1
    assert "verify: FAILED: output y" in result.stdout


def test_no_verify(tmp_path: Path, artifact: Path) -> None:
    result = optimize(write(tmp_path / "m.onnx", NOTHING_TO_FUSE), artifact, "--no-verify")
    assert result.exit_code == 0
    assert "outputs were not compared" in result.stdout


def test_version_and_help_are_immediate() -> None:
    started = time.perf_counter()
    result = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "onnxopt", "--version"], capture_output=True, text=True, cwd=ROOT
    )
    assert result.returncode == 0
    assert result.stdout.startswith("onnxopt ")
    for heavy in ("onnx_ir", "onnxruntime", "numpy", "pydantic"):
        assert f" {heavy}\n" not in result.stderr
    assert time.perf_counter() - started < 10
    assert run("--help").exit_code == 0


def test_every_command_has_its_line_in_the_list() -> None:
    """--help shows the list without importing the commands; the help of each must begin with the same sentence."""
    listed = " ".join(run("--help").stdout.split())
    for name, line in COMMANDS.items():
        assert f"{name} {line}" in listed
        command = main.get_command(click.Context(main), name)
        assert command is not None
        assert command.name == name
        assert (command.help or "").startswith(line)
        assert run(name, "--help").exit_code == 0
    modules = (ROOT / "onnxopt" / "tools" / "commands").glob("*.py")
    assert {path.stem for path in modules if "@click.command(" in path.read_text()} == {
        name.replace("-", "_") for name in COMMANDS
    }


# --- bad models ------------------------------------------------------------------------------------------------------


def _external(path: Path, location: str) -> Path:
    """A model whose weight lies in `location`; no such file is written."""
    weight = onnx.numpy_helper.from_array(np.ones((64, 64), np.float32), "w")
    onnx.external_data_helper.set_external_data(weight, location, 0, len(weight.raw_data))
    weight.ClearField("raw_data")
    model = onnx.load(write(path, NOTHING_TO_FUSE.replace("4", "64")))
    del model.graph.input[1]
    model.graph.initializer.append(weight)
    path.write_bytes(model.SerializeToString())
    return path


def _missing(folder: Path) -> Path:
    return folder / "missing.onnx"


def _not_onnx(folder: Path) -> Path:
    (folder / "m.onnx").write_text("this is a poem, not a model")
    return folder / "m.onnx"


def _empty(folder: Path) -> Path:
    (folder / "m.onnx").touch()
    return folder / "m.onnx"


def _truncated(folder: Path) -> Path:
    whole = write(folder / "m.onnx", CHAIN).read_bytes()
    (folder / "m.onnx").write_bytes(whole[: len(whole) // 2])
    return folder / "m.onnx"


def _invalid(folder: Path) -> Path:
    return write(folder / "m.onnx", CHAIN.replace("Mul(b, x)", "Mul(b, never_defined)"))


def _folder(folder: Path) -> Path:
    (folder / "m").mkdir()
    return folder / "m"


BAD_MODELS = [
    (_missing, "no such file"),
    (_not_onnx, "not an ONNX"),
    (_empty, "empty"),
    (_truncated, "truncated"),
    (_invalid, "never_defined"),
    (_folder, "is a folder"),
    (lambda folder: _external(folder / "m.onnx", "weights.bin"), "weights.bin"),
    (lambda folder: _external(folder / "m.onnx", "../secret.bin"), "secret.bin"),
    (lambda folder: _external(folder / "m.onnx", "/etc/passwd"), "/etc/passwd"),
]


@pytest.mark.parametrize(("make", "reason"), BAD_MODELS)
@pytest.mark.parametrize("command", ["optimize", "inspect", "verify"])
def test_bad_models(tmp_path: Path, make: object, reason: str, command: str) -> None:
    model = make(tmp_path)  # type: ignore[operator]
    before = sorted(tmp_path.rglob("*"))
    output = tmp_path / "out"
    result = {
        "optimize": lambda: optimize(model, output),
        "inspect": lambda: run("inspect", model),
        "verify": lambda: run("verify", model, model),
    }[command]()
    if command != "optimize" and make is _folder:
        reason = "manifest.json" if command == "verify" else reason
    assert_refused(result, reason, model.name)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_model_that_is_optimized_already(chain: Path, artifact: Path, tmp_path: Path) -> None:
    assert optimize(chain, artifact).exit_code == 0
    assert_refused(optimize(artifact / "model.onnx", tmp_path / "again"), "optimized", "already")
    assert not (tmp_path / "again").exists()


def test_an_unfused_artifact_counts_as_optimized_too(tmp_path: Path, artifact: Path) -> None:
    assert optimize(write(tmp_path / "m.onnx", NOTHING_TO_FUSE), artifact).exit_code == 0
    assert_refused(optimize(artifact / "model.onnx", tmp_path / "again"), "already")


# --- bad options -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--arch", "sm_1"], ["sm_1", "sm_90"]),
        (["--shape", "x"], ["NAME=DIMS"]),
        (["--shape", "x=axb"], ["NAME=DIMS"]),
        (["--shape", "nobody=1"], ["nobody", "no such input or dim"]),
        (["--shape", "x=1x2x3"], ["has 2 dims"]),
        (["--shape", "x=2x8", "--shape", "x=3x8"], ["given twice"]),
        (["--surprise"], ["--surprise"]),
    ],
)
def test_bad_options(chain: Path, artifact: Path, options: list[str], words: list[str]) -> None:
    assert_refused(run("optimize", chain, "-o", artifact, *options), *words)
    assert not artifact.exists()


def test_an_unknown_command(chain: Path) -> None:
    assert_refused(run("optimise", chain), "optimise")


# --- bad outputs -----------------------------------------------------------------------------------------------------


def test_an_output_that_exists_is_not_touched(chain: Path, artifact: Path) -> None:
    artifact.mkdir()
    (artifact / "precious").write_text("x")
    assert_refused(optimize(chain, artifact), "exists already")
    assert (artifact / "precious").read_text() == "x"
    (artifact / "precious").unlink()
    assert_refused(optimize(chain, artifact), "exists already")  # an empty one neither


def test_an_output_inside_a_file(chain: Path, tmp_path: Path) -> None:
    assert_refused(optimize(chain, chain / "out"), "is not a folder")
    assert list(tmp_path.iterdir()) == [chain]


def test_a_read_only_folder(chain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "locked").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: "locked" not in str(path))
    assert_refused(optimize(chain, tmp_path / "locked" / "out"), "no permission to write")


def test_a_folder_that_turns_read_only(chain: Path, artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object, **__: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(artifact_folder.tempfile, "mkdtemp", denied)
    assert_refused(optimize(chain, artifact), "cannot be written: Permission denied")


def test_an_unexpected_error_leaves_nothing(chain: Path, artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(making, "hash_files", broken)
    assert_refused(optimize(chain, artifact), str(chain), "the step 'package' failed: RuntimeError: a bug")
    assert list(chain.parent.iterdir()) == [chain]


def test_an_error_outside_of_the_steps_is_one_line_too(chain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a bug\nin two lines")

    monkeypatch.setattr(inspect_command, "inspect", broken)
    assert_refused(run("inspect", chain), "RuntimeError: a bug", "please report it", "ONNXOPT_TRACEBACK=1")
    monkeypatch.setenv("ONNXOPT_TRACEBACK", "1")
    result = run("inspect", chain)
    assert result.exit_code == 2
    assert "in broken" in result.stderr


def test_onnx_runtime_sends_nothing_of_a_command(chain: Path, tmp_path: Path) -> None:
    """Its telemetry begins with a device id in the user's cache and a file in TMPDIR."""
    folder = tmp_path / "home"
    folder.mkdir()
    environment = {k: v for k, v in os.environ.items() if k not in ("ORT_DISABLE_TELEMETRY", "CI")}
    environment |= dict.fromkeys(("HOME", "TMPDIR", "XDG_CACHE_HOME"), str(folder))
    command = [sys.executable, "-m", "onnxopt", "optimize", chain, "-o", tmp_path / "out", "--arch", "none"]
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT, env=environment)
    assert not [path for path in folder.rglob("*") if path.is_file()]
    subprocess.run([sys.executable, "-c", "import onnxopt"], check=True, cwd=ROOT, env=environment)
    assert not [path for path in folder.rglob("*") if path.is_file()]


# --- bad artifacts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["explain"], ["bench"]])
def test_what_is_no_artifact(chain: Path, tmp_path: Path, command: list[str]) -> None:
    assert_refused(run(*command, tmp_path / "nowhere"), "no such artifact folder")
    assert_refused(run(*command, tmp_path), "not an artifact")
    assert_refused(run(*command, chain), "not an artifact", "`onnxopt optimize` makes one of a model")


def test_verify_a_damaged_artifact(tmp_path: Path, artifact: Path) -> None:
    model = write(tmp_path / "m.onnx", TOKENS)
    assert optimize(model, artifact).exit_code == 0
    (artifact / "model.onnx").write_bytes(b"x")
    assert_refused(run("verify", model, artifact), "model.onnx: has 1 bytes")


# --- what programs read ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (["optimize", "none.onnx", "-o", "out", "--json"], "ModelError", "none.onnx: no such file"),
        (["optimize", "none.onnx", "-o", "out", "--arch", "sm_1", "--json"], "UsageError", "sm_1"),
        (["explain", "none", "--json"], "ArtifactError", "none: no such artifact folder"),
        (["inspect", "--json"], "UsageError", "Missing argument 'MODEL'"),
        (["batch", "none.toml", "--out-dir", "out", "--json"], "UsageError", "none.toml: cannot be read"),
        (["optimise", "--json"], "UsageError", "No such command 'optimise'. Did you mean 'optimize'?"),
        (["frobnicate", "--json"], "UsageError", "No such command 'frobnicate'"),
        (["--json", "optimize", "none.onnx"], "UsageError", "No such option '--json'"),
    ],
)
def test_errors_are_json_too(arguments: list[str], kind: str, message: str) -> None:
    done = run(*arguments)
    document = json.loads(done.stdout)
    assert document == {"schema_version": 1, "error": {**document["error"], "kind": kind, "exit_code": 2}}
    assert message in document["error"]["message"] and done.exit_code == 2
    assert done.stderr == f"error: {document['error']['message']}\n"


def test_a_failure_nobody_expected_is_json_too(chain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect_command, "inspect", lambda path: 1 / 0)
    document = json.loads(run("inspect", chain, "--json").stdout)
    assert document["error"]["kind"] == "ZeroDivisionError" and "please report it" in document["error"]["message"]


def test_results_have_a_schema_version(chain: Path) -> None:
    assert json.loads(run("inspect", chain, "--json").stdout)["schema_version"] == 1
