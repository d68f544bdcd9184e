"""doctor: each thing that can be wrong is found, named, and comes with what to do; nothing wrong means exit code 0."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
import pytest
from click.testing import CliRunner, Result

import onnxopt
from onnxopt import onnxruntime_package
from onnxopt.artifact import manifest as manifests
from onnxopt.runtime import devices, sessions
from onnxopt.tools import doctor
from onnxopt.tools.cli import main
from onnxopt.tools.doctor import artifact as artifact_checks
from onnxopt.tools.doctor import examination, graphs, machine, placement, runtime
from onnxopt.tools.doctor.finding import Finding, Subject
from tests.support.small_models import CHAIN, HEADER, NOTHING_TO_FUSE, write

pytestmark = pytest.mark.usefixtures("library")

LOOPS = """
loops (float[n, 4] x, bool c) => (float[n, 4] y) {
  a = Tanh(x)
  b = Mul(a, x)
  y = If (c) <then_branch = yes () => (float[n, 4] t) { t = Neg(b) }, else_branch = no () => (float[n, 4] e)
    { e = Abs(b) }>
}
"""
H200 = devices.Device(0, "NVIDIA H200", "9.0", 141 * 10**9, 60 << 20, 132)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("doctor")
    return onnxopt.optimize(write(folder / "chain.onnx", CHAIN), folder / "artifact", archs=()).path


@pytest.fixture
def subject(made: Path) -> Subject:
    found, _ = artifact_checks.files(made)
    assert found is not None and found.opened
    return found


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["doctor", *map(str, arguments)])


def pretend(monkeypatch: pytest.MonkeyPatch, *found: devices.Device, cuda: str = "13.0") -> None:
    """A machine with these GPUs and a driver for this CUDA."""
    monkeypatch.setattr(devices, "devices", lambda: found)
    monkeypatch.setattr(devices, "first", lambda: found[0] if found else None)
    monkeypatch.setattr(devices, "cuda_version", lambda: cuda)
    monkeypatch.setattr(devices, "driver_release", lambda: "580.0")


def problems(findings: Any) -> list[Finding]:
    found = [f for f in findings if f.status == "problem"]
    for finding in found:
        finding.verify()
    return found


# --- the whole -------------------------------------------------------------------------------------------------------


def test_an_onnxruntime_that_cannot_be_imported_is_a_finding(tmp_path: Path) -> None:
    """As after one of two builds that overwrite each other was uninstalled: the doctor itself must still start."""
    (tmp_path / "onnxruntime").mkdir()
    (tmp_path / "onnxruntime" / "__init__.py").write_text("raise ImportError('half of ONNX Runtime is gone')")
    path = os.pathsep.join([str(tmp_path), str(Path(onnxopt.__file__).parents[1])])
    command = [sys.executable, "-m", "onnxopt", "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 1, done.stderr
    findings = json.loads(done.stdout)["findings"]
    assert any("half of ONNX Runtime is gone" in f["message"] for f in findings if f["check"] == "onnxruntime")


def test_no_onnxruntime_is_the_only_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    fault = onnxruntime_package.Fault("ONNX Runtime is not installed", "pip install onnxruntime")
    monkeypatch.setattr(onnxruntime_package, "missing", lambda: fault)
    (finding,) = doctor.examine()
    assert finding == Finding("onnxruntime", "problem", fault.what, fault.remedy)


def test_a_sound_artifact_has_no_problem(made: Path) -> None:
    done = run(made)
    assert done.exit_code == 0, done.output
    assert "no problems" in done.stdout
    assert "2 calls of 2 functions run as kernels" in done.stdout
    assert all(line == line.rstrip() for line in done.stdout.splitlines())


def test_every_check_is_carried_out(made: Path) -> None:
    checks = {f.check for f in doctor.examine(made)}
    assert {"driver", "onnxruntime", "artifact", "versions", "configuration", "library", "placement"} <= checks
    assert "cuda graph" in checks


def test_the_machine_alone() -> None:
    found = doctor.examine()
    assert {f.check for f in found} >= {"driver", "onnxruntime"}
    assert not any(f.check == "artifact" for f in found)


def test_json_for_machines(made: Path) -> None:
    found = json.loads(run(made, "--json").stdout)
    assert found["problems"] == 0
    assert {"check", "status", "message", "fix"} == set(found["findings"][0])


@pytest.mark.parametrize("name", ["model.onnx", "lib/kernels.json", "providers/cpu.json", "manifest.json"])
def test_damage_is_found_and_the_artifact_is_not_run(made: Path, artifact: Path, name: str) -> None:
    shutil.copytree(made, artifact)
    data = bytearray((artifact / name).read_bytes())
    data[len(data) // 2] ^= 1
    (artifact / name).write_bytes(data)
    done = run(artifact)
    assert done.exit_code == 1
    findings = {f.check: f for f in doctor.examine(artifact)}
    assert name.split("/")[-1] in findings["artifact"].message
    assert "copy the artifact again" in findings["artifact"].fix
    assert "library" not in findings


def test_a_missing_file_and_a_missing_folder(made: Path, artifact: Path, tmp_path: Path) -> None:
    shutil.copytree(made, artifact)
    (artifact / "lib" / "kernels.json").unlink()
    assert "kernels.json: is missing" in " ".join(run(artifact).stdout.split())
    done = run(tmp_path / "nothing")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "no such artifact folder" in done.stderr


def test_a_check_that_fails_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> list[Finding]:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(examination, "MACHINE", (broken, machine.driver))
    first, *rest = doctor.examine()
    assert (first.check, first.status) == ("broken", "problem")
    assert "ZeroDivisionError: division by zero" in first.message
    assert rest


# --- the machine -----------------------------------------------------------------------------------------------------


def test_no_driver_is_no_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "cuda_version", lambda: None)
    assert [f.status for f in machine.driver()] == ["note"]


def test_a_driver_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise devices.DriverError("cuInit: system has unsupported display driver / cuda driver combination (803)")

    monkeypatch.setattr(devices, "cuda_version", fails)
    (found,) = problems(machine.driver())
    assert "(803)" in found.message and "nvidia-smi" in found.fix


def test_gpus_and_what_the_catalogue_says(monkeypatch: pytest.MonkeyPatch) -> None:
    other = devices.Device(1, "NVIDIA H100 NVL", "9.0", 94 * 10**9, 60 << 20, 132)
    volta = devices.Device(2, "Tesla V100-SXM2-16GB", "7.0", 16 * 10**9, 6 << 20, 80)
    pretend(monkeypatch, H200, other, volta)
    known, unknown, refused = machine.gpu()
    assert known.status == "ok" and "4800 GB/s" in known.message
    assert unknown.status == "note" and "not in the GPU catalogue" in unknown.message
    assert refused.status == "problem" and "no code for sm_70" in refused.message


def test_a_driver_without_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch)
    (found,) = problems(machine.gpu())
    assert "CUDA_VISIBLE_DEVICES" in found.fix


def test_a_driver_too_old_for_onnx_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ort, "cuda_version", "13.0", raising=False)
    pretend(monkeypatch, H200, cuda="12.4")
    (found,) = problems(runtime.driver_for_runtime())
    assert "built for CUDA 13.0, the driver serves up to 12.4" in found.message
    pretend(monkeypatch, H200, cuda="13.2")
    assert not problems(runtime.driver_for_runtime())


def test_two_builds_over_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    fault = onnxruntime_package.Fault("onnxruntime and onnxruntime-gpu are both installed", "pip uninstall both")
    monkeypatch.setattr(onnxruntime_package, "doubled", lambda: fault)
    found = problems(runtime.onnxruntime())
    assert "onnxruntime and onnxruntime-gpu" in found[0].message


def test_a_gpu_and_a_runtime_for_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, H200)
    monkeypatch.setattr(ort, "get_available_providers", lambda: [sessions.CPU])
    assert any("no CUDA execution provider" in f.message for f in problems(runtime.onnxruntime()))


def test_cuda_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    if sessions.cuda_is_usable():
        pytest.skip("CUDA starts here")
    monkeypatch.setattr(runtime, "cuda_is_usable", lambda: True)
    (found,) = problems(runtime.cuda_provider())
    assert "does not start" in found.message
    assert "LD_LIBRARY_PATH" in found.fix


# --- the artifact ----------------------------------------------------------------------------------------------------


def test_a_runtime_that_is_too_old(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ort, "__version__", "1.20.1")
    (found,) = problems(artifact_checks.versions(subject))
    assert "needs ONNX Runtime 1.21 to open it, this is 1.20.1" in found.message
    assert "onnxruntime-gpu>=1.21" in found.fix


def with_archs(subject: Subject, *archs: str, driver: str = "12.0") -> Subject:
    needs = subject.manifest.requires.model_copy(update={"cuda_driver": dict.fromkeys(archs, driver)})
    manifest: manifests.Manifest = subject.manifest.model_copy(update={"archs": archs, "requires": needs})
    return Subject(subject.folder, manifest, opened=True)


def test_code_for_another_gpu(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, H200)
    (found,) = problems(artifact_checks.architectures(with_archs(subject, "sm_80", "sm_89")))
    assert "NVIDIA H200 is sm_90, the artifact has code for sm_80, sm_89" in found.message
    assert "--arch sm_90" in found.fix
    assert not problems(artifact_checks.architectures(with_archs(subject, "sm_90")))


def test_a_driver_too_old_for_the_kernels(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, H200, cuda="12.2")
    (found,) = problems(artifact_checks.architectures(with_archs(subject, "sm_90", driver="12.8")))
    assert "need a driver for CUDA 12.8, this one serves up to 12.2" in found.message


def test_nothing_fused_is_said(tmp_path: Path, artifact: Path) -> None:
    made = onnxopt.optimize(write(tmp_path / "plain.onnx", NOTHING_TO_FUSE), artifact, archs=()).path
    done = run(made)
    assert done.exit_code == 0
    assert "nothing was fused" in done.stdout


def test_kernels_that_are_switched_off(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNXOPT_DISABLE", "1")
    (found,) = problems(placement.library(subject))
    assert "2 of 2 fused functions run as their original nodes" in found.message
    assert "ONNXOPT_DISABLE" in found.fix


def test_kinds_of_kernels_that_tune_left_out(subject: Subject, artifact: Path) -> None:
    shutil.copytree(subject.folder, artifact)
    file = artifact / "providers" / "cpu.json"
    data = json.loads(file.read_text())
    data["session_config"][sessions.WITHOUT_KINDS] = "pointwise"
    file.write_text(json.dumps(data))
    found, *_ = placement.library(Subject(artifact, subject.manifest, opened=True))
    text = (
        "loads; 0 calls of 0 functions run as kernels; without kernels of pointwise, which tune measured to be faster"
    )
    assert (found.status, found.message) == ("ok", text)


def test_a_library_that_does_not_load(subject: Subject, artifact: Path) -> None:
    shutil.copytree(subject.folder, artifact)
    (artifact / "lib" / "libonnxopt_ops.so").write_bytes(b"no library")
    (found,) = problems(placement.library(Subject(artifact, subject.manifest, opened=True)))
    assert "refuses the artifact" in found.message


def test_data_on_the_cpu_is_told_from_shape_arithmetic() -> None:
    text = """
    mixed (float[n, 4] x) => (float[m, k] y) {
      s = Shape(x)
      one = Constant<value = int64[1] {1}>()
      t = Mul(s, one)
      f = Tanh(x)
      y = Reshape(f, t)
    }
    """
    model = ir.from_proto(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(HEADER + text)))
    for node in model.graph:
        node.name = node.op_type
    on_cpu = [("Shape", "Shape"), ("Mul", "Mul"), ("Tanh", "Tanh"), ("made by ORT", "Mul"), ("also", "Erf")]
    assert placement.heavy_nodes(model, on_cpu) == [("Tanh", "Tanh"), ("also", "Erf")]


def test_silent_cpu_placement_is_a_problem(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [(sessions.CUDA, "a", "", "MatMul"), (sessions.CPU, "node_of_ort", "", "Erf")]
    chosen = placement.configuration_for(subject.folder)
    on_gpu = type(chosen)("cuda", chosen.path, "", {**chosen.data, "provider": sessions.CUDA})
    (found,) = problems(placement._placement(subject, on_gpu, nodes))
    assert "no CUDA kernel for node_of_ort (Erf)" in found.message
    assert not problems(placement._placement(subject, on_gpu, nodes[:1]))


def test_what_prevents_a_cuda_graph_is_named(tmp_path: Path, artifact: Path) -> None:
    made = onnxopt.optimize(write(tmp_path / "loops.onnx", LOOPS), artifact, archs=()).path
    subject, _ = artifact_checks.files(made)
    assert subject is not None
    (found,) = graphs.cuda_graph(subject)
    assert found.status == "note"
    assert "If" in found.message


@pytest.mark.gpu
def test_on_a_gpu_everything_is_tried(tmp_path: Path, artifact: Path) -> None:
    made = onnxopt.optimize(write(tmp_path / "chain.onnx", CHAIN), artifact).path
    found = doctor.examine(made)
    assert not problems(found)
    assert any("captured and replayed" in f.message for f in found)
