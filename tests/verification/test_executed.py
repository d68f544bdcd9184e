"""Which kernels verification executed: recorded, merged, and said by every tool."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

import onnxopt
from onnxopt.artifact import manifest as manifests
from onnxopt.artifact.summary import executed_text
from onnxopt.errors import UsageError
from onnxopt.runtime import sessions
from onnxopt.runtime.sessions import CPU, CUDA
from onnxopt.tools import doctor
from onnxopt.verification.check import Check
from onnxopt.verification.executed import Execution
from onnxopt.verification.reference import Reference
from onnxopt.verification.verify import VerificationReport, completed
from tests.support.command import assert_refused, run
from tests.support.fusing import cpu_kernels_forced
from tests.support.small_models import CHAIN, NO_KERNEL, NOTHING_TO_FUSE, write

BRANCHES = """
g (bool which, float[n] x) => (float[n] y) {
  y = If (which) <
    then_branch = a () => (float[n] p) { s = Sigmoid(x) t = Mul(s, x) p = Tanh(t) },
    else_branch = b () => (float[n] q) { u = Exp(x) v = Add(u, x) q = Neg(v) }
  >
}
"""


def _kernels(report: VerificationReport) -> dict[str, int]:
    return {row.provider: len(row.kernels) for row in report.executed or ()}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write(tmp_path / "m.onnx", CHAIN)


def test_kernels_that_ran_are_counted(model: Path, tmp_path: Path) -> None:
    with cpu_kernels_forced():
        forced = onnxopt.optimize(model, tmp_path / "forced", archs=()).manifest
    (row,) = forced.verify.executed or ()
    assert (row.provider, row.of) == (CPU, len(forced.kernels))
    assert row.kernels == tuple(sorted(kernel.name for kernel in forced.kernels))
    assert row.device
    assert row.onnxruntime


def test_kernels_that_did_not_run_are_not_counted(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Passed "with the library" although ONNX Runtime ran the original nodes of every function."""
    with cpu_kernels_forced():
        onnxopt.optimize(model, tmp_path / "artifact", archs=())
    monkeypatch.setenv("ONNXOPT_DISABLE", "1")
    report = onnxopt.verify(model, tmp_path / "artifact", providers=[CPU])
    assert report.status == "passed"
    assert _kernels(report) == {CPU: 0}
    assert executed_text(report, ("sm_90",)).startswith("CPU: 0 of ")


PRODUCT = """
g (float[n, 2] x) => (float[n, 2] y) <float[2, 2] w = {1, -2, 3, 0.5}, float[2] b = {1, 2}> {
  p = MatMul(x, w) s = Add(p, b) y = Relu(s)
}
"""


@pytest.mark.usefixtures("library")
def test_without_a_cpu_kernel_one_case_is_run_without_the_library(tmp_path: Path) -> None:
    model = write(tmp_path / "m.onnx", PRODUCT)
    made = onnxopt.optimize(model, tmp_path / "artifact", archs=()).manifest
    assert [kernel.cpu for kernel in made.kernels] == [False]
    report = onnxopt.verify(model, tmp_path / "artifact", providers=[CPU])
    for checked in (made.verify, report):
        assert checked.status == "passed"
        (note,) = [note for note in checked.notes if "one case alone" in note]
        assert "without the library" in note
        count = {library: len({c.case for c in checked.checks if c.library is library}) for library in (True, False)}
        assert count[True] > 10 and count[False] == 1
    chain = write(tmp_path / "chain.onnx", CHAIN)
    with cpu_kernels_forced():
        forced = onnxopt.optimize(chain, tmp_path / "forced", archs=()).manifest
    assert all(kernel.cpu for kernel in forced.kernels)
    assert {c.case for c in forced.verify.checks if c.library} == {
        c.case for c in forced.verify.checks if not c.library
    }


@pytest.mark.usefixtures("library")
def test_where_the_library_changes_the_one_case_all_are_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where ONNX Runtime would run other nodes without it."""
    model = write(tmp_path / "m.onnx", PRODUCT)
    onnxopt.optimize(model, tmp_path / "artifact", archs=(), verify=False)
    true_check = Reference.check

    def check(self: Reference, model: Path, library: Path | None, *more: Any, **named: Any) -> list[Check]:
        checks = true_check(self, model, library, *more, **named)
        return checks if library else [dataclasses.replace(c, noise=0.25) for c in checks]

    monkeypatch.setattr(Reference, "check", check)
    report = onnxopt.verify(model, tmp_path / "artifact", providers=[CPU])
    assert not any("one case alone" in note for note in report.notes)
    assert {c.case for c in report.checks if c.library} == {c.case for c in report.checks if not c.library}


def test_a_branch_that_no_run_takes_is_not_executed(tmp_path: Path) -> None:
    model = write(tmp_path / "m.onnx", BRANCHES)
    with cpu_kernels_forced():
        manifest = onnxopt.optimize(model, tmp_path / "artifact", archs=()).manifest
    if len(manifest.kernels) != 2:
        pytest.fail(f"the model is meant to have a kernel in each branch, not {manifest.kernels}")
    import numpy as np

    data = [{"which": np.array(True), "x": np.ones(3, np.float32)}]
    (row,) = onnxopt.verify(model, tmp_path / "artifact", providers=[CPU], data=data).executed or ()
    assert (len(row.kernels), row.of) == (1, 2)


def test_the_original_is_not_profiled(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    onnxopt.verify(model, model, providers=[CPU])
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


def test_every_tool_says_what_was_executed(model: Path, tmp_path: Path) -> None:
    with cpu_kernels_forced():
        ended = run("optimize", model, "-o", tmp_path / "artifact", "--arch", "sm_90")
    text = "CPU: 2 of 2 kernels; CUDA: compiled, not run"
    assert f"kernels executed: {text}" in ended.stdout
    assert f"verify: passed; kernels executed: {text}" in onnxopt.explain(tmp_path / "artifact")
    assert text in (tmp_path / "artifact" / "report.html").read_text()
    assert text in run("verify", model, tmp_path / "artifact").stdout
    (finding,) = [row for row in doctor.examine(tmp_path / "artifact") if row.check == "verify"]
    assert text in finding.message
    document = json.loads((tmp_path / "artifact" / "manifest.json").read_text())
    assert [row["provider"] for row in document["verify"]["executed"]] == [CPU]


def test_without_verification_nothing_is_claimed(model: Path, tmp_path: Path) -> None:
    ended = run("optimize", model, "-o", tmp_path / "artifact", "--arch", "sm_90", "--no-verify")
    assert ended.exit_code == 0
    assert "kernels executed: CUDA: compiled, not run\n" in ended.stdout
    assert "; outputs were not compared\n" in ended.stdout and "\nverified" not in ended.stdout


# --- verify ARTIFACT --on ---------------------------------------------------------------------------------------------


def test_verification_is_completed_in_the_artifact(model: Path, tmp_path: Path) -> None:
    artifact = tmp_path / "artifact"
    with cpu_kernels_forced():
        onnxopt.optimize(model, artifact, archs=(), verify=False)
    ended = run("verify", artifact, "--on", "cpu")
    assert ended.exit_code == 0, ended.output
    manifest = manifests.load(artifact)
    assert manifest.verify.status == "passed"
    assert _kernels(manifest.verify) == {CPU: 2}
    assert onnxopt.load(artifact)  # the manifest still fits the files
    assert "CPU: 2 of 2 kernels" in (artifact / "report.html").read_text()


def test_the_original_given_must_be_the_one(model: Path, tmp_path: Path) -> None:
    artifact, other = tmp_path / "artifact", write(tmp_path / "other.onnx", NOTHING_TO_FUSE)
    onnxopt.optimize(model, artifact, archs=())
    assert_refused(run("verify", other, artifact, "--on", "cpu"), "is not the model that", "was made from")
    moved = model.rename(tmp_path / "moved.onnx")
    assert_refused(run("verify", artifact, "--on", "cpu"), "is gone", str(model), "give that model first")
    assert run("verify", moved, artifact, "--on", "cpu").exit_code == 0
    assert_refused(run("verify", moved, "--on", "cpu"), "is no artifact")


def test_a_signed_artifact_is_left_alone(model: Path, tmp_path: Path) -> None:
    artifact = tmp_path / "artifact"
    onnxopt.optimize(model, artifact, archs=())
    onnxopt.sign(artifact, onnxopt.generate_key())
    before = (artifact / "manifest.json").read_bytes()
    assert_refused(run("verify", artifact, "--on", "cpu"), "is signed", "record first, then sign")
    assert (artifact / "manifest.json").read_bytes() == before


@pytest.mark.skipif(sessions.cuda_is_usable(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_recorded(model: Path, tmp_path: Path) -> None:
    artifact = tmp_path / "artifact"
    onnxopt.optimize(model, artifact, archs=())
    before = (artifact / "manifest.json").read_bytes()
    if CUDA not in _available():
        assert_refused(run("verify", artifact, "--on", "cuda"), "no execution provider 'CUDAExecutionProvider'")
    else:
        ended = run("verify", artifact, "--on", "cuda")
        assert ended.exit_code == 3
        assert ended.stdout == (
            "verify: NOT RUN, nothing was compared: there is no CUDA device on this machine, or no driver for it\n"
        )
    assert (artifact / "manifest.json").read_bytes() == before


@pytest.mark.gpu
def test_the_gpu_completes_what_a_machine_without_one_began(model: Path, tmp_path: Path) -> None:
    artifact = tmp_path / "artifact"
    onnxopt.optimize(model, artifact, verify=False)
    assert onnxopt.verify(model, artifact, providers=[CPU], record=True).status == "passed"
    assert "CUDA: compiled, not run" in onnxopt.explain(artifact)
    ended = run("verify", artifact, "--on", "cuda")
    assert ended.exit_code == 0, ended.output
    kernels = _kernels(manifests.load(artifact).verify)
    assert kernels[CUDA] == 2
    assert kernels[CPU] >= 0
    assert "CUDA: 2 of 2 kernels" in onnxopt.explain(artifact)
    (finding,) = [row for row in doctor.examine(artifact) if row.check == "verify"]
    assert (finding.status, finding.fix) == ("ok", "")


def _available() -> list[str]:
    import onnxruntime

    return list(onnxruntime.get_available_providers())


def test_exit_code_3_for_what_cannot_be_verified(tmp_path: Path) -> None:
    model = write(tmp_path / "m.onnx", NO_KERNEL)
    assert run("verify", model, model).exit_code == 3
    ended = run("optimize", model, "-o", tmp_path / "artifact", "--arch", "none")
    assert ended.exit_code == 3
    assert ended.stderr.splitlines()[-1].startswith(f"error: {model}: cannot be verified")
    assert not (tmp_path / "artifact").exists()


def test_reports_of_two_machines_are_one(model: Path, tmp_path: Path) -> None:
    report = onnxopt.verify(model, model, providers=[CPU])
    cpu = dataclasses.replace(report, executed=(Execution(CPU, "processor", "1.31.1", ("a",), 3),))
    there = dataclasses.replace(
        report,
        providers=(CUDA,),
        checks=tuple(dataclasses.replace(check, provider=CUDA) for check in report.checks),
        executed=(Execution(CUDA, "H200", "1.31.1", ("a", "b"), 3), Execution(CPU, "other", "1.31.1", ("c",), 3)),
    )
    both = completed(dataclasses.replace(cpu, notes=(f"not verified on {CUDA}: no driver", "kept")), there)
    assert both.status == "passed"
    assert both.providers == (CPU, CUDA)
    assert len(both.checks) == 2 * len(report.checks)
    assert both.notes == ("kept",)
    assert {row.provider: row.kernels for row in both.executed or ()} == {CPU: ("a", "c"), CUDA: ("a", "b")}
    wrong = dataclasses.replace(there, status="failed", reason="output y: off")
    assert (completed(cpu, wrong).status, completed(cpu, wrong).reason) == ("failed", "output y: off")
    assert completed(wrong, there).status == "passed"
    assert completed(VerificationReport("skipped"), there) == there


def test_manifests_of_schema_2_load_and_are_written_in_the_newest(model: Path, tmp_path: Path) -> None:
    onnxopt.optimize(model, tmp_path / "artifact", archs=())
    document = json.loads((tmp_path / "artifact" / "manifest.json").read_text())
    del document["verify"]["executed"], document["sha256"]
    old = manifests.Manifest.model_validate(document | {"schema_version": 2})
    assert old.verify.executed is None
    assert executed_text(old.verify, ("sm_90",)) == ""
    assert json.loads(old.to_json())["schema_version"] == manifests.SCHEMA_VERSION


def test_options_that_contradict_are_refused(model: Path) -> None:
    with pytest.raises(UsageError, match="is no artifact"):
        onnxopt.verify(model)
    assert_refused(run("verify", model, model, "--on", "cpu", "--provider", CPU), "--on and --provider")
