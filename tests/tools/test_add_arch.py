"""Machine code of further architectures for a finished artifact, and --quick, which leaves them out."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from unittest import mock

import onnxruntime as ort
import pytest

import onnxopt
from onnxopt import versions
from onnxopt.artifact import manifest as manifests
from onnxopt.artifact.folder import hash_file, write_manifest
from onnxopt.errors import CompileError
from onnxopt.runtime import archs, devices
from tests.support.command import assert_refused, run
from tests.support.small_models import CHAIN, write

ONE, BOTH = ("sm_80",), ("sm_80", "sm_90")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """one: an artifact for one architecture. both: one of the same model for two. none: one without GPUs."""
    folder = tmp_path_factory.mktemp("made")
    model = write(folder / "chain.onnx", CHAIN)
    for name, chosen in (("one", ONE), ("both", BOTH), ("none", ())):
        onnxopt.optimize(model, folder / name, archs=chosen, shapes={"batch": (3,)}, verify=name == "one")
    return folder


@pytest.fixture
def one(made: Path, tmp_path: Path) -> Path:
    shutil.copy(made / "chain.onnx", tmp_path)
    return Path(shutil.copytree(made / "one", tmp_path / "one"))


def test_the_same_as_optimizing_for_all(made: Path, one: Path) -> None:
    before = manifests.load(one)
    done = run("add-arch", one, "h200")
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, f"{one}: added sm_90; it has code for sm_80, sm_90")
    (row,) = [line for line in done.stdout.splitlines() if "predicted" in line]
    assert row.startswith("ms on H200 SXM, predicted ")
    for name in ("lib/kernels.fatbin", "kernels.cu", "model.onnx"):
        expected = made / ("one" if name == "model.onnx" else "both") / name
        assert (one / name).read_bytes() == expected.read_bytes()
    other, after = manifests.load(made / "both"), manifests.load(one)
    assert after.files.keys() == other.files.keys()
    assert (after.archs, after.requires) == (other.archs, other.requires)
    assert after.predicted is not None and after.predicted == other.predicted
    for path in (one / "providers").iterdir():
        assert path.read_bytes() == (made / "both" / "providers" / path.name).read_bytes()
    assert (after.verify, after.kernels, after.source) == (before.verify, before.kernels, before.source)
    session = onnxopt.load(one)  # checks every hash
    assert isinstance(session, ort.InferenceSession)
    assert "sm_90" in (one / "report.html").read_text()


def test_optimize_finds_it_done(one: Path) -> None:
    assert run("add-arch", one, "sm_90,sm_89", "a100").exit_code == 0
    done = run("optimize", one.parent / "chain.onnx", one, "--arch", "l4,h100,a100", "--shape", "batch=3")
    assert "up to date" in done.stdout
    again = json.loads(run("add-arch", one, "h100", "--json").stdout)
    assert (again["added"], again["archs"]) == ([], ["sm_80", "sm_89", "sm_90"])


def test_measured_files_and_options_stay(one: Path) -> None:
    tuned = json.loads((one / "providers" / "a100_80gb.json").read_text())
    tuned["provider_options"]["use_tf32"] = "1"
    (one / "providers" / "a100_80gb.json").write_text(json.dumps(tuned))
    files = {**manifests.load(one).files}
    files["providers/a100_80gb.json"] = hash_file(one / "providers" / "a100_80gb.json")
    write_manifest(one, manifests.load(one).model_copy(update={"files": files}))
    assert run("add-arch", one, "l4").exit_code == 0
    assert json.loads((one / "providers" / "a100_80gb.json").read_text()) == tuned
    assert (one / "providers" / "l4.json").is_file()


def test_signatures(one: Path) -> None:
    key = one.parent / "key"
    assert run("keygen", key, "--no-password").exit_code == 0
    assert run("sign", one, "--key", key).exit_code == 0
    assert run("add-arch", one, "sm_90", "--sign", key).exit_code == 0
    assert run("verify-signature", one, "--key", key.with_name("key.pub")).exit_code == 0
    done = run("add-arch", one, "sm_89")
    assert "manifest.json.minisig was removed: sign the artifact again" in done.stdout
    assert not (one / "manifest.json.minisig").exists()


def test_a_failure_leaves_the_artifact(one: Path) -> None:
    before = {path: path.read_bytes() for path in one.rglob("*") if path.is_file()}
    for target in ("onnxopt.codegen.nvrtc.compiled", "onnxopt.tools.add_arch.write_manifest"):
        with mock.patch(target, side_effect=CompileError("no")):
            assert_refused(run("add-arch", one, "sm_90"), "no")
    assert {path: path.read_bytes() for path in one.rglob("*") if path.is_file()} == before
    assert sorted(path.name for path in one.parent.iterdir()) == ["chain.onnx", "one"]


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("none", ["has no kernels for GPUs"]),
        ("damaged", ["kernels.cu: has"]),
        ("other onnxopt", ["was made by another onnxopt", "optimize the model again"]),
        ("archive", ["is one file", "unpack"]),
        ("own file", ["notes: is no file of the artifact"]),
        ("unknown", ["did you mean 'h200'?"]),
    ],
)
def test_what_cannot_be_added_to(made: Path, one: Path, what: str, words: list[str]) -> None:
    artifact, arch = one, "h100"
    if what == "none":
        artifact = made / "none"
    elif what == "damaged":
        (one / "kernels.cu").write_text("int main() {}")
    elif what == "archive":
        artifact = one.parent / "one.zip"
        assert run("pack", one, artifact).exit_code == 0
    elif what == "own file":
        (one / "notes").touch()
    elif what == "unknown":
        arch = "h20"
    code = "0" * 64 if what == "other onnxopt" else versions.code()
    with mock.patch("onnxopt.versions.code", return_value=code):
        assert_refused(run("add-arch", artifact, arch), *words)


def _device(arch: str) -> devices.Device:
    return devices.Device(0, "GPU", f"{arch[3:-1]}.{arch[-1]}", 1, 1, 1)


@pytest.mark.parametrize(("present", "chosen"), [("", "sm_80"), ("sm_90", "sm_90"), ("sm_70", "sm_80")])
def test_quick_is_for_this_machine(monkeypatch: pytest.MonkeyPatch, present: str, chosen: str) -> None:
    monkeypatch.setattr(devices, "first", lambda: _device(present) if present else None)
    assert archs.named(["quick"]) == (chosen,)


def test_quick_says_what_it_leaves_out(tmp_path: Path) -> None:
    model = write(tmp_path / "chain.onnx", CHAIN)
    done = run("optimize", model, "--quick")
    (arch,) = manifests.load(tmp_path / "chain.onnxopt").archs
    assert f"note: kernels for {arch} alone; `onnxopt add-arch` adds the others" in done.stderr
    assert manifests.load(tmp_path / "chain.onnxopt").verify.status == "passed"
    assert_refused(run("optimize", model, "--quick", "--arch", "all"), "leave out --arch, or --quick")
